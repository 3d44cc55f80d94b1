"""Table 4: time steps of simulations a second, by tasks as they come and by MPI in rounds."""

from __future__ import annotations

import math
import statistics
from functools import partial
from typing import Any

import raytwin as ray
from raytwin.scenarios.core import measured_host, run_trace
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
    Scenario,
)
from raytwin.scenarios.peers import PeerError, mpi
from raytwin.scenarios.workloads.simulations import (
    RUNS_PER_CPU,
    STEPS_MAX,
    STEPS_MIN,
    WARM_UP,
    as_they_come,
    episodes,
    in_rounds_s,
    measured_step_s,
    missing,
)
from raytwin.simulator.machine.costs import load_profile

PAPER = "paper's cluster"
HOST = "this machine"
TASKS, SPREAD = "tasks as they come", "tasks, spread"
MPI, MODELLED = "MPI", "MPI, modelled"
STRATEGIES = {TASKS: "DEFAULT", SPREAD: "SPREAD"}
"""The scheduling strategy of tasks: where there is one node they are the same."""
PROGRAMS = {
    TASKS: "asynchronous",
    SPREAD: "asynchronous",
    MPI: "bulk-synchronous",
    MODELLED: "bulk-synchronous",
}
PAPER_CPUS = (1, 16, 256)
CPUS_PER_NODE = 64
PUBLISHED = {
    ("MPI", 1): 22_600.0,
    ("MPI", 16): 208_000.0,
    ("MPI", 256): 2_160_000.0,
    ("Ray", 1): 22_300.0,
    ("Ray", 16): 290_000.0,
    ("Ray", 256): 4_030_000.0,
}
"""Time steps a second, by system and CPUs: OSDI 2018, table 4."""
STEP_S = 1 / PUBLISHED["MPI", 1]
"""A time step on the paper's cluster, fitted to MPI on one CPU, where it waits for nobody."""
WITHIN = 0.05
"""How far tasks on one CPU may be off: they do the same steps, and there is little else."""
ALLOWED = 1.0 + 1e-9


def run(request: Request) -> Outcome:
    """Simulate pendulums with every number of CPUs; see `SCENARIO`."""
    outcome = Outcome(rows=[])
    if request.backend == "sim":
        _predict(request, outcome)
        _judge_prediction(outcome)
    else:
        if missing():
            raise PeerError(missing())
        _measure(request, outcome)
    series = PAPER if request.backend == "sim" else HOST
    for system, cpus in dict.fromkeys(
        (r["system"], r["cpus"]) for r in outcome.rows if r["series"] == series
    ):
        name = f"timesteps_per_s_{_slug(system)}_{cpus}_cpus"
        outcome.metrics[name] = _median(outcome, series, system, cpus)
    return outcome


# -- in simulation -----------------------------------------------------------------


