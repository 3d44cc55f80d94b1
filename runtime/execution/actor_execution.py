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
import logging
from collections.abc import Callable
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from raytwin.runtime.api.actors import CALL, READY, TERMINATE, ActorExit
from raytwin.runtime.control.core.ids import task_id
from raytwin.runtime.control.messages import Assignment, RestoreActor, TaskSpec
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause
from raytwin.runtime.execution.actor_coroutines import CallCoroutines
from raytwin.runtime.execution.actor_loop import EventLoop, has_async_methods, made_in_loop
from raytwin.runtime.execution.actor_threads import CallThread
from raytwin.runtime.execution.tracebacks import all_lines_of, lines_of
from raytwin.runtime.execution.user_errors import ConstructorFailed, is_error, last_words
from raytwin.runtime.serialization.plain_values import again, plain_bytes
from raytwin.runtime.session.numbering import Frame, frame_of_call

if TYPE_CHECKING:
    from raytwin.runtime.execution.task_execution import TaskRunner

log = logging.getLogger("raytwin")

_BUILT_IN = (READY, TERMINATE, CALL)


class ActorRunner:
    """The one actor of a worker."""

    def __init__(self, tasks: TaskRunner, creation: Assignment) -> None:
        """Run the constructor and report what became of it."""
        spec = creation.spec
        assert spec.extra is not None and spec.extra.actor is not None
        self._tasks = tasks
        self._world = tasks.world
        self._executor = tasks.executor
        self._executor.actor = True
        self._info = spec.extra.actor
        info = self._info
        self._plain = not (info.max_restarts or info.checkpoint_interval)
        """Its results need no log: they may be reported together."""
        self._instance: Any = None
        self._calls = 0
        """Calls that took effect, those of a restored state included."""
        self._running = 0
        self._save_failed = False
        self._own_thread: EventLoop | None = None
        """Where all runs if the class has async methods; None: it has none."""
        self._threads = CallThread(self, tasks)
        self._coroutines: CallCoroutines | None = None
        if spec.extra.env:
            # For as long as the actor lives.
            self._world.environment.enter(spec.extra.env)
        started_s = self._world.now()
        try:
            tasks.run_call(spec, lambda: self._create(creation), started_s)
        except ActorExit as leaving:
            self.exit(leaving)

    def _create(self, creation: Assignment) -> None:
        try:
            cls: Any = self._tasks.function(creation.spec.function)
            if has_async_methods(cls):
                self._create_in_loop(creation, cls)
            else:
                self._instance = self._tasks.prepare(creation, cls)()
        except BaseException as error:
            if not is_error(error):
                raise
            # As text: the control plane, which does not deserialize, tells it to callers.
            raise ConstructorFailed(lines_of(error)) from None

    def _create_in_loop(self, creation: Assignment, cls: Any) -> None:
        """Start the event loop and run the constructor there, which may be async."""
        # What the constructor or a call asks for there may outlast it.
        self._tasks.session.futures.lasting = True
        self._own_thread = EventLoop(self._world, self.crashed)
        self._coroutines = CallCoroutines(self, self._tasks, self._own_thread.loop)
        self._executor.on_cancel_call = self._coroutines.cancel_soon
        waits = inspect.iscoroutinefunction(cls.__init__)
        maker = partial(made_in_loop, cls) if waits else cls
        frame = self.frame(creation.spec)

        def make() -> Any:
            frame_of_call.set(frame)
            return self._tasks.prepare(creation, maker)()

        self._instance = self._own_thread.run(make)
        frame.over = True

    def has_room(self) -> bool:
        """Whether another call may begin now."""
        return self._running < self._info.max_concurrency

    def call(self, assignment: Assignment) -> None:
        """Run a call, or set it going."""
        restore, self._executor.restore = self._executor.restore, None
        if restore is not None and not self._restored(restore):
            return
        if self._info.max_concurrency == 1 and self._coroutines is None:
            if self._plain:
                self._run_several(assignment)
            else:
                self._run(assignment)
            return
        with self._world:
            if self._info.max_concurrency > 1:
                # From the second assignment on: the creation has been reported the plain way.
                self._executor.run_beside(assignment.spec)
            self._running += 1
        if self._coroutines is not None:
            self._coroutines.begin_soon(assignment)
        else:
            self._world.spawn(lambda: self._threads.serve(assignment), self._info.max_concurrency)

    # -- checkpoints -----------------------------------------------------------

    def _restored(self, restore: RestoreActor) -> bool:
        """Make what the constructor has made what it was; False: it is the actor's end."""

        def restored() -> None:
            self._instance.__ray_restore__(self._world.deserialize(restore.state))

        try:
            if self._own_thread is None:
                restored()
            else:
                self._own_thread.run(restored)
        except BaseException as error:
            if not is_error(error):
                raise
            # For good, like a constructor's: it would raise the next time too.
            self._instance = None
            with self._world:
                self._executor.queue.clear()
                why = ActorDeath(DeathCause.RESTORE_RAISED, detail=lines_of(error))
                self._executor.exit_actor(why)
            return False
        self._calls = restore.calls
        return True

    def _save(self) -> None:
        """Take a checkpoint; if that fails the one before still counts."""
        try:
            state = self._tasks.session.dumps_lasting(self._instance.__ray_save__())
            most = self._tasks.session.client.config.checkpoint_bytes_max
            if len(state) > most:
                raise ValueError(f"a checkpoint of {len(state):,} bytes; at most {most:,} are kept")
        except BaseException as error:
            if not is_error(error):
                raise
            if not self._save_failed:
                # Once: the next one may well fail for the same reason.
                self._save_failed = True
                log.warning(
                    "%s took no checkpoint, the one before is kept: %s: %s",
                    type(self._instance).__name__, type(error).__name__, error,
                )  # fmt: skip
            return
        with self._world:
            self._executor.save(self._calls, state)

    # -- one after another -----------------------------------------------------

    def _run_several(self, first: Assignment) -> None:
        """Run a call, and those behind it as long as they are of the simple kind.

        Plain values are reported with those of the calls before, and need no more than
        one turn a call.
        """
        # Why this is not the loop of `TaskRunner` is said there.
        tasks, world, executor = self._tasks, self._world, self._executor
        session, cancelled = tasks.session, executor.cancelled_calls.after
        assignment: Assignment | None = first
        started_s = world.now()
        while assignment is not None:
            spec, extra = assignment.spec, assignment.spec.extra
            assert extra is not None
            special = extra.stream or extra.retry_on or extra.method in _BUILT_IN
            if assignment.values or special or spec.returns != 1:
                self._run(assignment)
                return
            try:
                method = getattr(self._instance, extra.method)
                value = tasks.prepare(assignment, method)() if spec.args else method()
                if type(value) is CoroutineType:
                    value = self._finished(value)
                session.futures.abandon()
            except ActorExit as leaving:
                self.exit(leaving)
                return
            except BaseException as error:
                caught = [error]
                tasks.run_call(spec, lambda: again(caught), started_s)  # noqa: B023
                break
            nbytes = plain_bytes(value)
            if nbytes < 0 or session.client.references.counter.guarded or cancelled:
                given = [value]
                del value
                tasks.run_call(spec, given.pop, started_s)
                break
            world.charge("run", 1)
            now_s = world.now()
            with world:
                session.collect()
                executor.report_plain(spec, value, nbytes, started_s, now_s)
                assignment = None if executor.exiting else executor.next()
            started_s = now_s
        if session.uncounted:
            tasks.tidy()

    def _run(self, assignment: Assignment) -> None:
        spec = assignment.spec
        started_s = self._world.now()
        try:
            call = self._tasks.prepare(assignment, self.method(spec))
        except Exception as error:
            self._tasks.reports.error(spec, started_s, error)
        else:
            try:
                if spec.extra is not None and spec.extra.stream:
                    self._tasks.run_stream(spec, lambda: _plainly(call()), started_s)
                else:
                    self._tasks.run_call(spec, lambda: self._finished(call()), started_s)
            except ActorExit as leaving:
                self.exit(leaving)
                return
            del call
        if self._tasks.session.uncounted:
            self._tasks.tidy()
        self.took_effect(spec)

    def took_effect(self, spec: TaskSpec) -> None:
        """Count a call that has ended, and take a checkpoint if one is due."""
        assert spec.extra is not None
        if spec.extra.method == READY:
            return
        self._calls += 1
        interval = self._info.checkpoint_interval
        if interval and self._calls % interval == 0:
            self._save()

    def _finished(self, value: Any) -> Any:
        """A coroutine of an actor whose class has no async methods: run it to its end."""
        if not isinstance(value, CoroutineType):
            return value
        import asyncio

        return asyncio.run(value)

    def method(self, spec: TaskSpec) -> Callable[..., Any]:
        assert spec.extra is not None
        name = spec.extra.method
        if name == READY:
            return lambda: True
        if name == TERMINATE:
            return self._terminate
        if name == CALL:
            return lambda function, *args, **kwargs: function(self._instance, *args, **kwargs)
        method: Callable[..., Any] = getattr(self._instance, name)
        return self._tried_again(spec, method) if spec.extra.retry_on else method

    def _tried_again(self, spec: TaskSpec, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that is called again after the errors that it is retried for.

        The tries are one call: none other comes in between where calls do not overlap,
        and an actor that is rebuilt repeats them.
        """

        def again(*args: Any, **kwargs: Any) -> Any:
            left = spec.retries
            while True:
                try:
                    return method(*args, **kwargs)
                except Exception as error:
                    if not left or not self._is_retried(spec, error):
                        raise
                    left -= 1

        async def again_async(*args: Any, **kwargs: Any) -> Any:
            left = spec.retries
            while True:
                try:
                    return await method(*args, **kwargs)
                except Exception as error:
                    if not left or not self._is_retried(spec, error):
                        raise
                    left -= 1

        return again_async if inspect.iscoroutinefunction(method) else again

    def _is_retried(self, spec: TaskSpec, error: Exception) -> bool:
        wanted = not self._executor.is_cancelled(spec.array)
        return wanted and self._tasks.reports.is_retried(spec, error)

    @staticmethod
    def _terminate() -> None:
        raise ActorExit(ActorDeath(DeathCause.TERMINATED))

    def exit(self, leaving: ActorExit) -> None:
        """A call has raised what ends the actor, and the calls beside it run on."""
        with self._world:
            self._executor.leave(leaving.why)
        self._world.nudge()

    def is_idle(self) -> bool:
        """Whether no call runs."""
        return not self._running

    def end(self) -> None:
        """Leave in good order: what a program does at its end the actor does here.

        Its node ends the process if that takes too long.
        """
        executor = self._executor
        if executor.crashed:
            return
        if executor.leaving:
            with self._world:
                executor.exit_actor(executor.leaving)
        if hasattr(type(self._instance), "__ray_shutdown__"):
            shutdown = self._instance.__ray_shutdown__
            try:
                if self._own_thread is None:
                    shutdown()
                else:
                    self._own_thread.run(shutdown)
            except self._world.unwinding:
                raise
            except BaseException as error:
                if self._world.is_for_driver(error):
                    raise
                # As text: who keeps the error keeps the instance.
                name = type(self._instance).__name__
                log.error("%s.__ray_shutdown__ raised\n%s", name, lines_of(error))
            del shutdown
        self._instance = None
        self._world.run_exit_handlers()

    def crashed(self, error: BaseException) -> None:
        """A thread or coroutine raised what ends the process, as it would in its own loop."""
        if self._executor.leaving and self._world.is_for_driver(error):
            raise error
        loop = None if self._own_thread is None else self._own_thread.loop
        if self._executor.leaving and (loop is None or loop.is_running()):
            return  # it ends as it is, when the calls that run have ended
        with self._world:
            why = ActorDeath(DeathCause.WORKER_DIED, detail=last_words(error))
            self._executor.exit_actor(why, crashed=True)
        self._world.nudge()
        if self._world.is_for_driver(error):
            raise error

    def broken(self, error: BaseException) -> None:
        """What runs a call beside others has failed, and not the call, which nobody answers.

        The actor ends as if it had crashed, without waiting for anything.
        """
        if self._world.is_for_driver(error):
            raise error
        why = f"running a call of it failed\n{all_lines_of(error)}"
        if self._executor.leaving:
            log.error("%s: %s", type(self._instance).__name__, why)  # its end says why it left
        with self._world:
            self._executor.exit_actor(ActorDeath(DeathCause.WORKER_DIED, detail=why), crashed=True)
        self._world.nudge()

    # -- beside one another ----------------------------------------------------

    def is_simple(self, assignment: Assignment) -> bool:
        """Whether a call has nothing to it but arguments and one value."""
        spec, extra = assignment.spec, assignment.spec.extra
        assert extra is not None
        special = assignment.values or extra.stream or extra.retry_on or extra.method in _BUILT_IN
        return self._plain and not special and spec.returns == 1

    def prepared(self, assignment: Assignment) -> Callable[[], Any]:
        """Return a simple call with everything in its place."""
        spec = assignment.spec
        assert spec.extra is not None
        method: Callable[[], Any] = getattr(self._instance, spec.extra.method)
        return self._tasks.prepare(assignment, method) if spec.args else method

    def next_beside(self) -> Assignment | None:
        """Return the next call for the thread that asks; None: it is free from now on."""
        with self._world:
            assignment = None if self._executor.exiting else self._executor.next()
            if assignment is None:
                self._running -= 1
        return assignment

    def run_beside(self, assignment: Assignment, started_s: float) -> None:
        """Run a call of any kind in a thread."""
        spec = assignment.spec
        try:
            call = self._tasks.prepare(assignment, self.method(spec))
        except Exception as error:
            self._tasks.reports.error(spec, started_s, error)
        except BaseException as error:
            caught = [error]
            self.report_beside(spec, lambda: again(caught), started_s)
        else:
            self.report_beside(spec, call, started_s)

    def report_beside(self, spec: TaskSpec, call: Callable[[], Any], started_s: float) -> None:
        """Run a call and report what became of it, whatever it was."""
        try:
            if spec.extra is not None and spec.extra.stream:
                self._tasks.run_stream(spec, call, started_s)
            else:
                self._tasks.run_call(spec, call, started_s)
        except ActorExit as leaving:
            self.exit(leaving)
        except Exception as error:
            self._tasks.reports.error(spec, started_s, error)
        except self._world.unwinding:
            raise
        except BaseException as error:
            self.crashed(error)
        if self._tasks.session.uncounted:
            self._tasks.tidy()

    def frame(self, spec: TaskSpec) -> Frame:
        return Frame(task_id(spec.array, 0), self._tasks.session.client.submitter.job)

    def ended(self) -> None:
        if self._tasks.session.uncounted:
            self._tasks.tidy()
        with self._world:
            self._running -= 1
        self._world.nudge()


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
