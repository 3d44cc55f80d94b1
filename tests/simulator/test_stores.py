"""Object stores in virtual time: bytes over the network, full stores, disks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from tests.simulator.conftest import changed
from tests.simulator.programs import size
from tests.simulator.virtual_cluster import BANDWIDTH, LATENCY_S, elapsed_s, start


def fetch_s(profile: str, nbytes: int) -> float:
    """Return how long a task takes on node 1 that needs a blob of node 0."""
    start(nodes=2, cpus_per_node=1, profile=profile)
    there = size.options(resources={"node:1": 0.1})
    blob = ray.put(ray.Blob(nbytes))
    # Makes the worker and brings the function there, which is not to be timed.
    ray.get(there.remote(ray.put(ray.Blob(200_000))))
    began_s = ray.now()
    assert ray.get(there.remote(blob)) == nbytes
    took_s = ray.now() - began_s
    ray.shutdown()
    return took_s


def test_a_blob_takes_its_bytes_by_the_bandwidth(free: str) -> None:
    small, large = fetch_s(free, 1_000_000), fetch_s(free, 3_000_000_000)
    assert large - small == pytest.approx((3_000_000_000 - 1_000_000) / BANDWIDTH, rel=1e-6)
    # What is left are latencies: of messages, of the request, of the last byte.
    hops = (small - 1_000_000 / BANDWIDTH) / LATENCY_S
    assert 3 <= hops <= 12


def test_two_blobs_share_the_bandwidth(free: str) -> None:
    start(nodes=3, cpus_per_node=1, profile=free)
    nbytes = 1_000_000_000
    blobs = [ray.put(ray.Blob(nbytes)) for _ in range(2)]
    tasks = [size.options(resources={f"node:{n}": 0.1}) for n in (1, 2)]
    took_s = elapsed_s(
        lambda: ray.get([task.remote(blob) for task, blob in zip(tasks, blobs, strict=True)])
    )
    # Both leave through the network card of node 0.
    assert took_s == pytest.approx(2 * nbytes / BANDWIDTH, rel=0.05)


def test_a_transfer_needs_a_core_at_either_end(free: str, tmp_path: Path) -> None:
    nbytes, byte_s = 1_000_000_000, 1e-9
    at_once = fetch_s(free, nbytes)
    # Cores that keep up with the network cost no time.
    assert fetch_s(changed(free, tmp_path, transfer_byte_s=0.5 / BANDWIDTH), nbytes) == at_once
    slow_s = fetch_s(changed(free, tmp_path, transfer_byte_s=byte_s), nbytes)
    assert slow_s == pytest.approx(nbytes * byte_s + at_once - nbytes / BANDWIDTH, rel=0.01)


def test_a_transfer_fails_whose_source_dies_while_cores_are_still_at_it(
    free: str, tmp_path: Path
) -> None:
    profile = changed(free, tmp_path, transfer_byte_s=2e-9)
    nodes = [{"CPU": 0}, {"CPU": 1, "reads": 1}, {"CPU": 1, "makes": 1}]
    session = start(nodes=nodes, profile=profile)
    make = ray.remote(ray.Blob).options(resources={"makes": 1})
    read = size.options(resources={"reads": 1})
    assert ray.get(read.remote(make.remote(1_000))) == 1_000
    blob = make.remote(1_000_000_000)
    ray.wait([blob], fetch_local=False)
    found = read.remote(blob)
    ray.sleep(1.5)  # after 1 s the last byte has arrived
    session.cluster.kill_node(2)
    assert ray.wait([found], timeout=1)[0] == []
    session.cluster.add_node({"CPU": 1, "makes": 1})
    assert ray.get(found) == 1_000_000_000
    ray.sleep(5)
    assert session.cluster.working == 0


def test_a_node_that_hangs_transfers_nothing(free: str, tmp_path: Path) -> None:
    nbytes = 1_000_000_000
    session = start(nodes=2, cpus_per_node=1, profile=changed(free, tmp_path, transfer_byte_s=2e-9))
    there = size.options(resources={"node:1": 0.1})
    assert ray.get(there.remote(ray.Blob(1))) == 1
    began_s = ray.now()
    found = there.remote(ray.put(ray.Blob(nbytes)))
    ray.sleep(1.5)  # the last byte has arrived, and the cores are still at it
    session.cluster.pause_node(1)
    ray.sleep(0.7)
    session.cluster.resume_node(1)
    assert ray.get(found) == nbytes
    assert ray.now() - began_s == pytest.approx(2.7, rel=0.02)


def test_memory_of_a_store_costs_its_first_touch_once(free: str, tmp_path: Path) -> None:
    start(profile=changed(free, tmp_path, touch_byte_s=1e-9), object_store_memory=2e9)
    nbytes = 500_000_000
    blob = ray.Blob(nbytes)
    before = elapsed_s(lambda: ray.put(ray.Blob(1_000_000)))
    kept: list[Any] = []
    first, second = (elapsed_s(lambda: kept.append(ray.put(blob))) for _ in range(2))
    assert first == pytest.approx(0.5, rel=0.01) == second  # each has memory of its own
    kept.clear()
    ray.sleep(1)
    again = elapsed_s(lambda: kept.append(ray.put(blob)))
    assert again < 0.01 and before < 0.01


def test_an_object_that_arrives_touches_memory(free: str, tmp_path: Path) -> None:
    nbytes = 1_000_000_000
    touched_s = fetch_s(changed(free, tmp_path, touch_byte_s=3e-9), nbytes) - fetch_s(free, nbytes)
    # 3 s of a core at the node that receives, while it takes 1 s on the way.
    assert touched_s == pytest.approx(2, rel=0.01)


def test_making_a_blob_takes_cpu_time(free: str, tmp_path: Path) -> None:
    start(profile=changed(free, tmp_path, blob_byte_s=1e-9))
    assert elapsed_s(lambda: (ray.Blob(500_000_000), ray.sleep(0))) == pytest.approx(0.5)


def test_blobs_take_no_memory_and_fill_the_store(free: str) -> None:
    session = start(object_store_memory=10_000_000, profile=free)
    kept = ray.put(ray.Blob(8_000_000))
    large = ray.put(ray.Blob(12_000_000))
    assert 12_000_000 <= disk_of(session)[0] < 12_100_000
    assert ray.get(kept) == ray.Blob(8_000_000) and ray.get(large) == ray.Blob(12_000_000)
    del kept, large
    ray.sleep(1)
    assert disk_of(session)[0] == 0
    assert ray.get(ray.put(ray.Blob(8_000_000))).nbytes == 8_000_000


def disk_of(session: Any, node: int = 0) -> tuple[int, int]:
    """Return (bytes on a node's disk, bytes written to it so far)."""
    store = session.cluster.stores[node]
    assert store.used <= store.capacity
    return store.disk_used, store.spilled_bytes


def test_objects_are_spilled_and_restored(free: str) -> None:
    session = start(object_store_memory=10_000_000, profile=free)
    values = [(n, ray.Blob(3_000_000)) for n in range(20)]
    refs = [ray.put(value) for value in values]
    on_disk, written = disk_of(session)
    assert on_disk == written and 50_000_000 < on_disk <= 60_100_000
    # One at a time: what a program looks at does not leave.
    assert all(ray.get(refs[n]) == values[n] for n in (*range(20), *reversed(range(20))))
    # What was written once is clean: it leaves memory without being written again.
    assert disk_of(session)[1] <= 60_100_000
    del refs
    ray.get(ray.put(None))
    ray.sleep(1)
    assert disk_of(session)[0] == 0


def test_the_disk_takes_its_time(free: str, tmp_path: Path) -> None:
    def put_five() -> None:
        refs = [ray.put(ray.Blob(8_000_000)) for _ in range(5)]
        assert len(refs) == 5

    path = changed(free, tmp_path, disk_bandwidth=8e6)
    start(object_store_memory=10_000_000, profile=path)
    # Four have to leave, one after another, before the fifth is there.
    assert elapsed_s(put_five) == pytest.approx(4.0, rel=0.05)


def test_inputs_larger_than_memory_reach_their_tasks(free: str) -> None:
    session = start(nodes=2, cpus_per_node=2, object_store_memory=10_000_000, profile=free)
    blobs = [ray.put(ray.Blob(2_000_000 + n)) for n in range(20)]
    pair = ray.remote(lambda a, b: a.nbytes + b.nbytes)
    far = pair.options(resources={"node:1": 0.01})
    for task in (pair, far, pair):
        refs = [task.remote(blobs[n], blobs[-n]) for n in range(20)]
        expected = [4_000_000 + n + (-n) % 20 for n in range(20)]
        assert ray.get(refs) == expected
    # Copies are written, too, each of them once.
    assert 0 < disk_of(session, 1)[1] <= 40_100_000


class Adder:
    """Adds sizes up."""

    def __init__(self, *values: Any) -> None:
        self.nbytes = sum(value.nbytes for value in values)

    def add(self, *values: Any) -> int:
        ray.sleep(0.01)
        return self.nbytes + sum(value.nbytes for value in values)


def test_actors_get_inputs_that_had_to_make_room_while_they_waited(free: str) -> None:
    session = start(nodes=2, cpus_per_node=2, object_store_memory=10_000_000, profile=free)
    blobs = [ray.put(ray.Blob(2_000_000 + n)) for n in range(12)]
    adder = ray.remote(Adder)
    adders = [
        adder.options(resources={f"node:{n % 2}": 0.01}).remote(blobs[n], blobs[-1 - n])
        for n in range(3)
    ]
    refs = [
        each.add.remote(blobs[n], blobs[(3 * n + 5) % 12]) for n in range(12) for each in adders
    ]
    expected = [8_000_011 + n + (3 * n + 5) % 12 for n in range(12) for _ in adders]
    assert ray.get(refs) == expected
    for number in range(2):
        scheduler = session.cluster.processes[f"node:{number}"].components[f"node:{number}"]
        assert not scheduler.inputs._claims and not scheduler.objects.memory._claims
