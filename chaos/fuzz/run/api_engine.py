"""Random programs against the public API.

A program is data (see `bodies`): a `Body` is a list of operations on variables, a `Call` in
it is a task, which may have a body of its own. What it means is in `interpreter`, what a
sequential run makes of it in `sequential`, what values are in `outcomes`; here it is
submitted.

Actors with state are called by the driver, by tasks and by other actors' calls, which are
handed them; see `interpreter.Told`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import raytwin.runtime.api as api
from raytwin.chaos.fuzz.oracle.program_ends import ARRAY_DIGITS, program_ends
from raytwin.chaos.fuzz.programs.interpreter import Told, run_task, sum_of
from raytwin.chaos.fuzz.programs.outcomes import TALLIED, Boom, Stream, digest, mix, yielded
from raytwin.chaos.fuzz.programs.program import (
    Beside,
    Call,
    Gatherer,
    Group,
    Holder,
    Leave,
    Placed,
    Teller,
    actor_name,
    call_name,
    task_name,
)
from raytwin.chaos.fuzz.run.concurrent_actors import Coroutines, Threads
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
"""What is raised by calls of what the program has ended."""
put_here: set[str] = set()
"""Objects that no task makes: what programs have put in this process, and results
of actors' calls. In a simulation all of them."""
cancelled_here: set[str] = set()
"""Names of tasks and calls that were cancelled."""
told_here: dict[str, Teller] = {}
"""Of results of actors' calls, and of the calls' names: which actor's."""


owners_here: dict[str, set[str]] = {}
"""By array, in hexadecimal: the drivers and workers that have submitted or put it."""


def forget() -> None:
    """Begin a program: what others have made does not count any more."""
    owners_here.clear()
    put_here.clear()
    told_here.clear()
    cancelled_here.clear()
    program_ends.forget()
    _started.clear()
    _groups.clear()
    _actor_class.cache_clear()


def give_back_groups() -> None:
    """Remove the placement groups of a program that did not come to its end."""
    for group in _groups:
        remove_placement_group(group)
    _groups.clear()


def _own(ref: Any, made: Any = None) -> Any:
    """Note who owns a reference; return it, or what was made with it."""
    owner = api.get_runtime_context().get_worker_id()
    owners_here.setdefault(ref.hex()[:ARRAY_DIGITS], set()).add(owner)
    return ref if made is None else made


_started: dict[Any, Teller] = {}
_groups: list[PlacementGroup] = []
"""Those that are not removed yet."""


class _Actor:
    """`Told` as an actor."""

    def __init__(self, teller: Teller) -> None:
        self.told = Told(teller)

    def tell(self, call: Call, *inputs: Any) -> Any:
        return self.told.tell(Api(), call, inputs)

    def tell_with(self, actors: Sequence[Any], call: Call, *inputs: Any) -> Any:
        return self.told.tell(Api(), call, inputs, actors)

    def parts(self, call: Call, *inputs: Any) -> Any:
        engine = Api()
        yield from yielded(call, self.told.parts(engine, call, inputs), engine.sleep)

    def __ray_save__(self) -> Any:
        if isinstance(self.told.teller, Gatherer):
            return self.told.gathered
        return self.told.state, self.told.last

    def __ray_restore__(self, state: Any) -> None:
        if isinstance(self.told.teller, Gatherer):
            self.told.gathered = state
        else:
            self.told.state, self.told.last = state


@cache
def _actor_class(teller: Teller) -> Any:
    # Errors call an actor by its class: that says how often it may restart.
    base: type = _Actor
    if isinstance(teller, Beside):
        base = Coroutines if teller.coroutines else Threads
    named = type(actor_name(teller), (base,), {"engine": Api()})
    return api.remote(
        num_cpus=teller.cpus if isinstance(teller, Holder) else 0,
        max_concurrency=teller.most if isinstance(teller, Beside) else 1,
        max_restarts=teller.restarts,
        max_task_retries=teller.retries,
        checkpoint_interval=teller.interval,
    )(named)


