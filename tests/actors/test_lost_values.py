"""The values of a call that survive the death of its node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.fuzz.oracle.invariants import at_end, settled
from raytwin.runtime.api.exceptions import ObjectLostError
from raytwin.runtime.api.options.scheduling_strategies import NodeAffinitySchedulingStrategy
from raytwin.simulator.cluster.simulated_cluster import HEAD_NUMBER

WAIT_S = 60
LARGE_BYTES = 150_000


@ray.remote(num_cpus=0)
class Maker:
    @ray.method(num_returns=2)
    def two(self) -> tuple[bytes, int]:
        return b"x" * LARGE_BYTES, 7


@ray.remote
def echo(value: Any) -> Any:
    return value


def on(node: int) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(str(node), soft=False)


def parts_of_the_gcs(session: Any) -> list[int]:
    """Return the numbers in the network of the head and of the GCS's replicas, if any."""
    cluster = session.cluster
    names = (name for name in cluster.processes if name.startswith("replica:"))
    return [HEAD_NUMBER, *(cluster.processes[name].node for name in names)]


@pytest.fixture(params=[1, 2], ids=["table", "shards"])
def session(request: Any) -> Iterator[Any]:
    yield ray.init(backend="sim", nodes=3, cpus_per_node=1, gcs_shards=request.param)
    ray.shutdown()


def test_a_small_value_of_a_call_outlives_the_node_of_its_large_one(
    session: Any,
) -> None:
    """The node has told the owner's of both, and dies before the GCS has heard of them."""
    maker = Maker.options(scheduling_strategy=on(1)).remote()
    ray.get(maker.two.remote())
    for part in parts_of_the_gcs(session):
        session.cluster.network.set_latency(1, part, 2.0)
    large, small = maker.two.remote()
    assert ray.get(small) == 7
    session.cluster.kill_node(1)
    ran = echo.options(scheduling_strategy=on(2)).remote(small)
    assert ray.get(ran, timeout=WAIT_S) == 7
    with pytest.raises(ObjectLostError, match="was on a node that died"):
        ray.get(large, timeout=WAIT_S)
    with pytest.raises(ObjectLostError, match="was on a node that died"):
        ray.get(echo.options(scheduling_strategy=on(2)).remote(large), timeout=WAIT_S)
    assert ray.get(small) == 7
    del maker, large, small, ran
    assert settled(lambda: at_end(session), ray.sleep) == []
