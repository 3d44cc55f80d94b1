"""Scenarios for the tests of the command line and the report: shaped like real
ones, made of arithmetic, and registered only where a test asks for them.

``python -m tests.scenarios.synthetic ARGS...`` is the command line with these
scenarios and no others, for tests that need a process of its own.
"""

from __future__ import annotations

import random
import time

from raytwin.scenarios.core.scenario import (
    Check,
    Compare,
    FigureSpec,
    Option,
    Outcome,
    PublishedPoint,
    Request,
    Scenario,
    UsageError,
)
from raytwin.scenarios.measure import registry


def run_scaling(request: Request) -> Outcome:
    """Rates that grow with the nodes; one policy saturates."""
    draw = random.Random(request.seed)
    tasks = request.settings["tasks"]
    rows = []
    if request.backend == "sim":
        sizes = request.nodes or (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
        request.progress.begin("scaling", len(sizes))
        for nodes in sizes:
            for policy in request.settings["policies"]:
                rate = 18_000.0 * nodes
                if policy == "centralized":
                    rate = 260_000 * rate / (260_000 + rate)
                rows.append({"series": policy, "nodes": nodes, "repeat": 0, "tasks_per_s": rate})
            request.progress.advance()
        if request.profile is not None:
            rows += [
                {
                    "series": "this host",
                    "nodes": n,
                    "repeat": 0,
                    "tasks_per_s": 24_000 / (1 + n / 9),
                }
                for n in (1, 2, 4, 8)
            ]
        findings = ["centralized flattens at 260,000 tasks/s: its scheduler process is busy 100 %."]
    else:
        for nodes in request.nodes or (1, 2, 4, 8):
            for repeat in range(5):
                rate = 32_000 / (1 + nodes / 9) * draw.uniform(0.9, 1.1)
                rows.append(
                    {"series": "this host", "nodes": nodes, "repeat": repeat, "tasks_per_s": rate}
                )
        findings = ["All nodes share the cores of one host."]
    best = max(row["tasks_per_s"] for row in rows)
    return Outcome(
        rows,
        metrics={"tasks_per_s_max": best},
        checks=[
            Check("every task ran", True, f"{tasks:,} of {tasks:,}"),
            Check("the rate grows with the nodes", best > 10_000, f"up to {best:,.0f} tasks/s"),
        ],
        timeline=[{"name": "task", "ph": "X", "ts": 0, "dur": 5, "pid": 0, "tid": 0}],
        parameters={"repeats": 5},
        findings=findings,
    )


SCALING = Scenario(
    name="scaling",
    title="Empty tasks per second by cluster size",
    figure="Figure S1",
    backends=("sim", "local"),
    run=run_scaling,
    about="The paper ran empty tasks on 10 to 100 nodes.\n\nHere the same program runs on emulated "
    "nodes of one host and in simulation. The profile is fitted to the rate of one node.",
    options=(
        Option("tasks", int, 1_000, 100_000, "tasks in all", minimum=1),
        Option(
            "policies",
            str,
            ("bottom-up", "centralized"),
            ("bottom-up", "centralized"),
            "scheduling policies to run",
            choices=("bottom-up", "centralized", "random"),
            many=True,
        ),
    ),
    figures=(
        FigureSpec(
            title="Throughput of empty tasks",
            x="nodes",
            y="tasks_per_s",
            series=("series",),
            x_label="nodes",
            y_label="tasks per second",
            x_scale="log",
            y_scale="log",
            published=(
                PublishedPoint(60, 1e6, "at_least", "text of section 5.1: over 1 M tasks/s"),
                PublishedPoint(100, 1.8e6, "at_least", "text of section 5.1: over 1.8 M tasks/s"),
            ),
            compare=Compare(
                on=("nodes",),
                column="tasks_per_s",
                predicted={"series": "this host"},
                measured={"series": "this host"},
                aim_percent=5,
            ),
            note="All axes are logarithmic: a straight line is a power of the cluster's size.",
        ),
    ),
)


def run_placement(request: Request) -> Outcome:
    """Latencies that depend on the input's size, unless placed well."""
    draw = random.Random(request.seed + (request.backend == "local"))
    rows = []
    for policy in ("bottom-up", "locality-blind"):
        for size in (100_000, 1_000_000, 10_000_000, 100_000_000):
            base = 0.0011 + (size / 1.2e9 if policy == "locality-blind" else 0)
            for repeat in range(1 if request.backend == "sim" else 3):
                latency = base * (1 if request.backend == "sim" else draw.uniform(0.8, 1.6))
                rows.append(
                    {"policy": policy, "input_bytes": size, "repeat": repeat, "latency_s": latency}
                )
    return Outcome(rows, metrics={"latency_s_max": max(row["latency_s"] for row in rows)})


PLACEMENT = Scenario(
    name="placement",
    title="Placing tasks where their inputs are",
    figure="Figure S2",
    backends=("sim", "local"),
    run=run_placement,
    about="Two nodes; each task takes one object.",
    figures=(
        FigureSpec(
            title="Mean latency of a task by size of its input",
            x="input_bytes",
            y="latency_s",
            series=("policy",),
            x_label="size of the input",
            y_label="mean latency",
            x_scale="log",
            y_scale="log",
            x_unit="bytes",
            y_unit="s",
            published_shape="a flat line with locality and, without, one that is 1 to 2 orders of "
            "magnitude higher at 10 to 100 MB.",
            compare=Compare(on=("policy", "input_bytes"), column="latency_s", aim_percent=10),
        ),
        FigureSpec(
            title="By policy, at 1 MB",
            x="policy",
            y="latency_s",
            x_label="policy",
            y_label="mean latency",
            where={"input_bytes": 1_000_000},
            y_unit="s",
        ),
    ),
)


def run_failing(request: Request) -> Outcome:
    """A check that does not hold."""
    return Outcome([{"n": 1}], checks=[Check("one is two", False, "1 is not 2")])


def run_broken(request: Request) -> Outcome:
    """A scenario with a defect."""
    raise RuntimeError("the scenario broke")


def run_picky(request: Request) -> Outcome:
    """A scenario that knows better than the command line what cannot be."""
    if request.nodes != (2,):
        raise UsageError("picky needs two nodes: give --nodes 2")
    return Outcome([{"n": 2}])


def run_endless(request: Request) -> Outcome:
    """Work that only an interrupt ends."""
    request.progress.begin("endless", 1_000_000)
    while True:
        time.sleep(0.01)
        request.progress.advance()


def _bare(name: str, run: object) -> Scenario:
    return Scenario(name, f"{name} scenario", "none", ("sim",), run, "For tests.")  # type: ignore[arg-type]


EXTRA = tuple(
    _bare(name, run)
    for name, run in (
        ("failing", run_failing),
        ("broken", run_broken),
        ("picky", run_picky),
        ("endless", run_endless),
    )
)
GOOD = {scenario.name: scenario for scenario in (SCALING, PLACEMENT)}
ALL = GOOD | {scenario.name: scenario for scenario in EXTRA}


if __name__ == "__main__":
    from raytwin.scenarios.cli.main import main

    registry.scenarios = lambda: ALL  # type: ignore[assignment]
    main()
