"""Pages touched ahead of need: as many as use asks for, and not one for nothing."""

from __future__ import annotations

import os
import time

from raytwin.runtime.store.arena import Arena
from raytwin.runtime.store.prefault import AHEAD_BYTES_MAX, LARGE_BYTES, Prefaulter

MB = 1 << 20


def resident(arena: Arena) -> int:
    """Return the bytes of the arena that have pages."""
    return os.fstat(arena.fd).st_blocks * 512


def settled(arena: Arena, nbytes: int) -> int:
    deadline = time.monotonic() + 30
    while resident(arena) < nbytes and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)  # it must not go on
    return resident(arena)


def test_an_arena_that_is_hardly_used_is_left_alone() -> None:
    arena = Arena.create(512 * MB)
    prefaulter = Prefaulter(arena.fd, arena.capacity)
    prefaulter.used(LARGE_BYTES - 1)
    assert settled(arena, 0) == 0


def test_half_of_what_is_used_is_touched_beyond_it() -> None:
    arena = Arena.create(512 * MB)
    prefaulter = Prefaulter(arena.fd, arena.capacity)
    prefaulter.used(32 * MB)
    # What is used is touched by who writes it: nobody has, here.
    assert 16 * MB <= settled(arena, 16 * MB) <= 20 * MB
    prefaulter.used(33 * MB)
    assert 16 * MB <= settled(arena, 16 * MB) <= 20 * MB + MB
    prefaulter.used(10 * MB)
    assert settled(arena, 16 * MB) <= 21 * MB
    # It is all zeros still, and may be written.
    assert bytes(arena.readonly(40 * MB, 100)) == bytes(100)
    arena.writable(40 * MB, 3)[:] = b"abc"
    assert bytes(arena.readonly(40 * MB, 3)) == b"abc"


def test_never_beyond_the_arena_s_end_nor_the_most() -> None:
    arena = Arena.create(40 * MB + 100)
    Prefaulter(arena.fd, arena.capacity).used(36 * MB)
    assert settled(arena, 4 * MB) == 4 * MB
    large = Prefaulter(arena.fd, 10 * AHEAD_BYTES_MAX)
    large._thread = object()  # type: ignore[assignment]  # nothing is to be touched
    large.used(8 * AHEAD_BYTES_MAX)
    assert large._target == 9 * AHEAD_BYTES_MAX


def test_what_is_written_meanwhile_stays() -> None:
    arena = Arena.create(256 * MB)
    prefaulter = Prefaulter(arena.fd, arena.capacity)
    prefaulter.used(64 * MB)
    for at in range(64 * MB, 96 * MB, 4096):
        arena.writable(at, 8)[:] = at.to_bytes(8, "big")
    settled(arena, 32 * MB)
    for at in range(64 * MB, 96 * MB, 4096):
        assert int.from_bytes(arena.readonly(at, 8), "big") == at
