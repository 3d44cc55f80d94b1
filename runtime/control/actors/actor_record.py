"""One incarnation of an actor on its node, and the calls that wait for it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from enum import Enum

from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.batching import ITEM_BYTES
from raytwin.runtime.control.core.call_batches import is_batch, singles
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
)
from raytwin.runtime.control.messages.errors import ActorDeath

REPLY_BYTES_MAX = 16 << 20
"""Memory of an actor's cached replies: some 30,000 small ones, or 160 of 100 KB."""
CALLS_MAX = 100_000
"""How many calls an actor's cache has, at most."""


class ActorState(Enum):
    """The state of an actor; `NodeActors` has the transitions."""

    WAITING = "waiting"
    QUEUED = "queued"
    CREATING = "creating"
    RESTORING = "restoring"
    ALIVE = "alive"


class QueuedCall:
    """A call that waits for its inputs or for its turn."""

    __slots__ = ("caller", "delayed", "failed", "known", "missing", "rank", "spec")

    def __init__(self, spec: TaskSpec, caller: str) -> None:
        self.spec = spec
        self.caller = caller
        """The client in whose queue it is; empty for a replayed call."""
        self.rank = 0
        self.known: dict[bytes, ObjectValue] = {}
        """Small inputs that came with the call, by object."""
        self.missing = 0
        """How many inputs are not in memory; the scheduling delay counts as one."""
        self.delayed = False
        """Whether the scheduling delay is over, or under way."""
        self.failed: ObjectValue | None = None
        """The error of an input, if one failed."""


class HeldReply:
    """A reply that waits until the GCS has logged its call."""

    __slots__ = ("number", "owner", "reply")

    def __init__(self, number: int, reply: RangeResult, owner: str) -> None:
        self.number = number
        """The number of the call in the actor's log."""
        self.reply = reply
        self.owner = owner


class CachedCall:
    """A call that may be repeated, and what it has yielded and returned."""

    __slots__ = ("ended", "items", "nbytes", "reply")

    def __init__(self) -> None:
        self.ended = False
        self.reply: RangeResult | None = None
        """None: the call has not ended, or the reply was dropped for lack of room."""
        self.items: list[RangeResult] | None = None
        """All items that the call has yielded; None: it is not a stream, or they were dropped for
        lack of room."""
        self.nbytes = 0


