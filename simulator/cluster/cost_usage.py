"""What the processes of a simulated cluster do that costs something, counted.

`count` has a cluster count, from then on, by role. A profile's figures times these
amounts is the CPU time of the role (`busy_s`), which is linear in them: so figures can
be found from CPU times that were measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from raytwin.simulator.cluster.simulated_cluster import SimCluster
from raytwin.simulator.machine.costs import ROLES, CostModel, Profile, size_of


@dataclass
class Usage:
    """Amounts, of one role."""

    turns: float = 0.0
    frames: float = 0.0
    """Sent, as a part of a turn or by a call."""
    received: dict[str, float] = field(default_factory=dict)
    """Ranges received, by the type of message."""
    sent: dict[str, float] = field(default_factory=dict)
    """Ranges sent, likewise."""
    elements: float = 0.0
    """Received and sent."""
    runs: float = 0.0
    """Ranges that workers ran."""
    tasks: float = 0.0
    calls: dict[str, float] = field(default_factory=dict)

    def minus(self, before: Usage, share: float = 1.0) -> Usage:
        """Return what has come since `before`, times `share`."""
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
    """As `CostModel`, and counts what it is asked for."""

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
    """Count from now on what the processes of `cluster` do; return the amounts, by role.

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
