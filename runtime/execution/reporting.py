"""What became of a worker's elements, put into messages for its node.

Values that fit go in the report; larger ones are written to the store first. A report is
of consecutive elements of one range, and with it their time is accounted for: what
reports returns the time up to which that is so.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.api.exceptions import ObjectStoreFullError
from raytwin.runtime.api.options.checks import encodable
from raytwin.runtime.control.core.ids import STREAM_BASE, item_id, object_id
from raytwin.runtime.control.messages import (
    OK,
    RETRY,
    SYSTEM_ERROR,
    USER_ERROR,
    RangeResult,
    ResultRefs,
    TaskSpec,
    Timing,
)
from raytwin.runtime.control.messages.errors import ActorDeath, Cancellation, DeathCause, pack
from raytwin.runtime.control.worker.executor import Executor
from raytwin.runtime.execution.user_errors import ConstructorFailed, users_frames
from raytwin.runtime.session.session import Session
from raytwin.runtime.session.task_submitter import ANY
from raytwin.runtime.session.values import looks_large
from raytwin.runtime.session.world import World

_PLAIN_BYTES = 16
"""The size of a number in a list's serialized form, at most."""
_PLAIN_BYTES_MAX = 1024
"""Longer values are reported at once."""


class Reporter:
    """Reports what a worker has run."""

    def __init__(self, world: World, session: Session, executor: Executor, node: int) -> None:
        self.world = world
        self.session = session
        self.executor = executor
        self.node = node

    # -- values ----------------------------------------------------------------

    def values(self, spec: TaskSpec, started_s: float, values: list[Any]) -> float:
        """Report the values of elements from `Executor.base` on; return the time.

        The list is the reporter's from here on: references in it are dropped first.
        """
        given = values
        start = self._base_of(spec)
        count = len(values)
        try:
            if spec.returns != 1:
                values = list(values[0])
            most = self.session.client.config.inline_bytes_max
            if count == 1 and (
                looks_large(values[0], most)
                if len(values) == 1
                else any(looks_large(value, most) for value in values)
            ):
                # Each on its own at once, so that the large ones are serialized once.
                return self._large(spec, started_s, values)
            serialize = self.world.serialize if spec.returns == 1 else self.world.serialize_values
            payload = serialize(values)
            if payload.nbytes <= self.session.client.config.inline_bytes_max:
                result = RangeResult(
                    spec.array, start, count, OK, payload.to_bytes(), self.node, spec.returns
                )
                if payload.contained or self.session.client.references.counter.loans:
                    if payload.contained:
                        with self.world:
                            result.refs = self.session.references.hand_over(
                                spec.array, payload.contained
                            )
                    del payload
                    given.clear()
                    values = given
                return self._report(spec, result, started_s)
        except Exception as error:
            if count == 1:
                return self.error(one_of(spec, start), started_s, error)
        if count == 1:
            return self._large(spec, started_s, values)
        # Together too large, or one cannot be serialized: one by one.
        for value in values:
            started_s = self.values(spec, started_s, [value])
        return started_s

    def _large(self, spec: TaskSpec, started_s: float, values: list[Any]) -> float:
        """Report one element whose values do not all fit into a message."""
        index = self._base_of(spec)
        small: list[Any] = []
        sizes: list[int] = []
        offsets: list[int] = []
        contained: list[ObjectRef] = []
        try:
            for ret, value in enumerate(values):
                serialized = self.world.serialize(value)
                contained += serialized.contained
                if serialized.nbytes <= self.session.client.config.inline_bytes_max:
                    small.append(value)
                    sizes.append(0)
                    offsets.append(-1)
                    continue
                oid = object_id(spec.array, index, ret)
                offsets.append(self.session.values.store(oid, serialized))
                sizes.append(serialized.nbytes)
                small.append(None)
            payload = self.world.serialize_values(small).to_bytes()
        except Exception as error:
            with self.world:
                for ret, offset in enumerate(offsets):
                    if offset >= 0:
                        self.session.client.requests.abandon(object_id(spec.array, index, ret))
            return self.error(one_of(spec, index), started_s, error)
        if not any(sizes):
            sizes, offsets = [], []
        result = RangeResult(
            spec.array, index, 1, OK, payload, self.node, spec.returns, tuple(sizes),
            tuple(offsets),
        )  # fmt: skip
        if contained:
            with self.world:
                result.refs = self.session.references.hand_over(spec.array, contained)
        if contained or self.session.client.references.counter.loans:
            contained.clear()
            small.clear()
            values.clear()
            del value, serialized
        return self._report(spec, result, started_s)

    def early(self, spec: TaskSpec, started_s: float, values: list[Any]) -> float:
        """Report values of a range that still runs, if it can be done at once.

        Called within a turn. Return up to when the range's time is reported.
        """
        try:
            payload = self.world.serialize(values)
        except Exception:
            # Nothing is lost: this report is only early. The range's own report
            # serializes the values again, one by one, and says which one failed.
            return started_s
        if payload.contained:
            return started_s  # the range's own loop sees to them
        if payload.nbytes > self.session.client.config.inline_bytes_max:
            return started_s
        result = RangeResult(
            spec.array, self.executor.base, len(values), OK, payload.to_bytes(), self.node
        )
        return self._report(spec, result, started_s, in_loop=True)

    def pack_plain(self, values: list[Any]) -> bytes:
        return self.world.serialize(values).to_bytes()

    # -- items of a stream ------------------------------------------------------

    def last(self, spec: TaskSpec, index: int, error: Exception) -> None:
        """The generator has raised: that is its last item."""
        self._send_item(spec, index, USER_ERROR, self._pack_error(spec.name, error))

    def item(self, spec: TaskSpec, index: int, value: Any) -> None:
        payload = self.world.serialize([value])
        if payload.nbytes <= self.session.client.config.inline_bytes_max:
            self._send_item(spec, index, OK, payload.to_bytes(), contained=payload.contained)
            return
        serialized = self.world.serialize(value)
        offset = self.session.values.store(item_id(spec.array, index), serialized)
        self._send_item(spec, index, OK, b"", (serialized.nbytes,), (offset,), serialized.contained)

    def _send_item(
        self, spec: TaskSpec, index: int, status: int, payload: bytes,
        sizes: tuple[int, ...] = (), offsets: tuple[int, ...] = (),
        contained: Sequence[ObjectRef] = (),
    ) -> None:  # fmt: skip
        result = RangeResult(
            spec.array, STREAM_BASE + index, 1, status, payload, self.node, 1, sizes, offsets
        )
        self.world.charge("put", 1)
        with self.world:
            self.session.references.collect()
            if contained:
                result.refs = self.session.references.hand_over(spec.array, contained)
            self.executor.items([result])
        self.session.waits.interrupt_here()

    # -- errors -----------------------------------------------------------------

    def error(self, spec: TaskSpec, started_s: float, error: Exception) -> float:
        """Report elements that failed: all of `spec` that are still this worker's."""
        if self.wants_retry(spec, error):
            status, payload = RETRY, b""
            self._end_try(error)
        elif isinstance(error, ObjectStoreFullError) and error.failure is not None:
            status, payload = SYSTEM_ERROR, pack(error.failure)
        elif isinstance(error, ConstructorFailed):
            death = ActorDeath(
                DeathCause.CONSTRUCTOR_RAISED, spec.name, spec.array, encodable(str(error))
            )
            status, payload = SYSTEM_ERROR, pack(death)
        else:
            status, payload = USER_ERROR, self._pack_error(spec.name, error)
        return self._failure(spec, started_s, status, payload)

    def _end_try(self, error: Exception) -> None:
        """What a failed try has made ends before the next one begins: a named actor, say."""
        traceback.clear_frames(error.__traceback__)
        with self.world:
            self.session.references.collect()
            self.session.client.buffer.flush()

    def cancelled(self, spec: TaskSpec, started_s: float, interrupted: bool = True) -> float:
        """Report an element that a cancellation has ended, or a call that has gone on."""
        midway = Cancellation(spec.name, begun=True, interrupted=interrupted)
        return self._failure(spec, started_s, SYSTEM_ERROR, pack(midway))

    def wants_retry(self, spec: TaskSpec, error: Exception) -> bool:
        """Whether an error counts as one of the system, and tries are left.

        A call of an actor is tried again where it is, in its turn: see `actor_execution`.
        What was cancelled is not wanted any more, whatever it makes of that.
        """
        called = spec.extra is not None and spec.extra.call
        cancelled = self.executor.cancelled >= 0
        return bool(spec.retries) and not (called or cancelled) and self.is_retried(spec, error)

    def is_retried(self, spec: TaskSpec, error: Exception) -> bool:
        """Whether the task is to be tried again after such an error."""
        extra = spec.extra
        if extra is None or not extra.retry_on:
            return False
        return extra.retry_on == ANY or isinstance(error, self.world.deserialize(extra.retry_on))

    def _failure(self, spec: TaskSpec, started_s: float, status: int, payload: bytes) -> float:
        with self.world:
            # In one turn: the limit may come down at any other time.
            start = self._base_of(spec)
            count = 1
            if not self.executor.concurrent:
                count = max(1, min(spec.start + spec.count, self.executor.limit) - start)
            result = RangeResult(spec.array, start, count, status, payload, self.node, spec.returns)
            return self._report(spec, result, started_s)

    def _pack_error(self, name: str, error: Exception) -> bytes:
        lines = traceback.format_exception(type(error), error, users_frames(error))
        try:
            # Serialized on its own, so that a cause which cannot be loaded
            # where it is raised again does not take the traceback along.
            cause = self.session.references.dumps(error)
        except Exception as failed:
            cause = None
            lines.append(f"(the exception itself could not be serialized: {failed})\n")
        return self.world.serialize((name, "".join(lines), cause)).to_bytes()

    # -- all of them ------------------------------------------------------------

    def _report(
        self, spec: TaskSpec, result: RangeResult, started_s: float, in_loop: bool = False
    ) -> float:
        self.world.charge("run", result.count)
        now_s = self.world.now()
        timing = Timing(spec.name, started_s, now_s - started_s, result.count)
        with self.world:
            self.session.references.collect()
            borrowing = self.session.client.references.counter
            if borrowing.guarded:
                kept = borrowing.kept_by(spec.array)
                if kept:
                    inside = result.refs or ResultRefs()
                    result.refs = ResultRefs(kept, inside.contained, inside.keeper)
            if self.executor.concurrent:
                self.executor.report_call(result, timing)
            else:
                if not in_loop:
                    self.executor.end_interrupt()
                self.executor.report(result, timing)
        return now_s

    def _base_of(self, spec: TaskSpec) -> int:
        """Return the first element of a range that is not reported."""
        return spec.start if self.executor.concurrent else self.executor.base


def plain_bytes(value: Any) -> int:
    """Return about how long a value is in a list's serialized form; -1 if it is not plain.

    A plain value is short and cannot change, so that it may be serialized later.
    """
    kind = type(value)
    if kind is bytes or kind is str:
        nbytes = _PLAIN_BYTES + 4 * len(value)
    elif kind is int:
        nbytes = _PLAIN_BYTES + value.bit_length()
    elif value is None or kind is float or kind is bool:
        return _PLAIN_BYTES
    else:
        return -1
    return nbytes if nbytes <= _PLAIN_BYTES_MAX else -1


def again(caught: list[BaseException]) -> Any:
    """Raise a caught error where it can be reported.

    Not from a variable: its traceback would refer to it, and all that it keeps alive
    would be so until the garbage collector finds the circle.
    """
    raise caught.pop()


def one_of(spec: TaskSpec, index: int) -> TaskSpec:
    """Return element `index` of a range as a range."""
    return TaskSpec(
        spec.array, index, 1, spec.function, b"", spec.owner, spec.demand, (), spec.returns,
        spec.retries, spec.first, spec.name, spec.extra,
    )  # fmt: skip
