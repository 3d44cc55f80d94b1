"""Real processes die under a mixed load: all values are right, nothing hangs or stays.

For each kind of fault a cluster runs round after round of `load`, and in each a
process is killed or stopped at a random moment. Actors live through all rounds.

``RAYTWIN_ROUNDS=20`` runs so many rounds of each kind instead of two, and
``RAYTWIN_SEED`` draws other moments and victims.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import raytwin as ray
from raytwin.chaos.fuzz.oracle.invariants import at_end, settled
from raytwin.runtime.control.gcs.array_store import ORPHANED_S
from raytwin.runtime.processes.spawn.zygote import RESTART_S
from tests.processes.helpers import eventually
from tests.processes.load import Load
from tests.processes.test_cluster_cleanup import files

ROUNDS = int(os.environ.get("RAYTWIN_ROUNDS", "2"))
SEED = int(os.environ.get("RAYTWIN_SEED", "0"))
LIMIT_S = 60.0
"""What only a hang takes."""
HEARTBEAT_TIMEOUT_S = 1.5
"""Of the clusters whose nodes hang; the others notice a broken connection."""


class Faults:
    """A running cluster, and what can be done to it."""

    def __init__(self, session: Any, seed: int) -> None:
        self.session = session
        self.cluster = session.cluster
        self.load = Load(seed)
        self.rng = random.Random(seed)

    def pid(self, name: str) -> int:
        self.cluster.poll()
        return int(self.cluster.pids[name])

    def is_alive(self, node: int) -> bool:
        (row,) = [row for row in self.session.query("nodes") if row["node"] == node]
        return bool(row["alive"])

    def victim(self) -> int:
        return self.rng.choice([1, 2])

    def begin(self) -> int:
        """Submit, let some of it be done, return how many values are under way."""
        self.load.step(6)
        time.sleep(self.rng.random() * 0.3)
        refs = [ref for ref, _ in self.load.expected]
        return len(ray.wait(refs, num_returns=len(refs), timeout=0)[1])

    # -- one round each ---------------------------------------------------------

    def worker(self) -> None:
        for _ in range(4):
            with suppress(ValueError):  # the next ones may not be there yet
                self.cluster.kill_worker(self.rng.randrange(3), self.rng.randrange(4))
            time.sleep(0.03)

    def actor(self) -> None:
        target = self.rng.choice(self.load.actors)
        pid = ray.get(target.__ray_call__.remote(lambda self: os.getpid()), timeout=LIMIT_S)
        self.load.step()
        os.kill(pid, signal.SIGKILL)

    def node(self) -> None:
        victim = self.victim()
        self.cluster.kill_node(victim)
        eventually(lambda: not self.is_alive(victim))
        self.load.step()
        self.cluster.restart_node(victim)
        eventually(lambda: self.is_alive(victim))

    def stopped_node(self) -> None:
        """It hangs until it is declared dead, then goes on: it may reach nobody and leaves."""
        victim = self.victim()
        before = self.pid(f"node:{victim}")
        self.cluster.pause_node(victim)
        self.load.step()
        eventually(lambda: not self.is_alive(victim))
        self.load.step()
        self.cluster.resume_node(victim)
        self.load.step()

        def gone() -> bool:
            self.cluster.poll()
            return f"node:{victim}" in self.cluster.exited

        eventually(gone)
        self.load.check(LIMIT_S)
        assert not self.is_alive(victim)
        eventually(lambda: not psutil.pid_exists(before))
        self.load.step()
        self.cluster.restart_node(victim)
        eventually(lambda: self.is_alive(victim))

    def head(self) -> None:
        """The GCS and the global scheduler, which start again."""
        before = self.pid("head")
        self.cluster.kill_head()
        self.load.step()
        eventually(lambda: self.pid("head") != before)
        # One that ends again and again, as soon as it has begun, is given up.
        time.sleep(RESTART_S)

    def replica(self) -> None:
        """One of two replicas of the GCS and the global scheduler."""
        eventually(lambda: self.session.query("chain")[0]["members"] == 2)
        self.cluster.poll()
        living = sorted(
            (name for name in self.cluster.pids
             if name.startswith("replica:") and name not in self.cluster.exited),
            key=lambda name: int(name.partition(".")[2]),
        )  # fmt: skip
        os.kill(self.pid(self.rng.choice(living)), signal.SIGKILL)
        self.load.step()
        eventually(lambda: self.session.query("chain")[0]["members"] == 2)


class Traces:
    """What this process and the machine have now, and must have again."""

    def __init__(self, folder: Path) -> None:
        """`folder` is this process's directory for temporary files."""
        gc.collect()
        self.folder = folder
        self.children = set(psutil.Process().children(recursive=True))
        self.descriptors = psutil.Process().num_fds()

    def check(self, pids: set[int]) -> None:
        """No process, file, socket or descriptor is left of a cluster with these processes."""
        eventually(lambda: set(psutil.Process().children(recursive=True)) <= self.children)
        eventually(lambda: not [pid for pid in pids if psutil.pid_exists(pid)])
        eventually(lambda: not files(self.folder))
        gc.collect()
        assert psutil.Process().num_fds() <= self.descriptors


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield Traces(folder)
    ray.shutdown()


def nothing_is_left(session: Any) -> None:
    """All resources are free, every store, table and queue is empty."""
    assert settled(lambda: at_end(session), time.sleep) == []

    def tables() -> dict[str, int]:
        ray.get(ray.put(None))
        # Rows that a dead node's tasks owned wait to be claimed, and those that they hold.
        rows = session.query("tables")
        return {name: count for name, count in rows.items() if count and name != "orphans"}

    eventually(
        lambda: tables().keys() <= {"arrays"} and tables().get("arrays", 0) <= 1,
        limit_s=LIMIT_S + ORPHANED_S,
    )
    assert all(row[1:] == [0, 0] for row in session.query("disks"))
    assert session.query("actors") == []
    assert len(session.client.entries) <= 1


def processes_of(session: Any) -> set[int]:
    session.cluster.poll()
    return {process.pid for process in psutil.Process(session.cluster.pids["zygote"]).children()}


OPTIONS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "worker": lambda path: {},
    "actor": lambda path: {},
    "node": lambda path: {},
    "stopped_node": lambda path: {"heartbeat_timeout_s": HEARTBEAT_TIMEOUT_S},
    "head": lambda path: {"gcs_storage": path / "gcs.sqlite3"},
    "replica": lambda path: {"gcs_replicas": 2},
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_faults_under_load(kind: str, traces: Traces, tmp_path: Path) -> None:
    session: Any = ray.init(
        nodes=3, cpus_per_node=2, object_store_memory=256 << 20, **OPTIONS[kind](tmp_path)
    )
    faults = Faults(session, seed=SEED)
    pids: set[int] = set()
    busy = 0
    for round_ in range(ROUNDS):
        under_way = faults.begin()
        getattr(faults, kind)()
        faults.load.step()
        faults.load.check(LIMIT_S)
        pids |= processes_of(session)
        print(f"round {round_ + 1}: {under_way} values under way, {faults.load.checked} right")
        busy += under_way > 0
    assert busy, "no fault came while anything ran"
    faults.load.actors.clear()
    nothing_is_left(session)
    ray.shutdown()
    traces.check(pids)