def _predict(request: Request, outcome: Outcome) -> None:
    plan: list[tuple[str, str, int, float]] = [
        (PAPER, "paper", cpus, STEP_S) for cpus in request.settings["cpus"]
    ]
    if request.profile is not None:
        if missing():
            request.progress.say(missing())
            outcome.findings.append(f"Nothing is predicted for this machine: {missing()}.")
        else:
            step_s = measured_step_s()
            outcome.findings.append(
                f"On this machine a time step takes {1e6 * step_s:.1f} us, as measured by one"
                " process alone before the prediction."
            )
            plan += [(HOST, str(request.profile), cpus, step_s) for cpus in _cpus_on_host(request)]
    request.progress.begin("table4 on sim", len(plan))
    for series, profile, cpus, step_s in plan:
        nodes = math.ceil(cpus / CPUS_PER_NODE)
        found: dict[str, list[float]] = {}
        for system in (TASKS, SPREAD) if nodes > 1 else (TASKS,):
            ray.init(
                backend="sim",
                profile=profile,
                seed=request.seed,
                nodes=nodes,
                cpus_per_node=min(cpus, CPUS_PER_NODE),
            )
            try:
                found[system], _ = _tasks(request, cpus, step_s, STRATEGIES[system])
                if (series, system) == (PAPER, TASKS):
                    outcome.timeline += run_trace.kept(f"{cpus} CPUs:")
            finally:
                ray.shutdown()
        # A dissemination barrier, and so many messages one after the other.
        costs = load_profile(profile)
        latency_s = costs.latency_s if nodes > 1 else costs.loopback_latency_s
        barrier_s = latency_s * math.ceil(math.log2(cpus))
        found[MODELLED] = [
            in_rounds_s(episodes(cpus, draw, request.seed), cpus, step_s, barrier_s)
            for draw in range(request.settings["draws"])
        ]
        for system, elapsed_s in found.items():
            # The costs were fitted to this one point.
            fitted = (series, system, cpus) == (PAPER, MODELLED, 1)
            row = _row(request, series, system, cpus, elapsed_s, 0)
            outcome.rows.append(row | {"fitted": fitted})
        request.progress.advance()


def _judge_prediction(outcome: Outcome) -> None:
    rates = {
        (r["system"], r["cpus"]): r["timesteps_per_s"] for r in outcome.rows if r["series"] == PAPER
    }
    busy = max(rate * STEP_S / cpus for (system, cpus), rate in rates.items() if system != MODELLED)
    outcome.checks.append(
        Check(
            "no more time steps than the CPUs can do",
            busy <= ALLOWED,
            f"tasks keep them busy for {busy:.1%} of the time at most",
        )
    )
    if (TASKS, 1) in rates:
        rate, published = rates[TASKS, 1], PUBLISHED["Ray", 1]
        off = rate / published - 1
        outcome.checks.append(
            Check(
                f"tasks on one CPU do the published {published:,.0f} time steps a second,"
                f" within {WITHIN:.0%}",
                abs(off) <= WITHIN,
                f"{rate:,.0f}, {off:+.1%}; a time step is fitted to MPI's"
                f" {PUBLISHED['MPI', 1]:,.0f}",
            )
        )
    for (system, cpus), rate in rates.items():
        if system == MODELLED:
            continue
        gain = rate / rates[MODELLED, cpus]
        outcome.metrics[f"{_slug(system)}_to_mpi_{cpus}_cpus"] = gain
        if cpus > 1:
            outcome.checks.append(
                Check(
                    f"{system} do more time steps on {cpus} CPUs than rounds, as published",
                    gain > 1.0,
                    f"{gain:.2f} times as many{_published_gain(cpus)}",
                )
            )
        if (SPREAD, cpus) in rates and system == TASKS:
            outcome.findings.append(
                f"On {cpus} CPUs, which are {math.ceil(cpus / CPUS_PER_NODE)} nodes, tasks do"
                f" {gain:.2f} times the time steps of rounds if nothing is said of where they run"
                f"{_published_gain(cpus)}, and {rates[SPREAD, cpus] / rates[MODELLED, cpus]:.2f}"
                " times if they are spread."
            )
    for (system, cpus), rate in rates.items():
        name = "MPI" if system == MODELLED else "Ray"
        if (name, cpus) in PUBLISHED and (name, cpus) != ("MPI", 1):
            off = rate / PUBLISHED[name, cpus] - 1
            outcome.findings.append(
                f"{cpus} CPUs, {system}: {rate:,.0f} time steps/s, where the paper has"
                f" {PUBLISHED[name, cpus]:,.0f} for {name} ({off:+.0%})."
            )


