"""An engine of the interpreter that runs random programs through the public API.

The driver, tasks and other actors' calls that have an actor's handle call the actor; see
`interpreter.FoldActor`. The engine records in `history` all operations that may explain an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

import raytwin.runtime.api as api
from raytwin.chaos.fuzz.oracle.history import End, history
from raytwin.chaos.fuzz.oracle.register import Operation
from raytwin.chaos.fuzz.programs.interpreter import FoldActor, run_task, sum_of
from raytwin.chaos.fuzz.programs.outcomes import (
    CORRECT,
    Boom,
    Flaky,
    Stream,
    digest,
    mix,
    yielded,
)
from raytwin.chaos.fuzz.programs.program import (
    NODES_MAX,
    QUERIES,
    SLOT,
    START_IN_VAIN,
    START_UNLESS_THERE,
    ActorSpec,
    Call,
    Op,
    Place,
    actor_name,
    call_name,
    task_name,
)
from raytwin.runtime.api.backend import current
from raytwin.runtime.api.exceptions import (
    ActorDiedError,
    ActorPlacementGroupRemoved,
    RayError,
    RayTaskError,
    TaskCancelledError,
    TaskPlacementGroupRemoved,
)
from raytwin.runtime.api.options.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from raytwin.runtime.api.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from raytwin.runtime.control.core.ids import ARRAY_BYTES, item_id
from raytwin.runtime.control.messages.errors import Cancellation

GONE = (ActorDiedError, ActorPlacementGroupRemoved, TaskPlacementGroupRemoved)
"""Errors of calls to actors and groups that the program itself has ended."""
PAUSE_S = 0.002
"""Seconds between two polls of a call that waits for the end of another."""


# -- actors ----------------------------------------------------------------------------


class _Actor:
    """Runs `FoldActor` as an actor."""

    def __init__(self, spec: ActorSpec, *inputs: Any) -> None:
        self.fold = FoldActor(spec)

    def tell(self, call: Call, actors: Sequence[Any], *inputs: Any) -> Any:
        return self.fold.tell(Api(), call, actors, inputs)

    def parts(self, call: Call, *inputs: Any) -> Any:
        engine = Api()
        yield from yielded(call, self.fold.parts(engine, call, inputs), engine.sleep)

    def __ray_save__(self) -> Any:
        return self.fold.state, self.fold.last, self.fold.gathered

    def __ray_restore__(self, state: Any) -> None:
        self.fold.state, self.fold.last, self.fold.gathered = state


class _Concurrent:
    """An actor whose calls run concurrently, and raise if they violate Ray's rules.

    At most `ActorSpec.most` calls run at a time, and calls of an actor that never restarts
    begin in order.
    """

    def __init__(self, spec: ActorSpec) -> None:
        self.fold = FoldActor(spec)
        self.inside = 0
        self.begun = 0

    @contextmanager
    def enter(self, call: Call) -> Iterator[None]:
        if self.inside >= self.fold.spec.most:
            raise AssertionError(f"call {call.key} began beside {self.inside} others")
        if not self.fold.spec.restarts and call.key <= self.begun:
            raise AssertionError(f"call {call.key} began after {self.begun}")
        self.inside, self.begun = self.inside + 1, call.key
        try:
            yield
        finally:
            self.inside -= 1

    def waits(self, call: Call) -> bool:
        return bool(call.awaits) and call.awaits not in self.fold.ended


class _Threads(_Concurrent):
    def tell(self, call: Call, actors: Sequence[Any], *inputs: Any) -> Any:
        with self.enter(call):
            api.sleep(call.seconds)
            while self.waits(call):
                api.sleep(PAUSE_S)
            return self.fold.tell(Api(), replace(call, seconds=0.0), actors, inputs)


class _Coroutines(_Concurrent):
    async def tell(self, call: Call, actors: Sequence[Any], *inputs: Any) -> Any:
        with self.enter(call):
            await asyncio.sleep(call.seconds)
            while self.waits(call):
                await asyncio.sleep(PAUSE_S)
            return self.fold.tell(Api(), replace(call, seconds=0.0), actors, inputs)


@cache
def _actor_class(spec: ActorSpec) -> Any:
    # Errors name the actor's class, whose name has the number of restarts.
    base: type = _Actor
    if spec.most > 1:
        base = _Coroutines if spec.coroutines else _Threads
    return api.remote(
        num_cpus=spec.cpus,
        max_concurrency=spec.most,
        max_restarts=spec.restarts,
        max_task_retries=spec.retries,
        checkpoint_interval=spec.interval,
    )(type(actor_name(spec), (base,), {}))


_started: dict[Any, ActorSpec] = {}
_groups: list[PlacementGroup] = []
"""Placement groups that the program has not removed yet."""


def begin_program() -> None:
    """Forget the actors and groups of earlier programs."""
    _started.clear()
    _groups.clear()
    _actor_class.cache_clear()


# -- the engine ------------------------------------------------------------------------


class Api:
    """Runs tasks through the API.

    In a driver any exception is an outcome; in a task it is the task's error.
    """

    def __init__(self, driver: bool = False) -> None:
        self.driver = driver

    def sleep(self, seconds: float) -> None:
        if seconds:
            api.sleep(seconds)

    def call(self, op: Op, ins: list[Any], group: Any = None) -> Any:
        task = _options(op, _task, group)
        return _record_owner(task.remote(op.call, ins[: op.handles], [], *ins[op.handles :]))

    def lend(self, op: Op, ins: list[Any]) -> Any:
        return _record_owner(_options(op, _task).remote(op.call, [], list(ins)))

    def map(self, op: Op, ins: list[Any], group: Any = None) -> Any:
        refs = _options(op, _element, group).map([op.call] * op.count, range(op.count))
        _record_owner(refs[0])
        return refs

    def returns(self, op: Op, ins: list[Any]) -> list[Any]:
        assert op.call is not None
        task = _options(op, _task).options(num_returns=op.call.parts)
        return [_record_owner(ref) for ref in task.remote(op.call, [], [], *ins)]

    def stream(self, op: Op, ins: list[Any]) -> Stream:
        items = _options(op, _stream).remote(op.call, *ins)
        _record_owner(items.completed())
        return Stream(items)

    def group(self, op: Op, ins: list[Any]) -> Any:
        bundles = [dict(bundle) for bundle in op.bundles]
        lifetime = "detached" if op.detached else None
        group = placement_group(bundles, op.strategy, op.name, lifetime)
        _groups.append(group)
        if op.name:
            _check_taken(lambda: placement_group(bundles, op.strategy, op.name, lifetime))
            if get_placement_group(op.name) != group:
                raise AssertionError(f"{op.name} is the name of another group")
        return group

    def reserved(self, op: Op, ins: list[Any]) -> list[Any]:
        api.get(ins[0].ready())
        return [misplaced(placement_group_table(ins[0])) or CORRECT]

    def remove(self, op: Op, ins: list[Any]) -> None:
        history.end(End.REMOVE, ins[0].id.hex())
        remove_placement_group(ins[0])
        _groups.remove(ins[0])

    def actor(self, op: Op, ins: list[Any], group: Any = None) -> Any:
        assert op.spec is not None
        remote = _actor_class(op.spec)
        if op.spec.name:
            remote = remote.options(name=op.spec.name, **_lifetime(op.spec))
        if op.place is not None:
            remote = remote.options(**_placed(op.place, group, actor_name(op.spec)))
        actor = remote.remote(op.spec, *ins)
        _started[actor._actor_id] = op.spec
        return actor

    def tell(self, op: Op, ins: list[Any]) -> Any:
        assert op.call is not None
        actor, *others = ins
        name, spec = call_name(op.call), _started[actor._actor_id]
        if op.call.leaves:
            history.end(End.LEAVE, actor_name(spec))
        tell = actor.tell.options(name=name, **_retries(op.call))
        ref = tell.remote(op.call, others[: op.handles], *others[op.handles :])
        if actor_name(spec) in history.placed:
            history.placed[name] = history.placed[actor_name(spec)]
        history.actor_of[name] = spec
        return _recorded(ref, spec)

    def tells(self, op: Op, ins: list[Any]) -> list[Any]:
        assert op.call is not None
        name, spec = call_name(op.call), _started[ins[0]._actor_id]
        history.actor_of[name] = spec
        tell = ins[0].tell.options(name=name)
        return [_recorded(tell.remote(call, []), spec) for call in op.calls]

    def yields(self, op: Op, ins: list[Any]) -> Stream:
        assert op.call is not None
        (actor,) = ins
        name, spec = call_name(op.call), _started[actor._actor_id]
        history.actor_of[name] = spec
        items = actor.parts.options(name=name).remote(op.call)
        # If items are lost before the first was taken, the end of the stream names the first.
        first = item_id(_record_owner(items.completed()).binary()[:ARRAY_BYTES], 0)
        history.actor_of[first.hex()] = spec
        return Stream(_recorded_items(items, spec))

    def cancel(self, op: Op, ins: list[Any]) -> None:
        assert op.call is not None
        history.cancelled.update((task_name(op.call), call_name(op.call)))
        if op.call.body is not None:
            history.cancelled.update(task_name(call) for call in op.call.body.calls)
        api.cancel(ins[0], force=bool(op.count))

    def kill(self, op: Op, ins: list[Any]) -> None:
        end = End.KILL if op.count else End.KILL_FOR_GOOD
        history.end(end, actor_name(_started[ins[0]._actor_id]))
        api.kill(ins[0], no_restart=not op.count)

    def find(self, op: Op, ins: list[Any]) -> Any:
        spec = _started[ins[0]._actor_id]
        remote = _actor_class(spec).options(name=spec.name, **_lifetime(spec))
        if op.count == START_UNLESS_THERE:
            found = remote.options(get_if_exists=True).remote(spec)
        else:
            if op.count == START_IN_VAIN:
                _check_taken(lambda: remote.remote(spec))
            found = api.get_actor(spec.name)
        if found != ins[0]:
            raise AssertionError(f"{spec.name} is the name of another actor")
        return found

    def ready(self, op: Op, ins: list[Any]) -> None:
        api.get(ins[0].__ray_ready__.remote())

    def flake(self, call: Call) -> None:
        """Raise in the first `Call.flaky` runs of a task or call."""
        if call.flaky:
            history.tries[call.key] += 1
            if history.tries[call.key] <= call.flaky:
                raise Flaky(call.key)

    def leave(self) -> None:
        api.exit_actor()

    def gone(self, op: Op, ins: list[Any]) -> list[Any]:
        found = [self._outcome(ref) for ref in ins]
        return [other for other in found if not isinstance(other, GONE)][:1] or [CORRECT]

    def tally(self, op: Op, ins: list[Any]) -> list[Any]:
        """Compare the calls that took effect with those not cancelled before they began."""
        assert op.call is not None
        ended = {key: self._outcome(ref) for key, ref in zip(op.ins[1:], ins[1:], strict=True)}
        took = [key for key, outcome in ended.items() if not _never_began(outcome)]
        found = self._outcome(self.tell(op, ins[:1]))
        right = sum_of({key: mix(key) for key in (*took, op.call.key)})
        return [CORRECT if found == right else found]

    def set_key(self, op: Op, ins: list[Any]) -> None:
        # Numbered, since the task may run twice: each value is set once.
        value = b"%d" % len(history.keys)
        with _key_operation(op.count, value) as operation:
            operation.answer = _tables().kv_put(operation.key, value)

    def read_key(self, op: Op, ins: list[Any]) -> None:
        with _key_operation(op.count) as operation:
            operation.answer = _tables().kv_get(operation.key)

    def query(self, op: Op, ins: list[Any]) -> None:
        rows = current().query(QUERIES[op.count])
        if not isinstance(rows, list | dict):
            raise AssertionError(f"the rows of {QUERIES[op.count]} are {rows!r}")

    def look_up(self, op: Op, ins: list[Any]) -> None:
        history.looked_up.append(ins[0].binary())
        for oid in history.looked_up:
            row = _tables().find_task(oid)
            if not isinstance(row, dict | None):
                raise AssertionError(f"the row of a task is {row!r}")

    def put(self, value: Any) -> Any:
        ref = _record_owner(api.put(list(value) if isinstance(value, list) else value))
        history.puts.add(ref.hex())
        return ref

    def get(self, ref: Any) -> Any:
        """Return the value, or the `Boom` in its place; raise any other error."""
        try:
            return self.follow(api.get(ref))
        except RayTaskError as error:
            if isinstance(error.cause, Boom):
                return error.cause
            raise

    def follow(self, value: Any) -> Any:
        """Return a value with its references replaced by the referenced values."""
        return [self.get(ref) for ref in value] if isinstance(value, list) else value

    def outcomes(self, variable: Any) -> list[Any]:
        if isinstance(variable, Stream):
            return variable.rest(self._outcome)
        if isinstance(variable, api.ActorHandle | PlacementGroup):
            return []
        if not isinstance(variable, api.ObjectRefArray | list):
            return [self._outcome(variable)]
        try:
            return [digest(value) for value in api.get(variable)]
        except Exception:
            # At least one is an error, so get each on its own.
            return [self._outcome(ref) for ref in variable]

    def _outcome(self, ref: Any) -> Any:
        try:
            value = self.get(ref)
        except Exception as error:
            if not self.driver:
                raise
            history.seen(error)
            # A traceback would keep references alive.
            return error.with_traceback(None)
        return value if isinstance(value, Boom) else digest(value)

    def wait(self, op: Op, ins: list[Any]) -> None:
        refs = list(dict.fromkeys(ins))  # two variables may have one reference
        count = min(op.count, len(refs))
        ready, rest = api.wait(refs, num_returns=count)
        if len(ready) != count or len(ready) + len(rest) != len(refs):
            raise AssertionError(f"wait for {count} of {len(refs)} gave {len(ready)}")

    def waits(self, op: Op, ins: list[Any]) -> None:
        rest, timeout_s = list(dict.fromkeys(ins)), op.timeout_s or None
        if timeout_s is not None:
            # An error is an outcome where the program gets the value.
            with suppress(RayError):
                api.get(rest, timeout=timeout_s)
        while rest:
            refs, count = rest, min(op.count, len(rest))
            ready, rest = api.wait(refs, num_returns=count, timeout=timeout_s)
            many = len(ready) == count or (timeout_s is not None and len(ready) < count)
            if not many or {*ready, *rest} != {*refs}:
                raise AssertionError(f"wait for {count} of {len(refs)} gave {len(ready)}")


def _tables() -> Any:
    """Return the session of the calling program; programs have no key-value table in Ray's API."""
    return current()


