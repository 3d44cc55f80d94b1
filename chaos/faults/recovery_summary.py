"""The recovery summary: the faults of a plan, their detection, and the cluster's recovery.

`observed` applies a plan to every cluster that starts, and asks each cluster for the GCS's event
log and the timeline, before its end or whenever somebody calls `Recovery.look`. The numbers have
these names, for `expect` too:

======================== ========================================================================
faults, faults_failed,   steps that were carried out, were impossible, or were not due before the
faults_not_due           program's end
nodes_died, ...          events of the GCS's log: `COUNTED`
errors                   errors of tasks, calls and objects that reached the driver
printed                  the last number that a script has printed, of `raytwin exec` alone
detections, undetected   faults by which something should die, that the cluster noticed, or not
detection_max_s          the longest time from a fault to its detection
before_tasks_per_s,      tasks and calls per second before the first fault, and after the last one
after_tasks_per_s        was carried out and noticed, on the nodes that have not died
before_latency_p99_ms,   the 99th percentile of the time from a task's acceptance by its node to its
after_latency_p99_ms     end, where the node knows it, of tasks with both in those times
======================== ========================================================================

A number that nothing is known about is missing: a rate before a fault that came before the first
task, a detection where nothing died. A node that dies takes its part of the timeline with it,
so rates are those of the other nodes.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from raytwin.chaos.faults.expectations import Finding, check_all
from raytwin.chaos.faults.injector import Injection, attached
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import Link
from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.control.core.addresses import chain_of
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause, brief

COUNTED = {
    "node_died": "nodes_died",
    "worker_died": "workers_died",
    "actor_died": "actors_died",
    "actor_restarted": "actors_restarted",
    "task_retried": "tasks_retried",
    "task_reconstructed": "tasks_reconstructed",
    "call_replayed": "calls_replayed",
    "object_lost": "objects_lost",
    "replica_died": "replicas_died",
    "head_started": "heads_started",
}
"""By kind of event: the number that counts such events."""
DEATHS = (
    "node_died", "worker_died", "actor_died", "actor_restarting", "replica_died", "head_started",
)  # fmt: skip
DEADLY = ("kill", "remove_node")
"""Actions after which something has died."""
ENDINGS = ("restart", "resume", "heal")
"""Actions that end a fault: a program that is over before was under that fault all the same."""
MAYBE_DEADLY = (
    "restart", "pause", "stall", "cut", "disk_full", "memory_pressure", "slow_cores",
)  # fmt: skip
"""Actions after which something may die: none of it need."""
_MEANT = (
    DeathCause.NO_OWNER, DeathCause.KILLED, DeathCause.EXITED, DeathCause.TERMINATED,
    DeathCause.JOB_ENDED,
)  # fmt: skip
MEANT = {brief(ActorDeath(cause)) for cause in _MEANT}
"""The details of ``actor_died`` where the program has ended the actor, or dropped its handles."""
LINES_MAX = 20
"""Deaths that are printed one by one."""
ON_RAY = "Ray does not log its failures for programs"
ANSWER_TIMEOUT_S = 10.0
"""How long a cluster of processes may take to answer, which it may never do after its faults."""

Event = tuple[float, str, str, str, int]
"""Time, kind, subject, detail, count."""


@dataclass
class Recovery:
    """One cluster under a plan."""

    plan: Plan
    injections: list[Injection]
    started_s: float
    """When the plan was applied, on the cluster's clock."""
    events: list[Event] = field(default_factory=list)
    ranges: list[list[Any]] = field(default_factory=list)
    """The rows of the timeline: see `queries`."""
    errors: Counter[str] = field(default_factory=Counter)
    """Errors that reached the driver, by class."""
    silent: str = ""
    """Why the cluster did not answer when it was asked last; empty if it did."""
    cluster: tuple[Any, Any] | None = field(default=None, repr=False)
    """The cluster's session and injector; None once the plan is over there."""

    def look(self) -> None:
        """Ask the cluster what has happened so far, unless the plan is over there."""
        if self.cluster is not None:
            self.silent = _answer(self.cluster[0], self)

    def end(self) -> None:
        """End the plan, and ask the cluster for the last time."""
        if self.cluster is not None:
            self.cluster[1].stop()
            self.look()
            self.cluster = None

    def detections(self) -> list[tuple[Injection, Event | None]]:
        """Return the faults by which something dies, and the event that reports each death.

        After some faults nothing need die: of these it has those after which something did. A
        death has one cause: the latest fault that can have been it, one of `DEADLY` before others.
        """
        found: dict[int, Event] = {}
        done = [each for each in self.injections if not each.error]
        for event in self.events:
            causes = [
                each
                for each in done
                if id(each) not in found and each.clock_s <= event[0] and _reports(event, each.step)
            ]
            if causes:
                cause = max(causes, key=lambda each: (each.step.action in DEADLY, each.clock_s))
                found[id(cause)] = event
        return [
            (each, found.get(id(each)))
            for each in done
            if id(each) in found or each.step.action in DEADLY
        ]

    def numbers(self) -> dict[str, float]:
        """Return the numbers of the summary by name."""
        detections = self.detections()
        delays_s = [event[0] - each.clock_s for each, event in detections if event is not None]
        found: dict[str, float] = {
            "faults": len([each for each in self.injections if not each.error]),
            "faults_failed": len([each for each in self.injections if each.error]),
            "faults_not_due": len(self.not_due()),
            "errors": self.errors.total(),
        }
        if self.silent:
            return found
        counts = Counter[str]()
        for _, kind, _, _, count in self.events:
            counts[kind] += count
        found |= {name: counts[kind] for kind, name in COUNTED.items()}
        found |= {"detections": len(delays_s), "undetected": len(detections) - len(delays_s)}
        if delays_s:
            found["detection_max_s"] = max(delays_s)
        return found | self._rates(detections)

    def not_due(self) -> list[Step]:
        """Return the steps of the plan whose time has not come."""
        begun = {id(each.planned or each.step) for each in self.injections}
        return [step for step in self.plan.steps if id(step) not in begun]

    def _rates(self, detections: list[tuple[Injection, Event | None]]) -> dict[str, float]:
        """Return the rates and latencies before the first fault and after the last one."""
        if not self.injections:
            return {}
        died = {event[2] for event in self.events if event[1] == "node_died"}
        # Name, node, worker, start, elapsed, count, ...: see `queries`.
        rows = [row for row in self.ranges if f"node:{row[1]}" not in died]
        first_s = min(each.clock_s for each in self.injections)
        last_s = max(
            [each.clock_s for each in self.injections]
            + [event[0] for _, event in detections if event is not None]
        )
        found: dict[str, float] = {}
        began_s = min((row[3] for row in rows), default=first_s)
        ended_s = max((row[3] + row[4] for row in rows), default=last_s)
        for when, begin_s, end_s, accepted_s in (
            ("before", began_s, first_s, 0.0),
            ("after", last_s, ended_s, last_s),
        ):
            ended = [row for row in rows if begin_s <= row[3] + row[4] <= end_s]
            if not ended or end_s <= begin_s:
                continue
            found[f"{when}_tasks_per_s"] = sum(row[5] for row in ended) / (end_s - begin_s)
            latencies_s = sorted(
                row[3] + row[4] - row[11] for row in ended if row[11] >= accepted_s
            )
            if latencies_s:
                rank = math.ceil(0.99 * len(latencies_s)) - 1
                found[f"{when}_latency_p99_ms"] = 1000 * latencies_s[rank]
        return found

    def check(self, more: Mapping[str, float]) -> list[Finding]:
        """Compare the numbers, and more that are known, with what the plan expects."""
        return check_all(self.plan.expect, {**self.numbers(), **more})

    def lines(self) -> list[str]:
        """Return the summary, a line each."""
        lines = ["faults:"]
        noticed = {id(each): event for each, event in self.detections()}
        for each in self.injections:
            line = f"  {each.at_s:8.3f} s  {each.step}"
            if each.error:
                line += f": not possible: {each.error}"
            elif id(each) in noticed:
                event = noticed[id(each)]
                line += (
                    ": not noticed" if event is None else
                    f": noticed after {event[0] - each.clock_s:.3f} s, {event[1]} {event[2]}"
                )  # fmt: skip
            lines.append(line)
        lines += [f"  not due     {step}" for step in self.not_due()]
        if self.silent:
            return [*lines, f"the cluster could not be asked how it recovered: {self.silent}"]
        deaths = [event for event in self.events if event[1] in DEATHS]
        if deaths:
            lines.append("what died, and when the cluster noticed:")
            for time_s, kind, subject, detail, _ in deaths[:LINES_MAX]:
                why = f": {detail}" if detail else ""
                lines.append(f"  {time_s - self.started_s:8.3f} s  {kind} {subject}{why}")
            if len(deaths) > LINES_MAX:
                lines.append(f"  and {len(deaths) - LINES_MAX} more")
        if self.errors:
            named = ", ".join(f"{count} {name}" for name, count in sorted(self.errors.items()))
            lines.append(f"errors that reached the program: {named}")
        lines.append("recovery:")
        lines += [f"  {name} {value:,.6g}" for name, value in self.numbers().items()]
        return lines


