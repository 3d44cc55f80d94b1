"""Values that a program uses stay in memory, on both backends."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.runtime.api import backend

MB = 10**6


@pytest.fixture(params=["sim", "local"])
def small(request: pytest.FixtureRequest) -> Iterator[str]:
    """One node whose store has room for two of `array` or `blob`, and not for three."""
    ray.init(backend=request.param, nodes=1, cpus_per_node=1, object_store_memory=64 << 20)
    yield request.param
    ray.shutdown()


def array() -> Any:
    return np.ones(25 * MB, np.uint8)


def blob() -> Any:
    return ray.Blob(25 * MB)


def on_disk() -> int:
    """Return how many objects are on disk."""
    return sum(objects for _, objects, _ in backend.connected().query("disks"))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("make", [array, blob])
def test_values_in_use_are_not_evicted(make: Callable[[], Any]) -> None:
    held = [ray.get(ray.put(make())) for _ in range(2)]
    refs = [ray.put(make())]
    assert on_disk() == 1, "it found no room in memory"
    part = held[0][:10] if make is array else held[0]
    del held, refs[0]
    gc.collect()
    # One is looked at still, be it at a part of it.
    refs.append(ray.put(make()))
    second = ray.get(refs[0])
    assert on_disk() == 0
    refs.append(ray.put(make()))
    assert on_disk() == 1
    del part, refs[1]
    gc.collect()
    refs.append(ray.put(make()))
    assert on_disk() == 0 and second.nbytes == 25 * MB


@pytest.mark.usefixtures("small")
def test_values_without_arrays_are_not_pinned() -> None:
    texts = [ray.get(ray.put("x" * (25 * MB))) for _ in range(4)]
    assert {len(text) for text in texts} == {25 * MB}


@pytest.mark.usefixtures("small")
def test_a_value_that_cannot_be_loaded_is_not_pinned() -> None:
    class Refuses:
        def __init__(self) -> None:
            self.array = array()

        def __setstate__(self, state: Any) -> None:
            raise ValueError("not here")

    for _ in range(4):
        with pytest.raises(ValueError, match="not here"):
            ray.get(ray.put(Refuses()))
        gc.collect()
