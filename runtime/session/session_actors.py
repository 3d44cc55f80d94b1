"""Creates, looks up, calls and ends actors; describes the actor that this worker runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any

from msgspec.structs import replace

from raytwin.runtime.api.actors import ActorClass, ActorExit
from raytwin.runtime.api.backend import Backend, ObjectRef, counted_ref
from raytwin.runtime.api.exceptions import (
    ActorAlreadyExistsError,
    PendingCallsLimitExceeded,
    RaySystemError,
)
from raytwin.runtime.api.options.actor_options import ActorOptions
from raytwin.runtime.api.options.method_options import ActorCall
from raytwin.runtime.api.options.task_options import exception_classes
from raytwin.runtime.api.streams import ObjectRefGenerator
from raytwin.runtime.control.core.ids import FIRST, object_id
from raytwin.runtime.control.messages import ActorInfo, TaskExtra, TaskSpec
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause
from raytwin.runtime.session.session_references import SessionReferences, arrays_of
from raytwin.runtime.session.task_context import TaskContext, current_call
from raytwin.runtime.session.task_submitter import TaskSubmitter, retry_on, specify, with_inside
from raytwin.runtime.session.values import Waits


class SessionActors:
    """Creates actors and calls them."""

    def __init__(
        self,
        references: SessionReferences,
        context: TaskContext,
        waits: Waits,
        tasks: TaskSubmitter,
        session: Backend,
    ) -> None:
        self.world = references.world
        self.client = references.client
        self._references = references
        self._context = context
        self._waits = waits
        self._tasks = tasks
        self._session = session
        self._pending: dict[bytes, list[bytes]] = {}
        """This process's pending calls, by actor; only actors with ``max_pending_calls``."""
        self.loaded: Callable[[bytes], Any] = self._never_loaded
        """Returns the function or class of an ID, in a worker."""
        self.actor_function = b""
        """The ID of the class of the actor that this worker runs."""
        self.actor_owner = ""

    def create_actor(
        self,
        actor_class: ActorClass,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: ActorOptions,
    ) -> tuple[bytes, ObjectRef, bytes]:
        self._references.check_open()
        key, blob = self._tasks.exported(actor_class)
        held: list[ObjectRef] = []
        payload, deps = self._tasks.pack(args, kwargs, held)
        info = ActorInfo(
            options.max_restarts,
            actor_class.concurrency,
            options.checkpoint_interval,
            options.name,
            options.namespace,
            options.lifetime == "detached",
            self._references.dumps(actor_class.description()) if options.name else b"",
            ordered=actor_class.concurrency == 1 and not actor_class.is_async,
        )
        if options.placement is not None:
            needed, _ = specify(self._references, self._context, options.placement, 0)
            info.placement = needed
        demand, extra = specify(self._references, self._context, options.task, 0)
        extra = extra or TaskExtra()
        extra.actor = info
        extra.inside = holds = arrays_of(held)
        with self.world:
            self._references.collect()
            self.world.charge("submit", 1)
            self.client.submitter.export(key, blob)
            array = self._context.next_array()
            spec = TaskSpec(
                array, 0, 1, key, payload, self.client.address, demand, deps, 1, 0, -1,
                actor_class.class_name, extra,
            )  # fmt: skip
            keeper = array if options.max_restarts else b""
            if not options.name:
                self.client.submitter.create(spec, holds, keeper)
                return array, self._handle(array), b""
            reply_key, waiter = self.client.requests.find_actor(
                options.namespace, options.name, spec, keeper, holds
            )
            ref = self._handle(array)
        self._waits.block(waiter, None)
        with self.world:
            found = self.client.requests.replies.pop(reply_key)
            if found.created or found.actor == array:
                return array, ref, b""
            self.client.references.end_actor(array)
        if not options.get_if_exists:
            raise ActorAlreadyExistsError(f"there is an actor named {options.name!r} already")
        return found.actor, self._weak(found.actor), found.handle

    def call_actor(
        self, call: ActorCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[ObjectRef] | ObjectRefGenerator:
        self._references.check_open()
        held: list[ObjectRef] = []
        payload, deps = self._tasks.pack(args, kwargs, held) if args or kwargs else (b"", ())
        with self.world:
            self._references.collect()
            self._tasks.charge(payload, deps)
            returns = call.returns
            pending = self._pending_calls(call) if call.limited else None
            array = self._context.next_array()
            if pending is not None:
                pending.append(array)
            keeper = call.actor if call.restartable else b""
            if returns == 1 and not (deps or held or call.extra.stream or call.extra.inside):
                entry = self.client.submitter.call(
                    array, call.extra, call.name, call.max_task_retries, payload, call.hold, keeper
                )
                entry.refs += 1
                return [counted_ref(array + FIRST, self._references)]
            spec = TaskSpec(
                array, 0, 1, b"", payload, self.client.address, "", deps, returns,
                call.max_task_retries, -1, call.name, call.extra,
            )  # fmt: skip
            holds: tuple[bytes, ...] = (call.hold,)
            if held:
                inside = arrays_of(held)
                holds += inside
                spec.extra = with_inside(call.extra, inside)
            entry = self.client.submitter.submit(array, [spec], 1, returns, holds, keeper)
            entry.is_call = True
            if call.extra.stream:
                entry.items = {} if entry.items is None else entry.items
                end = ObjectRef(object_id(array, 0, 0), self._references)
                return ObjectRefGenerator(end, self._session)
            return self._references.refs_to(entry)

    def find_actor(self, name: str, namespace: str) -> tuple[bytes, ObjectRef, bytes] | None:
        self._references.check_open()
        with self.world:
            key, waiter = self.client.requests.find_actor(namespace, name, None)
        self._waits.block(waiter, None)
        with self.world:
            found = self.client.requests.replies.pop(key)
            if not found.actor:
                return None
            return found.actor, self._weak(found.actor), found.handle

    def kill_actor(self, actor: bytes, restart: bool) -> None:
        self._references.check_open()
        with self.world:
            self.client.submitter.kill_actor(actor, restart)

    def exit_actor(self) -> None:
        if self.world.executor is None or not self.world.executor.actor:
            raise TypeError("exit_actor is for the methods of actors")
        why = ActorDeath(DeathCause.EXITED)
        with self.world:
            # At once: an exception in a thread or an asyncio task would end no call of the actor.
            self.world.executor.leave(why)
        self.world.wake_blocked()
        _retrieve_error_of_task()
        in_loop = (
            "asyncio" in sys.modules and sys.modules["asyncio"]._get_running_loop() is not None
        )
        if current_call.get() is None and get_ident() != self._context.thread and not in_loop:
            raise SystemExit  # ends a thread that the actor has started, and prints nothing
        raise ActorExit(why)

    def this_actor(self) -> tuple[ObjectRef, type]:
        actor = self._context.actor
        assert actor is not None, "it is no actor"
        with self.world:
            self.client.references.counter.receive(actor[0], self.actor_owner)
        return self._handle(actor[0]), self.loaded(self.actor_function)

    def function_name(self, spec: TaskSpec) -> str:
        key, method = spec.function, ""
        if spec.extra is not None and spec.extra.call:
            key, method = self.actor_function, f".{spec.extra.method}"
        function = self.loaded(key)
        name = getattr(function, "__qualname__", None) or repr(function)
        return f"{getattr(function, '__module__', '?')}.{name}{method}"

    def _handle(self, actor: bytes) -> ObjectRef:
        """Return the reference that a handle holds: to the value of the actor's creation task."""
        return ObjectRef(object_id(actor, 0, 0), self._references)

    def _weak(self, actor: bytes) -> ObjectRef:
        """Return the reference of a handle that was found by name: it does not keep the actor."""
        return self._references.weak(object_id(actor, 0, 0))

    def _pending_calls(self, call: ActorCall) -> list[bytes] | None:
        """Return the actor's pending calls, None if it does not limit them.

        Also serializes the errors for which the call is retried. Raises
        PendingCallsLimitExceeded.
        """
        if call.retry_exceptions and not call.extra.retry_on:
            classes = exception_classes(call.retry_exceptions)
            call.extra = replace(call.extra, retry_on=retry_on(self._references, classes))
        if not call.pending_max:
            return None
        entries = self.client.entries
        pending = self._pending.setdefault(call.actor, [])
        pending[:] = [a for a in pending if (entry := entries.get(a)) is not None and entry.missing]
        if len(pending) >= call.pending_max:
            raise PendingCallsLimitExceeded(
                f"{call.name}: {len(pending)} calls of this actor are pending, and"
                f" max_pending_calls is {call.pending_max}"
            )
        return pending

    @staticmethod
    def _never_loaded(key: bytes) -> Any:
        raise RaySystemError("a driver runs no functions")


def _retrieve_error_of_task() -> None:
    """Keep asyncio from logging that the error of its running task was never retrieved."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
        if task is not None:
            task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
