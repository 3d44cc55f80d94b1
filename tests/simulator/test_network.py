"""Frames on the network, against its contract."""

from __future__ import annotations

from functools import partial
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytwin.simulator.machine.network import HANDSHAKE_BYTES, HANDSHAKE_TRIPS
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
            st.sampled_from(["slow", "fast"]),
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        max_size=12,
    ),
)
def test_frames_of_a_pair_arrive_once_and_in_order(
    frames: list[tuple[float, int, int, int]],
    faults: list[tuple[float, str, int, int]],
) -> None:
    env, network = make([0, 1, 1])
    sent: dict[tuple[int, int], list[int]] = {}
    came: dict[tuple[int, int], list[int]] = {}

    def send(number: int, src: int, dst: int, nbytes: int) -> None:
        sent.setdefault((src, dst), []).append(number)
        network.send(src, dst, nbytes, lambda: came.setdefault((src, dst), []).append(number))

    def fault(what: str, src: int, dst: int) -> None:
        network.set_latency(src, dst, 0.02 if what == "slow" else None)

    for number, (when, *frame) in enumerate(frames):
        at(env, when, lambda n=number, f=frame: send(n, *f))  # type: ignore[misc]
    for when, *rest in faults:
        at(env, when, lambda r=rest: fault(*r))  # type: ignore[misc]
    env.run()
    assert came == sent


def test_a_removed_nodes_frames_are_lost_until_it_is_added_again() -> None:
    env, network = make([0, 1, 2])
    log = Log(env)
    network.send(0, 1, 0, log.note("to it, on its way"))
    network.send(1, 0, 0, log.note("from it, on its way"))
    network.send(0, 2, 0, log.note("others"))
    env.run(until=LATENCY_S / 2)
    network.remove_node(1)
    network.send(0, 1, 0, log.note("to the dead"))
    network.send(1, 0, 0, log.note("from the dead"))
    network.add_node(1, 1)
    network.send(0, 1, 0, log.note("to the reborn"))
    env.run()
    assert log.names == ["others", "to the reborn"]


def test_a_latency_is_set_and_outlives_its_nodes() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.set_latency(0, 1, 0.5)
    network.send(0, 1, 10, log.note("slow"))
    network.send(1, 0, 10, log.note("other way"))
    env.run()
    network.remove_node(1)
    network.add_node(1, 1)
    again_s = env.now
    network.send(0, 1, 10, log.note("slow again"))
    env.run()
    network.set_latency(0, 1, None)
    fast_s = env.now
    network.send(0, 1, 10, log.note("fast"))
    env.run()
    size_s = 10 / BANDWIDTH
    assert log.times["slow"] == pytest.approx(0.5 + size_s)
    assert log.times["other way"] == pytest.approx(LATENCY_S + size_s)
    assert log.times["slow again"] - again_s == pytest.approx(0.5 + size_s)
    assert log.times["fast"] - fast_s == pytest.approx(LATENCY_S + size_s)


def test_nodes_that_are_not_there() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.send(0, 7, 1, log.note("frame"))
    network.transfer(7, 0, 1, log.result("bulk"))
    network.cancel(network.transfer(7, 0, 1, log.result("cancelled")))
    env.run()
    assert log.names == [("bulk", False)]
    with pytest.raises(ValueError, match="no node 7"):
        network.remove_node(7)
    with pytest.raises(ValueError, match="no node 7"):
        network.pause_node(7)
    with pytest.raises(ValueError, match="no node 7"):
        network.host_of(7)
    with pytest.raises(ValueError, match="already"):
        network.add_node(1, 3)


def test_a_connection_takes_three_round_trips_before_its_first_packet() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.connect(0, 1, log.note("connected"))
    env.run()
    assert log.times == {
        "connected": pytest.approx(HANDSHAKE_TRIPS * (LATENCY_S + HANDSHAKE_BYTES / BANDWIDTH))
    }


def test_a_connection_waits_for_a_blocked_link_and_not_for_a_dead_node() -> None:
    env, network = make([0, 1, 2])
    log = Log(env)
    network.block(1, 0)
    network.connect(0, 1, log.note("blocked on the way back"))
    network.connect(0, 2, log.note("dead"))
    at(env, LATENCY_S / 2, lambda: network.remove_node(2))
    env.run(until=1.0)
    assert log.entries == []
    network.unblock(1, 0)
    env.run()
    assert log.names == ["blocked on the way back"]
    assert log.times["blocked on the way back"] > 1.0 + (HANDSHAKE_TRIPS - 1) * LATENCY_S


