"""Several nodes on one machine: placement, and objects that move between them."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import psutil
import pytest

import raytwin as ray
from raytwin.runtime.processes.spawn.local_cluster import LocalCluster
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually

MB = 1 << 20


def get(refs: Any, limit_s: float = LIMIT_S) -> Any:
    return ray.get(refs, timeout=limit_s)


def on(function: Any, node: int) -> Any:
    """Return the remote function, to run on one node."""
    return function.options(resources={f"node:{node}": 0.01})


@ray.remote
def where() -> int:
    """Return the worker's PID."""
    return os.getpid()


@ray.remote
def make(n: int, fill: int) -> Any:
    return np.full(n, fill, np.uint8)


@ray.remote
def describe(array: Any) -> tuple[int, int]:
    return len(array), int(array.sum(dtype=np.int64))


def nodes_that_ran(name: str) -> set[str]:
    return {event["pid"] for event in ray.timeline() if event["name"] == name}


def test_a_task_on_every_one_of_fifty_nodes(start: Start) -> None:
    start(nodes=50, cpus_per_node=1, object_store_memory=8 * MB)
    assert sum(row["Alive"] for row in ray.nodes()) == 50
    assert ray.cluster_resources()["CPU"] == 50
    named = where.options(name="everywhere")
    pids = get([on(named, i).remote() for i in range(50)])
    assert len(set(pids)) == 50
    assert nodes_that_ran("everywhere") == {f"node {i}" for i in range(50)}


@pytest.fixture(scope="class")
def three() -> Any:
    session = ray.init(nodes=3, cpus_per_node=1, object_store_memory=200 * MB)
    yield session
    ray.shutdown()


@pytest.mark.usefixtures("three")
class TestThreeNodes:
    @pytest.mark.parametrize("n", [10, 200_000, 20 * MB])
    def test_objects_move_between_all_pairs_of_nodes(self, n: int) -> None:
        for source in range(3):
            made = on(make, source).remote(n, source)
            for target in range(3):
                assert get(on(describe, target).remote(made)) == (n, n * source)
            assert len(get(made)) == n

    def test_the_drivers_own_objects_move(self) -> None:
        small, large = ray.put(np.ones(10, np.uint8)), ray.put(np.ones(5 * MB, np.uint8))
        for node in range(3):
            assert get(on(describe, node).remote(small)) == (10, 10)
            assert get(on(describe, node).remote(large)) == (5 * MB, 5 * MB)

    def test_chains_across_nodes(self) -> None:
        @ray.remote
        def step(value: Any, i: int) -> Any:
            return value + 1 if i % 7 else np.full(150_000, int(np.max(value)) + 1)

        value = ray.put(0)
        for i in range(60):
            value = on(step, i % 3).remote(value, i)
        assert int(np.max(get(value))) == 60

    def test_many_inputs_from_everywhere(self) -> None:
        @ray.remote
        def total(*arrays: Any) -> int:
            return sum(int(a[0]) for a in arrays)

        arrays = [on(make, i % 3).remote(10 if i % 2 else 150_000, i) for i in range(30)]
        assert get([on(total, i).remote(*arrays) for i in range(3)]) == [sum(range(30))] * 3

    def test_nested_references_of_other_nodes(self) -> None:
        @ray.remote
        def spread() -> Any:
            return [on(make, i).remote(150_000 if i else 10, i) for i in range(3)]

        inner = get(on(spread, 2).remote())
        assert [int(a[0]) for a in get(inner)] == [0, 1, 2]
        read = ray.remote(lambda refs: [int(a[0]) for a in ray.get(refs)])
        assert get(on(read, 1).remote(inner)) == [0, 1, 2]

    def test_errors_and_lost_arguments_cross_nodes(self) -> None:
        @ray.remote
        def fail() -> None:
            raise LookupError("far away")

        with pytest.raises(LookupError, match="far away"):
            get(on(describe, 2).remote(on(fail, 1).remote()))

    def test_a_nested_map_on_another_node(self) -> None:
        outer = ray.remote(lambda n: sum(ray.get(ray.remote(lambda x: x + 1).map(range(n)))))
        assert get([on(outer, i).remote(500) for i in range(3)]) == [125_250] * 3

    def test_an_object_that_others_leave_no_room_for_takes_their_place(self) -> None:
        held = [on(make, 1).remote(90 * MB, 1) for _ in range(2)]
        assert get([on(describe, 1).remote(h) for h in held]) == [(90 * MB, 90 * MB)] * 2
        other = on(make, 2).remote(90 * MB, 2)
        assert get(on(describe, 1).remote(other)) == (90 * MB, 180 * MB)
        assert get(on(describe, 2).remote(other)) == (90 * MB, 180 * MB)


