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
OwnerDiedError     names an object that a worker owned which has died; or as above
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
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import raytwin.runtime.api as api
from raytwin.chaos.faults.attach import attach
from raytwin.chaos.faults.injector import Injection
from raytwin.chaos.fuzz.generate.bodies import Teller
from raytwin.chaos.fuzz.generate.cases import HEARTBEAT_TIMEOUT_S, STORE_BYTES, Case
from raytwin.chaos.fuzz.generate.groups import SLOT
from raytwin.chaos.fuzz.oracle import invariants
from raytwin.chaos.fuzz.oracle.ended import ARRAY_DIGITS, Ended, ended_here, times_again
from raytwin.chaos.fuzz.oracle.outcomes import Items, is_strange
from raytwin.chaos.fuzz.oracle.sequential import Sequential
from raytwin.chaos.fuzz.run.interpreter import run_body
from raytwin.chaos.fuzz.run.programs import (
    Api,
    actor_name,
    cancelled_here,
    forget,
    give_back_groups,
    owners_here,
    put_here,
    told_here,
)
from raytwin.runtime.api.exceptions import ObjectStoreFullError, RayError, RayTaskError
from raytwin.runtime.control.messages.errors import (
    ActorDeath,
    ActorUnavailable,
    Cancellation,
    DeathCause,
    Failure,
    FullCause,
    GroupRemoved,
    Loss,
    LossCause,
    StoreFull,
    Unmade,
    WorkerCrash,
)
from raytwin.simulator.cluster.sim_backend import connect

LIMIT_S = 300.0
"""Virtual seconds after which a program goes round in circles; most take two or three."""
KILLS = ("kill", "restart", "pause", "remove_node")
"""Actions that may take a running task along."""
NOT_ITS_OWN = ("replica", "head")
"""Targets that have no task to take along."""

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
    deaths = sum(row[1] == "node_died" for row in events)
    ended = {row[2] for row in events if row[1] == "actor_died"}
    workers = {row[2] for row in events if row[1] == "worker_died"}
    ownerless = {array for array, owners in owners_here.items() if owners & workers}
    for number, (right, got) in enumerate(zip(expected, outcomes, strict=True)):
        if right == got:
            continue
        strange = got.strange if isinstance(got, Items) else [got] if is_strange(got) else []
        if not strange or (isinstance(got, Items) and not got.is_right(right)):
            report.failures.append(f"value {number} is {got!r} and not {right!r}")
            continue
        small = report.case.store_bytes
        wrong = [
            excuse(
                each, kills, deaths, put_here, small, told_here, ended, cancelled_here, ownerless
            )
            for each in strange
        ]
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


def excuse(
    error: BaseException,
    kills: int,
    deaths: int,
    puts: Container[str] = frozenset(),
    store_bytes: int = STORE_BYTES,
    told: Mapping[str, Teller] = NONE_TOLD,
    ended: Container[str] = frozenset(),
    cancelled: Container[str] = frozenset(),
    ownerless: Container[str] = frozenset(),
) -> str:
    """Return why an error may not come after so many kills and deaths of nodes; "" if it may.

    In hexadecimal, `puts` are the objects that were put, and `told` has the actors whose
    calls made some; `ended` are the names of those that have died, `cancelled` those of
    tasks and calls that were; `ownerless` are the arrays whose owner, a worker, has died.
    """
    own = ended_here.then(error)
    within = own.is_within(error)
    while isinstance(error, RayTaskError) and error.cause is not None:
        error = error.cause
    failure = error.failure if isinstance(error, RayError) else None
    oracle = Oracle(
        own, within, kills, deaths, puts, store_bytes, told, ended, cancelled, ownerless
    )
    wrong = "the system did not say so" if failure is None else oracle.judge(failure)
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return f"{text} ({wrong})" if wrong else ""


