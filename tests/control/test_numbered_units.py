"""Which GPUs of a node a lease or a bundle of a placement group has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.control.core.group_resources import demand_in, group_resources
from raytwin.runtime.control.core.resources import UNIT, NumberedPool, Units

GROUP = "0001000012345678deadbeef"
HALF = UNIT // 2


def test_fractions_share_a_gpu_and_leave_the_others_whole() -> None:
    pool = NumberedPool({"GPU": 2})
    assert pool.lease("GPU:0.5") == ((0, HALF),)
    assert pool.lease("GPU:0.5") == ((0, HALF),)
    assert pool.lease("GPU:1") == ((1, UNIT),)
    assert not pool.fits("GPU:0.5")


def test_two_halves_are_no_whole_gpu() -> None:
    pool = NumberedPool({"GPU": 2})
    first = pool.lease("GPU:0.6")
    pool.lease("GPU:0.6")
    assert pool.free["GPU"] == 2 * UNIT - 12_000
    pool.end_lease("GPU:0.6", first)
    assert pool.lease("GPU:1") == ((0, UNIT),)
    assert not pool.fits("GPU:1")


def test_tasks_in_a_group_have_the_gpus_of_their_bundles() -> None:
    """Bundles end one after another, while workers in others still run."""
    pool = NumberedPool({"CPU": 1, "GPU": 3})
    bundles: list[tuple[str, Units, dict[str, float]]] = []
    for index, amount in enumerate((2.0, 1.0)):
        demand = f"GPU:{amount:g}"
        units = pool.lease(demand)
        pool.lend_to_group(demand)
        named = group_resources({"GPU": amount}, GROUP, index)
        pool.add_bundle(named, units)
        bundles.append((demand, units, named))
    inside = demand_in("GPU:2", GROUP, 0)
    held = pool.lease(inside)
    assert held == ((0, UNIT), (1, UNIT))
    any_bundle = demand_in("GPU:1", GROUP, -1)
    other = pool.lease(any_bundle)
    assert other == ((2, UNIT),)
    assert not pool.fits(demand_in("GPU:1", GROUP, 1))
    pool.end_lease(any_bundle, other)
    _end(pool, *bundles[1])
    pool.end_lease(inside, held)
    _end(pool, *bundles[0])
    assert pool.lease("GPU:3") == ((0, UNIT), (1, UNIT), (2, UNIT))


def _end(pool: NumberedPool, demand: str, units: Units, named: dict[str, float]) -> None:
    pool.remove_bundle(named, units)
    pool.end_group_loan(demand)
    pool.end_lease(demand, units)


@given(st.lists(st.sampled_from([0.25, 0.5, 0.7, 1, 2]), max_size=12), st.data())
def test_no_gpu_is_given_out_twice(amounts: list[float], data: st.DataObject) -> None:
    pool = NumberedPool({"GPU": 3})
    leases: list[tuple[str, Units]] = []
    for amount in amounts:
        demand = f"GPU:{amount:g}"
        if pool.fits(demand):
            leases.append((demand, pool.lease(demand)))
        elif leases:
            pool.end_lease(*leases.pop(data.draw(st.integers(0, len(leases) - 1))))
        used = [0, 0, 0]
        for _, units in leases:
            for number, units_used in units:
                used[number] += units_used
        assert max(used) <= UNIT
        assert sum(used) == 3 * UNIT - pool.free["GPU"]
    for lease in leases:
        pool.end_lease(*lease)
    assert pool.lease("GPU:3") == ((0, UNIT), (1, UNIT), (2, UNIT))
