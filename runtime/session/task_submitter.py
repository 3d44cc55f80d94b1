"""Submits tasks: turns a call's arguments into task specs.

References among the arguments become dependencies, and so do arguments that are too large for a
message; an `Input` takes the place of each. The items of a task array travel in chunks, each small
enough for a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from raytwin.runtime.api.actors import ActorClass
from raytwin.runtime.api.backend import Backend, ObjectRef, ObjectRefArray
from raytwin.runtime.api.options.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from raytwin.runtime.api.options.task_options import TaskOptions
from raytwin.runtime.api.streams import ObjectRefGenerator
from raytwin.runtime.api.tasks import RemoteFunction
from raytwin.runtime.control.core.group_resources import demand_in
from raytwin.runtime.control.core.ids import ELEMENTS_MAX, function_id, object_id
from raytwin.runtime.control.core.resources import UNIT, parse_demand
from raytwin.runtime.control.messages import STREAM, TaskExtra, TaskSpec
from raytwin.runtime.control.scheduling.strategies import SPREAD, affinity
from raytwin.runtime.serialization.pickling import Input
from raytwin.runtime.serialization.serialization import unserializable
from raytwin.runtime.session import job_setup
from raytwin.runtime.session.session_references import SessionReferences, arrays_of
from raytwin.runtime.session.task_context import TaskContext
from raytwin.runtime.session.values import Values

SEQUENCE_CHUNK = 1024
"""The most items of a sequence that travel in one range; a Python `range` travels whole."""
SUBMIT_SPECS_MAX = 64
"""The most ranges in one message, so that no message grows without bound."""
FUNCTION_BYTES_MAX = 32 * 1024 * 1024
"""The longest function, which travels in one message with all that it closes over."""
CAPTURE = "/capture"
ANY = b"*"
"""`TaskExtra.retry_on` for ``retry_exceptions=True``."""


class TaskSubmitter:
    """Submits tasks and task arrays; exports functions and serializes arguments."""

    def __init__(
        self,
        references: SessionReferences,
        context: TaskContext,
        values: Values,
        session: Backend,
    ) -> None:
        self.world = references.world
        self.client = references.client
        self._references = references
        self._context = context
        self._values = values
        self._session = session
        """The session, which the generators of streams ask for items."""
        self.setup = b""
        """The setup in front of each function of a job that joined; see `job_setup`."""

    def submit(
        self,
        function: RemoteFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: TaskOptions,
    ) -> list[ObjectRef] | ObjectRefGenerator:
        self._references.check_open()
        stream = options.stream if options.stream >= 0 else function.stream
        if options.plain and not stream and self._inherits_nothing:
            demand, extra = options.demand, None
        else:
            demand, extra = specify(self._references, self._context, options, stream)
        key, blob = self.exported(function)
        held: list[ObjectRef] = []
        payload, deps = self.pack(args, kwargs, held) if args or kwargs else (b"", ())
        with self.world:
            self._references.collect()
            self.charge(payload, deps)
            client = self.client
            client.submitter.export(key, blob)
            array = self._context.next_array()
            spec = TaskSpec(
                array, 0, 1, key, payload, client.address, demand, deps,
                options.num_returns, options.max_retries, -1,
                options.name or function.task_name, extra, self._context.depth,
            )  # fmt: skip
            holds: tuple[bytes, ...] = ()
            if held:
                holds = arrays_of(held)
                spec.extra = with_inside(extra, holds)
            entry = client.submitter.submit(array, [spec], 1, options.num_returns, holds)
            if stream:
                entry.items = {} if entry.items is None else entry.items
            if stream == STREAM:
                end = ObjectRef(object_id(array, 0, 0), self._references)
                return ObjectRefGenerator(end, self._session)
            return self._references.refs_to(entry)

    def charge(self, payload: bytes, deps: Sequence[bytes]) -> None:
        """Account for the submission of a task or call with packed arguments, if it has any."""
        charge = self.world.charge
        charge("submit", 1)
        if payload:
            charge("argument", 1)
            charge("argument_byte", len(payload))
            if deps:
                charge("reference", len(deps))

    @property
    def _inherits_nothing(self) -> bool:
        """Whether a driver without environment variables submits, so that tasks inherit nothing."""
        return not self._context.env_vars and self.world.executor is None

    def map(
        self, function: RemoteFunction, items: Sequence[Any], star: bool, options: TaskOptions
    ) -> ObjectRefArray:
        self._references.check_open()
        count = len(items)
        stream = options.stream if options.stream >= 0 else function.stream
        if stream:
            raise ValueError("a task array has one return value per task, not a stream")
        demand, extra = specify(self._references, self._context, options, 0)
        if count > ELEMENTS_MAX:
            raise ValueError(f"a task array has at most {ELEMENTS_MAX} tasks, not {count}")
        if not count:
            return ObjectRefArray(b"", 0, self._references)
        key, blob = self.exported(function)
        held: list[ObjectRef] = []
        packed = self._pack_items(items, star, held)
        with self.world:
            self._references.collect()
            self.client.submitter.export(key, blob)
            array = self._context.next_array()
            name, depth = options.name or function.task_name, self._context.depth
            holds: tuple[bytes, ...] = ()
            if held:
                holds = arrays_of(held)
                extra = with_inside(extra, holds)
            specs = [
                TaskSpec(
                    array, start, size, key, payload, self.client.address, demand, deps,
                    1, options.max_retries, first, name, extra, depth,
                )
                for start, size, first, payload, deps in packed
            ]  # fmt: skip
            self.world.charge("submit", len(specs))
            for at in range(0, len(specs), SUBMIT_SPECS_MAX):
                self.client.submitter.submit(
                    array, specs[at : at + SUBMIT_SPECS_MAX], count, 1, holds
                )
                holds = ()
            return ObjectRefArray(array, count, self._references)

    # -- task arrays -----------------------------------------------------------

    def _pack_items(
        self, items: Sequence[Any], star: bool, held: list[ObjectRef]
    ) -> list[tuple[int, int, int, bytes, tuple[bytes, ...]]]:
        """Return (start, count, first item, args, dependencies) of the ranges of an array."""
        if isinstance(items, range):
            payload = self.world.serialize((False, items)).to_bytes()
            return [(0, len(items), 0, payload, ())]
        packed = []
        for start in range(0, len(items), SEQUENCE_CHUNK):
            chunk = list(items[start : start + SEQUENCE_CHUNK])
            if any(_has_ref(item, star) for item in chunk):
                # An element with inputs is a range of its own, which waits for them alone.
                for offset, item in enumerate(chunk):
                    args, deps = self.pack(tuple(item) if star else (item,), {}, held)
                    packed.append((start + offset, 1, -1, args, deps))
                continue
            packed += self._pack_chunk(start, chunk, star, held)
        return packed

    def _pack_chunk(
        self, start: int, chunk: list[Any], star: bool, held: list[ObjectRef]
    ) -> list[tuple[int, int, int, bytes, tuple[bytes, ...]]]:
        value = self.world.serialize((star, chunk))
        if value.nbytes <= self.client.config.inline_bytes_max:
            if value.contained:
                held += value.contained
            return [(start, len(chunk), start, value.to_bytes(), ())]
        if len(chunk) == 1:
            args = tuple(chunk[0]) if star else (chunk[0],)
            payload, inputs = self._packed(args, {}, [], held)
            return [(start, 1, -1, payload, inputs)]
        half = len(chunk) // 2
        return self._pack_chunk(start, chunk[:half], star, held) + self._pack_chunk(
            start + half, chunk[half:], star, held
        )

    # -- functions -------------------------------------------------------------

    def exported(self, function: RemoteFunction | ActorClass) -> tuple[bytes, bytes]:
        """Return (ID, serialized form) of a function or class.

        Raises ValueError if it is longer than `FUNCTION_BYTES_MAX`.
        """
        job, scope = self.client.submitter.job, self.world.functions
        exported = function.exported
        if exported is None or exported[0] != job or exported[1] is not scope:
            plain, name = function.source
            try:
                blob = job_setup.wrap(self.setup, self.world.dumps_function(plain))
            except TypeError as error:
                raise unserializable(name, error) from error
            if len(blob) > FUNCTION_BYTES_MAX:
                raise ValueError(
                    f"{name} and what it refers to are {len(blob):,} bytes"
                    f" long; {FUNCTION_BYTES_MAX:,} is the most: pass large values as arguments"
                )
            key = function_id(self.world.identity_of(blob), job)
            exported = function.exported = (job, scope, key, blob)
        return exported[2:]

    # -- arguments -------------------------------------------------------------

    def pack(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        held: list[ObjectRef],
    ) -> tuple[bytes, tuple[bytes, ...]]:
        """Serialize arguments; return them and the IDs of the dependencies.

        Large arguments become objects and dependencies. Their references and those inside of
        arguments are added to `held`, which keeps them until the submitted task does.
        """
        if not args and not kwargs:
            return b"", ()
        deps: list[bytes] = []
        if any(type(a) is ObjectRef for a in args):
            args = tuple(self._as_input(a, deps) for a in args)
        if kwargs and any(type(a) is ObjectRef for a in kwargs.values()):
            kwargs = {name: self._as_input(a, deps) for name, a in kwargs.items()}
        return self._packed(args, kwargs, deps, held)

    def _packed(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        deps: list[bytes],
        held: list[ObjectRef],
    ) -> tuple[bytes, tuple[bytes, ...]]:
        try:
            value = self.world.serialize((args, kwargs))
        except TypeError as error:
            raise unserializable("an argument", error) from error
        if value.nbytes <= self.client.config.inline_bytes_max:
            if value.contained:
                held += value.contained
            return value.to_bytes(), tuple(deps)
        args = tuple(self._large_as_input(a, deps, held) for a in args)
        kwargs = {name: self._large_as_input(a, deps, held) for name, a in kwargs.items()}
        value = self.world.serialize((args, kwargs))
        if value.contained:
            held += value.contained
        return value.to_bytes(), tuple(deps)

    def _as_input(self, value: Any, deps: list[bytes]) -> Any:
        if type(value) is not ObjectRef:
            return value
        self._references.check_open([value])
        deps.append(value.binary())
        return Input(len(deps) - 1)

    def _large_as_input(self, value: Any, deps: list[bytes], held: list[ObjectRef]) -> Any:
        if isinstance(value, Input):
            return value
        serialized = self.world.serialize(value)
        if serialized.nbytes <= self.client.config.inline_bytes_max:
            return value
        with self.world:
            array = self._context.next_put()
        ref = self._values.put_large(array, serialized)
        held.append(ref)
        deps.append(ref.binary())
        return Input(len(deps) - 1)


def with_inside(extra: TaskExtra | None, arrays: tuple[bytes, ...]) -> TaskExtra:
    """Return a task's extra with the arrays whose references its arguments contain."""
    return TaskExtra(inside=arrays) if extra is None else replace(extra, inside=arrays)


