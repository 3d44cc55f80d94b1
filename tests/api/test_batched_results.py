"""Tasks that are submitted one by one and answered in batches, on both backends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import raytwin as ray


@pytest.fixture(scope="module", params=["local", "sim"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield ray.init(backend=request.param, nodes=2, cpus_per_node=2)
    ray.shutdown()


@ray.remote
def back(value: Any) -> Any:
    return value


@ray.remote(max_retries=0)
def picky(number: int) -> int:
    if number % 7 == 3:
        raise KeyError(number)
    return number


@ray.remote
def total(inside: list[Any], *numbers: int) -> int:
    return sum(ray.get(inside)) + sum(numbers)


def test_values_of_every_kind_in_their_places(cluster: Any) -> None:
    values = [
        0, "a", b"b", None, 1.5, [1], {"k": 2}, 2**70, True, bytes(150_000), "x" * 50_000, (), 3,
    ] * 10  # fmt: skip
    assert ray.get([back.remote(value) for value in values]) == values


def test_errors_between_values(cluster: Any) -> None:
    refs = [picky.remote(number) for number in range(100)]
    for number, ref in enumerate(refs):
        if number % 7 == 3:
            with pytest.raises(KeyError):
                ray.get(ref)
        else:
            assert ray.get(ref) == number


def test_batched_results_can_be_inputs_and_references(cluster: Any) -> None:
    refs = [back.remote(number) for number in range(100)]
    spread = total.options(scheduling_strategy="SPREAD")
    found = ray.get([spread.remote(refs[:50], *refs[50:]) for _ in range(6)])
    assert found == [sum(range(100))] * 6


def test_elements_of_an_array_that_run_alone(cluster: Any) -> None:
    one = ray.put(1)
    array = back.map([0, one, 2, 3])
    assert ray.get(array) == [0, 1, 2, 3]
    assert ray.get(list(array)) == [0, 1, 2, 3]
    alone = [back.remote(number) for number in range(20)]
    again = [back.map([number, one]) for number in range(20)]
    assert ray.get(alone) == list(range(20))
    assert [ray.get(array) for array in again] == [[number, 1] for number in range(20)]


def test_tasks_of_tasks_on_the_other_node(cluster: Any) -> None:
    @ray.remote
    def parent(number: int) -> list[int]:
        children = back.options(scheduling_strategy="SPREAD")
        return ray.get([children.remote(n) for n in range(number, number + 50)])

    there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy("1", soft=False)
    refs = [parent.options(scheduling_strategy=there).remote(n) for n in (0, 100)]
    assert ray.get(refs) == [list(range(50)), list(range(100, 150))]


def test_some_references_are_dropped_before_their_tasks_end(cluster: Any) -> None:
    kept = []
    for number in range(200):
        ref = back.remote(number)
        if number % 9 == 0:
            kept.append(ref)
        del ref
    assert ray.get(kept) == list(range(0, 200, 9))


def test_every_task_has_its_row_in_the_timeline(cluster: Any) -> None:
    @ray.remote
    def counted(number: int) -> int:
        return number

    ray.get([counted.remote(number) for number in range(100)])
    rows = [row for row in cluster.query("timeline") if "counted" in row[0]]
    assert sum(row[5] for row in rows) == 100
    assert len({row[6] for row in rows}) == len(rows) == 100
