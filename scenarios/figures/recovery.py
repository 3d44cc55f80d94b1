"""Recovery: what each fault costs a steady load, and for how long, by the load's rate."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import raytwin as ray
from raytwin.chaos.faults.injector import recovery_span, timeline
from raytwin.chaos.faults.proxied_links import proxied
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
    PublishedPoint,
    Request,
    Row,
    Scenario,
    UsageError,
)
from raytwin.scenarios.workloads.chain_writes import VALUE_BYTES
from raytwin.scenarios.workloads.disturbance import (
    disturbance,
    ended,
    load_checks,
    quantile,
    throughput,
)
from raytwin.scenarios.workloads.episodes import FaultEpisode, Pace, limit_on, run_episode
from raytwin.scenarios.workloads.single_faults import (
    FAULTS,
    NOTICED,
    REPLICATED,
    STORAGE,
    plan,
)
from raytwin.scenarios.workloads.steady_load import Answer, SteadyLoad, nodes

WORKERS = 3
"""Nodes that work; the driver's has no CPU."""
WORKERS_MIN = 2
KEY = b"recovery"
"""The driver writes to this key of the GCS beside the load, where replicas die."""
PHASE_S = 0.1
"""Faults are injected at a random moment of so many seconds: the load would meet each the same."""
AXIS = "since_fault_s"
TIMES = ("detect_s", "first_result_s", "full_s", "latency_max_s", "gcs_latency_max_s")
AIM_PERCENT = 10.0
QUICK = tuple(fault for fault, each in FAULTS.items() if not each.needs)


def run(request: Request) -> Outcome:
    """Run every fault at every rate, each several times; see `SCENARIO`."""
    settings = request.settings
    workers = request.nodes[0] - 1 if request.nodes else WORKERS
    if workers < WORKERS_MIN:
        raise UsageError(
            f"recovery needs at least {WORKERS_MIN + 1} nodes, not {workers + 1}: the driver's,"
            " which has no CPU, one that fails, and one that goes on"
        )
    outcome = Outcome(rows=[])
    outcome.parameters["limit_used_s"] = limit_on(request.backend, settings["limit_s"])
    clusters = [
        (rate_per_s, faults)
        for rate_per_s in settings["rates_per_s"]
        for faults in _by_cluster(settings["faults"])
    ]
    request.progress.begin(f"recovery on {request.backend}", len(clusters))
    for rate_per_s, faults in clusters:
        _run_cluster(request, outcome, workers, rate_per_s, faults)
        request.progress.advance()
    _judge(outcome, settings)
    return outcome


