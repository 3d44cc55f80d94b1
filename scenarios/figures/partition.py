"""Partition: a majority goes on, a minority is fenced, nothing is lost, doubled or left hanging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import raytwin as ray
from raytwin.chaos.faults.injector import recovery_span, timeline
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.proxied_links import proxied
from raytwin.runtime.control.core.addresses import node_of
from raytwin.scenarios.core import executions, run_trace
from raytwin.scenarios.core.executions import Executions
from raytwin.scenarios.core.scenario import (
    BEYOND,
    Band,
    Check,
    Compare,
    FigureSpec,
    Option,
    Outcome,
    Request,
    Scenario,
    UsageError,
)
from raytwin.scenarios.workloads.disturbance import disturbance, ended, load_checks, throughput
from raytwin.scenarios.workloads.episodes import FaultEpisode, Pace, limit_on, run_episode
from raytwin.scenarios.workloads.steady_load import Answer, Operation, SteadyLoad, nodes

NODES_MIN = 3
AXIS = "since_cut_s"
MAJORITY, MINORITY = "majority", "minority"
MAJORITY_MIN = 0.5
"""Of the offered rate, between the moment at which the minority is given up and the heal."""
AIM_PERCENT = 10.0


@dataclass(frozen=True)
class Cut:
    """A way to divide the cluster."""

    one_way: bool
    from_minority: bool
    """Whether the minority is named first: one way, it is then what nobody hears."""
    held: float
    """For how long, as a multiple of the failure detector's limit."""

    @property
    def fences(self) -> bool:
        """Whether it lasts until the minority is given up."""
        return self.held > 1


CUTS = {
    "both ways": Cut(False, False, 2.0),
    "minority not heard": Cut(True, True, 2.0),
    "minority hears nothing": Cut(True, False, 2.0),
    "healed in time": Cut(False, False, 0.1),
}


