"""Calls of actors by others than the driver, and by a driver that waits for each of them.

Drawn into random programs behind everything else. Who calls an actor is

- one task, or the driver, alone: the order of its calls is its own, and every value may
  tell of all calls before;
- or several tasks and other actors' calls, in an order that nobody knows. That actor is
  a `Gatherer`: each call is one effect, and the last call of all, which has the
  values of its callers as inputs, tells which effects there were.

An actor that is exact is called only by what no fault may fail, so that none of its calls
is missing at the end. Nor has it large values if it takes checkpoints: what a call before
one has made is lost with its node, and the task that called it fails when it runs again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from raytwin.chaos.fuzz.generate.kind import Kind
from raytwin.chaos.fuzz.programs.program import (
    HANDED,
    LARGE_BYTES,
    Body,
    Call,
    Gatherer,
    Handing,
    Mortal,
    Op,
    SumUp,
    Teller,
)

KEYS = 1_000_000
"""Keys and variables of these operations begin here."""
ACTORS = 5_000_000
"""Variables of actors: they are let go of when the values of all others are there, and with
them the tasks that may have to run again."""
SECONDS = (0.0, 0.0, 0.001, 0.01, 0.05)


@dataclass
class _Shared:
    """A gatherer while its program is drawn."""

    start: Op
    called_by: list[int] = field(default_factory=list)
    """Variables that are there only when their calls have ended."""

    @property
    def out(self) -> int:
        return self.start.out

    @property
    def teller(self) -> Teller:
        assert self.start.teller is not None
        return self.start.teller


class _Callers(Kind):
    def program(self, body: Body) -> Body:
        """Return the program with actors of its own that tasks and actors call."""
        rng = self.rng
        ops: list[Op] = []
        shared: list[_Shared] = []
        for op in body.ops:
            ops.append(op)
            if rng.random() < 0.5:
                continue
            if not shared or (len(shared) < 3 and rng.random() < 0.3):
                shared.append(self.gatherer(shared))
                ops.append(shared[-1].start)
                continue
            do = rng.choice(("shared", "shared", "actor", "own", "alone"))
            if do == "own":
                ops.append(self.task([], self.own_actor()))
            elif do == "alone":
                # The driver starts it, and one task calls it.
                start = self.own_actor()[0]
                ops += [start, self.task([start], [])]
            else:
                ops += self.call_of(shared, by_actor=do == "actor")
        for each in shared:
            out = self.next()
            ops.append(Op("tell", (each.out, *each.called_by), out, self.sum_up(each.teller)))
        return Body(tuple(ops), body.tasks + self.tasks)

    def sum_up(self, teller: Teller) -> Call:
        return SumUp(self.next(), retries=teller.retries)

    def gatherer(self, others: Sequence[_Shared]) -> _Shared:
        rng = self.rng
        exact = rng.random() < 0.7
        restarts = -1 if exact else rng.choice([0, 1, 3, -1])
        retries = -1 if exact else rng.choice([0, 2]) if restarts else 0
        interval = rng.choice([0, 0, 1, 3]) if restarts else 0
        return _Shared(self.start(Gatherer(self.next(), restarts, retries, interval)))

    def call_of(self, shared: list[_Shared], by_actor: bool) -> list[Op]:
        """Return a task, or a call of an actor, that calls some of those."""
        rng = self.rng
        first = rng.choice(shared)
        exact = first.teller.exact
        # Never in a circle: an actor calls only younger ones.
        at = shared.index(first)
        alike = [each for each in shared[at + 1 :] if each.teller.exact == exact]
        if not by_actor:
            called = [first, *rng.sample(alike, min(len(alike), rng.choice([0, 1])))]
            task = self.task(called, [])
            for each in called:
                each.called_by.append(task.out)
            return [task]
        if not alike:
            return []
        called = rng.sample(alike, min(len(alike), rng.choice([1, 1, 2])))
        out, key = self.next(), self.next()
        call = Call(
            key,
            rng.choice(SECONDS),
            self.nbytes(first.teller),
            rng.random() < 0.06,
            first.teller.retries,
            body=self.body(called, [], 4, lasting=exact),
        )
        hands = tuple(each.out for each in called)
        for each in (first, *called):
            each.called_by.append(out)
        return [Handing("tell", (first.out,), out, call, hands=hands)]

    def own_actor(self) -> list[Op]:
        rng = self.rng
        interval = rng.choice([0, 0, 1, 3])
        return [self.start(Teller(self.next(), -1, -1, interval))]

    def task(self, called: Sequence[_Shared | Op], own: list[Op]) -> Handing:
        """Return a task that calls those it is handed, and what it has started itself."""
        rng = self.rng
        tellers = [each.teller for each in (*called, *own)]
        exact = all(teller is not None and teller.exact for teller in tellers)
        out = self.next()
        call = Call(
            self.next(),
            rng.choice(SECONDS),
            rng.choice([0, 0, 8, self.large()]),
            not exact and rng.random() < 0.06,
            -1 if exact else rng.choice([0, 1, 3]),
            rng.choice([1.0, 1.0, 0.5, 0.0]),
            self.body(called, own, rng.choice([2, 4, 8])),
        )
        self.tasks += 1
        return Handing("hand", (), out, call, hands=tuple(each.out for each in called))

    def body(
        self, called: Sequence[_Shared | Op], own: list[Op], most: int, lasting: bool = False
    ) -> Body:
        """Return calls of those, with tasks and values in between.

        With `lasting` none of their values may be lost with its node.
        """
        rng = self.rng
        ops = list(own)
        at: list[tuple[int, Teller]] = []
        for variable, each in (
            *((HANDED - n, each) for n, each in enumerate(called)),
            *((op.out, op) for op in own),
        ):
            assert each.teller is not None
            at.append((variable, each.teller))
        exact = all(teller.exact for _, teller in at)
        values: list[int] = []
        told: list[int] = []
        for number in range(rng.randint(1, most)):
            out = self.next()
            do = rng.choice(("tell", "tell", "tell", "tell", "get", "forget", "task", "put"))
            if (do in ("get", "forget") and not told) or not number:
                do = "tell"
            if do == "tell":
                variable, teller = rng.choice(at)
                ins = rng.sample(values, min(len(values), rng.choice([0, 0, 1])))
                call = Call(
                    self.next(),
                    rng.choice(SECONDS),
                    self.nbytes(teller) if not lasting else rng.choice([0, 8]),
                    rng.random() < 0.06,
                    teller.retries,
                )
                self.tasks += 1
                ops.append(Op("tell", (variable, *ins), out, call))
                told.append(out)
            elif do == "get":
                ops.append(Op("get", (rng.choice(told),)))
            elif do == "forget":
                # It has taken effect, and nobody has its value any more.
                one = told.pop(rng.randrange(len(told)))
                ops += [Op("wait", (one,), count=1), Op("drop", (one,))]
            elif do == "task":
                retries = -1 if exact else rng.choice([0, 3])
                nbytes = rng.choice([0, 8, self.large()])
                call = Call(self.next(), rng.choice(SECONDS), nbytes, retries=retries)
                self.tasks += 1
                ops.append(Op("call", (), out, call))
                values.append(out)
            else:
                ops.append(Op("put", (), out, nbytes=rng.choice([0, 8, 1000])))
                values.append(out)
        return Body(tuple(ops))

    def nbytes(self, teller: Teller) -> int:
        return self.rng.choice([0, 0, 0, 8, self.large(not (teller.exact and teller.interval))])


def with_callers(rng: random.Random, body: Body, roomy: bool) -> Body:
    """Return the program with actors that its tasks, and other actors' calls, call.

    Unless it is `roomy`, a node's store may be too full for their large values.
    """
    return _Callers(rng, KEYS, ACTORS, roomy).program(body)


def with_awaited(rng: random.Random, body: Body, roomy: bool) -> Body:
    """Return the program with runs of calls of which each is awaited before the next."""
    ops: list[Op] = []
    tasks = 0
    actors: list[tuple[int, Teller]] = []
    number = 2 * KEYS
    for op in body.ops:
        ops.append(op)
        if rng.random() < 0.7:
            continue
        if not actors or (len(actors) < 2 and rng.random() < 0.2):
            number += 1
            # Calls of those that may restart never go directly.
            teller = Mortal(number, 0, 0) if rng.random() < 0.8 else Teller(number)
            actors.append((number, teller))
            ops.append(Op("actor", (), number, teller=teller))
        at, teller = rng.choice(actors)
        for _ in range(rng.choice([1, 3, 10, 20])):
            number += 1
            call = Call(
                number,
                rng.choice([0.0, 0.0, 0.0, 0.001, 0.01]),
                rng.choice([0, 0, 0, 8, LARGE_BYTES if roomy and not teller.exact else 8]),
                rng.random() < 0.03,
                teller.retries,
            )
            tasks += 1
            ops.append(Op("tell", (at,), number, call))
            if rng.random() < 0.9:
                ops.append(Op("get", (number,)))
            if rng.random() < 0.7:
                ops.append(Op("drop", (number,)))
    return Body(tuple(ops), body.tasks + tasks)
