"""Decides which errors of a random program are legitimate after the faults of a run.

A value of a random program equals that of a sequential run, or is an error to which
`Oracle.judge` has no objection. An error carries its failure as a struct, and `Oracle` judges the
struct by its type and its cause, never by its text:

==================== ===================================================================
WorkerCrash          names a task of r retries, of which it was seen to have none left, and
                     at least r + 1 deaths hit it
Loss                 a node has died, and one of these holds: the object was put
                     (`Refusal.PUT`); its task lacks an input (``INPUT_LOST``), also as
                     the task of a stream (``NOT_YIELDED``), and the root of the
                     failure is legitimate; an actor's call made it, and the actor takes
                     checkpoints or has died (``ACTOR_WENT_ON``); its owner has released it,
                     and its task has no retries (what descends from it is lost); or the
                     failure names a task of r retries, as above, and is excused if r
                     deaths hit it and it has none left; or the GCS has no
                     record of the task (``NO_RECORD``), and the case limits its lineage;
                     or the owner was a client of that node (`LossCause.OWNER_DIED`,
                     or ``RELEASED`` if the GCS had not heard of the object before).
                     Without the death of a node: the owner was a worker that has died,
                     or an earlier run of an actor's call made the object
                     (``EARLIER_RUN``)
ActorDeath           `DeathCause.WORKER_DIED`, ``NODE_DIED``: the actor has r restarts,
                     and at least r + 1 deaths hit it, the program's kills included.
                     ``KILLED``: the program killed the actor for good, or it killed it and
                     the same holds.
                     ``EXITED``: the program has called `exit_actor`, and a death hit the
                     actor: else it answers all calls before.
                     ``REPLAY_DIVERGED``: the actor may fail under faults.
                     ``REPLAY_INPUT_FAILED``: the root failure is legitimate.
                     An actor whose log of calls outgrew the limit of the case: a death hit it
ActorUnavailable     names a call of r retries, and at least r + 1 deaths hit its actor
GroupRemoved         names a task and its placement group, which the program has removed
Cancellation         names a task or call that the program has cancelled
StoreFull            the plan has filled the disk of a node
Unschedulable        names a task for one node alone, which has died, or which there never is
==================== ===================================================================

`deaths` says which deaths hit a task or actor. `Verdict` tells errors that one certain death or
operation of the program explains from those that are *excused*: the oracle knows that there were
faults, and not that they hit just this value. Too many excuses would hide defects, so a campaign
counts them.

No fault may fail a call of an actor with restarts and retries without end whose inputs cannot
be lost. Lineage reconstructs a lost result whose task has retries left; a plan without the
death of a node loses nothing.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Protocol

from raytwin.chaos.fuzz.oracle.deaths import retries_of
from raytwin.chaos.fuzz.oracle.history import ARRAY_DIGITS, End, History
from raytwin.chaos.fuzz.programs.program import ActorSpec, actor_name
from raytwin.runtime.api.exceptions import RayError, RayTaskError
from raytwin.runtime.control.core.addresses import incarnation_of, node_of
from raytwin.runtime.control.messages.errors import (
    ActorDeath,
    ActorUnavailable,
    Cancellation,
    DeathCause,
    Failure,
    GroupRemoved,
    Loss,
    LossCause,
    Refusal,
    StoreFull,
    Unschedulable,
    WorkerCrash,
)


class Verdict(Enum):
    """The explanation of an error."""

    OWN = auto()
    """The program itself has cancelled, killed or removed what it waits for."""
    CHARGED = auto()
    """Deaths that hit just this task, actor or object."""
    EXCUSED = auto()
    """There were faults that may have caused it."""


@dataclass(frozen=True)
class Objection:
    """Why an error is not legitimate."""

    reason: str


class Charges(Protocol):
    """Which deaths hit which task or actor; see `deaths.Deaths`."""

    @property
    def nodes(self) -> Mapping[tuple[int, int], float]:
        """{(node, incarnation): time of its death}"""

    @property
    def total(self) -> int:
        """The number of deaths so far."""

    def hits(self, name: str, before_s: float = ...) -> int:
        """Return the most deaths before a time that hit one element of that name."""

    def left(self, name: str) -> int:
        """Return the fewest retries that an element of that name was seen to have left."""


Judgement = Verdict | Objection


@dataclass
class Oracle:
    """Judges errors by the deaths and the history of a run."""

    history: History
    deaths: Charges
    died: Container[str] = frozenset()
    """Names of the actors that have died."""
    dead_workers: Container[str] = frozenset()
    disk_full_s: float = inf
    """When the plan first filled a disk."""
    limits: Container[str] = frozenset()
    """The settings of the control plane that the case makes smaller than usual."""

    def judge(self, error: BaseException) -> Judgement:
        """Return what explains an error, or why nothing does."""
        ends = self.history.ends_before(error)
        seen_s = error.__dict__.get("seen_s", inf)
        name = type(error).__name__
        while isinstance(error, RayTaskError) and error.cause is not None:
            error = error.cause
        # The cause alone: a traceback names files of the machine that ran the case.
        text = f"{name}: {' '.join(str(error).split())[:300]}"
        failure = error.failure if isinstance(error, RayError) else None
        if failure is None:
            return Objection(f"{text} (the system did not say so)")
        judgement = self._judge(failure, ends, seen_s)
        if isinstance(judgement, Objection):
            return Objection(f"{text} ({judgement.reason})")
        return judgement

    def _judge(self, failure: Failure, ends: list[tuple[End, str]], seen_s: float) -> Judgement:
        match failure:
            case Cancellation():
                own = failure.task in self.history.cancelled
                return Verdict.OWN if own else Objection("it was not cancelled")
            case GroupRemoved():
                removed = (End.REMOVE, failure.group) in ends
                placed = self.history.placed.get(failure.name) == failure.group
                return Verdict.OWN if removed and placed else Objection("it was not removed")
            case ActorDeath():
                return self._judge_death(failure, ends, seen_s)
            case ActorUnavailable():
                spec = self.history.actor_of.get(failure.call)
                if spec is None:
                    return Objection("it does not name its call")
                return self._judge_ended(failure.call, actor_name(spec), ends, seen_s)
            case WorkerCrash():
                return self._judge_task(failure.task, seen_s)
            case Loss():
                return self._judge_loss(failure, ends, seen_s)
            case StoreFull():
                full = self.disk_full_s <= seen_s
                return Verdict.EXCUSED if full else Objection("no disk was full")
            case Unschedulable():
                return self._judge_unschedulable(failure, seen_s)
        return Objection("nothing explains it")

    def _judge_unschedulable(self, failure: Unschedulable, seen_s: float) -> Judgement:
        only = self.history.pinned.get(failure.name)
        if only == -1:
            return Verdict.OWN
        if any(node == only and at_s <= seen_s for (node, _), at_s in self.deaths.nodes.items()):
            return Verdict.CHARGED
        return Objection("a node can run it")

    def _judge_death(
        self, death: ActorDeath, ends: list[tuple[End, str]], seen_s: float
    ) -> Judgement:
        name = death.name
        if death.outgrown:
            limited = "actor_log_bytes_max" in self.limits and self._deaths_of(name, ends, seen_s)
            return Verdict.CHARGED if limited else Objection("its log has not outgrown its limit")
        match death.cause:
            case DeathCause.KILLED:
                if (End.KILL_FOR_GOOD, name) in ends:
                    return Verdict.OWN
                if (End.KILL, name) not in ends:
                    return Objection(f"the program has not killed {name}")
                return self._judge_ended(name, name, ends, seen_s)
            case DeathCause.EXITED:
                if (End.LEAVE, name) in ends and self.deaths.hits(name, seen_s):
                    return Verdict.CHARGED
                return Objection("calls before the last one are answered")
            case DeathCause.WORKER_DIED | DeathCause.NODE_DIED:
                return self._judge_ended(name, name, ends, seen_s)
            case DeathCause.REPLAY_DIVERGED:
                spec = self.history.actor_of.get(death.detail)
                if spec is not None and not spec.exact and self.deaths.hits(name, seen_s):
                    return Verdict.CHARGED
                return Objection("its calls do the same every time")
            case DeathCause.REPLAY_INPUT_FAILED if death.root is not None:
                return self._judge(death.root, ends, seen_s)
        return Objection("nothing has ended it")

    def _judge_ended(
        self, name: str, actor: str, ends: list[tuple[End, str]], seen_s: float
    ) -> Judgement:
        """Judge a failure that names an actor or its call, whose name ends with its retries."""
        if (End.REMOVE, self.history.placed.get(actor)) in ends:
            return Verdict.OWN
        return _charge(self._deaths_of(actor, ends, seen_s), name)

    def _deaths_of(self, actor: str, ends: list[tuple[End, str]], seen_s: float) -> int:
        return ends.count((End.KILL, actor)) + self.deaths.hits(actor, seen_s)

    def _judge_task(self, name: str, seen_s: float) -> Judgement:
        if not name.startswith("k"):
            return Objection("it does not name its task")
        if left := self.deaths.left(name):
            return Objection(f"it has {left} retries left")
        return _charge(self.deaths.hits(name, seen_s), name)

    def _judge_loss(self, loss: Loss, ends: list[tuple[End, str]], seen_s: float) -> Judgement:
        if loss.refusal in (Refusal.INPUT_LOST, Refusal.NOT_YIELDED) and isinstance(
            loss.root, Loss
        ):
            return self._judge(loss.root, ends, seen_s)
        lost = loss.object.hex()
        owners = self.history.owners.get(lost[:ARRAY_DIGITS], ())
        if loss.cause is LossCause.OWNER_DIED and any(self._died(o, seen_s) for o in owners):
            return Verdict.CHARGED
        if loss.cause is LossCause.RELEASED and any(self._node_died(o, seen_s) for o in owners):
            # Nothing but its owner's node knew of the object.
            return Verdict.CHARGED
        spec = self.history.actor_of.get(lost)
        if loss.cause is LossCause.EARLIER_RUN:
            if spec is not None and self.deaths.total:
                return Verdict.EXCUSED
            return Objection("no call was made again")
        dead = {node for (node, _), at_s in self.deaths.nodes.items() if at_s <= seen_s}
        if not dead:
            return Objection("no node died")
        if loss.refusal is Refusal.PUT and lost in self.history.puts:
            return Verdict.CHARGED if loss.node in dead else Verdict.EXCUSED
        if loss.refusal is Refusal.ACTOR_WENT_ON:
            if self._may_go_on(spec):
                return Verdict.CHARGED if loss.node in dead else Verdict.EXCUSED
            if spec is None or not isinstance(loss.root, ActorUnavailable):
                return Objection("it is replayed")
            return self._judge(loss.root, ends, seen_s)
        if loss.refusal is Refusal.NO_RECORD and "lineage_bytes_max" in self.limits:
            return Verdict.CHARGED if loss.node in dead else Verdict.EXCUSED
        if loss.cause is LossCause.FREED and loss.task.endswith("r0"):
            # The task cannot run again. The oracle does not know which of its descendants a dead
            # node had.
            return Verdict.EXCUSED
        judgement = self._judge_task(loss.task, seen_s)
        if isinstance(judgement, Objection) and self._is_spent(loss.task, seen_s):
            # Its last run may have failed before it made this object, as a stream does.
            return Verdict.EXCUSED
        return judgement

    def _is_spent(self, task: str, seen_s: float) -> bool:
        """Whether a task has no retry left, each of which a death has cost."""
        if not task.startswith("k") or self.deaths.left(task):
            return False
        return self.deaths.hits(task, seen_s) == retries_of(task)

    def _died(self, owner: str, seen_s: float) -> bool:
        """Whether a worker or driver has died, alone or with its node."""
        return owner in self.dead_workers or self._node_died(owner, seen_s)

    def _node_died(self, owner: str, seen_s: float) -> bool:
        """Whether a worker or driver has died with its node."""
        died_s = self.deaths.nodes.get((node_of(owner), incarnation_of(owner)))
        return died_s is not None and died_s <= seen_s

    def _may_go_on(self, spec: ActorSpec | None) -> bool:
        """Whether an actor may not reconstruct the lost values of its calls.

        A restarted actor replays its calls and makes their values again, unless it begins from a
        checkpoint, or has died for good, for instance because the program has dropped it.
        """
        return spec is not None and (spec.interval > 0 or actor_name(spec) in self.died)


def _charge(deaths: int, name: str) -> Judgement:
    """Judge the failure of a task or actor, whose name ends with its retries, after so many deaths
    hit it."""
    most = retries_of(name)
    return Verdict.CHARGED if 0 <= most < deaths else Objection(f"{deaths} deaths hit it")
