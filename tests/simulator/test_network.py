"""Frames on the network, against its contract."""

from __future__ import annotations

import random
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytwin.simulator.machine.network import Network
from tests.simulator.recorded_network import (
    BANDWIDTH,
    LATENCY_S,
    LOOPBACK_BANDWIDTH,
    LOOPBACK_LATENCY_S,
    Log,
    at,
    make,
)


def test_a_frame_is_one_event_and_takes_latency_and_size() -> None:
    env, network = make([0, 1, 1])
    log = Log(env)
    network.send(0, 1, 1000, log.note("network"))
    network.send(1, 2, 1000, log.note("loopback"))
    network.send(2, 2, 0, log.note("itself"))
    events = 0
    while env.peek() < inf:
        env.step()
        events += 1
    assert events == 3
    assert log.times == {
        "network": pytest.approx(LATENCY_S + 1000 / BANDWIDTH),
        "loopback": pytest.approx(LOOPBACK_LATENCY_S + 1000 / LOOPBACK_BANDWIDTH),
        "itself": LOOPBACK_LATENCY_S,
    }


def test_a_small_frame_does_not_overtake_a_large_one() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.send(0, 1, 100_000, log.note("large"))
    network.send(0, 1, 1, log.note("small"))
    network.send(1, 0, 1, log.note("other way"))
    env.run()
    assert log.names == ["other way", "large", "small"]


