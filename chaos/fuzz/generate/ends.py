"""Actors that the program ends: `kill` with and without a restart, and `exit_actor`.

Drawn into random programs behind everything else but faults.

- Actors that are there already are killed, and may start again, by the driver and by the
  tasks that are handed them: that means nothing, as of those without end every value tells
  all calls before, and the others end as by any kill.
- Further ones are told some calls, killed for good or told to leave, and told some more
  (``gone``): each of these ends with ActorDiedError, whoever has killed the actor before.
  Of those before each has its value, or the error if they were not asked for in time; the
  calls before the one that leaves are all answered.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from raytwin.chaos.fuzz.generate.kind import Kind
from raytwin.chaos.fuzz.programs.program import Body, Call, Handing, Leave, Mortal, Op, Teller

KEYS = 4_000_000
"""Keys and variables of these operations begin here."""
SECONDS = (0.0, 0.0, 0.0, 0.001, 0.01)


class _Ends(Kind):
    def program(self, body: Body) -> Body:
        rng = self.rng
        ops: list[Op] = []
        tellers: dict[int, Teller] = {}
        rounds = self.rounds(body, 4)
        kills = self.rounds(body, 8)
        for n, op in enumerate(body.ops):
            hands_on = isinstance(op, Handing) and op.hands and rng.random() < 0.2
            ops.append(self.killing(op, tellers) if hands_on else op)
            if op.teller is not None:
                tellers[op.out] = op.teller
            elif op.do == "drop":
                tellers = {at: each for at, each in tellers.items() if at not in op.ins}
            if tellers and n in kills:
                at = rng.choice([*tellers])
                # Of those that do not start again this is the end.
                if tellers[at].restarts or rng.random() < 0.2:
                    ops.append(Op("kill", (at,), count=1))
            if n in rounds:
                ops += self.ended()
        return Body(tuple(ops), body.tasks + self.tasks)

    def killing(self, op: Op, tellers: Mapping[int, Teller]) -> Op:
        """Return a task or call that kills one of those which it was handed."""
        assert isinstance(op, Handing) and op.call is not None and op.call.body is not None
        inner = list(op.call.body.ops)
        told = [
            n
            for n, each in enumerate(inner)
            if each.do == "tell"
            and each.ins[0] < 0
            and tellers[op.hands[-2 - each.ins[0]]].restarts
        ]
        if told:
            n = self.rng.choice(told)
            inner.insert(n + 1, Op("kill", inner[n].ins[:1], count=1))
        body = replace(op.call.body, ops=tuple(inner))
        return replace(op, call=replace(op.call, body=body))

    def ended(self) -> list[Op]:
        """Return the life of an actor, up to its end and beyond."""
        rng = self.rng
        leaves = rng.random() < 0.5
        at, key = self.next(), self.next()
        teller = rng.choice(
            [
                Mortal(key, 0, 0),
                Teller(key, -1, -1, rng.choice([0, 0, 1, 3])),
                # One that crashes may come back without the call that was to end it.
                Mortal(key, 0, 0) if leaves else Teller(key, 2, 2),
            ]
        )
        ops = [Op("actor", (), at, teller=teller)]
        before: list[int] = []
        for _ in range(rng.choice([0, 1, 3, 6])):
            before.append(self.next())
            ops.append(self.tell(at, before[-1], teller))
            do = rng.random()
            if do < 0.3:
                ops.append(Op("get", (rng.choice(before),)))
            elif do < 0.4 and teller.restarts:
                ops.append(Op("kill", (at,), count=1))
            elif do < 0.5:
                # What needs its value ends as it does.
                self.tasks += 1
                out = self.next()
                ops.append(Op("call", (before[-1],), out, Call(out)))
        gone = []
        if leaves:
            gone.append(self.next())
            leaving = Leave(gone[-1], rng.choice(SECONDS), retries=teller.retries)
            self.tasks += 1
            ops.append(Op("tell", (at,), gone[-1], leaving))
        else:
            ops.append(Op("kill", (at,)))
        for _ in range(rng.choice([0, 1, 2]) if leaves else rng.choice([1, 2])):
            gone.append(self.next())
            ops.append(self.tell(at, gone[-1], teller))
        if rng.random() < 0.3:
            ops.append(Op("drop", (at,)))
        return [*ops, Op("gone", tuple(gone)), Op("drop", tuple(gone))]

    def tell(self, at: int, out: int, teller: Teller) -> Op:
        rng = self.rng
        self.tasks += 1
        seconds, nbytes = rng.choice(SECONDS), rng.choice([0, 0, 8, self.large(not teller.exact)])
        call = Call(out, seconds, nbytes, rng.random() < 0.05, teller.retries)
        return Op("tell", (at,), out, call)


def with_ends(rng: random.Random, body: Body, roomy: bool) -> Body:
    """Return the program with kills of actors, and with actors that end.

    Unless it is `roomy`, a node's store may be too full for their large values.
    """
    return _Ends(rng, KEYS, roomy=roomy).program(body)
