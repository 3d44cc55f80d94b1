"""A task that has waited goes on at once, even if others have its CPU by then.

Each program here hangs where a task first waits for its CPU: who has that waits, in plain
Python, for what the task does next.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import GetTimeoutError, TaskCancelledError
from tests.api.test_cancel import until

LIMIT_S = 30.0
SHORT_S = 0.2


@pytest.fixture(scope="module", params=["sim", "local"], autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """One node with one CPU."""
    ray.init(backend=request.param, nodes=1, cpus_per_node=1)
    yield request.param
    ray.shutdown()


@ray.remote
def child(path: Path) -> str:
    """Hold the CPU until a file is there."""
    path.with_suffix(".runs").touch()
    until(path)
    return "done"


@ray.remote
def quick() -> None:
    return None


def goes_on(ref: Any) -> None:
    assert ray.get(ref, timeout=LIMIT_S) == "done"


def test_a_get_that_times_out(tmp_path: Path) -> None:
    @ray.remote
    def parent(path: Path) -> Any:
        ref = child.remote(path)
        with pytest.raises(GetTimeoutError):
            ray.get(ref, timeout=SHORT_S)
        path.touch()
        return ray.get(ref)

    goes_on(parent.remote(tmp_path / "go"))


def test_a_wait_that_times_out(tmp_path: Path) -> None:
    @ray.remote
    def parent(path: Path) -> Any:
        ref = child.remote(path)
        for _ in range(3):
            assert ray.wait([ref], timeout=SHORT_S) == ([], [ref])
        path.touch()
        return ray.get(ref)

    goes_on(parent.remote(tmp_path / "go"))


def test_a_get_whose_value_has_come(tmp_path: Path) -> None:
    @ray.remote
    def parent(path: Path) -> Any:
        first = quick.remote()
        last = child.remote(path)
        ray.get(first)
        path.touch()
        return ray.get(last)

    goes_on(parent.remote(tmp_path / "go"))


def test_a_method_of_an_actor_with_a_cpu(tmp_path: Path) -> None:
    @ray.remote(num_cpus=1)
    class Parent:
        def run(self, path: Path) -> Any:
            ref = child.remote(path)
            assert ray.wait([ref], timeout=SHORT_S) == ([], [ref])
            path.touch()
            return ray.get(ref)

    actor = Parent.remote()
    goes_on(actor.run.remote(tmp_path / "go"))
    goes_on(actor.run.remote(tmp_path / "go again"))
    ray.kill(actor)


def test_a_task_that_is_cancelled_where_it_waits(tmp_path: Path) -> None:
    @ray.remote
    def parent(path: Path) -> Any:
        return ray.get(child.remote(path))

    ref = parent.remote(tmp_path / "go")
    until(tmp_path / "go.runs")
    ray.cancel(ref, recursive=False)
    with pytest.raises(TaskCancelledError):
        ray.get(ref, timeout=LIMIT_S)
    (tmp_path / "go").touch()


def test_all_that_waited_for_one_value_go_on_together(tmp_path: Path) -> None:
    """Each waits for what the last one of them does."""
    parents = 8

    @ray.remote
    def parent(path: Path, number: int, box: list[Any]) -> Any:
        (path / f"{number} waits").touch()
        ray.get(box[0])
        (path / f"{number} goes on").touch()
        for other in range(parents):
            until(path / f"{other} goes on")
        return "done"

    gate = child.options(num_cpus=0).remote(tmp_path / "go")
    refs = [parent.remote(tmp_path, number, [gate]) for number in range(parents)]
    for number in range(parents):
        until(tmp_path / f"{number} waits")
    (tmp_path / "go").touch()
    for ref in refs:
        goes_on(ref)


def test_nothing_is_in_use_afterwards() -> None:
    end_s = ray.now() + LIMIT_S
    while ray.available_resources().get("CPU") != 1.0:
        assert ray.now() < end_s, ray.available_resources()
        ray.sleep(0.02)
    assert ray.get([quick.remote() for _ in range(4)], timeout=LIMIT_S) == [None] * 4
