"""Return values that travel together are loaded one by one: what cannot be loaded fails alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from raytwin.runtime.serialization import serialization
from raytwin.runtime.serialization.pickling import Frames
from raytwin.simulator.programs import virtual_values as virtual


class Bad:
    """Raises ValueError when it is loaded."""

    def __reduce__(self) -> Any:
        return int, ("x",)


class Kept:
    """Travels by name, and is equal to its copies."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept) and other.x == self.x

    __hash__ = None  # type: ignore[assignment]


def real(values: list[Any]) -> Any:
    return serialization.deserialize(serialization.serialize_values(values).to_bytes())


def simulated(values: list[Any]) -> Any:
    return serialization.deserialize(virtual.serialize_values(values).to_bytes())


Load = Callable[[list[Any]], Any]
both = pytest.mark.parametrize("load", [real, simulated])


@both
@pytest.mark.parametrize(
    "values",
    [
        [1, None, "x", 2.5],
        [1],
        [Kept(1)],
    ],
)
def test_plain_values_are_a_list(load: Load, values: list[Any]) -> None:
    found = load(values)
    assert type(found) is list and found == values


@both
def test_an_unloadable_value_fails_alone(load: Load) -> None:
    values = [Kept(1), Bad(), [Kept(2)], 3, {"deep": [Bad()]}, (4,)]
    found = load(values)
    for index in (1, 4):
        with pytest.raises(ValueError, match="invalid literal for int"):
            found[index]
    assert [found[index] for index in (0, 2, 3, 5)] == [Kept(1), [Kept(2)], 3, (4,)]


@both
def test_each_value_has_its_own_arrays(load: Load) -> None:
    arrays = [np.full(size, size) for size in (10, 1_000, 2_000)]
    found = load([*arrays, [arrays[0], arrays[2]], Bad()])
    for index, array in enumerate(arrays):
        assert (found[index] == array).all() and not found[index].flags.writeable
    assert (found[3][0] == arrays[0]).all() and (found[3][1] == arrays[2]).all()
    with pytest.raises(ValueError, match="invalid literal for int"):
        found[4]


@both
def test_a_value_that_is_asked_for_twice_comes_twice(load: Load) -> None:
    found = load([Kept([1]), Kept([2])])
    first = found[0]
    first.x.append(2)
    assert found[0] == Kept([1])


@both
def test_values_nested_deeply_are_values_like_others(load: Load) -> None:
    deep: Any = Kept(1)
    for _ in range(400):
        deep = [deep]
    found = load([deep, Bad()])[0]
    for _ in range(400):
        [found] = found
    assert found == Kept(1)


@both
def test_an_unpicklable_value_raises(load: Load) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        load([Kept(1), (n for n in range(3))])


def test_frames_travel_as_they_are() -> None:
    frames = Frames([(pickle.dumps(1), []), (pickle.dumps("x"), [])])
    found = pickle.loads(pickle.dumps(frames))
    assert (found[0], found[1]) == (1, "x")
