"""Arrays that tasks and `get` receive: read-only, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import raytwin as ray

pytestmark = pytest.mark.usefixtures("backend")

LIMIT_S = 30.0


@ray.remote
def change(array: Any) -> Any:
    array[0] = 5
    return array


@ray.remote
def writeable(*arrays: Any) -> list[bool]:
    return [bool(array.flags.writeable) for array in arrays]


@pytest.mark.parametrize("count", [3, 200_000])
def test_arrays_are_read_only(count: int) -> None:
    array = np.arange(count, dtype=np.float64)
    ref = ray.put(array)
    found = ray.get(ref)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1
    for given in (array, ref):
        with pytest.raises(ValueError, match="read-only"):
            ray.get(change.remote(given), timeout=LIMIT_S)
    array[0] = 7  # the program's own stays as it was
    assert ray.get(ref)[0] == 0


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 4), order="F"),
        np.arange(24).reshape(2, 3, 4)[:, ::2, 1:],
        np.float32(3) * np.ones(()),
        np.zeros(0),
        np.array(["2026-01-01"], "datetime64[D]"),
        np.zeros(3, [("a", "i4"), ("b", "f8")]),
        np.array(["x", "yz"]),
    ],
    ids=["fortran", "strided", "scalar", "empty", "dates", "records", "strings"],
)
def test_arrays_of_any_kind_come_back_as_they_were(array: Any) -> None:
    array = np.asarray(array)
    [found, inside] = ray.get(ray.put([array, {"a": array}]))
    for one in (found, inside["a"]):
        assert one.dtype == array.dtype and one.shape == array.shape
        assert np.array_equal(one, array)
        assert not one.flags.writeable
    assert ray.get(writeable.remote(array, ray.put(array)), timeout=LIMIT_S) == [False, False]


def test_arrays_of_objects_may_be_changed() -> None:
    found = ray.get(ray.put(np.array([1, "x", None], dtype=object)))
    found[0] = 2
    assert list(found) == [2, "x", None]
