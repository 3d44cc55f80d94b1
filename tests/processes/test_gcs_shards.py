"""A GCS in shards, each a chain of processes, whose members and nodes are killed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.runtime.control.core.addresses import chain_of
from raytwin.runtime.control.gcs.sharding.router import shard_of
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually

SHARDS = 2


@ray.remote
def add(x: int, y: int) -> int:
    return x + y


@ray.remote(resources={"B": 0.001}, max_retries=-1)
def large(x: int) -> Any:
    return np.full(100_000, x)


@ray.remote(resources={"B": 0.001}, max_retries=-1)
def half(x: Any) -> Any:
    return x[: len(x) // 2]


@ray.remote
def nested(count: int) -> int:
    return sum(ray.get([add.remote(i, 1) for i in range(count)]))


def members(session: Any, chain: int) -> list[str]:
    names: list[str] = session.query("chain")[chain]["names"]
    return names


def test_each_shard_has_a_part_and_every_row_is_found(start: Start) -> None:
    session = start(nodes=2, cpus_per_node=1, gcs_shards=SHARDS, task_history=True)
    keys = [b"key%d" % number for number in range(40)]
    assert {shard_of(key, SHARDS) for key in keys} == {1, 2}
    for key in keys:
        assert session.kv_put(key, key + b"!") is None
    assert [session.kv_get(key) for key in keys] == [key + b"!" for key in keys]
    first = [add.remote(i, 1) for i in range(100)]
    assert ray.get([add.remote(ref, 1) for ref in first], timeout=LIMIT_S) == list(range(2, 102))
    oldest = first[0].binary()
    del first
    eventually(lambda: session.find_task(oldest) is not None)
    assert len(session.query("chain")) == SHARDS + 1
    assert sorted(chain_of(name) for name in session.cluster.pids if "replica" in name) == [0, 1, 2]


def test_members_of_every_chain_are_killed_under_load(start: Start) -> None:
    session = start(nodes=2, cpus_per_node=1, gcs_shards=SHARDS, gcs_replicas=2)
    for chain in range(SHARDS + 1):
        for place in (0, -1):
            eventually(lambda chain=chain: len(members(session, chain)) == 2)
            refs = [add.remote(i, i) for i in range(200)]
            deep = [nested.remote(5) for _ in range(4)]
            name = members(session, chain)[place]
            session.kv_put(name.encode(), b"killed")
            session.cluster.kill_replica(name)
            assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(200)]
            assert ray.get(deep, timeout=LIMIT_S) == [15] * 4
            assert session.kv_get(name.encode()) == b"killed"
            eventually(
                lambda chain=chain, name=name: (
                    name not in members(session, chain) and len(members(session, chain)) == 2
                )
            )


def test_lost_values_are_reconstructed_from_inputs_in_other_shards(start: Start) -> None:
    session = start(
        nodes=[{"CPU": 1}, {"CPU": 2, "B": 1}], gcs_shards=SHARDS, heartbeat_timeout_s=2.0
    )
    chains = [half.remote(half.remote(large.remote(i))) for i in range(8)]
    ray.wait(chains, num_returns=8, timeout=LIMIT_S, fetch_local=False)
    session.cluster.restart_node(1)
    for number, ref in enumerate(chains):
        value = ray.get(ref, timeout=LIMIT_S)
        assert len(value) == 25_000 and value[0] == number
    counts = session.query("event_counts")
    assert counts["node_died"] == 1
    # Each value and its two inputs, which nobody has a reference to.
    assert sum(counts.get(name, 0) for name in ("task_reconstructed", "task_retried")) == 24


@ray.remote(max_restarts=2, max_task_retries=2, resources={"B": 0.1})
class Maker:
    def make(self, x: int) -> Any:
        return np.full(100_000, x)


def test_values_of_an_actor_are_reconstructed_with_it(start: Start) -> None:
    """The shard of a lost value asks whether its actor is being rebuilt."""
    session = start(
        nodes=[{"CPU": 1}, {"CPU": 1, "B": 1}], gcs_shards=SHARDS, heartbeat_timeout_s=2.0
    )
    maker = Maker.remote()
    made = [maker.make.remote(i) for i in range(6)]
    ray.wait(made, num_returns=6, timeout=LIMIT_S, fetch_local=False)
    session.cluster.restart_node(1)
    assert [int(value[0]) for value in ray.get(made, timeout=LIMIT_S)] == list(range(6))


@pytest.mark.parametrize("options", [{"gcs_shards": 0}, {"gcs_shards": 99}, {"gcs_shards": 2.0}])
def test_a_wrong_number_of_shards_is_refused(options: dict[str, Any]) -> None:
    for backend in ("local", "sim"):
        with pytest.raises((TypeError, ValueError), match="gcs_shards"):
            ray.init(backend=backend, **options)
