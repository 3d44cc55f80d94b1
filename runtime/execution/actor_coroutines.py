"""The coroutines of an actor that has async methods: one for each call, in its event loop."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from raytwin.runtime.api.actors import ActorExit
from raytwin.runtime.control.messages import Assignment, TaskSpec
from raytwin.runtime.execution.actor_instance import ActorInstance
from raytwin.runtime.execution.call_execution import CallRunner
from raytwin.runtime.execution.returns import close, returned
from raytwin.runtime.session.task_context import current_call

if TYPE_CHECKING:
    import asyncio


class CallCoroutines:
    """Runs calls beside one another in one event loop."""

    def __init__(
        self, actor: ActorInstance, calls: CallRunner, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._actor = actor
        self._calls = calls
        self._executor = calls.executor
        self._world = calls.world
        self._loop = loop
        self._running: dict[bytes, asyncio.Task[None]] = {}
        """The calls that run, by array."""

    def begin_soon(self, assignment: Assignment) -> None:
        """Begin a call in the loop; called by another thread."""
        self._loop.call_soon_threadsafe(self._begin, assignment)

    def _begin(self, assignment: Assignment) -> None:
        import asyncio

        task = asyncio.get_running_loop().create_task(self._run(assignment))
        array = assignment.spec.array
        self._running[array] = task
        task.add_done_callback(partial(self._done, array))
        if self._executor.is_cancelled(array):
            # It is replayed.
            self._cancel(array)

    def _done(self, array: bytes, task: asyncio.Task[None]) -> None:
        self._running.pop(array, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._actor.broken(error)  # the runtime's; a BaseException ends the loop

    async def _run(self, assignment: Assignment) -> None:
        import asyncio

        spec = assignment.spec
        if self._executor.leaving:
            # A call before this one has ended the actor.
            with self._world:
                self._executor.refuse(spec)
            self._actor.ended()
            return
        context = self._actor.call_context(spec)
        current_call.set(context)
        started_s = self._world.now()
        calls = self._calls
        interrupted = True
        try:
            value = calls.prepare(assignment, self._actor.method(spec))()
            if spec.extra is not None and spec.extra.stream:
                interrupted = hasattr(value, "__aiter__")
                value = await self._stream(assignment, value)
            elif inspect.isawaitable(value):
                value = await value
            values = [returned(spec, value)]
            del value
        except ActorExit as leaving:
            self._actor.exit(leaving)
        except asyncio.CancelledError:
            # By `cancel`, or by the program: it awaited something that was cancelled.
            calls.reports.cancelled(spec, started_s)
        except Exception as error:
            if self._executor.is_cancelled(spec.array):
                calls.reports.cancelled(spec, started_s)
            else:
                calls.reports.error(spec, started_s, error)
        except self._world.unwinding:
            raise
        except BaseException as error:
            if not self._loop.is_running():
                raise  # the process has ended: nobody waits for its coroutines
            self._actor.crashed(error)
        else:
            self._report(spec, started_s, values, interrupted)
        context.over = True
        self._took_effect(spec)
        self._actor.ended()

    def _report(
        self, spec: TaskSpec, started_s: float, values: list[Any], interrupted: bool
    ) -> None:
        """Report a value. To serialize it runs the program's code, which may end the actor."""
        try:
            if self._executor.is_cancelled(spec.array):
                values.clear()
                self._calls.reports.cancelled(spec, started_s, interrupted)
            else:
                self._calls.reports.values(spec, started_s, values)
        except ActorExit as leaving:
            self._actor.exit(leaving)

    def _took_effect(self, spec: TaskSpec) -> None:
        """Count a call. A checkpoint runs the program's code, which may end the actor."""
        if self._executor.exiting:
            return
        try:
            self._actor.took_effect(spec)
        except ActorExit as leaving:
            self._actor.exit(leaving)

    async def _stream(self, assignment: Assignment, items: Any) -> int:
        """Report items as they are yielded; return how many. An error is the last item.

        A cancelled stream ends where it would yield the next item.
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
                        # It is replayed, and was cancelled where it waits next.
                        self._cancel(spec.array)
            else:
                for item in items:
                    if self._executor.is_cancelled(spec.array):
                        close(items)
                        break
                    calls.reports.item(spec, count, item)
                    count += 1
        except Exception as error:
            if self._executor.is_cancelled(spec.array):
                raise
            calls.reports.last(spec, count, error)
            count += 1
        return count

    def cancel_soon(self, call: bytes) -> None:
        """Cancel a call that runs; called within a turn, by any thread."""
        self._loop.call_soon_threadsafe(self._cancel, call)

    def _cancel(self, call: bytes) -> None:
        task = self._running.get(call)
        if task is not None:
            coroutine: Any = task.get_coro()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                # A coroutine that is cancelled before it begins would not report its end.
                self._loop.call_soon(self._cancel, call)
                return
            task.cancel()
