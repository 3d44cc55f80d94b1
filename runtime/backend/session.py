"""The shell around a client: one driver's or worker's side of the API.

Shared by every backend that runs raytwin's own control plane. It serializes,
makes references, waits and raises; every decision is the `Client`'s, and all
that differs between real and virtual time is the `World`'s.

References are dropped by the garbage collector, at any moment and on any
thread: they are noted in a queue and counted at the next call.

Any thread may call. What user code takes part in (pickling, waiting) happens
outside of turns, so that it cannot hold up other threads.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from threading import get_ident
from typing import Any

from msgspec.structs import replace

from runtime.api.actor_options import ActorOptions
from runtime.api.actors import ActorCall, ActorClass, ActorExit
from runtime.api.context import ClusterContext
from runtime.api.exceptions import (
    ActorAlreadyExistsError,
    GetTimeoutError,
    ObjectStoreFullError,
    RaySystemError,
    UnserializableException,
    make_task_error,
    system_error,
)
from runtime.api.options import TaskOptions
from runtime.api.refs import ObjectRef, ObjectRefArray, any_closed, counted_ref
from runtime.api.remote_function import RemoteFunction
from runtime.api.streams import ObjectRefGenerator
from runtime.backend import job_setup
from runtime.backend.futures import FutureDesk
from runtime.backend.protocol import Serialized, World
from runtime.backend.submission import pending_calls, specify
from runtime.backend.wait_group import KEPT_MIN, WaitGroup
from runtime.control.client import Entry, Waiter
from runtime.control.context import node_of
from runtime.control.executor import Executor
from runtime.control.flush import unpack
from runtime.control.ids import (
    ARRAY_BYTES,
    ELEMENTS_MAX,
    FIRST,
    JOB_BYTES,
    adopted,
    anew,
    array_id,
    function_id,
    job_number,
    job_of,
    object_id,
    put_id,
    same_job,
    task_id,
)
from runtime.control.jobs import foreign_object
from runtime.control.messages import (
    OK,
    STREAM,
    USER_ERROR,
    ActorInfo,
    CreateGroup,
    FindTask,
    KvDelete,
    KvGet,
    KvPut,
    ObjectValue,
    RangeResult,
    RemoveGroup,
    ResultRefs,
    TaskExtra,
    TaskSpec,
)
from runtime.control.streams import item_id

SEQUENCE_CHUNK = 1024
"""Items of a sequence that travel in one range; a `range` travels whole."""
SUBMIT_SPECS_MAX = 64
"""Ranges submitted in one message, so that no message grows without bound."""
FUNCTION_BYTES_MAX = 32 * 1024 * 1024
"""Functions travel in messages, whatever they close over included."""
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset))
_ITEM_BYTES = 4
"""Of an item of a container, at least: a number's."""
GONE = "the cluster is gone: shut down"


_TAKEN = object()
"""In place of a value that was handed out already: everybody gets one of his own."""


