"""Decides which errors of a random program are legitimate after the faults of a run.

A value of a random program equals that of a sequential run, or is an error to which
`Oracle.objection_to` has none. An error carries its failure as a struct, and `Oracle` judges the
struct by its type and its cause, never by its text:

==================== ===================================================================
WorkerCrash          names a task of r retries, and the plan made at least r + 1 kills
Loss                 a node has died, and one of these holds: the object was put
                     (`Refusal.PUT`); its task lacks an input (``INPUT_LOST``), also as
                     the task of a stream (``NOT_YIELDED``), and the root of the
                     failure is legitimate; an actor's call made it, and the actor takes
                     checkpoints or has died (``ACTOR_WENT_ON``); or the failure names a
                     task of r retries, as above.
                     Without the death of a node: the owner was a worker that has died
                     (`LossCause.OWNER_DIED`), or an earlier run of an actor's call made
                     the object (``EARLIER_RUN``)
ActorDeath           `DeathCause.WORKER_DIED`, ``NODE_DIED``: the actor has r restarts,
                     and at least r + 1 kills came before, the program's included.
                     ``KILLED``: the program killed the actor for good, or r + 1 times.
                     ``EXITED``: the program has called `exit_actor`, and there were
                     kills: without them the actor answers all calls before.
                     ``REPLAY_DIVERGED``: the actor may fail under faults.
                     ``REPLAY_INPUT_FAILED``: the root failure is legitimate
ActorUnavailable     names a call of r retries, and at least r + 1 kills came before
GroupRemoved         names a task and its placement group, which the program has removed
StoreFull            `FullCause.IN_USE`, and the case has small stores
Cancellation         names a task or call that the program has cancelled
==================== ===================================================================

No fault may fail a call of an actor with restarts and retries without end whose inputs cannot
be lost. Lineage reconstructs a lost result whose task has retries left; a plan without the
death of a node loses nothing.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from raytwin.chaos.fuzz.oracle.history import ARRAY_DIGITS, End, History
from raytwin.chaos.fuzz.programs.program import ActorSpec, actor_name
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
    """Judges errors by the faults and the history of a run."""

    history: History
    kills: int = 0
    """The number of kills of nodes and workers by the plan."""
    deaths: int = 0
    """The number of deaths of nodes."""
    small_stores: bool = False
    died: Container[str] = frozenset()
    """Names of the actors that have died."""
    dead_workers: Container[str] = frozenset()

    def objection_to(self, error: BaseException) -> str:
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
                spec = self.history.actor_of.get(failure.call)
                actor = actor_name(spec) if spec is not None else failure.call
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
                spec = self.history.actor_of.get(death.detail)
                may = spec is not None and not spec.exact and self.kills
                return "" if may else "its calls do the same every time"
            case DeathCause.REPLAY_INPUT_FAILED if death.root is not None:
                return self._judge(death.root, ends)
        return "nothing has ended it"

    def _judge_ended(self, name: str, actor: str, ends: list[tuple[End, str]]) -> str:
        """Judge a failure that names an actor or its call, whose name ends with its retries."""
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
        spec = self.history.actor_of.get(lost)
        if loss.cause is LossCause.EARLIER_RUN:
            return "" if spec is not None and self.kills else "no call was made again"
        if not self.deaths:
            return "no node died"
        if loss.refusal is Refusal.PUT and lost in self.history.puts:
            return ""
        if loss.refusal is Refusal.ACTOR_WENT_ON:
            if self._may_go_on(spec):
                return ""
            if spec is None or not isinstance(loss.root, ActorUnavailable):
                return "it is replayed"
            return self._judge(loss.root, ends)
        return self._judge_task(loss.task)

    def _may_go_on(self, spec: ActorSpec | None) -> bool:
        """Whether an actor may not reconstruct the lost values of its calls.

        A restarted actor replays its calls and makes their values again, unless it begins from a
        checkpoint, or has died for good, for instance because the program has dropped it.
        """
        return spec is not None and (spec.interval > 0 or actor_name(spec) in self.died)


def _too_few(kills: int, name: str) -> str:
    """Return why `kills` do not explain the failure of a task or actor, whose name ends with its
    retries."""
    most = int(name.rpartition("r")[2])
    return "" if 0 <= most < kills else f"there were {kills} kills"
