"""Objects beyond memory are spilled, restored, and leave nothing on disk."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import raytwin as ray
from raytwin.runtime.api.backend import current
from raytwin.runtime.api.exceptions import ObjectStoreFullError
from raytwin.runtime.processes.node.spiller import SpillFile
from raytwin.runtime.store.arena import create_file
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually

MB = 1 << 20


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=LIMIT_S)


def filled(number: int, nbytes: int = 8 * MB) -> Any:
    """Return an array that tells in every word which one it is."""
    return np.full(nbytes // 8, number, np.int64)


@ray.remote
def first_and_last(array: Any) -> tuple[int, int]:
    return int(array[0]), int(array[-1])


@ray.remote
def add(*arrays: Any) -> int:
    return int(sum(array[-1] for array in arrays))


def on_disk() -> int:
    """Return the bytes of evicted objects on the disks of all nodes."""
    get(ray.put(None))  # the driver says what it has dropped
    return sum(nbytes for _, _, nbytes in current().query("disks"))


def is_freed() -> None:
    def empty() -> bool:
        return on_disk() == 0 and all(row[1:] == [0, 0, 0] for row in current().query("stores"))

    eventually(empty)


def spill_files(pid: int, directory: Path) -> list[tuple[int, int]]:
    """Return (bytes on disk, names) of each file in `directory` that a process has open."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            target, status = os.readlink(path), os.stat(path)
        except OSError as error:
            assert error.errno == errno.ENOENT  # closed meanwhile
            continue
        if target.startswith(str(directory)):
            found.append((status.st_blocks * 512, status.st_nlink))
    return found


def test_objects_go_to_disk_and_come_back(start: Start, tmp_path: Path) -> None:
    session = start(
        nodes=1, cpus_per_node=2, object_store_memory=64 * MB, object_spilling_dir=tmp_path
    )
    refs = [ray.put(filled(i)) for i in range(40)]
    assert on_disk() >= 31 * 8 * MB
    ((used, names),) = spill_files(session.cluster.pids["node:0"], tmp_path)
    assert used >= 31 * 8 * MB and names == 0
    assert not list(tmp_path.iterdir()), "a file has a name"
    for i, ref in enumerate(refs):
        array = get(ref)
        assert array[0] == i and array[-1] == i
        del array
    assert get([first_and_last.remote(ref) for ref in refs]) == [(i, i) for i in range(40)]
    assert get([add.remote(*refs[i : i + 4]) for i in range(36)]) == [4 * i + 6 for i in range(36)]
    del refs[:20], ref
    eventually(lambda: on_disk() <= 20 * 9 * MB)
    refs.clear()
    is_freed()
    node = session.cluster.pids["node:0"]
    eventually(lambda: sum(used for used, _ in spill_files(node, tmp_path)) == 0)


def test_results_larger_than_memory(start: Start) -> None:
    start(nodes=1, cpus_per_node=2, object_store_memory=64 * MB)
    make = ray.remote(lambda i: np.full(MB, i, np.int64))
    refs = [make.remote(i) for i in range(30)]
    assert get([first_and_last.remote(ref) for ref in refs]) == [(i, i) for i in range(30)]
    del refs
    is_freed()


def test_mapped_objects_are_not_moved(start: Start) -> None:
    start(nodes=1, cpus_per_node=1, object_store_memory=64 * MB)
    kept = [get(ray.put(filled(i))) for i in range(3)]
    addresses = [array.ctypes.data for array in kept]
    refs = [ray.put(filled(100 + i)) for i in range(30)]
    for i, ref in enumerate(refs):
        assert get(first_and_last.remote(ref)) == (100 + i, 100 + i)
    for i, array in enumerate(kept):
        assert array.ctypes.data == addresses[i] and (array == i).all()
    rows = current().query("stores")
    assert rows[0][2] >= 3 * 8 * MB


def test_references_alone_keep_nothing_in_memory(start: Start) -> None:
    start(nodes=1, cpus_per_node=1, object_store_memory=64 * MB)
    refs = [ray.put(filled(i)) for i in range(20)]
    # Each was got and is not looked at any more: the pin is asked back.
    for _ in range(2):
        for i, ref in enumerate(refs):
            assert get(ref)[0] == i


def test_what_finds_no_room_in_memory_is_mapped_from_the_file(start: Start, tmp_path: Path) -> None:
    session = start(
        nodes=1, cpus_per_node=2, object_store_memory=64 * MB, object_spilling_dir=tmp_path
    )
    node, driver = session.cluster.pids["node:0"], os.getpid()
    kept = get([ray.put(filled(i)) for i in range(6)])
    large = ray.put(filled(9, 65 * MB))
    refs = [large, ray.put(filled(10, 40 * MB))]
    kept += get(refs)
    assert [(array[0], array[-1]) for array in kept] == [(i, i) for i in (*range(6), 9, 10)]
    assert not kept[-1].flags.writeable
    assert get([first_and_last.remote(ref) for ref in refs]) == [(9, 9), (10, 10)]
    ((used, names),) = spill_files(node, tmp_path)
    assert used >= 105 * MB and names == 0 and spill_files(driver, tmp_path)
    # What is spilled and cannot return is mapped where it is.
    spilled = [ray.put(filled(20 + i)) for i in range(4)]
    kept += get(spilled)
    assert [array[-1] for array in kept[-4:]] == [20, 21, 22, 23]
    assert spill_files(node, tmp_path)[0][0] <= 105 * MB + 5 * 8 * MB
    del kept, refs, large, spilled
    is_freed()
    eventually(lambda: spill_files(node, tmp_path)[0][0] == 0)
    assert get(ray.put(filled(9, 65 * MB)))[-1] == 9


