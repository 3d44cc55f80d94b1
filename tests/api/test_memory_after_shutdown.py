"""After a shutdown nothing of the cluster stays in the driver's memory."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.simulator.cluster.simulated_cluster import SimCluster
from raytwin.simulator.cluster.simulated_store import SimStore
from raytwin.simulator.machine.simulated_process import SimProcess


@ray.remote
def work(x: Any) -> Any:
    return x


@ray.remote
def items() -> Iterator[Any]:
    yield 1
    yield bytes(300_000)


@ray.remote(num_cpus=0)
class Plain:
    def value(self) -> int:
        return 1


@ray.remote(num_cpus=0)
class Coroutines:
    async def value(self) -> int:
        await asyncio.sleep(0)
        return 1

    async def items(self) -> AsyncIterator[int]:
        yield 1

    async def wait(self) -> None:
        await asyncio.gather(work.options(num_cpus=64).remote(1))


def use_cluster(backend: str) -> weakref.ref[Any]:
    """Start a cluster, have it do some of everything, and end it."""
    session = ray.init(backend=backend, nodes=2, cpus_per_node=2)
    large = ray.put(bytes(1 << 20))
    assert ray.get(work.remote(large)) == bytes(1 << 20)
    assert ray.get(list(work.map(range(20)))) == list(range(20))
    assert [len(str(ray.get(ref))) > 0 for ref in items.remote()] == [True, True]
    assert work.remote(5).future().result() == 5
    actors = [Plain.remote(), Coroutines.remote(), Coroutines.remote()]
    assert ray.get([actor.value.remote() for actor in actors]) == [1, 1, 1]
    assert [ray.get(ref) for ref in actors[1].items.remote()] == [1]
    never = work.options(num_cpus=64).remote(1)
    waits = [actor.wait.remote() for actor in actors[1:]]
    assert ray.wait(waits, timeout=0.1)[0] == []
    pending = never.future()
    ray.shutdown()
    assert backend == "sim" or isinstance(pending.exception(10), ray.exceptions.RaySystemError)
    return weakref.ref(session)


def parts() -> list[Any]:
    """Return all that is left of clusters."""
    kinds = (Gcs, SimCluster, SimProcess, SimStore)
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


@pytest.mark.parametrize("backend", ["sim", "local"])
def test_nothing_of_a_cluster_stays(backend: str) -> None:
    use_cluster(backend)
    gc.collect()
    # The traceback of a test that has failed keeps its cluster.
    kept = set(map(id, parts()))
    before = len(gc.get_objects())
    sessions = [use_cluster(backend) for _ in range(3)]
    gc.collect()
    assert [session() for session in sessions] == [None, None, None]
    assert not [each for each in parts() if id(each) not in kept]
    # Some 110 objects of each cluster were left on `local`, and thousands on `sim`.
    assert len(gc.get_objects()) - before < 100


def test_a_closed_loop_tracks_no_generators() -> None:
    before = sys.get_asyncgen_hooks()
    use_cluster("sim")
    assert sys.get_asyncgen_hooks() == before


def test_generators_are_known_to_the_loop_that_runs_them() -> None:
    @ray.remote(num_cpus=0)
    class Closes:
        def __init__(self) -> None:
            self.closed_in: Any = None

        async def generate(self) -> AsyncIterator[int]:
            try:
                while True:
                    yield 1
            finally:
                await asyncio.sleep(0)
                self.closed_in = asyncio.get_running_loop()

        async def leave_one(self) -> bool:
            await asyncio.sleep(1)  # another actor's loop runs meanwhile
            async for _ in self.generate():
                break
            gc.collect()
            await asyncio.sleep(1)
            return self.closed_in is asyncio.get_running_loop()

    ray.init(backend="sim", nodes=1, cpus_per_node=2)
    try:
        actors = [Closes.remote() for _ in range(3)]
        assert ray.get([actor.leave_one.remote() for actor in actors]) == [True] * 3
    finally:
        ray.shutdown()
