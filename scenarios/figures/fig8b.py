"""Figure 8b: how many empty tasks a second, by the number of nodes."""

from __future__ import annotations

import statistics
from contextlib import suppress
from typing import Any

import psutil

import raytwin as ray
from raytwin.scenarios.core import run_trace
from raytwin.scenarios.core.scenario import (
    Check,
    Compare,
    FigureSpec,
    Headline,
    Option,
    Outcome,
    PublishedPoint,
    Request,
    Scenario,
)
from raytwin.scenarios.workloads.programs import bag_of_tasks

PAPER_NODES = (1, 2, 5, 10, 20, 30, 40, 50, 60, 100)
PAPER_NODES_QUICK = (1, 2, 5, 10, 60, 100)
HOST_NODES = (1, 2, 4, 8)
RATE_AT_100 = 1.8e6
RATE_AT_60 = 1.0e6
SOURCE = "OSDI 2018, section 5.1, figure 8b"

PAPER = "paper's cluster"
HOST = "one host"
SATURATED = 0.9
"""Busy for so much of the time, something is called saturated."""
WINDOWS_MIN = {"bottom-up": 5, "centralized": 30}
"""Windows of a submitter at least: more where a window's way is longer."""


def run(request: Request) -> Outcome:
    """Run the bag of tasks at every size; see `SCENARIO`."""
    return _run_sim(request) if request.backend == "sim" else _run_real(request)


