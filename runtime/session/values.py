"""Values: into the store and out of it, and the errors that stand for them.

A small value rides in messages, as the serialized list that its range's results
are. A large one is written into the node's store: allocate, write, then say so
(`put`), and is looked at where it is; its pin is given back when no view is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from raytwin.runtime.api.backend import Serialized, World
from raytwin.runtime.api.exceptions import (
    GetTimeoutError,
    RaySystemError,
    UnserializableException,
    make_task_error,
)
from raytwin.runtime.api.failures import exception_of
from raytwin.runtime.api.refs import ObjectRef, ObjectRefArray
from raytwin.runtime.api.streams import Place
from raytwin.runtime.control.client.owned_arrays import Entry, Waiter
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.core.stream_ids import item_id
from raytwin.runtime.control.messages import OK, USER_ERROR, ObjectValue, RangeResult
from raytwin.runtime.control.messages.errors import unpack
from raytwin.runtime.session.futures import FutureDesk
from raytwin.runtime.session.numbering import Numbering
from raytwin.runtime.session.session_references import GONE
from raytwin.runtime.session.waiting import Waiting

_CONTAINERS = frozenset((list, tuple, dict, set, frozenset))
_ITEM_BYTES = 4
"""Of an item of a container, at least: a number's."""
_FOREIGN_MAX = 3
"""Errors of others, after which a `get` of many does not look among its own any more."""


