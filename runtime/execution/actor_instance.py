"""The instance of an actor: its methods, its checkpoints and its end."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from raytwin.runtime.api.actors import CALL, READY, TERMINATE, ActorExit
from raytwin.runtime.control.messages import ActorInfo, RestoreActor, TaskSpec
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause
from raytwin.runtime.execution.bodies import watched
from raytwin.runtime.execution.call_execution import CallRunner
from raytwin.runtime.execution.user_errors import crash_reason, is_error, traceback_text
from raytwin.runtime.session.task_context import CallContext
from raytwin.runtime.session.world import World

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("raytwin")

BUILT_IN = (READY, TERMINATE, CALL)
"""The names of the methods that every actor has."""


class EventLoop:
    """The event loop of an actor whose class has async methods.

    One loop runs on one thread from before the constructor to the actor's end: asyncio tasks
    outlive the constructor or call that has started them. All of the actor's own code
    runs on that thread, so objects that belong to a thread or to a loop (a connection to sqlite,
    a future) work in the constructor and in every call.
    """

    def __init__(self, world: World, failed: Callable[[BaseException], None]) -> None:
        """Start the loop, and call `failed` with an error in it that ends the process."""
        self._world = world
        self._failed = failed
        self._end: BaseException | None = None
        self.loop = world.start_event_loop(self._ended)

    def run(self, call: Callable[[], Any]) -> Any:
        """Call a function in the loop, as an asyncio task; return its value or raise its error.

        Awaits the value if it is a coroutine. Not for the loop's own thread.
        """
        world = self._world
        values: list[Any] = []
        errors: list[BaseException] = []
        tasks: list[asyncio.Task[None]] = []

        async def run() -> None:
            try:
                value = call()
                values.append(await value if type(value) is CoroutineType else value)
            except world.unwinding:
                raise
            except BaseException as error:
                # Every error, as the waiting thread raises it.
                errors.append(error)
            world.wake_blocked()

        # In the list, since a loop alone does not keep its tasks.
        self.loop.call_soon_threadsafe(lambda: tasks.append(self.loop.create_task(run())))
        world.block(lambda: bool(values or errors or self._end), None)
        if values:
            return values.pop()
        # Popped, since the error's traceback refers to this frame, and so to the list.
        raise errors.pop() if errors else self._take_end()

    def _ended(self, error: BaseException) -> None:
        self._end = error
        self._failed(error)

    def _take_end(self) -> BaseException:
        assert self._end is not None
        return self._end


def has_async_methods(cls: type) -> bool:
    """Whether a class is an async actor's: one of its methods is a coroutine or async generator."""
    names = {name for base in cls.__mro__ if base is not object for name in vars(base)}
    routines = filter(inspect.isroutine, (getattr(cls, name, None) for name in names))
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in routines
    )


def method_of(instance: Any, name: str) -> Callable[..., Any]:
    """Return a method of an actor, also if its instance has an attribute of the same name."""
    cls = type(instance)
    if name in getattr(instance, "__dict__", ()) and hasattr(cls, name):
        method: Callable[..., Any] = inspect.getattr_static(cls, name).__get__(instance, cls)
        return method
    return getattr(instance, name)


