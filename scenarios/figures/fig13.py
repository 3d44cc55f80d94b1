"""Figure 13: distributed SGD with a parameter server and with allreduce, against Horovod's way."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import raytwin as ray
from raytwin.scenarios.applications.sgd import STRATEGIES, Arithmetic, Shape, Trainer
from raytwin.scenarios.core import run_trace
from raytwin.scenarios.core.scenario import (
    Check,
    Compare,
    FigureSpec,
    Headline,
    Metrics,
    Option,
    Outcome,
    PublishedPoint,
    Ratio,
    Request,
    Row,
    Scenario,
    UsageError,
)
from raytwin.scenarios.peers import mpi, times_alone
from raytwin.scenarios.workloads.virtual_sgd import VirtualArithmetic
from raytwin.simulator.machine.costs import load_profile

GPUS = (4, 8, 16, 32, 64)
GPUS_PER_NODE = 8
"""Of a p3.16xlarge."""
NUMBER_BYTES = 4
"""Of a float32."""
GRADIENT_BYTES = 44_500_000 * NUMBER_BYTES
"""ResNet-101 has 44.5 million parameters."""
VIRTUAL_WIDTH = 12
"""Of the layers that stand for larger ones in simulation."""
REPLICAS = (1, 2)
WARM_UP = 1
"""Steps that are not counted: workers start, and memory is touched for the first time."""

PAPER = "paper's cluster"
HOST = "one host"
OURS, PEER = "actors", "mpi"
RING = "allreduce"
MODULE = "raytwin.scenarios.peers.mpi_sgd"
PATIENCE_S = 600.0
WITHIN = 0.1
"""Published: of distributed TensorFlow; here of the two strategies, one of which is Horovod's."""
EFFICIENCY_MIN = 0.8
"""Of the largest cluster, against the smallest, per GPU."""
FALL_MIN = 0.7
"""The last loss is at most so much of the first, where there are `STEPS_TO_FALL` steps."""
STEPS_TO_FALL = 10
SAME = 0.01
"""Losses of two systems that compute the same differ by less, relative: sums have other orders."""


def run(request: Request) -> Outcome:
    """Train at every size; see `SCENARIO`."""
    outcome = Outcome(rows=[])
    if request.backend == "sim":
        _simulate(request, outcome)
    else:
        _measure(request, outcome)
    _judge(outcome)
    return outcome


def _simulate(request: Request, outcome: Outcome) -> None:
    settings = request.settings
    if request.nodes:
        sizes = tuple(nodes * GPUS_PER_NODE for nodes in request.nodes)
    else:
        sizes = settings["gpus"]
    batch = settings["batch_per_gpu"]
    layers, copy_byte_s = settings["layers"], 1 / load_profile("paper").memory_bandwidth
    shape, arithmetic = _virtual(
        layers, settings["step_s"], GRADIENT_BYTES, copy_byte_s, copy_byte_s
    )
    on_host = _replicas(request) if request.profile is not None else ()
    runs = 2 * (len(sizes) + len(on_host))
    request.progress.begin(f"fig13 on sim, {runs} clusters", runs)
    for gpus in sizes:
        nodes = math.ceil(gpus / GPUS_PER_NODE)
        if gpus > GPUS_PER_NODE and gpus % GPUS_PER_NODE:
            raise UsageError(
                f"fig13 has {GPUS_PER_NODE} GPUs on a node: give fewer, or a multiple, not {gpus}"
            )
        for strategy in STRATEGIES:
            options = {"backend": "sim", "profile": "paper", "seed": request.seed}
            elapsed_s, losses = _train(
                outcome, strategy, nodes, shape, arithmetic, settings["steps"], options
            )
            images = gpus * batch * settings["steps"]
            row = _row(PAPER, OURS, strategy, gpus, images / elapsed_s, losses, 0)
            _add(outcome, row, losses, gpus == max(sizes))
            request.progress.advance()
    if on_host:
        _predict(request, on_host, outcome)


