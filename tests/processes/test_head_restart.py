"""A head that is killed while replicas of the GCS live: another one asks them and goes on."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.control.core.addresses import chain_of
from raytwin.runtime.control.replication.master_recovery import EPOCHS_PER_LIFE
from raytwin.runtime.processes.spawn.zygote import AGAIN_S
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually, kill_at_once

ROUNDS = 3


@ray.remote
def add(x: int, y: int) -> int:
    return x + y


@ray.remote
def nested(count: int) -> int:
    return sum(ray.get([add.remote(i, 1) for i in range(count)]))


@ray.remote(max_restarts=3, max_task_retries=3)
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


def pid(session: Any, key: str) -> int:
    session.cluster.poll()
    found: int = session.cluster.pids[key]
    return found


def replicas(session: Any, chain: int = 0) -> list[str]:
    """Return the names of a chain's living replicas, oldest first."""
    session.cluster.poll()
    cluster = session.cluster
    names = [n for n in cluster.pids if n.startswith("replica:") and n not in cluster.exited]
    return [n for n in names if chain_of(n) == chain]


def await_chains(session: Any, members: int, lives: int = 0) -> None:
    """Wait until every chain has so many members, under the head that follows so many."""

    def full() -> bool:
        rows = session.query("chain")
        return all(r["members"] == members and r["epoch"] > lives * EPOCHS_PER_LIFE for r in rows)

    eventually(full)


def kill_head(session: Any) -> int:
    before = pid(session, "head")
    session.cluster.kill_head()
    return before


@pytest.mark.parametrize(
    "options",
    [
        {"gcs_replicas": 3},
        {"gcs_replicas": 2},
        {"gcs_shards": 2},
        {"gcs_shards": 2, "gcs_replicas": 2},
    ],
)
def test_nothing_acknowledged_is_lost_when_the_head_is_killed(
    start: Start, options: dict[str, Any]
) -> None:
    session = start(nodes=2, cpus_per_node=1, **options)
    members = options.get("gcs_replicas", 1)
    await_chains(session, members)
    counter = Counter.remote()
    written = 0
    for round_ in range(ROUNDS):
        for _ in range(50):
            session.kv_put(b"key%d" % written, b"value%d" % written)
            written += 1
        refs = [add.remote(i, round_) for i in range(300)]
        deep = [nested.remote(5) for _ in range(4)]
        calls = [counter.add.remote() for _ in range(20)]
        before = kill_head(session)
        during = [add.remote(i, 1) for i in range(100)]
        for _ in range(50):
            session.kv_put(b"key%d" % written, b"value%d" % written)
            written += 1
        assert ray.get(refs, timeout=LIMIT_S) == [i + round_ for i in range(300)]
        assert ray.get(deep, timeout=LIMIT_S) == [15] * 4
        assert ray.get(calls, timeout=LIMIT_S) == list(range(20 * round_ + 1, 20 * round_ + 21))
        assert ray.get(during, timeout=LIMIT_S) == list(range(1, 101))
        eventually(lambda before=before: pid(session, "head") != before)
        for number in range(written):
            assert session.kv_get(b"key%d" % number) == b"value%d" % number
        # One that ends again and again, as soon as it has begun, is given up.
        time.sleep(AGAIN_S)
        await_chains(session, members, round_ + 1)
    assert [row["alive"] for row in session.query("nodes")] == [True, True]
    assert session.query("event_counts")["head_started"] == ROUNDS + 1
    for row in session.query("chain"):
        assert replicas(session, row["chain"]) == row["names"]


@pytest.mark.parametrize("which", ["first", "last", "all but one"])
def test_replicas_that_die_with_the_head_are_replaced(start: Start, which: str) -> None:
    session = start(nodes=2, cpus_per_node=1, gcs_replicas=3)
    await_chains(session, 3)
    for number in range(100):
        session.kv_put(b"key%d" % number, b"%d" % number)
    refs = [add.remote(i, i) for i in range(300)]
    living = replicas(session)
    killed = {"first": living[:1], "last": living[-1:], "all but one": living[1:]}[which]
    for name in killed:
        os.kill(pid(session, name), signal.SIGKILL)
    kill_head(session)
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(300)]
    for number in range(100):
        assert session.kv_get(b"key%d" % number) == b"%d" % number
    await_chains(session, 3, 1)
    eventually(lambda: len(replicas(session)) == 3)
    assert not set(replicas(session)) & set(killed)


def test_a_replica_that_dies_while_the_head_is_away_is_replaced(start: Start) -> None:
    session = start(nodes=1, cpus_per_node=1, gcs_replicas=2)
    await_chains(session, 2)
    session.kv_put(b"key", b"value")
    kill_at_once(session, ["head", replicas(session)[0]])
    assert session.kv_get(b"key") == b"value"
    await_chains(session, 2, 1)


def test_nodes_come_and_go_after_the_head_was_killed(start: Start) -> None:
    """The new head's connections know who lives: a node's death is seen, a new one gets in."""
    session = start(nodes=2, cpus_per_node=1, gcs_replicas=2)
    await_chains(session, 2)
    kill_head(session)
    await_chains(session, 2, 1)
    session.cluster.kill_node(1)
    eventually(lambda: [row["alive"] for row in session.query("nodes")] == [True, False])
    session.cluster.restart_node(1)
    eventually(lambda: [row["alive"] for row in session.query("nodes")] == [True, True])
    there = add.options(resources={"node:1": 0.1})
    assert ray.get(there.remote(1, 2), timeout=LIMIT_S) == 3


def test_when_the_head_and_all_replicas_are_killed_the_program_is_told(start: Start) -> None:
    session = start(nodes=1, cpus_per_node=1, gcs_replicas=2)
    await_chains(session, 2)
    kill_at_once(session, [*replicas(session), "head"])
    with pytest.raises(ray.exceptions.RaySystemError):
        for _ in range(1000):
            session.kv_put(b"key", b"value")
