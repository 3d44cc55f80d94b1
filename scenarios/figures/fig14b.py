"""Figure 14b: proximal policy optimization, by actors of different resources and by MPI.

Prices are AWS's list prices on demand, Linux, us-east-1, for the paper's instances: m4.16xlarge (64
vCPU) 3.20 and p3.16xlarge (64 vCPU, 8 V100) 24.48 dollars an hour. They are options, since prices
change. What a spot instance costs varies by the hour; its share of the list price is fitted to
what the paper states: 18 times cheaper on spot against 4.5 times on demand makes a quarter.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import islice
from typing import Any

import raytwin as ray
from raytwin.scenarios.applications import ppo
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
from raytwin.simulator.machine.costs import load_profile

PAPER = "paper's cluster"
HOST = "one host"
COSTS = "costs"
ACTORS, MPI, MPI_MODEL = "actors", "mpi", "mpi (modelled)"
ON_DEMAND, SPOT = "on demand", "actors on spot instances"
CPUS_PER_HOST, GPUS_PER_HOST = 64, 8
CPUS_PER_GPU = 8
"""Of the symmetric processes: each needs its part of a GPU."""
GPUS_MAX = 8
"""Of the actors' trainer."""
STEPS, SGD_STEPS, BATCH = 320_000, 20, 32_768
STEPS_MIN, STEPS_MAX = 10, 1_000
PARAMETERS_BYTES = 350_000
STEP_BYTES = 1_600
"""Assumed: of a step in a rollout, 376 float32 of Humanoid-v1's observation and what is beside."""
CHEAPER, CHEAPER_ON_SPOT = 4.5, 18.0
SOURCE = "OSDI 2018, section 5.3.2"
ANY_SETUP = "for which set-up is not stated: drawn at the largest"
NO_GYMNASIUM = "CartPole is not played: no gymnasium (pip install 'raytwin[rl]')"
PEER = "raytwin.scenarios.peers.mpi_ppo"


class Game:
    """Stands for what a simulator plays: rollouts of random length whose steps take time."""

    def __init__(self, seed: int, step_s: float, steps: tuple[int, int], step_bytes: float) -> None:
        self.random = random.Random(seed)
        self.step_s, self.steps, self.step_bytes = step_s, steps, step_bytes

    def play(self, weights: Any) -> tuple[int, Any]:
        steps = self.random.randint(*self.steps)
        ray.compute(steps * self.step_s)
        return steps, ray.Blob(round(steps * self.step_bytes))


class Learner:
    """Stands for a learner, which takes its time."""

    def __init__(self, train_s: float, parameters_bytes: int) -> None:
        self.weights = ray.Blob(parameters_bytes)
        self.scores: list[float] = []
        self.train_s = train_s

    def add(self, rollout: Any) -> None: ...

    def train(self) -> Any:
        ray.compute(self.train_s)
        return self.weights


class Timed:
    """Stands for what is played and learned: Humanoid-v1, unless sizes of another are given."""

    def __init__(
        self,
        seed: int,
        step_s: float,
        train_s: float,
        steps: tuple[int, int] = (STEPS_MIN, STEPS_MAX),
        step_bytes: float = STEP_BYTES,
        parameters_bytes: int = PARAMETERS_BYTES,
    ) -> None:
        self.seed, self.step_s, self.train_s = seed, step_s, train_s
        self.steps, self.step_bytes, self.parameters_bytes = steps, step_bytes, parameters_bytes

    def simulator(self, number: int) -> Game:
        return Game(1_000_000 * self.seed + number, self.step_s, self.steps, self.step_bytes)

    def learner(self) -> Learner:
        return Learner(self.train_s, self.parameters_bytes)


def run(request: Request) -> Outcome:
    """Learn by actors and by MPI; see `SCENARIO`."""
    if request.nodes:
        raise UsageError("fig14b goes by CPUs, not by nodes: leave --nodes out, give --set cpus=")
    return _run_sim(request) if request.backend == "sim" else _run_real(request)


