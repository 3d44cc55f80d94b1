"""Runs an actor in its worker: constructs it, restores it, calls it, takes checkpoints.

By default calls run one after another in the worker's own loop. With ``max_concurrency`` above
one they run concurrently, each in a thread (or a greenlet in virtual time). If the class has
async methods, each call is a coroutine in one event loop, even if they run one after another.
The log has concurrent calls in the order in which they ended, and reconstruction replays them in
that order, one after another: a state that depends on how they interleaved may differ then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from raytwin.runtime.api.actors import ActorExit
from raytwin.runtime.control.messages import Assignment, TaskSpec
from raytwin.runtime.execution.actor_instance import (
    BUILT_IN,
    ActorInstance,
    EventLoop,
    has_async_methods,
    method_of,
)
from raytwin.runtime.execution.call_execution import CallRunner, close, returned
from raytwin.runtime.execution.user_errors import (
    ConstructorFailed,
    is_cancellation,
    is_error,
    traceback_text,
)
from raytwin.runtime.session.task_context import current_call

if TYPE_CHECKING:
    import asyncio


class ActorRunner:
    """Runs the one actor of a worker."""

    def __init__(self, calls: CallRunner, creation: Assignment) -> None:
        """Run the constructor and report its end."""
        spec = creation.spec
        assert spec.extra is not None and spec.extra.actor is not None
        self._calls = calls
        self._world = calls.world
        self._executor = calls.executor
        self._executor.actor = True
        self._actor = ActorInstance(calls, spec.extra.actor)
        self._coroutines: CallCoroutines | None = None
        info = self._actor.info
        self._executor.direct.allowed = (
            self._actor.plain and info.max_concurrency == 1 and not info.name
        )
        if spec.extra.env:
            # Until the actor ends.
            self._world.environment.enter(spec.extra.env)
        started_s = self._world.now()
        try:
            calls.run_call(spec, lambda: self._create(creation), started_s)
        except ActorExit as leaving:
            self._actor.exit(leaving)

    def _create(self, creation: Assignment) -> None:
        try:
            cls: Any = self._calls.function(creation.spec.function)
            if has_async_methods(cls):
                self._create_in_loop(creation, cls)
            else:
                self._actor.instance = self._calls.prepare(creation, self._actor.body(cls))()
        except BaseException as error:
            if not is_error(error, self._world):
                raise
            # As text, since the control plane, which does not unpickle, sends it to callers.
            raise ConstructorFailed(traceback_text(error)) from None

    def _create_in_loop(self, creation: Assignment, cls: Any) -> None:
        """Start the event loop, and run the constructor there, as it may be async."""
        # A future may outlive the constructor or call that made it.
        self._calls.session.futures.lasting = True
        self._executor.direct.allowed = False
        self._actor.loop = loop = EventLoop(self._world, self._actor.crashed)
        self._coroutines = CallCoroutines(self._actor, self._calls, loop.loop)
        self._executor.on_cancel_call = self._coroutines.cancel_soon
        is_async = inspect.iscoroutinefunction(cls.__init__)
        maker = partial(_make_async, cls) if is_async else cls
        context = self._actor.call_context(creation.spec)

        def make() -> Any:
            current_call.set(context)
            return self._calls.prepare(creation, maker)()

        self._actor.instance = loop.run(make)
        context.over = True

    def has_room(self) -> bool:
        """Whether another call may begin now."""
        return self._actor.running < self._actor.info.max_concurrency

    def call(self, assignment: Assignment) -> None:
        """Run a call, or start it in a thread or in the event loop."""
        restore, self._executor.restore = self._executor.restore, None
        if restore is not None and not self._actor.restored(restore):
            return
        if self._actor.info.max_concurrency == 1 and self._coroutines is None:
            rest: Assignment | None = assignment
            if self._actor.plain:
                rest = self._calls.run_simple(assignment, self._simple)
            if rest is not None:
                self._run(rest)
            return
        with self._world:
            if self._actor.info.max_concurrency > 1:
                # Not before the first call, as the creation is reported like a task.
                self._executor.run_concurrently(assignment.spec)
            self._actor.running += 1
        if self._coroutines is not None:
            self._coroutines.begin_soon(assignment)
        else:
            self._world.spawn(
                lambda: self._run_concurrently(assignment), self._actor.info.max_concurrency
            )

    def _simple(self, assignment: Assignment) -> Callable[[], Any] | None:
        """Return a call whose value may be reported with others'; None for any other call."""
        spec, extra = assignment.spec, assignment.spec.extra
        assert extra is not None
        special = extra.stream or extra.retry_on or extra.method in BUILT_IN
        if assignment.values or special or spec.returns != 1:
            return None
        method = method_of(self._actor.instance, extra.method)
        if self._world.watcher is not None:
            method = self._actor.body(method)
        return self._calls.prepare(assignment, method) if spec.args else method

    def _run(self, assignment: Assignment) -> None:
        spec = assignment.spec
        started_s = self._world.now()
        try:
            call = self._calls.prepare(assignment, self._actor.method(spec))
        except Exception as error:
            self._calls.reports.error(spec, started_s, error)
        else:
            try:
                if spec.extra is not None and spec.extra.stream:
                    self._calls.run_stream(spec, call, started_s)
                else:
                    self._calls.run_call(spec, call, started_s)
            except ActorExit as leaving:
                self._actor.exit(leaving)
                return
            del call
        if self._calls.references.dropped:
            self._calls.tidy()
        self._actor.took_effect(spec)

    def _run_concurrently(self, assignment: Assignment) -> None:
        """Run a call in a thread, concurrently with others."""
        context = self._actor.call_context(assignment.spec)
        current_call.set(context)
        try:
            if not self._executor.leaving:
                self._run(assignment)
        except self._world.unwinding:
            raise
        except BaseException as error:
            self._actor.crashed(error)
        context.over = True
        self._actor.ended()

    def exit(self, leaving: ActorExit) -> None:
        """End the actor because its own code asks for it outside of a call."""
        self._actor.exit(leaving)

    def end(self) -> None:
        """Run the actor's shutdown code before the process ends."""
        self._actor.end()

    def is_idle(self) -> bool:
        """Whether no call runs."""
        return not self._actor.running


