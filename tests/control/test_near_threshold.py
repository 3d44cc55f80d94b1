"""Decisions near a policy's threshold: which ones count, and that counting changes none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.scheduling.near_threshold import ThresholdCounter, ThresholdTally
from raytwin.runtime.control.scheduling.policies import POLICIES, LocalView, make_policy

VIEWS = st.builds(
    LocalView,
    alone=st.booleans(),
    feasible=st.booleans(),
    queue=st.integers(0, 200),
    slots=st.integers(0, 8),
    mean_task_s=st.sampled_from([0.0, 0.0001, 0.001, 0.019, 1.0]),
    busy_s=st.sampled_from([0.0, 0.001, 0.017, 0.02, 0.023, 1.0]),
)


def tally(
    *, queue: int = 0, mean_s: float = 0.001, busy_s: float = 0.0, count: int = 1
) -> ThresholdTally:
    """Return the counts of one decision with the default threshold, on two slots."""
    policy = make_policy(Config())
    counter = policy.on_threshold = ThresholdCounter(Config())
    policy.keep(
        LocalView(
            alone=False, feasible=True, queue=queue, slots=2, mean_task_s=mean_s, busy_s=busy_s
        ),
        count,
    )
    return counter.tally


@given(VIEWS, st.integers(1, 300), st.sampled_from(list(POLICIES)))
def test_counting_changes_no_decision(view: LocalView, count: int, name: str) -> None:
    config = Config(policy=name)
    counted = make_policy(config)
    counter = counted.on_threshold = ThresholdCounter(config)
    assert counted.keep(view, count) == make_policy(config).keep(view, count)
    assert 0 <= counter.tally.near <= counter.tally.tasks <= count


@pytest.mark.parametrize("queue, near", [(0, 0), (31, 0), (32, 1), (39, 1), (40, 1), (48, 0)])
def test_a_task_is_near_whose_wait_is_within_a_fifth_of_the_threshold(
    queue: int, near: int
) -> None:
    # Of 1 ms on two slots, 40 tasks are the threshold of 20 ms.
    assert tally(queue=queue) == ThresholdTally(0.02, 1, near)


@pytest.mark.parametrize("busy_s, near", [(0.015, 0), (0.017, 1), (0.023, 1), (0.025, 0)])
def test_a_task_is_near_where_the_next_room_comes_about_at_the_threshold(
    busy_s: float, near: int
) -> None:
    assert tally(busy_s=busy_s).near == near


def test_those_elements_of_a_range_are_near_that_either_threshold_decides_otherwise() -> None:
    found = tally(count=100)
    assert (found.tasks, found.near, found.share) == (100, 48 - 32, 0.16)
    assert found.sides_s == pytest.approx((0.016, 0.024))
    assert found.is_near and not tally(count=1000).is_near


def test_what_the_threshold_does_not_decide_does_not_count() -> None:
    assert tally(mean_s=1.0, queue=2).near == 0, "one task for each slot, whatever its time"
    config = Config()
    policy = make_policy(config)
    counter = policy.on_threshold = ThresholdCounter(config)
    view = {"queue": 40, "slots": 2, "mean_task_s": 0.001}
    policy.keep(LocalView(alone=True, feasible=True, **view), 1)
    policy.keep(LocalView(alone=False, feasible=False, **view), 1)
    assert counter.tally.tasks == 0
