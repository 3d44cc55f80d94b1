"""What a client has references to, has pinned or looks at, and what it lets go of.

What is let go of is told in batches: at once if nothing was sent for a while, with
the next flush otherwise. Short results of calls and tasks can wait: these are told
when `UNHURRIED_MAX` are together, or after `UNHURRIED_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from raytwin.runtime.control.client.owned_arrays import Entry, Waiter
from raytwin.runtime.control.core.call_batches import run_of
from raytwin.runtime.control.core.child_tasks import Children
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Timer
from raytwin.runtime.control.core.direct_calls import DirectWays
from raytwin.runtime.control.core.ids import ARRAY_BYTES, split_object_id
from raytwin.runtime.control.messages import (
    DirectCall,
    ObjectValue,
    PutObjects,
    RangeResult,
    Release,
    SubmitTasks,
    TaskExtra,
    TaskSpec,
    Unpin,
)
from raytwin.runtime.control.messages.errors import StoreFull
from raytwin.runtime.control.ownership.reference_counter import Borrowing

RELEASE_BATCH_MAX = 256
UNHURRIED_MAX = 256
UNHURRIED_S = 0.02
UNHURRIED_BYTES_MAX = 1024
"""Of a result that the node may keep for so much longer: what is longer is told sooner."""


class ClientCounts:
    """The state of a client, and its counts."""

    def __init__(self, ctx: Context, address: str, node: int, config: Config) -> None:
        self.ctx = ctx
        self.address = address
        self.node = f"node:{node}"
        self.config = config
        self.entries: dict[bytes, Entry] = {}
        self.borrowed: dict[bytes, int] = {}
        """References alive to objects of others."""
        self.local: dict[bytes, ObjectValue] = {}
        """Objects that the node has told of: large, borrowed or lost ones."""
        self.large_results = 0
        """How many results with large values have come."""
        self.errors = 0
        """How many errors have come, in place of results or of objects."""
        self.replies: dict[int, Any] = {}
        self.allocations: dict[bytes, int] = {}
        self.full: dict[bytes, StoreFull] = {}
        """Why an allocation failed, until its asker has looked."""
        self.collect: Callable[[], None] = _nothing
        """Counts what the garbage collector has dropped since the last turn."""
        self._views: dict[bytes, int] = {}
        """How often an object is looked at, or is about to be."""
        self._awaited: list[frozenset[bytes]] = []
        """What each `get` under way waits for."""
        self._unpin_later: set[bytes] = set()
        self._object_waiters: dict[bytes, list[Waiter]] = {}
        self._exported: set[bytes] = set()
        self._submitted: list[TaskSpec] = []
        self._run_spec: TaskSpec | None = None
        """What the calls have in common that the next one may join; see `call_batches`."""
        self._run_extra: TaskExtra | None = None
        self._run_deps: tuple[bytes, ...] = ()
        self._run_arrays: list[bytes] = []
        self._run_args: list[bytes] = []
        self.direct = DirectWays()
        self._puts: list[RangeResult] = []
        self._released: list[bytes] = []
        self._unhurried: list[bytes] = []
        """Released as well, but nobody is the worse if the node hears of it later."""
        self._unhurried_timer: Timer | None = None
        self._unpinned: list[bytes] = []
        self._timer: Timer | None = None
        self._flushed_s = float("-inf")
        self._answered = True
        """A result has come since something was submitted last."""
        self._keys = 0
        self._cancels = 0
        """How often it has asked to cancel something."""
        self.job = b""
        """All that it makes begins with it: a driver's, or that of a worker's first task."""
        self.parent = b""
        self._numbered_by = b""
        """The parent, or what stands for its present try."""
        self._submissions = 0
        self._own_puts = 0
        self.children = Children()
        """What the task that runs here has submitted."""
        self.borrowing = Borrowing(self)

    def _end_run(self) -> None:
        """What is submitted from here on comes behind the run."""
        if self._run_spec is not None and self._run_extra is not None:
            run = run_of(self._run_spec, self._run_extra, self._run_arrays, self._run_args)
            if self.direct and len(self._run_arrays) == 1:
                self._send_ahead(run)
            self._submitted.append(run)
            self._run_arrays, self._run_args = [], []
            self._run_spec = self._run_extra = None

    def _send_ahead(self, call: TaskSpec) -> None:
        """Have the actor's worker begin with a call, if it is the only one under way."""
        worker = self.direct.worker_for(call)
        if worker:
            assert call.extra is not None
            actor = self.entries.get(call.extra.call)
            if actor is not None and actor.holds == 1:
                call.extra = replace(call.extra, ahead=True)
                self.ctx.send(worker, DirectCall(call))

    def _hold(self, entry: Entry, oids: tuple[bytes, ...]) -> None:
        entry.deps += oids
        for oid in oids:
            array = oid[:ARRAY_BYTES]
            held = self.entries.get(array)
            if held is not None:
                held.holds += 1
            else:
                self.borrowing.add(array)

    def hold(self, array: bytes) -> None:
        """Keep an array, own or borrowed, until `let_go_of`."""
        held = self.entries.get(array)
        if held is not None:
            held.holds += 1
        else:
            self.borrowing.add(array)

    def flush(self) -> None:
        """Send all that was held back to go in a larger batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._puts:
            self.ctx.send(self.node, PutObjects(self._puts))
            self._puts = []
        if self._run_arrays:
            self._end_run()
        if self._submitted:
            self.ctx.send(self.node, SubmitTasks(self._submitted, self.children.parent))
            self._submitted = []
            self._answered = False
        if self._released:
            self.ctx.send(self.node, Release(self._released))
            self._released = []
        if self._unpinned:
            self.ctx.send(self.node, Unpin(self._unpinned))
            self._unpinned = []
        self._flushed_s = self.ctx.now()

    def flush_all(self) -> None:
        """Send all that is held back, also what nobody is the worse for hearing later."""
        self.flush()
        if self._unhurried:
            self._tell_unhurried()

    def flush_held(self) -> None:
        """`flush` if there is anything: then a timer runs, or it would have left at once."""
        if self._timer is not None:
            self.flush()

    def _flush_soon(self) -> None:
        if self._timer is not None:
            return
        linger_s = self.config.linger_s
        if self.ctx.now() - self._flushed_s >= linger_s:
            self.flush()
        else:
            self._timer = self.ctx.after(linger_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.flush()

    def _submit_soon(self) -> None:
        """As `_flush_soon`, of what somebody may wait for next.

        Who submits one thing after another, each when the one before is done, waits for
        each: there is nothing that it could travel with.
        """
        if self._timer is None:
            if self._answered:
                self.flush()
            else:
                self._flush_soon()
        elif self.ctx.now() - self._flushed_s >= self.config.linger_s:
            self.flush()  # whoever would call the timer back may be busy with this

    def _tell_unhurried(self) -> None:
        if self._unhurried_timer is not None:
            self._unhurried_timer.cancel()
            self._unhurried_timer = None
        self.ctx.send(self.node, Release(self._unhurried))
        self._unhurried = []

    def _keep(self, keeper: bytes, oid: bytes) -> None:
        """Hold an input as long as the actor, which may be rebuilt with it."""
        actor = self.entries.get(keeper)
        if actor is None:
            # Another client's actor: who could say when it ends?
            self.borrowing.pin(oid[:ARRAY_BYTES])
            self.let_go_of(oid)
            return
        if actor.kept is None:
            actor.kept = {}
        if oid in actor.kept:
            self.let_go_of(oid)
        actor.kept[oid] = None

    def let_go_of(self, oid: bytes) -> None:
        """End one `hold` of an array, named by its ID or an object's."""
        held = self.entries.get(oid[:ARRAY_BYTES])
        if held is not None:
            self._let_go(held)
        else:
            self.borrowing.drop(oid[:ARRAY_BYTES])

    def _let_go(self, held: Entry) -> None:
        held.holds -= 1
        if not held.holds:
            self.release_if_free(held)

    def add_ref(self, oid: bytes) -> None:
        """An `ObjectRef` to the object came to be."""
        entry = self.entries.get(oid[:ARRAY_BYTES])
        if entry is not None:
            entry.refs += 1
        else:
            self.borrowed[oid] = self.borrowed.get(oid, 0) + 1
            self.borrowing.add(oid[:ARRAY_BYTES])

    def drop_refs(self, oids: deque[bytes]) -> None:
        """Drop a reference to each of these; what is added meanwhile too."""
        entries = self.entries
        while oids:
            oid = oids.popleft()
            entry = entries.get(oid[:ARRAY_BYTES])
            if entry is None:
                self.drop_ref(oid)
                continue
            entry.refs -= 1
            if not (entry.refs or entry.missing or entry.holds or entry.book):
                self.release_if_free(entry)

    def drop_ref(self, oid: bytes) -> None:
        """An `ObjectRef` to the object is gone."""
        entry = self.entries.get(oid[:ARRAY_BYTES])
        if entry is not None:
            entry.refs -= 1
            if not entry.refs:
                self.release_if_free(entry)
        elif oid in self.borrowed:
            self.borrowed[oid] -= 1
            if not self.borrowed[oid]:
                del self.borrowed[oid]
                self._drop_local(oid)
            self.borrowing.drop(oid[:ARRAY_BYTES])

    def _give_back(self) -> None:
        """Unpin large objects that nobody looks at: a later `get` asks for them again."""
        self.collect()
        idle = [oid for oid, value in self.local.items() if value.size and not self._in_view(oid)]
        for oid in idle:
            self._drop_local(oid)
            entry = self.entries.get(split_object_id(oid)[0])
            if entry is not None:
                assert entry.local is not None
                entry.local.remove(oid)
        self.flush()

    def add_view(self, oid: bytes) -> None:
        """A value is made that shares the arena's memory, or is waited for."""
        self._views[oid] = self._views.get(oid, 0) + 1

    def drop_view(self, oid: bytes) -> None:
        """The last such value of one `get` is gone."""
        self._views[oid] -= 1
        if not self._views[oid]:
            del self._views[oid]
            self._unpin_if_unseen(oid)

    def begin_get(self, oids: Iterable[bytes]) -> frozenset[bytes]:
        """All of these are waited for together: those that arrive count as looked at."""
        awaited = frozenset(oids)
        self._awaited.append(awaited)
        return awaited

    def end_get(self, awaited: frozenset[bytes]) -> None:
        """They are not waited for any more; what was found has views of its own."""
        self._awaited.remove(awaited)
        for oid in awaited & self._unpin_later:
            self._unpin_if_unseen(oid)

    def _in_view(self, oid: bytes) -> bool:
        return oid in self._views or any(oid in awaited for awaited in self._awaited)

    def _unpin_if_unseen(self, oid: bytes) -> None:
        if oid in self._unpin_later and not self._in_view(oid):
            self._unpin_later.discard(oid)
            self.unpin(oid)

    def release_if_free(self, entry: Entry) -> None:
        """Release an array that nobody has or waits for any more."""
        if entry.refs or entry.missing or entry.holds or entry.book:
            return
        del self.entries[entry.array]
        for oid in entry.local or ():
            self._drop_local(oid)
        result = entry.result
        unhurried = (
            entry.unhurried
            and result is not None
            and not result.sizes
            and result.refs is None
            and len(result.payload) <= UNHURRIED_BYTES_MAX
        )
        if not unhurried:
            # Ahead of what its values refer to: while others need these, they need that too.
            self._released.append(entry.array)
        if entry.deps or entry.kept:
            # Named actors that were there already have never started to be created.
            for oid in (*entry.deps, *(entry.kept or ())):
                self.let_go_of(oid)
        if unhurried:
            self._unhurried.append(entry.array)
            if len(self._unhurried) >= UNHURRIED_MAX:
                self._tell_unhurried()
            elif self._unhurried_timer is None:
                self._unhurried_timer = self.ctx.after(UNHURRIED_S, self._tell_unhurried)
            return
        if len(self._released) >= RELEASE_BATCH_MAX:
            self.flush()
        else:
            self._flush_soon()

    def _drop_local(self, oid: bytes) -> None:
        value = self.local.pop(oid, None)
        if value is None or not value.size:
            return
        if self._in_view(oid):
            self._unpin_later.add(oid)
        else:
            self.unpin(oid)

    def unpin(self, oid: bytes) -> None:
        """A large object that was pinned for this client is not in use any more."""
        self._unpinned.append(oid)
        self._flush_soon()


def _nothing() -> None:
    """Stand in for a `Client.collect` that there is no need for."""
