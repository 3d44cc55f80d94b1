"""A killed head comes back with its acknowledged state, and work goes on."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.processes.head.gcs_storage import ColdRows
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually


@ray.remote
def add(x: int, y: int) -> int:
    return x + y


def kill_head(session: Any) -> None:
    session.cluster.poll()
    before = session.cluster.pids["head"]
    os.kill(before, signal.SIGKILL)

    def another() -> bool:
        session.cluster.poll()
        return bool(session.cluster.pids["head"] != before)

    eventually(another)


def test_a_killed_head_comes_back_under_load(start: Start, tmp_path: Path) -> None:
    session = start(nodes=2, cpus_per_node=1, gcs_storage=tmp_path / "gcs.sqlite3")
    for round_ in range(3):
        for number in range(50):
            session.kv_put(b"%d/%d" % (round_, number), b"%d" % number)
        refs = [add.remote(i, round_) for i in range(500)]
        kill_head(session)
        assert ray.get(refs, timeout=LIMIT_S) == [i + round_ for i in range(500)]
        for number in range(50):
            assert session.kv_get(b"%d/%d" % (round_, number)) == b"%d" % number
    assert [row["alive"] for row in session.query("nodes")] == [True, True]
    # Tasks still find their way to the other node, by the global scheduler.
    other = add.options(resources={"node:1": 0.1})
    assert ray.get(other.remote(1, 2), timeout=LIMIT_S) == 3


def test_queued_tasks_survive_a_restart_of_the_head(start: Start, tmp_path: Path) -> None:
    session = start(nodes=[{"CPU": 1}, {"CPU": 1, "X": 1}], gcs_storage=tmp_path / "gcs.sqlite3")
    blocker = add.options(resources={"X": 1})
    waiting = add.options(resources={"nowhere": 1}).remote(1, 1)
    assert ray.get(blocker.remote(1, 1), timeout=LIMIT_S) == 2
    kill_head(session)
    assert ray.get(blocker.remote(2, 2), timeout=LIMIT_S) == 4
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray.get(waiting, timeout=0.1)
    # The restarted scheduler knows it: it is in the state that the file has.
    session.kv_put(b"key", b"value")


def test_rows_over_the_limit_are_found_on_disk(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "gcs.sqlite3"
    session = start(
        nodes=1, cpus_per_node=1, gcs_storage=path, gcs_memory_max=100_000, task_history=True
    )
    first = add.remote(0, 0)
    ray.get(first)
    oldest = first.binary()
    del first
    for _ in range(4):
        ray.get([add.remote(i, i) for i in range(1000)])

    def on_disk() -> bool:
        ray.get(add.remote(0, 0))
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
            return ColdRows(db).find(oldest[:12]) is not None

    eventually(on_disk)
    assert session.find_task(oldest)["tasks"][0][0] == "add"
    kill_head(session)
    assert session.find_task(oldest)["tasks"][0][0] == "add"
    assert session.find_task(b"no such task id!!!") is None


@pytest.mark.parametrize("options", [{}, {"gcs_replicas": 2}, {"gcs_shards": 2}])
def test_a_head_without_storage_does_not_come_back(start: Start, options: Any) -> None:
    session = start(nodes=1, cpus_per_node=1, **options)
    session.cluster.poll()
    os.kill(session.cluster.pids["head"], signal.SIGKILL)
    with pytest.raises(ray.exceptions.RaySystemError):
        while True:
            session.kv_put(b"key", b"value")


@pytest.mark.parametrize(
    "options",
    [
        {"gcs_memory_max": 1000},
        {"gcs_memory_max": -1, "gcs_storage": "x"},
        {"gcs_memory_max": 1000, "gcs_replicas": 2},
        {"gcs_storage": "x", "gcs_replicas": 2},
        {"gcs_storage": "x", "gcs_shards": 2},
    ],
)
@pytest.mark.parametrize("backend", ["local", "sim"])
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], backend: str) -> None:
    with pytest.raises(ValueError, match="gcs_"):
        ray.init(backend=backend, **options)