def _has_ref(item: Any, star: bool) -> bool:
    if star:
        return any(type(part) is ObjectRef for part in item)
    return type(item) is ObjectRef


def specify(
    references: SessionReferences, context: TaskContext, options: TaskOptions, stream: int
) -> tuple[str, TaskExtra | None]:
    """Return the demand and the extra of a task that is submitted now.

    The task inherits environment variables and a capturing placement group from its parent.
    Raises ValueError for a malformed node ID and for a placement group that cannot hold the task.
    """
    inherited = context.inherited()
    if options.plain and not stream and inherited is None:
        return options.demand, None
    extra = TaskExtra(stream=stream)
    demand = options.demand
    env = dict(options.env_vars)
    if inherited is not None:
        env = {**dict(inherited.env), **env}
    extra.env = tuple(sorted(env.items()))
    extra.retry_on = retry_on(references, options.retry_exceptions)
    strategy = options.scheduling_strategy
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        if not strategy.node_id.isdecimal():
            raise ValueError(
                f"{strategy.node_id!r} is no node's ID; nodes() and"
                " get_runtime_context().get_node_id() tell them"
            )
        extra.strategy = affinity(int(strategy.node_id), strategy.soft)
    elif isinstance(strategy, PlacementGroupSchedulingStrategy):
        if not strategy.is_empty:
            _into_group(strategy, options.demand, extra)
            demand = demand_in(
                demand, extra.group.partition("/")[0], strategy.placement_group_bundle_index
            )
    elif strategy == SPREAD:
        extra.strategy = SPREAD
    elif strategy is None and inherited is not None and inherited.group.endswith(CAPTURE):
        extra.group = inherited.group
        demand = demand_in(demand, extra.group.removesuffix(CAPTURE), -1)
    return demand, extra


def _into_group(strategy: PlacementGroupSchedulingStrategy, demand: str, extra: TaskExtra) -> None:
    """Place a task in a placement group. Raises ValueError if it can never run there."""
    group, index = strategy.placement_group, strategy.placement_group_bundle_index
    assert group is not None, "it is in no group"
    bundles = group.bundle_specs
    if not -1 <= index < len(bundles):
        raise ValueError(f"the placement group has bundles 0 to {len(bundles) - 1}, not {index}")
    candidates = bundles if index < 0 else bundles[index : index + 1]
    needed = parse_demand(demand)
    if not any(all(b.get(n, 0.0) * UNIT >= units for n, units in needed) for b in candidates):
        raise ValueError(f"no bundle of the placement group has what the task needs ({demand})")
    extra.group = group.id.hex()
    if strategy.placement_group_capture_child_tasks:
        extra.group += CAPTURE


def retry_on(references: SessionReferences, classes: Any) -> bytes:
    """Return the exception classes for which a task is retried, serialized; empty for none."""
    if classes is True:
        return ANY
    if not classes:
        return b""
    return references.dumps(classes)
