"""What runs again submits the same children, and gets what it got the first time.

On another worker, in a process with other hash seeds, and with classes that are made anew.
"""

from __future__ import annotations

import os
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray

LIMIT_S = 30


@pytest.fixture(params=["sim", "local"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    session: Any = ray.init(
        backend=request.param, nodes=[{"CPU": 2, "here": 1}, {"CPU": 1, "there": 1}]
    )
    yield session.cluster
    ray.shutdown()


@ray.remote(num_cpus=0, resources={"here": 0.1})
class Counter:
    def __init__(self, box: Any = None) -> None:
        self.count = 0

    def add(self, x: Any = None) -> int:
        self.count += 1
        return self.count

    def read(self) -> int:
        return self.count


def put_of_reference(counter: Any) -> Any:
    return counter.add.remote(ray.put([ray.put(1)]))


def reference_inside(counter: Any) -> Any:
    return counter.add.remote([ray.put(1)])


def reference_inside_of_many(counter: Any) -> Any:
    refs = [ray.put(1), *ray.remote(lambda x: [x]).map([[ray.put(1)], [2]])]
    return counter.add.remote({"refs": refs})


def local_dataclass(counter: Any) -> Any:
    @dataclass
    class Local:
        x: int

    return counter.add.remote(Local(1))


def local_tuple(counter: Any) -> Any:
    return counter.add.remote(namedtuple("Local", "a b")(1, "b"))


def strings_in_any_order(counter: Any) -> Any:
    names = {f"name {number}" for number in range(50)}
    return counter.add.remote((names, {frozenset(names)}, [ray.put(names)]))


ALIKE: list[Callable[[Any], Any]] = [
    put_of_reference,
    reference_inside,
    reference_inside_of_many,
    local_dataclass,
    local_tuple,
    strings_in_any_order,
]


@pytest.mark.parametrize("call", ALIKE)
def test_a_call_takes_effect_once_though_its_task_runs_twice(
    cluster: Any, tmp_path: Path, call: Callable[[Any], Any]
) -> None:
    log = tmp_path / "runs"

    @ray.remote(max_retries=-1, resources={"there": 1})
    def parent(counter: Any) -> Any:
        with log.open("a") as file:
            file.write("run\n")
        found = ray.get(call(counter))
        if len(log.read_text().split()) == 1:
            ray.sleep(LIMIT_S)
        return found

    counter = Counter.remote()
    assert ray.get(counter.read.remote()) == 0
    ref = parent.remote(counter)
    while ray.get(counter.read.remote(), timeout=LIMIT_S) == 0:
        ray.sleep(0.05)
    ray.sleep(0.3)
    cluster.restart_node(1)
    assert ray.get(ref, timeout=LIMIT_S) == 1
    assert ray.get(counter.read.remote(), timeout=LIMIT_S) == 1
    assert len(log.read_text().split()) == 2


def made_of_a_local_class(name: str) -> Any:
    @ray.remote
    class Local:
        def read(self) -> int:
            return 1

    return Local.options(name=name).remote()


def made_with_a_reference(name: str) -> Any:
    return ray.remote(Counter.cls).options(name=name).remote(ray.put([ray.put(1)]))


@pytest.mark.parametrize("make", [made_of_a_local_class, made_with_a_reference])
def test_a_second_run_gets_the_named_actor_of_the_first(
    tmp_path: Path, make: Callable[[str], Any]
) -> None:
    mark = tmp_path / "began"
    ray.init(backend="local", nodes=1, cpus_per_node=2)

    @ray.remote(max_retries=3)
    def parent() -> Any:
        actor = make("the one")
        found = ray.get(actor.read.remote())
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
        return found

    try:
        assert ray.get(parent.remote(), timeout=LIMIT_S) is not None
        assert mark.exists()
    finally:
        ray.shutdown()


def test_reconstructed_state_agrees_with_earlier_replies() -> None:
    ray.init(backend="local", nodes=1, cpus_per_node=2)

    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class Logging:
        def __init__(self) -> None:
            self.found: list[int] = []

        def go(self, counter: Any) -> list[int]:
            local = namedtuple("Local", "a")(2)
            box = ray.put([ray.put(1), local])
            self.found.append(ray.get(counter.add.remote(box)))
            self.found.append(ray.get(counter.add.remote([ray.put(1)])))
            return self.found

        def pid(self) -> int:
            return os.getpid()

    try:
        counter, logging = Counter.options(resources={}).remote(), Logging.remote()
        seen: list[int] = []
        for _ in range(3):
            now = ray.get(logging.go.remote(counter), timeout=LIMIT_S)
            assert now[: len(seen)] == seen and len(now) == len(seen) + 2
            seen = now
            os.kill(ray.get(logging.pid.remote(), timeout=LIMIT_S), 9)
        assert seen == [1, 2, 3, 4, 5, 6]
        assert ray.get(counter.read.remote()) == 6
    finally:
        ray.shutdown()


def test_children_of_a_thread_are_not_taken_for_those_of_its_task(tmp_path: Path) -> None:
    mark = tmp_path / "began"
    ray.init(backend="local", nodes=1, cpus_per_node=2)

    @ray.remote(num_cpus=0)
    def name(x: str) -> str:
        return x

    @ray.remote(max_retries=3)
    def parent() -> tuple[str, str, str]:
        found: list[str] = []

        def ask() -> None:
            found.append(ray.get(name.remote("thread")))
            found.append(ray.get(ray.put("put by thread")))

        thread = threading.Thread(target=ask)
        first = not mark.exists()
        if first:
            thread.start()
            thread.join()
        own = ray.get(name.remote("task"))
        if first:
            mark.touch()
            os.kill(os.getpid(), 9)
        thread.start()
        thread.join()
        return own, found[0], found[1]

    try:
        found = ray.get(parent.remote(), timeout=LIMIT_S)
        assert found == ("task", "thread", "put by thread")
        assert mark.exists()
    finally:
        ray.shutdown()
