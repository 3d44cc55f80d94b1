"""The part that lives in every driver and worker: submit, wait, count references.

A client **owns** the arrays that its tasks and puts make: results come to it
unasked, small values with them. The life of an owned array::

    submit/put ──> PENDING ──TaskResults──> DONE ──no reference left──> RELEASED
                                             │
                                             └─ large values: WantObjects,
                                                ObjectsReady: LOCAL and pinned,
                                                until released, or the node asks
                                                for it back and nobody looks

Of an object that it does not own (a **borrowed** one, whose reference came in a
value) it asks its node, as for a large value. An array is released when no
`ObjectRef` to it is alive, no unfinished task has it as input or inside of one,
and nobody else has borrowed it: `borrowing` says who that may be.

The world serializes calls: each method is called in a turn of its own or from
``handle``. Waiting is the world's affair too: a `Waiter` says what is missing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from runtime.control.borrowing import Borrowing
from runtime.control.call_runs import RUN_MAX, run_of, split
from runtime.control.config import Config
from runtime.control.context import Context, Timer, node_of
from runtime.control.ids import (
    ARRAY_BYTES,
    STREAM_BASE,
    adopted,
    anew,
    array_id,
    job_of,
    put_id,
    split_object_id,
)
from runtime.control.messages import (
    OK,
    AbandonObject,
    ActorFound,
    AllocateObject,
    BorrowersGone,
    CancelTask,
    DescribeJob,
    ExportFunction,
    FindActor,
    GiveBack,
    KillActor,
    KvReply,
    ObjectAllocated,
    ObjectsReady,
    ObjectValue,
    PutObjects,
    Query,
    QueryReply,
    RangeResult,
    RefUpdates,
    Release,
    SubmitTasks,
    TaskExtra,
    TaskFound,
    TaskResults,
    TaskSpec,
    TooLong,
    Unpin,
    WantObjects,
)
from runtime.control.ranges import Ranges
from runtime.control.ref_book import Book
from runtime.control.too_long import results_of

RELEASE_BATCH_MAX = 256

_start = attrgetter("start")


class Waiter:
    """How many of the awaited things are still missing."""

    __slots__ = ("arrived", "fetch", "missing")

    def __init__(self, fetch: bool = True) -> None:
        self.missing = 0
        self.fetch = fetch
        """Whether a large value has to be brought here, or need only exist."""
        self.arrived: list[bytes] | None = None
        """If not None, the objects that were missing and are not any more are noted here."""


class Entry(Struct, eq=False, gc=False):
    """An array that this client owns."""

    array: bytes
    count: int
    returns: int
    missing: int
    """Elements whose result has not come."""
    result: RangeResult | None = None
    """The result of an array of one."""
    results: list[RangeResult] | None = None
    """Those of a longer array, by start; later ones may overlap."""
    covered: Ranges | None = None
    items: dict[int, RangeResult] | None = None
    """Of a stream: its items so far, by element; see `streams`."""
    refs: int = 0
    """`ObjectRef`s alive."""
    holds: int = 0
    """Unfinished tasks that have it as input."""
    is_call: bool = False
    """Of an actor."""
    position: int = 0
    """Of an array of one: where in the result's payload its first value is."""
    book: Book | None = None
    """Who else has references to it."""
    deps: tuple[bytes, ...] = ()
    """Inputs held until the array is done, and arrays that are inside arguments."""
    keeper: bytes = b""
    """The actor that may be rebuilt with these inputs: see `Client.submit`."""
    kept: dict[bytes, None] | None = None
    """Of such an actor: large inputs held as long as it is; of any array: what
    is inside its values and would otherwise be returned too soon."""
    waiters: dict[int, list[tuple[bytes, Waiter]]] | None = None
    """Who waits for an element, by index."""
    all_waiters: list[Waiter] | None = None
    local: list[bytes] | None = None
    """Large objects of it that are pinned for this client."""

    def is_large(self) -> bool:
        """Whether a value of it may be too large for messages."""
        return self.count > 1 or (self.result is not None and any(self.result.sizes))

    def is_small(self) -> bool:
        """Of an array of one, with a result: whether all of its values are in there."""
        result = self.result
        return result is not None and (result.status != OK or not result.sizes)

    def find(self, index: int) -> RangeResult | None:
        """Return the result that covers an element."""
        if self.count == 1:
            if self.items is not None and index:
                return self.items.get(index)
            return self.result
        if self.covered is None or index not in self.covered:
            return None
        assert self.results is not None
        at = bisect_right(self.results, index, key=_start)
        for result in reversed(self.results[:at]):
            if index < result.start + result.count:
                return result
        raise AssertionError("a covered element has no result")