@settings(deadline=None)
@given(
    frames=st.lists(
        st.tuples(st.floats(0, 0.01), st.integers(0, 2), st.integers(0, 2), st.integers(0, 3000)),
        max_size=40,
    ),
    faults=st.lists(
        st.tuples(
            st.floats(0, 0.01),
            st.sampled_from(["cut", "heal", "slow", "fast"]),
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        max_size=12,
    ),
    seed=st.integers(0, 1000),
)
def test_frames_of_a_pair_arrive_once_and_in_order(
    frames: list[tuple[float, int, int, int]],
    faults: list[tuple[float, str, int, int]],
    seed: int,
) -> None:
    env, network = make([0, 1, 1], jitter_s=0.005, seed=seed)
    sent: dict[tuple[int, int], list[int]] = {}
    came: dict[tuple[int, int], list[int]] = {}

    def send(number: int, src: int, dst: int, nbytes: int) -> None:
        sent.setdefault((src, dst), []).append(number)
        network.send(src, dst, nbytes, lambda: came.setdefault((src, dst), []).append(number))

    def fault(what: str, src: int, dst: int) -> None:
        if what == "slow":
            network.set_link(src, dst, latency_s=0.02, bandwidth=BANDWIDTH / 10)
        elif what == "fast":
            network.set_link(src, dst)
        else:
            getattr(network, what)(src, dst)

    for number, (when, *frame) in enumerate(frames):
        at(env, when, lambda n=number, f=frame: send(n, *f))  # type: ignore[misc]
    for when, *rest in faults:
        at(env, when, lambda r=rest: fault(*r))  # type: ignore[misc]
    for src in range(3):
        for dst in range(3):
            at(env, 1.0, lambda s=src, d=dst: network.heal(s, d))  # type: ignore[misc]
    env.run()
    assert came == sent


def test_jitter_is_bounded_and_there() -> None:
    env, network = make([0, 1], jitter_s=0.5)
    log = Log(env)
    for number in range(50):
        at(env, number * 10.0, lambda n=number: network.send(0, 1, 0, log.note(n)))  # type: ignore[misc]
    env.run()
    delays = [when - 10.0 * number for number, (_, when) in enumerate(log.entries)]
    assert all(LATENCY_S <= delay <= LATENCY_S + 0.5 + 1e-9 for delay in delays)
    assert max(delays) - min(delays) > 0.25


def test_a_cut_holds_frames_back_even_those_on_their_way() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.send(0, 1, 0, log.note("on its way"))
    at(env, LATENCY_S / 2, lambda: network.cut(0, 1))
    at(env, 1.0, lambda: network.send(0, 1, 0, log.note("during")))
    at(env, 1.0, lambda: network.send(1, 0, 0, log.note("other way")))
    at(env, 2.0, lambda: network.heal(0, 1))
    at(env, 2.0 + LATENCY_S / 2, lambda: network.send(0, 1, 0, log.note("after")))
    env.run()
    assert log.names == ["other way", "on its way", "during", "after"]
    assert log.times["other way"] == pytest.approx(1.0 + LATENCY_S)
    assert log.times["on its way"] == log.times["during"] == pytest.approx(2.0 + LATENCY_S)


def test_a_delivery_may_cut_the_link_again() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.cut(0, 1)
    network.send(0, 1, 0, lambda: network.cut(0, 1))
    network.send(0, 1, 0, log.note("second"))
    at(env, 1.0, lambda: network.heal(0, 1))
    at(env, 5.0, lambda: network.heal(0, 1))
    env.run()
    assert log.entries == [("second", pytest.approx(5.0 + LATENCY_S))]


def test_a_removed_nodes_frames_are_lost_until_it_is_added_again() -> None:
    env, network = make([0, 1, 2])
    log = Log(env)
    network.cut(1, 2)
    network.send(0, 1, 0, log.note("to it, on its way"))
    network.send(1, 0, 0, log.note("from it, on its way"))
    network.send(1, 2, 0, log.note("held"))
    network.send(0, 2, 0, log.note("others"))
    env.run(until=LATENCY_S / 2)
    network.remove_node(1)
    network.send(0, 1, 0, log.note("to the dead"))
    network.send(1, 0, 0, log.note("from the dead"))
    network.heal(1, 2)
    network.add_node(1, 1)
    network.send(0, 1, 0, log.note("to the reborn"))
    env.run()
    assert log.names == ["others", "to the reborn"]


def test_a_cut_outlives_its_nodes() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.cut(0, 1)
    network.remove_node(1)
    network.add_node(1, 1)
    network.send(0, 1, 0, log.note("frame"))
    network.transfer(0, 1, 10, log.result("bulk"))
    env.run()
    assert log.entries == []
    network.heal(0, 1)
    env.run()
    assert log.names == ["frame", ("bulk", True)]


def test_a_link_override_and_its_end() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.set_link(0, 1, latency_s=0.5, bandwidth=100.0)
    network.send(0, 1, 10, log.note("slow"))
    network.send(1, 0, 10, log.note("other way"))
    env.run()
    network.set_link(0, 1)
    start = env.now
    network.send(0, 1, 10, log.note("fast"))
    env.run()
    assert log.times["slow"] == pytest.approx(0.6)
    assert log.times["other way"] == pytest.approx(LATENCY_S + 10 / BANDWIDTH)
    assert log.times["fast"] - start == pytest.approx(LATENCY_S + 10 / BANDWIDTH)


def test_an_override_above_the_card_has_no_effect() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.set_link(0, 1, bandwidth=10 * BANDWIDTH)
    network.send(0, 1, 1000, log.note("frame"))
    network.transfer(0, 1, 500_000, log.result("bulk"))
    env.run()
    assert log.times["frame"] == pytest.approx(LATENCY_S + 1000 / BANDWIDTH)
    assert log.times["bulk", True] == pytest.approx(0.5 + LATENCY_S)


def test_bad_arguments_are_refused() -> None:
    env, network = make([0, 1])
    with pytest.raises(ValueError, match="no node 7"):
        network.send(0, 7, 1, lambda: None)
    with pytest.raises(ValueError, match="no node 7"):
        network.transfer(7, 0, 1, lambda ok: None)
    with pytest.raises(ValueError, match="no node 7"):
        network.cut(0, 7)
    with pytest.raises(ValueError, match="no node 7"):
        network.remove_node(7)
    with pytest.raises(ValueError, match="no node 7"):
        network.host_of(7)
    with pytest.raises(ValueError, match="already"):
        network.add_node(1, 3)
    with pytest.raises(ValueError, match="-1 bytes"):
        network.send(0, 1, -1, lambda: None)
    with pytest.raises(ValueError, match="-1 bytes"):
        network.transfer(0, 1, -1, lambda ok: None)
    with pytest.raises(ValueError, match="bandwidth"):
        network.set_link(0, 1, bandwidth=0.0)
    with pytest.raises(ValueError, match="latency_s"):
        network.set_link(0, 1, latency_s=-1.0)
    with pytest.raises(ValueError, match="loopback_bandwidth"):
        Network(env, 0.0, 1.0, 0.0, 0.0, random.Random(1))