def _row(series: str, system: str, cpus: int, gpus: int, number: int, **found: Any) -> Row:
    empty = dict.fromkeys(("iteration_s", "steps", "score", "cost_usd", "billing", "cost_ratio"))
    return {
        "series": series,
        "system": system,
        "cpus": cpus,
        "gpus": gpus,
        "iteration": number,
        "repeat": 0,
        **empty,
        **found,
    }


# -- on the paper's cluster ------------------------------------------------------


def _hosts(cpus: int, gpus: int) -> tuple[int, int]:
    """Return how many hosts with GPUs, and how many without, have these resources."""
    with_gpus = math.ceil(gpus / GPUS_PER_HOST)
    return with_gpus, math.ceil(max(0, cpus - with_gpus * CPUS_PER_HOST) / CPUS_PER_HOST)


def usd(cpus: int, gpus: int, seconds: float, settings: Mapping[str, Any]) -> float:
    """Return what the hosts that have these resources cost for so long, on demand."""
    with_gpus, without = _hosts(cpus, gpus)
    per_hour = with_gpus * settings["gpu_host_usd"] + without * settings["cpu_host_usd"]
    return float(per_hour * seconds / 3600)


def modelled_mpi_s(cpus: int, gpus: int, settings: Mapping[str, Any]) -> float:
    """Return the seconds of an iteration of symmetric processes, one on each CPU.

    As in `peers.mpi_ppo` each plays exactly its share of the steps, so that there is no slowest to
    wait for. Then every gradient is averaged by recursive doubling, which is fast where gradients
    are small. Nothing else is charged to MPI.
    """
    profile = load_profile("paper")
    one_host = cpus <= CPUS_PER_HOST
    latency_s = profile.loopback_latency_s if one_host else profile.latency_s
    bandwidth = profile.loopback_bandwidth if one_host else profile.bandwidth
    average_s = math.ceil(math.log2(cpus)) * (latency_s + PARAMETERS_BYTES / bandwidth)
    step_s = settings["step_us"] * 1e-6
    played_s = math.ceil(settings["steps"] / cpus) * step_s
    return played_s + _train_s(gpus, settings) + SGD_STEPS * average_s


def _train_s(gpus: int, settings: Mapping[str, Any]) -> float:
    return float(SGD_STEPS * BATCH / (gpus * settings["gpu_samples_per_s"]))


def _run_sim(request: Request) -> Outcome:
    settings = request.settings
    outcome = Outcome(rows=[])
    request.progress.begin("fig14b on sim", len(settings["cpus"]))
    for cpus in settings["cpus"]:
        all_gpus = math.ceil(cpus / CPUS_PER_GPU)
        gpus = min(GPUS_MAX, all_gpus)
        for number, found in enumerate(_actors(request, cpus, gpus)):
            cost = usd(cpus, gpus, found.seconds, settings)
            row = _row(PAPER, ACTORS, cpus, gpus, number, cost_usd=cost)
            outcome.rows.append({**row, "iteration_s": found.seconds, "steps": found.steps})
        seconds = modelled_mpi_s(cpus, all_gpus, settings)
        cost = usd(cpus, all_gpus, seconds, settings)
        row = _row(PAPER, MPI_MODEL, cpus, all_gpus, 0, cost_usd=cost)
        outcome.rows.append({**row, "iteration_s": seconds, "steps": settings["steps"]})
        if cpus == min(settings["cpus"]):
            outcome.timeline = run_trace.kept()
        ray.shutdown()
        request.progress.advance()
    _judge_sim(outcome, settings)
    if request.profile is not None:
        _predict(request, outcome)
    return outcome


