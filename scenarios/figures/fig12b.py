"""Figure 12b: what a slower scheduler costs a ring allreduce."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import raytwin as ray
from raytwin.scenarios.core import run_trace
from raytwin.scenarios.core.scenario import (
    Check,
    Compare,
    FigureSpec,
    Headline,
    Option,
    Outcome,
    Request,
    Row,
    Scenario,
    UsageError,
)
from raytwin.scenarios.peers import times_alone
from raytwin.scenarios.workloads.ring_allreduce import WARM_UPS, Passes, Ring, as_copies
from raytwin.simulator.machine.costs import load_profile

PAPER_NODES = 16
HOST_NODES = 4
PAPER = "paper's cluster"
HOST = "one host"
FEW_MS = 5.0
SLOWER_MIN = 1.75
"""Times, by a delay of `FEW_MS`, on the paper's cluster with its vector: "nearly double"."""
PAPER_BYTES = 100_000_000


def run(request: Request) -> Outcome:
    """Run the ring at every delay; see `SCENARIO`."""
    settings = request.settings
    if request.nodes and min(request.nodes) < 2:
        raise UsageError("fig12b needs at least 2 nodes: a ring of one has nobody to send to")
    outcome = Outcome(rows=[])
    if request.backend == "sim":
        runs: list[tuple[str, int, int, dict[str, Any]]] = [
            (PAPER, nodes, settings["bytes"], {"profile": "paper"})
            for nodes in request.nodes or (PAPER_NODES,)
        ]
        if request.profile is not None:
            runs += [
                (
                    HOST,
                    nodes,
                    settings["bytes_on_host"],
                    {"profile": str(request.profile), "nodes_per_host": nodes},
                )
                for nodes in request.nodes or (HOST_NODES,)
            ]
        repeats = 1
    else:
        runs = [
            (HOST, nodes, settings["bytes_on_host"], {}) for nodes in request.nodes or (HOST_NODES,)
        ]
        repeats = settings["repeats"]
    delays = settings["delays_ms"]
    request.progress.begin(f"fig12b on {request.backend}", len(runs) * len(delays) * repeats)
    for repeat in range(repeats):
        for series, nodes, nbytes, options in runs:
            for delay_ms in delays:
                keep = delay_ms == max(delays) and not outcome.timeline
                row = _delayed(outcome, request, series, nodes, nbytes, delay_ms, options, keep)
                outcome.rows.append({**row, "repeat": repeat})
                request.progress.advance()
    _judge(outcome)
    return outcome


def _delayed(
    outcome: Outcome,
    request: Request,
    series: str,
    nodes: int,
    nbytes: int,
    delay_ms: float,
    options: dict[str, Any],
    keep: bool,
) -> Row:
    """Measure one allreduce on a cluster whose scheduler is delayed; on one host after some that
    warm up."""
    passes = _passes(request, series, nodes, nbytes) if request.backend == "sim" else None
    ray.init(
        backend=request.backend,
        nodes=nodes,
        cpus_per_node=1,
        seed=request.seed,
        scheduling_delay_s=delay_ms / 1e3,
        **options,
    )
    try:
        ring = Ring(nodes, 1, nbytes, passes)
        right = True
        for _ in range(WARM_UPS if series == HOST else 0):
            ring.allreduce()
            right = ring.right() and right
        elapsed_s = ring.allreduce()
        right = ring.right() and right
        if keep:
            outcome.timeline = run_trace.kept()
        return {
            "series": series,
            "delay_ms": delay_ms,
            "nodes": nodes,
            "bytes": nbytes,
            "rounds": ring.rounds,
            "elapsed_s": elapsed_s,
            "right": right,
        }
    finally:
        ray.shutdown()


def _passes(request: Request, series: str, nodes: int, nbytes: int) -> Passes:
    """Return what the pieces of a virtual vector take."""
    if series == PAPER:
        return as_copies(nodes, 1, nbytes, load_profile("paper").memory_bandwidth)
    return _passes_on_host(request.settings, nodes)


def _passes_on_host(settings: Mapping[str, Any], nodes: int = HOST_NODES) -> Passes:
    """Return what one process alone takes on this machine for the pieces of the vector."""
    return Passes(*times_alone.measured("passes_s", settings["bytes_on_host"], nodes))


