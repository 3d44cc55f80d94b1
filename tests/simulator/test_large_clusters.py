"""What a cluster of many nodes costs the simulation: messages at its start, and idle workers."""

from __future__ import annotations

import gc
from typing import Any

import raytwin as ray
from raytwin.runtime.control.messages import LoadChanged
from raytwin.simulator.machine.simulated_process import SimProcess
from tests.simulator.programs import increment
from tests.simulator.virtual_cluster import start

STARTED_S = 0.05
"""All workers are there, and no node has sent a second heartbeat."""


def started(nodes: int) -> Any:
    session = start(nodes=nodes, cpus_per_node=2)
    ray.sleep(STARTED_S)
    return session.cluster


def messages(cluster: Any) -> int:
    """Return the messages that all components have received, those of their own process too."""
    return sum(each.messages for each in cluster.counts.values())


def know_one_another(cluster: Any) -> bool:
    """Whether every node that lives knows which others do."""
    living = [node for node in cluster.node_managers if f"node:{node}" in cluster.processes]
    return all(
        [row.node for row in cluster.node_managers[node].members.alive()] == living
        for node in living
    )


def test_the_messages_of_a_start_grow_as_the_nodes_do() -> None:
    per_node = []
    for nodes in (30, 120):
        cluster = started(nodes)
        assert know_one_another(cluster)
        per_node.append(messages(cluster) / nodes)
        ray.shutdown()
    few, many = per_node
    assert many <= few * 1.1


def test_a_join_and_a_death_are_news_for_every_node_once() -> None:
    nodes = 20
    cluster = started(nodes)
    heard: list[tuple[str, Any]] = []
    cluster.on_frame.append(lambda to, frame: heard.extend((to, each) for each in frame))
    added = cluster.add_node({"CPU": 1})
    ray.sleep(STARTED_S)
    assert know_one_another(cluster)
    cluster.kill_node(added)
    ray.sleep(STARTED_S)
    assert know_one_another(cluster)
    changes = [
        (to, type(each).__name__)
        for to, each in heard
        if to.startswith("node:") and type(each).__name__ in ("NodesJoined", "NodeChanged")
    ]
    expected = [(f"node:{node}", "NodesJoined") for node in range(nodes)]
    # The dead node is notified as well: it may only be cut off.
    expected += [(f"node:{node}", "NodeChanged") for node in range(nodes + 1)]
    assert sorted(changes) == sorted(expected)
    assert not any(isinstance(each, LoadChanged) for _, each in heard), "the head's alone"


def made(cluster: Any) -> list[str]:
    """Return the workers whose processes are there."""
    found = [each for each in gc.get_objects() if isinstance(each, SimProcess)]
    return sorted(p.name for p in found if p.cluster is cluster and p.name.startswith("worker:"))


def test_workers_that_nobody_uses_are_no_objects() -> None:
    cluster = started(3)
    assert len(cluster.workers) == 6
    assert made(cluster) == [] == cluster.workers.used()
    assert ray.get(increment.remote(1)) == 2
    (used,) = cluster.workers.used()
    assert made(cluster) == [used.process.name]


def test_a_fault_hits_a_worker_that_nobody_has_used() -> None:
    cluster = started(2)
    before = list(cluster.workers)
    cluster.kill_worker(1)
    ray.sleep(STARTED_S)
    gone, come = set(before) - set(cluster.workers), set(cluster.workers) - set(before)
    assert (gone, come) == ({"worker:1.1"}, {"worker:1.3"}), "the node has replaced it"
    cluster.pause_node(1)
    on_1 = increment.options(resources={"node:1": 0.001}).remote(1)
    assert ray.wait([on_1], timeout=STARTED_S) == ([], [on_1])
    cluster.resume_node(1)
    assert ray.get(on_1) == 2
    cluster.restart_node(1)
    ray.sleep(STARTED_S)
    assert sum(address.startswith("worker:1.") for address in cluster.workers) == 2
    assert ray.get(increment.options(resources={"node:1": 0.001}).remote(2)) == 3


def test_a_worker_that_is_killed_while_it_starts_reports_nothing() -> None:
    session = start(nodes=1, cpus_per_node=2)
    cluster = session.cluster
    while not cluster.workers:
        ray.sleep(1e-6)
    assert made(cluster), "its first turn takes 5 us"
    cluster.kill_worker(0)
    ray.sleep(STARTED_S)
    states = {w.address: w.state.value for w in cluster.node_managers[0].workers.workers.values()}
    assert states == dict.fromkeys(cluster.workers, "idle")
    assert "worker:0.1" not in states
