"""The connections of fetches: set up once, and again after a reset."""

from __future__ import annotations

from typing import Any

import pytest

import raytwin as ray
from raytwin.simulator.machine.network import HANDSHAKE_TRIPS
from tests.simulator.virtual_cluster import elapsed_s, start

LATENCY_S = 0.05


def made_on_node_1(nbytes: int) -> Any:
    """Return a value that is in the memory of node 1 alone."""
    made = ray.remote(resources={"node:1": 0.01})(lambda: bytes(nbytes)).remote()
    ray.wait([made], fetch_local=False)
    return made


def test_the_first_fetch_opens_a_connection_that_the_next_ones_use_until_it_breaks() -> None:
    cluster = start(nodes=2).cluster
    for ends in (("node:0", "node:1"), ("node:1", "node:0")):
        cluster.set_latency(*ends, LATENCY_S)
    first, second, third = (made_on_node_1(200_000) for _ in range(3))
    first_s, second_s = (elapsed_s(lambda made=made: ray.get(made)) for made in (first, second))
    assert first_s - second_s == pytest.approx(HANDSHAKE_TRIPS * LATENCY_S, rel=0.01)
    cluster.stores[0].break_connection(1)  # the channels keep theirs
    assert elapsed_s(lambda: ray.get(third)) == pytest.approx(first_s, rel=0.01)
    ray.shutdown()


def test_a_reset_breaks_a_fetch_that_begins_again() -> None:
    session = start(nodes=2)
    made = [made_on_node_1(100_000_000) for _ in range(3)]
    first_s, whole_s = (elapsed_s(lambda each=each: ray.get(each)) for each in made[:2])
    assert first_s > whole_s
    cluster = session.cluster
    cluster.env.after(0.9 * whole_s, lambda: cluster.reset_links("node:0", "node:1"))
    assert elapsed_s(lambda: ray.get(made[2])) > 1.9 * whole_s
    ray.shutdown()
