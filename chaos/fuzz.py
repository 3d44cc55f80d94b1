"""Recovery fuzz: random programs under random fault plans, in virtual time.

One seed draws a cluster, a program (`programs`) and a plan (`cases`), and is one execution:
run again it does the same, down to the last message. Held against it:

- every value is that of a sequential run, or an error that is *legitimate*;
- the program ends: a cluster in which nothing happens any more raises;
- the invariants of `invariants`, at every turn and at the end.

Which errors are legitimate (see `excuse`):

================== ==============================================================
WorkerCrashedError names a task of r retries, and at least r + 1 kills came before
ObjectLostError    a node had died before, and what is lost was put, and says so (it may
                   be the input of a task that is to be run again, and released since),
                   or an actor's call made it, and says so, or names a task of r retries
                   as above;
                   or it needs, or was to be yielded by a task that needs, what is
                   lost for one of these reasons, and says so
                   or a call made it whose actor takes checkpoints, or has died (for which
                   the program may have let go of it), and says so, or which has yielded it
                   and then ended in a legitimate ActorUnavailableError, and says so
                   or it is a call's that a task has made, and let go of, and made again when
                   it ran once more, and says so
ActorDiedError     names an actor of r restarts, and at least r + 1 kills came before,
                   or one that cannot be rebuilt, as an input of a call is lost, or what
                   a call needs has failed, which of actors without end it may not
ActorUnavailableError names a call of r retries, likewise
ObjectStoreFullError the stores of the case are small, and all of one was in use
TaskCancelledError names what the program has cancelled
================== ==============================================================

No fault may fail a call of an actor with restarts and retries without end whose
inputs cannot be lost, and its value is the fold of all calls before.

A lost result whose task has retries left is made again, by lineage; under plans
without the death of a node nothing is lost at all.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import runtime.api as api
from chaos import invariants
from chaos.attach import attach
from chaos.bodies import Teller
from chaos.cases import HEARTBEAT_TIMEOUT_S, STORE_BYTES, Case
from chaos.ended import ended_here
from chaos.groups import SLOT
from chaos.injector import Injection
from chaos.interpreter import run_body
from chaos.outcomes import Items, is_strange
from chaos.programs import (
    Api,
    actor_name,
    cancelled_here,
    forget,
    give_back_groups,
    put_here,
    told_here,
)
from chaos.sequential import Sequential
from runtime.api.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ObjectLostError,
    ObjectStoreFullError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)
from simulator.backend import connect

LIMIT_S = 300.0
"""Virtual seconds after which a program goes round in circles; most take two or three."""
KILLS = ("kill", "restart", "pause", "remove_node")
"""Actions that may take a running task along."""
NOT_ITS_OWN = ("replica", "head")
"""Targets that have no task to take along."""

_OBJECT = re.compile(r"\bobject ([0-9a-f]{36}) is lost")
_CAUSE = re.compile(
    r" (?:has not yielded it again|needs an input that is lost):"
    r" (?:ObjectLost|OwnerDied)Error: (.+)",
    re.S,
)
_NOT_BY_TASK = re.compile(r"\bit was put, and |\ban actor made it, and ")
_STRAYED = re.compile(r"(t\d+r-?\d+) raised when it was repeated")
_LET_GO = re.compile(
    r"\bit was made for an earlier run of its caller, which has let go of it, and "
)
_GONE_ON = re.compile(
    r"\bthe actor that made it has gone on since(?:$|: (?:ActorUnavailableError: (.+))?)", re.S
)
_TASK = re.compile(r"\bk\d+r(-?\d+)\b")
_CANCELLED = re.compile(r": ([kt]\d+r-?\d+) was cancelled")
_ACTOR = re.compile(r"ActorDiedError: (a\d+r(-?\d+)) died: ")
_CALL = re.compile(r"ActorUnavailableError: (t\d+r(-?\d+)): ")


NONE_TOLD: Mapping[str, Teller] = {}


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
            wrong = excuse(error, 0, 0, store_bytes=case.store_bytes)
            report.failures += [wrong] if wrong else []
            report.excused += not wrong
            give_back_groups()
        else:
            _compare(report, expected, outcomes, injector.injections, session)
            del outcomes
        report.faults = len(injector.injections)
        if session._dropped or gc.isenabled():
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
    deaths = sum(row[1] == "node_died" for row in events)
    ended = {row[2] for row in events if row[1] == "actor_died"}
    for number, (right, got) in enumerate(zip(expected, outcomes, strict=True)):
        if right == got:
            continue
        strange = got.strange if isinstance(got, Items) else [got] if is_strange(got) else []
        if not strange or (isinstance(got, Items) and not got.is_right(right)):
            report.failures.append(f"value {number} is {got!r} and not {right!r}")
            continue
        small = report.case.store_bytes
        wrong = [
            excuse(each, kills, deaths, put_here, small, told_here, ended, cancelled_here)
            for each in strange
        ]
        report.failures += [f"value {number}: {line}" for line in wrong if line]
        report.excused += not any(wrong)


def _events(session: Any) -> list[tuple[float, str, str, str, int]]:
    """Return the GCS's events, as soon as all of it can be asked: its head may be away."""
    while True:
        try:
            if session.cluster.gcs_tables:
                return list(session.cluster.gcs.events)
        except LookupError:
            api.sleep(0.1)


