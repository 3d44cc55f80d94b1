"""Actors whose calls run beside one another, drawn behind everything else but what ends them.

The driver calls them, and their calls submit tasks and call a plain actor, the *board*, and
wait for that. Each call is one effect, as those of a `Gatherer`; how they took turns changes
no value. Some wait for the effect of a call behind them: in actors that run fewer calls at a
time than they should nobody would ever get on. See `overlapping`.
"""

from __future__ import annotations

import random

from raytwin.chaos.fuzz.generate.kind import Kind
from raytwin.chaos.fuzz.programs.program import (
    HANDED,
    Beside,
    Body,
    Call,
    Gatherer,
    Handing,
    Meet,
    Op,
    SumUp,
    Teller,
)

KEYS = 7_000_000
"""Keys and variables of these operations begin here."""
ACTORS = 10_000_000
"""Variables of actors: as in `callers`."""
SECONDS = (0.0, 0.0, 0.001, 0.01, 0.05)


class _Sides(Kind):
    def __init__(self, rng: random.Random, roomy: bool) -> None:
        super().__init__(rng, KEYS, roomy=roomy)
        self.actors: list[Op] = []
        self.told: dict[int, list[int]] = {}
        """What waits for the calls of each actor."""
        self.board = Op("actor", (), ACTORS, teller=Gatherer(ACTORS))
        self.told[ACTORS] = []

    def program(self, body: Body) -> Body:
        rng = self.rng
        ops = [self.board]
        rounds = self.rounds(body, 5)
        for n, op in enumerate(body.ops):
            ops.append(op)
            if n not in rounds:
                continue
            if not self.actors or (len(self.actors) < 2 and rng.random() < 0.3):
                ops.append(self.actor())
            actor = rng.choice(self.actors)
            for _ in range(rng.choice([1, 3, 6])):
                ops += self.tell(actor)
        for op in (*self.actors, self.board):
            assert op.teller is not None
            out = self.next()
            call = SumUp(out, retries=op.teller.retries)
            ops.append(Op("tell", (op.out, *self.told[op.out]), out, call))
        return Body(tuple(ops), body.tasks + self.tasks)

    def actor(self) -> Op:
        rng = self.rng
        restarts, retries = rng.choice([(-1, -1), (-1, -1), (-1, -1), (0, 0), (0, 0), (3, 2)])
        out = ACTORS + len(self.actors) + 1
        coroutines = rng.random() < 0.5
        teller = Beside(out, restarts, retries, 0, rng.choice([2, 2, 3, 10]), coroutines)
        self.actors.append(Op("actor", (), out, teller=teller))
        self.told[out] = []
        return self.actors[-1]

    def tell(self, actor: Op) -> list[Op]:
        """Return a call with what comes before and after it."""
        rng, teller = self.rng, actor.teller
        assert isinstance(teller, Beside)
        ops: list[Op] = []
        ins: tuple[int, ...] = ()
        if rng.random() < 0.2:
            ops.append(self.task(rng.choice([0, 8, 1000]), rng.choice(SECONDS)))
            ins = (ops[0].out,)
        out = self.next()
        body = self.body(teller) if rng.random() < 0.3 else None
        call = Call(
            out,
            rng.choice(SECONDS),
            rng.choice([0, 0, 8, self.large(not teller.exact)]),
            rng.random() < 0.06,
            teller.retries,
            body=body,
        )
        calls = [call]
        if teller.restarts <= 0 and rng.random() < 0.3:
            # The one behind is the one that the first waits for.
            second = Call(self.next(), rng.choice(SECONDS), retries=teller.retries)
            first = Meet(out, call.seconds, call.nbytes, retries=call.retries, other=second.key)
            calls = [first, second]
        for each in calls:
            calls_board = each.body is not None and any(op.do == "tell" for op in each.body.ops)
            hands = (self.board.out,) if calls_board else ()
            ops.append(Handing("tell", (actor.out, *ins), each.key, each, hands=hands))
            ins = ()
            self.told[actor.out].append(each.key)
            if hands:
                self.told[self.board.out].append(each.key)
            self.tasks += 1
        if rng.random() < 0.3:
            ops.append(Op("get", (rng.choice(self.told[actor.out]),)))
        return ops

    def body(self, teller: Teller) -> Body:
        """Return tasks, and calls of the board if nothing may fail the call that makes them."""
        rng = self.rng
        ops: list[Op] = []
        for _ in range(rng.choice([1, 2, 3])):
            if teller.exact and rng.random() < 0.5:
                key = self.next()
                self.tasks += 1
                ops.append(Op("tell", (HANDED,), key, Call(key, rng.choice(SECONDS), retries=-1)))
            else:
                ops.append(self.task(rng.choice([0, 8]), rng.choice(SECONDS)))
        return Body(tuple(ops))

    def task(self, nbytes: int, seconds: float) -> Op:
        key = self.next()
        self.tasks += 1
        return Op("call", (), key, Call(key, seconds, nbytes, retries=-1))


def with_side_by_side(rng: random.Random, body: Body, roomy: bool) -> Body:
    """Return the program with actors of threads and of coroutines.

    Unless it is `roomy`, a node's store may be too full for their large values.
    """
    return _Sides(rng, roomy).program(body)
