"""One incarnation of an actor on its node, and the calls that wait for it."""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import Enum

from msgspec.structs import replace

from raytwin.runtime.control.actors.reply_cache import ReplyBudget, ReplyCache
from raytwin.runtime.control.core.call_batches import is_run, singles
from raytwin.runtime.control.core.context import Timer
from raytwin.runtime.control.core.worker_record import Worker
from raytwin.runtime.control.messages import (
    ActorInfo,
    Assignment,
    CallRecord,
    ObjectValue,
    RangeResult,
    RestoreActor,
    TaskSpec,
    Timing,
)
from raytwin.runtime.control.messages.errors import ActorDeath


class ActorState(Enum):
    """Where an actor is in its life; `ActorManager` has the transitions."""

    WAITING = "waiting"
    QUEUED = "queued"
    CREATING = "creating"
    RESTORING = "restoring"
    ALIVE = "alive"


class QueuedCall:
    """A call that waits for its inputs or for its turn."""

    __slots__ = ("caller", "failed", "known", "missing", "rank", "spec")

    def __init__(self, spec: TaskSpec, caller: str) -> None:
        self.spec = spec
        self.caller = caller
        """The client in whose queue it is; empty for a replayed call."""
        self.rank = 0
        self.known: dict[bytes, ObjectValue] = {}
        """Small inputs that came with the call, by object."""
        self.missing = 0
        """How many inputs are not in memory."""
        self.failed: ObjectValue | None = None
        """The error that an input is."""


class HeldReply:
    """A reply that waits until the GCS has logged its call."""

    __slots__ = ("number", "owner", "reply")

    def __init__(self, number: int, reply: RangeResult, owner: str) -> None:
        self.number = number
        """The number of the call in the actor's log."""
        self.reply = reply
        self.owner = owner


class ActorRecord:
    """One incarnation of an actor on its node."""

    def __init__(self, spec: TaskSpec, info: ActorInfo, budget: ReplyBudget) -> None:
        self.spec = spec
        self.info = info
        self.id = spec.array
        self.incarnation = info.incarnation
        self.logged = info.max_restarts != 0
        """Whether the GCS logs its calls: it may start again."""
        self.state = ActorState.WAITING
        self.ended = False
        """Whether the node has forgotten it."""
        self.leaving: ActorDeath | None = None
        """Why it ends itself: its process is about to end."""
        self.worker: Worker | None = None
        self.callers: dict[str, deque[QueuedCall]] = {}
        """Calls that wait, by caller, in order."""
        self.waiting: dict[bytes, QueuedCall] = {}
        """Calls that wait, by ID, except replayed ones."""
        self.batch: list[Assignment] = []
        """Calls to hand to the worker with this turn."""
        self.running: dict[bytes, Assignment] = {}
        """Calls that the worker has, by ID."""
        self.unclaimed: dict[bytes, tuple[RangeResult, Timing]] = {}
        """Reports of calls that the worker had directly, and this node not yet."""
        self.executed = 0
        """Calls that took effect, those of earlier incarnations included."""
        self.repeated: set[bytes] = set()
        """Calls that were sent to an earlier incarnation as well, and have not ended."""
        self.records: list[CallRecord] = []
        """Calls to log with this turn."""
        self.held: OrderedDict[bytes, HeldReply] = OrderedDict()
        """Replies that wait for the log, by call, in order."""
        self.replies = ReplyCache(budget)
        # Reconstruction:
        self.checkpoint = RestoreActor(b"", 0)
        self.lineage: list[CallRecord] = []
        """Calls to replay."""
        self.lineage_here = info.incarnation == 0
        """Whether the checkpoint and all of the lineage have arrived."""
        self.asked: list[TaskSpec] = []
        """Calls to reply to as soon as the lineage is here, if it contains them."""
        self.replaying: set[bytes] = set()
        """Calls whose replay has not ended."""
        self.replayed = 0
        """How many calls this incarnation replays, or has replayed."""
        self.to_replay: deque[CallRecord] = deque()
        """Calls of a concurrent actor whose replay has not begun."""
        self.patience: Timer | None = None
        """When the next of these begins at the latest."""

    def death(self, why: ActorDeath) -> ActorDeath:
        """Return the reason of its death with its name and ID, for its callers."""
        return replace(why, name=self.spec.name, actor=self.id)

    def take_apart(self, call: bytes) -> None:
        """Make single calls of the batch that a running call is in, if it is in one.

        What happens to this call does not happen to the others.
        """
        run = self.running.get(call)
        if run is None or not is_run(run.spec):
            return
        apart = [Assignment(spec) for spec in singles([run.spec])]
        for assignment in apart:
            if self.running.get(assignment.spec.array) is run:
                self.running[assignment.spec.array] = assignment
        if run in self.batch:
            at = self.batch.index(run)
            self.batch[at : at + 1] = apart