def _parts_s(settings: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Return what one process alone takes for the parts of an iteration: `times_alone.balance_s`.

    None without gymnasium, which plays the rollouts.
    """
    if find_spec("gymnasium") is None:
        return None
    return times_alone.measured("balance_s", settings["steps_on_host"], settings["simulators"])


def _predict(request: Request, outcome: Outcome) -> None:
    """Simulate iterations on this machine, with what one process alone takes for their parts."""
    parts_s = _parts_s(request.settings)
    if parts_s is None:
        outcome.findings.append(f"Nothing is predicted for this machine: {NO_GYMNASIUM}.")
        return
    settings = request.settings
    simulators, steps = settings["simulators"], settings["steps_on_host"]
    played_s, train_s, _, nbytes = parts_s
    outcome.findings.append(
        f"On this machine a rollout of {ppo.FRAGMENT} steps takes {1e3 * played_s:.1f} ms, and"
        f" training {1e3 * train_s:.1f} ms, as measured by one process alone before the prediction."
    )
    length = ppo.FRAGMENT, ppo.FRAGMENT
    parameters_bytes = ppo.Network(0).weights.nbytes
    problem = Timed(
        request.seed,
        played_s / ppo.FRAGMENT,
        train_s,
        length,
        nbytes / ppo.FRAGMENT,
        parameters_bytes,
    )
    nodes = [{"CPU": float(simulators), "GPU": 1.0}]
    ray.init(backend="sim", nodes=nodes, profile=str(request.profile), seed=request.seed)
    try:
        iterations = ppo.learn(ray, problem, simulators, 1.0, steps)
        for number, found in enumerate(islice(iterations, settings["iterations"])):
            row = _row(HOST, ACTORS, simulators, 1, number, steps=found.steps)
            outcome.rows.append({**row, "iteration_s": found.seconds})
    finally:
        ray.shutdown()


def _actors(request: Request, cpus: int, gpus: int) -> list[ppo.Iteration]:
    """Return iterations by actors; the cluster is left for who looks at it."""
    settings = request.settings
    with_gpus, without = _hosts(cpus, gpus)
    each = min(cpus, CPUS_PER_HOST)
    ray.init(
        backend="sim",
        nodes=[
            *({"CPU": float(each), "GPU": float(gpus)} for _ in range(with_gpus)),
            *({"CPU": float(each)} for _ in range(without)),
        ],
        profile="paper",
        seed=request.seed,
    )
    problem = Timed(request.seed, settings["step_us"] * 1e-6, _train_s(gpus, settings))
    iterations = ppo.learn(ray, problem, cpus, gpus, settings["steps"])
    next(iterations)  # brings the actors up
    return list(islice(iterations, settings["iterations_simulated"]))


def _judge_sim(outcome: Outcome, settings: Mapping[str, Any]) -> None:
    def median(system: str, cpus: int, column: str) -> float:
        return statistics.median(
            row[column] for row in outcome.rows if (row["system"], row["cpus"]) == (system, cpus)
        )

    slower = {}
    for cpus in settings["cpus"]:
        actors, peer = (median(each, cpus, "iteration_s") for each in (ACTORS, MPI_MODEL))
        slower[cpus] = peer / actors
        ratio = median(MPI_MODEL, cpus, "cost_usd") / median(ACTORS, cpus, "cost_usd")
        on_spot = ratio / settings["spot_share"]
        outcome.metrics |= {
            f"actors_iteration_at_{cpus}_cpus_s": actors,
            f"mpi_modelled_iteration_at_{cpus}_cpus_s": peer,
            f"mpi_cost_at_{cpus}_cpus_ratio": ratio,
            f"mpi_cost_against_spot_at_{cpus}_cpus_ratio": on_spot,
        }
        gpus = min(GPUS_MAX, math.ceil(cpus / CPUS_PER_GPU))
        outcome.rows += [
            _row(COSTS, ACTORS, cpus, gpus, 0, billing=ON_DEMAND, cost_ratio=ratio),
            _row(COSTS, ACTORS, cpus, gpus, 0, billing=SPOT, cost_ratio=on_spot),
        ]
    ratios = ", ".join(f"{ratio:.2f} with {cpus} CPUs" for cpus, ratio in slower.items())
    most = max(settings["cpus"])
    cost = outcome.metrics[f"mpi_cost_at_{most}_cpus_ratio"]
    enough = all(r["steps"] >= settings["steps"] - STEPS_MAX for r in outcome.rows if r["steps"])
    outcome.checks += [
        Check(
            "every iteration had its steps",
            enough,
            f"{settings['steps']:,} or more",
            under_faults=True,
        ),
        Check(
            "actors are faster than the modelled MPI in every set-up",
            min(slower.values()) > 1,
            f"MPI takes so many times as long: {ratios}",
        ),
    ]
    if most > GPUS_MAX * CPUS_PER_GPU:
        name = f"MPI costs more than twice as much at {most} CPUs"
        outcome.checks.append(Check(name, cost > 2, f"{cost:.2f} times"))
    outcome.findings.append(
        f"With {most} CPUs an iteration of MPI costs {cost:.1f} times as much as one of the actors"
        f" at list prices; the paper says {CHEAPER}, and {CHEAPER_ON_SPOT:g} on spot instances."
        " MPI is modelled there; assumed: the time of a step, and of a sample on a GPU."
    )


# -- on this machine -------------------------------------------------------------


def _run_real(request: Request) -> Outcome:
    settings = request.settings
    outcome = Outcome(rows=[])
    if find_spec("gymnasium") is None:
        request.progress.say(NO_GYMNASIUM)
        outcome.findings.append(NO_GYMNASIUM)
        return outcome
    lacking = mpi.missing()
    if lacking:
        request.progress.say(lacking)
        outcome.findings.append(lacking)
    ranks, repeats, count = settings["simulators"], settings["repeats"], settings["iterations"]
    request.progress.begin(f"fig14b on {request.backend}", repeats * (1 if lacking else 2))
    for repeat in range(repeats):
        seed = request.seed + repeat
        systems = {ACTORS: _learn(request, seed, outcome)}
        request.progress.advance()
        if not lacking:
            arguments = {"iterations": count, "steps": settings["steps_on_host"], "seed": seed}
            # As Open MPI does by itself on one host, where the actors share memory, too.
            found = mpi.run(PEER, ranks, arguments, transport=mpi.Transport.SHARED_MEMORY)
            systems[MPI] = [ppo.Iteration(*each) for each in found]
            request.progress.advance()
        for system, iterations in systems.items():
            gpus = 1 if system == ACTORS else 0
            for number, each in enumerate(iterations):
                row = _row(HOST, system, ranks, gpus, number, score=each.score, steps=each.steps)
                outcome.rows.append({**row, "iteration_s": each.seconds, "repeat": repeat})
    _judge_real(outcome, settings)
    return outcome


def _learn(request: Request, seed: int, outcome: Outcome) -> list[ppo.Iteration]:
    settings = request.settings
    resources = {"CPU": float(settings["simulators"]), "GPU": 1.0}
    ray.init(backend=request.backend, nodes=[resources], seed=seed)
    try:
        iterations = ppo.learn(
            ray, ppo.Balance(seed), settings["simulators"], 1.0, settings["steps_on_host"]
        )
        found = list(islice(iterations, settings["iterations"]))
        outcome.timeline = run_trace.kept()
        return found
    finally:
        ray.shutdown()


def _judge_real(outcome: Outcome, settings: Mapping[str, Any]) -> None:
    rates: dict[str, float] = {}
    for system in dict.fromkeys(row["system"] for row in outcome.rows):
        rows = [row for row in outcome.rows if row["system"] == system]
        last = max(row["iteration"] for row in rows)
        before, after = (
            statistics.mean(row["score"] for row in rows if row["iteration"] in some)
            for some in ((0, 1), (last - 1, last))
        )
        # Iterations differ in their steps, since rollouts are whole. A rank of MPI that waits burns
        # a core, and where others want it some iterations take many times as long: the median.
        rates[system] = statistics.median(r["steps"] / r["iteration_s"] for r in rows)
        outcome.metrics |= {
            f"{system}_first_score": before,
            f"{system}_last_score": after,
            f"{system}_steps_per_s": rates[system],
        }
        name = f"the score of {system} at least doubles"
        said = f"{before:.0f}, then {after:.0f}"
        outcome.checks.append(Check(name, after >= 2 * before, said, under_faults=True))
    if MPI in rates:
        ratio = rates[ACTORS] / rates[MPI]
        parts_s = _parts_s(settings)
        assert parts_s is not None, "gymnasium has just been used"
        played_s, train_s, share_s, _ = parts_s
        iteration_s = {
            system: statistics.median(
                row["iteration_s"] for row in outcome.rows if row["system"] == system
            )
            for system in (ACTORS, MPI)
        }
        outcome.metrics |= {
            "actors_against_mpi_ratio": ratio,
            "actors_iteration_s": iteration_s[ACTORS],
            "mpi_iteration_s": iteration_s[MPI],
            "rollout_alone_s": played_s,
            "training_alone_s": train_s,
            "training_of_a_rank_alone_s": share_s,
        }
        why = "the actors are faster, as published." if ratio > 1 else _why(outcome.metrics)
        outcome.findings.append(
            f"The actors learn from {ratio:.2f} times as many steps a second as MPI: {why}"
        )


def _why(metrics: Metrics) -> str:
    """Return where an iteration's time goes on one host."""
    train_s, share_s = metrics["training_alone_s"], metrics["training_of_a_rank_alone_s"]
    actors_s, mpi_s = metrics["actors_iteration_s"], metrics["mpi_iteration_s"]
    return (
        f"the one trainer needs {1e3 * train_s:.0f} ms on a core, in which the simulators wait, of"
        f" an iteration of {1e3 * actors_s:.0f} ms; of MPI's ranks each trains with its share of"
        f" the batch, in {1e3 * share_s:.0f} ms of {1e3 * mpi_s:.0f} ms. The paper's trainer has"
        " GPUs, and its rollouts differ in length, so that ranks wait for the slowest; here all"
        f" have {ppo.FRAGMENT} steps."
    )


SCENARIO = Scenario(
    name="fig14b",
    time_bodies=_parts_s,
    title="Proximal policy optimization: actors against symmetric processes",
    figure="Figure 14b",
    backends=("sim", "local", "ray"),
    run=run,
    about=(
        "The paper learns Humanoid-v1 to a score of 6,000: 320,000 steps an iteration, gathered"
        " asynchronously, then 20 steps of SGD with batches of 32,768, of 350 KB of parameters."
        " Simulators need a CPU each, and only the trainer needs GPUs. The processes of its peer,"
        " on MPI, all do the same, so each needs its part of a GPU."
        "\n\n"
        "On sim the program of scenarios/applications/ppo.py runs with a problem that takes"
        " Humanoid's time, one GPU for eight CPUs and at most eight for the actors. MPI is"
        " modelled, in its favour: each process plays exactly its share of the steps, so that none"
        " waits for a slower one, and gradients are averaged by recursive doubling. Assumed:"
        " `step_us`, `gpu_samples_per_s`, 1.6 KB for"
        " a step, and which set-ups there are. How many iterations the score takes is not stated,"
        " so time and cost are of one iteration; their ratios are comparable."
        "\n\n"
        "Cost is hours of m4.16xlarge and p3.16xlarge at AWS's list prices on demand (Linux,"
        " us-east-1), 3.20 and 24.48 dollars; whole hosts are paid for. Fitted: the share of it"
        " that a spot instance costs, to 18 times against 4.5 times published."
        "\n\n"
        "On real processes both learn gymnasium's CartPole-v1, with the same network in numpy"
        " (Pendulum takes a small network on two cores too long); MPI really runs, with mpi4py."
        " The trainer's GPU is a resource by name there: numpy computes on a core. What is"
        " predicted of this machine is the time of an iteration of the actors; it rests on what one"
        " process alone takes for a rollout, and to train."
    ),
    headline=Headline(
        "times the cost of actors, for MPI on 512 CPUs",
        lambda metrics: metrics["mpi_cost_at_512_cpus_ratio"],
        PublishedPoint(512, 4.5, note="section 5.3.2; the paper does not say with how many CPUs"),
        fitted="MPI is modelled; list prices alone give 4.2 of it",
        measured=lambda metrics: metrics["actors_steps_per_s"],
        measured_what="is steps/s of actors that learn CartPole-v1",
        peer=lambda metrics: metrics["mpi_steps_per_s"],
        peer_name="MPI",
    ),
    ratios=(
        Ratio(
            "time of an iteration on 512 CPUs, against MPI (modelled)",
            PublishedPoint(512, 1.0, "at_least", f"{SOURCE}: faster than MPI in all set-ups"),
            lambda metrics: (
                metrics["mpi_modelled_iteration_at_512_cpus_s"]
                / metrics["actors_iteration_at_512_cpus_s"]
            ),
            lambda metrics: (
                f"an iteration takes {metrics['actors_iteration_at_512_cpus_s']:.2f} s, and"
                f" {metrics['mpi_modelled_iteration_at_512_cpus_s']:.2f} s if modelled in MPI's"
                " favour: its ranks never wait for one another"
            ),
            backend="sim",
        ),
        Ratio(
            "steps/s of actors that learn CartPole-v1 on one host, against ranks of MPI",
            PublishedPoint(512, 1.0, "at_least", f"{SOURCE}: faster than MPI in all set-ups"),
            lambda metrics: metrics["actors_against_mpi_ratio"],
            _why,
        ),
    ),
    options=(
        Option("cpus", int, (8, 64, 512), (8, 64, 128, 256, 512), "on sim", minimum=2, many=True),
        Option("steps", int, STEPS, STEPS, "an iteration, on sim", minimum=1),
        Option("iterations_simulated", int, 2, 4, "for each set-up", minimum=1),
        Option("step_us", float, 500.0, 500.0, "of a step, assumed; on sim", minimum=0),
        Option("gpu_samples_per_s", float, 1e6, 1e6, "of training, assumed; on sim", minimum=1),
        Option("cpu_host_usd", float, 3.20, 3.20, "an hour of 64 CPUs", minimum=0),
        Option("gpu_host_usd", float, 24.48, 24.48, "an hour of 64 CPUs and 8 GPUs", minimum=0),
        Option("spot_share", float, 0.25, 0.25, "of the price on demand, fitted", minimum=0.01),
        Option("simulators", int, 2, 2, "and ranks of MPI, on real processes", minimum=1),
        Option("steps_on_host", int, 2_000, 2_000, "an iteration there", minimum=250),
        Option("iterations", int, 10, 25, "there", minimum=4),
        Option("repeats", int, 2, 5, "of each system there, in turn", minimum=1),
    ),
    figures=(
        FigureSpec(
            title="An iteration on the paper's cluster; MPI modelled, times of a step assumed",
            x="cpus",
            y="iteration_s",
            x_label="CPUs; a GPU for eight, at most eight for the actors",
            y_label="time",
            series=("system",),
            where={"series": PAPER},
            x_scale="log",
            y_scale="log",
            y_unit="s",
            published_shape="Ray faster than MPI in all set-ups, with at most 8 GPUs",
        ),
        FigureSpec(
            title="How many times MPI costs what the actors cost (spot prices fitted)",
            x="cpus",
            y="cost_ratio",
            x_label="CPUs",
            y_label="cost of MPI / cost of the actors",
            series=("billing",),
            where={"series": COSTS},
            x_scale="log",
            published=(
                PublishedPoint(512, CHEAPER, "value", f"{SOURCE}; {ANY_SETUP}", series=ON_DEMAND),
                PublishedPoint(
                    512,
                    CHEAPER_ON_SPOT,
                    "value",
                    f"{SOURCE}; {ANY_SETUP}; fitted to",
                    series=SPOT,
                    fitted=True,
                ),
            ),
        ),
        FigureSpec(
            title="Mean score on CartPole-v1, learned on this machine",
            x="iteration",
            y="score",
            x_label="iteration of 2,000 steps",
            y_label="mean score",
            series=("system",),
            where={"series": HOST},
            compare=Compare(
                on=("system",),
                column="iteration_s",
                predicted={"series": HOST, "system": ACTORS},
                measured={"series": HOST, "system": ACTORS},
                aim_percent=5,
            ),
            note="CartPole in place of Humanoid, 2,000 steps in place of 320,000.",
        ),
    ),
)
