"""Actors as a session has them: made, found, called, ended, and the one that it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any

from raytwin.runtime.api.actor_call import ActorCall
from raytwin.runtime.api.actors import ActorExit
from raytwin.runtime.api.backend import ActorDefinition, World
from raytwin.runtime.api.exceptions import ActorAlreadyExistsError, RaySystemError
from raytwin.runtime.api.options.actor_options import ActorOptions
from raytwin.runtime.api.refs import ObjectRef, counted_ref
from raytwin.runtime.api.streams import ObjectRefGenerator
from raytwin.runtime.control.core.ids import FIRST, object_id
from raytwin.runtime.control.messages import ActorInfo, TaskExtra, TaskSpec
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause
from raytwin.runtime.execution.user_errors import retrieve_error_of_task
from raytwin.runtime.session.numbering import frame_of_call
from raytwin.runtime.session.session_references import arrays_of
from raytwin.runtime.session.submitting import Submitting, with_inside
from raytwin.runtime.session.task_specs import pending_calls, specify


class ActorCalls(Submitting):
    """Creates actors and calls them."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.loaded: Callable[[bytes], Any] = self._never_loaded
        """Return the function or class of an ID, in a worker."""
        self.actor_function = b""
        """The ID of the class of the actor that this worker is."""
        self.actor_owner = ""

    def create_actor(
        self,
        actor_class: ActorDefinition,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: ActorOptions,
    ) -> tuple[bytes, ObjectRef, bytes]:
        self._check_open()
        key, blob = self._serialized(actor_class)
        held: list[ObjectRef] = []
        payload, deps = self._pack(args, kwargs, held)
        info = ActorInfo(
            options.max_restarts,
            actor_class.concurrency,
            options.checkpoint_interval,
            options.name,
            options.namespace,
            options.lifetime == "detached",
            self.dumps(actor_class.description()) if options.name else b"",
        )
        demand, extra = specify(self, options.task, 0)
        extra = extra or TaskExtra()
        extra.actor = info
        extra.inside = holds = arrays_of(held)
        with self.world:
            self.collect()
            self.world.charge("submit", 1)
            self.client.submitter.export(key, blob)
            array = self._next_array()
            spec = TaskSpec(
                array, 0, 1, key, payload, self.client.address, demand, deps, 1, 0, -1,
                actor_class.class_name, extra,
            )  # fmt: skip
            keeper = array if options.max_restarts else b""
            if not options.name:
                self.client.submitter.submit(array, [spec], 1, 1, holds, keeper)
                return array, ObjectRef(object_id(array, 0, 0), self), b""
            reply_key, waiter = self.client.requests.find_actor(
                options.namespace, options.name, spec, keeper, holds
            )
            ref = ObjectRef(object_id(array, 0, 0), self)
        self._block(waiter, None)
        with self.world:
            found = self.client.requests.replies.pop(reply_key)
            if found.created or found.actor == array:
                return array, ref, b""
            self.client.submitter.disown(array)
        if not options.get_if_exists:
            raise ActorAlreadyExistsError(f"there is an actor named {options.name!r} already")
        return found.actor, ObjectRef(object_id(found.actor, 0, 0), self), found.handle

    def call_actor(
        self, call: ActorCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[ObjectRef] | ObjectRefGenerator:
        self._check_open()
        held: list[ObjectRef] = []
        payload, deps = self._pack(args, kwargs, held) if args or kwargs else (b"", ())
        with self.world:
            self.collect()
            self.world.charge("submit", 1)
            returns = call.returns
            pending = pending_calls(self, call) if call.limited else None
            array = self._next_array()
            if pending is not None:
                pending.append(array)
            keeper = call.actor if call.rebuilt else b""
            if returns == 1 and not (deps or held or call.extra.stream or call.extra.inside):
                entry = self.client.submitter.call(
                    array, call.extra, call.name, call.retries, payload, call.hold, keeper
                )
                entry.refs += 1
                return [counted_ref(array + FIRST, self)]
            spec = TaskSpec(
                array, 0, 1, b"", payload, self.client.address, "", deps, returns, call.retries,
                -1, call.name, call.extra,
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
                return ObjectRefGenerator(ObjectRef(object_id(array, 0, 0), self), self)
            return self._refs_to(entry)

    def find_actor(self, name: str, namespace: str) -> tuple[bytes, ObjectRef, bytes] | None:
        self._check_open()
        with self.world:
            key, waiter = self.client.requests.find_actor(namespace, name, None)
        self._block(waiter, None)
        with self.world:
            found = self.client.requests.replies.pop(key)
            if not found.actor:
                return None
            return found.actor, ObjectRef(object_id(found.actor, 0, 0), self), found.handle

    def kill_actor(self, actor: bytes, restart: bool) -> None:
        self._check_open()
        with self.world:
            self.client.submitter.kill_actor(actor, restart)

    def exit_actor(self) -> None:
        if self.world.executor is None or not self.world.executor.actor:
            raise TypeError("exit_actor is for the methods of actors")
        why = ActorDeath(DeathCause.EXITED)
        with self.world:
            # Said here: what a thread or a task of asyncio's raises, no call of the actor does.
            self.world.executor.leave(why)
        self.world.nudge()
        retrieve_error_of_task()
        in_loop = (
            "asyncio" in sys.modules and sys.modules["asyncio"]._get_running_loop() is not None
        )
        if frame_of_call.get() is None and get_ident() != self._thread and not in_loop:
            raise SystemExit  # a thread of the actor's own ends without a word
        raise ActorExit(why)

    def own_actor(self) -> tuple[ObjectRef, type]:
        assert self.actor is not None, "it is no actor"
        with self.world:
            self.client.references.counter.receive(self.actor[0], self.actor_owner)
        return ObjectRef(object_id(self.actor[0], 0, 0), self), self.loaded(self.actor_function)

    def function_name(self, spec: TaskSpec) -> str:
        key, method = spec.function, ""
        if spec.extra is not None and spec.extra.call:
            key, method = self.actor_function, f".{spec.extra.method}"
        function = self.loaded(key)
        name = getattr(function, "__qualname__", None) or repr(function)
        return f"{getattr(function, '__module__', '?')}.{name}{method}"

    @staticmethod
    def _never_loaded(key: bytes) -> Any:
        raise RaySystemError("a driver runs no functions")
