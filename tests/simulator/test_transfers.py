"""Transfers over the network, in cases that one can work out by hand."""

from __future__ import annotations

import pytest

from tests.simulator.recorded_network import BANDWIDTH, LATENCY_S, LOOPBACK_LATENCY_S, Log, at, make


def test_one_transfer_takes_its_size_over_bandwidth_and_a_latency() -> None:
    env, network = make([0, 1, 1])
    log = Log(env)
    network.transfer(0, 1, 500_000, log.result("network"))
    network.transfer(1, 2, 500_000, log.result("loopback"))
    network.transfer(1, 0, 0, log.result("nothing"))
    env.run()
    assert log.times == {
        ("network", True): pytest.approx(0.5 + LATENCY_S),
        ("loopback", True): pytest.approx(0.05 + LOOPBACK_LATENCY_S),
        ("nothing", True): LATENCY_S,
    }


@pytest.mark.parametrize("pairs", [[(0, 1), (0, 2)], [(1, 0), (2, 0)], [(0, 1), (0, 1)]])
def test_two_transfers_share_a_card(pairs: list[tuple[int, int]]) -> None:
    env, network = make([0, 1, 2])
    log = Log(env)
    network.transfer(*pairs[0], 200_000, log.result("short"))
    network.transfer(*pairs[1], 500_000, log.result("long"))
    env.run()
    # Half the bandwidth each until 0.4 s, then the long one has all of it.
    assert log.times["short", True] == pytest.approx(0.4 + LATENCY_S)
    assert log.times["long", True] == pytest.approx(0.7 + LATENCY_S)


def test_a_card_is_full_duplex() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.transfer(0, 1, 500_000, log.result("there"))
    network.transfer(1, 0, 500_000, log.result("back"))
    env.run()
    assert list(log.times.values()) == pytest.approx([0.5 + LATENCY_S] * 2)


def test_a_later_transfer_slows_the_first_from_then_on() -> None:
    env, network = make([0, 1, 2])
    log = Log(env)
    network.transfer(0, 1, 1_000_000, log.result("first"))
    at(env, 0.5, lambda: network.transfer(0, 2, 250_000, log.result("second")))
    env.run()
    assert log.times["second", True] == pytest.approx(1.0 + LATENCY_S)
    assert log.times["first", True] == pytest.approx(1.25 + LATENCY_S)


def test_max_min_gives_what_a_bottleneck_leaves_to_the_others() -> None:
    env, network = make([0, 1, 2, 3, 4])
    pairs = [(0, 4), (1, 4), (2, 4), (0, 3)]
    transfers = [network.transfer(*pair, 10**9, lambda ok: None) for pair in pairs]
    env.run(until=0.1)
    assert [t.rate for t in transfers] == pytest.approx([BANDWIDTH / 3] * 3 + [2 * BANDWIDTH / 3])


def test_each_stream_has_a_share() -> None:
    env, network = make([0, 1, 2])
    three = network.transfer(0, 1, 10**9, lambda ok: None, streams=3)
    one = network.transfer(0, 2, 10**9, lambda ok: None)
    env.run(until=0.1)
    assert (three.rate, one.rate) == pytest.approx((0.75 * BANDWIDTH, 0.25 * BANDWIDTH))


def test_cancel_frees_the_bandwidth_and_is_silent() -> None:
    env, network = make([0, 1, 2])
    log = Log(env)
    network.transfer(0, 1, 500_000, log.result("stays"))
    gone = network.transfer(0, 2, 500_000, log.result("gone"))
    at(env, 0.5, lambda: network.cancel(gone))
    at(env, 0.6, lambda: network.cancel(gone))
    env.run()
    assert log.entries == [(("stays", True), pytest.approx(0.75 + LATENCY_S))]
    assert network.bytes_sent == {(0, 1): 500_000, (0, 2): 250_000}


def test_cancel_between_the_last_byte_and_its_arrival() -> None:
    env, network = make([0, 1])
    log = Log(env)
    gone = network.transfer(0, 1, 500_000, log.result("gone"))
    at(env, 0.5 + LATENCY_S / 2, lambda: network.cancel(gone))
    env.run()
    assert log.entries == []
    assert network.bytes_sent == {(0, 1): 500_000}


def test_cancel_of_the_next_to_end_does_not_end_another() -> None:
    env, network = make([0, 1])
    log = Log(env)
    soon = network.transfer(0, 1, 100_000, log.result("soon"))
    network.transfer(0, 1, 300_000, log.result("late"))
    at(env, 0.2 - 1e-9, lambda: network.cancel(soon))
    env.run()
    assert log.entries == [(("late", True), pytest.approx(0.4 + LATENCY_S))]


def test_a_pause_stops_transfers_and_a_resume_continues_them() -> None:
    env, network = make([0, 1, 2])
    log = Log(env)
    stalled = network.transfer(0, 1, 400_000, log.result("stalled"))
    network.transfer(0, 2, 400_000, log.result("other"))
    at(env, 0.2, lambda: network.pause_node(1))
    at(env, 0.3, lambda: network.transfer(0, 1, 100_000, log.result("begun meanwhile")))
    at(env, 5.0, lambda: network.resume_node(1))
    env.run(until=1.0)
    assert stalled.rate == 0
    assert stalled.sent_bytes(env.now) == pytest.approx(100_000)
    env.run()
    assert log.times["other", True] == pytest.approx(0.5 + LATENCY_S)
    assert log.times["begun meanwhile", True] == pytest.approx(5.2 + LATENCY_S)
    assert log.times["stalled", True] == pytest.approx(5.4 + LATENCY_S)


def test_a_removed_nodes_transfers_fail_and_the_others_get_the_bandwidth() -> None:
    env, network = make([0, 1, 2])
    log = Log(env)
    network.transfer(0, 1, 400_000, log.result("to it"))
    network.transfer(1, 0, 400_000, log.result("from it"))
    network.transfer(0, 2, 400_000, log.result("other"))
    at(env, 0.2, lambda: network.remove_node(1))
    at(env, 0.3, lambda: network.transfer(0, 1, 1, log.result("to the dead")))
    env.run()
    assert log.names == [
        ("to it", False),
        ("from it", False),
        ("to the dead", False),
        ("other", True),
    ]
    assert log.times["to it", False] == log.times["from it", False] == pytest.approx(0.2)
    assert log.times["other", True] == pytest.approx(0.5 + LATENCY_S)
    assert network.bytes_sent == {(0, 1): 100_000, (1, 0): 200_000, (0, 2): 400_000}


def test_a_node_removed_before_the_last_byte_arrives_fails_the_transfer() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.transfer(0, 1, 500_000, log.result("bulk"))
    at(env, 0.5 + LATENCY_S / 2, lambda: network.remove_node(0))
    env.run()
    assert log.names == [("bulk", False)]
