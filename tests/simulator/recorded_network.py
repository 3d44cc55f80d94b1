"""A network of hosts to test, and what came over it when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raytwin.simulator.machine.clock import Call, Clock
from raytwin.simulator.machine.network import Network, Racks

LATENCY_S = 0.001
BANDWIDTH = 1e6
LOOPBACK_LATENCY_S = 0.0001
LOOPBACK_BANDWIDTH = 1e7


def make(
    hosts: list[int], latency_s: float = LATENCY_S, racks: Racks | None = None
) -> tuple[Clock, Network]:
    """Return a network whose node n is on `hosts[n]`."""
    env = Clock()
    network = Network(
        env, latency_s, BANDWIDTH, LOOPBACK_LATENCY_S, LOOPBACK_BANDWIDTH, racks=racks
    )
    for node, host in enumerate(hosts):
        network.add_node(node, host)
    return env, network


def at(env: Clock, when: float, call: Callable[[], Any]) -> None:
    """Have `call()` called at time `when`."""
    env.schedule_at(Call(call), when)


class Log:
    """What came, and when, in order."""

    def __init__(self, env: Clock) -> None:
        self.env = env
        self.entries: list[tuple[Any, Any]] = []

    def note(self, name: object) -> Callable[[], None]:
        return lambda: self.entries.append((name, self.env.now))

    def result(self, name: object) -> Callable[[bool], None]:
        return lambda ok: self.entries.append(((name, ok), self.env.now))

    @property
    def names(self) -> list[Any]:
        return [name for name, _ in self.entries]

    @property
    def times(self) -> dict[Any, Any]:
        return dict(self.entries)
