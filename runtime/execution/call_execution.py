"""Running one call, of a task or of an actor: load, decode, call, report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any

from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.api.streams import DynamicObjectRefGenerator
from raytwin.runtime.control.core.ids import item_id
from raytwin.runtime.control.messages import STREAM, Assignment, TaskSpec
from raytwin.runtime.control.worker.executor import Executor
from raytwin.runtime.execution.reporting import Reporter
from raytwin.runtime.execution.user_errors import was_cancelled
from raytwin.runtime.serialization.pickling import Input
from raytwin.runtime.session import job_setup
from raytwin.runtime.session.session import Session
from raytwin.runtime.session.world import World

log = logging.getLogger("raytwin")

_END = object()


class CallRunner:
    """Runs the calls of one worker, and has the functions that it has loaded."""

    def __init__(self, world: World, session: Session, executor: Executor, node: int) -> None:
        self.world = world
        self.session = session
        self.references = session.references
        self.executor = executor
        self.reports = Reporter(world, session, executor, node)
        self._functions: dict[bytes, Callable[..., Any]] = {}
        session.actors.loaded = self.function

    def function(self, key: bytes) -> Callable[..., Any]:
        """Return the function or class of an ID, loaded once per worker."""
        function = self._functions.get(key)
        if function is None:
            setup, blob = job_setup.unwrap(self.executor.functions[key])
            if setup and setup != self.session.tasks.setup:
                job_setup.apply(setup)
                self.session.tasks.setup = setup
            function = self.world.loads_function(blob)
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
            if unread:
                inputs = []
                while unread:
                    inputs.append(self.session.values.decode_input(unread.pop()))
                args = [inputs[a.index] if type(a) is Input else a for a in args]
                kwargs = {n: inputs[a.index] if type(a) is Input else a for n, a in kwargs.items()}
        finally:
            for value in unread:
                self.session.values.skip_input(value)
        if self.references.received:
            self.references.came_in_arguments(spec.array)
            # The arguments go when the function ends: references that are left then were kept.
            given = [(args, kwargs)]

            def once() -> Any:
                positional, named = given.pop()
                return function(*positional, **named)

            return once
        return lambda: function(*args, **kwargs)

    def run_call(self, spec: TaskSpec, call: Callable[[], Any], started_s: float) -> None:
        """Run a call and report its value, its error or its cancellation.

        Raises what ends the worker: ActorExit, SystemExit and the like.
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
        except Exception as error:
            self.reports.error(spec, started_s, error)
            return
        except BaseException as error:
            if not self.is_cancellation(error):
                raise  # the task's own; ends the worker
            self.reports.cancelled(spec, started_s)
            return
        self.reports.values(spec, started_s, values)

    def is_cancellation(self, error: BaseException) -> bool:
        """Whether an error is a cancellation: by `cancel`, or by asyncio."""
        by_cancel = isinstance(error, KeyboardInterrupt) and self.executor.cancelled >= 0
        return by_cancel or was_cancelled(error)

    # -- a stream --------------------------------------------------------------

    def run_stream(self, spec: TaskSpec, call: Callable[[], Any], started_s: float) -> None:
        """Report items as they are yielded, then their number; see `streams`."""
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
        except Exception as error:
            if self.reports.wants_retry(spec, error):
                self.reports.error(spec, started_s, error)
                return
            if self.executor.is_cancelled(spec.array):
                self.reports.cancelled(spec, started_s)
                return
            self.reports.last(spec, count, error)
            count += 1
        except BaseException as error:
            if not self.is_cancellation(error):
                raise
            self.reports.cancelled(spec, started_s)
            return
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
        """Count the references that the last task has dropped at its end."""
        with self.world:
            self.references.collect()


class Returns(tuple[Any, ...]):
    """The values of a task with several return values."""


def returned(spec: TaskSpec, value: Any) -> Any:
    """Return the value of a task with one reference, `Returns` for any other number.

    Of a generator, which is run here, one reference has the first item. Raises
    TypeError and ValueError if there are not as many values as references.
    """
    if spec.returns == 1:
        return _first(spec, value) if isinstance(value, GeneratorType) else value
    if spec.returns == 0:
        return Returns()
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
    """End a generator where it has yielded. Raises what it raises then."""
    if isinstance(items, GeneratorType):
        items.close()


def _first(spec: TaskSpec, items: Iterator[Any]) -> Any:
    """Return the first item; as in Ray the log alone has what comes after it."""
    first = next(items, _END)
    if first is _END:
        raise ValueError(f"{spec.name}() has num_returns=1 and yielded nothing")
    try:
        more = next(items, _END) is not _END
    except Exception:
        log.exception("%s() raised after it had yielded its one return value", spec.name)
    else:
        if more:
            log.error("%s() has num_returns=1 and yielded more, which is lost", spec.name)
    return first