class ActorInstance:
    """The one actor of a worker, which threads or coroutines share that run its calls."""

    def __init__(self, calls: CallRunner, info: ActorInfo) -> None:
        self._calls = calls
        self._world = calls.world
        self._executor = calls.executor
        self.info = info
        self.plain = not (info.max_restarts or info.checkpoint_interval)
        """Whether its calls need no log, so that their results may be reported together."""
        self.instance: Any = None
        self.loop: EventLoop | None = None
        """The loop that runs all of its code; None if the class has no async methods."""
        self.running = 0
        """The number of calls that run now, of concurrent calls."""
        self._effects = 0
        """The number of calls that took effect, also before the restored checkpoint."""
        self._save_failed = False

    def run(self, call: Callable[[], Any]) -> Any:
        """Run the class's own code, in the event loop if there is one."""
        return call() if self.loop is None else self.loop.run(call)

    def restored(self, restore: RestoreActor) -> bool:
        """Load a checkpoint into the new instance; return False if it raised, and end the actor."""

        def load() -> None:
            self.instance.__ray_restore__(self._world.deserialize(restore.state))

        try:
            self.run(load)
        except BaseException as error:
            if not is_error(error, self._world):
                raise
            # As with the constructor no restart follows, since it would raise again.
            self.instance = None
            with self._world:
                why = ActorDeath(DeathCause.RESTORE_RAISED, detail=traceback_text(error))
                self._executor.leave(why)
            return False
        self._effects = restore.calls
        return True

    def _save(self) -> None:
        """Take a checkpoint; if that fails, the actor keeps its last one."""
        try:
            state = self._calls.references.dumps_lasting(self.instance.__ray_save__())
            most = self._calls.session.client.config.checkpoint_bytes_max
            if len(state) > most:
                raise ValueError(f"a checkpoint of {len(state):,} bytes; at most {most:,} are kept")
        except BaseException as error:
            if not is_error(error, self._world):
                raise
            if not self._save_failed:
                # Logged once, as the next checkpoint may well fail for the same reason.
                self._save_failed = True
                log.warning(
                    "%s took no checkpoint, the one before is kept: %s: %s",
                    type(self.instance).__name__, type(error).__name__, error,
                )  # fmt: skip
            return
        with self._world:
            self._executor.save(self._effects, state)

    def took_effect(self, spec: TaskSpec) -> None:
        """Count a call that has ended; take a checkpoint after every `checkpoint_interval`."""
        assert spec.extra is not None
        if spec.extra.method == READY:
            return
        self._effects += 1
        interval = self.info.checkpoint_interval
        if interval and self._effects % interval == 0:
            self._save()

    def body(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """Return the actor's own code, watched if the world watches; a loop is watched as such."""
        watcher = self._world.watcher
        return own if watcher is None or self.loop is not None else watched(own, watcher)

    def method(self, spec: TaskSpec) -> Callable[..., Any]:
        """Return the method that a call names. Raises AttributeError."""
        assert spec.extra is not None
        name = spec.extra.method
        if name == READY:
            return lambda: True
        if name == TERMINATE:
            return self._terminate
        if name == CALL:
            return self.body(lambda function, *args, **kw: function(self.instance, *args, **kw))
        method = self.body(method_of(self.instance, name))
        return self._with_retries(spec, method) if spec.extra.retry_on else method

    def _with_retries(self, spec: TaskSpec, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that calls `method` again after the errors for which it is retried.

        All tries are one call: if calls run one at a time, no other call runs between them,
        and a reconstructed actor repeats them.
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
        return wanted and self._calls.reports.is_retried(spec, error)

    @staticmethod
    def _terminate() -> None:
        raise ActorExit(ActorDeath(DeathCause.TERMINATED))

    def exit(self, leaving: ActorExit) -> None:
        """End the actor because a call asks for it; concurrent calls run to their ends."""
        with self._world:
            self._executor.leave(leaving.why)
        self._world.wake_blocked()

    def end(self) -> None:
        """Run ``__ray_shutdown__`` and the exit handlers.

        The node kills the process if they take too long.
        """
        if self._executor.crashed:
            return
        if hasattr(type(self.instance), "__ray_shutdown__"):
            shutdown = self.instance.__ray_shutdown__
            try:
                self.run(shutdown)
            except self._world.unwinding:
                raise
            except BaseException as error:
                if self._world.is_for_driver(error):
                    raise
                # As text, since the error refers to the instance, which is to be collected.
                name = type(self.instance).__name__
                log.error("%s.__ray_shutdown__ raised\n%s", name, traceback_text(error))
            del shutdown
        self.instance = None
        self._world.run_exit_handlers()

    def crashed(self, error: BaseException) -> None:
        """End the actor by a crash: a call raised SystemExit, or the runtime failed."""
        if not self._executor.leaving or (self.loop and not self.loop.loop.is_running()):
            if isinstance(error, Exception):
                log.error("the runtime failed around a call", exc_info=error)
            with self._world:
                self._executor.crash(ActorDeath(DeathCause.WORKER_DIED, detail=crash_reason(error)))
            self._world.wake_blocked()
        if self._world.is_for_driver(error):
            raise error

    def call_context(self, spec: TaskSpec) -> CallContext:
        """Return the context of a concurrent call, which numbers its children."""
        return CallContext(spec, self._calls.session.client.submitter.job)

    def ended(self) -> None:
        """Note the end of a concurrent call."""
        if self._calls.references.dropped:
            self._calls.tidy()
        with self._world:
            self.running -= 1
        self._world.wake_blocked()
