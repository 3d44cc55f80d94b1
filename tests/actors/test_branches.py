"""An actor or a task that does something else when it runs again gets what it asks for then.

What a first run has left has the IDs of the same places: it must not be taken for another
task's result, another number of values, another kind of thing, or another value.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray

LIMIT_S = 30


@pytest.fixture(params=["sim", "local"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    session: Any = ray.init(backend=request.param, nodes=2, cpus_per_node=2)
    yield session.cluster
    ray.shutdown()


@ray.remote
def f(x: int) -> tuple[str, int]:
    return "f", x


@ray.remote
def g(x: int) -> tuple[str, int]:
    return "g", x


@ray.remote(num_returns=2)
def two(x: int) -> tuple[int, int]:
    return x, -x


@ray.remote
def stream(count: int) -> Iterator[int]:
    yield from range(count)


@ray.remote
class Child:
    def hello(self) -> str:
        return "hello"


def other_function() -> Any:
    return ray.get(g.remote(1))


def other_argument() -> Any:
    return ray.get(f.remote(2))


def array() -> Any:
    return ray.get(f.map(range(3)))


def several() -> Any:
    return ray.get(two.remote(1))


def items() -> Any:
    return [ray.get(ref) for ref in stream.remote(3)]


def actor() -> Any:
    child = Child.remote()
    return ray.get(child.hello.remote())


BRANCHES: list[tuple[Callable[[], Any], Any]] = [
    (other_function, ("g", 1)),
    (other_argument, ("f", 2)),
    (array, [("f", 0), ("f", 1), ("f", 2)]),
    (several, [1, -1]),
    (items, [0, 1, 2]),
    (actor, "hello"),
]


@pytest.mark.parametrize(("branch", "expected"), BRANCHES)
def test_a_constructor_that_takes_another_branch(
    cluster: Any, tmp_path: Path, branch: Callable[[], Any], expected: Any
) -> None:
    mark = tmp_path / "began"

    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class Branching:
        def __init__(self) -> None:
            if mark.exists():
                self.found = branch()
            else:
                mark.touch()
                self.found = ray.get(f.remote(1))

        def read(self) -> Any:
            return self.found

    branching = Branching.remote()
    assert ray.get(branching.read.remote(), timeout=LIMIT_S) == ("f", 1)
    cluster.kill_actor(0)
    ray.sleep(0.5)
    assert ray.get(branching.read.remote(), timeout=LIMIT_S) == expected


@pytest.mark.parametrize("nbytes", [100, 300_000])
def test_another_value_that_is_put_is_another_object(
    cluster: Any, tmp_path: Path, nbytes: int
) -> None:
    mark = tmp_path / "began"

    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class Putting:
        def __init__(self) -> None:
            # They differ in one byte.
            self.value = bytes(nbytes - 1) + (b"b" if mark.exists() else b"a")
            mark.touch()
            self.ref = ray.put(self.value)

        def read(self) -> Any:
            return self.value, [self.ref], ray.get(self.ref)

    putting = Putting.remote()
    value, (first,), _ = ray.get(putting.read.remote(), timeout=LIMIT_S)
    assert value.endswith(b"a") and ray.get(first) == value
    cluster.kill_actor(0)
    ray.sleep(0.5)
    value, (second,), own = ray.get(putting.read.remote(), timeout=LIMIT_S)
    assert value.endswith(b"b")
    assert own == ray.get(second) == ray.get(ray.remote(lambda x: x).remote(second)) == value
    # Who had a reference to the first value has it still.
    assert ray.get(first).endswith(b"a")


def test_a_task_that_takes_another_branch_when_it_is_retried(tmp_path: Path) -> None:
    mark = tmp_path / "began"
    ray.init(backend="local", nodes=1, cpus_per_node=2)

    @ray.remote(max_retries=3)
    def branching() -> Any:
        if not mark.exists():
            mark.touch()
            assert ray.get(f.remote(1)) == ("f", 1)
            os.kill(os.getpid(), signal.SIGKILL)
        return ray.get(g.remote(1))

    try:
        assert ray.get(branching.remote(), timeout=LIMIT_S) == ("g", 1)
    finally:
        ray.shutdown()
