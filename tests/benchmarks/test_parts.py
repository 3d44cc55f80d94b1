"""The parts that every task or object passes: wire, IDs, serialization, store."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from raytwin.runtime.control.core.ids import array_id, object_id, root_task_id
from raytwin.runtime.control.messages import SubmitTasks, TaskSpec
from raytwin.runtime.processes.net import wire
from raytwin.runtime.serialization.serialization import deserialize, serialize
from raytwin.runtime.store.allocator import Allocator
from raytwin.runtime.store.arena import Arena

BATCH = 64
"""Tasks that a client sends at once, `Config.submit_batch_max`."""
MEGABYTE = np.ones(10**6 // 8)
VALUES = {"number": 7, "list": list(range(100)), "array_1mb": MEGABYTE}


def submission() -> list[SubmitTasks]:
    """Return what a driver sends when a program submits `BATCH` tasks."""
    parent = root_task_id("benchmark")
    specs = [
        TaskSpec(array_id(parent, n), 0, 1, bytes(16), b"", "driver:0.0") for n in range(BATCH)
    ]
    return [SubmitTasks(specs)]


def test_encode_frame(benchmark: BenchmarkFixture) -> None:
    messages = submission()
    data = benchmark(wire.encode, "driver:0.0", "node:0", messages)
    assert wire.FrameReader().feed(data)[0].messages == messages


def test_decode_frame(benchmark: BenchmarkFixture) -> None:
    data = wire.encode("driver:0.0", "node:0", submission())
    reader = wire.FrameReader()
    (frame,) = benchmark(reader.feed, data)
    assert len(frame.messages[0].tasks) == BATCH


def test_object_id_of_a_call(benchmark: BenchmarkFixture) -> None:
    parent = root_task_id("benchmark")
    made = benchmark(lambda: object_id(array_id(parent, 12_345), 0, 0))
    assert made.startswith(array_id(parent, 12_345))


@pytest.mark.parametrize("kind", VALUES)
def test_serialize(kind: str, benchmark: BenchmarkFixture) -> None:
    serialized = benchmark(serialize, VALUES[kind])
    assert np.array_equal(deserialize(serialized.to_bytes()), VALUES[kind])


@pytest.mark.parametrize("kind", VALUES)
def test_deserialize(kind: str, benchmark: BenchmarkFixture) -> None:
    data = serialize(VALUES[kind]).to_bytes()
    assert np.array_equal(benchmark(deserialize, data), VALUES[kind])


@pytest.fixture
def arena() -> Iterator[Arena]:
    """An arena with room for one array of 1 MB."""
    made = Arena.create(2 * 10**6)
    yield made
    made.close()


def test_write_1mb_into_touched_memory(arena: Arena, benchmark: BenchmarkFixture) -> None:
    serialized = serialize(MEGABYTE)
    view = arena.writable(0, serialized.nbytes)
    benchmark(serialized.write_into, view)
    assert np.array_equal(deserialize(arena.readonly(0, serialized.nbytes)), MEGABYTE)


def test_allocate_and_free(benchmark: BenchmarkFixture) -> None:
    allocator = Allocator(2 << 30)
    kept = [allocator.allocate(10**5) for _ in range(1_000)]
    for offset in kept[::2]:
        allocator.free(offset)
    used = allocator.used

    def once() -> None:
        allocator.free(allocator.allocate(10**5))

    benchmark(once)
    assert allocator.used == used