def test_work_spills_over_to_the_other_nodes(start: Start) -> None:
    start(nodes=3, cpus_per_node=1)
    slow = ray.remote(name="single")(lambda i: (time.sleep(0.02), i)[1])
    assert get([slow.remote(i) for i in range(100)]) == list(range(100))
    assert nodes_that_ran("single") == {"node 0", "node 1", "node 2"}
    assert get(slow.options(name="array").map(range(100))) == list(range(100))
    assert nodes_that_ran("array") == {"node 0", "node 1", "node 2"}


def test_objects_that_moved_are_freed_everywhere(start: Start) -> None:
    session = start(nodes=3, cpus_per_node=1, object_store_memory=200 * MB)
    for i in range(30):
        made = on(make, i % 3).remote(30 * MB, 1)
        assert get(on(describe, (i + 1) % 3).remote(made)) == (30 * MB, 30 * MB)
        del made

    def empty() -> bool:
        get(ray.put(None))
        return all(row[1:] == [0, 0, 0] for row in session.query("stores"))

    eventually(empty)


@pytest.mark.parametrize(
    "policy",
    ["bottom-up", "locality-blind", "centralized", "random", "power-of-two", "batch-sampling",
     "work-stealing", "raytwin.runtime.control.scheduling.policies:Random"],
)  # fmt: skip
def test_every_policy_gives_right_results(start: Start, policy: str) -> None:
    start(nodes=3, cpus_per_node=1, policy=policy)
    square = ray.remote(lambda x: x * x)
    assert get(square.map(range(2000))) == [x * x for x in range(2000)]
    assert get([square.remote(square.remote(i)) for i in range(50)]) == [i**4 for i in range(50)]
    arrays = [make.remote(200_000, i) for i in range(12)]
    assert get([describe.remote(a) for a in arrays]) == [(200_000, 200_000 * i) for i in range(12)]
    nested = ray.remote(lambda i: sum(ray.get([square.remote(j) for j in range(i)])))
    assert get([nested.remote(i) for i in range(8)]) == [
        sum(j * j for j in range(i)) for i in range(8)
    ]


def test_a_bad_policy_starts_nothing(start: Start) -> None:
    before = psutil.Process().children(recursive=True)
    with pytest.raises(ValueError, match="there are bottom-up"):
        start(nodes=3, policy="bottoms-up")
    assert psutil.Process().children(recursive=True) == before


def test_nodes_of_different_kinds(start: Start) -> None:
    start(nodes=[{"CPU": 1}, {"CPU": 2, "fast": 1}, {"CPU": 1, "GPU": 2}])
    kinds = {"fast": "node 1", "gpu": "node 2"}
    fast = where.options(name="fast", resources={"fast": 0.5})
    gpu = where.options(name="gpu", num_gpus=1)
    get([f.remote() for _ in range(10) for f in (fast, gpu)])
    for name, node in kinds.items():
        assert nodes_that_ran(name) == {node}
    # Needs of two kinds at once, of which only one node has both.
    both = where.options(name="both", num_cpus=2, resources={"node:1": 0.1})
    get(both.remote())
    assert nodes_that_ran("both") == {"node 1"}


def test_a_started_cluster_knows_the_pids_of_its_processes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes may join before the zygote has reported that it forked them."""
    read, late_until = LocalCluster.poll, time.monotonic() + 2

    def poll(cluster: LocalCluster) -> None:
        if time.monotonic() > late_until:
            read(cluster)

    monkeypatch.setattr(LocalCluster, "poll", poll)
    pids = start(nodes=2, cpus_per_node=1).cluster.pids
    assert {"zygote", "head", "node:0", "node:1"} <= pids.keys()
    assert all(psutil.pid_exists(pid) for pid in pids.values())
