"""The interpreter of random programs: of their tasks, bodies and actors' calls.

It works over an *engine* with a method for each operation: `run.api_engine` submits through the
public API, as a driver or within a task, and `oracle.sequential` runs each task in place. The
driver collects a list of outcomes, one for each value that it gets: the value's digest, a `Boom`,
or another exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raytwin.chaos.fuzz.programs.outcomes import Boom, digest, make, mix, parts_of
from raytwin.chaos.fuzz.programs.program import FIRST_HANDLE, ActorSpec, Body, Call, Op


def run_task(
    engine: Any, call: Call, actors: Sequence[Any], lent: Sequence[Any], inputs: Sequence[Any]
) -> Any:
    """Run a task; every task of a random program is this function."""
    engine.sleep(call.seconds)
    engine.flake(call)
    digests = [digest(engine.follow(value)) for value in inputs]
    digests += [digest(engine.get(ref)) for ref in lent]
    if call.body is not None:
        digests += [digest(outcome) for outcome in run_body(engine, call.body, actors)]
    number = mix(call.key, *digests)
    if call.fails:
        raise Boom(number)
    if call.returns_refs:
        put = engine.put(make(number, call.nbytes))
        made = Call(call.key, nbytes=call.nbytes, retries=call.retries)
        return [*lent, put, engine.call(Op("call", call=made), [])]
    return parts_of(call, number) if call.parts else make(number, call.nbytes)


def run_body(engine: Any, body: Body, actors: Sequence[Any] = ()) -> list[Any]:
    """Interpret a body; return the outcome of each value that it gets."""
    variables: dict[int, Any] = {FIRST_HANDLE - n: actor for n, actor in enumerate(actors)}
    outcomes: list[Any] = []
    for op in body.ops:
        ins = [variables[i] for i in op.ins]
        match op.do:
            case "call" | "map" | "actor":
                group = variables[op.place.group] if op.place is not None else None
                variables[op.out] = getattr(engine, op.do)(op, ins, group)
            case "lend" | "stream" | "tell" | "tells" | "yields" | "group" | "find":
                variables[op.out] = getattr(engine, op.do)(op, ins)
            case "returns":
                variables.update(enumerate(engine.returns(op, ins), op.out))
            case "put":
                variables[op.out] = engine.put(make(mix(op.out, op.nbytes), op.nbytes))
            case "pack":
                variables[op.out] = engine.put(ins)
            case "take":
                variables[op.out] = ins[0].take()
            case "get":
                for variable in ins:
                    outcomes += engine.outcomes(variable)
            case "gone" | "reserved" | "tally":
                outcomes += getattr(engine, op.do)(op, ins)
            case "drop":
                for i in op.ins:
                    del variables[i]
            case "exit":
                return outcomes
            case "wait" | "waits" | "cancel" | "kill" | "ready" | "remove":
                getattr(engine, op.do)(op, ins)
            case "set_key" | "read_key" | "query" | "look_up":
                getattr(engine, op.do)(op, ins)
            case _:
                raise ValueError(f"no operation {op.do!r}")
        # Cleared, or these references would survive a drop by the next operation.
        ins.clear()
    while variables:
        outcomes += engine.outcomes(variables.pop(min(variables)))
    return outcomes


def sum_of(gathered: Mapping[int, int]) -> int:
    """Return a number that depends on all calls of a shared actor."""
    return mix(*(part for each in sorted(gathered.items()) for part in each))


class FoldActor:
    """The actor of a `ActorSpec`: its state is the fold of its calls.

    A call that takes effect twice raises, and so does one out of turn unless the actor is shared:
    the calls of one caller have rising keys.
    """

    def __init__(self, spec: ActorSpec) -> None:
        self.spec = spec
        self.state = spec.key
        self.last = 0
        self.gathered: dict[int, int] = {}
        """The numbers of the calls of a shared actor, by key."""
        self.ended: set[int] = set()
        """The keys of the calls that have taken effect in this process."""

    def tell(self, engine: Any, call: Call, actors: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """Run a call and fold it into the state; return its value."""
        engine.sleep(call.seconds)
        engine.flake(call)
        self.begin(engine, call)
        digests = [digest(engine.follow(value)) for value in inputs]
        if call.body is not None:
            digests += [digest(outcome) for outcome in run_body(engine, call.body, actors)]
        return self.end(call, digests)

    def begin(self, engine: Any, call: Call) -> None:
        """Check that a call which is about to take effect is new, and in order."""
        if call.leaves:
            engine.leave()
        if self.spec.shared:
            if call.key in self.gathered:
                raise AssertionError(f"call {call.key} took effect twice")
            self.gathered[call.key] = 0
        elif call.key <= self.last:
            raise AssertionError(f"call {call.key} took effect after {self.last}")
        self.last = call.key

    def end(self, call: Call, digests: Sequence[int]) -> Any:
        """Fold a call with these digests into the state; return its value."""
        number = mix(call.key, *digests)
        self.ended.add(call.key)
        if self.spec.shared:
            self.gathered[call.key] = number
            if call.sums_up:
                number = sum_of(self.gathered)
        else:
            self.state = mix(self.state, number)
            if self.spec.folds:
                number = self.state
        if call.fails:
            raise Boom(number)
        return make(number, call.nbytes)

    def parts(self, engine: Any, call: Call, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run a call that yields several values, and fold it into the state; return the values."""
        number = self.tell(engine, replace(call, fails=False, nbytes=0), (), inputs)
        return parts_of(call, number)