class Input:
    """Stands in serialized arguments for the value of a dependency."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> Any:
        return Input, (self.index,)


class Frame:
    """A call that runs beside others in one worker: it numbers its own children.

    They belong to the worker's job, whoever's the call is.
    """

    __slots__ = ("anew", "children", "parent", "puts", "task")

    def __init__(self, task: bytes, job: bytes, incarnation: int = 0) -> None:
        self.task = task
        self.parent = adopted(task, job)
        self.anew = anew(self.parent, incarnation)
        self.children = 0
        self.puts = 0


frame_of_call: ContextVar[Frame | None] = ContextVar("frame_of_call", default=None)


class Session(ClusterContext):
    """The `Backend` of a driver or worker of raytwin's own runtime."""

    def __init__(self, world: World, end_cluster: Callable[[], None] | None = None) -> None:
        self.world = world
        self.name = world.name
        self.virtual = world.name == "sim"
        self.client = world.client
        self.client.collect = self.collect
        self.address = world.client.address
        self.node = node_of(world.client.address)
        self.namespace = ""
        """The driver's, where it has chosen one."""
        self.setup = b""
        """What functions carry for the workers of a job that joined; see `job_setup`."""
        self.actor: tuple[bytes, ActorInfo | None] | None = None
        self.loaded: Callable[[bytes], Any] = self._never_loaded
        """Return the function or class of an ID, in a worker."""
        self.actor_function = b""
        """The ID of the class of the actor that this worker is."""
        self.actor_owner = ""
        self.calls_pending: dict[bytes, list[bytes]] = {}
        """By actor that limits them, the calls that were made from here."""
        self.closed = False
        self.before_shutdown: list[Callable[[], None]] = []
        """Called when the session begins to end, while all still works."""
        self._end_cluster = end_cluster
        self._dropped: deque[bytes] = deque()
        self.uncounted = self._dropped
        """References that were dropped and that no call has counted yet."""
        self._unviewed: deque[bytes] = deque()
        self.received: deque[tuple[int, bytes]] = deque()
        """Threads, and arrays of references that they have unpickled just now."""
        self._inputs_done: deque[bytes] = deque()
        self._returning = 0
        """Threads of the running task that need not wait any more and want its CPU."""
        self.on_drop: Callable[[], None] | None = None
        """Called by whoever drops a reference, at any moment and on any thread."""
        self._group: WaitGroup | None = None
        """What was waited for last, and is left."""
        self._element: tuple[bytes, int] | None = None
        self.futures = FutureDesk(self)
        self.env_vars: tuple[tuple[str, str], ...] = ()
        """Of every task that this driver submits."""

    # -- references ------------------------------------------------------------

    def ref_added(self, oid: bytes) -> None:
        with self.world:
            self.client.add_ref(oid)

    def ref_dropped(self, oid: bytes) -> None:
        self._dropped.append(oid)
        if self.on_drop is not None:
            self.on_drop()

    def ref_sent(self, ref: ObjectRef) -> str:
        if self.closed:
            raise RaySystemError(GONE)
        array = ref.binary()[:ARRAY_BYTES]
        sink = self.world.sink.get()
        with self.world:
            if sink is not None:
                sink.append(ref)
            else:
                self.client.borrowing.pin(array)
            return self.client.borrowing.owner_of(array)

    def ref_received(self, oid: bytes, owner: str) -> None:
        array = oid[:ARRAY_BYTES]
        with self.world:
            self.client.borrowing.receive(array, owner)
        self.received.append((get_ident(), array))

    def _take_received(self) -> list[bytes]:
        """Return the arrays of the references that this thread has just unpickled."""
        me = get_ident()
        mine = []
        for _ in range(len(self.received)):
            pair = self.received.popleft()
            if pair[0] == me:
                mine.append(pair[1])
            else:
                self.received.append(pair)
        return mine

    def came_in_value(self, oid: bytes) -> None:
        """An object's value was unpickled that had references inside."""
        with self.world:
            self.client.borrowing.came_in_value(oid[:ARRAY_BYTES], self._take_received())

    def came_in_arguments(self, task: bytes) -> None:
        """A task's arguments were unpickled, and references were inside."""
        with self.world:
            self.client.borrowing.came_in_arguments(task, self._take_received())

    def hand_over(self, array: bytes, contained: Sequence[ObjectRef]) -> ResultRefs:
        """References are inside a value of an array that goes to this node; in a turn."""
        arrays = [inside for inside in arrays_of(contained) if inside != array]
        return ResultRefs((), self.client.borrowing.hand_over(arrays), self.client.borrowing.keeper)

    def dumps(self, value: Any) -> bytes:
        """Serialize what nobody looks after: the references inside are pinned."""
        serialized = self.world.serialize(value)
        if serialized.contained:
            with self.world:
                for array in arrays_of(serialized.contained):
                    self.client.borrowing.pin(array)
        return serialized.to_bytes()

    def collect(self) -> None:
        """Count what the garbage collector has dropped; call it within a turn."""
        if self._group is not None and self._group.abandoned():
            self._keep(None)
        dropped, unviewed = self._dropped, self._unviewed
        if dropped:
            self.client.drop_refs(dropped)
        while unviewed:
            self.client.drop_view(unviewed.popleft())
        while self._inputs_done:
            self.client.unpin(self._inputs_done.popleft())

    def has_drops(self) -> bool:
        """Whether something is to be counted that no call has counted yet."""
        return bool(self._dropped or self._unviewed) or self._group is not None

    def tidy(self) -> None:
        """Count what was dropped, while the program makes no calls; in a turn.

        What is waited for is forgotten: it is cheap to remember only for a loop.
        """
        self._keep(None)
        self.collect()

    def _check_open(self, refs: Sequence[ObjectRef] = ()) -> None:
        """Raise RaySystemError if the cluster of this session or of a reference is gone."""
        if self.closed or (refs and any_closed(refs)):
            raise RaySystemError(GONE)

    # -- tasks -----------------------------------------------------------------

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
        payload, deps = self._pack(args, kwargs, held) if args or kwargs else (b"", ())
        with self.world:
            self.collect()
            self.world.charge("submit", 1)
            client = self.client
            client.export(*exported)
            array = self._next_array()
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

    def _refs_to(self, entry: Entry) -> list[ObjectRef]:
        """Return a reference to each value of a single task; call it in a turn."""
        entry.refs += entry.returns
        if entry.returns == 1:
            return [counted_ref(entry.array + FIRST, self)]
        return [counted_ref(object_id(entry.array, 0, ret), self) for ret in range(entry.returns)]

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
        packed = self._pack_items(items, star, held)
        with self.world:
            self.collect()
            self.client.export(key, blob)
            array = self._next_array()
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

    def _pack_items(
        self, items: Sequence[Any], star: bool, held: list[ObjectRef]
    ) -> list[tuple[int, int, int, bytes, tuple[bytes, ...]]]:
        """Return (start, count, first, args, deps) of the ranges of an array."""
        if isinstance(items, range):
            payload = self.world.serialize((False, items)).to_bytes()
            return [(0, len(items), 0, payload, ())]
        packed = []
        for start in range(0, len(items), SEQUENCE_CHUNK):
            chunk = list(items[start : start + SEQUENCE_CHUNK])
            if any(_has_ref(item, star) for item in chunk):
                # An element with inputs is a range of its own: it waits alone.
                for offset, item in enumerate(chunk):
                    args, deps = self._pack(tuple(item) if star else (item,), {}, held)
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
            args, deps = self._pack(tuple(chunk[0]) if star else (chunk[0],), {}, held)
            return [(start, 1, -1, args, deps)]
        half = len(chunk) // 2
        return self._pack_chunk(start, chunk[:half], star, held) + self._pack_chunk(
            start + half, chunk[half:], star, held
        )

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
            function.exported = (function_id(blob, job), blob)
        return function.exported

    # -- actors ----------------------------------------------------------------

    def create_actor(
        self,
        actor_class: ActorClass,
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
            self.client.export(key, blob)
            array = self._next_array(once=True)
            spec = TaskSpec(
                array, 0, 1, key, payload, self.client.address, demand, deps, 1, 0, -1,
                actor_class.class_name, extra,
            )  # fmt: skip
            keeper = array if options.max_restarts else b""
            if not options.name:
                self.client.submit(array, [spec], 1, 1, holds, keeper)
                return array, ObjectRef(object_id(array, 0, 0), self), b""
            reply_key, waiter = self.client.find_actor(
                options.namespace, options.name, spec, keeper, holds
            )
            ref = ObjectRef(object_id(array, 0, 0), self)
        self._block(waiter, None)
        with self.world:
            found = self.client.replies.pop(reply_key)
            if found.created or found.actor == array:
                return array, ref, b""
            self.client.disown(array)
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
            if call.limited:
                pending = pending_calls(self, call)
                array = self._next_array(once=True)
                pending.append(array)
            else:
                array = self._next_array(once=True)
            returns = call.returns
            keeper = call.actor if call.rebuilt else b""
            if returns == 1 and not (deps or held or call.extra.stream or call.extra.inside):
                entry = self.client.call(
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
            entry = self.client.submit(array, [spec], 1, returns, holds, keeper)
            entry.is_call = True
            if call.extra.stream:
                entry.items = {} if entry.items is None else entry.items
                return ObjectRefGenerator(ObjectRef(object_id(array, 0, 0), self), self)
            return self._refs_to(entry)

    def find_actor(self, name: str, namespace: str) -> tuple[bytes, ObjectRef, bytes] | None:
        self._check_open()
        with self.world:
            key, waiter = self.client.find_actor(namespace, name, None)
        self._block(waiter, None)
        with self.world:
            found = self.client.replies.pop(key)
            if not found.actor:
                return None
            return found.actor, ObjectRef(object_id(found.actor, 0, 0), self), found.handle

    def kill_actor(self, actor: bytes, restart: bool) -> None:
        self._check_open()
        with self.world:
            self.client.kill_actor(actor, "ActorDiedError: it was killed by kill()", restart)

    def exit_actor(self) -> None:
        if self.world.executor is None or not self.world.executor.actor:
            raise TypeError("exit_actor is for the methods of actors")
        raise ActorExit("exit_actor() was called")

    def _pack(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], held: list[ObjectRef]
    ) -> tuple[bytes, tuple[bytes, ...]]:
        """Serialize arguments; references among them become inputs.

        Large arguments become objects, and inputs too. `held` keeps them, and what
        is inside arguments, until the task is submitted, and then the task does.
        """
        if not args and not kwargs:
            return b"", ()
        deps: list[bytes] = []
        if any(type(a) is ObjectRef for a in args):
            args = tuple(self._as_input(a, deps) for a in args)
        if kwargs and any(type(a) is ObjectRef for a in kwargs.values()):
            kwargs = {name: self._as_input(a, deps) for name, a in kwargs.items()}
        value = self.world.serialize((args, kwargs))
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
        with self.world:
            array = self._next_put()
        ref = self._put_large(array, serialized)
        held.append(ref)
        deps.append(ref.binary())
        return Input(len(deps) - 1)

    def function_name(self, spec: TaskSpec) -> str:
        key, method = spec.function, ""
        if spec.extra is not None and spec.extra.call:
            key, method = self.actor_function, f".{spec.extra.method}"
        function = self.loaded(key)
        name = getattr(function, "__qualname__", None) or repr(function)
        return f"{getattr(function, '__module__', '?')}.{name}{method}"

    def own_actor(self) -> tuple[ObjectRef, type]:
        assert self.actor is not None, "it is no actor"
        with self.world:
            self.client.borrowing.receive(self.actor[0], self.actor_owner)
        return ObjectRef(object_id(self.actor[0], 0, 0), self), self.loaded(self.actor_function)

    @staticmethod
    def _never_loaded(key: bytes) -> Any:
        raise RaySystemError("a driver runs no functions")

    def task_id(self) -> bytes | None:
        frame = frame_of_call.get()
        if frame is not None:
            return frame.task
        task = self.running_task()
        return None if task is None else task[1]

    def running_task(self) -> tuple[TaskSpec, bytes] | None:
        executor = self.world.executor
        if executor is None or executor.running is None:
            return None
        return executor.running, task_id(executor.running.array, executor.current())

    def inherited(self) -> TaskExtra | None:
        """Return what the running task's children get from it, None for nothing."""
        executor = self.world.executor
        if executor is not None and executor.running is not None:
            extra = executor.running.extra
            return extra if extra is not None and (extra.env or extra.group) else None
        return TaskExtra(env=self.env_vars) if self.env_vars else None

    def next_item(self, array: bytes, index: int, timeout_s: float | None) -> ObjectRef | None:
        self._check_open()
        client = self.client
        oid = item_id(array, index)
        with self.world:
            self.collect()
            client.flush()
            entry = client.entries[array]
        assert entry.items is not None

        def ready() -> bool:
            return entry.result is not None or client.made(oid)

        if not ready() and not self._wait_until(ready, timeout_s):
            raise GetTimeoutError(f"item {index} was not there after {timeout_s} s")
        if client.made(oid):
            return ObjectRef(oid, self)
        assert entry.result is not None
        if entry.result.status != OK:
            # The system failed: the end of the stream says so, once.
            return ObjectRef(object_id(array, 0, 0), self) if index == len(entry.items) else None
        if index >= self.world.deserialize(entry.result.payload)[0]:
            return None
        # It ran again, and the item is on its way from the first run.
        self._wait_until(lambda: client.made(oid), timeout_s)
        return ObjectRef(oid, self)

    def future(self, ref: ObjectRef) -> Future[Any]:
        self._check_open([ref])
        return self.futures.future(ref)

    def create_group(
        self, name: str, bundles: list[dict[str, float]], strategy: str, detached: bool
    ) -> bytes:
        self._check_open()
        with self.world:
            self.collect()
            group = self._next_array(once=True)
            self.client.ctx.send(
                self.client.node, CreateGroup(group.hex(), name, bundles, strategy, detached)
            )
        return group

    def remove_group(self, group: bytes) -> None:
        self._check_open()
        with self.world:
            self.client.flush()
            self.client.ctx.send(self.client.node, RemoveGroup(group.hex()))

    # -- jobs ------------------------------------------------------------------

    @property
    def job_number(self) -> int:
        """The number of the calling code's job."""
        return job_number(self.client.job)

    def describe_job(self, namespace: str) -> None:
        """Tell the cluster of this driver's job; names without a namespace are in this one."""
        self.namespace = namespace
        with self.world:
            self.client.describe_job(namespace, " ".join(sys.argv), os.getpid())

    def job_namespace(self) -> str:
        """Return the namespace of names that the calling code's job gives and looks up."""
        if not self.namespace:
            for number, _, _, namespace, *_ in self.query("jobs"):
                if number == self.job_number:
                    self.namespace = namespace
        return self.namespace

    def cancel(self, ref: ObjectRef, force: bool, recursive: bool) -> None:
        self._check_open([ref])
        with self.world:
            self.collect()
            entry = self.client.entries.get(ref.binary()[:ARRAY_BYTES])
            if force and entry is not None and entry.is_call:
                raise ValueError("force=True would end the actor: to cancel a call leave it out")
            self.client.cancel(ref.binary(), force, recursive)

    def _enter_element(self) -> None:
        """In a worker, children are numbered within the element that runs."""
        executor = self.world.executor
        if executor is None or executor.running is None:
            return
        element = (executor.running.array, executor.current())
        if element != self._element:
            self._element = element
            info = self.actor[1] if self.actor is not None else None
            self.client.begin_task(task_id(*element), info.incarnation if info is not None else 0)

    def _next_array(self, once: bool = False) -> bytes:
        """`once`: it must not take effect twice though its parent may; see `ids`."""
        if self.world.executor is not None:
            frame = frame_of_call.get()
            if frame is not None:
                frame.children += 1
                return array_id(frame.parent if once else frame.anew, frame.children)
            self._enter_element()
        return self.client.next_array(once)

    def _next_put(self) -> bytes:
        frame = frame_of_call.get()
        if frame is not None:
            frame.puts += 1
            return put_id(frame.anew, frame.puts)
        self._enter_element()
        return self.client.next_put()

    # -- values ----------------------------------------------------------------

    def put(self, value: Any) -> ObjectRef:
        self._check_open()
        inline_bytes_max = self.client.config.inline_bytes_max
        large: Serialized | None = None
        if looks_large(value, inline_bytes_max):
            large = self.world.serialize(value)
            if large.nbytes <= inline_bytes_max:
                large = None
        # Small values travel as lists; a large one should be serialized only once.
        serialized = large or self.world.serialize([value])
        with self.world:
            self.collect()
            self.world.charge("put", 1)
            array = self._next_put()
            if serialized.nbytes <= self.client.config.inline_bytes_max:
                payload = serialized.to_bytes()
                node = int(self.client.node.partition(":")[2])
                result = RangeResult(array, 0, 1, OK, payload, node)
                if serialized.contained:
                    result.refs = self.hand_over(array, serialized.contained)
                return self._refs_to(self.client.put(result))[0]
        return self._put_large(array, large or self.world.serialize(value))

    def _put_large(self, array: bytes, value: Serialized) -> ObjectRef:
        oid = object_id(array, 0, 0)
        offset = self.store(oid, value)
        with self.world:
            node = int(self.client.node.partition(":")[2])
            result = RangeResult(array, 0, 1, OK, b"", node, 1, (value.nbytes,), (offset,))
            if value.contained:
                result.refs = self.hand_over(array, value.contained)
            self.client.put(result)
            return ObjectRef(oid, self)

    def store(self, oid: bytes, value: Serialized) -> int:
        """Write a large value into the store and return where.

        Raises ObjectStoreFullError.
        """
        offset = self._allocate(oid, value.nbytes)
        reason = self.client.full_reasons.pop(oid, "")
        if offset < 0:
            raise ObjectStoreFullError(
                f"{reason}; start the cluster with a larger object_store_memory, or drop references"
            )
        try:
            self.world.write(oid, offset, value)
        except BaseException:
            with self.world:
                self.client.abandon(oid)
            raise
        return offset

    def _allocate(self, oid: bytes, nbytes: int) -> int:
        with self.world:
            self.collect()
            # What is dropped here makes room first.
            self.client.flush()
            waiter = self.client.allocate(oid, nbytes)
        self._block(waiter, None)
        return self.client.allocations.pop(oid)

    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        self._check_open(refs)
        oids = list(map(ObjectRef.binary, refs))
        client = self.client
        with self.world:
            self.collect()
            self.world.charge("get", len(oids))
            client.flush()
            plain = client.plain_entries(oids)
        if plain is not None:
            began_s = self.now()
            taken = self._get_plain(oids, plain, timeout_s)
            if taken is not None:
                return taken
            if timeout_s is not None:
                timeout_s = max(0.0, timeout_s - (self.now() - began_s))
        with self.world:
            waiter = client.watch(oids)
            # They may arrive as soon as this turn ends: what was so in it decides.
            here = not waiter.missing
            if here:
                values = self._look_at(oids)
            else:
                # Large values that arrive stay until all are there, even if the store is full.
                awaited = client.begin_get(oids)
        if not here:
            try:
                in_time = self._wait(waiter, timeout_s)
                with self.world:
                    if in_time:
                        values = self._look_at(oids)
                    else:
                        client.unwatch(oids, waiter)
                        late = sum(client.value(oid) is None for oid in oids)
            finally:
                with self.world:
                    client.end_get(awaited)
            if not in_time:
                raise GetTimeoutError(
                    f"{late} of {len(oids)} values were not there after {timeout_s} s"
                )
        values.reverse()
        found = []
        try:
            while values:
                value = values.pop()
                found.append(self._decode_viewed(value) if value.size else self.decode(value))
        finally:
            for value in values:
                if value.size:
                    self._unviewed.append(value.object)
        return found

    def _get_plain(
        self, oids: Sequence[bytes], entries: list[Entry], timeout_s: float | None
    ) -> list[Any] | None:
        """`get` of own single values; None once one of any is large, or an error."""
        # What is done stays done: only the last that is not is looked at.
        left = len(entries)
        client = self.client
        large = client.large_results

        def ready() -> bool:
            nonlocal left
            while left and entries[left - 1].result is not None:
                left -= 1
            # Large values are fetched as they are made: that is for `watch` to do.
            return not left or client.large_results != large

        if not ready() and not self._wait_until(ready, timeout_s):
            late = sum(entry.result is None for entry in entries)
            raise GetTimeoutError(
                f"{late} of {len(oids)} values were not there after {timeout_s} s"
            )
        if left:
            return None
        found = []
        payload: bytes | None = None
        values: list[Any] = []
        for oid, entry in zip(oids, entries, strict=True):
            result = entry.result
            assert result is not None
            if result.sizes or result.status != OK:
                return None
            if result.payload is not payload or values[entry.position] is _TAKEN:
                payload = result.payload
                values = self.world.deserialize(payload)
                if self.received:
                    self.came_in_value(oid)
                    payload = None
            found.append(values[entry.position])
            values[entry.position] = _TAKEN
        return found

    def _look_at(self, oids: Sequence[bytes]) -> list[ObjectValue]:
        """Return the values, which are here; large ones count as looked at from now on."""
        found = []
        for value in self.client.values(oids):
            assert value is not None, "a value vanished while it was awaited"
            if value.size:
                self.client.add_view(value.object)
            found.append(value)
        return found

    def get_array(self, refs: ObjectRefArray, timeout_s: float | None) -> list[Any]:
        count = len(refs)
        if not count:
            return []
        if self.closed or refs._holder is not self:
            raise RaySystemError(GONE)
        began_s = self.now()
        client = self.client
        with self.world:
            self.collect()
            self.world.charge("get", 1)
            client.flush()
            entry = client.entries[refs._array]
            waiter = client.watch_array(entry)
        if waiter.missing and not self._wait(waiter, timeout_s):
            with self.world:
                client.unwatch_array(entry, waiter)
            raise GetTimeoutError(
                f"{entry.missing} of {count} values were not there after {timeout_s} s"
            )
        results = [entry.result] if entry.count == 1 else entry.results or []
        large = [r.start for r in results if r is not None and r.status == OK and r.sizes]
        if large:
            left_s = None if timeout_s is None else max(0.0, began_s + timeout_s - self.now())
            fetched = dict(zip(large, self.get([refs[i] for i in large], left_s), strict=True))
        values: list[Any] = []
        for result in results:
            assert result is not None
            # Ranges that ran twice may overlap what is there already.
            skip = len(values) - result.start
            if skip >= result.count:
                continue
            if result.status != OK:
                raise self.error_of(result.status, result.payload)
            if result.sizes:
                values.append(fetched[result.start])
            else:
                first = result.position
                found = self.world.deserialize(result.payload)
                values += found[first + skip : first + result.count]
                if self.received:
                    self.came_in_value(result.array)
        return values

    def wait(
        self,
        refs: Sequence[ObjectRef],
        num_returns: int,
        timeout_s: float | None,
        fetch_local: bool,
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        self._check_open(refs)
        client = self.client
        if len(refs) >= KEPT_MIN:
            with self.world:
                self._keep(None)
                group = WaitGroup(client, refs, fetch_local)
            return self._wait_in(group, num_returns, timeout_s)
        here = client.value if fetch_local else client.made

        def ready_now() -> list[int]:
            ready = []
            for position, ref in enumerate(refs):
                if here(ref.binary()):
                    ready.append(position)
                    if len(ready) == num_returns:
                        break
            return ready

        with self.world:
            self.collect()
            self.world.charge("wait", 1)
            client.flush()
            ready = ready_now()
            waiter = None
            if len(ready) < num_returns:
                # Without time to wait, too: what is not here is fetched for the next call.
                oids = [ref.binary() for ref in refs]
                waiter = client.watch(oids, fetch_local)
                awaited = client.begin_get(oids)
        if waiter is not None:
            may_miss = len(refs) - num_returns
            try:
                if timeout_s != 0:
                    self._wait_until(lambda: waiter.missing <= may_miss, timeout_s)
            finally:
                with self.world:
                    client.unwatch(oids, waiter)
                    ready = ready_now()
                    client.end_get(awaited)
        chosen = set(ready)
        return (
            [refs[position] for position in ready],
            [ref for position, ref in enumerate(refs) if position not in chosen],
        )

    def wait_mixed(
        self,
        waitables: Sequence[ObjectRef | ObjectRefGenerator],
        num_returns: int,
        timeout_s: float | None,
        fetch_local: bool,
    ) -> tuple[list[Any], list[Any]]:
        client = self.client
        refs = [w for w in waitables if isinstance(w, ObjectRef)]
        self._check_open(refs)
        here = client.value if fetch_local else client.made

        def is_ready(waitable: ObjectRef | ObjectRefGenerator) -> bool:
            if isinstance(waitable, ObjectRef):
                return bool(here(waitable.binary()))
            array, index = waitable.position()
            entry = client.entries[array]
            return entry.result is not None or client.made(item_id(array, index))

        def enough() -> bool:
            return sum(map(is_ready, waitables)) >= num_returns

        oids = [ref.binary() for ref in refs]
        with self.world:
            self.collect()
            self.world.charge("wait", 1)
            client.flush()
            waiter = client.watch(oids, fetch_local)
            awaited = client.begin_get(oids)
        try:
            if timeout_s != 0:
                self._wait_until(enough, timeout_s)
        finally:
            with self.world:
                client.unwatch(oids, waiter)
                ready = [at for at, w in enumerate(waitables) if is_ready(w)][:num_returns]
                client.end_get(awaited)
        chosen = set(ready)
        return (
            [waitables[at] for at in ready],
            [w for at, w in enumerate(waitables) if at not in chosen],
        )

    def wait_again(
        self,
        refs: list[ObjectRef],
        num_returns: int,
        timeout_s: float | None,
        fetch_local: bool,
    ) -> tuple[list[ObjectRef], list[ObjectRef]] | None:
        group = self._group
        if group is None or self.closed:
            return None
        with self.world:
            # Another thread may have been quicker.
            if self._group is not group or not group.accepts(refs, fetch_local):
                return None
            if not 1 <= num_returns <= len(group):
                return None
            self._group = None
            if group.ready() >= num_returns:
                # In a loop over many that are done nothing else happens.
                self.collect()
                self.world.charge("wait", 1)
                found = group.take(num_returns)
                self._keep(group)
                return found
        return self._wait_in(group, num_returns, timeout_s)

    def _wait_in(
        self, group: WaitGroup, num_returns: int, timeout_s: float | None
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """Wait for references of a group that no other thread uses, and keep the group."""
        world = self.world
        with world:
            self.collect()
            world.charge("wait", 1)
            if group.ready() >= num_returns:
                found = group.take(num_returns)
                self._keep(group)
                return found
            self.client.flush()
        done = False
        try:
            if timeout_s != 0:
                self._wait_until(lambda: group.ready() >= num_returns, timeout_s)
            done = True
        finally:
            with world:
                group.ready()
                if done:
                    found = group.take(num_returns)
                    self._keep(group)
                else:
                    group.dissolve()
        return found

    def _keep(self, group: WaitGroup | None) -> None:
        """Remember what is likely to be waited for next, in place of what was."""
        before, self._group = self._group, group if group else None
        if before is not None:
            before.dissolve()

    def _decode_viewed(self, value: ObjectValue) -> Any:
        """Return a large value that `_look_at` has given."""
        oid = value.object
        read = self.world.read(oid, value.offset, value.size, lambda: self._unviewed.append(oid))
        if self.received:
            self.came_in_value(oid)
        return read

    def decode(self, value: ObjectValue) -> Any:
        """Return a small value, or raise the error that it is."""
        if value.status != OK:
            raise self.error_of(value.status, value.payload, value.object)
        decoded = self.world.deserialize(value.payload)[value.position]
        if self.received:
            self.came_in_value(value.object)
        return decoded

    def decode_input(self, value: ObjectValue) -> Any:
        """Return a task's input, which its node has pinned for this one use."""
        if not value.size:
            if value.status != OK:
                raise self.error_of(value.status, value.payload)
            return self.world.deserialize(value.payload)[value.position]
        oid = value.object
        return self.world.read(oid, value.offset, value.size, lambda: self._inputs_done.append(oid))

    def skip_input(self, value: ObjectValue) -> None:
        """The task will not use an input after all."""
        if value.size:
            self._inputs_done.append(value.object)

    def error_of(self, status: int, payload: bytes, oid: bytes = b"") -> BaseException:
        """Return the exception that a failed range stands for."""
        if status == USER_ERROR:
            name, text, cause = self.world.deserialize(payload)
            if isinstance(cause, bytes):
                cause = self._cause_of(cause, text)
            return make_task_error(name, text, cause)
        return system_error(payload, oid)

    def _cause_of(self, pickled: bytes, text: str) -> Any:
        try:
            return self.world.deserialize(pickled)
        except Exception as error:
            # The exception's class cannot be made here; its traceback can be read.
            return UnserializableException(f"{type(error).__name__}: {error}\n{text}")

    # -- waiting ---------------------------------------------------------------

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait for a condition, as `get` does."""
        self._wait_until(ready, None)

    def _wait(self, waiter: Waiter, timeout_s: float | None) -> bool:
        return self._wait_until(lambda: not waiter.missing, timeout_s)

    def _wait_until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait as user code does: a worker gives up its CPU meanwhile."""
        executor = self.world.executor
        if executor is None or executor.running is None:
            return self.world.block(ready, timeout_s)
        with self.world:
            if ready():
                return True
            # Where another thread of the task waits, the CPU is given up already;
            # where one is about to get it back, it keeps it.
            if not executor.suspended and not self._returning:
                executor.block()
        interruptible = self.world.on_task_thread()
        try:
            done = self.world.block(
                lambda: ready() or (interruptible and executor.interrupt), timeout_s
            )
        finally:
            self._take_cpu_back(executor)
        self.interrupt_here()
        return done

    def _take_cpu_back(self, executor: Executor) -> None:
        """Go on only with the CPU: one thread asks for it, for all that leave."""
        with self.world:
            if not executor.suspended:
                return
            resumes = executor.resumes
            if not self._returning:
                executor.unblock()
            self._returning += 1
        self.world.block(lambda: executor.resumes != resumes, None)
        with self.world:
            self._returning -= 1

    def interrupt_here(self) -> None:
        """Raise KeyboardInterrupt if the calling task was cancelled; a safe place for it."""
        executor = self.world.executor
        if executor is not None and executor.interrupt and self.world.on_task_thread():
            executor.interrupt = False
            raise KeyboardInterrupt

    def _block(self, waiter: Waiter, timeout_s: float | None) -> bool:
        """Wait for the system itself: the CPU stays taken."""
        if not waiter.missing:
            return True
        return self.world.block(lambda: not waiter.missing, timeout_s)

    # -- the rest --------------------------------------------------------------

    def query(self, kind: str) -> Any:
        self._check_open()
        with self.world:
            self.collect()
            key, waiter = self.client.query(kind)
        self._block(waiter, None)
        return self.client.replies.pop(key)

    # -- the GCS's key-value table ---------------------------------------------

    def kv_put(self, key: bytes, value: bytes) -> bytes | None:
        """Set a key in the GCS; return what it had, None if it had nothing."""
        return self._ask_table(lambda request: KvPut(key, value, request))

    def kv_get(self, key: bytes) -> bytes | None:
        """Return what a key of the GCS has, None if it has nothing."""
        return self._ask_table(lambda request: KvGet(key, request))

    def kv_delete(self, key: bytes) -> bytes | None:
        """Remove a key from the GCS; return what it had, None if it had nothing."""
        return self._ask_table(lambda request: KvDelete(key, request))

    def find_task(self, oid: bytes) -> dict[str, Any] | None:
        """Return what the GCS's task history has of the task that made an object.

        `oid` is the object's ID (``ref.binary()``). None if there is no row: the
        task has not finished, a reference to its result is alive, or the cluster
        keeps no history. See `flush.unpack` for what a row says.
        """
        array = oid[:ARRAY_BYTES]
        row = self._ask_table(lambda request: FindTask(array, request))
        return None if row is None else unpack(row)

    def _ask_table(self, make: Callable[[int], Any]) -> Any:
        self._check_open()
        with self.world:
            self.collect()
            key, waiter = self.client.ask_table(make)
        self._block(waiter, None)
        return self.client.replies.pop(key)

    def now(self) -> float:
        return self.world.now()

    def sleep(self, seconds: float) -> None:
        if self._dropped:
            with self.world:
                self.collect()
        self.world.sleep(seconds)

    def compute(self, seconds: float) -> None:
        self.world.compute(seconds)

    def blob(self, nbytes: int) -> Any:
        return self.world.blob(nbytes)

    def shutdown(self) -> None:
        if self.closed:
            return
        for called in self.before_shutdown:
            called()
        self.closed = True
        self.world.close()
        if self._end_cluster is not None:
            self._end_cluster()


def looks_large(value: Any, nbytes: int) -> bool:
    """Guess whether `value` takes more than `nbytes` when it is serialized.

    A wrong guess costs serializing it twice and nothing else.
    """
    kind = type(value)
    if kind is bytes or kind is str or kind is bytearray:
        return len(value) > nbytes
    if kind in _CONTAINERS:
        return len(value) > nbytes // _ITEM_BYTES
    try:
        size = getattr(value, "nbytes", None)
    except Exception:
        return False  # a property of the user's; only pickling matters here
    return type(size) is int and size > nbytes


def arrays_of(refs: Sequence[ObjectRef]) -> tuple[bytes, ...]:
    """Return the arrays that references belong to, each once."""
    return tuple(dict.fromkeys(ref.binary()[:ARRAY_BYTES] for ref in refs))


def with_inside(extra: TaskExtra | None, arrays: tuple[bytes, ...]) -> TaskExtra:
    """Return a task's extra that says which arrays are inside its arguments."""
    return TaskExtra(inside=arrays) if extra is None else replace(extra, inside=arrays)


def _has_ref(item: Any, star: bool) -> bool:
    if star:
        return any(type(part) is ObjectRef for part in item)
    return type(item) is ObjectRef
