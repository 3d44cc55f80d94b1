"""The calls that an actor has taken, for callers that make one of them again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.batching import ITEM_BYTES
from raytwin.runtime.control.core.call_batches import result_of, split
from raytwin.runtime.control.messages import RangeResult

REPLY_BYTES_MAX = 32 << 20
"""Of all actors of a node: some 60,000 small replies, or 300 of 100 KB."""
ID_BYTES_MAX = 64 << 20
ID_BYTES = 200
"""Of one call's ID in tables, with Python's share: there is room for some 330,000."""


class CallState(Enum):
    """What a reply cache knows of a call; see `ReplyCache`."""

    RUNNING = "running"
    REPLIED = "replied"
    EXECUTED = "executed"


class CachedCall:
    """One call, or several that ended together and whose replies are in one payload."""

    __slots__ = ("cache", "calls", "in_lineage", "items", "nbytes", "reply", "state")

    def __init__(self, cache: dict[bytes, CachedCall], calls: Sequence[bytes]) -> None:
        self.cache = cache
        """The table that it is in."""
        self.calls = calls
        self.state = CallState.RUNNING
        self.reply: RangeResult | None = None
        """Of a call that is replayed: the reply of the incarnation before."""
        self.items: list[RangeResult] | None = None
        """All that the call has yielded so far; None: it yields nothing, or they are gone."""
        self.in_lineage = False
        """Whether the actor's lineage has the reply, which bounds such replies."""
        self.nbytes = 0
        """What the budget counts of it."""

    def reply_to(self, call: bytes) -> RangeResult:
        """Return the reply to one of these calls."""
        assert self.reply is not None
        if self.reply.calls:
            return result_of(self.reply, split(self.reply.calls).index(call), call)
        return self.reply


class ReplyBudget:
    """The room that all reply caches of one node share; the oldest calls make room."""

    def __init__(
        self, reply_bytes_max: int = REPLY_BYTES_MAX, id_bytes_max: int = ID_BYTES_MAX
    ) -> None:
        self._reply_bytes_max = reply_bytes_max
        self._id_bytes_max = id_bytes_max
        self.reply_bytes = 0
        self.id_bytes = 0
        self._replies: deque[CachedCall] = deque()
        self._ids: deque[CachedCall] = deque()

    def charge(self, cached: CachedCall, nbytes: int) -> None:
        """Count what a call holds more than before."""
        if not cached.nbytes:
            self._replies.append(cached)
        cached.nbytes += nbytes
        self.reply_bytes += nbytes
        while self.reply_bytes > self._reply_bytes_max:
            oldest = self._replies.popleft()
            self.reply_bytes -= oldest.nbytes
            oldest.nbytes = 0
            oldest.items = None
            if oldest.state is CallState.REPLIED and not oldest.in_lineage:
                oldest.state, oldest.reply = CallState.EXECUTED, None
                self._keep_ids(oldest)

    def _keep_ids(self, cached: CachedCall) -> None:
        self._ids.append(cached)
        self.id_bytes += ID_BYTES * len(cached.calls)
        while self.id_bytes > self._id_bytes_max:
            oldest = self._ids.popleft()
            self.id_bytes -= ID_BYTES * len(oldest.calls)
            for call in oldest.calls:
                if oldest.cache.get(call) is oldest:
                    del oldest.cache[call]


