"""Minimal programs for defects that the fuzz has found."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import gettempdir
from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.fuzz.oracle.invariants import at_end, settled
from raytwin.runtime.api.exceptions import TaskPlacementGroupRemoved
from raytwin.runtime.api.options.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import (
    Allocate,
    Allocated,
    Fetch,
    Fetched,
    Free,
    NodeChanged,
    NodeInfo,
    StopWorker,
)
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.node.object_store import ObjectStore
from raytwin.runtime.store.arena import Arena

OID = b"x" * 18


@pytest.fixture
def sim() -> Iterator[Any]:
    yield ray.init(backend="sim", nodes=2, cpus_per_node=1)
    ray.shutdown()


def test_freeing_one_place_of_an_object_leaves_the_other_in_virtual_time(sim: Any) -> None:
    store = sim.cluster.stores[1]
    for _ in range(2):
        store.handle("node:1", Allocate(OID, 10, "worker:1.1"))
    first, second = store._places[OID]
    store.values[first] = b"old"
    assert store.value_of(OID) == b"old", "the new place is not written yet"
    store.handle("node:1", Free(OID, second))
    assert store.value_of(OID) == b"old"
    store.handle("node:1", Free(OID, first))
    assert store.value_of(OID) is None
    assert store.used == 0


def test_freeing_one_place_of_an_object_leaves_the_other_in_the_arena() -> None:
    replies: list[Any] = []
    process = ComponentProcess(0)
    arena = Arena.create(1 << 20, gettempdir())
    store = ObjectStore(process, 1, arena, b"", lambda node: None, "", Config())
    process.deliver = lambda source, destination, message: replies.append(message)  # type: ignore[method-assign]
    for _ in range(2):
        store.handle("node:1", Allocate(OID, 10, "worker:1.1"))
    first, second = (message.offset for message in replies if isinstance(message, Allocated))
    store.handle("node:1", Free(OID, second))
    source = store.begin_sending(OID)
    assert source is not None and (source.offset, source.size) == (first, 10)
    source.release()
    store.handle("node:1", Free(OID, first))
    assert store.begin_sending(OID) is None
    assert store.allocator.used == 0
    process.reactor.close()
    arena.close()


def test_a_stopped_workers_pins_are_given_back_in_virtual_time(sim: Any) -> None:
    ref = ray.put(b"x" * 200_000)
    ray.sleep(0.5)
    worker = next(address for address in sim.cluster.workers if address.startswith("worker:0"))
    scheduler = sim.cluster.processes["node:0"].components["node:0"]
    scheduler.objects.memory.pin(ref.binary(), worker)
    stopped = scheduler.dispatcher.workers.pop(worker)
    scheduler.workers.idle.remove(stopped)
    sim.cluster.processes["node:0"].arrive("node:0", "pool:0", [StopWorker(worker)])
    ray.sleep(0.1)
    assert worker not in sim.cluster.workers
    del ref
    assert settled(lambda: at_end(sim), ray.sleep) == []


def test_a_fetch_from_a_hanging_node_ends_when_the_node_is_declared_dead(sim: Any) -> None:
    store = sim.cluster.stores[0]
    sent: list[Any] = []
    store.send = sent.append
    store.handle("node:0", Fetch(OID, 10_000_000, 1))
    store.handle("node:0", Fetch(OID[::-1], 10, 1))
    ray.sleep(0.001)
    sim.cluster.pause_node(1)
    working = sim.cluster.working
    store.drop_peer(1)
    assert [type(each) for each in sent] == [Fetched, Fetched]
    assert all(each.offset < 0 for each in sent)
    assert store.used == 0
    assert sim.cluster.working == working - 1  # the transfer of the first


@pytest.mark.parametrize("backend", ["sim", "local"])
def test_the_first_of_several_failed_inputs_is_the_error(backend: str) -> None:
    """Whichever came last was it: the same program gave one error or the other."""

    @ray.remote
    def fail(seconds: float, text: str) -> None:
        ray.sleep(seconds)
        raise ValueError(text)

    @ray.remote
    def both(a: Any, b: Any) -> None:
        return None

    @ray.remote
    class Actor:
        def both(self, a: Any, b: Any) -> None:
            return None

    ray.init(backend=backend, nodes=1, cpus_per_node=2)
    try:
        for called in (both, Actor.remote().both):
            for first_s, second_s in ((0.0, 0.1), (0.1, 0.0)):
                inputs = fail.remote(first_s, "first"), fail.remote(second_s, "second")
                with pytest.raises(ValueError, match="ValueError: first"):
                    ray.get(called.remote(*inputs))
    finally:
        ray.shutdown()


def test_a_restarted_task_does_not_claim_children_that_failed_for_a_lost_input() -> None:
    """What it had put was lost with its node, and a child elsewhere waited for just that."""

    @ray.remote
    def child(value: bytes) -> int:
        return len(value)

    @ray.remote(max_retries=-1)
    def parent() -> Any:
        value = ray.put(b"x" * 500_000)
        there = NodeAffinitySchedulingStrategy("2", soft=False)
        made = child.options(scheduling_strategy=there).remote(value)
        ray.sleep(0.2)
        return ray.get(made)

    session: Any = ray.init(backend="sim", nodes=4, cpus_per_node=1)
    try:
        first = NodeAffinitySchedulingStrategy("1", soft=True)
        ref = parent.options(scheduling_strategy=first).remote()
        session.cluster.set_latency("node:2", "node:1", 0.3)  # its child waits for the value
        ray.sleep(0.1)
        session.cluster.kill_node(1)
        assert ray.get(ref) == 500_000
        del ref
        assert settled(lambda: at_end(session), ray.sleep) == []
    finally:
        ray.shutdown()


def test_values_of_a_removed_group_are_released_with_their_references() -> None:
    """Those of an array that waited elsewhere ended unheard of by the GCS: it kept the others."""

    @ray.remote(num_cpus=1)
    def make(index: int) -> bytes:
        ray.sleep(0.01)
        return b"x" * 200_000

    session: Any = ray.init(backend="sim", nodes=2, cpus_per_node=1)
    try:
        group = ray.util.placement_group([{"CPU": 1}] * 2, "STRICT_SPREAD")
        assert group.wait()
        there = ray.util.placement_group_table(group)["bundles_to_node_id"]
        away = next(index for index, node in there.items() if node == "1")
        where = PlacementGroupSchedulingStrategy(group, away)
        refs = make.options(scheduling_strategy=where).map(range(8))
        ray.wait([refs[0]])
        ray.util.remove_placement_group(group)
        with pytest.raises(TaskPlacementGroupRemoved):
            ray.get(refs[7])
        del refs
        assert settled(lambda: at_end(session), ray.sleep) == []
    finally:
        ray.shutdown()


def test_a_restarted_node_does_not_lose_its_values_with_its_former_incarnation() -> None:
    session = ray.init(backend="sim", nodes=2, cpus_per_node=1, object_store_memory=1_000_000)
    there = NodeAffinitySchedulingStrategy("1", soft=False)

    @ray.remote(max_retries=0, scheduling_strategy=there)
    def large() -> bytes:
        return bytes(300_000)

    @ray.remote(max_retries=0, scheduling_strategy=there)
    def size(refs: list[Any]) -> int:
        return len(ray.get(refs[0]))

    session.cluster.restart_node(1)
    ray.sleep(0.5)
    late = NodeInfo(1, "host", 0, {}, alive=False, incarnation=1, reason="connection lost")
    session.cluster.processes["node:1"].arrive("gcs", "node:1", [NodeChanged(late)])
    refs = [large.remote() for _ in range(5)]
    ray.wait(refs, num_returns=5, fetch_local=False)
    assert session.cluster.node_managers[1].objects.memory.on_disk, "the first is on disk"
    assert ray.get([size.remote([ref]) for ref in refs]) == [300_000] * 5
    ray.shutdown()


def test_a_node_that_gives_no_work_ahead_does_not_look_for_stuck_tasks_all_the_time() -> None:
    """While an actor waited for its CPU, it looked again at once."""

    @ray.remote
    def work() -> None:
        ray.sleep(0.5)

    @ray.remote(num_cpus=1)
    class Waits:
        pass

    def turns(**timers: float) -> int:
        session: Any = ray.init(backend="sim", nodes=1, cpus_per_node=1, timers=timers)
        try:
            running = work.remote()
            ray.sleep(0.1)
            waiting = [Waits.remote() for _ in range(3)]
            ray.get(running)
            del waiting
            return int(session.cluster.counts["node"].turns)
        finally:
            ray.shutdown()

    assert turns(ahead_s=0.0) < 10 * turns()