class Values(Numbering, Waiting):
    """`put` and `get`, and what a worker does with inputs and results."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.futures = FutureDesk(self)

    def put(self, value: Any) -> ObjectRef:
        self._check_open()
        serialized, large = self._serialized_for_put(value)
        with self.world:
            self.collect()
            self.world.charge("put", 1)
            array = self._next_put()
            if not large:
                payload = serialized.to_bytes()
                node = int(self.client.node.partition(":")[2])
                result = RangeResult(array, 0, 1, OK, payload, node)
                if serialized.contained:
                    result.refs = self.hand_over(array, serialized.contained)
                return self._refs_to(self.client.submitter.put(result))[0]
        return self._put_large(array, serialized)

    def _serialized_for_put(self, value: Any) -> tuple[Serialized, bool]:
        """Return a value as it is stored, and whether it is large: a small one is in a list."""
        inline_bytes_max = self.client.config.inline_bytes_max
        if looks_large(value, inline_bytes_max):
            serialized = self.world.serialize(value)
            if serialized.nbytes > inline_bytes_max:
                return serialized, True
        serialized = self.world.serialize([value])
        if serialized.nbytes > inline_bytes_max:
            return self.world.serialize(value), True
        return serialized, False

    def _put_large(self, array: bytes, value: Serialized) -> ObjectRef:
        oid = object_id(array, 0, 0)
        offset = self.store(oid, value)
        with self.world:
            node = int(self.client.node.partition(":")[2])
            result = RangeResult(array, 0, 1, OK, b"", node, 1, (value.nbytes,), (offset,))
            if value.contained:
                result.refs = self.hand_over(array, value.contained)
            self.client.submitter.put(result)
            return ObjectRef(oid, self)

    def store(self, oid: bytes, value: Serialized) -> int:
        """Write a large value into the store and return where.

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
            self.collect()
            # What is dropped here makes room first.
            self.client.buffer.flush()
            waiter = self.client.requests.allocate(oid, nbytes)
        self._block(waiter, None)
        return self.client.requests.allocations.pop(oid)

    # -- getting ---------------------------------------------------------------

    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        self._check_open(refs)
        oids = list(map(ObjectRef.binary, refs))
        client = self.client
        with self.world:
            self.collect()
            self.world.charge("get", len(oids))
            client.buffer.flush_held()
            # One that is here is common, and needs nothing of what waiting takes.
            value = client.waits.value(oids[0]) if len(oids) == 1 else None
            plain = client.waits.plain_entries(oids) if value is None else None
            errors = client.waits.errors
        if value is not None and not value.size:
            return [self.decode(value)]
        left_s = timeout_s
        if plain is not None:
            began_s = 0.0 if timeout_s is None else self.world.now()
            if len(plain) == 1:
                taken = self._get_one(oids[0], plain[0], timeout_s)
            else:
                taken = self._get_plain(oids, plain, errors, timeout_s)
            if taken is not None:
                return taken
            if timeout_s is not None:
                left_s = max(0.0, timeout_s - (self.world.now() - began_s))
        with self.world:
            waiter = client.waits.watch(oids)
            # They may arrive as soon as this turn ends: what was so in it decides.
            here = not waiter.missing
            if here:
                values = self._look_at(oids)
            else:
                client.waits.fail_early(oids, waiter)
                # Large values that arrive stay until all are there, even if the store is full.
                awaited = client.pins.begin_get(oids)
        if not here:
            values = self._await(oids, waiter, awaited, timeout_s, left_s)
        values.reverse()
        found = []
        try:
            while values:
                value = values.pop()
                found.append(self._decode_viewed(value) if value.size else self.decode(value))
        finally:
            for value in values:
                if value.size:
                    self._unviewed.append(value.object)
        return found

    def _await(
        self,
        oids: Sequence[bytes],
        waiter: Waiter,
        awaited: frozenset[bytes],
        timeout_s: float | None,
        left_s: float | None,
    ) -> list[ObjectValue]:
        """Wait for values; raise the error that one of them is, or GetTimeoutError.

        Of `timeout_s` so much is left. One error is enough: see `client_waits`.
        """
        client = self.client
        failed: ObjectValue | None = None

        def done() -> bool:
            nonlocal failed
            if waiter.failed:
                failed = client.waits.first_error(oids)
            return failed is not None or not waiter.missing

        try:
            self._wait_until(done, left_s)
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

    def _get_one(self, oid: bytes, entry: Entry, timeout_s: float | None) -> list[Any] | None:
        """`_get_plain` of a single one."""
        if not self._wait_until(lambda: entry.result is not None, timeout_s):
            raise _too_late(1, 1, timeout_s)
        result = entry.result
        assert result is not None
        if result.sizes or result.status != OK:
            return None
        value = self.world.deserialize(result.payload)[entry.position]
        if self.received:
            self.came_in_value(oid)
        return [value]

    def _get_plain(
        self, oids: Sequence[bytes], entries: list[Entry], errors: int, timeout_s: float | None
    ) -> list[Any] | None:
        """`get` of own single values; None once one of any is large, or an error.

        `errors` had come to the client when these entries were found.
        """
        # What is done stays done: only the last that is not is looked at.
        left = len(entries)
        client = self.client
        large = client.results.large

        failed = False
        foreign = 0

        def any_failed() -> bool:
            return any(e.result is not None and e.result.status != OK for e in entries)

        def ready() -> bool:
            nonlocal left, errors, failed, foreign
            while left and entries[left - 1].result is not None:
                left -= 1
            if client.waits.errors != errors:
                # One of these, or of what nobody here waits for; if of that many fail, `watch`
                # tells them apart.
                errors = client.waits.errors
                foreign += 1
                failed = foreign > _FOREIGN_MAX or any_failed()
            # Large values are fetched as they are made: that is for `watch` to do.
            return not left or failed or client.results.large != large

        if not ready():
            if errors and any_failed():
                return None
            if not self._wait_until(ready, timeout_s):
                late = sum(entry.result is None for entry in entries)
                raise _too_late(late, len(oids), timeout_s)
        if left:
            return None
        found = []
        payload: bytes | None = None
        values: Sequence[Any] = ()
        taken: set[int] = set()
        for oid, entry in zip(oids, entries, strict=True):
            result, position = entry.result, entry.position
            assert result is not None
            if result.sizes or result.status != OK:
                return None
            # What was handed out is loaded again: everybody gets one of his own.
            if result.payload is not payload or position in taken:
                payload = result.payload
                values = self.world.deserialize(payload)
                taken.clear()
            found.append(values[position])
            taken.add(position)
            if self.received:
                self.came_in_value(oid)
                payload = None
        return found

    def _look_at(self, oids: Sequence[bytes]) -> list[ObjectValue]:
        """Return the values, which are here; large ones count as looked at from now on."""
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
        if self.closed or refs._holder is not self:
            raise RaySystemError(GONE)
        began_s = self.world.now()
        client = self.client
        with self.world:
            self.collect()
            self.world.charge("get", 1)
            client.buffer.flush()
            entry = client.entries[refs._array]
            waiter = client.waits.watch_array(entry)
        if waiter.missing:
            try:
                self._wait_until(lambda: not waiter.missing or waiter.failed, timeout_s)
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
            # Ranges that ran twice may overlap what is there already.
            skip = len(values) - result.start
            if skip >= result.count:
                continue
            if result.sizes:
                values.append(fetched[result.start])
            else:
                first = result.position
                found = self.world.deserialize(result.payload)
                values += found[first + skip : first + result.count]
                if self.received:
                    self.came_in_value(result.array)
        return values

    def next_item(self, array: bytes, index: int, timeout_s: float | None) -> ObjectRef | None:
        self._check_open()
        client = self.client
        oid = item_id(array, index)
        with self.world:
            self.collect()
            client.buffer.flush()
            entry = client.entries[array]
        assert entry.items is not None

        def ready() -> bool:
            return entry.result is not None or client.waits.made(oid)

        if not ready() and not self._wait_until(ready, timeout_s):
            raise GetTimeoutError(f"item {index} was not there after {timeout_s} s")
        ref = self.item_of(entry, index)
        if ref is not None and ref.binary() == oid and not client.waits.made(oid):
            self._wait_until(lambda: client.waits.made(oid), timeout_s)
        return ref

    def take_item(self, array: bytes, place: Place) -> ObjectRef | None:
        self._check_open()
        client = self.client
        with self.world:
            self.collect()
            client.buffer.flush()
            entry = client.entries[array]
        taken = -1

        def take() -> bool:
            nonlocal taken
            # It is asked again, and by whoever lets time pass for those that wait.
            if taken < 0:
                index = place.index
                ready = entry.result is not None or client.waits.made(item_id(array, index))
                if ready and place.take(index):
                    taken = index
            return taken >= 0

        try:
            with self.world:
                take()
            if taken < 0:
                self._wait_until(take, None)
            return self.next_item(array, taken, None)
        except BaseException:
            if taken >= 0:
                place.give_back(taken)
                self.world.nudge()
            raise

    def item_future(self, array: bytes, index: int) -> Future[ObjectRef | None]:
        self._check_open()
        return self.futures.item(array, index)

    def item_of(self, entry: Entry, index: int) -> ObjectRef | None:
        """Return what is next in a stream that has come so far, or ended; None: the end."""
        oid = item_id(entry.array, index)
        if self.client.waits.made(oid):
            return ObjectRef(oid, self)
        assert entry.result is not None and entry.items is not None
        if entry.result.status != OK:
            # The system failed: the end of the stream says so, once.
            if index != len(entry.items):
                return None
            return ObjectRef(object_id(entry.array, 0, 0), self)
        if index >= self.world.deserialize(entry.result.payload)[0]:
            return None
        # It ran again, and the item is on its way from the first run.
        return ObjectRef(oid, self)

    # -- decoding --------------------------------------------------------------

    def _decode_viewed(self, value: ObjectValue) -> Any:
        """Return a large value that `_look_at` has given."""
        oid = value.object
        read = self.world.read(oid, value.offset, value.size, lambda: self._unviewed.append(oid))
        if self.received:
            self.came_in_value(oid)
        return read

    def decode(self, value: ObjectValue) -> Any:
        """Return a small value, or raise the error that it is."""
        if value.status != OK:
            raise self.error_of(value.status, value.payload, value.object)
        decoded = self.world.deserialize(value.payload)[value.position]
        if self.received:
            self.came_in_value(value.object)
        return decoded

    def decode_input(self, value: ObjectValue) -> Any:
        """Return a task's input, which its node has pinned for this one use."""
        if not value.size:
            if value.status != OK:
                raise self.error_of(value.status, value.payload)
            return self.world.deserialize(value.payload)[value.position]
        oid = value.object
        return self.world.read(oid, value.offset, value.size, lambda: self._inputs_done.append(oid))

    def skip_input(self, value: ObjectValue) -> None:
        """The task will not use an input after all."""
        if value.size:
            self._inputs_done.append(value.object)

    def error_of(self, status: int, payload: bytes, oid: bytes = b"") -> BaseException:
        """Return the exception that a failed range stands for."""
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
            # The exception's class cannot be made here; its traceback can be read.
            return UnserializableException(f"{type(error).__name__}: {error}\n{text}")


def _too_late(late: int, count: int, timeout_s: float | None) -> GetTimeoutError:
    return GetTimeoutError(f"{late} of {count} values were not there after {timeout_s} s")


def looks_large(value: Any, nbytes: int) -> bool:
    """Guess whether `value` takes more than `nbytes` when it is serialized.

    A wrong guess costs serializing it twice and nothing else.
    """
    kind = type(value)
    if kind is bytes or kind is str or kind is bytearray:
        return len(value) > nbytes
    if kind in _CONTAINERS:
        return len(value) > nbytes // _ITEM_BYTES
    try:
        size = getattr(value, "nbytes", None)
    except Exception:
        return False  # a property of the user's; only pickling matters here
    return type(size) is int and size > nbytes
