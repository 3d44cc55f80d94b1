"""A replayed call submits, puts and creates the same children as its first run."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from tests.actors.conftest import Start

LIMIT_S = 20.0
"""What only a hang takes."""
LARGE = 300_000


@ray.remote(num_cpus=0.5)
def child(log: str, mark: str, seconds: float = 0.0, nbytes: int = 0) -> Any:
    """Leave a mark, so that it shows how often this has run."""
    with open(log, "a") as file:
        file.write(f"{mark}\n")
    if seconds:
        ray.sleep(seconds)
    return np.full(nbytes, len(mark), np.uint8) if nbytes else mark


def marks(log: Path) -> list[str]:
    return sorted(log.read_text().split()) if log.exists() else []


def until(condition: Any) -> None:
    for _ in range(int(LIMIT_S / 0.02)):
        if condition():
            return
        ray.sleep(0.02)
    raise AssertionError("it never came to be")


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Parent:
    """Its state are references."""

    def __init__(self, log: str) -> None:
        self.log = log
        self.mine = child.remote(log, "constructor")
        self.kept: list[Any] = []

    def keep(self, mark: str, nbytes: int = 0) -> None:
        self.kept.append(child.remote(self.log, mark, 0.0, nbytes))

    def wait(self, mark: str, seconds: float) -> Any:
        return ray.get(child.remote(self.log, mark, seconds))

    def put(self, number: int) -> None:
        self.kept.append(ray.put(np.full(LARGE, number, np.uint8)))

    def values(self) -> list[Any]:
        values = [ray.get(self.mine), *(ray.get(ref) for ref in self.kept)]
        return [value if isinstance(value, str) else int(value.sum()) for value in values]

    def names(self) -> list[str]:
        return [self.mine.hex(), *(ref.hex() for ref in self.kept)]


def restarted(session: Any) -> None:
    until(lambda: any(row[2:4] == [1, "alive"] for row in session.query("actors")))


@pytest.mark.parametrize("victim", ["worker", "node", "actor"])
def test_a_replayed_call_finds_its_children(start: Start, tmp_path: Path, victim: str) -> None:
    log = tmp_path / "log"
    session = start(nodes=[{"CPU": 2, "here": 1}, {"CPU": 2, "there": 1}, {"CPU": 2, "there": 1}])
    parent = Parent.options(resources={"there": 1}).remote(str(log))
    parent.keep.remote("small")
    parent.keep.remote("large", LARGE)
    before = ray.get([parent.values.remote(), parent.names.remote()])
    (row,) = session.query("actors")
    ray.sleep(0.5)  # the tables have heard of it
    if victim == "worker":
        session.cluster.kill_actor(0)
    elif victim == "actor":
        ray.kill(parent, no_restart=False)
    else:
        session.cluster.kill_node(row[1])
    restarted(session)
    after = ray.get([parent.values.remote(), parent.names.remote()], timeout=LIMIT_S)
    assert after == before == [["constructor", "small", 5 * LARGE], before[1]]
    ran = marks(log)
    if victim != "node":
        assert ran == ["constructor", "large", "small"]
    else:
        # What was only on the dead node is made again, and nothing else.
        assert set(ran) == {"constructor", "large", "small"} and len(ran) <= 6


def test_a_call_that_was_interrupted_waits_for_the_child_that_runs(
    start: Start, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    session = start()
    parent = Parent.remote(str(log))
    ref = parent.wait.remote("slow", 1.5)
    until(lambda: "slow" in marks(log))
    session.cluster.kill_actor(0)
    assert ray.get(ref, timeout=LIMIT_S) == "slow"
    assert marks(log) == ["constructor", "slow"]
    assert ray.get(parent.wait.remote("next", 0.0), timeout=LIMIT_S) == "next"


def test_a_replayed_put_reads_the_existing_copy(start: Start, tmp_path: Path) -> None:
    session = start()
    parent = Parent.remote(str(tmp_path / "log"))
    ray.get([parent.put.remote(n) for n in (1, 2)])
    before = ray.get([parent.values.remote(), parent.names.remote()])
    session.cluster.kill_actor(0)
    restarted(session)
    assert ray.get([parent.values.remote(), parent.names.remote()], timeout=LIMIT_S) == before


@pytest.mark.parametrize("kind", ["threads", "coroutines"])
def test_concurrent_calls_number_their_own_children(
    start: Start, tmp_path: Path, kind: str
) -> None:
    log = tmp_path / "log"

    class Beside(Parent.cls):  # type: ignore[name-defined,misc]
        def several(self, mark: str) -> list[Any]:
            return ray.get([child.remote(self.log, f"{mark}{i}", 0.01) for i in range(3)])

    class BesideAsync(Parent.cls):  # type: ignore[name-defined,misc]
        async def several(self, mark: str) -> list[Any]:
            refs = [child.remote(self.log, f"{mark}{i}", 0.01) for i in range(3)]
            return list(await asyncio.gather(*refs))

        def keep(self, mark: str) -> None:
            self.kept.append(child.remote(self.log, mark))

    session = start()
    cls = Beside if kind == "threads" else BesideAsync
    options = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": 4, "num_cpus": 0}
    actor = ray.remote(**options)(cls).remote(str(log))
    refs = [actor.several.remote(mark) for mark in "abcd"]
    kept = [actor.keep.remote(mark) for mark in "xy"]
    expected = [[f"{mark}{i}" for i in range(3)] for mark in "abcd"]
    assert ray.get(refs, timeout=LIMIT_S) == expected
    ray.get(kept)
    names = ray.get(actor.names.remote())
    session.cluster.kill_actor(0)
    restarted(session)
    assert sorted(ray.get(actor.names.remote(), timeout=LIMIT_S)) == sorted(names)
    ran = marks(log)
    assert [ran.count(mark) for mark in ("constructor", "x", "y")] == [1, 1, 1]


def test_an_actor_that_a_call_has_made_goes_on(start: Start) -> None:
    class Child:
        def __init__(self) -> None:
            self.calls = 0

        def count(self) -> int:
            self.calls += 1
            return self.calls

    class Maker:
        def make(self) -> None:
            self.child = ray.remote(num_cpus=0)(Child).remote()

        def count(self) -> int:
            return ray.get(self.child.count.remote())

    session = start()
    maker = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Maker).remote()
    maker.make.remote()
    assert [ray.get(maker.count.remote()) for _ in range(2)] == [1, 2]
    by_age = sorted(session.query("actors"), key=lambda row: (row[1], int(row[6].split(".")[1])))
    session.cluster.kill_actor([row[0].endswith("Maker") for row in by_age].index(True))
    restarted(session)
    assert ray.get(maker.count.remote(), timeout=LIMIT_S) == 3
    del maker
    until(lambda: not session.query("actors"))


def test_children_of_threads_are_not_taken_for_those_of_a_call(
    local: Start, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    class Restless(Parent.cls):  # type: ignore[name-defined,misc]
        """A thread of its own submits as well, whenever it likes."""

        def __init__(self, log: str) -> None:
            super().__init__(log)
            self.over = threading.Event()
            threading.Thread(target=self._run, daemon=True).start()

        def _run(self) -> None:
            number = 0
            while not self.over.wait(0.001):
                number += 1
                ray.get(child.remote(self.log, f"thread{number}"))

        def stop(self) -> None:
            self.over.set()

    session = local()
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Restless).remote(str(log))
    expected = ["constructor"]
    for number in range(20):
        ray.get(actor.keep.remote(f"call{number}"))
        expected.append(f"call{number}")
    before = ray.get([actor.values.remote(), actor.names.remote()])
    assert before[0] == expected
    session.cluster.kill_actor(0)
    restarted(session)
    after = ray.get([actor.values.remote(), actor.names.remote()], timeout=LIMIT_S)
    assert after == before
    ray.get(actor.stop.remote())
    ran = marks(log)
    assert [ran.count(mark) for mark in expected] == [1] * len(expected)
