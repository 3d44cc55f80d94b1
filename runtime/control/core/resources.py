"""Resources of a node and the demands of tasks, in exact arithmetic.

Quantities are fixed-point (1/10,000 of a unit), so that taking and giving back
0.1 CPU ten thousand times leaves exactly what was there. A demand travels as a
canonical string, ``"CPU:1,GPU:0.5"``, which is cheap to compare and to hash:
schedulers queue by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite

UNIT = 10_000

Amounts = dict[str, int]


def format_demand(resources: Mapping[str, float]) -> str:
    """Return the canonical string of a demand; zero amounts vanish.

    Raises ValueError for a negative amount or one finer than 1/10,000, and for
    a name with ``,`` in it or that is empty.
    """
    parts = []
    for name, amount in sorted(resources.items()):
        units = round(amount * UNIT) if isfinite(amount) else -1
        if units < 0 or amount < 0 or (units == 0 and amount != 0):
            raise ValueError(f"a demand of {amount} {name} is not a multiple of 1/{UNIT}")
        if not name or "," in name:
            raise ValueError(f"{name!r} cannot be a resource's name")
        if units:
            parts.append(f"{name}:{_format(units)}")
    return ",".join(parts)


def _format(units: int) -> str:
    """Return an amount in plain digits, all of them."""
    whole, rest = divmod(units, UNIT)
    return f"{whole}.{rest:04}".rstrip("0") if rest else str(whole)


@lru_cache(maxsize=65_536)
def parse_demand(demand: str) -> tuple[tuple[str, int], ...]:
    """Return ((name, units), ...) of a canonical string.

    Raises ValueError for a string that `format_demand` cannot have made.
    """
    if not demand:
        return ()
    parsed = []
    for part in demand.split(","):
        # From the right: names such as "node:3" have a colon of their own.
        name, colon, amount = part.rpartition(":")
        if not colon or not name:
            raise ValueError(f"{demand!r} is not a demand")
        parsed.append((name, round(float(amount) * UNIT)))
        if parsed[-1][1] <= 0:
            raise ValueError(f"{demand!r} is not a demand")
    return tuple(parsed)


def times_in(amounts: Mapping[str, float], demand: str, most: int) -> int:
    """Return how many such demands these amounts meet at once, up to `most`."""
    times = most
    for name, units in parse_demand(demand):
        times = min(times, round(amounts.get(name, 0.0) * UNIT) // units)
    return times


def _covers(amounts: Mapping[str, int], demand: str) -> bool:
    """Whether these amounts meet a demand."""
    for name, units in parse_demand(demand):  # noqa: SIM110, a generator takes twice as long
        if amounts.get(name, 0) < units:
            return False
    return True


class ResourcePool:
    """The resources of a node: in total, free, and reserved.

    A task returns its resources when it ends. An actor keeps those that it has, or waits for, as
    long as it lives: they are reserved, and no other demand can count on them.
    """

    def __init__(self, resources: Mapping[str, float]) -> None:
        self.total: Amounts = {name: round(amount * UNIT) for name, amount in resources.items()}
        self.free: Amounts = dict(self.total)
        self.reserved: Amounts = {}
        """By name: units that are reserved, maybe more than the total. An actor that still waits
        has not taken its own yet, so reserved units may be free."""
        self._slots: dict[str, int] = {}

    def feasible(self, demand: str) -> bool:
        """Whether the demand could ever be met here."""
        return _covers(self.total, demand)

    def fits(self, demand: str) -> bool:
        """Whether the demand can be met now."""
        return _covers(self.free, demand)

    def usable(self, demand: str) -> bool:
        """Whether the node could meet the demand once tasks end, not counting reserved
        resources."""
        total, reserved = self.total, self.reserved
        return all(
            total.get(name, 0) - reserved.get(name, 0) >= units
            for name, units in parse_demand(demand)
        )

    def slots(self, demand: str) -> int:
        """Return how many such demands the node could meet at once, not counting reserved
        resources.

        A demand of nothing counts as one that needs a CPU, for estimates.
        """
        slots = self._slots.get(demand)
        if slots is None:
            total, reserved = self.total, self.reserved
            parsed = parse_demand(demand)
            if parsed:
                least = min((total.get(n, 0) - reserved.get(n, 0)) // units for n, units in parsed)
                slots = max(0, least)
            else:
                slots = total.get("CPU", 0) // UNIT
            self._slots[demand] = slots
        return slots

    def reserve(self, demand: str) -> None:
        """Reserve a demand for an actor, whether it is free yet or not."""
        self._slots.clear()
        for name, units in parse_demand(demand):
            self.reserved[name] = self.reserved.get(name, 0) + units

    def set_reserved(self, reserved: Mapping[str, int]) -> None:
        """Replace all reservations."""
        if reserved != self.reserved:
            self._slots.clear()
            self.reserved = dict(reserved)

    def unreserve(self, demand: str) -> None:
        """End the reservation of a demand."""
        self._slots.clear()
        for name, units in parse_demand(demand):
            self.reserved[name] -= units
            if not self.reserved[name]:
                del self.reserved[name]

    def room(self, demand: str, most: int) -> int:
        """Return how many more such demands can be met now, up to `most`."""
        free = [self.free.get(name, 0) // units for name, units in parse_demand(demand)]
        return min([most, *free])

    def take(self, demand: str) -> None:
        """Take a demand, which must fit (see `fits`)."""
        for name, units in parse_demand(demand):
            left = self.free[name] - units
            assert left >= 0, f"{name} would be oversubscribed"
            self.free[name] = left

    def add(self, resources: Mapping[str, float]) -> None:
        """Add resources to the total of the node, as free."""
        self._slots.clear()
        for name, amount in resources.items():
            units = round(amount * UNIT)
            self.total[name] = self.total.get(name, 0) + units
            self.free[name] = self.free.get(name, 0) + units

    def remove(self, resources: Mapping[str, float]) -> None:
        """Remove resources that were added, and are free."""
        self._slots.clear()
        for name, amount in resources.items():
            units = round(amount * UNIT)
            assert self.free[name] >= units, f"{name} is in use"
            self.total[name] -= units
            self.free[name] -= units
            if not self.total[name]:
                del self.total[name], self.free[name]

    def lend_to_group(self, demand: str) -> None:
        """Lend a taken demand to a placement group: no other task can count on it."""
        self._slots.clear()
        for name, units in parse_demand(demand):
            self.total[name] -= units

    def end_group_loan(self, demand: str) -> None:
        """End the loan of a demand to a placement group, which is then a taken demand again."""
        self._slots.clear()
        for name, units in parse_demand(demand):
            self.total[name] += units

    def is_free(self, resources: Mapping[str, float]) -> bool:
        """Whether so much of all of these is free."""
        return all(
            self.free.get(name, 0) >= round(amount * UNIT) for name, amount in resources.items()
        )

    def retake(self, demand: str) -> None:
        """Take again, for a task that goes on, the resources that it gave back while it was
        blocked.

        Another task may use it by now: then the free amount is negative until one of them ends.
        """
        for name, units in parse_demand(demand):
            self.free[name] -= units

    def is_over(self, demand: str) -> bool:
        """Whether any resource that the demand names is oversubscribed, as after `retake`."""
        return any(self.free.get(name, 0) < 0 for name, _ in parse_demand(demand))

    def give(self, demand: str) -> None:
        """Return the resources of a demand, as free."""
        for name, units in parse_demand(demand):
            back = self.free[name] + units
            assert back <= self.total[name], f"more {name} given back than taken"
            self.free[name] = back

    def available(self) -> dict[str, float]:
        """Return the free amounts."""
        return {name: units / UNIT if units > 0 else 0.0 for name, units in self.free.items()}


Units = tuple[tuple[int, int], ...]
"""(number of a GPU, how much of it in 1/10,000), ..."""


class NumberedPool(ResourcePool):
    """The resources of a node, whose GPUs are numbered.

    A program must know which GPU it may use, so a lease of GPUs is one of units: whole ones, and
    of one more the rest. A fraction goes to the unit with the least left that has room for it, so
    that whole units stay whole. A demand fits only if there are such units: two halves free on two
    GPUs are no whole one. Bundles of placement groups take units from the node, and tasks in a
    group take them from its bundles, under the group's names for them.
    """

    def __init__(self, resources: Mapping[str, float]) -> None:
        super().__init__(resources)
        whole, rest = divmod(self.total.get("GPU", 0), UNIT)
        units = dict.fromkeys(range(whole), UNIT)
        if rest:
            units[whole] = rest
        self._units: dict[str, dict[int, int]] = {"GPU": units}
        """By name of a resource: how much of each unit is free."""

    def fits(self, demand: str) -> bool:
        if not _covers(self.free, demand):
            return False
        return "GPU" not in demand or self._choose(demand) is not None

    def lease(self, demand: str) -> Units:
        """Take a demand, which must fit; return its units."""
        chosen = self._choose(demand) if "GPU" in demand else ()
        assert chosen is not None, "it does not fit"
        self.take(demand)
        if chosen:
            self._move(demand, chosen, -1)
        return chosen

    def end_lease(self, demand: str, units: Units) -> None:
        """Return the resources of a demand with its units."""
        self.give(demand)
        if units:
            self._move(demand, units, 1)

    def add_bundle(self, resources: Mapping[str, float], units: Units) -> None:
        """Add the named resources of a bundle that has taken these units."""
        self.add(resources)
        for name in filter(_is_gpu, resources):
            there = self._units.setdefault(name, {})
            for number, amount in units:
                there[number] = there.get(number, 0) + amount

    def remove_bundle(self, resources: Mapping[str, float], units: Units) -> None:
        """Remove the named resources of a bundle, which are free."""
        self.remove(resources)
        for name in filter(_is_gpu, resources):
            for number, amount in units:
                self._units[name][number] -= amount
            if name not in self.total:
                del self._units[name]  # the node has no other bundle of the group

    def _move(self, demand: str, units: Units, sign: int) -> None:
        for name, _ in parse_demand(demand):
            if _is_gpu(name):
                for number, amount in units:
                    self._units[name][number] += sign * amount

    def _choose(self, demand: str) -> Units | None:
        """Return free units for a demand, none if it asks for no GPU; None if there are not."""
        wanted = [(self._units[name], amount) for name, amount in parse_demand(demand)
                  if _is_gpu(name)]  # fmt: skip
        if not wanted:
            return ()
        # In a group a demand names the units of its bundle and, as the same, those of the group.
        (first, amount), *others = wanted
        free = {n: min([left, *(o.get(n, 0) for o, _ in others)]) for n, left in first.items()}
        whole, rest = divmod(amount, UNIT)
        chosen = [(number, UNIT) for number, left in sorted(free.items()) if left == UNIT][:whole]
        if len(chosen) < whole:
            return None
        if rest:
            taken = {number for number, _ in chosen}
            room = [(left, n) for n, left in free.items() if left >= rest and n not in taken]
            if not room:
                return None
            chosen.append((min(room)[1], rest))
        return tuple(chosen)


def _is_gpu(name: str) -> bool:
    """Whether a resource is GPUs: a node's own, or those that a placement group has there."""
    return name == "GPU" or name.startswith("GPU_group_")


def is_cpu(name: str) -> bool:
    """Whether a resource is CPUs: a node's own, or those that a placement group has there."""
    return name == "CPU" or name.startswith("CPU_group_")


@lru_cache(maxsize=65_536)
def cpu_part(demand: str) -> str:
    """Return the part of a demand that a blocked task gives up: its CPUs."""
    parts = []
    for part in demand.split(","):
        if is_cpu(part.rpartition(":")[0]):
            parts.append(part)
    return ",".join(parts)