class CallCoroutines:
    """Runs calls concurrently in one event loop."""

    def __init__(
        self, actor: ActorInstance, calls: CallRunner, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._actor = actor
        self._calls = calls
        self._executor = calls.executor
        self._world = calls.world
        self._loop = loop
        self._running: dict[bytes, asyncio.Task[None]] = {}
        """The running calls, by array."""

    def begin_soon(self, assignment: Assignment) -> None:
        """Begin a call in the loop, from another thread."""
        self._loop.call_soon_threadsafe(self._begin, assignment)

    def _begin(self, assignment: Assignment) -> None:
        task = self._loop.create_task(self._run(assignment))
        array = assignment.spec.array
        self._running[array] = task
        task.add_done_callback(partial(self._done, array))
        if self._executor.is_cancelled(array):
            # A replayed call, which was cancelled when it first ran.
            self._cancel(array)

    def _done(self, array: bytes, task: asyncio.Task[None]) -> None:
        self._running.pop(array, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._actor.crashed(error)  # the runtime's error; a BaseException ends the loop

    async def _run(self, assignment: Assignment) -> None:
        spec = assignment.spec
        context = self._actor.call_context(spec)
        current_call.set(context)
        started_s = self._world.now()
        calls = self._calls
        interrupted = True
        if self._executor.leaving:
            self._actor.ended()
            return
        try:
            value = calls.prepare(assignment, self._actor.method(spec))()
            if spec.extra is not None and spec.extra.stream:
                interrupted = hasattr(value, "__aiter__")
                value = await self._stream(assignment, value)
            elif inspect.isawaitable(value):
                value = await value
            values = [returned(spec, value)]
            del value
            if self._executor.is_cancelled(spec.array):
                values.clear()
                calls.reports.cancelled(spec, started_s, interrupted)
            else:
                calls.reports.values(spec, started_s, values)
        except ActorExit as leaving:
            self._actor.exit(leaving)
        except self._world.unwinding:
            raise
        except BaseException as error:
            if not (self._loop.is_running() or isinstance(error, Exception)):
                raise  # the process has ended, and no thread waits for its coroutines
            if not is_error(error, self._world):
                self._actor.crashed(error)
            elif self._executor.is_cancelled(spec.array) or is_cancellation(error):
                calls.reports.cancelled(spec, started_s)
            else:
                calls.reports.error(spec, started_s, error)
        finally:
            context.over = True
        self._took_effect(spec)
        self._actor.ended()

    def _took_effect(self, spec: TaskSpec) -> None:
        """Count a call. A checkpoint runs user code, which may end the actor."""
        if self._executor.exiting:
            return
        try:
            self._actor.took_effect(spec)
        except ActorExit as leaving:
            self._actor.exit(leaving)

    async def _stream(self, assignment: Assignment, items: Any) -> int:
        """Report items as they are yielded; return their number. An error is the last item.

        A cancelled stream ends before the next item.
        """
        spec, count = assignment.spec, 0
        calls = self._calls
        try:
            if hasattr(items, "__aiter__"):
                async for item in items:
                    if self._executor.is_cancelled(spec.array):
                        await items.aclose()
                        break
                    calls.reports.item(spec, count, item)
                    count += 1
                    if count == assignment.cancelled:
                        # A replayed stream, whose first run was cancelled after this item.
                        self._cancel(spec.array)
            else:
                for item in items:
                    if self._executor.is_cancelled(spec.array):
                        close(items)
                        break
                    calls.reports.item(spec, count, item)
                    count += 1
        except BaseException as error:
            own = is_error(error, self._world) and not is_cancellation(error)
            if not own or self._executor.is_cancelled(spec.array) or not self._loop.is_running():
                raise
            calls.reports.last(spec, count, error)
            count += 1
        return count

    def cancel_soon(self, call: bytes) -> None:
        """Cancel a running call; within a turn, from any thread."""
        self._loop.call_soon_threadsafe(self._cancel, call)

    def _cancel(self, call: bytes) -> None:
        task = self._running.get(call)
        if task is not None:
            coroutine: Any = task.get_coro()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                # A coroutine that is cancelled before it begins could not report its end.
                self._loop.call_soon(self._cancel, call)
                return
            task.cancel()


async def _make_async(cls: type, *args: Any, **kwargs: Any) -> Any:
    """Make an instance of a class whose ``__init__`` is async."""
    instance = cls.__new__(cls, *args, **kwargs)
    await instance.__init__(*args, **kwargs)
    return instance