def _by_cluster(faults: Sequence[str]) -> list[list[str]]:
    """Return the faults in groups that one cluster can have."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for fault in faults:
        groups.setdefault(tuple(FAULTS[fault].needs), []).append(fault)
    return list(groups.values())


def _run_cluster(
    request: Request, outcome: Outcome, workers: int, rate_per_s: int, faults: Sequence[str]
) -> None:
    """Run the episodes of some faults in one cluster, and add what they come to."""
    settings = request.settings
    limit_s = limit_on(request.backend, settings["limit_s"])
    options: dict[str, Any] = dict(FAULTS[faults[0]].needs)
    if request.backend == "sim" and request.profile:
        options |= {"profile": str(request.profile), "nodes_per_host": workers + 1}
    behind_proxies = {name for fault in faults for name in plan(fault, limit_s).proxied_on}
    with (
        executions.record() as record,
        tempfile.TemporaryDirectory(prefix="raytwin-") as folder,
        proxied(*behind_proxies),
    ):
        if STORAGE in options:
            options[STORAGE] = str(Path(folder, "gcs"))
        session: Any = ray.init(
            backend=request.backend,
            nodes=nodes(workers, settings["cpus_per_node"]),
            seed=request.seed,
            heartbeat_timeout_s=limit_s,
            **options,
            **executions.shared_by(request.backend, record),
        )
        try:
            load = SteadyLoad(rate_per_s, settings["task_ms"] / 1000, workers, True, record)
            load.warm_up(workers * settings["cpus_per_node"])
            if REPLICATED in options:
                load.write = partial(session.kv_put, KEY, bytes(VALUE_BYTES))
            rng = random.Random(f"{request.seed}/{rate_per_s}")
            episodes = [
                (
                    fault,
                    repeat,
                    run_episode(session, load, plan(fault, limit_s), pace(settings, rng)),
                )
                for fault in faults
                for repeat in range(settings["repeats"])
            ]
            hung = load.finish(settings["patience_s"])
            events = run_trace.kept()
            for *_, each in episodes:
                events += timeline(each.recovery.injections)
        finally:
            ray.shutdown()
        found = executions.read(record, [row for *_, each in episodes for row in each.ranges])
    named = " ".join([f"{rate_per_s}/s", *FAULTS[faults[0]].needs])
    outcome.metrics["hung"] = outcome.metrics.get("hung", 0.0) + hung
    for fault, repeat, each in episodes:
        key = {"fault": fault, "offered_per_s": rate_per_s, "repeat": repeat}
        full_s = _report(outcome, settings, key, each, load, found)
        if full_s is not None:
            events.append(recovery_span(each.span.fault_s, full_s))
    outcome.timeline += run_trace.group(events, f"{named}:")


def pace(settings: Any, rng: random.Random) -> Pace:
    """Return the pace of an episode: its fault meets the load at a random moment."""
    quiet_s = settings["quiet_s"] + rng.random() * PHASE_S
    return Pace(quiet_s, settings["after_s"], settings["patience_s"])


def _report(
    outcome: Outcome,
    settings: Any,
    key: Row,
    each: FaultEpisode,
    load: SteadyLoad,
    found: Executions,
) -> float | None:
    """Add the rows of one episode; return the time to full throughput, None if it never went."""
    span, operations = each.span, load.operations
    writes_s = [
        ended_s - began_s
        for began_s, ended_s in load.writes
        if span.fault_s <= ended_s and began_s < span.ended_s
    ]
    mine = [one for one in operations if span.has(one.submitted_s)]
    first, again, replays = map(each.after_fault, (found.first, found.again, found.replays))
    felt = disturbance(span, operations, {one.task for one in again})
    answers = Counter(one.answer for one in mine)
    outcome.rows.append(
        {
            **key,
            "detect_s": each.detected_s,
            "first_result_s": felt.first_result_s,
            "full_s": felt.full_s,
            "recovered": felt.recovered,
            "dip_operations": felt.dip_operations,
            "latency_max_s": felt.latency_max_s,
            "gcs_latency_max_s": max(writes_s, default=None),
            "operations": len(mine),
            "hit": felt.hit,
            "executed_again": len(again),
            "replayed": len(replays),
            "executed_again_per_useful": (len(again) + len(replays)) / max(1, len(first)),
            "wrong": answers[Answer.WRONG],
            "errors": answers[Answer.ERROR],
            "hung": answers[Answer.OPEN],
            "over_s": max(each.plan_s, felt.full_s or 0.0),
            "steps_missed": each.steps_missed,
            "nodes_given_up": len(each.unplanned),
        }
    )
    outcome.rows += [
        {**key, AXIS: at_s, "ended_per_s": ended_per_s}
        for at_s, ended_per_s in throughput(span, ended(operations), settings["bucket_s"])
    ]
    return felt.full_s


def _judge(outcome: Outcome, settings: Any) -> None:
    """Add metrics and a band by fault, and the checks over all episodes."""
    episodes = [row for row in outcome.rows if "recovered" in row]
    for fault in settings["faults"]:
        end_s = max(row["over_s"] for row in episodes if row["fault"] == fault)
        outcome.bands.append(Band(AXIS, 0.0, end_s, fault, {"fault": fault}))
    for (fault, rate_per_s), mine in _by_load(episodes).items():
        slug = f"{fault.replace(' ', '_')}_{rate_per_s}_per_s"
        for column in TIMES:
            values = [row[column] for row in mine if row[column] is not None]
            for name, part in (("p50", 0.5), ("p99", 0.99)):
                if values:
                    outcome.metrics[f"{column}_{name}_{slug}"] = quantile(values, part)
        outcome.metrics |= {
            f"dip_operations_{slug}": _mean(mine, "dip_operations"),
            f"executed_again_per_useful_{slug}": _mean(mine, "executed_again_per_useful"),
        }
    back = sum(row["recovered"] for row in episodes)
    silent = [row for row in episodes if row["fault"] in NOTICED and row["detect_s"] is None]
    outcome.metrics |= {
        "wrong_or_errors": sum(row["wrong"] + row["errors"] for row in episodes),
    }
    outcome.checks += [
        *load_checks(episodes, outcome.metrics["hung"]),
        Check(
            "the cluster noticed every death",
            not silent,
            f"{len(silent)} of {sum(row['fault'] in NOTICED for row in episodes)} were not noticed",
        ),
        Check(
            "full throughput came back after every fault",
            back == len(episodes),
            f"in {back} of {len(episodes)} episodes",
        ),
    ]
    outcome.findings += [
        _finding(fault, rate_per_s, mine)
        for (fault, rate_per_s), mine in _by_load(episodes).items()
    ]
    given_up = sum(row["nodes_given_up"] for row in episodes)
    if given_up:
        outcome.findings.append(
            f"{given_up} nodes were given up that no fault had ended: the failure detector's limit"
            " is too short for this machine now, and what was measured is worth less for it."
        )


def _by_load(episodes: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """Return the episodes by fault and rate: what a fault costs depends on the load."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in episodes:
        found.setdefault((row["fault"], row["offered_per_s"]), []).append(row)
    return dict(
        sorted(found.items(), key=lambda item: (list(FAULTS).index(item[0][0]), item[0][1]))
    )


