"""What a random program means: the interpreter of its tasks, bodies and actors' calls.

It works over an *engine*: `programs.Api` submits, gets, puts and waits through
`api`, as a driver or within a task; `sequential.Sequential` runs each task in
place, in plain Python, and is the oracle. So the two cannot differ in what the program
means.

What the driver saw is a list of outcomes, one for each value that it asked for;
an outcome is the value's digest, a `Boom`, or the exception that came instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raytwin.chaos.fuzz.programs.outcomes import Boom, digest, make, mix, parts_of
from raytwin.chaos.fuzz.programs.program import (
    FORCED,
    HANDED,
    Body,
    Call,
    Gatherer,
    Group,
    Handing,
    Leave,
    Placed,
    SumUp,
    Teller,
)


def run_task(
    engine: Any,
    call: Call,
    inputs: Sequence[Any],
    lent: Sequence[Any],
    actors: Sequence[Any] = (),
) -> Any:
    """What every task does."""
    engine.sleep(call.seconds)
    digests = [digest(engine.follow(value)) for value in inputs]
    digests += [digest(engine.get(ref)) for ref in lent]
    if call.body is not None:
        digests += [digest(outcome) for outcome in run_body(engine, call.body, actors)]
    number = mix(call.key, *digests)
    if call.fails:
        raise Boom(number)
    if call.gives:
        put = engine.put(make(number, call.nbytes))
        made = engine.call(Call(call.key, nbytes=call.nbytes, retries=call.retries), [])
        return [*lent, put, made]
    if call.parts:
        return parts_of(call, number)
    return make(number, call.nbytes)


def run_body(engine: Any, body: Body, actors: Sequence[Any] = ()) -> list[Any]:
    """Interpret a body; return the outcome of each value that it asked for."""
    variables: dict[int, Any] = {HANDED - n: actor for n, actor in enumerate(actors)}
    outcomes: list[Any] = []
    for op in body.ops:
        if isinstance(op, Placed):
            inputs = [variables[i] for i in op.ins]
            variables[op.out] = engine.placed(op, variables[op.group], inputs)
        elif isinstance(op, Group):
            variables[op.out] = engine.group(op)
        elif op.do == "call":
            variables[op.out] = engine.call(op.call, [variables[i] for i in op.ins])
        elif op.do == "lend":
            variables[op.out] = engine.lend(op.call, [variables[i] for i in op.ins])
        elif op.do == "map":
            variables[op.out] = engine.map(op.call, op.count)
        elif op.do == "actor":
            variables[op.out] = engine.actor(op.teller)
        elif op.do == "tell":
            at, *others = op.ins
            inputs = [variables[i] for i in others]
            hands = [variables[i] for i in op.hands] if isinstance(op, Handing) else []
            variables[op.out] = engine.tell(variables[at], op.call, inputs, hands)
        elif op.do == "yields":
            actor, *inputs = (variables[i] for i in op.ins)
            variables[op.out] = engine.yields(actor, op.call, inputs)
        elif isinstance(op, Handing):
            inputs = [variables[i] for i in op.ins]
            hands = [variables[i] for i in op.hands]
            variables[op.out] = engine.hand(op.call, inputs, hands)
        elif op.do == "cancel":
            engine.cancel(variables[op.ins[0]], op.call, force=op.count == FORCED)
        elif op.do == "kill":
            engine.kill(variables[op.ins[0]], restart=op.count == 1)
        elif op.do == "gone":
            outcomes += engine.gone([variables[i] for i in op.ins])
        elif op.do == "reserved":
            outcomes += engine.reserved(variables[op.ins[0]])
        elif op.do == "remove":
            engine.remove(variables[op.ins[0]])
        elif op.do == "tally":
            at, *told = op.ins
            outcomes += engine.tally(variables[at], op.call, {i: variables[i] for i in told})
        elif op.do == "put":
            variables[op.out] = engine.put(make(mix(op.out, op.nbytes), op.nbytes))
        elif op.do == "stream":
            variables[op.out] = engine.stream(op.call, [variables[i] for i in op.ins])
        elif op.do == "take":
            variables[op.out] = variables[op.ins[0]].take()
        elif op.do == "returns":
            parts = engine.returns(op.call, [variables[i] for i in op.ins])
            variables.update(enumerate(parts, op.out))
        elif op.do == "pack":
            variables[op.out] = engine.put([variables[i] for i in op.ins])
        elif op.do == "get":
            for i in op.ins:
                outcomes += engine.outcomes(variables[i])
        elif op.do == "wait":
            engine.wait([variables[i] for i in op.ins], op.count)
        else:
            for i in op.ins:
                del variables[i]
    while variables:
        outcomes += engine.outcomes(variables.pop(min(variables)))
    return outcomes


def sum_of(gathered: Mapping[int, int]) -> int:
    """Return what tells all that a `Gatherer` was told."""
    return mix(*(part for each in sorted(gathered.items()) for part in each))


class Told:
    """What a `Teller` starts: its state is the fold of all that it was told.

    A call that came twice, or out of turn, raises: the calls of one caller have rising
    keys. Of a `Gatherer` only one that came twice does.
    """

    def __init__(self, teller: Teller) -> None:
        self.teller = teller
        self.state = teller.key
        self.last = 0
        self.gathered: dict[int, int] = {}
        """What a `Gatherer` was told, by the call's key."""
        self.ended: set[int] = set()
        """Keys of the calls of this process that have taken effect."""
        self.kept: list[Any] = []
        """What its calls have submitted and not asked for yet."""

    def tell(
        self, engine: Any, call: Call, inputs: Sequence[Any], actors: Sequence[Any] = ()
    ) -> Any:
        """Fold a call in; of an exact actor its value says all that came before."""
        engine.sleep(call.seconds)
        self.begin(engine, call)
        digests = [digest(value) for value in inputs]
        if call.body is not None:
            digests += [digest(outcome) for outcome in run_body(engine, call.body, actors)]
        digests += [digest(engine.get(ref)) for ref in self.kept]
        if call.gives:
            # A later call asks for it, maybe in another process.
            made = Call(call.key, call.seconds, call.nbytes, retries=call.retries)
            self.kept = [engine.call(made, []), engine.put(make(call.key, call.nbytes))]
        return self.end(call, digests)

    def begin(self, engine: Any, call: Call) -> None:
        """Hold a call that is about to take effect against those before."""
        if isinstance(call, Leave):
            engine.leave()
        if isinstance(self.teller, Gatherer):
            if call.key in self.gathered:
                raise AssertionError(f"call {call.key} took effect twice")
            self.gathered[call.key] = 0
        elif call.key <= self.last:
            raise AssertionError(f"call {call.key} took effect after {self.last}")
        self.last = call.key

    def end(self, call: Call, digests: Sequence[int]) -> Any:
        """Let a call take effect that has come to these numbers; return its value."""
        number = mix(call.key, *digests)
        self.ended.add(call.key)
        if isinstance(self.teller, Gatherer):
            self.gathered[call.key] = number
            if isinstance(call, SumUp) and self.teller.sums_up:
                number = sum_of(self.gathered)
        else:
            self.state = mix(self.state, number)
            if self.teller.folds:
                number = self.state
        if call.fails:
            raise Boom(number)
        return make(number, call.nbytes)

    def parts(self, engine: Any, call: Call, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Fold a call in that yields several values; return these."""
        number = self.tell(engine, replace(call, fails=False, nbytes=0), inputs)
        return parts_of(call, number)