def _is_meant(event: Event) -> bool:
    """Whether an event is the end of an actor that the program does not need any more."""
    return event[1] == "actor_died" and event[3].partition(":")[0] in MEANT


def _reports(event: Event, step: Step) -> bool:
    """Whether an event is what the cluster notices first of a fault."""
    _, kind, subject, *_ = event
    target = step.target
    if step.action not in (*DEADLY, *MAYBE_DEADLY):
        return False
    if not step.delay_s and step.after == f"{kind}:{subject.partition(':')[2]}":
        return False  # it has begun because of this event
    if target.kind == "worker":
        return kind == "worker_died" and subject.startswith(f"worker:{target.node}.")
    if target.kind == "actor":
        return kind in ("worker_died", "actor_restarting", "actor_died")
    if isinstance(target, Link) and kind == "replica_died":
        ends = (target.source, target.destination)
        return any(end.startswith(f"replica:{chain_of(subject)}.") for end in ends)
    if target.nodes:
        return kind == "node_died" and subject in {f"node:{number}" for number in target.nodes}
    if target.kind in ("replica", "scheduler") and kind == "replica_died":
        return chain_of(subject) == (target.chain if target.kind == "replica" else 0)
    return target.kind in ("head", "scheduler") and kind == "head_started"


def impossible(plan: Plan, clusters: Sequence[Recovery]) -> list[str]:
    """Return the steps that a cluster could not carry out, each with the reason.

    There are none of a plan that says how many it expects, as `faults_failed`.
    """
    if any(each.metric == "faults_failed" for each in plan.expect):
        return []
    return [
        f"cluster {number}: {each.step}: {each.error}"
        for number, cluster in enumerate(clusters, start=1)
        for each in cluster.injections
        if each.error
    ]


