"""Availability: the goodput of a steady load under a fault every minute, down to every second."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import raytwin as ray
from raytwin.chaos.faults.injector import attach, timeline
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.scenarios.core import executions, run_trace
from raytwin.scenarios.core.scenario import (
    BEYOND,
    Band,
    Compare,
    FigureSpec,
    Option,
    Outcome,
    Request,
    Scenario,
    UsageError,
)
from raytwin.scenarios.workloads.disturbance import (
    Episode,
    ended,
    load_checks,
    quantile,
    throughput,
)
from raytwin.scenarios.workloads.steady_load import Answer, Operation, SteadyLoad, nodes

WORKERS = 3
WORKERS_MIN = 2
AXIS = "time_s"
AIM_PERCENT = 10.0
KINDS = ("node killed", "node silent", "worker killed")
"""They take turns, on nodes that do."""
WORKERS_OF_A_NODE = 2


def plan(interval_s: float, faults: int, away_s: float, workers: int, seed: int) -> Plan:
    """Return the plan of a fault every `interval_s`, each in a random part of its interval.

    A node that was killed or is silent starts again `away_s` later.
    """
    rng = random.Random(f"{seed}/{interval_s}")
    steps = []
    for number in range(faults):
        at_s = (number + 0.5 * rng.random()) * interval_s
        node = 1 + number % workers
        kind = KINDS[number % len(KINDS)]
        if kind == "worker killed":
            which = rng.randrange(WORKERS_OF_A_NODE)
            steps.append(Step("kill", f"worker:{node}.{which}", at_s))
            continue
        action = "kill" if kind == "node killed" else "pause"
        steps.append(Step(action, f"node:{node}", at_s))
        steps.append(Step("restart", f"node:{node}", at_s + away_s))
    return Plan(steps)


def run(request: Request) -> Outcome:
    """Run the load under each rate of faults; see `SCENARIO`."""
    settings = request.settings
    workers = request.nodes[0] - 1 if request.nodes else WORKERS
    if workers < WORKERS_MIN:
        raise UsageError(
            f"availability needs at least {WORKERS_MIN + 1} nodes, not {workers + 1}: the"
            " driver's, which has no CPU, one that fails, and one that goes on"
        )
    intervals_s = settings["intervals_s"]
    if request.backend != "sim":
        intervals_s = [each for each in intervals_s if each <= settings["real_interval_max_s"]]
        if not intervals_s:
            raise UsageError("no interval of intervals_s is within real_interval_max_s")
    outcome = Outcome(rows=[])
    outcome.parameters["intervals_used_s"] = list(intervals_s)
    request.progress.begin(f"availability on {request.backend}", len(intervals_s))
    for interval_s in intervals_s:
        _run_cluster(request, outcome, workers, interval_s, interval_s == min(intervals_s))
        request.progress.advance()
    _judge(outcome)
    return outcome


def _run_cluster(
    request: Request, outcome: Outcome, workers: int, interval_s: float, shown: bool
) -> None:
    """Run the load under one rate of faults; add its row, and if it is `shown` how it went."""
    settings = request.settings
    options: dict[str, Any] = {}
    if request.backend == "sim" and request.profile:
        options = {"profile": str(request.profile), "nodes_per_host": workers + 1}
    cpus = settings["cpus_per_node"]
    faults = plan(interval_s, settings["faults"], settings["away_s"], workers, request.seed)
    with executions.record() as record:
        session: Any = ray.init(
            backend=request.backend,
            nodes=nodes(workers, cpus),
            seed=request.seed,
            heartbeat_timeout_s=settings["limit_s"],
            **options,
            **executions.shared_by(request.backend, record),
        )
        try:
            load = SteadyLoad(
                settings["rate_per_s"], settings["task_ms"] / 1000, workers, False, record
            )
            load.warm_up(workers * cpus)
            injector = attach(session, faults)
            span = Episode(
                injector.started_s,
                injector.started_s,
                injector.started_s + settings["faults"] * interval_s,
            )
            load.run(span.ended_s)
            while not injector.finished:  # a node that failed late starts again
                load.run(ray.now() + settings["bucket_s"])
            hung = load.finish(settings["patience_s"])
            injector.stop()
            events = run_trace.kept()
            ran = session.query("timeline")
        finally:
            ray.shutdown()
        found = executions.read(record, ran)
    events += timeline(injector.injections)
    outcome.timeline += run_trace.group(events, f"every {interval_s:g} s:")
    answers = Counter(each.answer for each in load.operations)
    latencies_s = [
        each.ended_s - each.submitted_s
        for each in load.operations
        if each.answer is not Answer.OPEN
    ]
    outcome.rows.append(
        {
            "interval_s": interval_s,
            "faults": settings["faults"],
            "operations": len(load.operations),
            "goodput": _goodput(load.operations, settings["deadline_s"]),
            "latency_p99_s": quantile(latencies_s, 0.99),
            "executed_again": len(found.again),
            "replayed": len(found.replays),
            "wrong": answers[Answer.WRONG],
            "errors": answers[Answer.ERROR],
            "hung": hung,
            "steps_missed": len(faults.steps) - sum(not each.error for each in injector.injections),
        }
    )
    if not shown:
        return
    outcome.rows += [
        {AXIS: at_s, "ended_per_s": rate}
        for at_s, rate in throughput(span, ended(load.operations), settings["bucket_s"])
    ]
    back = {
        step.target: each.at_s
        for each in reversed(injector.injections)
        if (step := each.step).action == "restart"
    }
    for number, each in enumerate(injector.injections, start=1):
        if each.step.action != "restart":
            end_s = back.get(each.step.target, each.at_s)
            outcome.bands.append(
                Band(AXIS, each.at_s, max(end_s, each.at_s), f"{number}: {each.step}")
            )


def _goodput(operations: Sequence[Operation], deadline_s: float) -> float:
    """Return the part of all operations that came right within a deadline."""
    good = sum(
        each.answer is Answer.RIGHT and each.ended_s - each.submitted_s <= deadline_s
        for each in operations
    )
    return good / len(operations)


def _judge(outcome: Outcome) -> None:
    """Add the metrics, the checks, and a finding for each rate of faults."""
    rows = [row for row in outcome.rows if "goodput" in row]
    for row in rows:
        slug = f"{row['interval_s']:g}_s"
        outcome.metrics[f"goodput_fault_every_{slug}"] = row["goodput"]
        outcome.metrics[f"latency_p99_s_fault_every_{slug}"] = row["latency_p99_s"]
        outcome.findings.append(
            f"A fault every {row['interval_s']:g} s: {row['goodput']:.1%} of"
            f" {row['operations']:,} operations came right in time, 99 % within"
            f" {row['latency_p99_s']:.3g} s; {row['executed_again']} ran again and"
            f" {row['replayed']} calls were replayed."
        )
    outcome.checks += load_checks(rows, sum(row["hung"] for row in rows))


SCENARIO = Scenario(
    name="availability",
    nodes_max={"sim": 100, "local": 16, "docker": 16},
    title="Goodput under a fault every minute to every second",
    figure=BEYOND,
    backends=("sim", "local", "docker"),
    not_on_ray="Ray restarts actors without their state, so their calls have no right results",
    run=run,
    about=(
        "An open load of tasks and actor calls runs while faults come at a steady rate: a node is"
        " killed, a node falls silent, a worker is killed, in turn, each on another node and at a"
        " random moment of its interval. A node starts again `away_s` after it failed. Goodput is"
        " the part of the offered operations that came right within `deadline_s`: what a client"
        " with that patience sees. Operations that come late are right all the same, or the checks"
        " fail."
        "\n\n"
        "In simulation a minute costs nothing. On real processes intervals of more than"
        " `real_interval_max_s` are left out; the clock is the real one."
    ),
    options=(
        Option(
            "intervals_s",
            float,
            (60.0, 30.0, 10.0, 5.0, 2.0, 1.0),
            (60.0, 30.0, 10.0, 5.0, 2.0, 1.0),
            "between faults",
            minimum=0.1,
            many=True,
        ),
        Option("real_interval_max_s", float, 2.0, 10.0, "of those, on real processes", minimum=0.1),
        Option("faults", int, 3, 12, "at each interval", minimum=1),
        Option("away_s", float, 0.8, 0.8, "until a node starts again", minimum=0),
        Option("rate_per_s", int, 16, 20, "operations offered a second", minimum=1),
        Option("task_ms", float, 50.0, 50.0, "that a task or call takes", minimum=0.1),
        Option("deadline_s", float, 0.25, 0.25, "within which a result counts", minimum=0),
        Option("cpus_per_node", int, 2, 2, "CPUs of each node that works", minimum=1),
        Option("limit_s", float, 0.5, 0.5, "of silence until a node is dead", minimum=0.05),
        Option("bucket_s", float, 0.25, 0.5, "over which results are counted", minimum=0.001),
        Option("patience_s", float, 20.0, 60.0, "after which an operation hangs", minimum=0.1),
    ),
    figures=(
        FigureSpec(
            title="Goodput by the time between faults",
            x="interval_s",
            y="goodput",
            x_label="seconds between faults",
            y_label="part of the operations that came right in time",
            x_scale="log",
            compare=Compare(on=("interval_s",), column="goodput", aim_percent=AIM_PERCENT),
        ),
        FigureSpec(
            title="Latency by the time between faults",
            x="interval_s",
            y="latency_p99_s",
            x_label="seconds between faults",
            y_label="99th percentile of the latency",
            x_scale="log",
            y_scale="log",
            y_unit="s",
            compare=Compare(on=("interval_s",), column="latency_p99_s", aim_percent=AIM_PERCENT),
        ),
        FigureSpec(
            title="Throughput under the most frequent faults",
            x=AXIS,
            y="ended_per_s",
            x_label="time (s)",
            y_label="results/s",
        ),
    ),
)
