"""ray.cancel, for tasks in every state."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import RayTaskError, TaskCancelledError
from raytwin.runtime.api.options.scheduling_strategies import NodeAffinitySchedulingStrategy

pytestmark = pytest.mark.usefixtures("backend")

LIMIT_S = 30.0
LONG_S = 1000.0
FORCE = pytest.mark.parametrize("force", [False, True])


@ray.remote
def nap(seconds: float, value: Any = None, mark: Path | None = None) -> Any:
    if mark is not None:
        mark.touch()
    ray.sleep(seconds)
    return value


@ray.remote
def identity(x: Any) -> Any:
    return x


@ray.remote
def parent(folder: Path) -> Any:
    children = [nap.remote(LONG_S, 0, folder / f"child{i}") for i in range(2)]
    (folder / "parent").touch()
    return ray.get(children)


def get(ref: Any) -> Any:
    return ray.get(ref, timeout=LIMIT_S)


def is_cancelled(ref: Any) -> bool:
    with pytest.raises(TaskCancelledError):
        get(ref)
    return True


def until(path: Path) -> None:
    """Wait until a task has made a file."""
    end_s = ray.now() + LIMIT_S
    while not path.exists():
        assert ray.now() < end_s, "it never came to be"
        ray.sleep(0.01)


def is_idle() -> None:
    """All CPUs are free again: four tasks run at once."""
    assert get([nap.remote(0.05, i) for i in range(4)]) == [0, 1, 2, 3]
    end_s = ray.now() + LIMIT_S
    while ray.available_resources().get("CPU") != 4.0:
        assert ray.now() < end_s, ray.available_resources()
        ray.sleep(0.02)


@FORCE
def test_a_running_task_is_ended(tmp_path: Path, force: bool) -> None:
    ref = nap.remote(LONG_S, 0, tmp_path / "runs")
    until(tmp_path / "runs")
    ray.cancel(ref, force=force)
    assert is_cancelled(ref)
    is_idle()


def test_time_sleep_is_ended_too(tmp_path: Path, backend: str) -> None:
    if backend == "sim":
        pytest.skip("real time does not pass there")

    @ray.remote
    def sleep() -> None:
        (tmp_path / "runs").touch()
        time.sleep(LONG_S)

    ref = sleep.remote()
    until(tmp_path / "runs")
    ray.cancel(ref)
    assert is_cancelled(ref)


def test_an_error_that_is_being_reported_is_not_interrupted(tmp_path: Path, backend: str) -> None:
    if backend == "sim":
        pytest.skip("real time does not pass there")

    class Slow(Exception):
        def __str__(self) -> str:
            if not (tmp_path / "asked").exists():
                (tmp_path / "asked").touch()
                time.sleep(0.5)
            return "told"

    @ray.remote(max_retries=0)
    def fail() -> None:
        raise Slow

    ref = fail.remote()
    until(tmp_path / "asked")
    ray.cancel(ref)
    with pytest.raises(RayTaskError, match="Slow: told"):
        get(ref)
    is_idle()


def test_a_task_may_clean_up_and_even_refuse(tmp_path: Path) -> None:
    @ray.remote
    def refuse() -> str:
        (tmp_path / "runs").touch()
        try:
            ray.sleep(LONG_S)
        except KeyboardInterrupt:
            return "in spite of all"
        return "never"

    ref = refuse.remote()
    until(tmp_path / "runs")
    ray.cancel(ref)
    assert get(ref) == "in spite of all"
    is_idle()


def test_one_cancel_interrupts_once(tmp_path: Path) -> None:
    """It came again by way of the GCS, and interrupted what cleaned up."""

    @ray.remote
    def refuse(folder: Path) -> list[str]:
        folder.mkdir()
        came = []
        for step in ("works", "cleans up", "cleans up again"):
            try:
                (folder / step).touch()
                ray.sleep(0.5 if came else LONG_S)
            except KeyboardInterrupt:
                came.append(step)
        return came

    ref = refuse.remote(tmp_path / "one")
    until(tmp_path / "one" / "works")
    ray.sleep(0.5)  # until the GCS knows the node of the task
    ray.cancel(ref)
    assert get(ref) == ["works"]
    ref = refuse.remote(tmp_path / "two")
    until(tmp_path / "two" / "works")
    ray.cancel(ref)
    until(tmp_path / "two" / "cleans up")
    ray.cancel(ref)
    assert get(ref) == ["works", "cleans up"], "a second one interrupts again"


def test_a_cancelled_task_is_not_retried(tmp_path: Path) -> None:
    """Nor if it makes another error of that, for which it would be retried."""

    @ray.remote(max_retries=2, retry_exceptions=True)
    def convert(folder: Path | None) -> Any:
        if folder is None:
            return held  # a reference: it is not reported before the element after it has ended
        with (folder / "runs").open("a") as runs:
            runs.write("x")
        if (folder / "runs").read_text() != "x":
            return None
        try:
            ray.sleep(LONG_S)
        except KeyboardInterrupt:
            raise ValueError("converted") from None

    held = [ray.put(0)]
    (tmp_path / "one").mkdir()
    (tmp_path / "range").mkdir()
    get(list(convert.map([None] * 100)))  # short as they are, a worker is given several
    one = convert.remote(tmp_path / "one")
    for folder, ref in (
        (tmp_path / "one", one),
        (tmp_path / "range", list(convert.map([None, None, tmp_path / "range"]))[2]),
    ):
        until(folder / "runs")
        ray.sleep(0.5)  # the worker has said by then that it has nothing to give back
        ray.cancel(ref)
        with pytest.raises(RayTaskError, match="converted"):
            get(ref)
        assert (folder / "runs").read_text() == "x"


@FORCE
def test_a_done_task_stays_done(force: bool) -> None:
    ref = identity.remote(5)
    assert get(ref) == 5
    ray.cancel(ref, force=force)
    assert get(ref) == 5
    put = ray.put(6)
    ray.cancel(put)
    assert get(put) == 6


@FORCE
def test_a_queued_task_never_runs(tmp_path: Path, force: bool) -> None:
    refs = [nap.remote(0.5) for _ in range(8)]
    last = nap.remote(0.0, 0, tmp_path / "ran")
    ray.cancel(last, force=force)
    assert is_cancelled(last)
    get(refs)
    is_idle()
    assert not (tmp_path / "ran").exists()


def test_a_task_that_waits_for_inputs_never_runs() -> None:
    first = nap.remote(0.3, 1)
    second = identity.remote(first)
    third = identity.remote(second)
    ray.cancel(second)
    assert is_cancelled(second)
    assert is_cancelled(third)
    assert get(first) == 1
    is_idle()


def test_a_task_that_no_node_can_run() -> None:
    ref = nap.options(resources={"nowhere": 1}).remote(0.0)
    ray.sleep(0.1)
    ray.cancel(ref)
    assert is_cancelled(ref)
    ref = nap.options(resources={"nowhere": 1}).remote(0.0)
    ray.cancel(ref)
    assert is_cancelled(ref)


def test_tasks_that_need_a_cancelled_task_fail_on_every_node() -> None:
    unwanted = nap.options(num_cpus=100).remote(0.0)
    needy = [
        identity.options(scheduling_strategy=NodeAffinitySchedulingStrategy(n, False)).remote(
            unwanted
        )
        for n in (node["NodeID"] for node in ray.nodes())
    ]
    ray.cancel(unwanted)
    assert is_cancelled(unwanted)
    assert all(is_cancelled(ref) for ref in needy)


@FORCE
def test_a_task_on_another_node(tmp_path: Path, force: bool) -> None:
    there = NodeAffinitySchedulingStrategy("1", soft=False)
    ref = nap.options(scheduling_strategy=there).remote(LONG_S, 0, tmp_path / "runs")
    until(tmp_path / "runs")
    ray.cancel(ref, force=force)
    assert is_cancelled(ref)
    ref = nap.options(scheduling_strategy=there).remote(LONG_S)
    ray.cancel(ref, force=force)
    assert is_cancelled(ref)
    is_idle()


@FORCE
def test_children_go_with_their_parent(tmp_path: Path, force: bool) -> None:
    ref = parent.remote(tmp_path)
    until(tmp_path / "child0")
    until(tmp_path / "child1")
    ray.cancel(ref, force=force)
    assert is_cancelled(ref)
    is_idle()


def test_children_may_stay(tmp_path: Path) -> None:
    @ray.remote
    def leave() -> None:
        nap.remote(0.3, 0, tmp_path / "began")
        until(tmp_path / "began")
        ray.sleep(LONG_S)

    ref = leave.remote()
    until(tmp_path / "began")
    ray.cancel(ref, recursive=False)
    assert is_cancelled(ref)
    is_idle()


def test_elements_of_an_array() -> None:
    refs = nap.map([0.3] * 10)
    first, last = refs[0], refs[9]
    ray.sleep(0.05)
    ray.cancel(first)
    ray.cancel(last)
    assert is_cancelled(first)
    assert is_cancelled(last)
    assert get([refs[i] for i in range(1, 9)]) == [None] * 8
    is_idle()


def test_an_element_that_runs_is_not_run_again_for_one_that_is_cancelled(tmp_path: Path) -> None:
    log = tmp_path / "log"

    @ray.remote
    def note(element: int) -> int:
        if element >= 0:
            with log.open("a") as file:
                file.write(f"{element} ")
            ray.sleep(0.2)
        return element

    get(list(note.map([-1] * 200)))  # short ones, as far as their node knows: many at a time
    refs = note.map(range(12))
    until(log)
    for last in (10, 11):
        ray.cancel(refs[last], force=True)
    assert is_cancelled(refs[10]) and is_cancelled(refs[11])
    assert get([refs[i] for i in range(10)]) == list(range(10))
    assert sorted(map(int, log.read_text().split())) == list(range(10))
    is_idle()


def test_cancel_refuses_other_objects() -> None:
    with pytest.raises(TypeError, match="ObjectRef"):
        ray.cancel(5)  # type: ignore[arg-type]


def test_cancelling_twice_and_in_a_hurry() -> None:
    for _ in range(20):
        refs = [nap.remote(0.01, i) for i in range(8)]
        for ref in refs[::2]:
            ray.cancel(ref)
            ray.cancel(ref, force=True)
        for i, ref in enumerate(refs):
            try:
                assert get(ref) == i
            except TaskCancelledError:
                assert i % 2 == 0
    is_idle()
