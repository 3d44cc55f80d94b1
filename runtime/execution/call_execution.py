"""Runs one call, of a task or of an actor: loads, decodes, calls, reports.

A report contains the small values; the worker writes larger ones to the store first. A report is
of consecutive elements of one range, and accounts for their time: the methods of `Reporter` return
the time up to which reports account for the range.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import GeneratorType
from typing import Any

from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.api.exceptions import ObjectStoreFullError, RayError
from raytwin.runtime.api.options.checks import encodable
from raytwin.runtime.api.streams import DynamicObjectRefGenerator
from raytwin.runtime.control.core.ids import STREAM_BASE, item_id, object_id
from raytwin.runtime.control.messages import (
    OK,
    RETRY,
    STREAM,
    SYSTEM_ERROR,
    USER_ERROR,
    Assignment,
    RangeResult,
    ResultRefs,
    TaskSpec,
    Timing,
)
from raytwin.runtime.control.messages.errors import ActorDeath, Cancellation, DeathCause, pack
from raytwin.runtime.control.worker.executor import Executor
from raytwin.runtime.execution.bodies import watched
from raytwin.runtime.execution.user_errors import (
    ConstructorFailed,
    is_cancellation,
    is_error,
    user_traceback,
)
from raytwin.runtime.serialization.pickling import Input
from raytwin.runtime.session import job_setup
from raytwin.runtime.session.session import Session
from raytwin.runtime.session.task_submitter import ANY
from raytwin.runtime.session.values import looks_large
from raytwin.runtime.session.world import World

log = logging.getLogger("raytwin")

_END = object()
_PLAIN_BYTES = 16
"""The most bytes of a number in a list's serialized form."""
_PLAIN_BYTES_MAX = 1024
"""The longest value that waits for later ones, to be reported with them."""


