"""Running tasks in a worker: decode, call, encode, report.

A range of short tasks is one loop with one report; between elements the loop
looks up only when told to (`World.due`). An element's error, or a value too
large for a message, ends a report early: such an element is reported alone.

The loop cannot look up while an element runs. Where a process has a thread to
spare, that calls `TaskRunner.report_meanwhile`, so that the values before a long
element are not held back by it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from runtime.api.exceptions import ObjectStoreFullError
from runtime.api.refs import ObjectRef
from runtime.api.streams import DynamicObjectRefGenerator
from runtime.backend import job_setup
from runtime.backend.actor_execution import ActorRunner, ConstructorFailed, users_frames
from runtime.backend.ends import was_cancelled
from runtime.backend.inputs import Input
from runtime.backend.plain import again, plain_bytes
from runtime.backend.protocol import World
from runtime.backend.session import Session
from runtime.backend.session.values import looks_large
from runtime.backend.submission import ANY
from runtime.control.cancelled import cancelled_error
from runtime.control.executor import Executor
from runtime.control.ids import STREAM_BASE, object_id
from runtime.control.jobs import job_of_task
from runtime.control.messages import (
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
from runtime.control.streams import item_id


class _Returns(tuple[Any, ...]):
    """The values of a task with several return values."""


class TaskRunner:
    """Runs what an `Executor` hands out."""

    def __init__(self, world: World, session: Session, executor: Executor, node: int) -> None:
        self.world = world
        self.session = session
        self.executor = executor
        executor.before_results = session.client.flush
        executor.pack = self._pack_plain
        self.node = node
        self._functions: dict[bytes, Callable[..., Any]] = {}
        session.loaded = self.function
        self.actor: ActorRunner | None = None
        self._looping = False
        """User code runs in the loop over a range, and nobody else touches its values."""
        self._since_s = 0.0
        """Up to when that range's time is reported."""

    def run(self, assignment: Assignment) -> None:
        """Run one range and report all of it that was not given back."""
        spec = assignment.spec
        if not self.session.client.job:
            self.session.client.job = job_of_task(spec)
        if _is_simple(spec):
            self._run_several(assignment)
            return
        if spec.extra is not None and (spec.extra.actor is not None or spec.extra.call):
            self._run_actor(assignment)
            return
        started_s = self.world.now()
        try:
            if spec.first < 0:
                call = self.prepare(assignment)
            else:
                function = self.function(spec.function)
                star, items = self.world.deserialize(spec.args)
                if self.session.received:
                    self.session.came_in_arguments(spec.array)
        except Exception as error:
            self.report_error(spec, started_s, error)
            return
        extra = spec.extra
        if extra is not None and extra.env:
            self.world.environment.enter(extra.env)
        if extra is not None and extra.stream:
            self.run_stream(spec, call, started_s)
        elif spec.first < 0:
            self.run_call(spec, call, started_s)
        else:
            if star:
                plain = function

                def function(item: Any) -> Any:
                    return plain(*item)

            self._run_range(spec, function, items, started_s)
        if extra is not None and extra.env:
            self.world.environment.leave()
        if self.session.uncounted:
            self.tidy()

    def _run_several(self, first: Assignment) -> None:
        """Run a call, and those behind it as long as they are of the simple kind.

        Plain values are reported with those of the calls before, and need no more than
        one turn a call.
        """
        world, session, executor = self.world, self.session, self.executor
        assignment: Assignment | None = first
        started_s = world.now()
        while assignment is not None:
            spec = assignment.spec
            if not _is_simple(spec):
                self.run(assignment)
                return
            try:
                # Nothing here keeps the arguments: what they let go of is counted below.
                value = (self.prepare(assignment) if spec.args else self.function(spec.function))()
                session.futures.abandon()
            except BaseException as error:
                caught = [error]
                self.run_call(spec, lambda: again(caught), started_s)  # noqa: B023
                break
            nbytes = plain_bytes(value)
            if nbytes < 0 or session.client.borrowing.guarded:
                given = [value]
                del value
                self.run_call(spec, given.pop, started_s)
                break
            world.charge("run", 1)
            now_s = world.now()
            with world:
                session.collect()
                executor.report_plain(spec, value, nbytes, started_s, now_s)
                assignment = None if executor.exiting else executor.next()
            started_s = now_s
        if session.uncounted:
            self.tidy()

    def tidy(self) -> None:
        """Count what the last task has dropped with its end."""
        with self.world:
            self.session.collect()

    def has_room(self) -> bool:
        """Whether another assignment may begin now."""
        return self.actor is None or self.actor.has_room()

    def has_work(self) -> bool:
        """Whether one is here and may begin."""
        return bool(self.executor.queue) and self.has_room()

    def _run_actor(self, assignment: Assignment) -> None:
        if self.actor is None:
            extra = assignment.spec.extra
            assert extra is not None
            spec = assignment.spec
            self.session.actor = (spec.array, extra.actor)
            self.session.actor_stands = (spec.demand, extra)
            self.session.actor_function, self.session.actor_owner = spec.function, spec.owner
            self.actor = ActorRunner(self, assignment)
        else:
            self.actor.call(assignment)

    # -- a call ----------------------------------------------------------------

    def prepare(
        self, assignment: Assignment, of_actor: Callable[..., Any] | None = None
    ) -> Callable[[], Any]:
        """Return the call with everything in its place."""
        spec = assignment.spec
        unread = list(reversed(assignment.values))
        try:
            function = of_actor or self.function(spec.function)
            if not spec.args:
                return function
            args, kwargs = self.world.deserialize(spec.args)
            if unread:
                inputs = []
                while unread:
                    inputs.append(self.session.decode_input(unread.pop()))
                args = [inputs[a.index] if type(a) is Input else a for a in args]
                kwargs = {n: inputs[a.index] if type(a) is Input else a for n, a in kwargs.items()}
        finally:
            for value in unread:
                self.session.skip_input(value)
        if self.session.received:
            self.session.came_in_arguments(spec.array)
            # The arguments go when the function ends: what is left then was kept.
            given = [(args, kwargs)]

            def once() -> Any:
                positional, named = given.pop()
                return function(*positional, **named)

            return once
        return lambda: function(*args, **kwargs)

    def run_call(self, spec: TaskSpec, call: Callable[[], Any], started_s: float) -> None:
        """Run a call and report what became of it."""
        try:
            try:
                value = call()
            finally:
                if not self.executor.concurrent:
                    self.session.futures.abandon()
            if spec.returns != 1:
                value = self.several(spec, value)
            values = [value]
            del value
        except Exception as error:
            self.report_error(spec, started_s, error)
            return
        except BaseException as error:
            if not self._is_cancelled(error):
                raise  # the task's own: it ends the worker
            self.report_cancelled(spec, started_s)
            return
        self.report_values(spec, started_s, values)

    # -- a stream --------------------------------------------------------------

    def run_stream(self, spec: TaskSpec, call: Callable[[], Any], started_s: float) -> None:
        """Report items as they come, then how many there were; see `streams`."""
        assert spec.extra is not None
        count = 0
        try:
            try:
                for value in call():
                    self.report_item(spec, count, value)
                    count += 1
            finally:
                if not self.executor.concurrent:
                    self.session.futures.abandon()
        except Exception as error:
            if self._wants_retry(spec, error):
                self.report_error(spec, started_s, error)
                return
            self.report_last(spec, count, error)
            count += 1
        except BaseException as error:
            if not self._is_cancelled(error):
                raise
            self.report_cancelled(spec, started_s)
            return
        if spec.extra.stream == STREAM:
            self.report_values(spec, started_s, [count])
            return
        with self.world:
            self.session.client.borrowing.receive(spec.array, spec.owner)
            refs = [ObjectRef(item_id(spec.array, index), self.session) for index in range(count)]
        self.report_values(spec, started_s, [DynamicObjectRefGenerator(refs)])

    def report_last(self, spec: TaskSpec, index: int, error: Exception) -> None:
        """The generator has raised: that is its last item."""
        self._send_item(spec, index, USER_ERROR, self._pack_error(spec.name, error))

    def report_item(self, spec: TaskSpec, index: int, value: Any) -> None:
        payload = self.world.serialize([value])
        if payload.nbytes <= self.session.client.config.inline_bytes_max:
            self._send_item(spec, index, OK, payload.to_bytes(), contained=payload.contained)
            return
        serialized = self.world.serialize(value)
        offset = self.session.store(item_id(spec.array, index), serialized)
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
            self.session.collect()
            if contained:
                result.refs = self.session.hand_over(spec.array, contained)
            self.executor.items([result])
        self.session.interrupt_here()

    @staticmethod
    def several(spec: TaskSpec, value: Any) -> Any:
        if spec.returns == 0:
            return _Returns()
        try:
            values = _Returns(value)
        except TypeError:
            raise ValueError(
                f"{spec.name}() has num_returns={spec.returns} and returned"
                f" {type(value).__name__}, which is not a sequence"
            ) from None
        if len(values) != spec.returns:
            raise ValueError(
                f"{spec.name}() has num_returns={spec.returns} and returned {len(values)} values"
            )
        return values

    # -- a range ---------------------------------------------------------------

    def _run_range(
        self, spec: TaskSpec, function: Callable[[Any], Any], items: Any, started_s: float
    ) -> None:
        executor = self.executor
        self._since_s = started_s
        while executor.running is spec:
            at = executor.base
            due = self.world.due()
            append = executor.values.append
            error: Exception | None = None
            cancelled = False
            self._looping = True
            try:
                for item in items[at - spec.first : executor.limit - spec.first]:
                    append(function(item))
                    if due():
                        break
            except Exception as raised:
                error = raised
            except BaseException as raised:
                if not self._is_cancelled(raised):
                    raise
                cancelled = True
            self.session.futures.abandon()
            with self.world:
                self._looping = False
                # The limit may have come down while the loop ran; the elements
                # below it are still this worker's.
                executor.alerts.clear()
                values = list(executor.values)
                done = executor.current()
            if values:
                self._since_s = self.report_values(spec, self._since_s, values)
            if error is not None:
                one = _one(spec, done)
                self._since_s = self.report_error(one, self._since_s, error)
            elif cancelled:
                self._since_s = self.report_cancelled(_one(spec, done), self._since_s)

    def report_meanwhile(self) -> None:
        """Report what a range has made so far, while an element of it runs.

        Called within a turn, by another thread than the one that runs the range.
        What cannot be reported so is left to that one.
        """
        executor = self.executor
        values = list(executor.values)
        if not self._looping or executor.running is None or not values:
            return
        spec = executor.running
        try:
            payload = self.world.serialize(values)
        except Exception:
            # Nothing is lost: this report is only early. The range's own report
            # serializes the values again, one by one, and says which one failed.
            return
        if payload.contained:
            return  # the loop sees to them
        if payload.nbytes <= self.session.client.config.inline_bytes_max:
            result = RangeResult(
                spec.array, executor.base, len(values), OK, payload.to_bytes(), self.node
            )
            self._since_s = self._report(spec, result, self._since_s)

    # -- reports ---------------------------------------------------------------

    def report_values(self, spec: TaskSpec, started_s: float, values: list[Any]) -> float:
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
                return self._report_large(spec, started_s, values)
            payload = self.world.serialize(values)
            if payload.nbytes <= self.session.client.config.inline_bytes_max:
                result = RangeResult(
                    spec.array, start, count, OK, payload.to_bytes(), self.node, spec.returns
                )
                if payload.contained or self.session.client.borrowing.loans:
                    if payload.contained:
                        with self.world:
                            result.refs = self.session.hand_over(spec.array, payload.contained)
                    del payload
                    given.clear()
                    values = given
                return self._report(spec, result, started_s)
        except Exception as error:
            if count == 1:
                return self.report_error(_one(spec, start), started_s, error)
        if count == 1:
            return self._report_large(spec, started_s, values)
        # Together too large, or one cannot be serialized: one by one.
        for value in values:
            started_s = self.report_values(spec, started_s, [value])
        return started_s

    def _pack_plain(self, values: list[Any]) -> bytes:
        return self.world.serialize(values).to_bytes()

    def _report_large(self, spec: TaskSpec, started_s: float, values: list[Any]) -> float:
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
                offsets.append(self.session.store(oid, serialized))
                sizes.append(serialized.nbytes)
                small.append(None)
            payload = self.world.serialize(small).to_bytes()
        except Exception as error:
            with self.world:
                for ret, offset in enumerate(offsets):
                    if offset >= 0:
                        self.session.client.abandon(object_id(spec.array, index, ret))
            return self.report_error(_one(spec, index), started_s, error)
        if not any(sizes):
            sizes, offsets = [], []
        result = RangeResult(
            spec.array, index, 1, OK, payload, self.node, spec.returns, tuple(sizes),
            tuple(offsets),
        )  # fmt: skip
        if contained:
            with self.world:
                result.refs = self.session.hand_over(spec.array, contained)
        if contained or self.session.client.borrowing.loans:
            contained.clear()
            small.clear()
            values.clear()
            del value, serialized
        return self._report(spec, result, started_s)

    def report_error(self, spec: TaskSpec, started_s: float, error: Exception) -> float:
        """Report elements that failed: all of `spec` that are still this worker's."""
        if self._wants_retry(spec, error):
            status, payload = RETRY, b""
        elif isinstance(error, ObjectStoreFullError):
            status, payload = SYSTEM_ERROR, f"ObjectStoreFullError: {error}".encode()
        elif isinstance(error, ConstructorFailed):
            status, payload = SYSTEM_ERROR, f"ActorDiedError: {error}".encode()
        else:
            status, payload = USER_ERROR, self._pack_error(spec.name, error)
        return self._report_failure(spec, started_s, status, payload)

    def _is_cancelled(self, error: BaseException) -> bool:
        """Whether an error is a cancellation: by `cancel`, or within asyncio."""
        by_cancel = isinstance(error, KeyboardInterrupt) and self.executor.cancelled >= 0
        return by_cancel or was_cancelled(error)

    def report_cancelled(self, spec: TaskSpec, started_s: float) -> float:
        """Report an element that a cancellation has ended; see `cancellation`."""
        error = cancelled_error(spec.name)
        return self._report_failure(spec, started_s, error.status, error.payload)

    def _wants_retry(self, spec: TaskSpec, error: Exception) -> bool:
        """Whether an error counts as one of the system, and tries are left.

        A call of an actor is tried again where it is, in its turn: see `actor_execution`.
        """
        called = spec.extra is not None and spec.extra.call
        return bool(spec.retries) and not called and self.is_retried(spec, error)

    def is_retried(self, spec: TaskSpec, error: Exception) -> bool:
        """Whether the task is to be tried again after such an error."""
        extra = spec.extra
        if extra is None or not extra.retry_on:
            return False
        return extra.retry_on == ANY or isinstance(error, self.world.deserialize(extra.retry_on))

    def _report_failure(
        self, spec: TaskSpec, started_s: float, status: int, payload: bytes
    ) -> float:
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
            cause = self.session.dumps(error)
        except Exception as failed:
            cause = None
            lines.append(f"(the exception itself could not be serialized: {failed})\n")
        return self.world.serialize((name, "".join(lines), cause)).to_bytes()

    def _report(self, spec: TaskSpec, result: RangeResult, started_s: float) -> float:
        self.world.charge("run", result.count)
        now_s = self.world.now()
        timing = Timing(spec.name, started_s, now_s - started_s, result.count)
        with self.world:
            self.session.collect()
            borrowing = self.session.client.borrowing
            if borrowing.guarded:
                kept = borrowing.kept_by(spec.array)
                if kept:
                    inside = result.refs or ResultRefs()
                    result.refs = ResultRefs(kept, inside.contained, inside.keeper)
            if self.executor.concurrent:
                self.executor.report_call(result, timing)
            else:
                if not self._looping:
                    self.executor.end_interrupt()
                self.executor.report(result, timing)
        return now_s

    def _base_of(self, spec: TaskSpec) -> int:
        """Return the first element of a range that is not reported."""
        return spec.start if self.executor.concurrent else self.executor.base

    def function(self, key: bytes) -> Callable[..., Any]:
        function = self._functions.get(key)
        if function is None:
            setup, blob = job_setup.unwrap(self.executor.functions[key])
            if setup and setup != self.session.setup:
                job_setup.apply(setup)
                self.session.setup = setup
            function = self.world.loads_function(blob)
            self._functions[key] = function
        return function


def _is_simple(spec: TaskSpec) -> bool:
    """Whether its result can be part of a run: a call with one value, and nothing special."""
    return spec.extra is None and spec.first < 0 and not spec.start and spec.returns == 1


def _one(spec: TaskSpec, index: int) -> TaskSpec:
    """Return element `index` of a range as a range."""
    return TaskSpec(
        spec.array, index, 1, spec.function, b"", spec.owner, spec.demand, (), spec.returns,
        spec.retries, spec.first, spec.name, spec.extra,
    )  # fmt: skip
