"""Actors that hold CPUs, among tasks that need them, drawn behind everything else.

In a round actors begin, are called and let go of, while tasks run that take long, or are many
and take little; some of the long ones are cancelled, maybe just when actors wait for their
CPUs. There may be more actors than the cluster has CPUs for: they wait, and so do the tasks.
Nothing waits for any of them before the round lets go of its last actor, but for tasks that
need no CPU, which only let time pass.
"""

from __future__ import annotations

import random
from collections import Counter

from raytwin.chaos.fuzz.generate.kind import Kind
from raytwin.chaos.fuzz.programs.program import FORCED, RETRIES, Body, Call, Holder, Op

KEYS = 12_000_000
"""Keys and variables of these operations begin here."""
ROUNDS_MAX = 5
"""Of a program: each takes seconds, and other operations may be thousands."""
ACTORS_MAX = 6
"""That a round has at a time."""


class _Round(Kind):
    """Draws one round, with keys and variables from `number` on."""

    def __init__(self, rng: random.Random, number: int) -> None:
        super().__init__(rng, number)
        self.ops: list[Op] = []
        self.actors: dict[int, Holder] = {}
        self.long: list[Op] = []
        """Of its tasks, those that take long and are not cancelled."""
        steps = (self.actor, self.tell, self.drop, self.task, self.cancel, self.map, self.rest)
        for _ in range(rng.randint(5, 25)):
            rng.choices((*steps, self.swap), (4, 3, 4, 4, 2, 2, 4, 3))[0]()
        while self.actors:
            self.drop()

    def actor(self) -> None:
        if len(self.actors) < ACTORS_MAX:
            number = self.next()
            forever = -1 if self.rng.random() < 0.7 else 0
            cpus = self.rng.choice([1.0, 1.0, 1.0, 0.5])
            self.actors[number] = Holder(number, forever, forever, cpus=cpus)
            self.ops.append(Op("actor", (), number, teller=self.actors[number]))

    def tell(self) -> None:
        if self.actors:
            at, holder = self.rng.choice([*self.actors.items()])
            seconds = self.rng.choice([0.0, 0.01, 0.1])
            self._submit("tell", Call(self.next(), seconds, retries=holder.retries), at)

    def drop(self) -> None:
        if self.actors:
            dropped = self.rng.choice([*self.actors])
            del self.actors[dropped]
            self.ops.append(Op("drop", (dropped,)))

    def task(self) -> None:
        seconds = self.rng.choice([0.05, 0.5, 2.0])
        self._submit("call", Call(self.next(), seconds, retries=self.rng.choice(RETRIES)))
        self.long.append(self.ops[-1])

    def cancel(self) -> None:
        if self.long:
            unwanted = self.long.pop(self.rng.randrange(len(self.long)))
            forced = FORCED if self.rng.random() < 0.3 else 0
            self.ops.append(Op("cancel", (unwanted.out,), call=unwanted.call, count=forced))

    def map(self) -> None:
        call = Call(self.next(), self.rng.choice([0.002, 0.02]), retries=-1)
        self._submit("map", call, count=self.rng.choice([1, 5, 20]))

    def rest(self) -> None:
        seconds = self.rng.choice([0.02, 0.1, 0.3])
        self._submit("call", Call(self.next(), seconds, retries=-1, cpus=0.0))
        self.ops.append(Op("get", (self.number,)))

    def swap(self) -> None:
        """All that runs is cancelled when actors and tasks wait for its CPUs."""
        for _ in range(self.rng.randint(1, 3)):
            self.task()
        self.rest()
        for _ in range(self.rng.randint(1, 3)):
            self.rng.choice([self.actor, self.tell, self.map])()
        self.rest()
        while self.long:
            self.cancel()

    def _submit(self, do: str, call: Call, *ins: int, count: int = 0) -> None:
        self.ops.append(Op(do, ins, self.number, call, count))
        self.tasks += max(1, count)


def with_holders(rng: random.Random, body: Body) -> Body:
    """Return the program with a few rounds in between its operations."""
    ops: list[Op] = []
    tasks = body.tasks
    number = KEYS
    places = Counter(rng.choices(range(len(body.ops) + 1), k=rng.randint(1, ROUNDS_MAX)))
    for at in range(len(body.ops) + 1):
        for _ in range(places[at]):
            drawn = _Round(rng, number)
            number = drawn.number
            tasks += drawn.tasks
            ops += drawn.ops
        ops += body.ops[at : at + 1]
    return Body(tuple(ops), tasks)
