"""The instance of an actor: its methods, its checkpoints and its end."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from raytwin.runtime.api.actors import CALL, READY, TERMINATE, ActorExit
from raytwin.runtime.control.core.ids import task_id
from raytwin.runtime.control.messages import ActorInfo, RestoreActor, TaskSpec
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause
from raytwin.runtime.execution.actor_loop import EventLoop
from raytwin.runtime.execution.call_execution import CallRunner
from raytwin.runtime.execution.tracebacks import all_lines_of, lines_of
from raytwin.runtime.execution.user_errors import is_error, last_words
from raytwin.runtime.session.task_context import CallContext

log = logging.getLogger("raytwin")

BUILT_IN = (READY, TERMINATE, CALL)
"""Names of calls that every actor answers."""


class ActorInstance:
    """The one actor of a worker, as the threads or coroutines that run its calls see it."""

    def __init__(self, calls: CallRunner, info: ActorInfo) -> None:
        self._calls = calls
        self._world = calls.world
        self._executor = calls.executor
        self.info = info
        self.plain = not (info.max_restarts or info.checkpoint_interval)
        """Its results need no log: they may be reported together."""
        self.instance: Any = None
        self.loop: EventLoop | None = None
        """Where all of its code runs if the class has async methods; None: it has none."""
        self.running = 0
        """Calls that run at the same time now."""
        self._effects = 0
        """Calls that took effect, those before the restored checkpoint included."""
        self._save_failed = False

    def run(self, call: Callable[[], Any]) -> Any:
        """Run the class's own code: in the event loop if it has one."""
        return call() if self.loop is None else self.loop.run(call)

    def restored(self, restore: RestoreActor) -> bool:
        """Load a checkpoint into the new instance; False: that failed, and the actor ends."""

        def load() -> None:
            self.instance.__ray_restore__(self._world.deserialize(restore.state))

        try:
            self.run(load)
        except BaseException as error:
            if not is_error(error):
                raise
            # The actor is not restarted, as after its constructor: it would raise again.
            self.instance = None
            with self._world:
                self._executor.queue.clear()
                why = ActorDeath(DeathCause.RESTORE_RAISED, detail=lines_of(error))
                self._executor.exit_actor(why)
            return False
        self._effects = restore.calls
        return True

    def _save(self) -> None:
        """Take a checkpoint; if that fails the one before is kept."""
        try:
            state = self._calls.references.dumps_lasting(self.instance.__ray_save__())
            most = self._calls.session.client.config.checkpoint_bytes_max
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

    def method(self, spec: TaskSpec) -> Callable[..., Any]:
        """Return the method that a call names. Raises AttributeError."""
        assert spec.extra is not None
        name = spec.extra.method
        if name == READY:
            return lambda: True
        if name == TERMINATE:
            return self._terminate
        if name == CALL:
            return lambda function, *args, **kwargs: function(self.instance, *args, **kwargs)
        method: Callable[..., Any] = getattr(self.instance, name)
        return self._tried_again(spec, method) if spec.extra.retry_on else method

    def _tried_again(self, spec: TaskSpec, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that is called again after the errors that it is retried for.

        The tries are one call: no other call comes in between where calls run one at a time,
        and an actor that is reconstructed repeats them.
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
        """End the actor as a call asks; calls that run at the same time go on to their ends."""
        with self._world:
            self._executor.leave(leaving.why)
        self._world.nudge()

    def end(self) -> None:
        """Run ``__ray_shutdown__`` and the exit handlers.

        The node ends the process if that takes too long.
        """
        executor = self._executor
        if executor.crashed:
            return
        if executor.leaving:
            with self._world:
                executor.exit_actor(executor.leaving)
        if hasattr(type(self.instance), "__ray_shutdown__"):
            shutdown = self.instance.__ray_shutdown__
            try:
                self.run(shutdown)
            except self._world.unwinding:
                raise
            except BaseException as error:
                if self._world.is_for_driver(error):
                    raise
                # As text: the error refers to the instance.
                name = type(self.instance).__name__
                log.error("%s.__ray_shutdown__ raised\n%s", name, lines_of(error))
            del shutdown
        self.instance = None
        self._world.run_exit_handlers()

    def crashed(self, error: BaseException) -> None:
        """End the actor: a thread or coroutine has raised what ends a process."""
        if self._executor.leaving and self._world.is_for_driver(error):
            raise error
        loop = None if self.loop is None else self.loop.loop
        if self._executor.leaving and (loop is None or loop.is_running()):
            return  # the actor ends anyway, with the calls that run
        with self._world:
            why = ActorDeath(DeathCause.WORKER_DIED, detail=last_words(error))
            self._executor.exit_actor(why, crashed=True)
        self._world.nudge()
        if self._world.is_for_driver(error):
            raise error

    def broken(self, error: BaseException) -> None:
        """End the actor as crashed: the runtime failed around a call, which has no reply."""
        if self._world.is_for_driver(error):
            raise error
        why = f"running a call of it failed\n{all_lines_of(error)}"
        if self._executor.leaving:
            log.error("%s: %s", type(self.instance).__name__, why)  # its end says why it left
        with self._world:
            self._executor.exit_actor(ActorDeath(DeathCause.WORKER_DIED, detail=why), crashed=True)
        self._world.nudge()

    def call_context(self, spec: TaskSpec) -> CallContext:
        """Return what numbers the children of a call that runs at the same time as others."""
        return CallContext(task_id(spec.array, 0), self._calls.session.client.submitter.job)

    def ended(self) -> None:
        """Count a coroutine that has ended."""
        if self._calls.references.dropped:
            self._calls.tidy()
        with self._world:
            self.running -= 1
        self._world.nudge()