def _why(metrics: Metrics, cpus: int) -> str:
    """Return how much of their time the CPUs simulate, with tasks and in rounds."""
    busy = {
        system: metrics[f"timesteps_per_s_{_slug(system)}_{cpus}_cpus"] * STEP_S / cpus
        for system in (TASKS, MODELLED, *((SPREAD,) if cpus > CPUS_PER_NODE else ()))
    }
    shares = ", ".join(f"{system} {share:.0%}" for system, share in busy.items())
    return (
        f"of their time the {cpus} CPUs are busy so much: {shares}. A node that keeps more than its"
        " part of the tasks ends after the others."
    )


def _gain(metrics: Metrics, cpus: int) -> float:
    return metrics[f"{_slug(TASKS)}_to_mpi_{cpus}_cpus"]


def _most_cpus(metrics: Metrics) -> int:
    """Return the most CPUs on which tasks and MPI were measured. Raises KeyError if none was."""
    begin, end = f"{_slug(TASKS)}_to_mpi_", "_cpus"
    sizes = [int(name[len(begin) : -len(end)]) for name in metrics if name.startswith(begin)]
    if max(sizes, default=1) == 1:
        raise KeyError(f"{begin}2{end}")
    return max(sizes)


def _why_on_host(metrics: Metrics) -> str:
    """Return what tasks could gain at most on this machine, and what they cost."""
    cpus = _most_cpus(metrics)
    most, alone = metrics[f"most_gain_{cpus}_cpus_ratio"], _gain(metrics, 1)
    return (
        f"on {cpus} CPUs not to wait for the longest run of a round gains {most:.2f} times at most;"
        f" on one CPU, where nobody waits, tasks do {alone:.2f} times the time steps of MPI: driver"
        " and node take their part of the same CPUs."
    )


def _published_ratio(cpus: int) -> PublishedPoint:
    ratio = PUBLISHED["Ray", cpus] / PUBLISHED["MPI", cpus]
    return PublishedPoint(str(cpus), ratio, note=f"table 4, {cpus} CPUs")


def _published_gain(cpus: int) -> str:
    if ("Ray", cpus) not in PUBLISHED:
        return ""
    return f" (published: {PUBLISHED['Ray', cpus] / PUBLISHED['MPI', cpus]:.2f})"


# -- on real processes -------------------------------------------------------------


def _measure(request: Request, outcome: Outcome) -> None:
    sizes, repeats, draws = _cpus_on_host(request), request.settings["repeats"], _draws(request)
    lacking = mpi.missing()
    if lacking:
        request.progress.say(lacking)
        outcome.findings.append(f"{lacking}.")
    request.progress.begin(f"table4 on {request.backend}", repeats * len(sizes))
    differing = 0
    for repeat in range(repeats):
        for cpus in sizes:
            ray.init(backend=request.backend, nodes=1, cpus_per_node=cpus, seed=request.seed)
            try:
                elapsed_s, scores = _tasks(request, cpus, None)
                if repeat == 0:
                    outcome.timeline += run_trace.kept(f"{cpus} CPUs:")
            finally:
                ray.shutdown()
            outcome.rows.append(_row(request, HOST, TASKS, cpus, elapsed_s, repeat))
            if not lacking:
                found = mpi.run(
                    "raytwin.scenarios.peers.mpi_simulations",
                    cpus,
                    {"draws": draws, "seed": request.seed},
                )
                outcome.rows.append(_row(request, HOST, MPI, cpus, found["elapsed_s"], repeat))
                differing += sum(
                    ours != theirs for ours, theirs in zip(scores, found["scores"], strict=True)
                )
            request.progress.advance()
    if not lacking:
        outcome.checks.append(
            Check(
                "tasks and ranks have simulated the same pendulums, to the last bit",
                differing == 0,
                f"{differing} of {repeats * len(sizes) * draws} draws have other scores",
                under_faults=True,
            )
        )
    for cpus in sizes if not lacking else ():
        ratios = [
            ours / theirs
            for ours, theirs in zip(
                _rates(outcome, HOST, TASKS, cpus), _rates(outcome, HOST, MPI, cpus), strict=True
            )
        ]
        gain = statistics.median(ratios)
        outcome.metrics[f"{_slug(TASKS)}_to_mpi_{cpus}_cpus"] = gain
        runs = [episodes(cpus, draw, request.seed) for draw in range(draws)]
        in_rounds = sum(in_rounds_s(each, cpus, 1.0, 0.0) for each in runs)
        steps = sum(run.steps for each in runs for run in each)
        outcome.metrics[f"most_gain_{cpus}_cpus_ratio"] = in_rounds * cpus / steps
        spread = f"{gain:.2f} ({min(ratios):.2f}–{max(ratios):.2f}) times as many"
        outcome.findings.append(
            f"On {cpus} CPUs of this machine tasks do {spread} time steps a second as MPI in"
            f" rounds{_published_gain(cpus)}."
        )


