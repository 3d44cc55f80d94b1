"""Frames that are lost, doubled or delayed by the kind of their messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.faults.injector import attach
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.control.messages import Heartbeat, Load, NodeChanged, NodeInfo
from raytwin.simulator.machine.frame_faults import FrameFault, FrameFaults

BEAT = Heartbeat(1, 1, Load(0, 0.0, 0.0, 0, {}))
CHANGE = NodeChanged(NodeInfo(1, "host", 0, {}, True, 1))


@pytest.fixture
def session() -> Iterator[Any]:
    yield ray.init(backend="sim", nodes=3, cpus_per_node=2, heartbeat_timeout_s=0.5)
    ray.shutdown()


def test_a_fault_hits_frames_with_its_kind_of_message() -> None:
    faults = FrameFaults(0)
    faults.set(FrameFault.LOSE, "Heartbeat", 1)
    assert faults.delays_s([CHANGE, BEAT]) == []
    assert faults.delays_s([CHANGE]) == [0.0]
    faults.set(FrameFault.LOSE, "Heartbeat", 0)
    assert not faults.rules
    faults.set(FrameFault.DOUBLE, "any", 1)
    faults.set(FrameFault.DELAY, "NodeChanged", 1, 0.5)
    assert faults.delays_s([CHANGE]) == [0.5, 0.5]
    assert faults.delays_s([BEAT]) == [0.0, 0.0]


def test_the_probability_is_drawn_from_the_seed() -> None:
    def draws(seed: int) -> list[int]:
        faults = FrameFaults(seed)
        faults.set(FrameFault.LOSE, "any", 0.25)
        return [len(faults.delays_s([BEAT])) for _ in range(1000)]

    assert draws(1) == draws(1) != draws(2)
    assert 150 < draws(1).count(0) < 350


def inject(session: Any, action: str, **parameters: Any) -> None:
    injector = attach(session, Plan([Step(action, "cluster", 0, parameters=parameters)]))
    ray.sleep(0.001)
    assert [each.error for each in injector.injections] == [""]


def test_nodes_whose_heartbeats_are_lost_are_declared_dead(session: Any) -> None:
    """The driver's own is among them, and the program learns that its cluster is gone."""
    inject(session, "lose", kind="Heartbeat", probability=1)
    for _ in range(2):
        with pytest.raises(RaySystemError, match="the driver's node was declared dead"):
            ray.sleep(30)
    with pytest.raises(RaySystemError, match="the driver's node was declared dead"):
        ray.get(ray.remote(int).remote(), timeout=3)
    assert session.cluster.gcs.events.counts["node_died"] == 3


@pytest.mark.parametrize(
    ("action", "parameters"),
    [
        ("lose", {"kind": "Heartbeat", "probability": 0.3}),
        ("double", {"kind": "Heartbeat", "probability": 1}),
        ("delay", {"kind": "Heartbeat", "probability": 1, "delay_ms": 50}),
    ],
)
def test_heartbeats_may_be_lost_now_and_then_doubled_or_late(
    session: Any, action: str, parameters: dict[str, Any]
) -> None:
    inject(session, action, **parameters)
    square = ray.remote(lambda x: x * x)
    assert ray.get([square.remote(n) for n in range(100)]) == [n * n for n in range(100)]
    ray.sleep(5)
    assert [row["Alive"] for row in ray.nodes()] == [True] * 3


def test_a_delay_delays(session: Any) -> None:
    where = ray.remote(resources={"node:1": 0.01})(lambda: 1)

    def took_s() -> float:
        began_s = ray.now()
        ray.get(where.remote())
        return ray.now() - began_s

    took_s()  # its worker starts
    usual_s = took_s()
    inject(session, "delay", kind="any", probability=1, delay_ms=20)
    assert usual_s + 0.04 <= took_s() <= usual_s + 0.4
    inject(session, "delay", kind="any", probability=0, delay_ms=20)
    ray.sleep(1)
    assert took_s() == pytest.approx(usual_s, rel=0.2)
