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


def test_the_error_of_a_full_store_lists_its_objects(start: Start) -> None:
    start(nodes=1, cpus_per_node=1, object_store_memory=64 * MB)
    ignored = [ray.put(filled(i)) for i in range(8)]
    kept = get([ray.put(filled(i)) for i in range(6)])
    with pytest.raises(ObjectStoreFullError) as caught:
        ray.put(filled(9, 40 * MB))
    text = str(caught.value)
    for part in ("no room for 41,9", "of 67,108,864", "50,33", "in use", "on disk"):
        assert part in text, text
    with pytest.raises(ObjectStoreFullError, match="the whole object store has 67,108,864"):
        ray.put(filled(9, 65 * MB))
    del kept
    assert get(ray.put(filled(9, 40 * MB)))[-1] == 9
    assert get(ignored[0])[0] == 0


def test_a_disk_that_cannot_be_written_is_an_error(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    start(nodes=1, cpus_per_node=1, object_store_memory=32 * MB, object_spilling_dir=directory)
    directory.rmdir()
    kept = [ray.put(filled(i)) for i in range(3)]
    with pytest.raises(ObjectStoreFullError, match=r"cannot be written to disk: .*gone"):
        ray.put(filled(3))
    assert [get(first_and_last.remote(ref)) for ref in kept] == [(i, i) for i in range(3)]
    del kept
    assert get(ray.put(filled(4)))[0] == 4


def test_a_full_disk_is_an_error_and_keeps_nothing(tmp_path: Path) -> None:
    file = SpillFile(str(tmp_path))
    place = file.write(memoryview(b"x" * 10_000))
    before = file.allocator.used
    fd, file.fd = file.fd, os.open("/dev/full", os.O_RDWR)
    with pytest.raises(OSError, match="No space left"):
        file.write(memoryview(bytes(10_000)))
    os.close(file.fd)
    file.fd = fd
    assert file.allocator.used == before
    back = bytearray(10_000)
    file.read(place, memoryview(back))
    assert back == b"x" * 10_000
    file.free(place)
    assert file.allocator.used == 0 and os.fstat(fd).st_blocks == 0


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
    others = [session.cluster.pids[name] for name in ("zygote", "head", "node:0")]
    assert not any(spill_files(other, tmp_path) for other in others)


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