def _check_taken(start: Callable[[], Any]) -> None:
    """Check that a name is taken."""
    try:
        start()
    except ValueError:
        return
    raise AssertionError("there are two of one name")


def _lifetime(spec: ActorSpec) -> dict[str, Any]:
    return {"lifetime": "detached"} if spec.detached else {}


@contextmanager
def _key_operation(number: int, value: bytes | None = None) -> Iterator[Operation]:
    """Record an operation on a key; it has no end if the process dies meanwhile."""
    operation = Operation(b"key/%d" % number, value, history.clock())
    history.keys.append(operation)
    yield operation
    operation.ended_s = history.clock()


def misplaced(row: Mapping[str, Any]) -> str:
    """Return how the places of a group's bundles violate its strategy, "" if they do not."""
    nodes = [*row["bundles_to_node_id"].values()]
    apart = {"STRICT_PACK": 1, "STRICT_SPREAD": len(nodes)}.get(row["strategy"])
    whole = row["state"] != "CREATED" or len(nodes) == len(row["bundles"])
    right = whole and (apart is None or not nodes or len(set(nodes)) == apart)
    return "" if right else f"{row['state']} {row['strategy']} on {nodes}"


def _never_began(outcome: Any) -> bool:
    """Whether a call was cancelled before it began; the error of any other says that it had."""
    failure = outcome.failure if isinstance(outcome, TaskCancelledError) else None
    return isinstance(failure, Cancellation) and not failure.begun