def _mean(rows: Sequence[Row], column: str) -> float:
    return float(sum(row[column] for row in rows) / len(rows))


def _finding(fault: str, rate_per_s: int, mine: Sequence[Row]) -> str:
    """Return a fault's numbers at one rate as a sentence."""

    def times(what: str, column: str) -> str:
        values = [row[column] for row in mine if row[column] is not None]
        if not values:
            return f"no {what}"
        p50, p99 = (quantile(values, part) for part in (0.5, 0.99))
        return f"{what} after {p50:.3g} s (p99 {p99:.3g} s)"

    parts = [
        times("death noticed", "detect_s"),
        times("result of what was hit", "first_result_s"),
        times("return to full throughput", "full_s"),
        f"{sum(row['executed_again'] for row in mine):,} of"
        f" {sum(row['operations'] for row in mine):,} operations executed again and"
        f" {sum(row['replayed'] for row in mine):,} calls replayed",
    ]
    if any(row["gcs_latency_max_s"] is not None for row in mine):
        parts.append(times("slowest write to the GCS ended", "gcs_latency_max_s"))
    name = fault[0].upper() + fault[1:]
    return f"{name} at {rate_per_s} operations/s, {len(mine)} times: {', '.join(parts)}."


def _around(fault: str) -> FigureSpec:
    """Return the figure of a load's throughput around a fault."""
    return FigureSpec(
        title=f"Throughput around a fault: {fault}",
        where={"fault": fault},
        x=AXIS,
        y="ended_per_s",
        x_label="time since the fault (s)",
        y_label="results/s",
        series=("offered_per_s",),
    )


