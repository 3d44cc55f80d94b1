"""Figure 11a: lost task results are made again, while nodes go and come back."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

import raytwin as ray
from raytwin.chaos.faults.injector import Injection, attach, recovery_span, timeline
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import Node
from raytwin.scenarios.core import executions, run_trace
from raytwin.scenarios.core.executions import Executions
from raytwin.scenarios.core.scenario import (
    Band,
    Check,
    Compare,
    FigureSpec,
    Headline,
    Option,
    Outcome,
    Request,
    Scenario,
    UsageError,
)
from raytwin.scenarios.workloads.chains import Chains, expected, link, run_chains

REMOVED_S = (25.0, 50.0, 100.0)
ADDED_S = 210.0
END_S = 270.0
BEFORE_S = (5.0, REMOVED_S[0])
WITHOUT_S = (REMOVED_S[2] + 10, ADDED_S)
AFTER_S = (ADDED_S + 20, END_S)
"""Parts of a run, on the paper's clock, in which throughput is compared."""
NODES_MIN = 3
RAY_TIMES = 4.0
"""By which the clock is slower on Ray: its nodes take seconds to start, one after the other."""
SOURCE = "OSDI 2018, section 5.1, figure 11a"
RUNNING, OVER = "running", "over"
"""Of the clock: after its end what was submitted is finished, and no more is."""


def plan(settings: Any) -> Plan:
    """Return the one fault plan for all backends: nodes 1, 2, 3 go, and come back."""
    factor = settings["time_factor"]
    removed = zip(range(1, settings["nodes"]), REMOVED_S, strict=False)
    steps = [Step("kill", Node(node), at_s * factor) for node, at_s in removed]
    steps += [Step("restart", step.target, ADDED_S * factor) for step in steps]
    return Plan(steps)


def run(request: Request) -> Outcome:
    """Run the chains under the plan; see `SCENARIO`."""
    nodes = request.nodes[0] if request.nodes else request.settings["nodes"]
    settings = {**request.settings, "nodes": nodes}
    if request.backend == "ray":
        slower = max(1.0, min(RAY_TIMES, 1 / settings["time_factor"]))
        for name in ("time_factor", "bucket_s"):
            settings[name] *= slower
    if nodes < NODES_MIN:
        raise UsageError(
            f"fig11a needs at least {NODES_MIN} nodes, not {nodes}: up to three are killed,"
            " and the driver's stays"
        )
    chains = nodes * settings["cpus_per_node"] * settings["chains_per_cpu"]
    options: dict[str, Any] = {}
    if request.backend == "sim":
        options = {"profile": str(request.profile)} if request.profile else {}
        if request.profile:
            options["nodes_per_host"] = nodes
    faults = plan(settings)
    factor, task_s = settings["time_factor"], settings["task_ms"] / 1000
    request.progress.begin(f"fig11a on {request.backend}, {END_S * factor:g} s")
    with executions.record() as record:
        session: Any = ray.init(
            backend=request.backend,
            nodes=nodes,
            cpus_per_node=settings["cpus_per_node"],
            seed=request.seed,
            **options,
            **executions.shared_by(request.backend, record),
        )
        try:
            ray.get([link.remote(0, 0, task_s, 0) for _ in range(2 * chains)])
            injector = attach(session, faults)
            result = run_chains(
                chains, settings["segment"], END_S * factor, task_s, settings["value_bytes"], record
            )
            injector.stop()
            counts = {} if request.backend == "ray" else session.query("event_counts")
            events = run_trace.kept()
        finally:
            ray.shutdown()
        found = executions.read(record)
    outcome = Outcome(_rows(settings, nodes, result, found, injector.injections))
    outcome.parameters["time_factor_used"] = factor
    outcome.timeline = events + timeline(injector.injections)
    outcome.timeline += _recovery(outcome.rows, settings, result.began_s, injector.injections)
    outcome.bands = _bands(injector.injections, factor)
    _judge(outcome, settings, result, counts, found, injector.injections)
    throughput = throughput_checks(outcome.rows)
    if request.backend == "ray":
        # What Ray comes to is a finding; these checks are of raytwin's.
        outcome.findings += [f"On Ray: {each.detail}." for each in throughput]
    else:
        outcome.checks += throughput
    return outcome


