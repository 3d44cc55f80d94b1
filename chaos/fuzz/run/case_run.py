"""One case of the fuzz: a random program under a random fault plan, in virtual time.

A seed decides a case (`generate.cases`): a cluster, a program and a plan. `run_case` executes
it on `sim`; a second run of the case repeats the first to the last message. `run_case` checks
three properties:

- every value is that of a sequential run (`oracle.sequential`), or an error that
  `oracle.legitimate_errors` accepts;
- the program ends: the simulator raises in a cluster without further events, and a check
  raises in one that is busy after `LIMIT_S`;
- the invariants of `oracle.invariants` hold, at every turn of a node and at the end.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import raytwin.runtime.api as api
from raytwin.chaos.faults.injector import Injection, attach
from raytwin.chaos.fuzz.generate.cases import HEARTBEAT_TIMEOUT_S, STORE_BYTES, Case
from raytwin.chaos.fuzz.oracle import invariants
from raytwin.chaos.fuzz.oracle.history import begin_history, history
from raytwin.chaos.fuzz.oracle.legitimate_errors import Oracle
from raytwin.chaos.fuzz.oracle.sequential import Sequential
from raytwin.chaos.fuzz.programs.interpreter import run_body
from raytwin.chaos.fuzz.programs.outcomes import Items, is_unexpected
from raytwin.chaos.fuzz.programs.program import SLOT
from raytwin.chaos.fuzz.run.api_engine import Api, begin_program, remove_groups
from raytwin.runtime.api.exceptions import ObjectStoreFullError
from raytwin.simulator.cluster.sim_backend import connect

LIMIT_S = 300.0
"""The most virtual seconds of a program; most take two or three."""
KILLS = ("kill", "restart", "pause", "remove_node")
"""Actions that may end a running task."""
WITHOUT_TASKS = ("replica", "head")
"""Targets that run no tasks."""


@dataclass
class Report:
    """The result of a case."""

    case: Case
    failures: list[str] = field(default_factory=list)
    """One line for each violation."""
    tasks: int = 0
    faults: int = 0
    excused: int = 0
    """The number of values that were replaced by a legitimate error."""


def run_case(
    case: Case, prepare: Callable[[Any], None] = lambda session: None, **options: Any
) -> Report:
    """Run a case on `sim` and check all properties.

    `options` override the session's options. `prepare` gets the session before the program
    begins.
    """
    report = Report(case, tasks=case.program.tasks)
    expected = run_body(Sequential(), case.program)
    begin_history()
    begin_program()
    session: Any = connect(
        nodes=case.nodes,
        cpus_per_node=case.cpus,
        seed=case.seed,
        heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S,
        direct_after=case.direct_after,
        more_resources={SLOT: case.slots} if case.slots else None,
        **{"object_store_memory": case.store_bytes, **case.gcs, **options},
    )
    prepare(session)
    watch = invariants.Watch(session.cluster)
    session.cluster.after_node_turn.append(lambda _: _check_time(session))
    injector = attach(session, case.plan)
    try:
        try:
            outcomes = run_body(Api(driver=True), case.program)
        except ObjectStoreFullError as error:
            # The driver's own put has failed, and its program ends there.
            oracle = Oracle(history, small_stores=case.store_bytes < STORE_BYTES)
            wrong = oracle.objection_to(error)
            report.failures += [wrong] if wrong else []
            report.excused += not wrong
            remove_groups()
        else:
            _compare(report, expected, outcomes, injector.injections, session)
            del outcomes
        report.faults = len(injector.injections)
        if session.references.dropped or gc.isenabled():
            gc.collect(0)
        _finish_plan(session, injector)
        report.failures += invariants.settled(lambda: invariants.at_end(session), api.sleep)
    except Exception as error:
        line = " ".join(str(error).split())
        report.failures.append(f"{type(error).__name__}: {line}")
    finally:
        injector.stop()
        api.shutdown()
    report.failures += watch.found
    return report


def _check_time(session: Any) -> None:
    if session.now() > LIMIT_S:
        raise invariants.Violation(f"it has not ended after {LIMIT_S:g} virtual seconds")


def _finish_plan(session: Any, injector: Any) -> None:
    """Wait for the rest of the plan, so that the invariants are checked after it."""
    while injector.next_due_s() is not None:
        api.sleep(0.1)
    _events(session)


def _compare(
    report: Report,
    expected: Sequence[Any],
    outcomes: Sequence[Any],
    injections: Sequence[Injection],
    session: Any,
) -> None:
    if len(expected) != len(outcomes):
        report.failures.append(f"{len(outcomes)} outcomes instead of {len(expected)}")
        return
    kills = sum(
        each.step.action in KILLS and each.step.target.kind not in WITHOUT_TASKS and not each.error
        for each in injections
    )
    events = _events(session)
    oracle = Oracle(
        history,
        kills,
        deaths=sum(row[1] == "node_died" for row in events),
        small_stores=report.case.store_bytes < STORE_BYTES,
        died={row[2] for row in events if row[1] == "actor_died"},
        dead_workers={row[2] for row in events if row[1] == "worker_died"},
    )
    for number, (right, got) in enumerate(zip(expected, outcomes, strict=True)):
        if right == got:
            continue
        unexpected = (
            got.unexpected if isinstance(got, Items) else [got] if is_unexpected(got) else []
        )
        if not unexpected or (isinstance(got, Items) and not got.is_right(right)):
            report.failures.append(f"value {number} is {got!r} and not {right!r}")
            continue
        wrong = [oracle.objection_to(each) for each in unexpected]
        report.failures += [f"value {number}: {line}" for line in wrong if line]
        report.excused += not any(wrong)


def _events(session: Any) -> list[tuple[float, str, str, str, int]]:
    """Return the GCS's events once all of its processes run: its head may be restarting."""
    while True:
        try:
            if session.cluster.gcs_tables:
                return list(session.cluster.gcs.events.rows)
        except LookupError:
            api.sleep(0.1)
