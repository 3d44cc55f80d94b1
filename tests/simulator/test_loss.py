"""Loss on a link is delay: what is lost arrives a retransmission timeout later."""

from __future__ import annotations

import pytest

import raytwin as ray
from raytwin.chaos.faults.injector import attach
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.simulator.machine.clock import Clock
from raytwin.simulator.machine.network import RTO_MIN_S, Network, Stream
from tests.simulator.recorded_network import BANDWIDTH, LATENCY_S, Log, at, make
from tests.simulator.virtual_cluster import start

ALWAYS = 1.0
LATE_S = RTO_MIN_S + 2 * LATENCY_S


def lossy() -> tuple[Clock, Network, Log]:
    """Return a network of two nodes that loses all packets of the first one."""
    env, network = make([0, 1])
    network.set_loss(0, 1, ALWAYS)
    return env, network, Log(env)


def test_a_lost_frame_arrives_a_timeout_later_and_the_next_ones_wait_for_it() -> None:
    env, network, log = lossy()
    network.send(0, 1, 1000, log.note("lost"))
    network.send_datagram(0, 1, 1000, log.note("heartbeat"))
    network.send(1, 0, 1000, log.note("other way"))
    network.set_loss(0, 1, 0.0)
    network.send(0, 1, 1000, log.note("behind it"))
    at(env, 1.0, lambda: network.send(0, 1, 1000, log.note("later")))
    env.run()
    frame_s = LATENCY_S + 1000 / BANDWIDTH
    assert log.times == pytest.approx(
        {
            "other way": frame_s, "lost": LATE_S + frame_s, "heartbeat": LATE_S + frame_s,
            "behind it": LATE_S + frame_s, "later": 1.0 + frame_s,
        }
    )  # fmt: skip
    assert log.names.index("lost") < log.names.index("behind it")


def test_another_connection_does_not_wait_for_what_one_has_lost() -> None:
    """A node that dialed anew waited for the first packet of a connection that was long closed."""
    env, network, log = lossy()
    network.send(0, 1, 1000, log.note("lost"), Stream())
    network.set_loss(0, 1, 0.0)
    network.send(0, 1, 1000, log.note("of another"), Stream())
    network.connect(0, 1, log.note("connected"))
    env.run()
    assert log.times["of another"] == pytest.approx(LATENCY_S + 1000 / BANDWIDTH)
    assert log.times["connected"] < RTO_MIN_S < log.times["lost"]


def test_the_timeout_has_the_round_trip_of_the_link() -> None:
    env, network, log = lossy()
    network.set_latency(0, 1, 0.05)
    network.set_latency(1, 0, 0.03)
    network.send(0, 1, 0, log.note("lost"))
    env.run()
    assert log.times["lost"] == pytest.approx(0.05 + RTO_MIN_S + 0.08)


def test_the_end_of_a_transfer_may_be_lost() -> None:
    env, network, log = lossy()
    network.transfer(0, 1, 500_000, log.result("long"))
    network.transfer(0, 1, 0, log.result("empty"))
    at(env, 1.0, lambda: network.heal(0, 1))
    at(env, 1.0, lambda: network.transfer(0, 1, 500_000, log.result("healed")))
    env.run()
    assert log.times["long", True] == pytest.approx(0.5 + LATENCY_S + LATE_S)
    assert log.times["empty", True] == pytest.approx(LATENCY_S + LATE_S)
    assert log.times["healed", True] == pytest.approx(1.5 + LATENCY_S)


def late(seed: int, probability: float, frames: int) -> list[int]:
    """Return which of several frames, one a second, arrive late."""
    env = Clock()
    network = Network(env, LATENCY_S, BANDWIDTH, 0.0, BANDWIDTH, seed)
    for node in (0, 1):
        network.add_node(node, node)
    network.set_loss(0, 1, probability)
    log = Log(env)
    for number in range(frames):
        at(env, number, lambda n=number: network.send(0, 1, 0, log.note(n)))  # type: ignore[misc]
    env.run()
    assert log.names == list(range(frames))
    return [number for number, when in log.entries if when - number > RTO_MIN_S]


def test_loss_is_drawn_from_the_seed() -> None:
    assert late(1, 0.1, 5000) == late(1, 0.1, 5000) != late(2, 0.1, 5000)
    assert len(late(1, 0.1, 5000)) == pytest.approx(500, abs=5 * (5000 * 0.1 * 0.9) ** 0.5)


def times_under_loss(seed: int) -> list[float]:
    # Six packets open a connection, and each that is lost takes 0.2 s: within a limit of 1 s not
    # every pair of nodes would get to know each other.
    session = start(nodes=3, cpus_per_node=1, heartbeat_timeout_s=4.0, seed=seed)
    links = ("link:0>1", "link:1>0", "link:1>head", "link:head>1", "link:0>2")
    plan = Plan([Step("loss", link, 0, parameters={"probability": 0.3}) for link in links])
    injector = attach(session, plan)
    double = ray.remote(resources={"node:1": 0.01})(lambda number: 2 * number)
    times = []
    for number in range(20):
        assert ray.get([double.remote(i) for i in range(number)]) == list(range(0, 2 * number, 2))
        times.append(ray.now())
    ray.sleep(5)
    assert [each.error for each in injector.injections] == [""] * 5
    assert all(row["Alive"] for row in ray.nodes()), "heartbeats are late, and not lost"
    injector.stop()
    ray.shutdown()
    return times


def test_one_seed_is_one_execution_under_loss() -> None:
    first, second, other = map(times_under_loss, (1, 1, 2))
    assert first == second != other
    assert first[-1] > RTO_MIN_S
