"""Random programs against the public API: an engine of the interpreter that submits them.

Actors are called by the driver, by tasks and by other actors' calls, which have been given their
handles; see `interpreter.Told`. All that may explain an error is noted in the `history`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import raytwin.runtime.api as api
from raytwin.chaos.fuzz.oracle.history import End, history
from raytwin.chaos.fuzz.programs.interpreter import Told, run_task, sum_of
from raytwin.chaos.fuzz.programs.outcomes import TALLIED, Boom, Stream, digest, mix, yielded
from raytwin.chaos.fuzz.programs.program import (
    SLOT,
    Call,
    Op,
    Place,
    Teller,
    actor_name,
    call_name,
    task_name,
)
from raytwin.runtime.api.exceptions import (
    ActorDiedError,
    ActorPlacementGroupRemoved,
    RayTaskError,
    TaskCancelledError,
    TaskPlacementGroupRemoved,
)
from raytwin.runtime.api.options.scheduling_strategies import PlacementGroupSchedulingStrategy
from raytwin.runtime.api.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from raytwin.runtime.control.core.ids import ARRAY_BYTES, item_id
from raytwin.runtime.control.messages.errors import Cancellation

GONE = (ActorDiedError, ActorPlacementGroupRemoved, TaskPlacementGroupRemoved)
"""Errors of calls to actors and groups that the program itself has ended."""
PAUSE_S = 0.002
"""Between two looks of a call that waits until another one has ended."""


# -- actors ----------------------------------------------------------------------------


class _Actor:
    """`Told` as an actor."""

    def __init__(self, teller: Teller) -> None:
        self.told = Told(teller)

    def tell(self, call: Call, actors: Sequence[Any], *inputs: Any) -> Any:
        return self.told.tell(Api(), call, actors, inputs)

    def parts(self, call: Call, *inputs: Any) -> Any:
        engine = Api()
        yield from yielded(call, self.told.parts(engine, call, inputs), engine.sleep)

    def __ray_save__(self) -> Any:
        return self.told.state, self.told.last, self.told.gathered

    def __ray_restore__(self, state: Any) -> None:
        self.told.state, self.told.last, self.told.gathered = state


class _Concurrent:
    """An actor whose calls run concurrently, and raise if they do not as they should.

    No more than `Teller.most` of them run at a time, and those of an actor that never restarts
    begin in their order.
    """

    def __init__(self, teller: Teller) -> None:
        self.told = Told(teller)
        self.inside = 0
        self.begun = 0

    @contextmanager
    def enter(self, call: Call) -> Iterator[None]:
        if self.inside >= self.told.teller.most:
            raise AssertionError(f"call {call.key} began beside {self.inside} others")
        if not self.told.teller.restarts and call.key <= self.begun:
            raise AssertionError(f"call {call.key} began after {self.begun}")
        self.inside, self.begun = self.inside + 1, call.key
        try:
            yield
        finally:
            self.inside -= 1

    def waits(self, call: Call) -> bool:
        return bool(call.awaits) and call.awaits not in self.told.ended


class _Threads(_Concurrent):
    def tell(self, call: Call, actors: Sequence[Any], *inputs: Any) -> Any:
        with self.enter(call):
            api.sleep(call.seconds)
            while self.waits(call):
                api.sleep(PAUSE_S)
            return self.told.tell(Api(), replace(call, seconds=0.0), actors, inputs)


class _Coroutines(_Concurrent):
    async def tell(self, call: Call, actors: Sequence[Any], *inputs: Any) -> Any:
        with self.enter(call):
            await asyncio.sleep(call.seconds)
            while self.waits(call):
                await asyncio.sleep(PAUSE_S)
            return self.told.tell(Api(), replace(call, seconds=0.0), actors, inputs)


@cache
def _actor_class(teller: Teller) -> Any:
    # Errors call an actor by its class: that says how often it may restart.
    base: type = _Actor
    if teller.most > 1:
        base = _Coroutines if teller.coroutines else _Threads
    return api.remote(
        num_cpus=teller.cpus,
        max_concurrency=teller.most,
        max_restarts=teller.restarts,
        max_task_retries=teller.retries,
        checkpoint_interval=teller.interval,
    )(type(actor_name(teller), (base,), {}))


_started: dict[Any, Teller] = {}
_groups: list[PlacementGroup] = []
"""Placement groups that the program has not removed yet."""


def begin_program() -> None:
    """Forget what earlier programs have started."""
    _started.clear()
    _groups.clear()
    _actor_class.cache_clear()


def give_back_groups() -> None:
    """Remove the placement groups of a program that did not come to its end."""
    for group in _groups:
        remove_placement_group(group)
    _groups.clear()


# -- the engine ------------------------------------------------------------------------


class Api:
    """Runs tasks through the API.

    In a driver whatever comes instead of a value is an outcome; a task fails by it.
    """

    def __init__(self, driver: bool = False) -> None:
        self.driver = driver

    def sleep(self, seconds: float) -> None:
        if seconds:
            api.sleep(seconds)

    def call(self, op: Op, ins: list[Any], group: Any = None) -> Any:
        task = _options(op, _task, group)
        return _own(task.remote(op.call, ins[: op.hands], [], *ins[op.hands :]))

    def lend(self, op: Op, ins: list[Any]) -> Any:
        return _own(_options(op, _task).remote(op.call, [], list(ins)))

    def map(self, op: Op, ins: list[Any], group: Any = None) -> Any:
        refs = _options(op, _element, group).map([op.call] * op.count, range(op.count))
        _own(refs[0])
        return refs

    def returns(self, op: Op, ins: list[Any]) -> list[Any]:
        assert op.call is not None
        task = _options(op, _task).options(num_returns=op.call.parts)
        return [_own(ref) for ref in task.remote(op.call, [], [], *ins)]

    def stream(self, op: Op, ins: list[Any]) -> Stream:
        items = _options(op, _stream).remote(op.call, *ins)
        _own(items.completed())
        return Stream(items)

    def group(self, op: Op, ins: list[Any]) -> Any:
        group = placement_group([dict(bundle) for bundle in op.bundles], op.strategy)
        _groups.append(group)
        return group

    def reserved(self, op: Op, ins: list[Any]) -> list[Any]:
        api.get(ins[0].ready())
        return [misplaced(placement_group_table(ins[0])) or TALLIED]

    def remove(self, op: Op, ins: list[Any]) -> None:
        history.ends.append((End.REMOVE, ins[0].id.hex()))
        remove_placement_group(ins[0])
        _groups.remove(ins[0])

    def actor(self, op: Op, ins: list[Any], group: Any = None) -> Any:
        assert op.teller is not None
        remote = _actor_class(op.teller)
        if op.place is not None:
            remote = remote.options(**_placed(op.place, group, actor_name(op.teller)))
        actor = remote.remote(op.teller)
        _started[actor._actor_id] = op.teller
        return actor

    def tell(self, op: Op, ins: list[Any]) -> Any:
        assert op.call is not None
        actor, *others = ins
        name, teller = call_name(op.call), _started[actor._actor_id]
        if op.call.leaves:
            history.ends.append((End.LEAVE, actor_name(teller)))
        tell = actor.tell.options(name=name)
        ref = _own(tell.remote(op.call, others[: op.hands], *others[op.hands :]))
        if actor_name(teller) in history.placed:
            history.placed[name] = history.placed[actor_name(teller)]
        history.puts.add(ref.hex())
        history.told[ref.hex()] = history.told[name] = teller
        return ref

    def yields(self, op: Op, ins: list[Any]) -> Stream:
        assert op.call is not None
        (actor,) = ins
        name, teller = call_name(op.call), _started[actor._actor_id]
        history.told[name] = teller
        items = actor.parts.options(name=name).remote(op.call)
        # If its items are lost before the first was taken, that is the one that the end names.
        first = item_id(_own(items.completed()).binary()[:ARRAY_BYTES], 0)
        history.told[first.hex()] = teller
        return Stream(_told(items, teller))

    def cancel(self, op: Op, ins: list[Any]) -> None:
        assert op.call is not None
        history.cancelled.update((task_name(op.call), call_name(op.call)))
        api.cancel(ins[0], force=bool(op.count))

    def kill(self, op: Op, ins: list[Any]) -> None:
        end = End.KILL if op.count else End.KILL_FOR_GOOD
        history.ends.append((end, actor_name(_started[ins[0]._actor_id])))
        api.kill(ins[0], no_restart=not op.count)

    def leave(self) -> None:
        api.exit_actor()

    def gone(self, op: Op, ins: list[Any]) -> list[Any]:
        found = [self._outcome(ref) for ref in ins]
        return [other for other in found if not isinstance(other, GONE)][:1] or [TALLIED]

    def tally(self, op: Op, ins: list[Any]) -> list[Any]:
        """Compare the calls that took effect with those not cancelled before they began."""
        assert op.call is not None
        ended = {key: self._outcome(ref) for key, ref in zip(op.ins[1:], ins[1:], strict=True)}
        took = [key for key, outcome in ended.items() if not _never_began(outcome)]
        found = self._outcome(self.tell(op, ins[:1]))
        right = sum_of({key: mix(key) for key in (*took, op.call.key)})
        return [TALLIED if found == right else found]

    def put(self, value: Any) -> Any:
        ref = _own(api.put(list(value) if isinstance(value, list) else value))
        history.puts.add(ref.hex())
        return ref

    def get(self, ref: Any) -> Any:
        """Return the value or the `Boom` that it is; in a task, raise whatever else."""
        try:
            return self.follow(api.get(ref))
        except RayTaskError as error:
            if isinstance(error.cause, Boom):
                return error.cause
            raise

    def follow(self, value: Any) -> Any:
        """Return what the references in a value lead to."""
        return [self.get(ref) for ref in value] if isinstance(value, list) else value

    def outcomes(self, variable: Any) -> list[Any]:
        if isinstance(variable, Stream):
            return variable.rest(self._outcome)
        if isinstance(variable, api.ActorHandle | PlacementGroup):
            return []
        if not isinstance(variable, api.ObjectRefArray):
            return [self._outcome(variable)]
        try:
            return [digest(value) for value in api.get(variable)]
        except Exception:
            # One of them is no value: each on its own says which.
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


def misplaced(row: Mapping[str, Any]) -> str:
    """Return what is wrong with where a group's bundles are, "" if nothing is."""
    nodes = [*row["bundles_to_node_id"].values()]
    apart = {"STRICT_PACK": 1, "STRICT_SPREAD": len(nodes)}.get(row["strategy"])
    whole = row["state"] != "CREATED" or len(nodes) == len(row["bundles"])
    right = whole and (apart is None or not nodes or len(set(nodes)) == apart)
    return "" if right else f"{row['state']} {row['strategy']} on {nodes}"