class CallRunner:
    """Runs the calls of one worker, and caches the functions that it has loaded."""

    def __init__(self, world: World, session: Session, executor: Executor, node: int) -> None:
        self.world = world
        self.session = session
        self.references = session.references
        self.executor = executor
        self.reports = Reporter(world, session, executor, node)
        self._functions: dict[bytes, Callable[..., Any]] = {}
        session.actors.loaded = self.function

    def function(self, key: bytes) -> Callable[..., Any]:
        """Return the function or class of an ID; load it once."""
        function = self._functions.get(key)
        if function is None:
            setup, blob = job_setup.unwrap(self.executor.functions[key])
            if setup and setup != self.session.tasks.setup:
                job_setup.apply(setup)
                self.session.tasks.setup = setup
            function = self.world.loads_function(blob)
            watcher = self.world.watcher
            if watcher is not None and not isinstance(function, type):
                function = watched(function, watcher)
            self._functions[key] = function
        return function

    def prepare(
        self, assignment: Assignment, of_actor: Callable[..., Any] | None = None
    ) -> Callable[[], Any]:
        """Return the call with its function loaded and its arguments and inputs decoded."""
        spec = assignment.spec
        unread = list(reversed(assignment.values))
        try:
            function = of_actor or self.function(spec.function)
            if not spec.args:
                return function
            args, kwargs = self.world.deserialize(spec.args)
            self.world.charge("load", 1)
            if unread:
                self.world.charge("input", len(unread))
                inputs = []
                while unread:
                    inputs.append(self.session.values.decode_input(unread.pop()))
                args = [inputs[a.index] if type(a) is Input else a for a in args]
                kwargs = {n: inputs[a.index] if type(a) is Input else a for n, a in kwargs.items()}
        finally:
            for value in unread:
                self.session.values.skip_input(value)
        if self.references.received:
            self.references.contained_in_arguments(spec.array)
            # Drops the arguments with the call: references left after it were kept by user code.
            given = [(args, kwargs)]

            def once() -> Any:
                positional, named = given.pop()
                return function(*positional, **named)

            return once
        return lambda: function(*args, **kwargs)

    def run_simple(
        self, first: Assignment, simple: Callable[[Assignment], Callable[[], Any] | None]
    ) -> Assignment | None:
        """Run calls one after another while they are simple; return the first that is not.

        `simple` returns the call of a simple assignment, else None. Plain values are reported with
        those of the calls before, and need only one turn per call.
        """
        world, executor, references = self.world, self.executor, self.references
        futures, counter = self.session.futures, self.session.client.references.counter
        cancelled = executor.cancelled_calls
        assignment: Assignment | None = first
        started_s = world.now()
        while assignment is not None:
            spec = assignment.spec
            try:
                call = simple(assignment)
                if call is None:
                    return assignment
                # Drops the arguments with the call: the references inside are counted below.
                value = call()
                del call
                if futures.thread is not None:
                    futures.abandon()
            except BaseException as error:
                call = None
                caught = [error]
                self.run_call(spec, lambda: reraise(caught), started_s)  # noqa: B023
                break
            nbytes = plain_bytes(value)
            if nbytes < 0 or counter.guarded or cancelled:
                given = [value]
                del value
                self.run_call(spec, given.pop, started_s)
                break
            world.charge("run", 1)
            now_s = world.now()
            if world.watcher is not None:
                world.watcher.reported(spec, spec.start, 1, nbytes, started_s, now_s)
            with world:
                references.collect()
                executor.report_plain(spec, value, nbytes, started_s, now_s)
                assignment = None if executor.exiting else executor.next()
            started_s = now_s
        if references.dropped:
            self.tidy()
        return None

    def run_call(self, spec: TaskSpec, call: Callable[[], Any], started_s: float) -> None:
        """Run a call and report its value, its error or its cancellation.

        Raises the errors that end the worker: ActorExit, SystemExit and the like.
        """
        try:
            try:
                value = returned(spec, call())
            finally:
                if not self.executor.concurrent:
                    self.session.futures.abandon()
            values = [value]
            del value
            if self.executor.is_cancelled(spec.array):
                values.clear()
                self.reports.cancelled(spec, started_s, interrupted=False)
                return
        except BaseException as error:
            if not is_error(error, self.world):
                raise
            if is_cancellation(error):
                self.reports.cancelled(spec, started_s)
            else:
                self.reports.error(spec, started_s, error)
            return
        self.reports.values(spec, started_s, values)

    # -- a stream --------------------------------------------------------------

    def run_stream(self, spec: TaskSpec, call: Callable[[], Any], started_s: float) -> None:
        """Run a stream: report items as they are yielded, then their number; see `ids`."""
        assert spec.extra is not None
        count = 0
        try:
            try:
                values = call()
                for value in values:
                    if self.executor.is_cancelled(spec.array):
                        close(values)
                        break
                    self.reports.item(spec, count, value)
                    count += 1
                del values
            finally:
                if not self.executor.concurrent:
                    self.session.futures.abandon()
        except BaseException as error:
            if not is_error(error, self.world):
                raise
            if self.executor.is_cancelled(spec.array) or is_cancellation(error):
                self.reports.cancelled(spec, started_s)
                return
            if self.reports.wants_retry(spec, error):
                self.reports.error(spec, started_s, error)
                return
            self.reports.last(spec, count, error)
            count += 1
        if self.executor.is_cancelled(spec.array):
            self.reports.cancelled(spec, started_s, interrupted=False)
            return
        if spec.extra.stream == STREAM:
            self.reports.values(spec, started_s, [count])
            return
        with self.world:
            self.session.client.references.counter.receive(spec.array, spec.owner)
            refs = [
                ObjectRef(item_id(spec.array, index), self.references) for index in range(count)
            ]
        self.reports.values(spec, started_s, [DynamicObjectRefGenerator(refs)])

    def tidy(self) -> None:
        """Count the references that the last task has dropped when it ended."""
        with self.world:
            self.references.collect()


class Returns(tuple[Any, ...]):
    """The values of a task with several return values."""


