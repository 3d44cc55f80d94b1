"""Submitting: from a call's arguments to the task specs that travel.

References among the arguments become inputs, and so do arguments that are too
large to ride in messages; `Input` stands for each where it was. A sequence that is
mapped travels in chunks, each small enough for a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from msgspec.structs import replace

from runtime.api.actors import ActorClass
from runtime.api.exceptions import system_error
from runtime.api.options import TaskOptions
from runtime.api.refs import ObjectRef, ObjectRefArray
from runtime.api.remote_function import RemoteFunction
from runtime.api.streams import ObjectRefGenerator
from runtime.backend import job_setup
from runtime.backend.inputs import Input
from runtime.backend.pickling import Once
from runtime.backend.protocol import World
from runtime.backend.session.recipes import of_arguments, of_value
from runtime.backend.session.references import arrays_of
from runtime.backend.session.values import Values
from runtime.backend.submission import specify
from runtime.control.ids import ELEMENTS_MAX, JOB_BYTES, function_id, job_of, object_id, same_job
from runtime.control.jobs import foreign_object
from runtime.control.messages import STREAM, TaskExtra, TaskSpec

SEQUENCE_CHUNK = 1024
"""Items of a sequence that travel in one range; a `range` travels whole."""
SUBMIT_SPECS_MAX = 64
"""Ranges submitted in one message, so that no message grows without bound."""
FUNCTION_BYTES_MAX = 32 * 1024 * 1024
"""Functions travel in messages, whatever they close over included."""


class Submitting(Values):
    """Submits tasks and task arrays."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.setup = b""
        """What functions carry for the workers of a job that joined; see `job_setup`."""
        self.calls_pending: dict[bytes, list[bytes]] = {}
        """By actor that limits them, the calls that were made from here."""

    def submit(
        self,
        function: RemoteFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: TaskOptions,
    ) -> list[ObjectRef] | ObjectRefGenerator:
        self._check_open()
        stream = options.stream if options.stream >= 0 else function.stream
        if options.plain and not stream and self._leaves_nothing:
            demand, extra = options.demand, None
        else:
            demand, extra = specify(self, options, stream)
        exported = function.exported
        if exported is None or exported[0][:JOB_BYTES] != self.client.job:
            exported = self._serialized(function)
        key = exported[0]
        held: list[ObjectRef] = []
        recipe: list[bytes] = []
        payload, deps = self._pack(args, kwargs, held, recipe) if args or kwargs else (b"", ())
        if self.world.executor is not None:
            recipe.append(self._function_recipe(key, function.function))
        with self.world:
            self.collect()
            self.world.charge("submit", 1)
            client = self.client
            client.export(*exported)
            if self.world.executor is None:
                array = client.next_array()
            else:
                kind = bytes((stream,)) + options.num_returns.to_bytes(2, "big")
                array = self._next_array(*recipe, kind, *deps)
            spec = TaskSpec(
                array, 0, 1, key, payload, client.address, demand, deps,
                options.num_returns, options.max_retries, -1,
                options.name or function.function_name, extra,
            )  # fmt: skip
            holds: tuple[bytes, ...] = ()
            if held:
                holds = arrays_of(held)
                spec.extra = with_inside(extra, holds)
            entry = client.submit(array, [spec], 1, options.num_returns, holds)
            if stream:
                entry.items = {} if entry.items is None else entry.items
            if stream == STREAM:
                return ObjectRefGenerator(ObjectRef(object_id(array, 0, 0), self), self)
            return self._refs_to(entry)

    @property
    def _leaves_nothing(self) -> bool:
        """Whether tasks that are submitted now have nothing from whoever submits them."""
        return not self.env_vars and self.world.executor is None

    def map(
        self, function: RemoteFunction, items: Sequence[Any], star: bool, options: TaskOptions
    ) -> ObjectRefArray:
        self._check_open()
        count = len(items)
        stream = options.stream if options.stream >= 0 else function.stream
        if stream:
            raise ValueError("a task array has one return value per task, not a stream")
        demand, extra = specify(self, options, 0)
        if count > ELEMENTS_MAX:
            raise ValueError(f"a task array has at most {ELEMENTS_MAX} tasks, not {count}")
        if not count:
            return ObjectRefArray(b"", 0, 1, self)
        key, blob = self._serialized(function)
        held: list[ObjectRef] = []
        recipe: list[bytes] = []
        with nullcontext() if self.world.executor is None else Once():
            packed = self._pack_items(items, star, held, recipe)
        if self.world.executor is not None:
            recipe.append(self._function_recipe(key, function.function))
        with self.world:
            self.collect()
            self.client.export(key, blob)
            if self.world.executor is None:
                array = self.client.next_array()
            else:
                inputs = [dep for *_, deps in packed for dep in deps]
                array = self._next_array(*recipe, b"map", count.to_bytes(4, "big"), *inputs)
            name = options.name or function.function_name
            holds: tuple[bytes, ...] = ()
            if held:
                holds = arrays_of(held)
                extra = with_inside(extra, holds)
            specs = [
                TaskSpec(
                    array, start, size, key, payload, self.client.address, demand, deps,
                    1, options.max_retries, first, name, extra,
                )
                for start, size, first, payload, deps in packed
            ]  # fmt: skip
            self.world.charge("submit", len(specs))
            for at in range(0, len(specs), SUBMIT_SPECS_MAX):
                self.client.submit(array, specs[at : at + SUBMIT_SPECS_MAX], count, 1, holds)
                holds = ()
            return ObjectRefArray(array, count, 1, self)

    # -- task arrays -----------------------------------------------------------

    def _pack_items(
        self, items: Sequence[Any], star: bool, held: list[ObjectRef], recipe: list[bytes]
    ) -> list[tuple[int, int, int, bytes, tuple[bytes, ...]]]:
        """Return (start, count, first, args, deps) of the ranges of an array."""
        if isinstance(items, range):
            payload = self.world.serialize((False, items)).to_bytes()
            recipe.append(repr(items).encode())
            return [(0, len(items), 0, payload, ())]
        packed = []
        for start in range(0, len(items), SEQUENCE_CHUNK):
            chunk = list(items[start : start + SEQUENCE_CHUNK])
            if any(_has_ref(item, star) for item in chunk):
                # An element with inputs is a range of its own: it waits alone.
                for offset, item in enumerate(chunk):
                    args, deps = self._pack(tuple(item) if star else (item,), {}, held, recipe)
                    packed.append((start + offset, 1, -1, args, deps))
                continue
            packed += self._pack_chunk(start, chunk, star, held, recipe)
        return packed

    def _pack_chunk(
        self, start: int, chunk: list[Any], star: bool, held: list[ObjectRef], recipe: list[bytes]
    ) -> list[tuple[int, int, int, bytes, tuple[bytes, ...]]]:
        value = self.world.serialize((star, chunk))
        if value.nbytes <= self.client.config.inline_bytes_max:
            if value.contained:
                held += value.contained
            if self.world.executor is not None:
                recipe.append(of_value((star, chunk), value.nbytes))
            return [(start, len(chunk), start, value.to_bytes(), ())]
        if len(chunk) == 1:
            args = tuple(chunk[0]) if star else (chunk[0],)
            payload, inputs = self._packed(args, {}, [], held, recipe)
            return [(start, 1, -1, payload, inputs)]
        half = len(chunk) // 2
        return self._pack_chunk(start, chunk[:half], star, held, recipe) + self._pack_chunk(
            start + half, chunk[half:], star, held, recipe
        )

    # -- functions -------------------------------------------------------------

    def _serialized(self, function: RemoteFunction | ActorClass) -> tuple[bytes, bytes]:
        """Return (ID, serialized form) of a function or class."""
        job = self.client.job
        if function.exported is None or job_of(function.exported[0]) != job:
            plain: Callable[..., Any]
            if isinstance(function, ActorClass):
                plain, name = function.cls, function.class_name
            else:
                plain, name = function.function, f"{function.function_name}()"
            blob = job_setup.wrap(self.setup, self.world.dumps_function(plain))
            if len(blob) > FUNCTION_BYTES_MAX:
                raise ValueError(
                    f"{name} and what it refers to are {len(blob):,} bytes"
                    f" long; {FUNCTION_BYTES_MAX:,} is the most: pass large values as arguments"
                )
            function.exported = (function_id(self.world.identity_of(plain, blob), job), blob)
        return function.exported

    # -- arguments -------------------------------------------------------------

    def _pack(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        held: list[ObjectRef],
        recipe: list[bytes],
    ) -> tuple[bytes, tuple[bytes, ...]]:
        """Serialize arguments; references among them become inputs.

        Large arguments become objects, and inputs too. `held` keeps them, and what
        is inside arguments, until the task is submitted, and then the task does. In a
        worker `recipe` is told what the arguments are.
        """
        if not args and not kwargs:
            return b"", ()
        deps: list[bytes] = []
        if any(type(a) is ObjectRef for a in args):
            args = tuple(self._as_input(a, deps) for a in args)
        if kwargs and any(type(a) is ObjectRef for a in kwargs.values()):
            kwargs = {name: self._as_input(a, deps) for name, a in kwargs.items()}
        if self.world.executor is None:
            return self._packed(args, kwargs, deps, held, recipe)
        with Once():  # what the recipe needs again
            return self._packed(args, kwargs, deps, held, recipe)

    def _packed(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        deps: list[bytes],
        held: list[ObjectRef],
        recipe: list[bytes],
    ) -> tuple[bytes, tuple[bytes, ...]]:
        value = self.world.serialize((args, kwargs))
        if value.nbytes <= self.client.config.inline_bytes_max:
            if value.contained:
                held += value.contained
            if self.world.executor is not None:
                recipe.append(of_arguments(args, kwargs, value.nbytes))
            return value.to_bytes(), tuple(deps)
        args = tuple(self._large_as_input(a, deps, held) for a in args)
        kwargs = {name: self._large_as_input(a, deps, held) for name, a in kwargs.items()}
        value = self.world.serialize((args, kwargs))
        if value.contained:
            held += value.contained
        if self.world.executor is not None:
            recipe.append(of_arguments(args, kwargs, value.nbytes))
        return value.to_bytes(), tuple(deps)

    def _as_input(self, value: Any, deps: list[bytes]) -> Any:
        if type(value) is not ObjectRef:
            return value
        self._check_open([value])
        if not same_job(value.binary(), self.client.job):
            raise system_error(foreign_object(value.binary(), self.client.job).payload)
        deps.append(value.binary())
        return Input(len(deps) - 1)

    def _large_as_input(self, value: Any, deps: list[bytes], held: list[ObjectRef]) -> Any:
        if isinstance(value, Input):
            return value
        serialized = self.world.serialize(value)
        if serialized.nbytes <= self.client.config.inline_bytes_max:
            return value
        recipe = self._put_recipe(value, serialized.nbytes)
        with self.world:
            array = self._next_put(recipe)
        ref = self._put_large(array, serialized)
        held.append(ref)
        deps.append(ref.binary())
        return Input(len(deps) - 1)


def with_inside(extra: TaskExtra | None, arrays: tuple[bytes, ...]) -> TaskExtra:
    """Return a task's extra that says which arrays are inside its arguments."""
    return TaskExtra(inside=arrays) if extra is None else replace(extra, inside=arrays)


def _has_ref(item: Any, star: bool) -> bool:
    if star:
        return any(type(part) is ObjectRef for part in item)
    return type(item) is ObjectRef