def excuse(
    error: BaseException,
    kills: int,
    deaths: int,
    puts: Container[str] = frozenset(),
    store_bytes: int = STORE_BYTES,
    told: Mapping[str, Teller] = NONE_TOLD,
    ended: Container[str] = frozenset(),
    cancelled: Container[str] = frozenset(),
) -> str:
    """Return why an error may not come after so many kills and deaths of nodes; "" if it may.

    In hexadecimal, `puts` are the objects that were put, and `told` has the actors whose
    calls made some; `ended` are the names of those that have died, `cancelled` those of
    tasks and calls that were.
    """
    own = ended_here.then(error)
    within = own.is_within(error)
    while isinstance(error, RayTaskError) and error.cause is not None:
        error = error.cause
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if isinstance(error, ObjectStoreFullError) and store_bytes < STORE_BYTES and "in use" in text:
        return ""
    if isinstance(error, TaskCancelledError):
        named = _CANCELLED.search(text)
        return "" if named is not None and named[1] in cancelled else text
    judged = own.judge(error, text, kills, within)
    if judged is not None:
        return judged
    for pattern in (_ACTOR, _CALL):
        found = pattern.match(str(error)) or pattern.match(text)
        if found is not None:
            most = int(found[2])
            teller = told.get(found[1])
            name = actor_name(teller) if teller is not None else found[1]
            kills += own.kills[name]
            if own.removed(name):
                return ""
            return f"{text} (there were {kills} kills)" if most < 0 or kills <= most else ""
    if isinstance(error, ActorDiedError) and "it cannot be rebuilt: " in text:
        cause = text.partition("it cannot be rebuilt: ")[2]
        strayed = _STRAYED.match(cause)
        if strayed is not None:
            teller = told.get(strayed[1])
            return "" if teller is not None and not teller.exact and kills else text
        kind = ObjectStoreFullError if "ObjectStoreFullError: " in cause else ObjectLostError
        return excuse(kind(cause), kills, deaths, puts, store_bytes, told, ended)
    if not isinstance(error, WorkerCrashedError | ObjectLostError):
        return text
    if isinstance(error, ObjectLostError):
        # What needs a lost input, or was to be yielded by what does, names the cause.
        blamed = _CAUSE.search(str(error))
        if blamed is not None:
            return excuse(ObjectLostError(blamed[1]), kills, deaths, puts, store_bytes, told, ended)
        lost = _OBJECT.search(str(error))
        if lost is not None and _LET_GO.search(str(error)):
            return "" if lost[1] in told and kills else text
        if not deaths:
            return f"{text} (no node died)"
        if lost is not None and lost[1] in puts and _NOT_BY_TASK.search(str(error)):
            return ""
        gone_on = _GONE_ON.search(str(error)) if lost is not None else None
        if lost is not None and gone_on is not None:
            teller = told.get(lost[1])
            if _may_go_on(teller, ended):
                return ""
            if teller is None or gone_on[1] is None:
                return f"{text} (it is replayed)"
            return excuse(ActorUnavailableError(gone_on[1]), kills, deaths, told=told)
    named = _TASK.search(str(error))
    if named is None:
        return f"{text} (it does not name its task)"
    retries = int(named[1])
    return f"{text} (there were {kills} kills)" if retries < 0 or kills <= retries else ""


def _may_go_on(teller: Teller | None, ended: Container[str]) -> bool:
    """Whether an actor may leave lost what its calls have made.

    One that starts again is told them all once more, and makes it again: unless it
    begins from a checkpoint, or has died for good, be it as the program has let go of it.
    """
    return teller is not None and (teller.interval > 0 or actor_name(teller) in ended)
