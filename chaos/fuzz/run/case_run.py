"""One case of the fuzz: a random program under a random fault plan, in virtual time.

A seed decides a case (`generate.cases`): a cluster, a program and a plan. `run_case` executes
it on `sim`; a second run of the case repeats the first to the last message. `run_case` checks
eight properties:

- every value is that of a sequential run (`oracle.sequential`), or an error that
  `oracle.legitimate_errors` accepts;
- the program ends: the simulator raises in a cluster without further events, and `Deadline`
  raises in one that is busy for longer after the last fault than `liveness` allows;
- the history of each key of the key-value table is linearizable (`oracle.register`);
- the timeline has the tasks that ran (`oracle.executed_tasks`);
- no task runs again before anything is lost, but for errors that its options ask to retry
  (`oracle.repeated_tasks`);
- a death costs a task one retry, and none fails for want of retries that has one left
  (`oracle.deaths`);
- no node, and no peer of a channel, is given up before the limit of silence, and channels keep what
  is not acknowledged, and nothing else (`oracle.silence`);
- the invariants of `oracle.invariants` hold, at every turn of a node and at the end.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import raytwin.runtime.api as api
from raytwin.chaos.faults.injector import Injection, attach
from raytwin.chaos.fuzz.generate.cases import Case
from raytwin.chaos.fuzz.oracle import invariants
from raytwin.chaos.fuzz.oracle.deaths import Deaths
from raytwin.chaos.fuzz.oracle.executed_tasks import wrong_timeline
from raytwin.chaos.fuzz.oracle.findings import Finding, Kind
from raytwin.chaos.fuzz.oracle.history import begin_history, history
from raytwin.chaos.fuzz.oracle.legitimate_errors import Objection, Oracle, Verdict
from raytwin.chaos.fuzz.oracle.register import wrong_keys
from raytwin.chaos.fuzz.oracle.repeated_tasks import repeated_tasks
from raytwin.chaos.fuzz.oracle.sequential import Sequential
from raytwin.chaos.fuzz.oracle.silence import Silence
from raytwin.chaos.fuzz.programs.interpreter import run_body
from raytwin.chaos.fuzz.programs.outcomes import Items, is_unexpected
from raytwin.chaos.fuzz.run.api_engine import Api, begin_program
from raytwin.chaos.fuzz.run.liveness import bound_s, leaves_s
from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.control.core.addresses import node_of
from raytwin.simulator.cluster.sim_backend import connect


@dataclass
class Report:
    """The result of a case."""

    case: Case
    failures: list[Finding] = field(default_factory=list)
    tasks: int = 0
    faults: int = 0
    outcomes: int = 0
    """The number of values that the program got."""
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    """The values in whose place a legitimate error came, by what explains the error."""


def run_case(
    case: Case,
    prepare: Callable[[Any], None] = lambda session: None,
    at_end: Callable[[Any, list[Injection]], None] = lambda session, injections: None,
    **options: Any,
) -> Report:
    """Run a case on `sim` and check all properties.

    `options` override the session's options. `prepare` gets the session before the program
    begins, `at_end` gets it, and what was injected, before it is shut down.
    """
    report = Report(case, tasks=case.program.tasks)
    bodies = (case.program, *case.drivers)
    sequential = Sequential()
    expected = [run_body(sequential, body) for body in bodies]
    begin_history()
    begin_program()
    try:
        session: Any = connect(
            nodes=case.nodes,
            cpus_per_node=case.cpus,
            seed=case.seed,
            heartbeat_timeout_s=case.heartbeat_timeout_s,
            direct_after=case.direct_after,
            timers=case.timers,
            more_resources=case.more_resources,
            policy=case.policy,
            **{"object_store_memory": case.store_bytes, **case.gcs, **options},
        )
    except RaySystemError as error:
        report.failures.append(raised(error))
        api.shutdown()
        return report
    clock = session.cluster.env
    history.clock = lambda: clock.now
    prepare(session)
    deaths = Deaths(session.cluster)
    silence = Silence(session.cluster)
    watch = invariants.Watch(session.cluster)
    deadline = Deadline(session, case)
    injector = attach(session, case.plan)
    try:
        others = [
            session.cluster.run_driver(partial(run_body, Api(driver=True), body))
            for body in case.drivers
        ]
        outcomes = [run_body(Api(driver=True), case.program), *(each.wait() for each in others)]
        deadline.end()
        report.failures += _wrong_keys()
        oracle = _oracle(case, deaths, session, injector.injections)
        # No variable here may keep an error, whose references would not be released.
        while outcomes:
            _compare(report, expected.pop(0), outcomes.pop(0), oracle)
        report.faults = len(injector.injections)
        if session.references.dropped or gc.isenabled():
            # All generations: a cluster with scarce resources has collected, and so aged, them.
            gc.collect()
        _finish_plan(session, injector)
        report.failures += invariants.settled(
            lambda: invariants.at_end(session) + silence.unacknowledged(),
            api.sleep,
            case.heartbeat_timeout_s,
            leaves_s(case, session.cluster.config),
        )
        if not report.failures:
            # A node that hangs, and is not declared dead, does not answer the query.
            deadline.restart()
            report.failures += _wrong_timeline(case, deaths, session)
            deadline.end()
    except Exception as error:
        report.failures.append(raised(error))
    finally:
        injector.stop()
        report.failures += repeated_tasks(history, sequential.runs, deaths.first_s)
        at_end(session, injector.injections)
        api.shutdown()
        begin_history()  # or its clock would keep the cluster
    report.failures += watch.found + silence.found + deaths.found
    return report


class Deadline:
    """Raises `Late` in a program that does not end within its bound after the last fault."""

    def __init__(self, session: Any, case: Case) -> None:
        last_s = max((step.at_s or 0.0 for step in case.plan.steps), default=0.0)
        self._clock = session.cluster.env
        self._bound_s = bound_s(case, session.cluster.config)
        self._end_s = self._clock.now + last_s + self._bound_s
        session.cluster.after_node_turn.append(self._check)

    def restart(self) -> None:
        """The driver asks for something that needs no longer after the program."""
        self._end_s = self._clock.now + self._bound_s

    def end(self) -> None:
        """The program has ended, or what was asked for is there."""
        self._end_s = inf

    def _check(self, node: int) -> None:
        if self._clock.now > self._end_s:
            raise invariants.Late(f"it has not ended after {self._bound_s:.1f} s without a fault")


def kind_of(error: Exception) -> Kind:
    """Return the kind of the finding that an error is which nothing explains."""
    if isinstance(error, invariants.Late):
        return Kind.LIVENESS
    # The simulator raises if nothing happens any more.
    return Kind.HANG if isinstance(error, RaySystemError) else Kind.ERROR


def _finish_plan(session: Any, injector: Any) -> None:
    """Wait for the rest of the plan, so that the invariants are checked after it."""
    while injector.next_due_s() is not None:
        api.sleep(0.1)
    _events(session)


def _wrong_keys() -> list[Finding]:
    return [
        Finding(Kind.KEYS, f"the history of {key.decode()} is not linearizable")
        for key in wrong_keys(history.keys)
    ]


def _wrong_timeline(case: Case, deaths: Deaths, session: Any) -> list[Finding]:
    """Return how the timeline of a cluster that has settled is wrong."""
    rows = session.query("timeline")
    dead = {node for node, _ in deaths.nodes}
    lossy = {node_of(row[2]) for row in _events(session) if row[1] == "worker_died"}
    if "timeline_ranges_max" in case.timers:
        lossy |= {*session.cluster.node_managers}
    return wrong_timeline(rows, history, dead, lossy)


def _oracle(case: Case, deaths: Deaths, session: Any, injections: list[Injection]) -> Oracle:
    events = _events(session)
    filled_s = [each.clock_s for each in injections if each.step.action == "disk_full"]
    return Oracle(
        history,
        deaths,
        died={row[2] for row in events if row[1] == "actor_died"},
        dead_workers={row[2] for row in events if row[1] == "worker_died"},
        disk_full_s=min(filled_s, default=inf),
        limits=case.timers,
    )


def _compare(
    report: Report,
    expected: Sequence[Any],
    outcomes: Sequence[Any],
    oracle: Oracle,
) -> None:
    report.outcomes += len(expected)
    if len(expected) != len(outcomes):
        text = f"{len(outcomes)} outcomes instead of {len(expected)}"
        report.failures.append(Finding(Kind.VALUE, text))
        return
    for number, (right, got) in enumerate(zip(expected, outcomes, strict=True)):
        if right == got:
            continue
        wrong = wrong_value(number, right, got)
        if wrong is not None:
            report.failures.append(wrong)
            continue
        unexpected = unexpected_of(got)
        judgements = [oracle.judge(each) for each in unexpected]
        objections = [
            (error, judgement.reason)
            for error, judgement in zip(unexpected, judgements, strict=True)
            if isinstance(judgement, Objection)
        ]
        for error, reason in objections:
            text = f"in place of value {number}: {reason}"
            report.failures.append(Finding(kind_of(error), text, type(error).__name__))
        if not objections:
            # The weakest explanation of a stream's errors counts.
            weakest = max((each for each in judgements if isinstance(each, Verdict)),
                          key=lambda verdict: verdict.value)  # fmt: skip
            report.verdicts[weakest] += 1


def raised(error: Exception) -> Finding:
    """Return an error that has ended a program."""
    kind, name = kind_of(error), type(error).__name__
    text = f"{name}: {' '.join(str(error).split())}"
    return Finding(Kind.RAISED if kind is Kind.ERROR else kind, text, name)


def unexpected_of(outcome: Any) -> list[Exception]:
    """Return the errors of an outcome that no program raises on purpose."""
    if isinstance(outcome, Items):
        return outcome.unexpected
    return [outcome] if is_unexpected(outcome) else []


def wrong_value(number: int, right: Any, got: Any) -> Finding | None:
    """Return how a value is wrong, None if it is right or an error is in its place."""
    errors = unexpected_of(got)
    if got == right or (errors and not (isinstance(got, Items) and not got.is_right(right))):
        return None
    return Finding(Kind.VALUE, f"{number} is {got!r} and not {right!r}")


def _events(session: Any) -> list[tuple[float, str, str, str, int]]:
    """Return the GCS's events once all of its processes run: its head may be restarting."""
    while True:
        try:
            if session.cluster.gcs_tables:
                return list(session.cluster.gcs.events.rows)
        except LookupError:
            api.sleep(0.1)