@dataclass
class Oracle:
    """What has happened to a program, as `excuse` has it, and so which failures may come."""

    own: Ended
    within: bool
    """A placement group may have ended something where the failure was seen."""
    kills: int
    deaths: int
    puts: Container[str]
    store_bytes: int
    told: Mapping[str, Teller]
    ended: Container[str]
    cancelled: Container[str]
    ownerless: Container[str]

    def judge(self, failure: Failure) -> str:
        """Return why a failure may not come, "" if it may."""
        if isinstance(failure, StoreFull):
            small = self.store_bytes < STORE_BYTES and failure.cause is FullCause.IN_USE
            return "" if small else "there was room"
        if isinstance(failure, Cancellation):
            return "" if failure.task in self.cancelled else "it was not cancelled"
        if isinstance(failure, GroupRemoved):
            removed = failure.group in self.own.groups and self.within
            return "" if removed else "it was not removed"
        if isinstance(failure, ActorDeath):
            return self._judge_death(failure)
        if isinstance(failure, ActorUnavailable):
            teller = self.told.get(failure.call)
            actor = actor_name(teller) if teller is not None else failure.call
            return self._judge_ended(failure.call, actor)
        if isinstance(failure, WorkerCrash):
            return self._judge_task(failure.task)
        if isinstance(failure, Loss):
            return self._judge_loss(failure)
        return "nothing explains it"

    def _judge_death(self, death: ActorDeath) -> str:
        if death.cause in (DeathCause.KILLED, DeathCause.EXITED):
            return self.own.judge(death, self.kills)
        if death.cause in (DeathCause.WORKER_DIED, DeathCause.NODE_DIED):
            return self._judge_ended(death.name, death.name)
        if death.cause is DeathCause.STRAYED:
            teller = self.told.get(death.detail)
            may = teller is not None and not teller.exact and self.kills
            return "" if may else "its calls do the same every time"
        if death.cause is DeathCause.NOT_REBUILT and death.root is not None:
            return self.judge(death.root)
        return "nothing has ended it"

    def _judge_ended(self, name: str, actor: str) -> str:
        """Judge a failure whose subject, an actor or a call of it, may begin again so often."""
        if self.own.removed(actor):
            return ""
        return _too_few(self.kills + self.own.kills[actor], name)

    def _judge_task(self, name: str) -> str:
        return _too_few(self.kills, name) if name.startswith("k") else "it does not name its task"

    def _judge_loss(self, loss: Loss) -> str:
        if loss.unmade in (Unmade.INPUT_LOST, Unmade.NOT_YIELDED) and isinstance(loss.root, Loss):
            return self.judge(loss.root)
        array = loss.object.hex()[:ARRAY_DIGITS]
        if loss.cause is LossCause.OWNER_DIED and array in self.ownerless:
            return ""
        teller = self.told.get(loss.object.hex())
        if loss.cause is LossCause.EARLIER_RUN:
            return "" if teller is not None and self.kills else "no call was made again"
        if not self.deaths:
            return "no node died"
        if loss.unmade is Unmade.PUT and loss.object.hex() in self.puts:
            return ""
        if loss.unmade is Unmade.ACTOR_WENT_ON:
            if self._may_go_on(teller):
                return ""
            if teller is None or not isinstance(loss.root, ActorUnavailable):
                return "it is replayed"
            return self.judge(loss.root)
        return self._judge_task(loss.task)

    def _may_go_on(self, teller: Teller | None) -> bool:
        """Whether an actor may leave lost what its calls have made.

        One that starts again is told them all once more, and makes it again: unless it
        begins from a checkpoint, or has died for good, be it as the program has let go of it.
        """
        return teller is not None and (teller.interval > 0 or actor_name(teller) in self.ended)


def _too_few(kills: int, name: str) -> str:
    """Return why so many kills do not explain a failure of what may begin again so often."""
    most = times_again(name)
    return "" if 0 <= most < kills else f"there were {kills} kills"
