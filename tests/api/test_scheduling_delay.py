"""A scheduling delay: what depends on one another waits in turn, what does not side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import raytwin as ray

DELAY_S = 0.05
CHAIN = 8
MANY = 40


@pytest.fixture(scope="module", params=["sim", "local"])
def delayed(request: pytest.FixtureRequest) -> Iterator[str]:
    ray.init(backend=request.param, nodes=2, cpus_per_node=2, scheduling_delay_s=DELAY_S)
    ray.get([_one.remote(), _Counter.remote().add.remote()])
    yield request.param
    ray.shutdown()


@ray.remote
def _one(*_: Any) -> int:
    return 1


@ray.remote(num_cpus=0)
class _Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, *_: Any) -> int:
        self.count += 1
        return self.count


def elapsed_s(run: Any) -> float:
    begun_s = ray.now()
    run()
    return ray.now() - begun_s


@pytest.mark.parametrize("delay_s", [-1.0, float("inf"), float("nan")])
def test_a_delay_that_is_none_is_refused(delay_s: float) -> None:
    with pytest.raises(ValueError, match="scheduling_delay_s"):
        ray.init(backend="sim", scheduling_delay_s=delay_s)


def test_tasks_and_calls_that_depend_on_one_another_wait_one_after_the_other(delayed: str) -> None:
    counter = _Counter.remote()
    ray.get(counter.add.remote())
    for submit in (_one.remote, counter.add.remote):

        def chain(submit: Any = submit) -> None:
            ref = submit()
            for _ in range(CHAIN - 1):
                ref = submit(ref)
            ray.get(ref)

        assert elapsed_s(chain) >= CHAIN * DELAY_S


def test_calls_that_are_awaited_one_by_one_do_not_go_past_the_scheduler(delayed: str) -> None:
    counter = _Counter.remote()

    def calls() -> None:
        for number in range(2 * CHAIN):
            assert ray.get(counter.add.remote()) == number + 1

    assert elapsed_s(calls) >= 2 * CHAIN * DELAY_S


def test_what_depends_on_nothing_waits_side_by_side(delayed: str) -> None:
    counter = _Counter.remote()
    ray.get(counter.add.remote())

    def side_by_side() -> None:
        calls = [counter.add.remote() for _ in range(MANY)]
        tasks = [_one.remote() for _ in range(MANY)]
        array = _one.map(range(MANY))
        assert ray.get(calls) == list(range(2, MANY + 2))
        assert ray.get(tasks) == ray.get(array) == [1] * MANY

    # One after the other they would take the delay as often as there are calls and tasks.
    assert DELAY_S <= elapsed_s(side_by_side) < MANY * DELAY_S


def test_a_task_that_is_cancelled_during_the_delay_does_not_run(delayed: str) -> None:
    counter = _Counter.remote()
    ray.get(counter.add.remote())
    task, call = _one.remote(counter), counter.add.remote()
    ray.cancel(task)
    ray.cancel(call)
    for ref in (task, call):
        with pytest.raises(ray.exceptions.TaskCancelledError):
            ray.get(ref)
    assert ray.get(counter.add.remote()) == 2


def test_part_of_a_task_array_can_be_cancelled_during_the_delay(delayed: str) -> None:
    array = _one.map(range(9))
    ray.cancel(array[4])
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(array[4])
    assert [ray.get(array[n]) for n in (0, 3, 5, 8)] == [1] * 4
