"""The network against its contract, and against a naive fluid simulation."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy import Environment

from simulator.flows import Transfer
from simulator.network import Network

LATENCY_S = 0.001
BANDWIDTH = 1e6
LOOPBACK_LATENCY_S = 0.0001
LOOPBACK_BANDWIDTH = 1e7


def make(
    hosts: list[int], jitter_s: float = 0.0, latency_s: float = LATENCY_S, seed: int = 1
) -> tuple[Environment, Network]:
    """Return a network whose node n is on `hosts[n]`."""
    env = Environment()
    network = Network(
        env,
        latency_s,
        BANDWIDTH,
        LOOPBACK_LATENCY_S,
        LOOPBACK_BANDWIDTH,
        random.Random(seed),
        jitter_s,
    )
    for node, host in enumerate(hosts):
        network.add_node(node, host)
    return env, network


def at(env: Environment, when: float, call: Callable[[], Any]) -> None:
    """Have `call()` called at time `when`."""
    event = env.timeout(when - env.now)
    assert event.callbacks is not None
    event.callbacks.append(lambda _: call())


class Log:
    """What came, and when, in order."""

    def __init__(self, env: Environment) -> None:
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


# -- frames ------------------------------------------------------------------


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


# -- transfers in simple cases -------------------------------------------------


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
    env, network = make([0, 1, 2, 3])
    network.set_link(0, 1, bandwidth=100_000.0)
    transfers = [network.transfer(0, dst, 10**9, lambda ok: None) for dst in (1, 2, 3)]
    env.run(until=0.1)
    assert [t.rate for t in transfers] == pytest.approx([100_000, 450_000, 450_000])


def test_a_cap_is_shared_by_its_links_transfers_and_may_change() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.set_link(0, 1, bandwidth=200_000.0)
    for name in "ab":
        network.transfer(0, 1, 200_000, log.result(name))
    at(env, 1.0, lambda: network.set_link(0, 1))
    env.run()
    # 100 kB each in the first second, then 100 kB each at half the card's bandwidth.
    assert list(log.times.values()) == pytest.approx([1.2 + LATENCY_S] * 2)


def test_cancel_frees_the_bandwidth_and_is_silent() -> None:
    env, network = make([0, 1, 2])
    log = Log(env)
    network.transfer(0, 1, 500_000, log.result("stays"))
    gone = network.transfer(0, 2, 500_000, log.result("gone"))
    at(env, 0.5, gone.cancel)
    at(env, 0.6, gone.cancel)
    env.run()
    assert log.entries == [(("stays", True), pytest.approx(0.75 + LATENCY_S))]
    assert gone.sent_bytes == pytest.approx(250_000)
    assert network.bytes_sent == {(0, 1): 500_000, (0, 2): 250_000}


def test_cancel_between_the_last_byte_and_its_arrival() -> None:
    env, network = make([0, 1])
    log = Log(env)
    gone = network.transfer(0, 1, 500_000, log.result("gone"))
    at(env, 0.5 + LATENCY_S / 2, gone.cancel)
    env.run()
    assert log.entries == []
    assert gone.sent_bytes == 500_000


def test_cancel_of_the_next_to_end_does_not_end_another() -> None:
    env, network = make([0, 1])
    log = Log(env)
    soon = network.transfer(0, 1, 100_000, log.result("soon"))
    network.transfer(0, 1, 300_000, log.result("late"))
    at(env, 0.2 - 1e-9, soon.cancel)
    env.run()
    assert log.entries == [(("late", True), pytest.approx(0.4 + LATENCY_S))]


def test_a_cut_stops_transfers_and_a_heal_resumes_them() -> None:
    env, network = make([0, 1, 2])
    log = Log(env)
    stalled = network.transfer(0, 1, 400_000, log.result("stalled"))
    network.transfer(0, 2, 400_000, log.result("other"))
    at(env, 0.2, lambda: network.cut(0, 1))
    at(env, 0.3, lambda: network.transfer(0, 1, 100_000, log.result("begun while cut")))
    at(env, 5.0, lambda: network.heal(0, 1))
    env.run(until=1.0)
    assert stalled.rate == 0
    assert stalled.sent_bytes == pytest.approx(100_000)
    env.run()
    assert log.times["other", True] == pytest.approx(0.5 + LATENCY_S)
    assert log.times["begun while cut", True] == pytest.approx(5.2 + LATENCY_S)
    assert log.times["stalled", True] == pytest.approx(5.4 + LATENCY_S)


def test_a_cut_holds_back_the_last_byte_too() -> None:
    env, network = make([0, 1])
    log = Log(env)
    network.transfer(0, 1, 500_000, log.result("bulk"))
    at(env, 0.5 + LATENCY_S / 2, lambda: network.cut(0, 1))
    at(env, 2.0, lambda: network.heal(0, 1))
    env.run()
    assert log.entries == [(("bulk", True), pytest.approx(2.0 + LATENCY_S))]


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
        ("from it", False),
        ("to it", False),
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


# -- transfers against oracles -------------------------------------------------


def fair_rates(
    hosts: list[int], caps: dict[tuple[int, int], float], pairs: list[tuple[int, int]]
) -> list[float]:
    """Return max-min fair rates by brute force: raise all rates that can grow, by the same step."""
    limits: list[tuple[set[int], float]] = []
    for host in set(hosts):
        out = {i for i, (s, d) in enumerate(pairs) if hosts[s] == host != hosts[d]}
        into = {i for i, (s, d) in enumerate(pairs) if hosts[d] == host != hosts[s]}
        inside = {i for i, (s, d) in enumerate(pairs) if hosts[s] == host == hosts[d]}
        limits += [(out, BANDWIDTH), (into, BANDWIDTH), (inside, LOOPBACK_BANDWIDTH)]
    for link, cap in caps.items():
        limits.append(({i for i, pair in enumerate(pairs) if pair == link}, cap))
    rates = [0.0] * len(pairs)
    growing = set(range(len(pairs)))
    while growing:
        room = [
            (cap - sum(rates[i] for i in users)) / len(users & growing)
            for users, cap in limits
            if users & growing
        ]
        for i in growing:
            rates[i] += min(room)
        for users, cap in limits:
            if users and sum(rates[i] for i in users) >= cap * (1 - 1e-9):
                growing -= users
    return rates


class Scene:
    """A random set of nodes, caps, transfers and faults; no two things happen at once."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.hosts = [rng.randrange(5) for _ in range(rng.randint(2, 8))]
        nodes = range(len(self.hosts))

        def pair() -> tuple[int, int]:
            return rng.choice(nodes), rng.choice(nodes)

        self.caps = {
            pair(): rng.choice((0.01, 0.3, 0.7, 3.0)) * BANDWIDTH for _ in range(rng.randrange(6))
        }
        self.transfers = [
            (rng.uniform(0, 1), pair(), rng.randint(1, 10**6)) for _ in range(rng.randint(1, 30))
        ]
        self.cuts = [
            (rng.uniform(0, 1), link, rng.uniform(1, 3))
            for link in {pair() for _ in range(rng.randrange(3))}
        ]

    def play(self, latency_s: float = 0.0) -> tuple[list[tuple[Any, Any]], Network]:
        env, network = make(self.hosts, latency_s=latency_s)
        network.loopback_latency_s = latency_s
        log = Log(env)
        for link, cap in self.caps.items():
            network.set_link(*link, bandwidth=cap)
        for number, (when, link, nbytes) in enumerate(self.transfers):
            at(
                env,
                when,
                lambda n=number, s=link[0], d=link[1], b=nbytes: network.transfer(  # type: ignore[misc]
                    s, d, b, log.result(n)
                ),
            )
        for when, link, healed in self.cuts:
            at(env, when, lambda s=link[0], d=link[1]: network.cut(s, d))  # type: ignore[misc]
            at(env, healed, lambda s=link[0], d=link[1]: network.heal(s, d))  # type: ignore[misc]
        env.run()
        return log.entries, network

    def naive_ends(self) -> dict[int, float]:
        """Return when each transfer ends, all rates being recomputed whenever anything happens."""
        changes = {when for when, _, _ in self.transfers}
        changes |= {time for when, _, healed in self.cuts for time in (when, healed)}
        left = {number: float(nbytes) for number, (_, _, nbytes) in enumerate(self.transfers)}
        ends: dict[int, float] = {}
        now = 0.0
        while left:
            cut = {link for when, link, healed in self.cuts if when <= now < healed}
            live = [
                number
                for number in left
                if self.transfers[number][0] <= now and self.transfers[number][1] not in cut
            ]
            rates = fair_rates(self.hosts, self.caps, [self.transfers[n][1] for n in live])
            step = min((left[n] / rate for n, rate in zip(live, rates, strict=True)), default=inf)
            change = min((time for time in changes if time > now), default=inf)
            until = min(now + step, change)
            for number, rate in zip(live, rates, strict=True):
                left[number] -= rate * (until - now)
                if left[number] < 1e-3:  # bytes
                    ends[number] = until
                    del left[number]
            now = until
        return ends


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 2**32))
def test_rates_are_max_min_fair(seed: int) -> None:
    scene = Scene(seed)
    env, network = make(scene.hosts)
    for link, cap in scene.caps.items():
        network.set_link(*link, bandwidth=cap)
    live: list[Transfer] = []

    def check() -> None:
        pairs = [(t.src, t.dst) for t in live]
        assert [t.rate for t in live] == pytest.approx(fair_rates(scene.hosts, scene.caps, pairs))

    for _, link, _ in scene.transfers:
        live.append(network.transfer(*link, 10**12, lambda ok: None))
    env.run(until=1.0)
    check()
    while live:
        live.pop(seed % len(live)).cancel()
        env.run(until=env.now + 1.0)
        check()


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 2**32))
def test_transfers_end_when_a_naive_fluid_simulation_says(seed: int) -> None:
    scene = Scene(seed)
    entries, _ = scene.play()
    ends = {(number, True): when for number, when in scene.naive_ends().items()}
    assert dict(entries) == {name: pytest.approx(when, rel=1e-5) for name, when in ends.items()}


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_all_bytes_are_counted_once(seed: int) -> None:
    scene = Scene(seed)
    _, network = scene.play(LATENCY_S)
    wanted: dict[tuple[int, int], int] = {}
    for _, (src, dst), nbytes in scene.transfers:
        pair = scene.hosts[src], scene.hosts[dst]
        wanted[pair] = wanted.get(pair, 0) + nbytes
    assert {pair: sent for pair, sent in network.bytes_sent.items() if sent} == wanted


def test_bytes_in_progress_are_counted() -> None:
    env, network = make([0, 1])
    network.send(0, 1, 100, lambda: None)
    network.transfer(0, 1, 10**6, lambda ok: None)
    env.run(until=0.25)
    assert network.bytes_sent == {(0, 1): 250_100}
    network.remove_node(1)
    assert network.bytes_sent == {(0, 1): 250_100}


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_the_same_scene_gives_the_same_times_to_the_last_bit(seed: int) -> None:
    assert Scene(seed).play(LATENCY_S)[0] == Scene(seed).play(LATENCY_S)[0]