def _run_sim(request: Request) -> Outcome:
    settings = request.settings
    quick = request.scale == "quick"
    outcome = Outcome(rows=[])
    sizes = request.nodes or (PAPER_NODES_QUICK if quick else PAPER_NODES)
    on_host = (request.nodes or HOST_NODES) if request.profile is not None else ()
    runs = 2 * len(sizes) + len(on_host)
    request.progress.begin(f"fig8b on sim, {runs} clusters", runs)
    for policy in ("bottom-up", "centralized"):
        for nodes in sizes:
            tasks = settings["tasks"] or nodes * settings["tasks_per_node"]
            if policy == "centralized":
                # Its rate does not grow with the nodes: neither need the tasks.
                tasks = min(tasks, nodes * max(1, settings["tasks_centralized"] // nodes))
            # Several windows each, or the pipeline would run empty at the end.
            window = max(1, min(settings["window"], tasks // nodes // WINDOWS_MIN[policy]))
            backend: Any = ray.init(
                backend="sim", nodes=nodes, policy=policy, profile="paper", seed=request.seed
            )
            before = _busy(backend.cluster, nodes)
            row = _row(PAPER, nodes, policy, tasks, bag_of_tasks(nodes, tasks, window, False))
            if nodes == max(sizes):
                outcome.findings.append(_saturation(backend.cluster, row, before))
            if nodes == min(sizes) and policy == "bottom-up":
                outcome.timeline = run_trace.kept()
            outcome.rows.append(row)
            ray.shutdown()
            request.progress.advance()
    for nodes in on_host:
        tasks = settings["tasks"] or settings["tasks_on_host"]
        assert request.profile is not None
        ray.init(
            backend="sim",
            nodes=nodes,
            cpus_per_node=1,
            nodes_per_host=nodes,
            profile=str(request.profile),
            seed=request.seed,
        )
        elapsed_s = bag_of_tasks(nodes, tasks, settings["window_on_host"], True)
        outcome.rows.append(_row(HOST, nodes, "bottom-up", tasks, elapsed_s))
        ray.shutdown()
        request.progress.advance()
    _judge(outcome)
    return outcome


def _run_real(request: Request) -> Outcome:
    settings = request.settings
    outcome = Outcome(rows=[])
    sizes = request.nodes or HOST_NODES
    repeats = settings["repeats"]
    request.progress.begin(
        f"fig8b on {request.backend}, {len(sizes)} clusters", len(sizes) * repeats
    )
    largest = max(sizes)
    busy_s = measured_s = 0.0
    # Clusters differ more than runs of one: each repeat has its own, of every size in turn.
    for repeat in range(repeats):
        for nodes in sizes:
            row, used_s = _measure(request, nodes, outcome)
            outcome.rows.append({**row, "repeat": repeat})
            if nodes == largest:
                busy_s += used_s
                measured_s += row["elapsed_s"]
            request.progress.advance()
    for nodes in sizes:
        rates = [r["tasks_per_s"] for r in outcome.rows if r["nodes"] == nodes]
        outcome.metrics[f"tasks_per_s_at_{nodes}_nodes"] = statistics.median(rates)
    if busy_s:
        cores = psutil.cpu_count() or 1
        busy = min(1.0, busy_s / measured_s / cores)
        verdict = (
            "they are what saturates, so the rate cannot grow with the nodes there."
            if busy >= SATURATED
            else "nothing is saturated."
        )
        outcome.findings.append(
            f"With {largest} nodes on one host the cluster kept the machine's {cores} cores"
            f" {busy:.0%} busy: {verdict}"
        )
    outcome.checks.append(
        Check(
            "every size was measured",
            len(outcome.metrics) == len(set(sizes)),
            str(sizes),
            under_faults=True,
        )
    )
    return outcome


def _measure(request: Request, nodes: int, outcome: Outcome) -> tuple[dict[str, Any], float]:
    """Run the bag of tasks on a new cluster on this machine.

    Returns its row, and the CPU seconds that the cluster's processes used; 0 if others have started
    it.
    """
    settings = request.settings
    tasks = settings["tasks"] or settings["tasks_on_host"]
    session: Any = ray.init(
        backend=request.backend, nodes=nodes, cpus_per_node=1, seed=request.seed
    )
    try:
        # The first run of a cluster brings workers up and is not counted.
        bag_of_tasks(nodes, max(nodes, tasks // 10), settings["window_on_host"], True)
        before_s = _cpu_s(session)
        elapsed_s = bag_of_tasks(nodes, tasks, settings["window_on_host"], True)
        used_s = _cpu_s(session) - before_s
        if nodes == max(request.nodes or HOST_NODES):
            outcome.timeline = run_trace.kept()
    finally:
        ray.shutdown()
    policy = "Ray's" if request.backend == "ray" else "bottom-up"
    return _row(HOST, nodes, policy, tasks, elapsed_s), used_s


def _row(series: str, nodes: int, policy: str, tasks: int, elapsed_s: float) -> dict[str, Any]:
    return {
        "series": series,
        "policy": policy,
        "nodes": nodes,
        "tasks_per_s": tasks / elapsed_s,
        "tasks": tasks,
        "elapsed_s": elapsed_s,
        "repeat": 0,
    }


def _busy(cluster: Any, nodes: int) -> list[float]:
    """Return the CPU seconds so far of the head and of each node's process."""
    names = [f"node:{number}" for number in range(nodes)]
    return [cluster.head.busy_s, *(cluster.processes[name].busy_s for name in names)]


def _cpu_s(session: Any) -> float:
    """Return the CPU seconds so far of a cluster's processes on this machine and its driver."""
    if session.cluster is None:
        return 0.0
    used_s = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            used_s += sum(process.cpu_times()[:2])
    return used_s


def _saturation(cluster: Any, row: dict[str, Any], before: list[float]) -> str:
    """Say which process was the busiest, from its CPU time since `before`."""
    after = _busy(cluster, row["nodes"])
    shares = [(b - a) / row["elapsed_s"] for a, b in zip(before, after, strict=True)]
    head, node = min(1.0, shares[0]), min(1.0, max(shares[1:]))
    who, busy = (
        ("the head process, where the global scheduler runs,", head)
        if head > node
        else ("every node's local scheduler", node)
    )
    verdict = f"{who} is what saturates" if busy >= SATURATED else "nothing is saturated"
    return (
        f"Policy {row['policy']} at {row['nodes']} nodes: {row['tasks_per_s']:,.0f} tasks/s;"
        f" {verdict} (head busy {head:.0%} of the time, busiest node {node:.0%})."
    )


def _judge(outcome: Outcome) -> None:
    rates = {
        policy: {
            r["nodes"]: r["tasks_per_s"]
            for r in outcome.rows
            if r["policy"] == policy and r["series"] == PAPER
        }
        for policy in ("bottom-up", "centralized")
    }
    up, central = rates["bottom-up"], rates["centralized"]
    for nodes, rate in up.items():
        outcome.metrics[f"tasks_per_s_at_{nodes}_nodes"] = rate
    for nodes, rate in central.items():
        outcome.metrics[f"tasks_per_s_centralized_at_{nodes}_nodes"] = rate
    if 100 in up:
        ok = abs(up[100] / RATE_AT_100 - 1) <= 0.1
        outcome.checks.append(
            Check("1.8 M tasks/s at 100 nodes, within 10 %", ok, f"{up[100]:,.0f} tasks/s")
        )
    if 60 in up:
        outcome.checks.append(
            Check("over 1 M tasks/s at 60 nodes", up[60] > RATE_AT_60, f"{up[60]:,.0f} tasks/s")
        )
    low, high = min(up), max(up)
    if high >= 2 * low:
        gain, ideal = up[high] / up[low], high / low
        outcome.checks.append(
            Check(
                "bottom-up scales near-linearly",
                0.9 * ideal <= gain <= 1.05 * ideal,
                f"{gain:.1f} times the rate on {ideal:.1f} times the nodes",
            )
        )
    if high >= 5 * low:
        flat = central[high] / central[low]
        outcome.checks.append(
            Check(
                "centralized does not scale",
                flat < 0.5 * high / low,
                f"{flat:.2f} times the rate on {high / low:.1f} times the nodes",
            )
        )


SCENARIO = Scenario(
    name="fig8b",
    nodes_max={"sim": 1_000, "local": 64},
    title="Scalability: empty tasks a second",
    figure="Figure 8b",
    backends=("sim", "local", "ray"),
    run=run,
    about=(
        "The paper submits embarrassingly parallel empty tasks on 10 to 60 and on 100"
        " m4.16xlarge nodes. Here one submitter on each node submits to its own local"
        " scheduler and waits for the results, three windows of tasks at a time."
        "\n\n"
        "The prediction for the paper's cluster uses the profile 'paper', in which one figure"
        " is fitted: the rate of one node. That the curve stays straight up to 100 nodes is a"
        " result. The same cluster under policy 'centralized' shows what bottom-up scheduling"
        " is for: every task passes the one global scheduler. There the tasks travel as task"
        " arrays, charged task by task."
        "\n\n"
        "On one host the same program runs on real processes, each task submitted singly, and"
        " in simulation with all nodes on one host of this machine's size, with costs from"
        " microbenchmarks of this machine (`raytwin calibrate`) that do not include this run."
    ),
    headline=Headline(
        "tasks/s at 100 nodes",
        lambda metrics: metrics["tasks_per_s_at_100_nodes"],
        PublishedPoint(100, RATE_AT_100, "value", f"{SOURCE}: 1.8 M tasks/s at 100 nodes"),
        fitted="what a task costs a node is fitted to the rate at 100 nodes",
        measured=lambda metrics: metrics["tasks_per_s_at_2_nodes"],
        measured_what="2 nodes on one host",
    ),
    options=(
        Option("tasks", int, 0, 0, "tasks in all, at every size; 0: as below", minimum=0),
        Option("tasks_per_node", int, 20_000, 60_000, "on the paper's cluster", minimum=1),
        Option("tasks_centralized", int, 40_000, 80_000, "at most, centralized", minimum=1),
        Option("window", int, 20_000, 20_000, "tasks per array on it", minimum=1),
        Option("tasks_on_host", int, 20_000, 100_000, "tasks in all on one host", minimum=1),
        Option("window_on_host", int, 500, 500, "single tasks per window there", minimum=1),
        Option("repeats", int, 3, 7, "measurements of each size on local", minimum=1),
    ),
    figures=(
        FigureSpec(
            title="Tasks a second on the paper's cluster",
            x="nodes",
            y="tasks_per_s",
            x_label="nodes",
            y_label="tasks/s",
            series=("policy",),
            where={"series": PAPER},
            published=(
                PublishedPoint(60, RATE_AT_60, "at_least", SOURCE),
                PublishedPoint(100, RATE_AT_100, "at_least", SOURCE, fitted=True),
                PublishedPoint(
                    100, 100e6 / 54, "value", f"{SOURCE}: 100 M tasks in 54 s", fitted=True
                ),
            ),
            published_shape="near-linear from 10 to 100 nodes; 70, 80 and 90 left out for cost",
        ),
        FigureSpec(
            title="Tasks a second with all nodes on one host: predicted and measured",
            x="nodes",
            y="tasks_per_s",
            x_label="nodes on this machine",
            y_label="tasks/s",
            series=("series",),
            where={"series": HOST},
            published_shape="",
            compare=Compare(
                on=("nodes",),
                column="tasks_per_s",
                predicted={"series": HOST},
                measured={"series": HOST},
                aim_percent=5,
            ),
            note="Each task is submitted singly; the cores of the machine are shared by all.",
        ),
    ),
)