def test_objects_in_the_file_move_between_nodes(start: Start) -> None:
    start(nodes=2, cpus_per_node=1, object_store_memory=32 * MB)
    far = ray.remote(lambda size: filled(5, size)).options(resources={"node:1": 0.01})
    refs = [far.remote(40 * MB), ray.put(filled(6, 40 * MB))]
    check = first_and_last.options(resources={"node:1": 0.01})
    assert [get(ref)[-1] for ref in refs] == [5, 6]
    assert get([check.remote(ref) for ref in refs]) == [(5, 5), (6, 6)]
    del refs
    is_freed()


def test_a_disk_that_cannot_be_written_is_an_error(start: Start, tmp_path: Path) -> None:
    session = start(
        nodes=1, cpus_per_node=1, object_store_memory=32 * MB, object_spilling_dir=tmp_path
    )
    node = psutil.Process(session.cluster.pids["node:0"])
    limits = node.rlimit(psutil.RLIMIT_FSIZE)
    node.rlimit(psutil.RLIMIT_FSIZE, (1 << 12, limits[1]))
    kept = [ray.put(filled(i)) for i in range(3)]
    with pytest.raises(ObjectStoreFullError, match=f"cannot be written to disk: .*{tmp_path}"):
        ray.put(filled(3))
    with pytest.raises(ObjectStoreFullError, match="no room for 68,1"):
        ray.put(filled(3, 65 * MB))
    assert [get(first_and_last.remote(ref)) for ref in kept] == [(i, i) for i in range(3)]
    del kept
    assert get(ray.put(filled(4)))[0] == 4


def test_a_full_disk_is_an_error_and_keeps_nothing(tmp_path: Path) -> None:
    fd = create_file(str(tmp_path))
    file = SpillFile(fd)
    place = file.write(memoryview(b"x" * 10_000))
    before = file.allocator.used
    file.fd = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(OSError, match="No space left"):
        file.write(memoryview(bytes(10_000)))
    with pytest.raises(OSError):  # it is no file
        file.reserve(10_000)
    os.close(file.fd)
    file.fd = fd
    assert file.allocator.used == before
    reserved = file.reserve(10_000)
    back = bytearray(10_000)
    file.read(place, memoryview(back))
    assert back == b"x" * 10_000
    file.free(place)
    file.free(reserved)
    assert file.allocator.used == 0 and os.fstat(fd).st_blocks == 0
    os.close(fd)


def test_a_directory_that_is_none_is_refused(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"object_spilling_dir: .*nowhere is not a directory"):
        start(object_spilling_dir=tmp_path / "nowhere")


def test_killing_a_node_leaves_no_file(start: Start, tmp_path: Path) -> None:
    session = start(
        nodes=2, cpus_per_node=1, object_store_memory=32 * MB, object_spilling_dir=tmp_path
    )
    make = ray.remote(lambda i: np.full(MB, i, np.int64)).options(resources={"node:1": 0.01})
    refs = [make.remote(i) for i in range(12)]
    assert len(ray.wait(refs, num_returns=12, fetch_local=False, timeout=LIMIT_S)[0]) == 12
    session.cluster.poll()
    pid = session.cluster.pids["node:1"]
    assert sum(used for used, _ in spill_files(pid, tmp_path)) >= 8 * 8 * MB
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(pid))
    assert not list(tmp_path.iterdir())
    # Nobody else has it open, so the kernel has given it back.
    assert not any(spill_files(session.cluster.pids[name], tmp_path) for name in ("zygote", "head"))
    assert sum(used for used, _ in spill_files(session.cluster.pids["node:0"], tmp_path)) == 0


def test_another_node_gets_what_is_on_disk(start: Start) -> None:
    start(nodes=2, cpus_per_node=1, object_store_memory=64 * MB)
    far = first_and_last.options(resources={"node:1": 0.01})
    refs = [ray.put(filled(i)) for i in range(30)]
    for _ in range(2):
        assert get([far.remote(ref) for ref in refs]) == [(i, i) for i in range(30)]
    rows = {node: nbytes for node, _, nbytes in current().query("disks")}
    assert rows[0] > 0 and 0 < rows[1] <= 30 * 9 * MB, "each copy is written once"
    del refs
    is_freed()


def test_the_node_goes_on_while_it_writes(start: Start) -> None:
    start(nodes=1, cpus_per_node=1, object_store_memory=128 * MB)
    small = ray.remote(lambda i: i)
    refs = []
    for i in range(40):
        refs.append(ray.put(filled(i)))
        assert get(small.remote(i)) == i
    assert get([first_and_last.remote(ref) for ref in refs]) == [(i, i) for i in range(40)]