def _judge(outcome: Outcome) -> None:
    rows = outcome.rows
    wrong = sum(not row["right"] for row in rows)
    waited = [row["elapsed_s"] >= row["rounds"] * row["delay_ms"] / 1e3 for row in rows]
    outcome.checks += [
        Check(
            "every member has the sum of all",
            not wrong,
            f"{wrong} of {len(rows)} allreduces are wrong",
            under_faults=True,
        ),
        Check(
            "every round waits for the delay",
            all(waited),
            f"{waited.count(False)} of {len(rows)} allreduces took less than their rounds' delays",
        ),
    ]
    for series, nodes in dict.fromkeys((row["series"], row["nodes"]) for row in rows):
        of_it = [row for row in rows if (row["series"], row["nodes"]) == (series, nodes)]
        times = {
            delay_ms: statistics.median(
                row["elapsed_s"] for row in of_it if row["delay_ms"] == delay_ms
            )
            for delay_ms in dict.fromkeys(row["delay_ms"] for row in of_it)
        }
        slug = f"on_{nodes}_nodes" if series == PAPER else f"on_{nodes}_nodes_of_one_host"
        least = min(times)
        for delay_ms, elapsed_s in times.items():
            outcome.metrics[f"elapsed_s_{delay_ms:g}_ms_{slug}"] = elapsed_s
            if delay_ms > least:
                outcome.metrics[f"times_slower_{delay_ms:g}_ms_{slug}"] = elapsed_s / times[least]
        most = max(times)
        if most == least:
            continue
        each = (times[most] - times[least]) / ((most - least) / 1e3)
        outcome.findings.append(
            f"{series}, {nodes} nodes, {of_it[0]['bytes'] / 1e6:g} MB: {times[least] * 1e3:.0f} ms"
            f" with a delay of {least:g} ms, {times[most] * 1e3:.0f} ms with {most:g} ms:"
            f" {each:.1f} times the delay, of {of_it[0]['rounds']} rounds."
        )
        published = (series, nodes, of_it[0]["bytes"]) == (PAPER, PAPER_NODES, PAPER_BYTES)
        if published and {0.0, FEW_MS} <= set(times):
            slower = times[FEW_MS] / times[0.0]
            outcome.checks.append(
                Check(
                    "a few ms nearly double the time",
                    slower >= SLOWER_MIN,
                    f"{slower:.2f} times by {FEW_MS:g} ms on {nodes} nodes",
                )
            )


SCENARIO = Scenario(
    name="fig12b",
    time_bodies=_passes_on_host,
    nodes_max={"sim": 64, "local": 16},
    title="What a slower scheduler costs a ring allreduce",
    figure="Figure 12b",
    backends=("sim", "local"),
    run=run,
    not_on_ray="it delays every decision of the scheduler, which is an option of raytwin's",
    about=(
        "The paper repeats figure 12a's allreduce of 100 MB on 16 nodes with a scheduler that takes"
        " 1, 5 and 10 ms longer, and sees that a few ms nearly double the time. An allreduce is 32"
        " rounds of 16 tasks there."
        "\n\n"
        "Here it is 31 rounds of 16 calls of actors, with whole chunks. A call may be dispatched"
        " when its input has arrived and, after that, the delay is over: an option of the control"
        " plane's configuration, `init(scheduling_delay_s=...)`, which its local schedulers carry"
        " out with timers of their own on every backend. The delays of a round pass side by side,"
        " those of the rounds one after the other."
        "\n\n"
        "On one host the ring has fewer nodes, and so fewer rounds, and a smaller vector. There a"
        " sum and a copy are predicted to take what one process alone takes for them."
    ),
    headline=Headline(
        "times as long with 5 ms more for every scheduling decision, 100 MB on 16 nodes",
        lambda metrics: metrics["times_slower_5_ms_on_16_nodes"],
        measured=lambda metrics: metrics["times_slower_5_ms_on_4_nodes_of_one_host"],
        measured_what="4 nodes on one host",
    ),
    options=(
        Option(
            "delays_ms",
            float,
            (0.0, 1.0, 5.0, 10.0),
            (0.0, 1.0, 5.0, 10.0),
            "of the scheduler",
            minimum=0,
            many=True,
        ),
        Option("bytes", int, PAPER_BYTES, PAPER_BYTES, "of the vector, on 16 nodes", minimum=4),
        Option("bytes_on_host", int, 4_000_000, 20_000_000, "of it on one host", minimum=4),
        Option("repeats", int, 3, 7, "fresh clusters for each delay on local", minimum=1),
    ),
    figures=(
        FigureSpec(
            title="Time of an allreduce of 100 MB on 16 nodes of the paper's cluster",
            x="delay_ms",
            y="elapsed_s",
            x_label="scheduling delay (ms)",
            y_label="time",
            y_unit="s",
            series=("nodes",),
            where={"series": PAPER},
            published_shape="a few ms of delay nearly double the time",
        ),
        FigureSpec(
            title="Time of a smaller allreduce with all nodes on one host",
            x="delay_ms",
            y="elapsed_s",
            x_label="scheduling delay (ms)",
            y_label="time",
            y_unit="s",
            series=("nodes",),
            where={"series": HOST},
            compare=Compare(
                on=("nodes", "delay_ms"),
                column="elapsed_s",
                predicted={"series": HOST},
                measured={"series": HOST},
                aim_percent=5,
            ),
        ),
    ),
)