def _rows(
    settings: Any,
    nodes: int,
    result: Chains,
    found: Executions,
    injections: list[Injection],
) -> list[dict[str, Any]]:
    """Return a row per bucket of time: links that began and ended in it, nodes that lived in it."""
    bucket_s = settings["bucket_s"]
    ended = Counter(int(at_s // bucket_s) for at_s in result.ended_s)
    first, again = (
        Counter(int((each.began_s - result.began_s) // bucket_s) for each in some)
        for some in (found.first, found.again)
    )
    rows = []
    factor = settings["time_factor"]
    buckets = int(END_S * factor // bucket_s)
    for bucket in range(max(buckets, 1 + max(*ended, *first, *again))):
        middle_s = (bucket + 0.5) * bucket_s
        alive = nodes
        for each in injections:
            if each.at_s <= middle_s and not each.error:
                alive += 1 if each.step.action == "restart" else -1
        rate = ended[bucket] / bucket_s
        rows.append(
            {
                "time_s": middle_s,
                "paper_time_s": middle_s / factor,
                "clock": RUNNING if bucket < buckets else OVER,
                "nodes": alive,
                "tasks_per_s": rate,
                "tasks_per_s_per_node": rate / alive,
                "tasks_first": first[bucket],
                "tasks_again": again[bucket],
            }
        )
    return rows


def _recovery(
    rows: list[dict[str, Any]], settings: Any, began_s: float, injections: list[Injection]
) -> list[dict[str, Any]]:
    """Return for each node that was killed the time until the original throughput was back.

    That is the end of the first bucket after the nodes' return with as much as `_returned` asks.
    """
    done = [each for each in injections if not each.error]
    back_s = max((each.at_s for each in done if each.step.action == "restart"), default=None)
    if back_s is None:
        return []
    before = _between(rows, *BEFORE_S, "tasks_per_s")
    half_s = settings["bucket_s"] / 2
    full_s = [
        began_s + row["time_s"] + half_s
        for row in rows
        if row["time_s"] - half_s >= back_s and _returned(before, row["tasks_per_s"])
    ]
    if not full_s:
        return []
    return [
        recovery_span(each.clock_s, full_s[0] - each.clock_s)
        for each in done
        if each.step.action == "kill"
    ]


def _returned(before: float, after: float) -> bool:
    """Whether throughput is what it was, at most 15 % lower."""
    return after >= 0.85 * before


def _bands(injections: list[Injection], factor: float) -> list[Band]:
    """Return for how long each node was away, on the paper's clock."""
    back_s = {each.step.target: each.at_s for each in injections if each.step.action == "restart"}
    return [
        Band(
            "paper_time_s",
            each.at_s / factor,
            back_s.get(each.step.target, END_S * factor) / factor,
            str(each.step),
        )
        for each in injections
        if each.step.action == "kill" and not each.error
    ]


def _between(rows: list[dict[str, Any]], start_s: float, end_s: float, column: str) -> float:
    """Return the median of a column between two of the paper's times."""
    return statistics.median(r[column] for r in rows if start_s <= r["paper_time_s"] < end_s)


def throughput_checks(rows: list[dict[str, Any]]) -> list[Check]:
    """Return whether nodes were slower when others had gone, and all when those were back.

    More is no failure: before the first fault other programs may have had the machine.
    """
    before = _between(rows, *BEFORE_S, "tasks_per_s")
    least = _between(rows, *WITHOUT_S, "tasks_per_s")
    after = _between(rows, *AFTER_S, "tasks_per_s")
    per_node_before = _between(rows, *BEFORE_S, "tasks_per_s_per_node")
    per_node = _between(rows, *WITHOUT_S, "tasks_per_s_per_node")
    return [
        Check(
            "per-node throughput stays stable, at most 25 % lower",
            per_node >= 0.75 * per_node_before,
            f"{per_node_before:.1f} tasks/s per node before, {per_node:.1f} without those killed",
        ),
        Check(
            "the original throughput returns with the nodes, at most 15 % lower",
            _returned(before, after),
            f"{before:.1f} tasks/s before, {least:.1f} without the killed nodes, {after:.1f} after",
        ),
    ]


def _judge(
    outcome: Outcome,
    settings: Any,
    result: Chains,
    counts: dict[str, int],
    found: Executions,
    injections: list[Injection],
) -> None:
    rows = outcome.rows
    lengths, values = result.lengths, result.values
    right = sum(v == expected(c, n) for c, (n, v) in enumerate(zip(lengths, values, strict=True)))
    outcome.metrics |= {
        "tasks_per_s_before": _between(rows, *BEFORE_S, "tasks_per_s"),
        "tasks_per_s_without_killed_nodes": _between(rows, *WITHOUT_S, "tasks_per_s"),
        "tasks_per_s_after": _between(rows, *AFTER_S, "tasks_per_s"),
        "links": float(sum(lengths)),
        "tasks_again": float(len(found.again)),
    }
    if counts:
        outcome.metrics |= {
            "placed_again_not_ended": float(counts.get("task_retried", 0)),
            "placed_again_value_lost": float(counts.get("task_reconstructed", 0)),
        }
    outcome.checks += [
        Check(
            "every chain came to what a run without faults comes to",
            right == len(values),
            f"{right} of {len(values)} chains, {sum(lengths):,} links",
            under_faults=True,
        ),
        Check(
            "every step of the plan was carried out",
            len(injections) == len(plan(settings).steps)
            and not any(each.error for each in injections),
            ", ".join(f"{each.at_s:.1f} s {each.step}" for each in injections),
        ),
        Check(
            "every link was executed, and some again, as they have written down themselves",
            len(found.first) == sum(lengths) and len(found.again) > 0,
            f"{len(found.first):,} of {sum(lengths):,} links; {len(found.again):,} times one again",
            under_faults=True,
        ),
    ]
    outcome.findings.append(
        f"The clock ran at {settings['time_factor']:g} of the paper's times, with tasks of"
        f" {settings['task_ms']:g} ms."
    )


SCENARIO = Scenario(
    name="fig11a",
    nodes_max={"sim": 100, "local": 16, "docker": 16, "ray": 16},
    title="Lost task results are made again",
    figure="Figure 11a",
    backends=("sim", "local", "docker", "ray"),
    run=run,
    about=(
        "The paper runs linear chains of 100 ms tasks on m4.xlarge nodes (4 vCPUs), removes"
        " nodes at 25, 50 and 100 s and adds them back at about 210 s. Lost results are"
        " executed again; the throughput of each remaining node stays stable, and the"
        " original throughput returns with the nodes."
        "\n\n"
        "How many nodes and chains there were, and how large the results, is not stated. Here"
        " three chains for each CPU keep all nodes busy, a few links submitted at a time, and"
        " every result is too large to ride in a message: it exists on the node that made it,"
        " and on those that needed it, and is lost with them. Nodes are"
        " killed with SIGKILL and started again under the same number; node 0, where the driver"
        " lives, stays; so of three nodes two are killed. The fault plan is the same, step by step,"
        " in simulation, on real processes and in containers."
        "\n\n"
        "Links write down when they begin: in the rows, the first time counts as tasks_first,"
        " each later one as tasks_again. That is less than what was placed again, since a link"
        " that waited on a node that died had not begun. Throughput is of links that have ended"
        " for the driver. The last rows are of links submitted before the clock's end."
        "\n\n"
        "Scale quick runs on a clock of its own: all times of the plan are a tenth of the"
        " paper's, tasks take 50 ms. The axis of the figure shows the paper's time. Scale full"
        " takes the paper's times, with tasks that really sleep for 100 ms."
        "\n\n"
        "On Ray the same source runs on nodes of Ray's own on this machine, which are killed and"
        " started again in the same way. They take seconds to start, so at scale quick the clock is"
        " four times as slow; a node is dead when Ray's health checks have failed for 5 s, which is"
        " the limit of raytwin's failure detector, too."
    ),
    headline=Headline(
        "tasks/s when the nodes are back, as part of those before",
        lambda metrics: metrics["tasks_per_s_after"] / metrics["tasks_per_s_before"],
    ),
    scaled=lambda p: "" if p["time_factor"] == 1 else f"clock × {p['time_factor']:g}",
    options=(
        Option("time_factor", float, 0.07, 1.0, "of the paper's times", minimum=0.01),
        Option("task_ms", float, 50.0, 100.0, "that a link takes", minimum=0),
        Option("nodes", int, 5, 5, "nodes at the start, at least 3", minimum=NODES_MIN),
        Option("cpus_per_node", int, 1, 4, "CPUs of each node", minimum=1),
        Option("chains_per_cpu", int, 3, 3, "chains for each CPU at the start", minimum=1),
        Option("segment", int, 5, 10, "links submitted at a time", minimum=1),
        Option("value_bytes", int, 120_000, 120_000, "of a result; 0: a number", minimum=0),
        Option("bucket_s", float, 0.35, 5.0, "over which throughput is counted", minimum=0.01),
    ),
    figures=(
        FigureSpec(
            title="Tasks that began, for the first time and again, and the nodes that were there",
            x="paper_time_s",
            y="tasks_first",
            stack=("tasks_again",),
            second="nodes",
            second_label="nodes alive",
            x_label="time on the paper's clock (s)",
            y_label="tasks that began in a stretch of time",
            published_shape=(
                "bars of original and re-executed tasks over time, the number of nodes as a line:"
                " removed at 25, 50 and 100 s, added back at about 210 s"
            ),
        ),
        FigureSpec(
            title="Throughput while nodes go and come back",
            where={"clock": RUNNING},
            x="paper_time_s",
            y="tasks_per_s",
            x_label="time on the paper's clock (s)",
            y_label="tasks/s",
            published_shape=(
                "nodes are removed at 25, 50 and 100 s and added back at about 210 s;"
                " the original throughput returns with them"
            ),
            compare=Compare(
                on=("paper_time_s",),
                column="tasks_per_s",
                predicted={"clock": RUNNING},
                measured={"clock": RUNNING},
                aim_percent=10,
            ),
            note="In scale quick a second of the axis is a tenth of a second.",
        ),
        FigureSpec(
            title="Throughput of each node that is there",
            where={"clock": RUNNING},
            x="paper_time_s",
            y="tasks_per_s_per_node",
            x_label="time on the paper's clock (s)",
            y_label="tasks/s per node",
            published_shape="stays stable while nodes go and come back",
        ),
    ),
)