def minority_of(count: int) -> list[int]:
    """Return the nodes of the minority: the last ones, less than half of all.

    >>> minority_of(5), minority_of(3)
    ([3, 4], [2])
    """
    return list(range(count - (count - 1) // 2, count))


def plan(cut: str, count: int, limit_s: float) -> Plan:
    """Return the plan of one partition of `count` nodes: cut, heal, start again what was fenced."""
    found = CUTS[cut]
    minority = minority_of(count)
    sets = [
        ["head", *(f"node:{node}" for node in range(count) if node not in minority)],
        [f"node:{node}" for node in minority],
    ]
    if found.from_minority:
        sets.reverse()
    parameters = {"sets": sets, "one_way": True} if found.one_way else {"sets": sets}
    steps = [
        Step("partition", "cluster", 0.0, parameters=parameters, name="apart"),
        Step("heal", "cluster", after="apart", delay_s=found.held * limit_s, name="healed"),
    ]
    if found.fences:
        numbers = ",".join(map(str, minority))
        steps.append(Step("restart", f"nodes:{numbers}", after="healed", delay_s=limit_s / 2))
    return Plan(steps)


def run(request: Request) -> Outcome:
    """Run a load through every partition; see `SCENARIO`."""
    settings = request.settings
    count = request.nodes[0] if request.nodes else settings["nodes"]
    if count < NODES_MIN:
        raise UsageError(
            f"partition needs at least {NODES_MIN} nodes, not {count}: the driver's,"
            " one that stays with it, and one that is cut off"
        )
    limit_s = limit_on(request.backend, settings["limit_s"])
    options: dict[str, Any] = {}
    if request.backend == "sim" and request.profile:
        options = {"profile": str(request.profile), "nodes_per_host": count}
    outcome = Outcome(rows=[])
    outcome.parameters |= {"minority": minority_of(count), "limit_used_s": limit_s}
    plans = {cut: plan(cut, count, limit_s) for cut in settings["cuts"]}
    request.progress.begin(f"partition on {request.backend}", len(plans))
    behind_proxies = {name for each in plans.values() for name in each.proxied_on}
    with executions.record() as record, proxied(*behind_proxies):
        session: Any = ray.init(
            backend=request.backend,
            nodes=nodes(count - 1, settings["cpus_per_node"]),
            seed=request.seed,
            heartbeat_timeout_s=limit_s,
            **options,
            **executions.shared_by(request.backend, record),
        )
        try:
            load = SteadyLoad(
                settings["rate_per_s"], settings["task_ms"] / 1000, count - 1, False, record
            )
            load.warm_up((count - 1) * settings["cpus_per_node"])
            pace = Pace(settings["quiet_s"], settings["after_s"], settings["patience_s"])
            episodes = {}
            for cut, faults in plans.items():
                episodes[cut] = run_episode(session, load, faults, pace)
                request.progress.advance()
            hung = load.finish(settings["patience_s"])
            events = run_trace.kept()
        finally:
            ray.shutdown()
        ranges = [row for each in episodes.values() for row in each.ranges]
        found = executions.read(record, ranges)
    outcome.timeline = events
    for cut, each in episodes.items():
        outcome.timeline += timeline(each.recovery.injections)
        _report(outcome, settings, cut, each, load.operations, found)
    outcome.metrics["hung"] = hung
    _judge(outcome)
    return outcome


def _report(
    outcome: Outcome,
    settings: Any,
    cut: str,
    each: FaultEpisode,
    operations: Sequence[Operation],
    found: Executions,
) -> None:
    """Add the rows and bands of one partition, and its recovery to the timeline."""
    span, minority = each.span, outcome.parameters["minority"]
    mine = [one for one in operations if span.has(one.submitted_s)]
    again = each.after_fault(found.again)
    felt = disturbance(span, operations, {one.task for one in again})
    answers = Counter(one.answer for one in mine)
    died: dict[int, float] = {}
    for event in each.recovery.events:
        if event[1] == "node_died":
            died.setdefault(int(event[2].rpartition(":")[2]), event[0] - span.fault_s)
    fenced_s = max(died.values(), default=None)
    healed_s = _when(each, "heal")
    outcome.rows.append(
        {
            "cut": cut,
            "offered_per_s": settings["rate_per_s"],
            "nodes_fenced": sum(node in minority for node in died),
            "nodes_expected": len(minority) if CUTS[cut].fences else 0,
            "others_died": sum(node not in minority for node in died),
            "fenced_s": fenced_s,
            "healed_s": healed_s,
            "majority_per_s": _rate(each, operations, fenced_s, healed_s),
            "first_result_s": felt.first_result_s,
            "full_s": felt.full_s,
            "recovered": felt.recovered,
            "latency_max_s": felt.latency_max_s,
            "operations": len(mine),
            "executed_again": len(again),
            "replayed": len(each.after_fault(found.replays)),
            "wrong": answers[Answer.WRONG],
            "errors": answers[Answer.ERROR],
            "hung": answers[Answer.OPEN],
            "steps_missed": each.steps_missed,
        }
    )
    bucket_s = settings["bucket_s"]
    outcome.rows += [
        {"cut": cut, AXIS: at_s, "ended_per_s": rate}
        for at_s, rate in throughput(span, ended(operations), bucket_s)
    ]
    began = [*found.first, *found.again, *found.replays]
    for side, inside in ((MAJORITY, False), (MINORITY, True)):
        there = [one.began_s for one in began if (node_of(one.worker) in minority) == inside]
        outcome.rows += [
            {"cut": cut, AXIS: at_s, "side": side, "began_per_s": rate}
            for at_s, rate in throughput(span, there, bucket_s)
        ]
    where = {"cut": cut}
    outcome.bands.append(Band(AXIS, 0.0, healed_s, cut, where))
    if felt.full_s is not None:
        outcome.timeline.append(recovery_span(span.fault_s, felt.full_s))
    if fenced_s is not None:
        back_s = _when(each, "restart") if CUTS[cut].fences else healed_s
        outcome.bands.append(Band(AXIS, fenced_s, back_s, "minority given up", where))


def _when(each: FaultEpisode, action: str) -> float:
    """Return when the last step with an action was carried out, since the cut."""
    injections = each.recovery.injections
    return max(
        (one.clock_s - each.span.fault_s for one in injections if one.step.action == action),
        default=each.plan_s,
    )


def _rate(
    each: FaultEpisode, operations: Sequence[Operation], begin_s: float | None, end_s: float
) -> float:
    """Return the results a second between two times since the cut; from the cut on if None."""
    begin_s = begin_s or 0.0
    results = sum(begin_s <= at_s - each.span.fault_s < end_s for at_s in ended(operations))
    return results / (end_s - begin_s) if end_s > begin_s else 0.0


def _judge(outcome: Outcome) -> None:
    """Add metrics by cut, and the checks over all."""
    cuts = [row for row in outcome.rows if "recovered" in row]
    for row in cuts:
        slug = row["cut"].replace(" ", "_")
        for name in ("fenced_s", "full_s", "latency_max_s", "majority_per_s", "executed_again"):
            if row[name] is not None:
                outcome.metrics[f"{name}_{slug}"] = row[name]
    fenced = [row for row in cuts if row["nodes_expected"]]
    outcome.checks += [
        *load_checks(cuts, sum(row["hung"] for row in cuts)),
        Check(
            "the minority was given up where the partition lasted, and no other node",
            all(
                (row["nodes_fenced"], row["others_died"]) == (row["nodes_expected"], 0)
                for row in cuts
            ),
            "; ".join(
                f"{row['cut']}: {row['nodes_fenced']} of {row['nodes_expected']},"
                f" {row['others_died']} others"
                for row in cuts
            ),
        ),
        Check(
            f"the majority went on without it, at {MAJORITY_MIN:.0%} of the offered rate or more",
            all(row["majority_per_s"] >= MAJORITY_MIN * row["offered_per_s"] for row in fenced),
            "; ".join(
                f"{row['cut']}: {row['majority_per_s']:.1f} of {row['offered_per_s']}/s"
                for row in fenced
            ),
        ),
        Check(
            "full throughput came back after every partition",
            all(row["recovered"] for row in cuts),
            f"in {sum(row['recovered'] for row in cuts)} of {len(cuts)}",
        ),
    ]
    for row in cuts:
        given_up = "nobody was given up"
        if row["fenced_s"] is not None:
            given_up = f"the minority was given up after {row['fenced_s']:.3g} s"
        outcome.findings.append(
            f"{row['cut'][0].upper()}{row['cut'][1:]}, for {row['healed_s']:.3g} s: {given_up};"
            f" the slowest operation took {row['latency_max_s']:.3g} s,"
            f" {row['executed_again']} of {row['operations']} were executed again."
        )


def _over_time(cut: str, what: str, y: str, y_label: str, series: tuple[str, ...]) -> FigureSpec:
    return FigureSpec(
        title=f"{what}: {cut}",
        where={"cut": cut},
        x=AXIS,
        y=y,
        x_label="time since the cut (s)",
        y_label=y_label,
        series=series,
    )


SCENARIO = Scenario(
    name="partition",
    nodes_max={"sim": 100, "local": 16, "docker": 16},
    title="A majority goes on, a minority is fenced",
    figure=BEYOND,
    backends=("sim", "local", "docker"),
    not_on_ray="Ray restarts actors without their state, so their calls have no right results",
    run=run,
    about=(
        "An open load of tasks and actor calls runs while the network divides the cluster. The"
        " head, the driver's node and some others are the majority; less than half of the nodes are"
        " the minority. They are cut apart both ways; one way, so that nobody hears the minority;"
        " one way, so that it hears nobody; and both ways for a tenth of the failure detector's"
        " limit, which has to cost nothing but time. Plans are the same in simulation, on real"
        " processes, whose links lead through Toxiproxy, and in containers, which filter packets."
        "\n\n"
        "After the limit `limit_s` the cluster gives the minority up: what it had is executed again"
        " by the majority, its actors move, and what it still does has no effect. When the network"
        " heals, its nodes leave, and are started again. A call returns how many calls of its actor"
        " took effect, so an effect that happened on both sides is a wrong value. Actors may move,"
        " and nothing is lost for good, so nothing may fail or hang."
        "\n\n"
        "Tasks and calls write down where they begin: the minority goes on with what it has until"
        " that is done."
    ),
    options=(
        Option("cuts", str, tuple(CUTS), tuple(CUTS), "partitions", choices=tuple(CUTS), many=True),
        Option("nodes", int, 5, 5, "nodes, the driver's among them", minimum=NODES_MIN),
        Option("rate_per_s", int, 60, 60, "operations offered a second", minimum=1),
        Option("task_ms", float, 20.0, 20.0, "that a task or call takes", minimum=0.1),
        Option("cpus_per_node", int, 2, 2, "CPUs of each node that works", minimum=1),
        Option("limit_s", float, 0.6, 5.0, "of silence until a node is given up", minimum=0.05),
        Option("quiet_s", float, 0.2, 5.0, "before each partition", minimum=0.05),
        Option("after_s", float, 0.3, 5.0, "after each, or more until it is over", minimum=0.05),
        Option("bucket_s", float, 0.05, 0.5, "over which results are counted", minimum=0.001),
        Option("patience_s", float, 20.0, 60.0, "after which an operation hangs", minimum=0.1),
    ),
    figures=(
        *(_over_time(cut, "Throughput", "ended_per_s", "results/s", ()) for cut in CUTS),
        *(
            _over_time(cut, "What begins on each side", "began_per_s", "begun/s", ("side",))
            for cut in CUTS
        ),
        FigureSpec(
            title="Until the minority is given up",
            x="cut",
            y="fenced_s",
            x_label="",
            y_label="time since the cut",
            y_unit="s",
            compare=Compare(on=("cut",), column="fenced_s", aim_percent=AIM_PERCENT),
        ),
        FigureSpec(
            title="The slowest operation",
            x="cut",
            y="latency_max_s",
            x_label="",
            y_label="latency",
            y_unit="s",
            compare=Compare(on=("cut",), column="latency_max_s", aim_percent=AIM_PERCENT),
        ),
    ),
)
