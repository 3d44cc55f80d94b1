"""A node that hangs while it joins a cluster whose GCS is sharded."""

from __future__ import annotations

from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.faults.injector import attach
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import Node, Replica, WholeCluster


def lose_outputs(at_s: float, probability: float) -> Step:
    parameters = {"kind": "ChainOutput", "probability": probability}
    return Step("lose", WholeCluster(), at_s, parameters=parameters)


@pytest.mark.parametrize(
    ("given_up_by", "replicas", "further"),
    [
        ("cut off from replica", 1, []),
        # The head tells all clients of the chain, also the one that hangs.
        ("no acknowledgement", 2, [Step("kill", Replica(1, 0), 0.4)]),
    ],
    ids=["the_only_replica_of_a_shard", "the_head"],
)
@pytest.mark.parametrize("seed", range(4))
def test_a_node_that_was_given_up_before_it_registered_does_not_join(
    seed: int, given_up_by: str, replicas: int, further: list[Step]
) -> None:
    """It joined, and the shards that had answered it before had ended its sessions: tasks that
    these assigned to it never arrived.

    It hangs while it waits for the answers of the other shards, which are lost on their way.
    """
    print(f"seed {seed}")
    session: Any = ray.init(
        backend="sim", nodes=1, cpus_per_node=1, gcs_shards=4, gcs_replicas=replicas,
        heartbeat_timeout_s=0.6, seed=seed,
    )  # fmt: skip
    try:
        session.cluster.add_node({"CPU": 1})
        hangs = [Step("pause", Node(1), 0.2), Step("resume", Node(1), 1.5)]
        steps = [lose_outputs(0.0, 0.5), *hangs, lose_outputs(0.3, 0.0), *further]
        attach(session, Plan(steps))
        ray.sleep(3.0)
        square: Any = ray.remote(scheduling_strategy="SPREAD")(lambda x: x * x)
        assert ray.get([square.remote(x) for x in range(8)]) == [x * x for x in range(8)]
        deaths = [row[3] for row in session.cluster.gcs.events.rows if row[1] == "node_died"]
        assert any(given_up_by in reason for reason in deaths), deaths
        assert "node:1" not in session.cluster.processes, "it has left"
    finally:
        ray.shutdown()
