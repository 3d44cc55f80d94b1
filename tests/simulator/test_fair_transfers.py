"""Transfers against oracles: brute force, and a naive fluid simulation."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytwin.simulator.machine.network import Network, Transfer
from tests.simulator.recorded_network import BANDWIDTH, LATENCY_S, LOOPBACK_BANDWIDTH, Log, at, make


def even_rates(hosts: list[int], pairs: list[tuple[int, int]]) -> list[float]:
    """Return max-min fair rates by brute force: raise all rates that can grow, by the same step."""
    limits: list[tuple[set[int], float]] = []
    for host in set(hosts):
        out = {i for i, (s, d) in enumerate(pairs) if hosts[s] == host != hosts[d]}
        into = {i for i, (s, d) in enumerate(pairs) if hosts[d] == host != hosts[s]}
        inside = {i for i, (s, d) in enumerate(pairs) if hosts[s] == host == hosts[d]}
        limits += [(out, BANDWIDTH), (into, BANDWIDTH), (inside, LOOPBACK_BANDWIDTH)]
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
    """A random set of nodes, transfers and pauses; no two things happen at once."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.hosts = [rng.randrange(5) for _ in range(rng.randint(2, 8))]
        nodes = range(len(self.hosts))

        def pair() -> tuple[int, int]:
            return rng.choice(nodes), rng.choice(nodes)

        self.transfers = [
            (rng.uniform(0, 1), pair(), rng.randint(1, 10**6)) for _ in range(rng.randint(1, 30))
        ]
        self.pauses = [
            (rng.uniform(0, 1), node, rng.uniform(1, 3))
            for node in rng.sample(nodes, rng.randrange(2))
        ]

    def play(self, latency_s: float = 0.0) -> tuple[list[tuple[Any, Any]], Network]:
        env, network = make(self.hosts, latency_s=latency_s)
        network.loopback_latency_s = latency_s
        log = Log(env)
        for number, (when, link, nbytes) in enumerate(self.transfers):
            at(
                env,
                when,
                lambda n=number, s=link[0], d=link[1], b=nbytes: network.transfer(  # type: ignore[misc]
                    s, d, b, log.result(n)
                ),
            )
        for when, node, resumed in self.pauses:
            at(env, when, lambda n=node: network.pause_node(n))  # type: ignore[misc]
            at(env, resumed, lambda n=node: network.resume_node(n))  # type: ignore[misc]
        env.run()
        return log.entries, network

    def naive_ends(self) -> dict[int, float]:
        """Return when each transfer ends, all rates being recomputed whenever anything happens."""
        changes = {when for when, _, _ in self.transfers}
        changes |= {time for when, _, resumed in self.pauses for time in (when, resumed)}
        left = {number: float(nbytes) for number, (_, _, nbytes) in enumerate(self.transfers)}
        ends: dict[int, float] = {}
        now = 0.0
        while left:
            paused = {node for when, node, resumed in self.pauses if when <= now < resumed}
            live = [
                number
                for number in left
                if self.transfers[number][0] <= now and not paused & set(self.transfers[number][1])
            ]
            rates = even_rates(self.hosts, [self.transfers[n][1] for n in live])
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
    live: list[Transfer] = []

    def check() -> None:
        pairs = [(t.src, t.dst) for t in live]
        assert [t.rate for t in live] == pytest.approx(even_rates(scene.hosts, pairs))

    for _, link, _ in scene.transfers:
        live.append(network.transfer(*link, 10**12, lambda ok: None))
    env.run(until=1.0)
    check()
    while live:
        network.cancel(live.pop(seed % len(live)))
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