def _record_owner(ref: Any) -> Any:
    """Record the calling process as a reference's owner; return the reference."""
    history.own(ref.hex(), api.get_runtime_context().get_worker_id())
    return ref


def _recorded(ref: Any, spec: ActorSpec) -> Any:
    """Record the owner and the actor of a call's value; return the reference."""
    history.puts.add(ref.hex())
    history.actor_of[ref.hex()] = spec
    return _record_owner(ref)


def _recorded_items(items: Any, spec: ActorSpec) -> Iterator[Any]:
    """Yield the items of an actor's call, and record them with their actor."""
    for ref in items:
        history.puts.add(ref.hex())
        history.actor_of[ref.hex()] = spec
        yield ref


@contextmanager
def _counted(call: Call) -> Iterator[None]:
    """Count a task that begins, and that returns, on this node."""
    key = (int(api.get_runtime_context().get_node_id()), task_name(call))
    history.begun_s[key].append(history.clock())
    yield
    history.returned[key] += 1


def _run_task(call: Call, actors: list[Any], lent: list[Any], *inputs: Any) -> Any:
    with _counted(call):
        return run_task(Api(), call, actors, lent, inputs)


def _run_element(call: Call, index: int) -> Any:
    with _counted(call):
        return run_task(Api(), call, [], [], [index])


