"""Draws actors that hold CPUs, among tasks that need CPUs.

A round starts, calls and drops actors, while a few long tasks or many short ones run; it cancels
some of the long tasks, maybe just when actors wait for their CPUs. There may be more actors than
the cluster has CPUs: they wait, and so do the tasks. Until the round has dropped its last actor,
the driver gets only values of tasks without a CPU, which let time pass.
"""

from __future__ import annotations

from raytwin.chaos.fuzz.generate.drawing import Draw, Scope
from raytwin.chaos.fuzz.programs.program import FORCED, RETRIES, ActorSpec, Call, Op

ACTORS_MAX = 6
"""The most actors of a round at a time."""


class _Round:
    def __init__(self, draw: Draw, scope: Scope) -> None:
        self.draw = draw
        self.rng = draw.rng
        self.scope = scope
        self.actors: dict[int, ActorSpec] = {}
        self.long: list[Op] = []
        """The long tasks that are not cancelled."""
        steps = (self.actor, self.tell, self.drop, self.task, self.cancel, self.map, self.rest)
        for _ in range(self.rng.randint(5, 25)):
            self.rng.choices((*steps, self.swap), (4, 3, 4, 4, 2, 2, 4, 3))[0]()
        while self.actors:
            self.drop()

    def actor(self) -> None:
        if len(self.actors) < ACTORS_MAX:
            forever = -1 if self.rng.random() < 0.7 else 0
            cpus = self.rng.choice([1.0, 1.0, 1.0, 0.5])
            spec = ActorSpec(self.draw.next(), forever, forever, cpus=cpus)
            self.actors[self.draw.start(self.scope, spec)] = spec

    def tell(self) -> None:
        if self.actors:
            at, spec = self.rng.choice([*self.actors.items()])
            self._submit("tell", self.rng.choice([0.0, 0.01, 0.1]), spec.retries, 1.0, at)

    def drop(self) -> None:
        if self.actors:
            dropped = self.rng.choice([*self.actors])
            del self.actors[dropped]
            self.scope.ops.append(Op("drop", (dropped,)))

    def task(self) -> None:
        self._submit("call", self.rng.choice([0.05, 0.5, 2.0]), self.rng.choice(RETRIES))
        self.long.append(self.scope.ops[-1])

    def cancel(self) -> None:
        if self.long:
            unwanted = self.long.pop(self.rng.randrange(len(self.long)))
            forced = FORCED if self.rng.random() < 0.3 else 0
            self.scope.ops.append(Op("cancel", (unwanted.out,), call=unwanted.call, count=forced))

    def map(self) -> None:
        self._submit("map", self.rng.choice([0.002, 0.02]), -1, count=self.rng.choice([1, 5, 20]))

    def rest(self) -> None:
        self._submit("call", self.rng.choice([0.02, 0.1, 0.3]), -1, 0.0)
        self.scope.ops.append(Op("get", (self.draw.number,)))

    def swap(self) -> None:
        """Cancel all running tasks while actors and tasks wait for their CPUs."""
        for _ in range(self.rng.randint(1, 3)):
            self.task()
        self.rest()
        for _ in range(self.rng.randint(1, 3)):
            self.rng.choice([self.actor, self.tell, self.map])()
        self.rest()
        while self.long:
            self.cancel()

    def _submit(
        self, do: str, seconds: float, retries: int, cpus: float = 1.0, *ins: int, count: int = 0
    ) -> None:
        key = self.draw.next()
        call = Call(key, seconds, retries=retries, cpus=cpus)
        self.scope.ops.append(Op(do, ins, key, call, count))


def actors_with_cpus(draw: Draw, scope: Scope) -> None:
    """Draw one round."""
    _Round(draw, scope)
