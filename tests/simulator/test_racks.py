"""Hosts in racks: transfers between racks share oversubscribed uplinks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raytwin as ray
from raytwin.simulator.cluster.cluster_usage import UsageMeter
from raytwin.simulator.machine.network import Racks
from tests.simulator.recorded_network import BANDWIDTH, LATENCY_S, LOOPBACK_BANDWIDTH, Log, make
from tests.simulator.virtual_cluster import BANDWIDTH as CARD
from tests.simulator.virtual_cluster import elapsed_s, start


def rates(racks: Racks | None, hosts: list[int], pairs: list[tuple[int, int]]) -> list[float]:
    """Return the rates of endless transfers that all begin at once."""
    env, network = make(hosts, racks=racks)
    transfers = [network.transfer(*pair, 10**12, lambda ok: None) for pair in pairs]
    env.run(until=0.1)
    return [transfer.rate for transfer in transfers]


def test_transfers_between_racks_share_both_uplinks() -> None:
    racks, hosts = Racks(2, oversubscription=4.0), [0, 1, 2, 3, 4]
    half = BANDWIDTH / 2  # of an uplink: 2 hosts' bandwidth over 4
    assert rates(racks, hosts, [(0, 2)]) == [half]
    assert rates(racks, hosts, [(0, 2), (1, 4)]) == [half / 2] * 2, "one rack's uplink, up"
    assert rates(racks, hosts, [(0, 2), (4, 3)]) == [half / 2] * 2, "one rack's uplink, down"
    assert rates(racks, hosts, [(0, 2), (2, 0)]) == [half] * 2, "an uplink is full-duplex"
    # Transfers within a rack take the part of a card that transfers over the uplink leave.
    assert rates(racks, hosts, [(0, 2), (0, 1)]) == [half] * 2
    assert rates(racks, hosts, [(0, 2), (1, 3), (0, 1)]) == [half / 2, half / 2, 3 * half / 2]


def test_a_transfer_between_racks_takes_its_size_over_the_uplink() -> None:
    env, network = make([0, 1], racks=Racks(1, oversubscription=5.0))
    log = Log(env)
    network.transfer(0, 1, 500_000, log.result("between"))
    env.step()  # the rate is set at the end of the instant
    network.send(0, 1, 1000, log.note("frame"))
    env.run()
    assert log.times["between", True] == pytest.approx(2.5 + LATENCY_S)
    # The transfer has all of the uplink, of which the frame gets one of two equal parts.
    assert log.times["frame"] == pytest.approx(LATENCY_S + 1000 / (BANDWIDTH / 5 / 2))


def test_a_frame_between_racks_takes_its_size_over_the_uplink() -> None:
    env, network = make([0, 1], racks=Racks(1, oversubscription=5.0))
    log = Log(env)
    network.send(0, 1, 1000, log.note("frame"))
    env.run()
    assert log.times["frame"] == pytest.approx(LATENCY_S + 1000 / (BANDWIDTH / 5))


scenes = st.lists(st.integers(0, 6), min_size=2, max_size=8).flatmap(
    lambda hosts: st.tuples(
        st.just(hosts),
        st.lists(st.tuples(*[st.integers(0, len(hosts) - 1)] * 2), min_size=1, max_size=20),
    )
)


@settings(deadline=None, max_examples=200)
@given(scenes, st.integers(1, 4), st.sampled_from([1.0, 1.5, 4.0]))
def test_rates_are_max_min_fair_with_racks(
    scene: tuple[list[int], list[tuple[int, int]]], size: int, ratio: float
) -> None:
    """They are if no bandwidth is exceeded, and each transfer has a bottleneck: a bandwidth that is
    used up, and where no transfer is faster."""
    hosts, pairs = scene
    found = rates(Racks(size, ratio), hosts, pairs)
    uses: dict[Any, list[int]] = {}
    for number, (source, destination) in enumerate((hosts[a], hosts[b]) for a, b in pairs):
        shared = [("out", source), ("in", destination)]
        if source == destination:
            shared = [("inside", source)]
        elif source // size != destination // size:
            shared += [("up", source // size), ("down", destination // size)]
        for share in shared:
            uses.setdefault(share, []).append(number)
    limits = {"out": BANDWIDTH, "in": BANDWIDTH, "inside": LOOPBACK_BANDWIDTH}
    bottlenecked = set()
    for share, users in uses.items():
        limit = limits.get(share[0], size * BANDWIDTH / ratio)
        total = sum(found[number] for number in users)
        assert total <= limit * (1 + 1e-9)
        if total >= limit * (1 - 1e-9):
            most = max(found[number] for number in users)
            bottlenecked |= {n for n in users if found[n] >= most * (1 - 1e-9)}
    assert bottlenecked == set(range(len(pairs)))


@settings(deadline=None, max_examples=50)
@given(scenes, st.integers(1, 4))
def test_racks_without_oversubscription_change_nothing(
    scene: tuple[list[int], list[tuple[int, int]]], size: int
) -> None:
    assert rates(Racks(size), *scene) == pytest.approx(rates(None, *scene))


@pytest.mark.parametrize(("racked", "times"), [({}, 1), ({"hosts_per_rack": 1}, 1),
    ({"hosts_per_rack": 1, "oversubscription": 4}, 4),
    ({"hosts_per_rack": 2, "oversubscription": 4}, 1),
])  # fmt: skip
def test_a_value_from_another_rack_takes_the_uplinks_time(
    free: str, racked: dict[str, Any], times: int
) -> None:
    session = start(nodes=2, profile=free, **racked)
    meter = UsageMeter(session.cluster)
    make_bytes = ray.remote(resources={"node:1": 0.01})(lambda size: b"x" * size)
    ray.get(make_bytes.remote(200_000))  # the connection is open from here on
    made = make_bytes.remote(100_000_000)
    ray.wait([made], fetch_local=False)
    taken_s = elapsed_s(lambda: ray.get(made))
    assert taken_s == pytest.approx(times * 100_000_000 / CARD, rel=0.05)
    shares = meter.usage().shares
    if racked:
        crossed = racked == {"hosts_per_rack": 1} or times > 1
        assert shares["uplink"] == pytest.approx(times * shares["network"] * crossed, rel=0.01)
    assert ("uplink" in shares) == bool(racked)


def test_a_node_that_joins_fills_the_racks(free: str) -> None:
    session = start(nodes=3, profile=free, hosts_per_rack=2, oversubscription=4)
    added = session.cluster.add_node({"CPU": 1})
    ray.sleep(0.1)  # its process has started
    network = session.cluster.network
    lone, inside = (network.transfer(n, added, 10**12, lambda ok: None) for n in (0, 2))
    ray.sleep(0.1)
    assert (lone.rate, inside.rate) == pytest.approx((CARD / 2, CARD / 2))
    assert lone.link.racks == (0, 1) and inside.link.racks is None


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"oversubscription": 4}, ValueError,
         "oversubscription is that of racks: give hosts_per_rack with it"),
        ({"hosts_per_rack": 0}, ValueError, "hosts_per_rack is 1 or more, not 0"),
        ({"hosts_per_rack": 1.5}, TypeError, "hosts_per_rack is an integer, not 1.5"),
        ({"hosts_per_rack": 2, "oversubscription": 0.5}, ValueError,
         "oversubscription is 1 or more, not 0.5"),
        ({"hosts_per_rack": 2, "oversubscription": "4"}, TypeError,
         "oversubscription is a number, not '4'"),
        ({"hosts_per_rack": 2, "oversubscription": float("inf")}, ValueError,
         "oversubscription is a finite number, not inf"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_racks_are_one_clear_error(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as raised:
        start(**options)
    assert str(raised.value) == text
    assert not ray.is_initialized()