# -- both --------------------------------------------------------------------------


def _slug(system: str) -> str:
    return system.replace(",", "").replace(" ", "_").lower()


def _draws(request: Request) -> int:
    return int(request.settings["draws"])


def _cpus_on_host(request: Request) -> tuple[int, ...]:
    most = request.settings["cpus_on_host"] or measured_host.cores()
    return tuple(sorted({1, most}))


def _tasks(
    request: Request, cpus: int, step_s: float | None, strategy: str = "DEFAULT"
) -> tuple[list[float], list[list[float]]]:
    """Run all draws as tasks on the cluster that is there; return each one's seconds and scores.

    One draw goes before: it brings the workers up.
    """
    elapsed_s, scores = [], []
    for draw in (WARM_UP, *range(_draws(request))):
        runs = episodes(cpus, draw, request.seed)
        began_s = ray.now()
        found = as_they_come(runs, step_s, strategy)
        if draw != WARM_UP:
            elapsed_s.append(ray.now() - began_s)
            scores.append(found)
    return elapsed_s, scores


def _row(
    request: Request, series: str, system: str, cpus: int, elapsed_s: list[float], repeat: int
) -> dict[str, Any]:
    steps = sum(
        run.steps for draw in range(_draws(request)) for run in episodes(cpus, draw, request.seed)
    )
    return {
        "series": series,
        "system": system,
        "program": PROGRAMS[system],
        "cpus": cpus,
        "timesteps_per_s": steps / sum(elapsed_s),
        "timesteps": steps,
        "elapsed_s": sum(elapsed_s),
        "runs": RUNS_PER_CPU * cpus * _draws(request),
        "fitted": False,
        "repeat": repeat,
    }


def _rates(outcome: Outcome, series: str, system: str, cpus: int) -> list[float]:
    """Return a system's rates, in the order of the repeats."""
    return [
        r["timesteps_per_s"]
        for r in outcome.rows
        if (r["series"], r["system"], r["cpus"]) == (series, system, cpus)
    ]


def _median(outcome: Outcome, series: str, system: str, cpus: int) -> float:
    return statistics.median(_rates(outcome, series, system, cpus))