def never_due(plan: Plan, clusters: Sequence[Recovery]) -> list[str]:
    """Return the faults that were due in no cluster; some clusters may be over before.

    There are none of a plan that says how many it expects, as `faults_not_due`.
    """
    if any(each.metric == "faults_not_due" for each in plan.expect):
        return []
    left = [cluster.not_due() for cluster in clusters]
    return [
        f"{step}: it was never due"
        for step in plan.steps
        if step.action not in ENDINGS and all(any(step is s for s in some) for some in left)
    ]


@contextmanager
def observed(plan: Plan) -> Iterator[list[Recovery]]:
    """Apply a plan to each cluster that starts within this context, and observe its recovery.

    Yields a list that grows by one for each cluster; what it says is complete once the cluster
    has ended. On clusters that outlive the context, the plan ends with it.
    """
    found: list[Recovery] = []

    def begin(session: Any, injector: Any) -> None:
        recovery = Recovery(plan, injector.injections, injector.started_s)
        recovery.cluster = session, injector
        found.append(recovery)
        if session.name != "ray":
            _count_errors(session, recovery.errors)
        session.before_shutdown.append(recovery.end)

    try:
        with attached(plan, begin):
            yield found
    finally:
        for recovery in found:
            recovery.end()


def _count_errors(session: Any, errors: Counter[str]) -> None:
    """Count the errors that a driver's session raises for tasks, calls and objects."""
    error_of = session.values.error_of

    def counted(*args: Any) -> BaseException:
        error: BaseException = error_of(*args)
        errors[type(error).__name__] += 1
        return error

    session.values.error_of = counted


def _answer(session: Any, recovery: Recovery) -> str:
    """Ask a cluster for its events and its timeline; return why it did not answer."""
    if session.name == "ray":
        return ON_RAY
    failed = [f"no answer within {ANSWER_TIMEOUT_S:g} s"]

    def ask() -> None:
        try:
            events: list[Event] = [tuple(row) for row in session.query("events")]
            recovery.events = [event for event in events if not _is_meant(event)]
            recovery.ranges = session.query("timeline")
            failed.clear()
        except RaySystemError as error:
            failed[:] = [str(error)]

    if session.name == "sim":  # has one thread, and raises when nothing happens any more
        ask()
    else:
        asking = threading.Thread(target=ask, name="raytwin-recovery", daemon=True)
        asking.start()
        asking.join(ANSWER_TIMEOUT_S)
    return failed[0] if failed else ""
