"""A value that cannot be loaded raises only where the program gets it."""

from __future__ import annotations

from typing import Any

import pytest

import raytwin as ray


class Bad:
    """Raises ValueError when it is loaded."""

    def __reduce__(self) -> Any:
        return int, ("x",)


@ray.remote
def bad_at_three(index: int) -> Any:
    return Bad() if index == 3 else [index]


@ray.remote
def use(*values: Any) -> Any:
    return values


@ray.remote(num_returns=2)
def bad_first() -> Any:
    return Bad(), [5]


@ray.remote(num_returns=2)
def bad_second() -> Any:
    return [5], {"deep": [(1, Bad())]}


@ray.remote(num_returns=3)
def sharing() -> Any:
    shared = [ray.put(7)]
    return [Bad(), shared], shared, {"again": shared}


@ray.remote(num_returns=2)
def large_and_bad() -> Any:
    return b"x" * 300_000, Bad()


@ray.remote(num_returns="streaming")
def stream() -> Any:
    yield [1]
    yield Bad()
    yield [3]


@ray.remote
class Actor:
    @ray.method(num_returns=2)
    def bad_first(self) -> Any:
        return Bad(), [5]

    def bad_at_three(self, index: int) -> Any:
        return Bad() if index == 3 else [index]


def outcomes(refs: Any) -> list[Any]:
    found: list[Any] = []
    for ref in refs:
        try:
            found.append(ray.get(ref, timeout=60))
        except Exception as error:
            found.append(type(error))
    return found


pytestmark = pytest.mark.usefixtures("backend")


def test_an_unloadable_element_of_a_map_raises() -> None:
    ray.get(bad_at_three.map(range(100, 200)))  # a function that was timed is given many
    refs = bad_at_three.map(range(100))
    found = outcomes(refs)
    assert found[3] is ValueError
    assert all(value in ([index], ValueError) for index, value in enumerate(found))
    with pytest.raises(ValueError, match="invalid literal for int"):
        ray.get(refs)
    with pytest.raises(ValueError, match="invalid literal for int"):
        ray.get(list(refs))


@pytest.mark.parametrize(
    ("task", "expected"), [(bad_first, [ValueError, [5]]), (bad_second, [[5], ValueError])]
)
def test_one_of_two_values_is_there(task: Any, expected: list[Any]) -> None:
    refs = task.remote()
    assert outcomes(refs) == expected
    assert outcomes(refs) == expected
    good, bad = sorted(refs, key=lambda ref: expected[refs.index(ref)] is ValueError)
    assert outcomes([use.remote(good), use.remote(good, 1)]) == [([5],), ([5], 1)]
    with pytest.raises(ray.exceptions.RayTaskError) as caught:
        ray.get(use.remote(good, bad))
    assert isinstance(caught.value, ValueError)


def test_the_error_is_that_of_the_value_alone() -> None:
    @ray.remote
    def alone() -> Any:
        return Bad()

    errors = []
    for ref in (alone.remote(), bad_first.remote()[0], bad_second.remote()[1]):
        with pytest.raises(ValueError, match="invalid literal for int") as caught:
            ray.get(ref)
        errors.append(caught.value)
    assert {(type(error), str(error)) for error in errors} == {(ValueError, str(errors[0]))}
    assert [error.__context__ for error in errors] == [None] * 3


def test_a_value_that_shares_objects_with_an_unloadable_one_is_loaded() -> None:
    bad, shared, again = sharing.remote()
    assert outcomes([bad]) == [ValueError]
    [held] = ray.get(shared)
    assert ray.get(held) == 7
    assert ray.get(ray.get(again)["again"]) == [7]
    assert ray.get(ray.get(use.remote(shared))[0]) == [7]


def test_a_large_value_next_to_an_unloadable_one_is_loaded() -> None:
    large, bad = large_and_bad.remote()
    assert outcomes([bad]) == [ValueError]
    assert len(ray.get(large)) == 300_000


def test_calls_of_an_actor() -> None:
    actor = Actor.remote()
    assert outcomes(actor.bad_first.remote()) == [ValueError, [5]]
    assert outcomes([actor.bad_at_three.remote(n) for n in range(6)]) == [
        [0], [1], [2], ValueError, [4], [5],
    ]  # fmt: skip


def test_items_of_a_stream() -> None:
    assert outcomes(stream.remote()) == [[1], ValueError, [3]]


def test_a_future_of_a_neighbour_has_its_value() -> None:
    bad, good = bad_first.remote()
    assert good.future().result(timeout=60) == [5]
    with pytest.raises(ValueError, match="invalid literal for int"):
        bad.future().result(timeout=60)
