"""Running an actor in its worker: make it, restore it, call it, save it.

A call that is retried after an error of its own is made again there and then.

By default calls run one after another in the worker's own loop. With
``max_concurrency`` above one each runs beside the others: in a thread (or what
stands for one in virtual time). If the class has async methods all runs in one event
loop (see `actor_loop`), each call as a coroutine of it, also one after another. Which of
several calls is done first is up to them. They are logged in the order in which they ended,
and if need be replayed in it, one after another: a state that depends on how calls took
turns may come out different.
"""

from __future__ import annotations

import inspect
from functools import partial
from types import CoroutineType
from typing import Any

from raytwin.runtime.api.actors import ActorExit
from raytwin.runtime.control.messages import Assignment
from raytwin.runtime.execution.actor_coroutines import CallCoroutines
from raytwin.runtime.execution.actor_instance import BUILT_IN, ActorInstance
from raytwin.runtime.execution.actor_loop import EventLoop, has_async_methods, made_in_loop
from raytwin.runtime.execution.actor_threads import CallThread
from raytwin.runtime.execution.call_execution import CallRunner
from raytwin.runtime.execution.reporting import again, plain_bytes
from raytwin.runtime.execution.tracebacks import lines_of
from raytwin.runtime.execution.user_errors import ConstructorFailed, is_error
from raytwin.runtime.session.task_context import current_call


class ActorRunner:
    """The one actor of a worker."""

    def __init__(self, calls: CallRunner, creation: Assignment) -> None:
        """Run the constructor and report its end."""
        spec = creation.spec
        assert spec.extra is not None and spec.extra.actor is not None
        self._calls = calls
        self._world = calls.world
        self._executor = calls.executor
        self._executor.actor = True
        self._actor = ActorInstance(calls, spec.extra.actor)
        self._threads = CallThread(self._actor, calls)
        self._coroutines: CallCoroutines | None = None
        if spec.extra.env:
            # For as long as the actor lives.
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
                self._actor.instance = self._calls.prepare(creation, cls)()
        except BaseException as error:
            if not is_error(error):
                raise
            # As text: the control plane, which does not deserialize, sends it to callers.
            raise ConstructorFailed(lines_of(error)) from None

    def _create_in_loop(self, creation: Assignment, cls: Any) -> None:
        """Start the event loop and run the constructor there, which may be async."""
        # Futures that the constructor or a call asks for may outlive it.
        self._calls.session.futures.lasting = True
        self._actor.loop = loop = EventLoop(self._world, self._actor.crashed)
        self._coroutines = CallCoroutines(self._actor, self._calls, loop.loop)
        self._executor.on_cancel_call = self._coroutines.cancel_soon
        waits = inspect.iscoroutinefunction(cls.__init__)
        maker = partial(made_in_loop, cls) if waits else cls
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
        """Run a call, or begin it in a thread or in the event loop."""
        restore, self._executor.restore = self._executor.restore, None
        if restore is not None and not self._actor.restored(restore):
            return
        if self._actor.info.max_concurrency == 1 and self._coroutines is None:
            if self._actor.plain:
                self._run_several(assignment)
            else:
                self._run(assignment)
            return
        with self._world:
            if self._actor.info.max_concurrency > 1:
                # From the second assignment on: the creation has been reported the plain way.
                self._executor.run_beside(assignment.spec)
            self._actor.running += 1
        if self._coroutines is not None:
            self._coroutines.begin_soon(assignment)
        else:
            self._world.spawn(
                lambda: self._threads.serve(assignment), self._actor.info.max_concurrency
            )

    # -- one after another -----------------------------------------------------

    def _run_several(self, first: Assignment) -> None:
        """Run a call, and those behind it as long as they are of the simple kind.

        Plain values are reported with those of the calls before, and need no more than
        one turn a call.
        """
        calls, world, executor = self._calls, self._world, self._executor
        session, references = calls.session, calls.references
        cancelled = executor.cancelled_calls.after
        assignment: Assignment | None = first
        started_s = world.now()
        while assignment is not None:
            spec, extra = assignment.spec, assignment.spec.extra
            assert extra is not None
            special = extra.stream or extra.retry_on or extra.method in BUILT_IN
            if assignment.values or special or spec.returns != 1:
                self._run(assignment)
                return
            try:
                method = getattr(self._actor.instance, extra.method)
                value = calls.prepare(assignment, method)() if spec.args else method()
                if type(value) is CoroutineType:
                    value = self._finished(value)
                if session.futures.thread is not None:
                    session.futures.abandon()
            except ActorExit as leaving:
                self._actor.exit(leaving)
                return
            except BaseException as error:
                caught = [error]
                calls.run_call(spec, lambda: again(caught), started_s)  # noqa: B023
                break
            nbytes = plain_bytes(value)
            if nbytes < 0 or session.client.references.counter.guarded or cancelled:
                given = [value]
                del value
                calls.run_call(spec, given.pop, started_s)
                break
            world.charge("run", 1)
            now_s = world.now()
            with world:
                references.collect()
                executor.report_plain(spec, value, nbytes, started_s, now_s)
                assignment = None if executor.exiting else executor.next()
            started_s = now_s
        if references.dropped:
            calls.tidy()

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
                    self._calls.run_stream(spec, lambda: _plainly(call()), started_s)
                else:
                    self._calls.run_call(spec, lambda: self._finished(call()), started_s)
            except ActorExit as leaving:
                self._actor.exit(leaving)
                return
            del call
        if self._calls.references.dropped:
            self._calls.tidy()
        self._actor.took_effect(spec)

    def _finished(self, value: Any) -> Any:
        """Run a coroutine that a method returned though the class has no async methods."""
        if not isinstance(value, CoroutineType):
            return value
        import asyncio

        return asyncio.run(value)

    def exit(self, leaving: ActorExit) -> None:
        """End the actor as its own code asks outside of a call."""
        self._actor.exit(leaving)

    def end(self) -> None:
        """Run the actor's last code before the process ends."""
        self._actor.end()

    def is_idle(self) -> bool:
        """Whether no call runs."""
        return not self._actor.running


def _plainly(items: Any) -> Any:
    """Return the items of a generator, async ones too, one after another."""
    if not hasattr(items, "__aiter__"):
        return items
    return _run_through(items)


def _run_through(items: Any) -> Any:
    import asyncio

    with asyncio.Runner() as runner:
        while True:
            try:
                yield runner.run(anext(items))
            except StopAsyncIteration:
                return
