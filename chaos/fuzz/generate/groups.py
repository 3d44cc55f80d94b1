"""Placement groups of random programs: reserved, used by tasks, arrays and actors, and removed.

Half of them are removed while they are in use; later submissions to them are ``gone``. Whatever a
plan does, there is room for each demand, or the program would rightly wait: all groups that exist
at a time fit on one node, together with the needs of other tasks; bundles of STRICT_SPREAD are no
more than the nodes that no plan kills; and an actor has a share of its bundle that no task needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raytwin.chaos.faults.plan import Plan
from raytwin.chaos.fuzz.generate.drawing import SECONDS, Draw, Scope
from raytwin.chaos.fuzz.programs.program import (
    LARGE_BYTES,
    RETRIES,
    SLOT,
    ActorSpec,
    Call,
    Op,
    Place,
)

SLOTS = 4.0
"""The amount of the resource `SLOT` of each node."""
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@dataclass
class _Open:
    """A group while its program is drawn."""

    op: Op
    values: list[int] = field(default_factory=list)
    arrays: list[int] = field(default_factory=list)
    actors: dict[int, ActorSpec] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    """The bundles of which an actor has a share."""


class Groups:
    """Draws the placement groups of one program."""

    def __init__(self, draw: Draw, cpus: int, survivors: int) -> None:
        """Nodes have `SLOTS` and `cpus` CPUs, and `survivors` of them never die."""
        self.draw = draw
        self.rng = draw.rng
        self.survivors = survivors
        self.free = {"CPU": cpus - 1.0, SLOT: SLOTS}
        self.open: list[_Open] = []

    def round(self, scope: Scope) -> None:
        """Reserve a group, use one, or remove one."""
        rng = self.rng
        if not self.open or rng.random() < 0.25:
            self._reserve(scope)
        if self.open:
            chosen = rng.choice(self.open)
            for _ in range(rng.choice([1, 2, 4])):
                self._use(scope, chosen)
            if rng.random() < 0.3:
                self._remove(scope, chosen, rng.random() < 0.7)

    def finish(self, scope: Scope) -> None:
        """Remove the groups that are left."""
        for each in [*self.open]:
            self._remove(scope, each, False)

    def _reserve(self, scope: Scope) -> None:
        rng = self.rng
        strategy = rng.choice(STRATEGIES)
        most = min(3, self.survivors) if strategy == "STRICT_SPREAD" else 3
        bundles: list[tuple[tuple[str, float], ...]] = []
        for _ in range(rng.randint(1, most)):
            bundle = {SLOT: rng.choice([1.0, 1.0, 2.0])}
            if rng.random() < 0.5:
                bundle["CPU"] = rng.choice([0.5, 1.0])
            if all(amount <= self.free[name] for name, amount in bundle.items()):
                bundles.append(tuple(bundle.items()))
                for name, amount in bundle.items():
                    self.free[name] -= amount
        if bundles:
            op = Op("group", (), self.draw.next(), bundles=tuple(bundles), strategy=strategy)
            scope.ops.append(op)
            self.open.append(_Open(op))
            self._look(scope, self.open[-1])

    def _look(self, scope: Scope, group: _Open) -> None:
        scope.ops.append(Op("reserved", (group.op.out,)))

    def _remove(self, scope: Scope, group: _Open, in_use: bool) -> None:
        """Remove a group; unless it is in use, get all of its values before."""
        self.open.remove(group)
        for bundle in group.op.bundles:
            for name, amount in bundle:
                self.free[name] += amount
        held = (*group.values, *group.arrays)
        if not in_use:
            scope.ops.append(Op("get", held))
            scope.ops.append(Op("drop", (*held, *group.actors)))
        scope.ops.append(Op("remove", (group.op.out,)))
        if in_use:
            gone = tuple(self._task(scope, group) for _ in range(self.rng.choice([1, 1, 2])))
            scope.ops.append(Op("gone", gone))
            scope.ops.append(Op("drop", (*gone, *group.actors)))

    def _use(self, scope: Scope, group: _Open) -> None:
        rng = self.rng
        do = rng.choice(["task", "task", "task", "map", "actor", "tell", "tell", "get", "look"])
        if do == "look":
            self._look(scope, group)
        elif do == "get" and group.values:
            scope.ops.append(Op("get", (rng.choice(group.values),)))
        elif do == "tell" and group.actors:
            at = rng.choice([*group.actors])
            group.values.append(self.draw.short_tell(scope, at, group.actors[at]))
        elif do in ("tell", "actor"):
            self._actor(scope, group)
        elif do == "map":
            group.arrays.append(self._task(scope, group, rng.choice([2, 5, 8])))
        else:
            group.values.append(self._task(scope, group))

    def _actor(self, scope: Scope, group: _Open) -> None:
        rng = self.rng
        index = rng.randrange(len(group.op.bundles))
        restarts, retries = rng.choice([(0, 0), (-1, -1), (-1, -1), (3, 2)])
        interval = rng.choice([0, 0, 2]) if restarts else 0
        spec = ActorSpec(self.draw.next(), restarts, retries, interval)
        has_share = dict(group.op.bundles[index])[SLOT] > 1.0 and index not in group.held
        if has_share:
            group.held.add(index)
        place = Place(group.op.out, index, 1.0 if has_share else 0.0)
        group.actors[self.draw.start(scope, spec, place)] = spec

    def _task(self, scope: Scope, group: _Open, count: int = 0) -> int:
        """Draw a task in the group, or an array of `count` tasks; return its variable."""
        rng, out = self.rng, self.draw.next()
        index = rng.randrange(len(group.op.bundles))
        call = Call(
            out,
            rng.choice(SECONDS),
            rng.choice([0, 0, 8, LARGE_BYTES if self.draw.large_stores else 8]),
            rng.random() < 0.05,
            rng.choice(RETRIES),
            rng.choice([0.0, dict(group.op.bundles[index]).get("CPU", 0.0)]),
        )
        ins = (
            (rng.choice(group.values),) if group.values and not count and rng.random() < 0.3 else ()
        )
        place = Place(group.op.out, rng.choice([-1, index]), rng.choice([0.0, 0.5, 1.0]))
        scope.ops.append(Op("map" if count else "call", ins, out, call, count, place=place))
        return out


def surviving_nodes(plan: Plan, nodes: int) -> int:
    """Return the number of nodes that survive the plan; the driver's is one of them."""
    touched = {step.target.number for step in plan.steps if step.target.kind == "node"}
    return nodes - len(touched - {0})