SCENARIO = Scenario(
    name="table4",
    time_bodies=lambda settings: None if missing() else measured_step_s(),
    title="Simulation: time steps a second",
    figure="Table 4",
    backends=("sim", "local", "ray"),
    cluster_sizes=(1,),
    run=run,
    about=(
        "The paper simulates OpenAI Gym's Pendulum-v0, 3n runs on n CPUs: with MPI in three rounds"
        " and a barrier after each, with Ray as 3n tasks whose results the driver gathers as they"
        " come. A round lasts as long as its longest run; tasks leave no CPU idle but at the end."
        "\n\n"
        "How long a run is, is not published, and nothing but its differing makes rounds slower."
        f" Assumed here are lengths from {STEPS_MIN} to {STEPS_MAX:,} time steps, drawn evenly, as"
        " the paper has them for evolution strategies. One cluster does several draws of 3n runs,"
        " one after the other, and the time of each counts until its last result is there."
        "\n\n"
        "In simulation a time step takes what MPI's published rate on one CPU implies: that point"
        " is *fitted*, the others are predicted. Tasks run on nodes of 64 CPUs; where there are"
        " several, tasks with the scheduling strategy SPREAD run as well. The MPI side is"
        " *modelled*: no MPI runs, its time is computed from the same runs, the longest of each"
        " round and a barrier of log2(n) messages. It is therefore the best that rounds can do."
        "\n\n"
        "On `local` gymnasium's Pendulum-v1, the successor of Pendulum-v0, really runs, on one CPU"
        " and on all of the machine's: as tasks, and in rounds under mpi4py and Open MPI, in turn,"
        " each started afresh in each repeat. Both simulate the same pendulums and have to get the"
        " same scores. What is predicted for this machine rests on a time step that one process"
        " alone is measured to take."
    ),
    headline=Headline(
        "timesteps/s on 16 CPUs",
        lambda metrics: metrics[f"timesteps_per_s_{_slug(TASKS)}_16_cpus"],
        PublishedPoint("16", PUBLISHED["Ray", 16], note="table 4"),
        fitted="a time step is fitted to MPI on one CPU",
        measured=lambda metrics: metrics[f"timesteps_per_s_{_slug(TASKS)}_2_cpus"],
        measured_what="2 CPUs of one host",
        peer=lambda metrics: metrics[f"timesteps_per_s_{_slug(MPI)}_2_cpus"],
        peer_name="MPI",
    ),
    ratios=(
        *(
            Ratio(
                f"timesteps/s of tasks on {cpus} CPUs, against rounds of MPI (modelled)",
                _published_ratio(cpus),
                partial(_gain, cpus=cpus),
                partial(_why, cpus=cpus),
                backend="sim",
            )
            for cpus in PAPER_CPUS[1:]
        ),
        Ratio(
            "timesteps/s of tasks on all CPUs of one host, against MPI; published: on 16",
            _published_ratio(16),
            lambda metrics: _gain(metrics, _most_cpus(metrics)),
            _why_on_host,
        ),
    ),
    options=(
        Option("cpus", int, PAPER_CPUS, PAPER_CPUS, "CPUs of the paper's cluster", 1, many=True),
        Option("cpus_on_host", int, 0, 0, "CPUs of this machine beside one; 0: its cores", 0),
        Option("draws", int, 10, 30, "times 3n runs in each measurement", 1),
        Option("repeats", int, 2, 7, "measurements of each system on local", 1),
    ),
    figures=(
        FigureSpec(
            title="Time steps a second on the paper's cluster",
            x="cpus",
            y="timesteps_per_s",
            x_label="CPUs",
            y_label="time steps/s",
            series=("system",),
            where={"series": PAPER},
            x_scale="log",
            y_scale="log",
            published=tuple(
                PublishedPoint(
                    cpus,
                    rate,
                    note="OSDI 2018, table 4",
                    series={"Ray": TASKS, "MPI": MODELLED}[system],
                    system=system,
                    fitted=(system, cpus) == ("MPI", 1),
                )
                for (system, cpus), rate in PUBLISHED.items()
            ),
            note=(
                "Fitted: MPI on one CPU, from which the cost of a time step is. MPI is modelled: no"
                " MPI runs in simulation. The lengths of runs are assumed."
            ),
        ),
        FigureSpec(
            title="Time steps a second on this machine: predicted and measured",
            x="cpus",
            y="timesteps_per_s",
            x_label="CPUs of this machine",
            y_label="time steps/s",
            series=("system",),
            where={"series": HOST},
            x_scale="log",
            compare=Compare(
                on=("program", "cpus"),
                column="timesteps_per_s",
                predicted={"series": HOST},
                measured={"series": HOST},
                aim_percent=5,
            ),
            note="Measured: gymnasium's Pendulum-v1, as tasks and under mpi4py.",
        ),
    ),
)
