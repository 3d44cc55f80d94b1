"""Whoever takes a value out of the object store pays for it: a worker, or a driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from tests.simulator.conftest import changed

READ_S = 1.0
INLINE_BYTES, STORED_BYTES = 1_000, 200_000


@ray.remote
def _take(_value: Any) -> None:
    return None


@pytest.fixture
def only_reads_cost(free: str, tmp_path: Path) -> Any:
    profile = changed(free, tmp_path, call_s={"read": READ_S})
    return ray.init(backend="sim", nodes=1, cpus_per_node=1, profile=profile)


def took_s(ref: Any) -> float:
    began_s = ray.now()
    ray.get(ref)
    return ray.now() - began_s


@pytest.mark.parametrize(("nbytes", "expected_s"), [(INLINE_BYTES, 0.0), (STORED_BYTES, READ_S)])
def test_a_value_costs_its_reader_where_it_is_in_the_object_store(
    only_reads_cost: Any, nbytes: int, expected_s: float
) -> None:
    value = ray.put(ray.Blob(nbytes))
    ray.get(_take.remote(0))  # a worker is there
    assert took_s(_take.remote(value)) == pytest.approx(expected_s, abs=0.1)
    assert took_s(value) == pytest.approx(expected_s, abs=0.1)
