"""How often the processes of a simulated cluster do each thing that costs CPU time.

`count` makes a cluster count, from then on, by role. The CPU time of a role (`busy_s`) is
the sum of these amounts times the profile's figures. It is linear in the figures, so
`raytwin calibrate` can solve for them from measured CPU times.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from raytwin.simulator.cluster.simulated_cluster import SimCluster
from raytwin.simulator.machine.costs import ROLES, CostModel, Profile, size_of


@dataclass
class Usage:
    """The amounts of one role."""

    turns: float = 0.0
    frames: float = 0.0
    """Frames sent, by a turn or by a call."""
    received: dict[str, float] = field(default_factory=dict)
    """Ranges received, by the type of message."""
    sent: dict[str, float] = field(default_factory=dict)
    """Ranges sent, likewise."""
    elements: float = 0.0
    """Elements received and sent."""
    runs: float = 0.0
    """Ranges that workers ran."""
    tasks: float = 0.0
    calls: dict[str, float] = field(default_factory=dict)

    def minus(self, before: Usage, share: float = 1.0) -> Usage:
        """Return the difference from `before`, times `share`."""
        found = Usage()
        for each in fields(Usage):
            now, then = getattr(self, each.name), getattr(before, each.name)
            if isinstance(now, dict):
                value: Any = {key: share * (now[key] - then.get(key, 0.0)) for key in now}
            else:
                value = share * (now - then)
            setattr(found, each.name, value)
        return found


class _CountedCosts(CostModel):
    """A `CostModel` that counts the costs it is asked for."""

    def __init__(self, role: str, profile: Profile, usage: Usage) -> None:
        super().__init__(getattr(profile, role), profile)
        self._usage = usage

    def turn(self) -> float:
        self._usage.turns += 1
        return super().turn()

    def received(self, messages: list[Any]) -> float:
        for message in messages:
            self._count(self._usage.received, message)
        return super().received(messages)

    def sent(self, messages: list[Any]) -> tuple[float, int]:
        self._usage.frames += 1
        for message in messages:
            self._count(self._usage.sent, message)
        return super().sent(messages)

    def called(self, what: str, count: int) -> float:
        calls = self._usage.calls
        calls[what] = calls.get(what, 0.0) + count
        return super().called(what, count)

    def ran(self, count: int) -> float:
        self._usage.runs += 1
        self._usage.tasks += count
        return super().ran(count)

    def _count(self, ranges_of: dict[str, float], message: Any) -> None:
        ranges, elements, _ = size_of(message)
        name = type(message).__name__
        ranges_of[name] = ranges_of.get(name, 0.0) + ranges
        self._usage.elements += elements


def count(cluster: SimCluster) -> dict[str, Usage]:
    """Count from now on the costs of `cluster`'s processes; return the amounts, by role.

    Replicas of the GCS are not counted.
    """
    usage = {role: Usage() for role in ROLES}
    for role, amounts in usage.items():
        uncounted = cluster.costs[role]
        counted = cluster.costs[role] = _CountedCosts(role, cluster.profile, amounts)
        for process in cluster.processes.values():
            if process.costs is uncounted:
                process.costs = counted
    return usage
