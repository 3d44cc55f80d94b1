"""Placement groups, drawn behind everything else but what ends actors.

The driver reserves groups of each strategy, runs tasks, arrays and actors in them, whose
children run there too, and removes each, half of them while they are in use. What it submits
after that is ``gone``. Where they are is looked at by ``reserved`` and by the invariants.

Whatever a plan does, there is room for what is asked for, or the program would rightly wait:

- all groups that are there at a time fit on one node, beside what other tasks need;
- bundles that have to be apart are no more than the nodes that no plan touches;
- an actor has a share of its bundle that no task asks for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from raytwin.chaos.faults.plan import Plan
from raytwin.chaos.fuzz.generate.kind import Kind
from raytwin.chaos.fuzz.programs.program import RETRIES, Body, Call, Group, Op, Placed, Teller

KEYS = 9_000_000
"""Keys and variables of these operations begin here."""
SLOT = "slot"
SLOTS = 4.0
"""How many of that resource a node has."""
SECONDS = (0.0, 0.0, 0.001, 0.01, 0.1)


@dataclass
class _Open:
    """A group while its program is drawn."""

    op: Group
    values: list[int] = field(default_factory=list)
    """Variables that hold one reference."""
    others: list[int] = field(default_factory=list)
    """Those of arrays."""
    actors: dict[int, Teller] = field(default_factory=dict)
    holding: set[int] = field(default_factory=set)
    """Bundles of which an actor has its share."""


class _Groups(Kind):
    def __init__(self, rng: random.Random, cpus: int, apart: int, roomy: bool) -> None:
        super().__init__(rng, KEYS, roomy=roomy)
        self.apart = apart
        self.free = {"CPU": cpus - 1.0, SLOT: SLOTS}
        self.open: list[_Open] = []

    def program(self, body: Body) -> Body:
        rng = self.rng
        ops: list[Op] = []
        rounds = self.rounds(body, 6)
        for n, op in enumerate(body.ops):
            ops.append(op)
            if n not in rounds:
                continue
            if not self.open or rng.random() < 0.25:
                ops += self.group()
            if not self.open:
                continue
            chosen = rng.choice(self.open)
            for _ in range(rng.choice([1, 2, 4])):
                ops += self.use(chosen)
            if rng.random() < 0.3:
                ops += self.remove(chosen, rng.random() < 0.7)
        for each in [*self.open]:
            ops += self.remove(each, False)
        return Body(tuple(ops), body.tasks + self.tasks)

    # -- groups ----------------------------------------------------------------

    def group(self) -> list[Op]:
        """Return what reserves one, if there is room."""
        rng = self.rng
        strategy = rng.choice(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])
        most = min(3, self.apart) if strategy == "STRICT_SPREAD" else 3
        bundles: list[dict[str, float]] = []
        for _ in range(rng.randint(1, most)):
            bundle: dict[str, float] = {SLOT: rng.choice([1.0, 1.0, 2.0])}
            if rng.random() < 0.5:
                bundle["CPU"] = rng.choice([0.5, 1.0])
            if all(amount <= self.free[name] for name, amount in bundle.items()):
                bundles.append(bundle)
                for name, amount in bundle.items():
                    self.free[name] -= amount
        if not bundles:
            return []
        amounts = tuple(tuple(bundle.items()) for bundle in bundles)
        op = Group("group", (), self.next(), bundles=amounts, strategy=strategy)
        self.open.append(_Open(op))
        return [op, Op("reserved", (op.out,))] if rng.random() < 0.5 else [op]

    def remove(self, group: _Open, in_use: bool) -> list[Op]:
        """Return its end; unless it is in use all of its values have been asked for by then."""
        rng = self.rng
        self.open.remove(group)
        for bundle in group.op.bundles:
            for name, amount in bundle:
                self.free[name] += amount
        at = group.op.out
        held = (*group.values, *group.others)
        if not in_use:
            last = [Op("get", held)] if held else []
            return [*last, Op("drop", (*held, *group.actors)), Op("remove", (at,))]
        ops: list[Op] = [Op("remove", (at,))]
        gone = []
        for _ in range(rng.choice([1, 1, 2])):
            made = self.task(group)[0]
            ops.append(made)
            gone.append(made.out)
        for actor, teller in group.actors.items():
            if rng.random() < 0.7:
                # Whether the actor is there still nobody knows.
                out = self.next()
                ops.append(Op("tell", (actor,), out, self.tell(out, teller)))
        # What was to be kept may go on being asked for.
        drop = tuple(i for i in held if rng.random() < 0.3)
        return [*ops, Op("gone", tuple(gone)), Op("drop", (*gone, *drop, *group.actors))]

    # -- what runs in them -----------------------------------------------------

    def use(self, group: _Open) -> list[Op]:
        rng = self.rng
        do = rng.choice(["task", "task", "task", "map", "actor", "tell", "tell", "get", "reserved"])
        if do == "tell" and not group.actors:
            do = "actor"
        if do == "get" and not group.values:
            do = "task"
        if do == "reserved":
            return [Op("reserved", (group.op.out,))]
        if do == "get":
            return [Op("get", (rng.choice(group.values),))]
        if do == "tell":
            at = rng.choice([*group.actors])
            teller = group.actors[at]
            out = self.next()
            group.values.append(out)
            return [Op("tell", (at,), out, self.tell(out, teller))]
        if do == "actor":
            return self.actor(group)
        if do == "map":
            made = self.task(group, rng.choice([2, 5, 8]))
            group.others.append(made[0].out)
            return made
        made = self.task(group)
        group.values.append(made[0].out)
        return made

    def actor(self, group: _Open) -> list[Op]:
        rng = self.rng
        index = rng.randrange(len(group.op.bundles))
        restarts, retries = rng.choice([(0, 0), (-1, -1), (-1, -1), (3, 2)])
        out = self.next()
        teller = Teller(out, restarts, retries, rng.choice([0, 0, 2]) if restarts else 0)
        slots = 0.0
        if dict(group.op.bundles[index])[SLOT] > 1.0 and index not in group.holding:
            group.holding.add(index)
            slots = 1.0
        group.actors[out] = teller
        demand = ((SLOT, slots),) if slots else ()
        return [
            Placed("actor", (), out, teller=teller, group=group.op.out, bundle=index, demand=demand)
        ]

    def tell(self, key: int, teller: Teller) -> Call:
        rng = self.rng
        self.tasks += 1
        nbytes = rng.choice([0, 0, 8, self.large(not teller.exact)])
        return Call(key, rng.choice(SECONDS), nbytes, rng.random() < 0.05, teller.retries)

    def task(self, group: _Open, count: int = 0) -> list[Op]:
        """Return a task in the group, or an array of so many."""
        rng = self.rng
        index = rng.randrange(len(group.op.bundles))
        bundle = dict(group.op.bundles[index])
        slots = rng.choice([0.0, 0.5, 1.0])
        cpu = rng.choice([0.0, bundle.get("CPU", 0.0)])
        out = self.next()
        self.tasks += max(1, count)
        children = self.children() if not count and rng.random() < 0.25 else None
        call = Call(
            out,
            rng.choice(SECONDS),
            rng.choice([0, 0, 8, self.large()]),
            rng.random() < 0.05,
            rng.choice(RETRIES),
            cpu,
            children,
        )
        ins: tuple[int, ...] = ()
        if not count and group.values and rng.random() < 0.3:
            ins = (rng.choice(group.values),)
        demand = ((SLOT, slots),) if slots else ()
        where = rng.choice([-1, index])
        return [
            Placed(
                "map" if count else "call", ins, out, call, count, group=group.op.out,
                bundle=where, demand=demand, captures=children is not None,
            )
        ]  # fmt: skip

    def children(self) -> Body:
        """Return tasks that need nothing of the bundle, for it may all be taken."""
        ops: list[Op] = []
        for _ in range(self.rng.choice([1, 2, 3])):
            key = self.next()
            self.tasks += 1
            call = Call(key, self.rng.choice(SECONDS), retries=self.rng.choice(RETRIES), cpus=0.0)
            ops.append(Op("call", (), key, call))
        return Body(tuple(ops))


def untouched(plan: Plan, nodes: int) -> int:
    """Return how many nodes live, whatever the plan does; the driver's is one of them."""
    touched = {step.target.number for step in plan.steps if step.target.kind == "node"}
    return nodes - len(touched - {0})


def with_groups(rng: random.Random, body: Body, cpus: int, apart: int, roomy: bool) -> Body:
    """Return the program with placement groups, on nodes with `SLOTS` and so many CPUs.

    There are always `apart` nodes. Unless it is `roomy`, a node's store may be too full for
    large values.
    """
    return _Groups(rng, cpus, apart, roomy).program(body)