def returned(spec: TaskSpec, value: Any) -> Any:
    """Return the value of a task with one return value, `Returns` for any other number.

    A generator runs here, and gives as many items as there are return values. Raises
    TypeError and ValueError if the number of values is wrong.
    """
    if spec.returns == 0:
        return Returns()
    if isinstance(value, GeneratorType):
        items = _yielded(spec, value)
        return Returns(items) if spec.returns > 1 else items[0]
    if spec.returns == 1:
        return value
    try:
        items = iter(value)
    except TypeError:
        raise TypeError(
            f"{spec.name}() has num_returns={spec.returns} and returned"
            f" {type(value).__name__}, which is not a sequence"
        ) from None
    values = Returns(items)
    if len(values) != spec.returns:
        raise ValueError(
            f"{spec.name}() has num_returns={spec.returns} and returned {len(values)} values"
        )
    return values


def close(items: Any) -> None:
    """End a generator at its last yield. Raises the generator's own error then."""
    if isinstance(items, GeneratorType):
        items.close()


def _yielded(spec: TaskSpec, generator: Iterator[Any]) -> list[Any]:
    """Return the items of all return values; as in Ray, more items and errors are only logged."""
    items = list(islice(generator, spec.returns))
    if len(items) < spec.returns:
        raise ValueError(
            f"{spec.name}() has num_returns={spec.returns} and yielded {len(items)} values"
        )
    try:
        more = next(generator, _END) is not _END
    except Exception:
        log.exception("%s() raised after it had yielded its return values", spec.name)
    else:
        if more:
            log.error(
                "%s() has num_returns=%d and yielded more, which is lost", spec.name, spec.returns
            )
    return items