@pytest.mark.parametrize(("streams", "beside", "part"), [
    (1, [(0, 1)], 1 / 2),
    (3, [(0, 1)], 1 / 4),
    (1, [(0, 2)], 1 / 2),  # the sender's card is full
    (1, [(2, 1)], 1 / 2),  # the receiver's is
    (1, [(0, 2), (2, 1)], 1 / 2),
    (1, [(0, 2), (0, 3), (2, 3), (0, 1)], 1 / 4),
    (1, [(1, 0), (2, 3)], 1),  # other bandwidths
    # Of the card of 2 each stream has a half, so that a half of the card of 0 is free.
    (1, [(0, 2), (3, 2)], 1 / 2),
    (3, [(0, 2), (3, 2), (1, 2)], 2 / 3),
])  # fmt: skip
def test_a_frame_beside_transfers_has_what_one_stream_more_would_have_or_what_they_leave(
    streams: int, beside: list[tuple[int, int]], part: float
) -> None:
    env, network = make([0, 1, 2, 3])
    log = Log(env)
    for pair in beside:
        network.transfer(*pair, 10**9, lambda ok: None, streams)
    at(env, 0.5, lambda: network.send(0, 1, 1000, log.note("frame")))
    at(env, 0.5, lambda: network.send_datagram(0, 1, 1000, log.note("datagram")))
    env.run(until=1.0)
    taken_s = 0.5 + LATENCY_S + 1000 / (BANDWIDTH * part)
    assert log.times == pytest.approx({"frame": taken_s, "datagram": taken_s})


def test_a_frame_on_a_limited_link_shares_it_with_transfers() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.set_bandwidth(0, 1, BANDWIDTH / 10)
    network.transfer(0, 1, 10**9, lambda ok: None)
    at(env, 0.5, lambda: network.send(0, 1, 1000, log.note("beside it")))
    env.run(until=1.0)
    assert log.times["beside it"] == pytest.approx(0.5 + LATENCY_S + 1000 / (BANDWIDTH / 20))


@pytest.mark.parametrize("way", ["frame", "datagram", "transfer"])
@pytest.mark.parametrize(("latency_s", "jitter_s"), [(0.02, 0.02), (0.02, 0.005), (0.01, 0.04)])
def test_jitter_is_uniform_around_the_latency_and_nothing_arrives_before_it_is_sent(
    way: str, latency_s: float, jitter_s: float
) -> None:
    env, network = make([0, 1])
    network.set_latency(0, 1, latency_s, jitter_s)
    taken_s: list[float] = []

    def send(begin_s: float) -> None:
        def arrived(ok: bool = True) -> None:
            taken_s.append(env.now - begin_s)

        if way == "transfer":
            network.transfer(0, 1, 0, arrived)
        else:
            (network.send if way == "frame" else network.send_datagram)(0, 1, 0, arrived)

    count = 2000
    for number in range(count):
        at(env, float(number), partial(send, float(number)))
    env.run()
    low_s, high_s = latency_s - jitter_s, latency_s + jitter_s
    assert len(taken_s) == count
    assert max(0.0, low_s) <= min(taken_s) + 1e-9 < max(taken_s) <= high_s + 1e-9
    # Uniform between both ends: a quarter is in each quarter, and what would be negative is 0.
    for quarter in (0.25, 0.5, 0.75):
        bound_s = low_s + quarter * (high_s - low_s)
        share = sum(each - 1e-9 <= bound_s for each in taken_s) / count
        assert share == pytest.approx(quarter if bound_s >= 0 else 0, abs=0.05)


def test_the_transit_of_a_frame_is_what_it_takes() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.set_bandwidth(0, 1, BANDWIDTH / 10)
    network.transfer(0, 1, 10**9, lambda ok: None)
    transits_s = []

    def send(name: str) -> None:
        transits_s.append(network.transit_s(0, 1, 1000))
        network.send(0, 1, 1000, log.note(name))

    at(env, 0.5, lambda: [send("first"), send("behind it")])
    env.run(until=1.0)
    assert log.times == pytest.approx(
        {"first": 0.5 + transits_s[0], "behind it": 0.5 + transits_s[1]}
    )
    assert transits_s[0] == pytest.approx(LATENCY_S + 1000 / (BANDWIDTH / 20))