SCENARIO = Scenario(
    name="recovery",
    nodes_max={"sim": 100, "local": 16, "docker": 16},
    title="What a fault costs, and for how long",
    figure=BEYOND,
    backends=("sim", "local", "docker"),
    not_on_ray="Ray restarts actors without their state, so their calls have no right results",
    run=run,
    about=(
        "An open load of tasks and actor calls, offered at a fixed rate, runs on nodes that are all"
        " but the driver's. Every fault is injected into it several times: after a quiet stretch"
        " the fault, and then time to recover, all in the same cluster. Plans are the same in"
        " simulation, on real processes, whose links lead through Toxiproxy, and in containers."
        "\n\n"
        "Hit are the operations that began again after the fault; where there are none, those that"
        " took more than twice as long as the median before it. Times count from the fault: to the"
        " event by which the GCS reports the death (a fault without a death has none), to the"
        " first result of what was hit, and to full throughput, when all that was hit has ended"
        " and the backlog is gone. The dip is the area between the offered rate and the throughput,"
        " in operations. Tasks and calls write down when they begin: what began again, or was"
        " replayed to rebuild an actor, is the work that was done twice. A call returns how many"
        " calls of its actor took effect, so a lost or doubled effect is a wrong value."
        "\n\n"
        "A process that ends is noticed at once by its parent. A silent node is paused for good:"
        " only the failure detector sees it, whose limit is `limit_s`; a link between the driver's"
        " node and another is cut or stalled for a quarter of that, and slow or narrow (50 ms,"
        " 10 KB/s, each way) for half of it: nothing dies. Anchors from elsewhere"
        " are of other systems and programs: they give the scale, not a target."
        "\n\n"
        "Tasks and calls do not wait for the GCS. Where a replica of it is killed, the driver"
        " writes to its key-value table with every operation, and waits for that."
    ),
    options=(
        Option("faults", str, QUICK, tuple(FAULTS), "to inject", choices=tuple(FAULTS), many=True),
        Option(
            "rates_per_s",
            int,
            (60, 150),
            (60, 150),
            "operations offered a second",
            minimum=1,
            many=True,
        ),
        Option("repeats", int, 1, 6, "episodes of each fault at each rate", minimum=1),
        Option("task_ms", float, 20.0, 20.0, "that a task or call takes", minimum=0.1),
        Option("cpus_per_node", int, 2, 2, "CPUs of each node that works", minimum=1),
        Option("limit_s", float, 0.4, 1.0, "of silence until a node is dead", minimum=0.05),
        Option("quiet_s", float, 0.2, 1.0, "before each fault", minimum=0.05),
        Option(
            "after_s",
            float,
            0.4,
            2.0,
            "after each fault, beyond its end, or more until it is over",
            minimum=0.05,
        ),
        Option("bucket_s", float, 0.05, 0.1, "over which results are counted", minimum=0.001),
        Option("patience_s", float, 10.0, 30.0, "after which an operation hangs", minimum=0.1),
    ),
    figures=(
        *(_around(fault) for fault in FAULTS),
        FigureSpec(
            title="Time to full throughput",
            x="fault",
            y="full_s",
            x_label="",
            y_label="time since the fault",
            y_scale="log",
            y_unit="s",
            published=(
                PublishedPoint(
                    "D-Streams",
                    1.0,
                    "at_most",
                    "Zaharia et al., Discretized Streams, SOSP 2013: sub-second fault recovery",
                ),
                PublishedPoint(
                    "RDDs",
                    22.0,
                    "value",
                    "Zaharia et al., Resilient Distributed Datasets, NSDI 2012: an iteration of"
                    " k-means takes 80 s instead of 58 s when a node dies",
                ),
                PublishedPoint(
                    "figure 11b",
                    70.0,
                    "value",
                    "OSDI 2018, section 5.1: 400 actors of two nodes, t = 200 s to 270 s",
                ),
            ),
            compare=Compare(
                on=("fault", "offered_per_s"), column="full_s", aim_percent=AIM_PERCENT
            ),
        ),
        FigureSpec(
            title="Time to the first result of what was hit",
            x="fault",
            y="first_result_s",
            x_label="",
            y_label="time since the fault",
            y_scale="log",
            y_unit="s",
            compare=Compare(
                on=("fault", "offered_per_s"), column="first_result_s", aim_percent=AIM_PERCENT
            ),
        ),
        FigureSpec(
            title="Time to detection",
            x="fault",
            y="detect_s",
            x_label="",
            y_label="time since the fault",
            y_scale="log",
            y_unit="s",
            compare=Compare(
                on=("fault", "offered_per_s"), column="detect_s", aim_percent=AIM_PERCENT
            ),
        ),
        FigureSpec(
            title="The slowest operation after a fault",
            x="fault",
            y="latency_max_s",
            x_label="",
            y_label="latency",
            y_scale="log",
            y_unit="s",
        ),
        FigureSpec(
            title="The slowest write to the GCS after a fault",
            where={"fault": "GCS replica killed"},
            x="fault",
            y="gcs_latency_max_s",
            x_label="",
            y_label="latency",
            y_scale="log",
            y_unit="s",
            published=(
                PublishedPoint(
                    "GCS replica killed",
                    0.030,
                    "at_most",
                    "OSDI 2018, figure 10a: a client of the GCS, detection included",
                ),
            ),
        ),
        FigureSpec(
            title="The dip",
            x="fault",
            y="dip_operations",
            x_label="",
            y_label="operations that were missing at the worst moment",
            series=("offered_per_s",),
        ),
        FigureSpec(
            title="Work done twice",
            x="fault",
            y="executed_again_per_useful",
            x_label="",
            y_label="executed again ÷ useful",
            series=("offered_per_s",),
        ),
    ),
)
