"""`put`, `get` and `wait`: values into the object store and out of it, and errors of failed tasks.

A small value travels in messages, in the serialized list of its range's results. The session
writes a large one into the node's store in three steps: allocate, write, seal (`Client.put`). A
reader gets views of a large value in shared memory, and unpins it when no view is left.

The thread that runs a task gives up the task's CPU while it waits in `get` or `wait`, and
takes it back before it goes on. A wait of any other thread keeps the CPU, which the task
uses meanwhile; so does a wait in virtual time that in real time another thread would do
(`keeping_cpu`), and the runtime's own wait for room in the store or for a reply (`block`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from raytwin.runtime.api.backend import ObjectRef, ObjectRefArray
from raytwin.runtime.api.exceptions import (
    GetTimeoutError,
    RaySystemError,
    UnserializableException,
    make_task_error,
)
from raytwin.runtime.api.failures import exception_of
from raytwin.runtime.api.streams import ObjectRefGenerator
from raytwin.runtime.control.client.owned_arrays import Entry, Waiter
from raytwin.runtime.control.core.ids import FIRST, item_id, object_id
from raytwin.runtime.control.messages import OK, USER_ERROR, ObjectValue, RangeResult
from raytwin.runtime.control.messages.errors import unpack
from raytwin.runtime.control.worker.executor import Executor
from raytwin.runtime.serialization.serialization import unserializable
from raytwin.runtime.session.session_references import GONE, SessionReferences
from raytwin.runtime.session.task_context import TaskContext
from raytwin.runtime.session.wait_group import KEPT_MIN, WaitGroup
from raytwin.runtime.session.world import Serialized

_CONTAINERS = frozenset((list, tuple, dict, set, frozenset))
_ITEM_BYTES = 4
"""The least serialized size of an item of a container: a number's."""


