"""The arena: one memory, several processes, nothing left."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from raytwin.runtime.serialization.serialization import deserialize, serialize
from raytwin.runtime.store.arena import Arena

MB = 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(16 * MB)
    yield arena
    arena.close()


def mappings() -> int:
    """Return how many mappings of arenas this process has."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:raytwin-arena")


def in_fork(body: Callable[[], object]) -> int:
    """Run `body` in a forked child; return its wait status, 0 if all went well."""
    pid = os.fork()
    if pid == 0:
        try:
            faulthandler.disable()  # a child that is meant to crash need not say so
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            body()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def test_written_bytes_can_be_read(arena: Arena) -> None:
    arena.writable(64, 5)[:] = b"hello"
    assert bytes(arena.readonly(64, 5)) == b"hello"
    assert bytes(arena.readonly(69, 3)) == b"\0\0\0"


def test_an_arena_takes_memory_only_for_touched_pages() -> None:
    arena = Arena.create(1 << 34)
    try:
        arena.writable(1 << 33, 1)[:] = b"x"
        assert arena.capacity == os.fstat(arena.fd).st_size == 1 << 34
        assert os.fstat(arena.fd).st_blocks * 512 <= 4 * MB
    finally:
        arena.close()


def test_an_arena_has_no_name_and_is_not_inherited(arena: Arena) -> None:
    assert os.fstat(arena.fd).st_nlink == 0
    assert not os.get_inheritable(arena.fd)


def test_a_reader_cannot_write(arena: Arena) -> None:
    view = arena.readonly(0, 8)
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1
    array = np.frombuffer(view, np.uint8)
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_the_hardware_stops_a_reader_that_ignores_the_flag(arena: Arena) -> None:
    readonly = np.frombuffer(arena.readonly(0, 8), np.uint8).ctypes.data
    writable = np.frombuffer(arena.writable(0, 8), np.uint8).ctypes.data
    status = in_fork(lambda: ctypes.memset(readonly, 1, 8))
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    assert in_fork(lambda: ctypes.memset(writable, 1, 8)) == 0
    assert bytes(arena.readonly(0, 8)) == b"\1" * 8


def test_a_forked_process_shares_it(arena: Arena) -> None:
    def child() -> None:
        attached = Arena.attach(os.dup(arena.fd))
        value = deserialize(attached.readonly(0, size))
        attached.writable(MB, 8)[:] = int(value["array"].sum()).to_bytes(8, "little")
        attached.close()

    serialized = serialize({"array": np.arange(100_000)})
    size = serialized.nbytes
    serialized.write_into(arena.writable(0, size))
    assert in_fork(child) == 0
    assert int.from_bytes(arena.readonly(MB, 8), "little") == 100_000 * 99_999 // 2


def test_an_unrelated_process_that_has_the_descriptor_shares_it(arena: Arena) -> None:
    program = (
        "import sys; from raytwin.runtime.store.arena import Arena\n"
        "arena = Arena.attach(int(sys.argv[1]))\n"
        "arena.writable(8, 4)[:] = bytes(arena.readonly(0, 4))[::-1]\n"
        "print(arena.capacity)"
    )
    arena.writable(0, 4)[:] = b"ping"
    done = subprocess.run(
        [sys.executable, "-c", program, str(arena.fd)],
        pass_fds=[arena.fd],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert int(done.stdout) == arena.capacity
    assert bytes(arena.readonly(8, 4)) == b"gnip"


def test_nobody_can_resize_it(arena: Arena) -> None:
    for size in (0, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, size)


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, -1), (0, 16 * MB + 1), (16 * MB, 1)])
def test_views_stay_inside(arena: Arena, offset: int, size: int) -> None:
    for view in (arena.readonly, arena.writable):
        with pytest.raises(ValueError, match="outside"):
            view(offset, size)


def test_closing_leaves_nothing() -> None:
    before = mappings(), len(os.listdir("/proc/self/fd"))
    arena = Arena.create(MB)
    assert mappings() == before[0] + 2
    arena.writable(0, 4)[:] = b"data"
    arena.close()
    arena.close()
    assert (mappings(), len(os.listdir("/proc/self/fd"))) == before
    for use in (lambda: arena.fd, lambda: arena.readonly(0, 1), lambda: arena.writable(0, 1)):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert arena.capacity == MB


def test_forgetting_to_close_leaves_nothing_either() -> None:
    before = mappings(), len(os.listdir("/proc/self/fd"))
    Arena.create(MB)
    assert (mappings(), len(os.listdir("/proc/self/fd"))) == before


def test_views_outlive_the_arena() -> None:
    before = mappings(), len(os.listdir("/proc/self/fd"))
    arena = Arena.create(MB)
    arena.writable(0, 4)[:] = b"data"
    array = np.frombuffer(arena.readonly(0, 4), np.uint8)
    view = arena.writable(4, 4)
    arena.close()
    view[:] = b"more"
    assert array.tobytes() == b"data"
    assert mappings() == before[0] + 2
    del array
    assert mappings() == before[0] + 1
    del view
    assert (mappings(), len(os.listdir("/proc/self/fd"))) == before


def test_a_capacity_is_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        Arena.create(0)
