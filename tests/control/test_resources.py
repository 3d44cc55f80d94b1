"""`resources`: exact arithmetic, canonical strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.control.core.resources import (
    UNIT,
    ResourcePool,
    cpu_part,
    format_demand,
    parse_demand,
)

NAMES = st.sampled_from(["CPU", "GPU", "memory", "node:3", "CPU:like"])
AMOUNTS = st.dictionaries(NAMES, st.integers(0, 10**15), max_size=4)


@given(AMOUNTS)
def test_demands_make_the_round_trip(units: dict[str, int]) -> None:
    demand = format_demand({name: amount / UNIT for name, amount in units.items()})
    assert dict(parse_demand(demand)) == {n: a for n, a in units.items() if a}
    assert list(parse_demand(demand)) == sorted(parse_demand(demand))


def test_demands_are_written_plainly() -> None:
    assert format_demand({"GPU": 0.5, "CPU": 1.0, "TPU": 0}) == "CPU:1,GPU:0.5"
    assert format_demand({"CPU": 0.1 + 0.2}) == "CPU:0.3"
    assert format_demand({"memory": 123_456_789}) == "memory:123456789"
    assert format_demand({}) == ""


@pytest.mark.parametrize(
    "resources",
    [{"CPU": -1}, {"CPU": 0.00001}, {"": 1}, {"a,b": 1}, {"CPU": float("nan")},
     {"CPU": float("inf")}],
)  # fmt: skip
def test_bad_demands_are_refused(resources: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        format_demand(resources)


@pytest.mark.parametrize("demand", ["CPU", ":1", "CPU:", "CPU:x", "CPU:-1", "CPU:1,,GPU:1"])
def test_bad_strings_are_refused(demand: str) -> None:
    with pytest.raises(ValueError):
        parse_demand(demand)


def test_ten_thousand_times_a_tenth() -> None:
    pool = ResourcePool({"CPU": 1})
    for _ in range(10_000):
        for _ in range(10):
            pool.take("CPU:0.1")
        assert not pool.fits("CPU:0.0001")
        for _ in range(10):
            pool.give("CPU:0.1")
    assert pool.free == pool.total == {"CPU": UNIT}
    assert pool.available() == {"CPU": 1.0}


def test_taking_more_than_the_total_fails() -> None:
    pool = ResourcePool({"CPU": 1, "GPU": 1})
    with pytest.raises(AssertionError):
        pool.give("CPU:1")
    pool.take("CPU:1,GPU:1")
    with pytest.raises(AssertionError):
        pool.take("CPU:0.5")


def test_feasible_counts() -> None:
    pool = ResourcePool({"CPU": 4, "GPU": 1})
    pool.take("CPU:4")
    assert pool.feasible("CPU:4,GPU:1")
    assert not pool.fits("CPU:1")
    assert not pool.feasible("CPU:5")
    assert not pool.feasible("TPU:1")
    assert pool.feasible("") and pool.fits("")
    assert pool.slots("CPU:1") == pool.slots("") == 4
    assert pool.slots("CPU:1,GPU:0.5") == 2
    assert pool.slots("TPU:1") == 0


def test_reserved_resources_reduce_the_slots() -> None:
    pool = ResourcePool({"CPU": 4, "x": 1})
    pool.reserve("CPU:2.5,x:1")
    assert pool.feasible("CPU:4") and not pool.usable("CPU:4")
    assert pool.slots("CPU:1") == 1 and pool.slots("CPU:0.5") == 3 and pool.slots("x:1") == 0
    assert pool.slots("") == 4 and pool.usable("")
    assert pool.fits("CPU:4,x:1"), "it is free until it is taken"
    pool.reserve("CPU:2.5")  # who waits for it holds it, too
    assert pool.slots("CPU:1") == 0 and not pool.usable("CPU:0.5")
    pool.unreserve("CPU:2.5,x:1")
    pool.unreserve("CPU:2.5")
    assert pool.reserved == {} and pool.slots("CPU:1") == 4 and pool.slots("x:1") == 1


def test_a_blocked_task_gives_up_its_cpus_only() -> None:
    assert cpu_part("CPU:1.5,GPU:1") == "CPU:1.5"
    assert cpu_part("GPU:1") == cpu_part("") == ""
    assert cpu_part("CPU:like:1,GPU:1") == ""


def test_released_cpus_are_taken_back_even_if_in_use() -> None:
    pool = ResourcePool({"CPU": 2, "GPU": 1})
    pool.take("CPU:2")
    pool.give("CPU:2")
    pool.take("CPU:1")
    pool.retake("CPU:2")
    assert pool.is_over("CPU:1") and not pool.is_over("GPU:1") and not pool.fits("CPU:1")
    assert pool.available() == {"CPU": 0.0, "GPU": 1.0}
    assert pool.room("CPU:1", 5) <= 0 and pool.fits("GPU:1")
    pool.give("CPU:1")
    assert not pool.is_over("CPU:1") and not pool.fits("CPU:1")
    pool.give("CPU:2")
    assert pool.available() == {"CPU": 2.0, "GPU": 1.0}
