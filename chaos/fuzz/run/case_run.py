"""One case of the fuzz: a random program under a random fault plan, in virtual time.

One seed draws a case (`generate.cases`): a cluster, a program and a plan. `run_case` is one
execution of it on `sim`; a second run of the case repeats the first to the last message. The
run is checked for three things:

- every value is that of a sequential run (`oracle.sequential`), or an error that
  `oracle.legitimate_errors` accepts;
- the program ends: a cluster in which nothing happens any more raises, and so does one that
  is busy after `LIMIT_S`;
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
from raytwin.chaos.fuzz.oracle.history import forget, history
from raytwin.chaos.fuzz.oracle.legitimate_errors import Oracle
from raytwin.chaos.fuzz.oracle.sequential import Sequential
from raytwin.chaos.fuzz.programs.interpreter import run_body
from raytwin.chaos.fuzz.programs.outcomes import Items, is_strange
from raytwin.chaos.fuzz.programs.program import SLOT
from raytwin.chaos.fuzz.run.api_engine import Api, begin_program, give_back_groups
from raytwin.runtime.api.exceptions import ObjectStoreFullError
from raytwin.simulator.cluster.sim_backend import connect

LIMIT_S = 300.0
"""Virtual seconds after which a program goes round in circles; most take two or three."""
KILLS = ("kill", "restart", "pause", "remove_node")
"""Actions that may take a running task along."""
NOT_ITS_OWN = ("replica", "head")
"""Targets that have no task to take along."""


@dataclass
class Report:
    """What became of a case."""

    case: Case
    failures: list[str] = field(default_factory=list)
    """One line each; none: all held."""
    tasks: int = 0
    faults: int = 0
    excused: int = 0
    """Values that a legitimate error came instead of."""


def run_case(
    case: Case, prepare: Callable[[Any], None] = lambda session: None, **options: Any
) -> Report:
    """Run a case on `sim` and hold it against everything.

    `options` are further ones of the session, in place of the case's own, which
    `prepare` is given before the program begins.
    """
    report = Report(case, tasks=case.program.tasks)
    expected = run_body(Sequential(), case.program)
    forget()
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
            # What the driver itself puts is no task's value: its program ends there.
            oracle = Oracle(history, small_stores=case.store_bytes < STORE_BYTES)
            wrong = oracle.excuse(error)
            report.failures += [wrong] if wrong else []
            report.excused += not wrong
            give_back_groups()
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
    """Let the rest of the plan happen: what is left behind is looked at after it."""
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
        each.step.action in KILLS and each.step.target.kind not in NOT_ITS_OWN and not each.error
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
        strange = got.strange if isinstance(got, Items) else [got] if is_strange(got) else []
        if not strange or (isinstance(got, Items) and not got.is_right(right)):
            report.failures.append(f"value {number} is {got!r} and not {right!r}")
            continue
        wrong = [oracle.excuse(each) for each in strange]
        report.failures += [f"value {number}: {line}" for line in wrong if line]
        report.excused += not any(wrong)


def _events(session: Any) -> list[tuple[float, str, str, str, int]]:
    """Return the GCS's events, as soon as all of it can be asked: its head may be away."""
    while True:
        try:
            if session.cluster.gcs_tables:
                return list(session.cluster.gcs.events.rows)
        except LookupError:
            api.sleep(0.1)
