"""Slow links: the cluster is slow, and no node dies."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

import raytwin as ray
from tests.simulator.virtual_cluster import start

NODES = 3
LATENCY_S = 0.25
LIMIT_S = 120.0


@ray.remote(scheduling_strategy="SPREAD", max_retries=0)
def make(number: int) -> bytes:
    return bytes(200_000 + number)


@ray.remote(scheduling_strategy="SPREAD", max_retries=0)
def total(*values: bytes) -> int:
    return sum(map(len, values))


@pytest.mark.parametrize("seed", range(5))
def test_a_quarter_of_a_second_on_every_link_kills_no_node(seed: int) -> None:
    """Every node fetches from every other one: all channels begin, some of them twice."""
    session: Any = start(nodes=NODES, cpus_per_node=2, seed=seed)
    processes = ["head", *(f"node:{number}" for number in range(NODES))]
    for source, destination in permutations(processes, 2):
        session.cluster.set_latency(source, destination, LATENCY_S)
    for _ in range(2):
        values = [make.remote(number) for number in range(2 * NODES)]
        totals = [total.remote(*values) for _ in range(2 * NODES)]
        assert len(set(ray.get(totals, timeout=LIMIT_S))) == 1
        del values, totals
        for pair in permutations(processes, 2):
            session.cluster.reset_links(*pair)
    assert session.query("event_counts").get("node_died", 0) == 0