class ReplyCache:
    """The reply cache of one incarnation of an actor.

    Theory of operation. A call takes effect once, however often its caller makes it: a task
    that runs again makes its calls again, with the same IDs, and so does a node whose actor
    started anew before the reply was there. So the cache remembers

    - calls of tasks and actors, from their end on;
    - their streams, and all streams that are replayed, from their beginning on, with the items
      that they have yielded: the first caller's node has the only other copy of small ones;
    - calls that the actor's lineage contains, of drivers too, from its arrival on: earlier
      incarnations executed them, and this one replays those after the checkpoint;
    - waiters: clients that wait for a call besides the one that made it last.

    ======== ================================== ======================================
    state    the call                           a repeated call gets
    ======== ================================== ======================================
    (none)   never came, or is forgotten        its turn to run
    RUNNING  runs, is replayed, or its reply    the items so far; the other items and
             waits for the log                  the reply as they come
    REPLIED  has ended, and the reply is known  the items and the reply
    EXECUTED has ended, and the reply is gone   ObjectLostError: it took effect once
    ======== ================================== ======================================

    ::

        (none) ──a stream begins, a call is replayed──> RUNNING
        (none), RUNNING ──the reply leaves──> REPLIED ──no room──> EXECUTED ──no room──> (none)

    A call that runs and yields nothing has no entry: the actor's record has it.

    Several callers. The client that made a call last owns the reply. The one before may be
    alive: its node was declared dead and does not know it yet, or the GCS did not know that its
    task still ran. Nobody here can tell which of them counts, so the cache keeps the others as
    waiters, one on each node (a node tells all of its clients that own an array), and each of
    them gets the items and the reply. A task may also ask for the reply to a call that the actor
    is about to replay, since another replayed call may need what that task makes: it is a waiter
    of the replay.

    Bounds. Replies and items of all actors of a node have `REPLY_BYTES_MAX`, the IDs of executed
    calls `ID_BYTES_MAX` (`ReplyBudget`). A call that makes room while it runs loses its items,
    not its waiters. Replies in the lineage are not counted: the GCS bounds them.
    """

    def __init__(self, budget: ReplyBudget) -> None:
        self._budget = budget
        self._calls: dict[bytes, CachedCall] = {}
        self._waiters: dict[bytes, dict[int, str]] = {}

    def find(self, call: bytes) -> CachedCall | None:
        """Return what is known of a call."""
        return self._calls.get(call)

    def knows_any(self, calls: Sequence[bytes]) -> bool:
        """Whether any of these calls may have begun."""
        return not self._calls.keys().isdisjoint(calls)

    def restore(self, reply: RangeResult, replayed: bool) -> None:
        """Take a call from the actor's lineage; `replayed`: this incarnation executes it, too."""
        cached = self._calls[reply.array] = CachedCall(self._calls, (reply.array,))
        cached.in_lineage = True
        cached.reply = reply
        cached.state = CallState.RUNNING if replayed else CallState.REPLIED

    def begin_stream(self, call: bytes) -> None:
        """A call begins to yield."""
        cached = self._calls.get(call)
        if cached is None:
            cached = self._calls[call] = CachedCall(self._calls, (call,))
        if cached.items is None:
            cached.items = []
            self._budget.charge(cached, ITEM_BYTES)

    def add_item(self, call: bytes, item: RangeResult) -> None:
        """Remember the next item of a stream, unless one before it is gone."""
        cached = self._calls.get(call)
        if cached is not None and cached.items is not None:
            cached.items.append(item)
            self._budget.charge(cached, ITEM_BYTES + len(item.payload))

    def keep(self, reply: RangeResult, calls: Sequence[bytes] = ()) -> None:
        """Remember the reply to a call, or to the `calls` that a run of results answers."""
        calls = calls or (reply.array,)
        cached = self._calls.get(reply.array)
        if cached is None or cached.state is not CallState.RUNNING:
            cached = CachedCall(self._calls, calls)
            self._calls.update(dict.fromkeys(calls, cached))
        cached.state, cached.reply = CallState.REPLIED, reply
        self._budget.charge(cached, ITEM_BYTES * len(calls) + len(reply.payload))

    def replayed(self, call: bytes, reply: RangeResult | None) -> None:
        """A replayed call has ended; None: the reply of the incarnation before stays."""
        cached = self._calls[call]
        cached.state = CallState.REPLIED
        if reply is not None:
            cached.reply = reply

    def wait(self, call: bytes, client: str) -> None:
        """Add a client that waits for a call."""
        self._waiters.setdefault(call, {})[node_of(client)] = client

    def called_again(self, call: bytes, before: str, now: str) -> None:
        """Client `now` owns the reply to a call that client `before` waits for, too."""
        if node_of(before) != node_of(now):
            waiters = self._waiters.setdefault(call, {})
            waiters.pop(node_of(now), None)
            waiters[node_of(before)] = before

    @property
    def has_waiters(self) -> bool:
        """Whether any call has waiters."""
        return bool(self._waiters)

    def waiters(self, call: bytes) -> list[str]:
        """Return who waits for a call besides its owner, in the order in which they called."""
        return list(self._waiters[call].values()) if call in self._waiters else []

    def take_waiters(self, call: bytes) -> list[str]:
        """Return the waiters of a call that has ended, and forget them."""
        return list(self._waiters.pop(call).values()) if call in self._waiters else []

    def clear(self) -> None:
        """Forget all calls: the actor has ended, and takes none any more.

        Waiters stay until the replies that the actor's log still holds have left.
        """
        self._calls.clear()