class Waits:
    """Blocks the caller until a value, an item of a stream or a reply is there."""

    def __init__(self, references: SessionReferences) -> None:
        self.world = references.world
        self.client = references.client
        self._references = references
        self._keeps_cpu = False

    def wait(
        self,
        waitables: Sequence[ObjectRef | ObjectRefGenerator],
        num_returns: int,
        timeout_s: float | None,
        fetch_local: bool,
    ) -> tuple[list[Any], list[Any]]:
        refs = [w for w in waitables if isinstance(w, ObjectRef)]
        self._references.check_open(refs)
        client = self.client
        if len(refs) == len(waitables) >= KEPT_MIN:
            with self.world:
                self._references.keep_group(None)
                self.world.charge("watch", len(refs))
                group = WaitGroup(client, refs, fetch_local)
            return self._wait_in(group, num_returns, timeout_s)
        here = client.waits.value if fetch_local else client.waits.made

        def is_ready(waitable: ObjectRef | ObjectRefGenerator) -> bool:
            if isinstance(waitable, ObjectRef):
                return bool(here(waitable.binary()))
            array, index = waitable.position()
            entry = client.entries[array]
            return entry.result is not None or client.waits.made(item_id(array, index))

        def ready_now() -> list[int]:
            ready = (position for position, w in enumerate(waitables) if is_ready(w))
            return list(islice(ready, num_returns))

        with self.world:
            self._references.collect()
            self.world.charge("wait", 1)
            client.buffer.flush()
            ready = ready_now()
            waiter = None
            if len(ready) < num_returns:
                # Even with a time-out of 0: the node fetches missing values for the next call.
                oids = [ref.binary() for ref in refs]
                self.world.charge("watch", len(oids))
                waiter = client.waits.watch(oids, fetch_local)
                awaited = client.pins.begin_get(oids)
        if waiter is not None:
            try:
                if timeout_s != 0:
                    self.until(lambda: len(ready_now()) == num_returns, timeout_s)
            finally:
                with self.world:
                    client.waits.unwatch(oids, waiter)
                    ready = ready_now()
                    client.pins.end_get(awaited)
        chosen = set(ready)
        return (
            [waitables[position] for position in ready],
            [w for position, w in enumerate(waitables) if position not in chosen],
        )

    def wait_again(
        self,
        refs: list[ObjectRef],
        num_returns: int,
        timeout_s: float | None,
        fetch_local: bool,
    ) -> tuple[list[ObjectRef], list[ObjectRef]] | None:
        references = self._references
        group = references.wait_group
        if group is None or references.closed:
            return None
        with self.world:
            # Another thread may have taken the group meanwhile.
            if references.wait_group is not group or not group.accepts(refs, fetch_local):
                return None
            if not 1 <= num_returns <= len(group):
                return None
            references.wait_group = None
        return self._wait_in(group, num_returns, timeout_s)

    def _wait_in(
        self, group: WaitGroup, num_returns: int, timeout_s: float | None
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """Wait for a group that no other thread uses, then keep it for the next `wait`."""
        world = self.world
        with world:
            self._references.collect()
            world.charge("wait", 1)
            if group.ready() >= num_returns:
                found = group.take(num_returns)
                self._references.keep_group(group)
                return found
            self.client.buffer.flush()
        done = False
        try:
            if timeout_s != 0:
                self.until(lambda: group.ready() >= num_returns, timeout_s)
            done = True
        finally:
            with world:
                group.ready()
                if done:
                    found = group.take(num_returns)
                    self._references.keep_group(group)
                else:
                    group.dissolve()
        return found

    # -- giving up the CPU -----------------------------------------------------

    @contextmanager
    def keeping_cpu(self) -> Iterator[None]:
        """Return a context in which the running task keeps its CPU while it waits."""
        before, self._keeps_cpu = self._keeps_cpu, True
        try:
            yield
        finally:
            self._keeps_cpu = before

    def until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait for user code: the running task gives up its CPU meanwhile.

        Return whether the condition came true. Raises RaySystemError if the cluster is gone,
        KeyboardInterrupt if the calling task was cancelled.
        """
        world = self.world
        executor = world.executor
        if executor is None or executor.running is None or not world.on_task_thread():
            return world.block(ready, timeout_s)
        with world:
            if ready():
                return True
            # Only the outer wait blocks: a signal's handler may wait within a wait.
            if not self._keeps_cpu and not executor.suspended:
                executor.block()
        try:
            done = world.block(lambda: ready() or executor.interrupt, timeout_s)
        finally:
            self._take_cpu_back(executor)
        self.interrupt_here()
        return done

    def _take_cpu_back(self, executor: Executor) -> None:
        """Ask the node for the CPU, and return once the node has given it back."""
        with self.world:
            if not executor.suspended:
                return
            resumes = executor.resumes
            executor.unblock()
        self.world.block(lambda: executor.resumes != resumes, None)

    def interrupt_here(self) -> None:
        """Raise KeyboardInterrupt if the calling task was cancelled; called where that is safe."""
        executor = self.world.executor
        if executor is not None and executor.interrupt and self.world.on_task_thread():
            executor.interrupt = False
            raise KeyboardInterrupt

    def block(self, waiter: Waiter, timeout_s: float | None) -> bool:
        """Wait for the runtime itself, while the task keeps its CPU."""
        if not waiter.missing:
            return True
        return self.world.block(lambda: not waiter.missing, timeout_s)


class StreamItems:
    """Waits for the items of the streams that this process owns."""

    def __init__(self, references: SessionReferences, waits: Waits) -> None:
        self.world = references.world
        self.client = references.client
        self._references = references
        self._waits = waits

    def next_item(self, array: bytes, index: int, timeout_s: float | None) -> ObjectRef | None:
        """Wait for item `index`; return its reference, or None if the stream has ended before it.

        Raises GetTimeoutError.
        """
        self._references.check_open()
        client = self.client
        oid = item_id(array, index)
        with self.world:
            self._references.collect()
            self.world.charge("next", 1)
            client.buffer.flush()
            entry = client.entries[array]
        assert entry.items is not None

        def ready() -> bool:
            return entry.result is not None or client.waits.made(oid)

        if not ready() and not self._waits.until(ready, timeout_s):
            raise GetTimeoutError(f"item {index} was not there after {timeout_s} s")
        ref = self.item_of(entry, index)
        if ref is not None and ref.binary() == oid and not client.waits.made(oid):
            self._waits.until(lambda: client.waits.made(oid), timeout_s)
        return ref

    def item_of(self, entry: Entry, index: int) -> ObjectRef | None:
        """Return item `index`, which the stream has yielded, or None if the stream has ended."""
        oid = item_id(entry.array, index)
        if self.client.waits.made(oid):
            return ObjectRef(oid, self._references)
        assert entry.result is not None and entry.items is not None
        if entry.result.status != OK:
            # The system failed: one more reference, to the end of the stream, raises the error.
            if index != len(entry.items):
                return None
            return ObjectRef(object_id(entry.array, 0, 0), self._references)
        if index >= self.world.deserialize(entry.result.payload)[0]:
            return None
        # The task ran again, and the item of its first run is on its way.
        return ObjectRef(oid, self._references)


class Values:
    """Stores and loads values, also the inputs of a worker's tasks."""

    def __init__(self, references: SessionReferences, waits: Waits, context: TaskContext) -> None:
        self.world = references.world
        self.client = references.client
        self._references = references
        self._waits = waits
        self._context = context

    def put(self, value: Any) -> ObjectRef:
        self._references.check_open()
        try:
            serialized, large = self._serialized_for_put(value)
        except TypeError as error:
            raise unserializable("the value", error) from error
        with self.world:
            self._references.collect()
            self.world.charge("put", 1)
            array = self._context.next_put()
            if self.world.watcher is not None:
                self.world.watcher.stored(array, serialized.nbytes)
            if not large:
                payload = serialized.to_bytes()
                node = int(self.client.node.partition(":")[2])
                result = RangeResult(array, 0, 1, OK, payload, node)
                if serialized.contained:
                    result.refs = self._references.pin_contained(array, serialized.contained)
                return self._references.refs_to(self.client.submitter.put(result))[0]
        return self.put_large(array, serialized)

    def _serialized_for_put(self, value: Any) -> tuple[Serialized, bool]:
        """Return a value, serialized, and whether it is large; a small value is in a list."""
        inline_bytes_max = self.client.config.inline_bytes_max
        if looks_large(value, inline_bytes_max):
            serialized = self.world.serialize(value)
            if serialized.nbytes > inline_bytes_max:
                return serialized, True
        serialized = self.world.serialize([value])
        if serialized.nbytes > inline_bytes_max:
            return self.world.serialize(value), True
        return serialized, False

    def put_large(self, array: bytes, value: Serialized) -> ObjectRef:
        """Store a value as the one object of an array. Raises ObjectStoreFullError."""
        oid = object_id(array, 0, 0)
        offset = self.store(oid, value)
        with self.world:
            node = int(self.client.node.partition(":")[2])
            result = RangeResult(array, 0, 1, OK, b"", node, 1, (value.nbytes,), (offset,))
            if value.contained:
                result.refs = self._references.pin_contained(array, value.contained)
            self.client.submitter.put(result)
            return ObjectRef(oid, self._references)

    def store(self, oid: bytes, value: Serialized) -> int:
        """Write a large value into the store; return its offset.

        Raises ObjectStoreFullError.
        """
        offset = self._allocate(oid, value.nbytes)
        full = self.client.requests.full.pop(oid, None)
        if full is not None:
            raise exception_of(full)
        try:
            self.world.write(oid, offset, value)
        except BaseException:
            with self.world:
                self.client.requests.abandon(oid)
            raise
        return offset

    def _allocate(self, oid: bytes, nbytes: int) -> int:
        with self.world:
            self._references.collect()
            # Releases that the client has not sent yet may make room.
            self.client.buffer.flush()
            waiter = self.client.requests.allocate(oid, nbytes)
        self._waits.block(waiter, None)
        return self.client.requests.allocations.pop(oid)

    # -- getting ---------------------------------------------------------------

    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        self._references.check_open(refs)
        oids = list(map(ObjectRef.binary, refs))
        client = self.client
        with self.world:
            self._references.collect()
            self.world.charge("get", len(oids))
            client.buffer.flush_held()
            # The common cases, one value that is here and small results, need no waiter.
            value = client.waits.value(oids[0]) if len(oids) == 1 else None
            entries = client.waits.pending_entries(oids) if value is None else None
            seen = client.waits.errors, client.waits.large
        if value is not None and not value.size:
            return [self.decode(value)]
        left_s = timeout_s
        if entries is not None:
            began_s = self.world.now()
            small = self._await_small(entries, seen, timeout_s)
            if small is not None:
                return self._decode_all(small)
            if timeout_s is not None:
                left_s = max(0.0, timeout_s - (self.world.now() - began_s))
        with self.world:
            waiter = client.waits.watch(oids)
            # Decided in the turn, as values may arrive as soon as it ends.
            here = not waiter.missing
            if here:
                values = self._look_at(oids)
            else:
                client.waits.fail_early(oids, waiter)
                # The node keeps large values that arrive until all are here, even in a full store.
                awaited = client.pins.begin_get(oids)
        if not here:
            values = self._await(oids, waiter, awaited, timeout_s, left_s)
        return self._decode_all(values)

    def _await_small(
        self, entries: list[Entry], seen: tuple[int, int], timeout_s: float | None
    ) -> list[ObjectValue] | None:
        """Wait for single tasks that this process owns; return their values if all are small.

        Returns None at the time-out, and as soon as the client has received an error or a large
        value of any task, beyond the counts `seen`: those need a waiter.
        """
        left = len(entries)
        client = self.client

        def ready() -> bool:
            nonlocal left
            # A task that is done stays done, so only the last unfinished one is examined.
            while left and entries[left - 1].result is not None:
                left -= 1
            return not left or seen != (client.waits.errors, client.waits.large)

        if not self._waits.until(ready, timeout_s) or left:
            return None
        found = []
        for entry in entries:
            result = entry.result
            assert result is not None
            if result.sizes or result.status != OK:
                return None
            oid = entry.array + FIRST
            found.append(ObjectValue(oid, OK, result.payload, entry.position))
        return found

    def _await(
        self,
        oids: Sequence[bytes],
        waiter: Waiter,
        awaited: frozenset[bytes],
        timeout_s: float | None,
        left_s: float | None,
    ) -> list[ObjectValue]:
        """Wait for values; raise the error of the first task that failed, or GetTimeoutError.

        `left_s` of `timeout_s` is left. The first error ends the wait: see `Waits.fail_early`.
        """
        client = self.client
        failed: ObjectValue | None = None

        def done() -> bool:
            nonlocal failed
            if waiter.failed:
                failed = client.waits.first_error(oids)
            return failed is not None or not waiter.missing

        try:
            self._waits.until(done, left_s)
            with self.world:
                if not waiter.missing:
                    return self._look_at(oids)
                late = sum(client.waits.value(oid) is None for oid in oids)
        finally:
            with self.world:
                if waiter.missing:
                    client.waits.unwatch(oids, waiter)
                client.pins.end_get(awaited)
        if failed is not None:
            raise self.error_of(failed.status, failed.payload, failed.object)
        raise _too_late(late, len(oids), timeout_s)

    def _look_at(self, oids: Sequence[bytes]) -> list[ObjectValue]:
        """Return values that are here; pin the large ones while a view reads them."""
        found = []
        for value in self.client.waits.values(oids):
            assert value is not None, "a value vanished while it was awaited"
            if value.size:
                self.client.pins.add_view(value.object)
            found.append(value)
        return found

    def get_array(self, refs: ObjectRefArray, timeout_s: float | None) -> list[Any]:
        count = len(refs)
        if not count:
            return []
        if self._references.closed or refs._holder is not self._references:
            raise RaySystemError(GONE)
        began_s = self.world.now()
        client = self.client
        with self.world:
            self._references.collect()
            self.world.charge("get", 1)
            client.buffer.flush()
            entry = client.entries[refs._array]
            waiter = client.waits.watch_array(entry)
        if waiter.missing:
            try:
                self._waits.until(lambda: not waiter.missing or waiter.failed, timeout_s)
            finally:
                with self.world:
                    client.waits.unwatch_array(entry, waiter)
        with self.world:
            failed = client.waits.first_failed(entry)
            late = entry.missing
        if failed is not None:
            raise self.error_of(failed.status, failed.payload)
        if late:
            raise _too_late(late, count, timeout_s)
        results = [entry.result] if entry.count == 1 else entry.results or []
        large = [r.start for r in results if r is not None and r.sizes]
        if large:
            left_s = None if timeout_s is None else max(0.0, began_s + timeout_s - self.world.now())
            fetched = dict(zip(large, self.get([refs[i] for i in large], left_s), strict=True))
        values: list[Any] = []
        for result in results:
            assert result is not None
            # A range that ran twice may overlap the values so far.
            skip = len(values) - result.start
            if skip >= result.count:
                continue
            if result.sizes:
                values.append(fetched[result.start])
            else:
                first = result.position
                found = self.world.deserialize(result.payload)
                values += found[first + skip : first + result.count]
                if self._references.received:
                    self._references.contained_in_value(result.array)
        return values

    # -- decoding --------------------------------------------------------------

    def _decode_all(self, values: list[ObjectValue]) -> list[Any]:
        """Load values; load small ones of one payload together."""
        values.reverse()
        found: list[Any] = []
        payload: bytes | None = None
        loaded: Sequence[Any] = ()
        taken: set[int] = set()
        try:
            while values:
                value = values.pop()
                if value.size:
                    found.append(self._decode_viewed(value))
                    continue
                # A value that was returned already is loaded again: each reference gets a copy.
                if value.payload is not payload or value.position in taken:
                    payload = value.payload
                    loaded = self._load(value)
                    taken.clear()
                found.append(loaded[value.position])
                taken.add(value.position)
                if self._references.received:
                    self._references.contained_in_value(value.object)
                    payload = None
        finally:
            for value in values:
                if value.size:
                    self._references.released_values.append(value.object)
        return found

    def _decode_viewed(self, value: ObjectValue) -> Any:
        """Load a large value that `_look_at` has pinned."""
        oid = value.object
        released_values = self._references.released_values
        read = self.world.read(oid, value.offset, value.size, lambda: released_values.append(oid))
        if self._references.received:
            self._references.contained_in_value(oid)
        return read

    def decode(self, value: ObjectValue) -> Any:
        """Load a small value, or raise the error of its task."""
        decoded = self._load(value)[value.position]
        if self._references.received:
            self._references.contained_in_value(value.object)
        return decoded

    def _load(self, value: ObjectValue) -> Sequence[Any]:
        """Return all values of a small value's payload, or raise the error of its task."""
        if value.status != OK:
            raise self.error_of(value.status, value.payload, value.object)
        return self.world.deserialize(value.payload)

    def decode_input(self, value: ObjectValue) -> Any:
        """Load a task's input, which the node has pinned for this task."""
        if not value.size:
            if value.status != OK:
                raise self.error_of(value.status, value.payload)
            return self.world.deserialize(value.payload)[value.position]
        oid = value.object
        done = self._references.released_inputs
        return self.world.read(oid, value.offset, value.size, lambda: done.append(oid))

    def skip_input(self, value: ObjectValue) -> None:
        """Release the pin of an input that the task will not load."""
        if value.size:
            self._references.released_inputs.append(value.object)

    def error_of(self, status: int, payload: bytes, oid: bytes = b"") -> BaseException:
        """Return the exception of a failed range."""
        if status == USER_ERROR:
            name, text, cause = self.world.deserialize(payload)
            if isinstance(cause, bytes):
                cause = self._cause_of(cause, text)
            return make_task_error(name, text, cause)
        return exception_of(unpack(payload), oid)

    def _cause_of(self, pickled: bytes, text: str) -> Any:
        try:
            return self.world.deserialize(pickled)
        except Exception as error:
            # The exception cannot be loaded here; its traceback is text.
            return UnserializableException(f"{type(error).__name__}: {error}\n{text}")


def _too_late(late: int, count: int, timeout_s: float | None) -> GetTimeoutError:
    return GetTimeoutError(f"{late} of {count} values were not there after {timeout_s} s")


def looks_large(value: Any, nbytes: int) -> bool:
    """Guess whether `value` takes more than `nbytes` when it is serialized.

    After a wrong guess the caller serializes the value twice; nothing else depends on it.
    """
    kind = type(value)
    if kind is bytes or kind is str or kind is bytearray:
        return len(value) > nbytes
    if kind in _CONTAINERS:
        return len(value) > nbytes // _ITEM_BYTES
    try:
        size = getattr(value, "nbytes", None)
    except Exception:
        return False  # a user's property raised; only errors of pickling count
    return type(size) is int and size > nbytes
