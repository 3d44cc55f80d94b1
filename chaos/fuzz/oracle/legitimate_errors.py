"""Decides which errors of a random program are legitimate after the faults of a run.

A value of a random program is that of a sequential run, or an error that `excuse` accepts.
An error carries its failure as a struct, and `Oracle` judges the struct by its type and its
cause, never by its text:

==================== ===================================================================
WorkerCrash          names a task of r retries, and the plan made at least r + 1 kills
Loss                 a node died before, and one of these holds: the object was put
                     (`Refusal.PUT`); it needs a lost input (``INPUT_LOST``) or was to be
                     yielded by a task that does (``NOT_YIELDED``), and the root of the
                     failure is legitimate; an actor's call made it, and the actor takes
                     checkpoints or has died (``ACTOR_WENT_ON``); or the failure names a
                     task of r retries, as above.
                     Without the death of a node: the owner was a worker that has died
                     (`LossCause.OWNER_DIED`), or an earlier run of an actor's call made
                     the object (``EARLIER_RUN``)
ActorDeath           `DeathCause.WORKER_DIED`, ``NODE_DIED``: the actor has r restarts,
                     and at least r + 1 kills came before, the program's included.
                     ``KILLED``: the program killed the actor for good, or the same.
                     ``EXITED``: the actor was to leave, and there were kills: without
                     them all calls before the last are answered.
                     ``REPLAY_DIVERGED``: the actor may fail under faults.
                     ``REPLAY_INPUT_FAILED``: the root failure is legitimate
ActorUnavailable     names a call of r retries, and at least r + 1 kills came before
GroupRemoved         names a task and its placement group, which the program has removed
StoreFull            `FullCause.IN_USE`, and the case has small stores
Cancellation         names a task or call that the program has cancelled
==================== ===================================================================

No fault may fail a call of an actor with restarts and retries without end whose inputs cannot
be lost. A lost result whose task has retries left is made again by lineage; a plan without the
death of a node loses nothing.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from raytwin.chaos.fuzz.oracle.history import ARRAY_DIGITS, End, History
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
    Refusal,
    StoreFull,
    WorkerCrash,
)


@dataclass
class Oracle:
    """The faults and acts of a run, and the errors that these explain."""

    history: History
    kills: int = 0
    """The number of kills of nodes and workers by the plan."""
    deaths: int = 0
    """The number of deaths of nodes."""
    small_stores: bool = False
    died: Container[str] = frozenset()
    """Names of the actors that have died."""
    dead_workers: Container[str] = frozenset()

    def excuse(self, error: BaseException) -> str:
        """Return why an error is not legitimate, "" if it is."""
        ends = self.history.ends_before(error)
        while isinstance(error, RayTaskError) and error.cause is not None:
            error = error.cause
        failure = error.failure if isinstance(error, RayError) else None
        wrong = "the system did not say so" if failure is None else self._judge(failure, ends)
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return f"{text} ({wrong})" if wrong else ""

    def _judge(self, failure: Failure, ends: list[tuple[End, str]]) -> str:
        """Return why a failure is not legitimate, "" if it is."""
        match failure:
            case StoreFull():
                full = self.small_stores and failure.cause is FullCause.IN_USE
                return "" if full else "there was room"
            case Cancellation():
                cancelled = failure.task in self.history.cancelled
                return "" if cancelled else "it was not cancelled"
            case GroupRemoved():
                removed = (End.REMOVE, failure.group) in ends
                placed = self.history.placed.get(failure.name) == failure.group
                return "" if removed and placed else "it was not removed"
            case ActorDeath():
                return self._judge_death(failure, ends)
            case ActorUnavailable():
                teller = self.history.told.get(failure.call)
                actor = actor_name(teller) if teller is not None else failure.call
                return self._judge_ended(failure.call, actor, ends)
            case WorkerCrash():
                return self._judge_task(failure.task)
            case Loss():
                return self._judge_loss(failure, ends)
        return "nothing explains it"

    def _judge_death(self, death: ActorDeath, ends: list[tuple[End, str]]) -> str:
        name = death.name
        match death.cause:
            case DeathCause.KILLED:
                if (End.KILL_FOR_GOOD, name) in ends:
                    return ""
                if (End.KILL, name) not in ends:
                    return f"the program has not killed {name}"
                return self._judge_ended(name, name, ends)
            case DeathCause.EXITED:
                may = (End.LEAVE, name) in ends and self.kills
                return "" if may else "calls before the last one are answered"
            case DeathCause.WORKER_DIED | DeathCause.NODE_DIED:
                return self._judge_ended(name, name, ends)
            case DeathCause.REPLAY_DIVERGED:
                teller = self.history.told.get(death.detail)
                may = teller is not None and not teller.exact and self.kills
                return "" if may else "its calls do the same every time"
            case DeathCause.REPLAY_INPUT_FAILED if death.root is not None:
                return self._judge(death.root, ends)
        return "nothing has ended it"

    def _judge_ended(self, name: str, actor: str, ends: list[tuple[End, str]]) -> str:
        """Judge a failure that names an actor or its call, which may begin again so often."""
        if (End.REMOVE, self.history.placed.get(actor)) in ends:
            return ""
        return _too_few(self.kills + ends.count((End.KILL, actor)), name)

    def _judge_task(self, name: str) -> str:
        return _too_few(self.kills, name) if name.startswith("k") else "it does not name its task"

    def _judge_loss(self, loss: Loss, ends: list[tuple[End, str]]) -> str:
        if loss.refusal in (Refusal.INPUT_LOST, Refusal.NOT_YIELDED) and isinstance(
            loss.root, Loss
        ):
            return self._judge(loss.root, ends)
        lost = loss.object.hex()
        owners = self.history.owners.get(lost[:ARRAY_DIGITS], ())
        if loss.cause is LossCause.OWNER_DIED and any(o in self.dead_workers for o in owners):
            return ""
        teller = self.history.told.get(lost)
        if loss.cause is LossCause.EARLIER_RUN:
            return "" if teller is not None and self.kills else "no call was made again"
        if not self.deaths:
            return "no node died"
        if loss.refusal is Refusal.PUT and lost in self.history.puts:
            return ""
        if loss.refusal is Refusal.ACTOR_WENT_ON:
            if self._may_go_on(teller):
                return ""
            if teller is None or not isinstance(loss.root, ActorUnavailable):
                return "it is replayed"
            return self._judge(loss.root, ends)
        return self._judge_task(loss.task)

    def _may_go_on(self, teller: Teller | None) -> bool:
        """Whether an actor may leave lost what its calls have made.

        A restarted actor replays its calls and makes their values again, unless it begins from a
        checkpoint, or has died for good, be it because the program dropped it.
        """
        return teller is not None and (teller.interval > 0 or actor_name(teller) in self.died)


def _too_few(kills: int, name: str) -> str:
    """Return why so many kills do not explain the failure of a task or actor with so many
    retries."""
    most = int(name.rpartition("r")[2])
    return "" if 0 <= most < kills else f"there were {kills} kills"