class ReplyCache:
    """The calls of one incarnation of an actor, for callers that repeat one.

    A call takes effect once, however often its caller makes it: a task that runs again makes its
    calls again, with the same IDs, and the callers' side repeats a call if the actor restarts
    before the reply has arrived. So the cache has

    - calls of tasks and actors, once they have ended;
    - their streams, and all streams that are replayed, as soon as they begin, with the items so
      far: only the first caller's node has another copy of small items;
    - calls in the actor's lineage, also those of drivers, once they are replayed.

    When the cache is full it drops the oldest calls: first the reply and the items, and a repeated
    call gets ObjectLostError; then the ID, and a repeated call is a new one.

    The client that made a call last owns its reply. An earlier caller may be alive: its node was
    declared dead and does not know it yet, or the GCS did not know that its task still ran. So
    the cache keeps earlier callers as waiters, one on each node (a node delivers a result to all
    of its clients that own the array), and each of them gets the items and the reply.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[bytes, CachedCall] = OrderedDict()
        self._full: deque[CachedCall] = deque()
        """Calls with replies or items, the oldest first."""
        self._nbytes = 0
        self._waiters: dict[bytes, dict[int, str]] = {}

    def find(self, call: bytes) -> CachedCall | None:
        """Return the record of a call, if there is one."""
        return self._calls.get(call)

    def knows_any(self, calls: Sequence[bytes]) -> bool:
        """Whether any of these calls may have begun."""
        return not self._calls.keys().isdisjoint(calls)

    def begin_stream(self, call: bytes) -> None:
        """A call begins to yield."""
        self._calls.setdefault(call, CachedCall()).items = []

    def add_item(self, item: RangeResult) -> None:
        """Remember the next item of a stream, unless an earlier one was dropped."""
        cached = self._calls.get(item.array)
        if cached is not None and cached.items is not None:
            cached.items.append(item)
            self._charge(cached, len(item.payload))

    def keep(self, reply: RangeResult, share: int = 1) -> None:
        """Remember the reply to a call; `share` calls have the same payload."""
        cached = self._calls.setdefault(reply.array, CachedCall())
        cached.ended, cached.reply = True, reply
        self._charge(cached, len(reply.payload) // share)
        if len(self._calls) > CALLS_MAX:
            self._calls.popitem(last=False)

    def _charge(self, cached: CachedCall, nbytes: int) -> None:
        if not cached.nbytes:
            self._full.append(cached)
        cached.nbytes += ITEM_BYTES + nbytes
        self._nbytes += ITEM_BYTES + nbytes
        while self._nbytes > REPLY_BYTES_MAX:
            oldest = self._full.popleft()
            self._nbytes -= oldest.nbytes
            oldest.nbytes, oldest.reply, oldest.items = 0, None, None

    def add_waiter(self, call: bytes, before: str, now: str) -> None:
        """Client `now` owns the reply to a call; client `before` still waits for it."""
        if node_of(before) != node_of(now):
            waiters = self._waiters.setdefault(call, {})
            waiters.pop(node_of(now), None)
            waiters[node_of(before)] = before

    @property
    def has_waiters(self) -> bool:
        """Whether any call has waiters."""
        return bool(self._waiters)

    def waiters(self, call: bytes) -> list[str]:
        """Return the clients that wait for a call besides its owner, in order."""
        return list(self._waiters[call].values()) if call in self._waiters else []

    def take_waiters(self, call: bytes) -> list[str]:
        """Return the waiters of a call that has ended, and forget them."""
        waiters = self.waiters(call)
        self._waiters.pop(call, None)
        return waiters

    def clear(self) -> None:
        """Forget all calls. Waiters stay until the replies that wait for the log have left."""
        self._calls.clear()
        self._full.clear()


class ActorRecord:
    """One incarnation of an actor on its node."""

    def __init__(self, spec: TaskSpec, info: ActorInfo) -> None:
        self.spec = spec
        self.info = info
        self.id = spec.array
        self.incarnation = info.incarnation
        self.logged = info.max_restarts != 0
        """Whether the GCS logs its calls, because it may restart."""
        self.state = ActorState.WAITING
        self.ended = False
        """Whether the node has forgotten it."""
        self.leaving: ActorDeath | None = None
        """Why the actor ends itself; None: it does not."""
        self.worker: Worker | None = None
        self.callers: dict[str, deque[QueuedCall]] = {}
        """Calls that wait, by caller, in order."""
        self.waiting: dict[bytes, QueuedCall] = {}
        """Calls that wait, by ID, except replayed ones."""
        self.unsent: list[Assignment] = []
        """Calls to send to the worker with this turn."""
        self.running: dict[bytes, Assignment] = {}
        """Calls that the worker has, by ID."""
        self.executed = 0
        """The number of calls that took effect, in earlier incarnations too."""
        self.records: list[CallRecord] = []
        """Calls to log with this turn."""
        self.held: OrderedDict[bytes, HeldReply] = OrderedDict()
        """Replies that wait for the log, by call, in order."""
        self.replies = ReplyCache()
        # Reconstruction:
        self.checkpoint = RestoreActor(b"", 0)
        self.lineage: list[CallRecord] = []
        """Calls to replay, until the constructor has run."""
        self.has_lineage = info.incarnation == 0
        """Whether the checkpoint and all of the lineage have arrived."""
        self.asked: list[TaskSpec] = []
        """Repeated calls, to be answered once they are replayed, if the lineage contains them."""
        self.replaying: dict[bytes, RangeResult] = {}
        """Calls whose replay has not ended, with the replies of the earlier incarnation."""
        self.replayed = 0
        """The number of calls that this incarnation replays, or has replayed."""
        self.to_replay: deque[CallRecord] = deque()
        """Calls of a concurrent actor whose replay has not begun."""
        self.replay_timer: Timer | None = None
        """Starts the next replay if the current one takes too long."""

    def death(self, why: ActorDeath) -> ActorDeath:
        """Return the reason of its death with the actor's name and ID, for its callers."""
        return replace(why, name=self.spec.name, actor=self.id)

    def split_batch(self, call: bytes) -> None:
        """Split the batch of a running call, if it is in one, into single calls."""
        batch = self.running.get(call)
        if batch is None or not is_batch(batch.spec):
            return
        calls = [Assignment(spec) for spec in singles([batch.spec])]
        for assignment in calls:
            if self.running.get(assignment.spec.array) is batch:
                self.running[assignment.spec.array] = assignment
        if batch in self.unsent:
            at = self.unsent.index(batch)
            self.unsent[at : at + 1] = calls
