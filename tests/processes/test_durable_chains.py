"""Replicas and shards of the GCS with files of their own: all may die, nothing is lost."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.control.core.addresses import chain_of
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually
from tests.processes.test_head_restart import add, await_chains, nested, pid, replicas

KINDS: list[dict[str, Any]] = [
    {"gcs_replicas": 3},
    {"gcs_shards": 2},
    {"gcs_shards": 2, "gcs_replicas": 2},
]


def all_replicas(session: Any) -> list[str]:
    session.cluster.poll()
    return [name for row in session.query("chain") for name in replicas(session, row["chain"])]


def kill(session: Any, keys: list[str]) -> None:
    for key in keys:
        os.kill(pid(session, key), signal.SIGKILL)


def replace(session: Any, victim: str) -> None:
    """Kill one of the two members of the only chain, and wait until another is in its place.

    A node has heard of the chain as it was before for a while: if the next member were killed
    then, it might be the last one, which is started again under its name and keeps its file.
    """
    session.cluster.kill_replica(victim)

    def replaced() -> bool:
        [row] = session.query("chain")
        members = row["names"]
        return victim not in members and len(members) == 2 and members == replicas(session)

    eventually(replaced)


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("head", [True, False])
def test_when_every_process_of_the_gcs_is_killed_it_goes_on_from_its_files(
    start: Start, tmp_path: Path, options: dict[str, Any], head: bool
) -> None:
    session = start(nodes=2, cpus_per_node=1, gcs_storage=tmp_path / "gcs", **options)
    members = options.get("gcs_replicas", 1)
    await_chains(session, members)
    written = 0
    for round_ in range(2):
        for _ in range(100):
            session.kv_put(b"key%d" % written, b"value%d" % written)
            written += 1
        refs = [add.remote(i, round_) for i in range(300)]
        deep = [nested.remote(5) for _ in range(4)]
        epochs = [row["epoch"] for row in session.query("chain")]
        kill(session, [*all_replicas(session), *(["head"] if head else [])])
        assert ray.get(refs, timeout=LIMIT_S) == [i + round_ for i in range(300)]
        assert ray.get(deep, timeout=LIMIT_S) == [15] * 4
        for number in range(written):
            assert session.kv_get(b"key%d" % number) == b"value%d" % number

        def anew(epochs: list[int] = epochs) -> bool:
            rows = session.query("chain")
            return all(row["epoch"] > epochs[row["chain"]] for row in rows)

        eventually(anew)
        await_chains(session, members)
    assert [row["alive"] for row in session.query("nodes")] == [True, True]


def test_files_of_replicas_that_are_left_out_go(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "gcs"
    session = start(nodes=1, cpus_per_node=1, gcs_storage=directory, gcs_replicas=2)
    await_chains(session, 2)
    for _ in range(3):
        session.kv_put(b"key", b"value")
        replace(session, replicas(session)[0])

    def files() -> list[str]:
        return sorted(path.name for path in directory.glob("*.sqlite3"))

    numbers = sorted(int(name.partition(".")[2]) for name in replicas(session))
    eventually(lambda: files() == sorted(f"chain0-{number}.sqlite3" for number in numbers))


@pytest.mark.parametrize("options", [{"gcs_replicas": 2}, {"gcs_shards": 2}])
def test_rows_on_disk_are_found_whoever_dies(
    start: Start, tmp_path: Path, options: dict[str, Any]
) -> None:
    """A new replica gets the rows that were flushed before it was there."""
    directory = tmp_path / "gcs"
    session = start(
        nodes=1, cpus_per_node=1, gcs_storage=directory, gcs_memory_max=100_000,
        task_history=True, **options,
    )  # fmt: skip
    await_chains(session, options.get("gcs_replicas", 1))
    first = [add.remote(i, 0) for i in range(8)]
    ray.get(first)
    oldest = [ref.binary() for ref in first]
    del first
    for _ in range(6):
        ray.get([add.remote(i, i) for i in range(1000)])

    def flushed(path: Path) -> set[bytes]:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
            batches = db.execute("SELECT keys FROM cold").fetchall()
            return {keys[at : at + 12] for (keys,) in batches for at in range(0, len(keys), 12)}

    def on_disk() -> bool:
        ray.get(add.remote(0, 0))
        kept = [flushed(path) for path in directory.glob("*.sqlite3")]
        return all(any(task[:12] in keys for keys in kept) for task in oldest)

    eventually(on_disk)
    if "gcs_replicas" in options:
        # One after the other is replaced: nobody is left of those that have written the rows.
        for victim in replicas(session):
            replace(session, victim)
    else:
        kill(session, all_replicas(session))
    for task in oldest:
        assert session.find_task(task)["tasks"][0][0] == "add"
    assert session.find_task(b"no such task id!!!") is None


@pytest.mark.parametrize("options", [{}, {"gcs_shards": 2}])
def test_a_path_that_does_not_fit_is_refused(
    start: Start, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Of the wrong kind, or with the state of a cluster that has ended."""
    file, directory = tmp_path / "file", tmp_path / "directory"
    file.write_bytes(b"")
    directory.mkdir()
    fitting, other = (directory, file) if options else (file, directory)
    with pytest.raises(ValueError, match=r"give a (file|directory)"):
        start(gcs_storage=other, **options)
    session = start(nodes=1, cpus_per_node=1, gcs_storage=fitting, **options)
    session.kv_put(b"key", b"value")
    assert {chain_of(name) for name in all_replicas(session)} == ({0, 1, 2} if options else set())
    ray.shutdown()
    with pytest.raises(ValueError, match="a cluster that has ended"):
        start(gcs_storage=fitting, **options)