def _run_stream(call: Call, *inputs: Any) -> Any:
    engine = Api()
    with _counted(call):
        parts = run_task(engine, replace(call, fails=False), [], [], inputs)
        yield from yielded(call, parts, engine.sleep)


# Pickled by name, so that they write to the history of their own process.
_task = api.remote(_run_task)
_element = api.remote(_run_element)
_stream = api.remote(_run_stream)


def _options(op: Op, function: Any, group: Any = None) -> Any:
    assert op.call is not None
    name = task_name(op.call)
    where = _strategy(op.call.strategy, name)
    if op.place is not None:
        where = _placed(op.place, group, name)
    return function.options(
        num_cpus=op.call.cpus, num_gpus=op.call.gpus, max_retries=op.call.retries, name=name,
        **_retries(op.call), **where,
    )  # fmt: skip


def _retries(call: Call) -> dict[str, Any]:
    return {"retry_exceptions": [Flaky]} if call.flaky else {}


def _strategy(strategy: str, name: str) -> dict[str, Any]:
    """Return the option of a task with a strategy; a preferred node may not be there."""
    if strategy.endswith("!"):
        only = strategy.removesuffix("!")
        history.pinned[name] = -1 if int(only) >= NODES_MAX else int(only)
        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(only, soft=False)}
    if strategy.isdecimal():
        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(strategy, soft=True)}
    return {"scheduling_strategy": strategy} if strategy else {}


def _placed(place: Place, group: Any, name: str) -> dict[str, Any]:
    """Return the options of a task or actor in a group."""
    history.placed[name] = group.id.hex()
    strategy = PlacementGroupSchedulingStrategy(group, place.bundle)
    resources = {SLOT: place.slots} if place.slots else {}
    return {"resources": resources, "scheduling_strategy": strategy}
