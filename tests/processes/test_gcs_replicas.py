"""Replicas of the GCS that are killed under load: every value is right, nothing is lost."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import raytwin as ray
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually, kill_at_once

ROUNDS = 5


@ray.remote
def add(x: int, y: int) -> int:
    return x + y


@ray.remote
def nested(count: int) -> int:
    return sum(ray.get([add.remote(i, 1) for i in range(count)]))


def replicas(session: Any) -> list[str]:
    """Return the names of the living replicas, oldest first."""
    session.cluster.poll()
    cluster = session.cluster
    names = [n for n in cluster.pids if n.startswith("replica:") and n not in cluster.exited]
    return sorted(names, key=lambda name: int(name.partition(".")[2]))


def kill(session: Any, name: str) -> None:
    os.kill(session.cluster.pids[name], signal.SIGKILL)
    eventually(lambda: name not in replicas(session))


def work(round_: int) -> None:
    """Tasks that spill to other nodes, wait for each other and nest."""
    first = [add.remote(i, round_) for i in range(200)]
    second = [add.remote(ref, 1) for ref in first]
    deep = [nested.remote(5) for _ in range(4)]
    assert ray.get(second, timeout=LIMIT_S) == [i + round_ + 1 for i in range(200)]
    assert ray.get(deep, timeout=LIMIT_S) == [15] * 4


@pytest.mark.parametrize("which", ["head", "tail"])
def test_a_replica_is_killed_under_load(start: Start, which: str) -> None:
    session = start(nodes=2, cpus_per_node=1, gcs_replicas=2)
    eventually(lambda: len(replicas(session)) == 2)
    for round_ in range(ROUNDS):
        session.kv_put(b"round%d" % round_, b"%d" % round_)
        refs = [add.remote(i, i) for i in range(300)]
        kill(session, replicas(session)[0 if which == "head" else -1])
        assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(300)]
        work(round_)
        # The state is in one replica only until the new one has joined.
        eventually(lambda: session.query("chain")[0]["members"] == 2)
    for round_ in range(ROUNDS):
        assert session.kv_get(b"round%d" % round_) == b"%d" % round_


def test_every_write_that_was_acknowledged_is_read_back(start: Start) -> None:
    session = start(nodes=1, cpus_per_node=1, gcs_replicas=3)
    eventually(lambda: len(replicas(session)) == 3)
    written = 0
    for position in (0, 1, -1):
        for _ in range(100):
            session.kv_put(b"key%d" % written, b"value%d" % written)
            written += 1
        kill(session, replicas(session)[position])
        for number in range(written):
            assert session.kv_get(b"key%d" % number) == b"value%d" % number
        eventually(lambda: session.query("chain")[0]["members"] == 3)


@ray.remote(max_restarts=3, max_task_retries=3)
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


def test_actors_live_on_when_replicas_die(start: Start) -> None:
    session = start(nodes=2, cpus_per_node=1, gcs_replicas=2)
    eventually(lambda: len(replicas(session)) == 2)
    counter = Counter.remote()
    expected = 0
    for _ in range(2):
        refs = [counter.add.remote() for _ in range(20)]
        kill(session, replicas(session)[0])
        assert ray.get(refs, timeout=LIMIT_S) == list(range(expected + 1, expected + 21))
        expected += 20
        eventually(lambda: session.query("chain")[0]["members"] == 2)


def test_the_loss_of_the_last_replica_is_an_error(start: Start) -> None:
    session = start(nodes=1, cpus_per_node=1, gcs_replicas=2)
    eventually(lambda: len(replicas(session)) == 2)
    kill_at_once(session, replicas(session))
    with pytest.raises(ray.exceptions.RaySystemError):
        for _ in range(1000):
            session.kv_put(b"key", b"value")


def test_a_wrong_number_of_replicas_is_refused() -> None:
    with pytest.raises(ValueError, match="gcs_replicas"):
        ray.init(gcs_replicas=0)