class Client:
    """Submits, waits and counts for one driver or worker."""

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
        self.replies: dict[int, Any] = {}
        self.allocations: dict[bytes, int] = {}
        self.full_reasons: dict[bytes, str] = {}
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
        """What the calls have in common that the next one may join; see `call_runs`."""
        self._run_extra: TaskExtra | None = None
        self._run_deps: tuple[bytes, ...] = ()
        self._run_arrays: list[bytes] = []
        self._run_args: list[bytes] = []
        self._puts: list[RangeResult] = []
        self._released: list[bytes] = []
        self._unpinned: list[bytes] = []
        self._timer: Timer | None = None
        self._flushed_s = float("-inf")
        self._keys = 0
        self.job = b""
        """All that it makes begins with it: a driver's, or that of a worker's first task."""
        self.parent = b""
        self._anew = b""
        self._children = 0
        self._own_puts = 0
        self.borrowing = Borrowing(self)

    # -- submitting ------------------------------------------------------------

    def begin_task(self, task: bytes, incarnation: int = 0) -> None:
        """From here on, what is submitted is a child of `task`, of that incarnation's."""
        self.job = self.job or job_of(task)
        self.parent = task = adopted(task, self.job)
        self._anew = anew(task, incarnation)
        self._children = 0
        self._own_puts = 0

    def describe_job(self, namespace: str, entrypoint: str, pid: int) -> None:
        """Tell the cluster what of a driver's job only it knows."""
        self.ctx.send(self.node, DescribeJob(namespace, entrypoint, pid))

    def next_array(self, once: bool = False) -> bytes:
        """Return the ID of the next array that the current task submits.

        `once`: it is an actor or a call, see `ids`.
        """
        self._children += 1
        return array_id(self.parent if once else self._anew, self._children)

    def next_put(self) -> bytes:
        """Return the array ID of the current task's next put."""
        self._own_puts += 1
        return put_id(self._anew, self._own_puts)

    def export(self, function: bytes, blob: bytes) -> None:
        """Make a function known to the cluster, once."""
        if function not in self._exported:
            self._exported.add(function)
            self.ctx.send(self.node, ExportFunction(function, blob))

    def submit(
        self,
        array: bytes,
        specs: list[TaskSpec],
        count: int,
        returns: int,
        holds: tuple[bytes, ...] = (),
        keeper: bytes = b"",
    ) -> Entry:
        """Submit an array, given as the ranges it starts out as.

        It holds its inputs until it is done, and the objects `holds` likewise, or
        whole arrays, of which references are inside arguments. An actor that may
        restart is rebuilt from them: with such a `keeper` (its array) arrays and large
        inputs are held as long as that; small ones are in its lineage.
        """
        entry = self.entries.get(array)
        if entry is None:
            entry = self._own(Entry(array, count, returns, count))
        if keeper:
            entry.keeper = keeper
        for spec in specs:
            if spec.deps:
                holds += spec.deps
        if holds:
            self._hold(entry, holds)
        if self._run_arrays:
            self._end_run()
        self._submitted += specs
        if len(self._submitted) >= self.config.submit_batch_max:
            self.flush()
        elif self._timer is None:
            self._flush_soon()
        return entry

    def call(
        self, array: bytes, extra: TaskExtra, name: str, retries: int, args: bytes,
        actor: bytes, keeper: bytes = b"",
    ) -> Entry:  # fmt: skip
        """Submit a call without inputs and with one value, as `submit` does.

        `actor` is an object that it holds. Calls with the same `extra`, the object
        itself, have name and retries in common too.
        """
        if extra is not self._run_extra:
            self._end_run()
            self._run_extra = extra
            self._run_spec = TaskSpec(
                b"", 0, 1, b"", b"", self.address, "", (), 1, retries, -1, name
            )
            self._run_deps = (actor,)
        entry = self.entries.get(array)
        if entry is None:
            entry = Entry(array, 1, 1, 1)
            if self.borrowing.loans:
                self._own(entry)
            else:
                self.entries[array] = entry
        entry.keeper = keeper
        entry.is_call = True
        if entry.deps:
            self._hold(entry, self._run_deps)
        else:
            entry.deps = self._run_deps
            self.hold(actor[:ARRAY_BYTES])
        arrays = self._run_arrays
        arrays.append(array)
        self._run_args.append(args)
        if len(arrays) >= RUN_MAX:
            self.flush()
        elif self._timer is None:
            self._flush_soon()
        return entry

    def _end_run(self) -> None:
        """What is submitted from here on comes behind the run."""
        if self._run_spec is not None and self._run_extra is not None:
            self._submitted.append(
                run_of(self._run_spec, self._run_extra, self._run_arrays, self._run_args)
            )
            self._run_arrays, self._run_args = [], []
            self._run_spec = self._run_extra = None

    def cancel(self, oid: bytes, force: bool, recursive: bool) -> None:
        """The task of an object is not wanted any more, unless it is done."""
        array, index, _ = split_object_id(oid)
        entry = self.entries.get(array)
        index = 0 if index >= STREAM_BASE else index
        if entry is None or entry.find(index) is None:
            self.flush()
            self.ctx.send(self.node, CancelTask(array, index, 1, force, recursive))

    def cancel_children(self, task: bytes, force: bool) -> None:
        """Cancel all that a task of this worker has submitted and is not done."""
        task = adopted(task, self.job) if self.job else task
        if task != self.parent:
            return  # it has submitted nothing
        self.flush()
        for number in range(1, self._children + 1):
            for parent in dict.fromkeys((task, self._anew)):
                entry = self.entries.get(array_id(parent, number))
                if entry is not None and entry.missing:
                    self.ctx.send(
                        self.node, CancelTask(entry.array, 0, entry.count, force, recursive=True)
                    )

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

    def put(self, result: RangeResult) -> Entry:
        """Take a value that this client made: inline, or sealed in the arena."""
        entry = Entry(result.array, 1, 1, 0, result)
        self._own(entry)
        self._puts.append(result)
        if len(self._puts) >= self.config.submit_batch_max:
            self.flush()
        else:
            self._flush_soon()
        return entry

    def _own(self, entry: Entry) -> Entry:
        """Begin to own an array; a reference to all of it may exist already."""
        self.entries[entry.array] = entry
        if entry.array in self.borrowing.loans:
            mine = [oid for oid in self.borrowed if oid[:ARRAY_BYTES] == entry.array]
            refs = sum(self.borrowed.pop(oid) for oid in mine)
            entry.refs += refs
            entry.holds += self.borrowing.own(entry.array) - refs
            here = [oid for oid in mine if oid in self.local]
            entry.local = here if entry.local is None else entry.local + here
        return entry

    def allocate(self, oid: bytes, size: int) -> Waiter:
        """Ask for room in the arena; `allocations` will say where, or -1."""
        waiter = Waiter()
        waiter.missing = 1
        self._object_waiters.setdefault(oid, []).append(waiter)
        self.ctx.send(self.node, AllocateObject(oid, size))
        return waiter

    def abandon(self, oid: bytes) -> None:
        """Give back room that will not be used."""
        self.ctx.send(self.node, AbandonObject(oid))

    def query(self, kind: str) -> tuple[int, Waiter]:
        """Ask the cluster; `replies` will hold the answer under the key."""
        self.flush()
        self._keys += 1
        waiter = Waiter()
        waiter.missing = 1
        self._object_waiters.setdefault(self._keys.to_bytes(8, "big"), []).append(waiter)
        self.ctx.send(self.node, Query(kind, self._keys, self.address))
        return self._keys, waiter

    def find_actor(
        self,
        namespace: str,
        name: str,
        create: TaskSpec | None,
        keeper: bytes = b"",
        holds: tuple[bytes, ...] = (),
    ) -> tuple[int, Waiter]:
        """Look an actor up, or create it; `replies` will hold an `ActorFound`."""
        self.flush()
        if create is not None and create.array not in self.entries:
            entry = self._own(Entry(create.array, 1, 1, 1))
            entry.keeper = keeper
            self._hold(entry, holds + create.deps)
        self._keys += 1
        waiter = Waiter()
        waiter.missing = 1
        self._object_waiters.setdefault(self._keys.to_bytes(8, "big"), []).append(waiter)
        self.ctx.send(self.node, FindActor(self._keys, self.address, namespace, name, create))
        return self._keys, waiter

    def disown(self, array: bytes) -> None:
        """What was to be created was there already, under another ID."""
        entry = self.entries[array]
        entry.missing = 0
        self.release_if_free(entry)

    def kill_actor(self, actor: bytes, reason: str, restart: bool) -> None:
        """End an actor, after what was sent to it before."""
        self.flush()
        self.ctx.send(self.node, KillActor(actor, reason, restart))

    def ask_table(self, make: Callable[[int], Any]) -> tuple[int, Waiter]:
        """Send what `make` returns for a key; `replies` will hold the table's answer."""
        self._keys += 1
        waiter = Waiter()
        waiter.missing = 1
        self._object_waiters.setdefault(self._keys.to_bytes(8, "big"), []).append(waiter)
        self.ctx.send(self.node, make(self._keys))
        return self._keys, waiter

    def flush(self) -> None:
        """Send all that was held back to go in a larger batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._puts:
            self.ctx.send(self.node, PutObjects(self._puts))
            self._puts = []
        self._end_run()
        if self._submitted:
            self.ctx.send(self.node, SubmitTasks(self._submitted))
            self._submitted = []
        if self._released:
            self.ctx.send(self.node, Release(self._released))
            self._released = []
        if self._unpinned:
            self.ctx.send(self.node, Unpin(self._unpinned))
            self._unpinned = []
        self._flushed_s = self.ctx.now()

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

    # -- waiting ---------------------------------------------------------------

    def watch(
        self, oids: Iterable[bytes], fetch: bool = True, waiter: Waiter | None = None
    ) -> Waiter:
        """Return a waiter for these objects' values; fetches those not here.

        Without `fetch`, own objects only need to exist somewhere.
        """
        waiter = Waiter(fetch) if waiter is None else waiter
        wants: list[bytes] = []
        entries, local = self.entries, self.local
        for oid in oids:
            entry = entries.get(oid[:ARRAY_BYTES])
            if entry is None or entry.count != 1 or entry.items is not None or oid in local:
                self._watch(oid, waiter, wants)
            elif entry.result is None:
                waiter.missing += 1
                if entry.waiters is None:
                    entry.waiters = {0: [(oid, waiter)]}
                else:
                    entry.waiters.setdefault(0, []).append((oid, waiter))
            elif not entry.is_small():
                self._watch(oid, waiter, wants)
        if wants:
            self.ctx.send(self.node, WantObjects(wants))
        return waiter

    def watch_more(self, oids: Iterable[bytes], waiter: Waiter) -> list[bytes]:
        """Let a waiter wait for these too; return those that are ready already."""
        wants: list[bytes] = []
        ready = []
        for oid in oids:
            missing = waiter.missing
            self._watch(oid, waiter, wants)
            if waiter.missing == missing:
                ready.append(oid)
        if wants:
            self.ctx.send(self.node, WantObjects(wants))
        return ready

    def unfetched(self, oids: Iterable[bytes], waiter: Waiter) -> list[bytes]:
        """Return those that a waiter waited for because they were to be brought here."""
        found = []
        for oid in self._object_waiters.keys() & oids:
            waiting = self._object_waiters[oid]
            if waiter in waiting and self.made(oid):
                self._object_waiters[oid] = [w for w in waiting if w is not waiter]
                waiter.missing -= 1
                found.append(oid)
        return found

    def unwatch(self, oids: Iterable[bytes], waiter: Waiter) -> None:
        """Forget a waiter that gave up."""
        for oid in oids:
            array, index, _ = split_object_id(oid)
            entry = self.entries.get(array)
            if entry is not None and entry.waiters is not None and index in entry.waiters:
                left = [pair for pair in entry.waiters[index] if pair[1] is not waiter]
                if left:
                    entry.waiters[index] = left
                else:
                    del entry.waiters[index]
            waiting = self._object_waiters.get(oid)
            if waiting is not None:
                # The request is under way: its key stays, so it is not made twice.
                self._object_waiters[oid] = [w for w in waiting if w is not waiter]

    def plain_entries(self, oids: Iterable[bytes]) -> list[Entry] | None:
        """Return the entries of own objects that are single values, small or not made yet.

        None if any of them is something else.
        """
        entries, local = self.entries, self.local
        found = []
        for oid in oids:
            entry = entries.get(oid[:ARRAY_BYTES])
            if entry is None or entry.count != 1 or entry.returns != 1 or entry.items is not None:
                return None
            result = entry.result
            if result is not None and result.sizes and result.status == OK:
                return None
            found.append(entry)
        return found if not local or local.keys().isdisjoint(oids) else None

    def unwatch_array(self, entry: Entry, waiter: Waiter) -> None:
        """Forget a waiter for a whole array that gave up."""
        if entry.all_waiters is not None:
            entry.all_waiters = [w for w in entry.all_waiters if w is not waiter]

    def watch_array(self, entry: Entry) -> Waiter:
        """Return a waiter for every result of an array (large values stay put)."""
        waiter = Waiter()
        if entry.missing:
            waiter.missing = 1
            if entry.all_waiters is None:
                entry.all_waiters = []
            entry.all_waiters.append(waiter)
        return waiter

    def value(self, oid: bytes) -> ObjectValue | None:
        """Return the object if its value is here, else None."""
        value = self.local.get(oid)
        if value is not None:
            return value
        entry = self.entries.get(oid[:ARRAY_BYTES])
        if entry is None:
            return None
        if entry.count == entry.returns == 1 and entry.items is None:
            # As nearly all are: nothing has to be looked for.
            result = entry.result
            if result is None or (result.status == OK and result.sizes and result.sizes[0] > 0):
                return None
            return ObjectValue(oid, result.status, result.payload, entry.position)
        _, index, ret = split_object_id(oid)
        result = entry.find(index)
        if result is None:
            return None
        if result.status != OK:
            return ObjectValue(oid, result.status, result.payload)
        if result.sizes and result.sizes[ret] > 0:
            return None
        position = result.position + (index - result.start) * entry.returns + ret
        return ObjectValue(oid, OK, result.payload, position)

    def values(self, oids: Iterable[bytes]) -> list[ObjectValue | None]:
        """Return what `value` does, of many."""
        entries, local = self.entries, self.local
        found: list[ObjectValue | None] = []
        for oid in oids:
            entry = entries.get(oid[:ARRAY_BYTES])
            if entry is not None and entry.count == entry.returns == 1 and entry.items is None:
                result = entry.result
                if result is not None and oid not in local and entry.is_small():
                    found.append(ObjectValue(oid, result.status, result.payload, entry.position))
                    continue
            found.append(self.value(oid))
        return found

    def made(self, oid: bytes) -> bool:
        """Whether the object exists, here or on another node, as far as known."""
        if oid in self.local:
            return True
        array, index, _ = split_object_id(oid)
        entry = self.entries.get(array)
        return entry is not None and entry.find(index) is not None

    def _watch(self, oid: bytes, waiter: Waiter, wants: list[bytes]) -> None:
        entry = self.entries.get(oid[:ARRAY_BYTES])
        if entry is not None and entry.count == 1 and entry.result is None and entry.items is None:
            if oid in self.local:
                return
            waiter.missing += 1
            if entry.waiters is None:
                entry.waiters = {0: [(oid, waiter)]}
            else:
                entry.waiters.setdefault(0, []).append((oid, waiter))
            return
        if self.value(oid) is not None or (not waiter.fetch and self.made(oid)):
            return
        waiter.missing += 1
        array, index, _ = split_object_id(oid)
        entry = self.entries.get(array)
        if entry is not None and entry.find(index) is None:
            if entry.waiters is None:
                entry.waiters = {}
            entry.waiters.setdefault(index, []).append((oid, waiter))
            return
        waiting = self._object_waiters.get(oid)
        if waiting is None:
            self._object_waiters[oid] = [waiter]
            wants.append(oid)
        else:
            waiting.append(waiter)

    # -- what comes in ---------------------------------------------------------

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        if isinstance(message, TaskResults):
            wants: list[bytes] = []
            for result in message.results:
                if result.calls:
                    self._on_run(result, wants)
                else:
                    self._on_result(result, wants)
            if wants:
                self.ctx.send(self.node, WantObjects(wants))
        elif isinstance(message, ObjectsReady):
            for value in message.values:
                self._on_ready(value)
        elif isinstance(message, ObjectAllocated):
            self.allocations[message.object] = message.offset
            if message.offset < 0:
                self.full_reasons[message.object] = message.reason
            self._wake(message.object)
        elif isinstance(message, KvReply | TaskFound):
            found = message.value if isinstance(message, KvReply) else message.row
            self.replies[message.request] = found
            self._wake(message.request.to_bytes(8, "big"))
        elif isinstance(message, QueryReply):
            self.replies[message.key] = message.value
            self._wake(message.key.to_bytes(8, "big"))
        elif isinstance(message, ActorFound):
            self.replies[message.key] = message
            self._wake(message.key.to_bytes(8, "big"))
        elif isinstance(message, RefUpdates):
            self.borrowing.on_updates(message)
        elif isinstance(message, BorrowersGone):
            self.borrowing.on_gone(message)
        elif isinstance(message, GiveBack):
            self._give_back()
        elif isinstance(message, TooLong):
            results = results_of(message, node_of(self.address))
            self.handle(self.node, TaskResults(self.address, results))
        else:
            raise TypeError(f"a client was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    def _on_run(self, run: RangeResult, wants: list[bytes]) -> None:
        """Calls have ended; their values are one after another in the payload."""
        entries = self.entries
        held: Entry | None = None
        ended = 0
        for position, array in enumerate(split(run.calls)):
            entry = entries.get(array)
            if entry is None or entry.result is not None:
                continue
            entry.result = run
            entry.position = position
            entry.missing = 0
            if entry.waiters is not None:
                self._wake_elements(entry, run, wants)
            deps = entry.deps
            if len(deps) != 1 or entry.keeper or entry.all_waiters is not None:
                self._complete(entry)
                continue
            # It holds its actor alone: let go of once for all calls.
            of = entries.get(deps[0][:ARRAY_BYTES])
            if of is None or (held is not None and of is not held):
                self._complete(entry)
                continue
            held = of
            ended += 1
            entry.deps = ()
            if not entry.refs:
                self.release_if_free(entry)
        if held is not None:
            held.holds -= ended
            if not held.holds:
                self.release_if_free(held)

    def _on_result(self, result: RangeResult, wants: list[bytes]) -> None:
        entry = self.entries.get(result.array)
        if result.refs is not None:
            for array in self.borrowing.on_result(result.refs):
                if entry is not None and array not in (entry.kept or ()):
                    entry.kept = {**(entry.kept or {}), array: None}
                    self.hold(array)
        if entry is None:
            return  # released: it was made twice, and this is the second
        if result.sizes:
            self.large_results += 1
        if result.start >= STREAM_BASE:
            self._on_item(entry, result, wants)
            return
        if entry.count == 1:
            if entry.result is not None:
                return
            entry.result = result
            entry.position = result.position
            entry.missing = 0
        else:
            if entry.covered is None:
                entry.covered = Ranges()
            new = entry.covered.add(result.start, result.count)
            if not new:
                return
            entry.missing -= new
            if entry.results is None:
                entry.results = [result]
            elif entry.results[-1].start > result.start:
                at = bisect_right(entry.results, result.start, key=_start)
                entry.results.insert(at, result)
            else:
                entry.results.append(result)
        if entry.waiters is not None:
            self._wake_elements(entry, result, wants)
        if not entry.missing:
            self._complete(entry)

    def _on_item(self, entry: Entry, result: RangeResult, wants: list[bytes]) -> None:
        if entry.items is None:
            return
        if result.status != OK and entry.result is None:
            # It ran again and failed before it came as far as before: what came stays,
            # and the error is what comes next.
            known = entry.items.get(result.start)
            if known is not None and known.status == OK:
                while result.start in entry.items:
                    result = replace(result, start=result.start + 1)
        if result.start not in entry.items:
            entry.items[result.start] = result
            if entry.waiters is not None:
                self._wake_elements(entry, result, wants)

    def _wake_elements(self, entry: Entry, result: RangeResult, wants: list[bytes]) -> None:
        assert entry.waiters is not None
        if entry.count == 1 and entry.items is None and entry.is_small():
            for oid, waiter in entry.waiters.pop(0, ()):
                waiter.missing -= 1
                if waiter.arrived is not None:
                    waiter.arrived.append(oid)
            entry.waiters = None
            return
        for index in range(result.start, result.start + result.count):
            for oid, waiter in entry.waiters.pop(index, ()):
                missing = waiter.missing
                waiter.missing -= 1
                self._watch(oid, waiter, wants)
                if waiter.arrived is not None and waiter.missing < missing:
                    waiter.arrived.append(oid)
        if not entry.waiters:
            entry.waiters = None

    def _complete(self, entry: Entry) -> None:
        if entry.all_waiters is not None:
            for waiter in entry.all_waiters:
                waiter.missing -= 1
            entry.all_waiters = None
        if entry.deps:
            deps, entry.deps = entry.deps, ()
            for oid in deps:
                array = oid[:ARRAY_BYTES]
                held = self.entries.get(array)
                if (
                    entry.keeper
                    and array != entry.keeper
                    and (len(oid) == ARRAY_BYTES or (held is not None and held.is_large()))
                ):
                    self._keep(entry.keeper, oid)  # the actor is rebuilt with it
                elif held is not None:
                    self._let_go(held)
                else:
                    self.borrowing.drop(array)
        self.release_if_free(entry)

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

    def _on_ready(self, value: ObjectValue) -> None:
        oid = value.object
        if value.size and oid in self._unpin_later:
            # Still in view from before; one pin is enough.
            self._unpin_later.discard(oid)
            self._unpinned.append(oid)
            self._flush_soon()
        self.local[oid] = value
        entry = self.entries.get(oid[:ARRAY_BYTES])
        if entry is not None:
            if entry.local is None:
                entry.local = []
            entry.local.append(oid)
        self._wake(oid)
        if entry is None and oid not in self.borrowed:
            self._drop_local(oid)

    def _wake(self, key: bytes) -> None:
        for waiter in self._object_waiters.pop(key, ()):
            waiter.missing -= 1
            if waiter.arrived is not None:
                waiter.arrived.append(key)

    # -- counting --------------------------------------------------------------

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
        if entry.deps or entry.kept:
            # Named actors that were there already have never started to be created.
            for oid in (*entry.deps, *(entry.kept or ())):
                self.let_go_of(oid)
        self._released.append(entry.array)
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