class Reporter:
    """Reports the results of a worker's tasks and calls."""

    def __init__(self, world: World, session: Session, executor: Executor, node: int) -> None:
        self.world = world
        self.session = session
        self.executor = executor
        self.node = node

    # -- values ----------------------------------------------------------------

    def values(self, spec: TaskSpec, started_s: float, values: list[Any]) -> float:
        """Report the values of elements from `Executor.base` on; return the time.

        The reporter owns the list, and drops the references in it before it reports.
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
                # One by one at once, so that large values are serialized only once.
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
                            result.refs = self.session.references.pin_contained(
                                spec.array, payload.contained
                            )
                    del payload
                    given.clear()
                    values = given
                return self._report(spec, result, started_s)
        except Exception as error:
            if count == 1:
                return self.error(single_element(spec, start), started_s, error)
        if count == 1:
            return self._large(spec, started_s, values)
        # The values are together too large, or one cannot be serialized: one by one.
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
            return self.error(single_element(spec, index), started_s, error)
        if not any(sizes):
            sizes, offsets = [], []
        result = RangeResult(
            spec.array, index, 1, OK, payload, self.node, spec.returns, tuple(sizes),
            tuple(offsets),
        )  # fmt: skip
        if contained:
            with self.world:
                result.refs = self.session.references.pin_contained(spec.array, contained)
        if contained or self.session.client.references.counter.loans:
            contained.clear()
            small.clear()
            values.clear()
            del value, serialized
        return self._report(spec, result, started_s)

    def early(self, spec: TaskSpec, started_s: float, values: list[Any]) -> float:
        """Report small values without references of a range that still runs.

        Called within a turn. Return the time up to which reports account for the range.
        """
        try:
            payload = self.world.serialize(values)
        except Exception:
            # The range's own report serializes the values again, one by one, and
            # reports the error of the one that fails.
            return started_s
        if payload.contained:
            return started_s  # the range's own loop reports them
        if payload.nbytes > self.session.client.config.inline_bytes_max:
            return started_s
        result = RangeResult(
            spec.array, self.executor.base, len(values), OK, payload.to_bytes(), self.node
        )
        return self._report(spec, result, started_s, in_loop=True)

    def pack_plain(self, values: list[Any]) -> bytes:
        return self.world.serialize(values).to_bytes()

    # -- items of a stream ------------------------------------------------------

    def last(self, spec: TaskSpec, index: int, error: BaseException) -> None:
        """Report the error that a generator has raised, as its last item."""
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
        self.world.charge("item", 1)
        with self.world:
            self.session.references.collect()
            if contained:
                result.refs = self.session.references.pin_contained(spec.array, contained)
            self.executor.items([result])
        self.session.waits.interrupt_here()

    # -- errors -----------------------------------------------------------------

    def error(self, spec: TaskSpec, started_s: float, error: BaseException) -> float:
        """Report the failure of all elements of `spec` that this worker still has."""
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

    def _end_try(self, error: BaseException) -> None:
        """End the children of a failed try, such as a named actor, before the next try begins."""
        traceback.clear_frames(error.__traceback__)
        with self.world:
            self.session.references.collect()
            self.session.client.buffer.flush()

    def cancelled(self, spec: TaskSpec, started_s: float, interrupted: bool = True) -> float:
        """Report a cancelled element: interrupted, or run to its end nevertheless."""
        midway = Cancellation(spec.name, begun=True, interrupted=interrupted)
        return self._failure(spec, started_s, SYSTEM_ERROR, pack(midway))

    def wants_retry(self, spec: TaskSpec, error: BaseException) -> bool:
        """Whether the system retries a task after this error, and retries are left.

        A call of an actor is retried within the call: see `ActorInstance.method`.
        A cancelled task or call is not retried, whatever it raises.
        """
        called = spec.extra is not None and spec.extra.call
        cancelled = self.executor.cancelled >= 0
        return bool(spec.retries) and not (called or cancelled) and self.is_retried(spec, error)

    def is_retried(self, spec: TaskSpec, error: BaseException) -> bool:
        """Whether the task's options ask for a retry after such an error."""
        extra = spec.extra
        if extra is None or not extra.retry_on:
            return False
        return extra.retry_on == ANY or isinstance(error, self.world.deserialize(extra.retry_on))

    def _failure(self, spec: TaskSpec, started_s: float, status: int, payload: bytes) -> float:
        with self.world:
            # In one turn, as the node may lower the limit between turns.
            start = self._base_of(spec)
            count = 1
            if not self.executor.concurrent:
                count = max(1, min(spec.start + spec.count, self.executor.limit) - start)
            result = RangeResult(spec.array, start, count, status, payload, self.node, spec.returns)
            return self._report(spec, result, started_s)

    def _pack_error(self, name: str, error: BaseException) -> bytes:
        lines = traceback.format_exception(type(error), error, user_traceback(error))
        try:
            # Serialized on its own, so that the traceback arrives even if the
            # exception cannot be loaded there.
            cause = self.session.references.dumps(error)
        except Exception as failed:
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            text = f"Exception {kind} isn't serializable: {failed}"
            lines.append(f"({text})\n")
            cause = self.session.references.dumps(RayError(encodable(text)))
        return self.world.serialize((name, "".join(lines), cause)).to_bytes()

    # -- all of them ------------------------------------------------------------

    def _report(
        self, spec: TaskSpec, result: RangeResult, started_s: float, in_loop: bool = False
    ) -> float:
        self.world.charge("run", result.count)
        now_s = self.world.now()
        timing = Timing(spec.name, started_s, now_s - started_s, result.count)
        watcher = self.world.watcher
        if watcher is not None:
            nbytes = len(result.payload) + sum(result.sizes)
            watcher.reported(spec, result.start, result.count, nbytes, started_s, now_s)
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
        """Return the first unreported element of a range."""
        return spec.start if self.executor.concurrent else self.executor.base


def plain_bytes(value: Any) -> int:
    """Return a value's approximate size in a list's serialized form; -1 if it is not plain.

    A plain value is short and immutable, so it may be serialized later.
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


def reraise(caught: list[BaseException]) -> Any:
    """Raise a caught error again, so that `run_call` reports it.

    The error is popped, not in a variable: its traceback would refer to the frame that refers to
    the error, and only the garbage collector would free that cycle.
    """
    raise caught.pop()


def single_element(spec: TaskSpec, index: int) -> TaskSpec:
    """Return element `index` of a range as a range."""
    return TaskSpec(
        spec.array, index, 1, spec.function, b"", spec.owner, spec.demand, (), spec.returns,
        spec.retries, spec.first, spec.name, spec.extra,
    )  # fmt: skip
