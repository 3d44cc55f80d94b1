"""Which errors of a random program are legitimate after the faults of a run.

A value of a random program is that of a sequential run, or an error that `excuse` accepts.
An error carries its failure as a struct, and `Oracle` judges the struct by its type and its
cause, never by its text:

==================== ===================================================================
WorkerCrash          names a task of r retries, and the plan made at least r + 1 kills
Loss                 a node died before, and one of these holds: the object was put
                     (`Unmade.PUT`); it needs a lost input (``INPUT_LOST``) or was to be
                     yielded by a task that does (``NOT_YIELDED``), and the root of the
                     failure is legitimate; an actor's call made it, and the actor takes
                     checkpoints or has died (``ACTOR_WENT_ON``); or the failure names a
                     task of r retries, as above.
                     Without the death of a node: the owner was a worker that has died
                     (`LossCause.OWNER_DIED`), or an earlier run of an actor's call made
                     the object (``EARLIER_RUN``)
ActorDeath           `DeathCause.WORKER_DIED`, ``NODE_DIED``: the actor has r restarts,
                     and at least r + 1 kills came before. ``KILLED``, ``EXITED``: the
                     program did that (`program_ends`). ``STRAYED``: the actor may fail
                     under faults. ``NOT_REBUILT``: the root failure is legitimate
ActorUnavailable     names a call of r retries, and at least r + 1 kills came before
GroupRemoved         names a placement group that the program has removed
StoreFull            `FullCause.IN_USE`, and the case has small stores
Cancellation         names a task or call that the program has cancelled
==================== ===================================================================

No fault may fail a call of an actor with restarts and retries without end whose inputs cannot
be lost. A lost result whose task has retries left is made again by lineage; a plan without the
death of a node loses nothing.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from raytwin.chaos.fuzz.oracle.program_ends import (
    ARRAY_DIGITS,
    ProgramEnds,
    program_ends,
    times_again,
)
from raytwin.chaos.fuzz.programs.program import Teller, actor_name
from raytwin.runtime.api.exceptions import RayError, RayTaskError
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

NONE_TOLD: Mapping[str, Teller] = {}


def excuse(
    error: BaseException,
    kills: int,
    deaths: int,
    puts: Container[str] = frozenset(),
    small_stores: bool = False,
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
    own = program_ends.then(error)
    within = own.is_within(error)
    while isinstance(error, RayTaskError) and error.cause is not None:
        error = error.cause
    failure = error.failure if isinstance(error, RayError) else None
    oracle = Oracle(
        own, within, kills, deaths, puts, small_stores, told, ended, cancelled, ownerless
    )
    wrong = "the system did not say so" if failure is None else oracle.judge(failure)
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return f"{text} ({wrong})" if wrong else ""


@dataclass
class Oracle:
    """What has happened to a program, as `excuse` has it, and so which failures may come."""

    own: ProgramEnds
    within: bool
    """A placement group may have ended something where the failure was seen."""
    kills: int
    deaths: int
    puts: Container[str]
    small_stores: bool
    told: Mapping[str, Teller]
    ended: Container[str]
    cancelled: Container[str]
    ownerless: Container[str]

    def judge(self, failure: Failure) -> str:
        """Return why a failure may not come, "" if it may."""
        if isinstance(failure, StoreFull):
            full = self.small_stores and failure.cause is FullCause.IN_USE
            return "" if full else "there was room"
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