def _virtual(
    layers: int, step_s: float, gradient_bytes: float, add_byte_s: float, change_byte_s: float
) -> tuple[Shape, VirtualArithmetic]:
    """Return a small network that stands for one with these gradients, and what it takes."""
    numbers = layers * VIRTUAL_WIDTH * (VIRTUAL_WIDTH + 1)
    arithmetic = VirtualArithmetic(
        layers, step_s, gradient_bytes / numbers, add_byte_s, change_byte_s
    )
    return Shape(layers, VIRTUAL_WIDTH, 32), arithmetic


def _replicas(request: Request) -> tuple[int, ...]:
    """Return how many replicas there are on one host, in turn."""
    return tuple(request.nodes or request.settings["replicas"])


def _parts_s(settings: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the seconds that one process alone takes for a step of a replica on one host, for
    adding the gradients of one layer, and for changing its weights."""
    shape = (settings[name] for name in ("layers_on_host", "width", "batch"))
    return times_alone.measured("sgd_s", *shape)


def _predict(request: Request, sizes: tuple[int, ...], outcome: Outcome) -> None:
    """Simulate the replicas of one host, whose parts take what one process alone takes for them."""
    settings, profile = request.settings, str(request.profile)
    layers, width, batch = (settings[name] for name in ("layers_on_host", "width", "batch"))
    step_s, add_s, change_s = _parts_s(settings)
    outcome.findings.append(
        f"On this machine a step of one replica takes {1e3 * step_s:.1f} ms, adding the gradients"
        f" of a layer {1e3 * add_s:.2f} ms, and changing its weights {1e3 * change_s:.2f} ms, as"
        " measured by one process alone before the prediction."
    )
    layer_bytes = width * (width + 1) * NUMBER_BYTES
    shape, arithmetic = _virtual(
        layers, step_s, layers * layer_bytes, add_s / layer_bytes, change_s / layer_bytes
    )
    steps = settings["steps_on_host"]
    for replicas in sizes:
        for strategy in STRATEGIES:
            options = {
                "backend": "sim",
                "profile": profile,
                "nodes_per_host": replicas,
                "seed": request.seed,
            }
            elapsed_s, losses = _train(
                outcome, strategy, replicas, shape, arithmetic, steps, options
            )
            rate = replicas * batch * steps / elapsed_s
            _add(outcome, _row(HOST, OURS, strategy, replicas, rate, losses, 0), losses, False)
            request.progress.advance()


def _measure(request: Request, outcome: Outcome) -> None:
    settings = request.settings
    sizes = _replicas(request)
    shape = Shape(settings["layers_on_host"], settings["width"], settings["batch"])
    repeats, steps = settings["repeats"], settings["steps_on_host"]
    lacking = mpi.missing()
    if lacking:
        request.progress.say(lacking)
        outcome.findings.append(f"{lacking}.")
    request.progress.begin(f"fig13 on {request.backend}", len(sizes) * repeats)
    for repeat in range(repeats):
        for replicas in sizes:
            keep = repeat == 0 and replicas == max(sizes)
            images = replicas * shape.batch * steps
            for strategy in STRATEGIES:
                options = {"backend": request.backend, "seed": request.seed}
                elapsed_s, losses = _train(
                    outcome, strategy, replicas, shape, Arithmetic(), steps, options
                )
                row = _row(HOST, OURS, strategy, replicas, images / elapsed_s, losses, repeat)
                _add(outcome, row, losses, keep)
            if not lacking:
                arguments = {
                    "layers": shape.layers,
                    "width": shape.width,
                    "batch": shape.batch,
                    "warm_up": WARM_UP,
                    "steps": steps,
                }
                found = mpi.run(MODULE, replicas, arguments, timeout_s=PATIENCE_S)
                rate, losses = images / found["elapsed_s"], found["losses"]
                row = _row(HOST, PEER, RING, replicas, rate, losses, repeat)
                _add(outcome, row, losses, keep)
            request.progress.advance()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Have processes that start meanwhile compute with one thread, as ranks of MPI do."""
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _train(
    outcome: Outcome,
    strategy: str,
    replicas: int,
    shape: Shape,
    arithmetic: Any,
    steps: int,
    options: dict[str, Any],
) -> tuple[float, list[float]]:
    """Train on a cluster of its own; return the seconds of the steps, and every step's loss."""
    with _one_thread():
        ray.init(nodes=replicas, cpus_per_node=1, **options)
    try:
        trainer = Trainer(
            ray,
            strategy,
            replicas,
            shape,
            arithmetic,
            placed=lambda number: {"resources": {f"node:{number}": 0.001}},
        )
        losses = trainer.train(WARM_UP)
        begun_s = ray.now()
        losses += trainer.train(steps)
        elapsed_s = ray.now() - begun_s
        outcome.timeline = outcome.timeline or run_trace.kept()
        return elapsed_s, losses
    finally:
        ray.shutdown()


def _row(
    series: str,
    system: str,
    strategy: str,
    replicas: int,
    images_per_s: float,
    losses: list[float],
    repeat: int,
) -> Row:
    return {
        "series": series,
        "system": system,
        "strategy": strategy,
        "replicas": replicas,
        "images_per_s": images_per_s,
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "repeat": repeat,
        "step": None,
        "loss": None,
    }


def _add(outcome: Outcome, row: Row, losses: list[float], by_step: bool) -> None:
    """Add a row, and with `by_step` one for every step's loss."""
    outcome.rows.append(row)
    if by_step:
        bare = {**row, "images_per_s": None, "loss_first": None, "loss_last": None}
        outcome.rows += [{**bare, "step": n, "loss": loss} for n, loss in enumerate(losses)]


def _judge(outcome: Outcome) -> None:
    """Add the metrics and the checks; say who is how much faster."""
    # In simulation, what is predicted for this machine has no peer to be judged by.
    series = outcome.rows[0]["series"]
    runs = [
        row for row in outcome.rows if row["images_per_s"] is not None and row["series"] == series
    ]
    rates: dict[tuple[str, str, int], list[float]] = {}
    for row in runs:
        key = row["system"], row["strategy"], row["replicas"]
        rates.setdefault(key, []).append(row["images_per_s"])
    medians = {key: statistics.median(each) for key, each in rates.items()}
    for (system, strategy, replicas), rate in medians.items():
        slug = strategy.replace("-", "_") + ("" if system == OURS else f"_{system}")
        outcome.metrics[f"images_per_s_{slug}_on_{replicas}"] = rate
    _judge_losses(outcome, runs)
    sizes = sorted({replicas for _, _, replicas in medians})
    for replicas in sizes:
        server, ring = (medians[OURS, strategy, replicas] for strategy in STRATEGIES)
        if runs[0]["series"] == PAPER:
            if replicas >= GPUS_PER_NODE:
                outcome.checks.append(
                    Check(
                        f"{replicas} GPUs: the parameter server is within"
                        f" {WITHIN:.0%} of allreduce, or faster",
                        server >= (1 - WITHIN) * ring,
                        f"{server:,.0f} and {ring:,.0f} images/s",
                    )
                )
        elif (PEER, RING, replicas) in medians:
            peer = medians[PEER, RING, replicas]
            outcome.metrics[f"times_faster_than_mpi_on_{replicas}"] = max(server, ring) / peer
            outcome.findings.append(
                f"{replicas} replicas: {server:,.0f} images/s with a parameter server,"
                f" {ring:,.0f} with allreduce, {peer:,.0f} under MPI in the same run"
                f" ({server / peer:.2f} and {ring / peer:.2f} times as many). Published for 4 to 64"
                " GPUs: Ray matches Horovod."
            )
    if runs[0]["series"] == PAPER and len(sizes) > 1:
        for strategy in STRATEGIES:
            ends = [medians[OURS, strategy, size] / size for size in (sizes[0], sizes[-1])]
            outcome.checks.append(
                Check(
                    f"{strategy}: a GPU does nearly as much on {sizes[-1]} as on {sizes[0]}",
                    ends[1] >= EFFICIENCY_MIN * ends[0],
                    f"{ends[0]:.1f} and {ends[1]:.1f} images/s",
                )
            )


def _judge_losses(outcome: Outcome, runs: list[Row]) -> None:
    """Check that every run learns, and that all of one size compute the same."""
    steps = max((row["step"] for row in outcome.rows if row["step"] is not None), default=0)
    most = FALL_MIN if steps >= STEPS_TO_FALL else 1.0
    risen = [row for row in runs if not row["loss_last"] < most * row["loss_first"]]
    outcome.checks.append(
        Check(
            "the loss falls",
            not risen,
            f"{len(risen)} of {len(runs)} runs end with more than {most:g} times the first loss",
            under_faults=True,
        )
    )
    apart = 0.0
    for replicas in {row["replicas"] for row in runs}:
        for column in ("loss_first", "loss_last"):
            losses = [row[column] for row in runs if row["replicas"] == replicas]
            apart = max(apart, (max(losses) - min(losses)) / min(losses))
    outcome.checks.append(
        Check(
            "all strategies and systems compute the same losses",
            apart < SAME,
            f"they differ by {apart:.2g} at most, relative",
            under_faults=True,
        )
    )


def _why(metrics: Metrics) -> str:
    """Return how raytwin and MPI compare where there is nothing to average, and where there is."""
    alone, two = (metrics[f"times_faster_than_mpi_on_{replicas}"] for replicas in (1, 2))
    cause = (
        "ranks of Open MPI poll while they wait for one another, a core each, and raytwin's"
        " processes sleep, which leaves the few cores of one machine to those that compute."
        if two > alone
        else "averaging costs raytwin more, since gradients pass through an object store on their"
        " way, and its own processes want the cores on which replicas compute."
    )
    return (
        f"with one replica, where there is nothing to average, raytwin does {alone:.2f} times MPI's"
        f" images/s, with two {two:.2f} times: {cause}"
    )


SCENARIO = Scenario(
    name="fig13",
    time_bodies=_parts_s,
    nodes_max={"sim": 64, "local": 16},
    title="Distributed SGD",
    figure="Figure 13",
    backends=("sim", "local", "ray"),
    run=run,
    about=(
        "The paper trains ResNet-101 by synchronous, data-parallel SGD on 4 to 64 V100 GPUs of"
        " p3.16xlarge nodes, with a parameter server whose shards are actors, and compares with"
        " Horovod and distributed TensorFlow. Its text says that Ray matches Horovod and is within"
        " 10 % of distributed TensorFlow; the numbers of images are only drawn."
        "\n\n"
        "Here `scenarios/applications/sgd.py` does that, a script that runs on Ray as it is. A"
        " replica is an actor, a call passes one layer, and the gradient of a layer travels while"
        " the replica works on the next: to the shard of a parameter server, or around a ring,"
        " which is Horovod's algorithm, as calls of actors."
        "\n\n"
        "In simulation the gradients have the 178 MB of ResNet-101's 44.5 million parameters, in"
        " equal layers. The paper does not publish how long a V100 takes for a step: 0.4 s for"
        " a batch of 64 is an assumption, on which every number of images rests, so what the"
        " figure shows is how it grows. The GPUs of a node are one replica, whose gradients are"
        " added up over NVLink at no charge; a sum elsewhere takes one core as long as a copy. The"
        " network of a node is that of profile 'paper', 25 Gbit/s, as a p3.16xlarge has. A"
        " small network, whose numbers stand for several each, is really trained."
        "\n\n"
        "On one host a network in numpy is trained on real processes, and by ranks of Open MPI in"
        " the same run, in turn, with Horovod's algorithm: an allreduce of each layer, under way"
        " while the rank works on the next. All begin with the same weights and draw the same"
        " images, so all have the same losses. Every process computes with one thread. What is"
        " predicted for this machine rests on what one process alone is measured to take for a"
        " step, for adding a layer's gradients, and for changing its weights."
    ),
    headline=Headline(
        "images/s with the parameter server, as part of those with allreduce, 64 GPUs",
        lambda metrics: (
            metrics["images_per_s_parameter_server_on_64"] / metrics["images_per_s_allreduce_on_64"]
        ),
        measured=lambda metrics: (
            metrics["images_per_s_parameter_server_on_2"] / metrics["images_per_s_allreduce_on_2"]
        ),
        measured_what="2 replicas of a small model",
        peer=lambda metrics: (
            max(
                metrics["images_per_s_parameter_server_on_2"],
                metrics["images_per_s_allreduce_on_2"],
            )
            / metrics["times_faster_than_mpi_on_2"]
            / metrics["images_per_s_allreduce_on_2"]
        ),
        peer_name="MPI Allreduce",
    ),
    ratios=(
        Ratio(
            "images/s of 2 replicas, against ranks of Open MPI with Horovod's algorithm",
            PublishedPoint(64, 1.0, note="figure 13: matches Horovod, 4 to 64 GPUs"),
            lambda metrics: metrics["times_faster_than_mpi_on_2"],
            _why,
        ),
    ),
    options=(
        Option("gpus", int, GPUS, GPUS, "on the paper's cluster", minimum=1, many=True),
        Option("step_s", float, 0.4, 0.4, "of a GPU for its batch: assumed", minimum=0),
        Option("batch_per_gpu", int, 64, 64, "images there", minimum=1),
        Option("layers", int, 16, 32, "that the gradients there have", minimum=1),
        Option("steps", int, 3, 5, "measured there", minimum=1),
        Option("replicas", int, REPLICAS, (1, 2, 4), "on one host", minimum=1, many=True),
        Option("width", int, 512, 512, "of a layer there", minimum=16),
        Option("layers_on_host", int, 4, 4, "there", minimum=1),
        Option("batch", int, 128, 256, "images of a replica there", minimum=1),
        Option("steps_on_host", int, 20, 40, "measured there", minimum=1),
        Option("repeats", int, 2, 5, "fresh clusters, and jobs of MPI, on local", minimum=1),
    ),
    figures=(
        FigureSpec(
            title="Images a second by GPUs, ResNet-101's gradients, 0.4 s a step assumed",
            x="replicas",
            y="images_per_s",
            x_label="V100 GPUs, 8 on a node",
            y_label="images/s",
            x_scale="log",
            y_scale="log",
            series=("system", "strategy"),
            where={"series": PAPER},
            published_shape=(
                "near-linear to 64 GPUs; Ray matches Horovod, and is within 10 % of distributed"
                " TensorFlow"
            ),
            note="The time of a step (option step_s) is an assumption, not the paper's number.",
        ),
        FigureSpec(
            title="Images a second by replicas on one host, a small network, against Open MPI",
            x="replicas",
            y="images_per_s",
            x_label="replicas on this machine",
            y_label="images/s",
            x_scale="log",
            series=("system", "strategy"),
            where={"series": HOST},
            compare=Compare(
                on=("strategy", "replicas"),
                column="images_per_s",
                predicted={"series": HOST, "system": OURS},
                measured={"series": HOST, "system": OURS},
                aim_percent=5,
            ),
        ),
        FigureSpec(
            title="Loss on one host with the most replicas",
            x="step",
            y="loss",
            x_label="step",
            y_label="cross-entropy",
            series=("system", "strategy"),
            where={"series": HOST},
        ),
    ),
)
