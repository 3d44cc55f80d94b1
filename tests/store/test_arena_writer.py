"""`ArenaWriter`: the same bytes whatever pages there were, and no fault for a new one."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Iterator

import numpy as np
import pytest

from raytwin.runtime.serialization.serialization import deserialize, serialize
from raytwin.runtime.store.arena import Arena
from raytwin.runtime.store.arena_writer import LOOK_MIN, PIECE_BYTES, ArenaWriter, Copier

PAGE = mmap.PAGESIZE
CAPACITY = 32 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(CAPACITY)
    yield made
    made.close()


def page_at(arena: Arena, offset: int) -> bool:
    """Whether a page of the arena has been touched."""
    return os.lseek(arena.fd, offset, os.SEEK_HOLE) != offset


@pytest.mark.parametrize("offset", [0, 64, 3 * PAGE, 5 * PAGE + 640])
@pytest.mark.parametrize("touched", [0, 1, PAGE, 700_000, 1_500_000, CAPACITY])
@pytest.mark.parametrize("nbytes", [10, LOOK_MIN - 1, LOOK_MIN, 2 * PIECE_BYTES + 4711])
def test_every_byte_arrives_and_none_beside(
    arena: Arena, offset: int, touched: int, nbytes: int
) -> None:
    arena.writable(0, touched)[:] = b"\x4d" * touched
    copier = Copier()
    array = np.random.default_rng(nbytes).integers(0, 255, nbytes, np.uint8)
    value = serialize(array)
    ArenaWriter(arena, copier).write(value, offset)
    copier.close()
    end = offset + value.nbytes
    assert np.array_equal(deserialize(arena.readonly(offset, value.nbytes)), array)
    assert bytes(arena.readonly(0, offset)) == (b"\x4d" * touched + bytes(offset))[:offset]
    rest = bytes(arena.readonly(end, CAPACITY - end))
    assert rest == (b"\x4d" * max(0, touched - end) + bytes(CAPACITY))[: CAPACITY - end]


def test_several_arrays_of_one_value(arena: Arena) -> None:
    arrays = [np.full(size, size % 251, np.uint8) for size in (5_000_000, 3, 2_000_001, 0)]
    value = serialize(arrays)
    ArenaWriter(arena, Copier()).write(value, PAGE)
    for found, array in zip(deserialize(arena.readonly(PAGE, value.nbytes)), arrays, strict=True):
        assert np.array_equal(found, array)


def test_new_pages_are_not_mapped_one_by_one(arena: Arena) -> None:
    nbytes = 16 << 20
    value, writer = serialize(np.ones(nbytes, np.uint8)), ArenaWriter(arena, Copier(1))

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        writer.write(value, 0)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    assert faults() < nbytes // PAGE // 8
    assert page_at(arena, nbytes // 2)
    assert not page_at(arena, nbytes + PAGE)
    assert faults() > 0, "what is there is copied to the mapping"


def test_a_value_that_does_not_fit_is_refused_and_nothing_is_written(arena: Arena) -> None:
    value = serialize(np.ones(2 * LOOK_MIN, np.uint8))
    with pytest.raises(ValueError, match="outside"):
        ArenaWriter(arena, Copier(1)).write(value, CAPACITY - LOOK_MIN)
    assert not page_at(arena, CAPACITY - PAGE)
