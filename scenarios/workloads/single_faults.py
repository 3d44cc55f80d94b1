"""Plans of one fault each, for a steady load on a cluster whose driver's node has no CPU.

Each hits node 1, or what is on it or leads to it, and its plan says how it ends: the node starts
again when its death has been noticed, a link heals before the failure detector gives anybody up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raytwin.chaos.faults.plan import Plan, Step
from raytwin.scenarios.workloads.chain_writes import REPLICAS

REPLICATED = "gcs_replicas"


@dataclass(frozen=True)
class Fault:
    """A fault, and how it ends; the target is node 1, or what is on it or leads to it."""

    steps: tuple[Step, ...]
    held: float = 0.0
    """When all links heal, as a multiple of the failure detector's limit; 0: none has to."""
    needs: Mapping[str, Any] = field(default_factory=dict)
    """Options of `init` without which there is no such target."""


def both_ways(action: str, **parameters: float) -> tuple[Step, ...]:
    """Return the steps of a fault on the link between the driver's node and node 1."""
    return tuple(
        Step(action, link, 0.0, parameters=parameters) for link in ("link:0>1", "link:1>0")
    )


BACK = Step("restart", "node:1", after="node_died:1")
STORAGE = "gcs_storage"
FAULTS = {
    "worker killed": Fault((Step("kill", "worker:1.0", 0.0),)),
    "actor killed": Fault((Step("kill", "actor:0", 0.0),)),
    "node killed": Fault((Step("kill", "node:1", 0.0), BACK)),
    "node silent": Fault((Step("pause", "node:1", 0.0), BACK)),
    "connections reset": Fault((Step("reset", "link:0>1", 0.0),)),
    "link cut": Fault(both_ways("cut"), held=0.25),
    "link cut one way": Fault((Step("cut", "link:0>1", 0.0),), held=0.25),
    "link stalled": Fault(both_ways("stall"), held=0.25),
    "link slow": Fault(both_ways("latency", latency_ms=50.0), held=0.5),
    "link narrow": Fault(both_ways("bandwidth", bytes_per_s=10_000.0), held=0.5),
    "GCS replica killed": Fault((Step("kill", "replica:0.1", 0.0),), needs={REPLICATED: REPLICAS}),
    "head killed": Fault((Step("kill", "head", 0.0),), needs={STORAGE: True}),
}
OF_LINKS = (
    "connections reset",
    "link cut",
    "link cut one way",
    "link stalled",
    "link slow",
    "link narrow",
)
NOTICED = tuple(fault for fault in FAULTS if fault not in OF_LINKS)
"""Faults by which something dies that the GCS logs."""


def plan(fault: str, limit_s: float) -> Plan:
    """Return the plan of one episode: the fault at once, and its end."""
    found = FAULTS[fault]
    heal = [Step("heal", "cluster", found.held * limit_s)] if found.held else []
    return Plan([*found.steps, *heal])