class Api:
    """Runs tasks through `api`.

    In a driver whatever comes instead of a value is an outcome; a task fails by it.
    """

    def __init__(self, driver: bool = False) -> None:
        self.driver = driver

    def sleep(self, seconds: float) -> None:
        if seconds:
            api.sleep(seconds)

    def call(self, call: Call, inputs: list[Any]) -> Any:
        return _own(_options(call).remote(call, [], *inputs))

    def lend(self, call: Call, inputs: list[Any]) -> Any:
        return _own(_options(call).remote(call, inputs))

    def hand(self, call: Call, inputs: list[Any], actors: list[Any]) -> Any:
        return _own(_options(call, _handed).remote(call, actors, *inputs))

    def map(self, call: Call, count: int) -> Any:
        refs = _options(call, _element).map([call] * count, range(count))
        return _own(refs[0], refs)

    def stream(self, call: Call, inputs: list[Any]) -> Stream:
        items = _options(call, _stream).remote(call, *inputs)
        return Stream(_own(items.completed(), items))

    def returns(self, call: Call, inputs: list[Any]) -> list[Any]:
        task = _options(call).options(num_returns=call.parts)
        refs = list(task.remote(call, [], *inputs))
        return [_own(ref) for ref in refs]

    def group(self, op: Group) -> Any:
        group = placement_group([dict(bundle) for bundle in op.bundles], op.strategy)
        _groups.append(group)
        return group

    def reserved(self, group: Any) -> list[Any]:
        api.get(group.ready())
        return [misplaced(placement_group_table(group)) or TALLIED]

    def remove(self, group: Any) -> None:
        program_ends.remove(group.id.hex())
        remove_placement_group(group)
        _groups.remove(group)

    def placed(self, op: Placed, group: Any, inputs: list[Any]) -> Any:
        where = PlacementGroupSchedulingStrategy(group, op.bundle, op.captures)
        more = {"resources": dict(op.demand), "scheduling_strategy": where}
        if op.teller is not None:
            actor = self.actor(op.teller, **more)
            program_ends.placed[actor_name(op.teller)] = group.id.hex()
            return actor
        assert op.call is not None
        if op.do == "map":
            task = _options(op.call, _element).options(**more)
            refs = task.map([op.call] * op.count, range(op.count))
            return self.within(refs, _own(refs[0]))
        ref = _options(op.call).options(**more).remote(op.call, [], *inputs)
        return self.within(ref, _own(ref))

    @staticmethod
    def within(made: Any, ref: Any) -> Any:
        """Note that what was made may end with its placement group; return it."""
        program_ends.within.add(ref.hex()[:ARRAY_DIGITS])
        return made

    def actor(self, teller: Teller, **more: Any) -> Any:
        actor = _actor_class(teller).options(**more).remote(teller)
        _started[actor._actor_id] = teller
        return actor

    def tell(self, actor: Any, call: Call, inputs: list[Any], actors: list[Any]) -> Any:
        name = call_name(call)
        if isinstance(call, Leave):
            program_ends.leave(actor_name(_started[actor._actor_id]))
        if actors:
            ref = actor.tell_with.options(name=name).remote(actors, call, *inputs)
        else:
            ref = actor.tell.options(name=name).remote(call, *inputs)
        put_here.add(_own(ref).hex())
        teller = told_here[ref.hex()] = told_here[name] = _started[actor._actor_id]
        if actor_name(teller) in program_ends.placed:
            self.within(ref, ref)
        return ref

    def yields(self, actor: Any, call: Call, inputs: list[Any]) -> Stream:
        teller = _started[actor._actor_id]
        name = call_name(call)
        told_here[name] = teller
        items = actor.parts.options(name=name).remote(call, *inputs)
        # If its items are lost before the first was taken, that is the one that the end names.
        told_here[item_id(_own(items.completed()).binary()[:ARRAY_BYTES], 0).hex()] = teller
        return Stream(_told(items, teller))

    def cancel(self, ref: Any, call: Call, force: bool) -> None:
        cancelled_here.update((task_name(call), call_name(call)))
        api.cancel(ref, force=force)

    def kill(self, actor: Any, restart: bool) -> None:
        program_ends.kill(actor_name(_started[actor._actor_id]), restart)
        api.kill(actor, no_restart=not restart)

    def leave(self) -> None:
        api.exit_actor()

    def gone(self, refs: list[Any]) -> list[Any]:
        found = [self._outcome(ref) for ref in refs]
        return [other for other in found if not isinstance(other, GONE)][:1] or [TALLIED]

    def tally(self, actor: Any, call: Call, told: Mapping[int, Any]) -> list[Any]:
        """Compare what took effect with what was told, by key, and not cancelled before it
        had begun."""
        ended = {key: self._outcome(ref) for key, ref in told.items()}
        took = [key for key, got in ended.items() if not _never_began(got)]
        found = self._outcome(self.tell(actor, call, [], []))
        right = sum_of({key: mix(key) for key in (*took, call.key)})
        return [TALLIED if found == right else found]

    def put(self, value: Any) -> Any:
        ref = _own(api.put(value))
        put_here.add(ref.hex())
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
            program_ends.seen(error, ref.hex())
            # A traceback would keep references alive.
            return error.with_traceback(None)
        return value if isinstance(value, Boom) else digest(value)

    def wait(self, variables: list[Any], count: int) -> None:
        ready, rest = api.wait(variables, num_returns=count)
        if len(ready) != count or len(ready) + len(rest) != len(variables):
            raise AssertionError(f"wait for {count} of {len(variables)} gave {len(ready)}")


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


def _told(items: Any, teller: Teller) -> Iterator[Any]:
    """Yield the items of a call, which no task makes."""
    for ref in items:
        put_here.add(ref.hex())
        told_here[ref.hex()] = teller
        yield ref


def _task(call: Call, lent: list[Any], *inputs: Any) -> Any:
    return run_task(Api(), call, inputs, lent)


def _handed_task(call: Call, actors: list[Any], *inputs: Any) -> Any:
    return run_task(Api(), call, inputs, [], actors)


def _element_task(call: Call, index: int) -> Any:
    return run_task(Api(), call, [index], [])


def _stream_task(call: Call, *inputs: Any) -> Any:
    engine = Api()
    parts = run_task(engine, replace(call, fails=False), inputs, [])
    yield from yielded(call, parts, engine.sleep)


_call = api.remote(_task)
_handed = api.remote(_handed_task)
_stream = api.remote(_stream_task)
_element = api.remote(_element_task)


def _options(call: Call, function: Any = _call) -> Any:
    return function.options(num_cpus=call.cpus, max_retries=call.retries, name=task_name(call))
