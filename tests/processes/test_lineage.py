"""Values whose only copy dies with its node, on real processes: reconstructed or lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ObjectLostError
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually

SIZE = 1 << 18
"""Bytes: too large to ride in messages."""


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=LIMIT_S)


@pytest.fixture
def four(start: Start) -> Iterator[Any]:
    """The driver's node cannot run what needs an A."""
    session = start(
        nodes=[{"CPU": 1}, *({"CPU": 1, "A": 1} for _ in range(3))], heartbeat_timeout_s=3.0
    )
    eventually(lambda: len(ray.nodes()) == 4)
    yield session


@ray.remote(resources={"A": 0.1})
def link(last: Any, log: str, name: str) -> Any:
    with open(log, "a", encoding="utf-8") as file:
        file.write(name)
    return last + np.ones(SIZE, np.uint8)


@ray.remote(resources={"A": 0.1})
def first(log: str) -> Any:
    with open(log, "a", encoding="utf-8") as file:
        file.write("0")
    return np.zeros(SIZE, np.uint8)


def made(ref: Any) -> Any:
    assert ray.wait([ref], timeout=LIMIT_S, fetch_local=False)[0] == [ref]
    return ref


def kill_holders(session: Any) -> None:
    """Kill every node but the driver's that has a large object."""
    for node, large, *_ in session.query("stores"):
        if node and large:
            session.cluster.kill(f"node:{node}", signal.SIGKILL)
            eventually(lambda node=node: not ray.nodes()[node]["Alive"])


def chain(log: Path, length: int, **options: Any) -> Any:
    """Return the last of a chain of large values; all others are released."""
    value = first.options(**options).remote(str(log))
    for number in range(1, length):
        value = link.options(**options).remote(value, str(log), str(number))
    made(value)
    return value


def only_last_left(session: Any) -> None:
    eventually(lambda: sum(large for _, large, *_ in session.query("stores")) <= 2)


@pytest.mark.parametrize("kind", ["replicas", "durable"])
def test_lineage_outlives_the_gcs_process(start: Start, tmp_path: Path, kind: str) -> None:
    options = {"gcs_replicas": 2} if kind == "replicas" else {"gcs_storage": tmp_path / "gcs"}
    session = start(
        nodes=[{"CPU": 1}, *({"CPU": 1, "A": 1} for _ in range(3))],
        heartbeat_timeout_s=3.0,
        **options,
    )
    eventually(lambda: len(ray.nodes()) == 4)
    log = tmp_path / "runs"
    last = chain(log, 4)
    only_last_left(session)
    session.cluster.poll()
    pids = dict(session.cluster.pids)
    victims = sorted(name for name in pids if name.startswith("replica:")) or ["head"]
    os.kill(pids[victims[-1]], signal.SIGKILL)
    kill_holders(session)
    assert (get(last) == 3).all()
    assert sorted(set(log.read_text())) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("length", [1, 4])
def test_a_chain_comes_back_by_its_lineage(four: Any, tmp_path: Path, length: int) -> None:
    log = tmp_path / "runs"
    last = chain(log, length)
    only_last_left(four)
    kill_holders(four)
    assert (get(last) == length - 1).all()
    runs = log.read_text()
    assert sorted(set(runs)) == [str(number) for number in range(length)]
    assert runs.count(str(length - 1)) == 2
    counts = four.query("event_counts")
    assert counts["task_reconstructed"] + counts.get("task_retried", 0) == len(runs) - length
    named = {row[2] for row in four.query("events") if row[1] == "task_reconstructed"}
    assert named == {"first" if length == 1 else "link"}


def test_a_task_that_needs_a_lost_value_gets_it(four: Any, tmp_path: Path) -> None:
    log = tmp_path / "runs"
    last = chain(log, 2)
    only_last_left(four)
    kill_holders(four)
    total = ray.remote(lambda value: int(value.sum()))
    assert get([total.remote(last) for _ in range(4)]) == [SIZE] * 4
    assert log.read_text().count("1") == 2


def test_without_retries_it_is_lost(four: Any, tmp_path: Path) -> None:
    log = tmp_path / "runs"
    last = chain(log, 2, max_retries=0)
    only_last_left(four)
    kill_holders(four)
    with pytest.raises(ObjectLostError, match="link has no retries left"):
        get(last)
    assert log.read_text() == "01"
    assert four.query("event_counts")["object_lost"] >= 1


def test_a_put_is_lost_and_the_error_names_the_cause(four: Any) -> None:
    @ray.remote(resources={"A": 0.1})
    def put_one() -> Any:
        return [ray.put(np.ones(SIZE, np.uint8))]

    [ref] = get(put_one.remote())
    kill_holders(four)
    with pytest.raises(ObjectLostError, match="its owner has died, and it was put"):
        get(ref)


def test_values_lost_again_and_again_come_back(four: Any) -> None:
    @ray.remote(max_retries=-1)
    def slow(number: int) -> Any:
        time.sleep(0.02)
        return np.full(SIZE, number, np.uint8)

    refs = [slow.remote(number) for number in range(40)]
    sums = [ray.remote(max_retries=-1)(lambda v: int(v[0])).remote(ref) for ref in refs]
    time.sleep(0.3)
    for node in (1, 2):
        four.cluster.kill(f"node:{node}", signal.SIGKILL)
        time.sleep(0.3)
    assert get(sums) == list(range(40))
    assert [int(value[-1]) for value in get(refs)] == list(range(40))


def test_values_of_a_paused_node_are_reconstructed_when_it_is_declared_dead(
    four: Any, tmp_path: Path
) -> None:
    last = chain(tmp_path / "runs", 1)
    [holder] = [node for node, large, *_ in four.query("stores") if large]
    pid = four.cluster.pids[f"node:{holder}"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert (get(last) == 0).all()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (tmp_path / "runs").read_text() == "00"