def _never_began(outcome: Any) -> bool:
    """Whether a call was cancelled before it had begun: one that had says so, and goes on."""
    failure = outcome.failure if isinstance(outcome, TaskCancelledError) else None
    return isinstance(failure, Cancellation) and not failure.begun


def _own(ref: Any) -> Any:
    """Note who owns a reference, and return it."""
    history.own(ref.hex(), api.get_runtime_context().get_worker_id())
    return ref


def _told(items: Any, teller: Teller) -> Iterator[Any]:
    """Yield the items of a call, which no task makes."""
    for ref in items:
        history.puts.add(ref.hex())
        history.told[ref.hex()] = teller
        yield ref


def _run_task(call: Call, actors: list[Any], lent: list[Any], *inputs: Any) -> Any:
    return run_task(Api(), call, actors, lent, inputs)


def _run_element(call: Call, index: int) -> Any:
    return run_task(Api(), call, [], [], [index])


def _run_stream(call: Call, *inputs: Any) -> Any:
    engine = Api()
    parts = run_task(engine, replace(call, fails=False), [], [], inputs)
    yield from yielded(call, parts, engine.sleep)


# Pickled by name: what they note in the history is this process's.
_task = api.remote(_run_task)
_element = api.remote(_run_element)
_stream = api.remote(_run_stream)


def _options(op: Op, function: Any, group: Any = None) -> Any:
    assert op.call is not None
    name = task_name(op.call)
    where = _placed(op.place, group, name) if op.place is not None else {}
    return function.options(num_cpus=op.call.cpus, max_retries=op.call.retries, name=name, **where)


def _placed(place: Place, group: Any, name: str) -> dict[str, Any]:
    """Return the options of what runs in a group."""
    history.placed[name] = group.id.hex()
    strategy = PlacementGroupSchedulingStrategy(group, place.bundle)
    resources = {SLOT: place.slots} if place.slots else {}
    return {"resources": resources, "scheduling_strategy": strategy}
