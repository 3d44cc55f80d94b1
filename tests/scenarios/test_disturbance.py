"""`disturbance` computes known numbers from known operations."""

from __future__ import annotations

import pytest

from raytwin.scenarios.workloads.disturbance import (
    Episode,
    disturbance,
    ended,
    most_open,
    quantile,
    throughput,
)
from raytwin.scenarios.workloads.steady_load import Answer, Operation

TASK_S = 0.1
FAULT = Episode(0.0, 1.0, 3.0)


def operation(number: int, submitted_s: float, ended_s: float | None) -> Operation:
    found = Operation(bytes([number]), submitted_s, number)
    if ended_s is not None:
        found.ended_s, found.answer = ended_s, Answer.RIGHT
    return found


def load(outage_s: float, lost: bool = False) -> list[Operation]:
    """An operation every 0.1 s; from 1 s on none ends for so long, and then all that waited."""
    found = []
    for number in range(30):
        submitted_s = number * TASK_S
        ended_s = submitted_s + 0.5 * TASK_S
        if 1.0 <= ended_s < 1.0 + outage_s:
            ended_s = 1.0 + outage_s
        found.append(operation(number, submitted_s, ended_s))
    if lost:
        found.append(operation(99, 1.5, None))
    return found


def test_without_an_outage_nothing_was_hit() -> None:
    felt = disturbance(FAULT, load(0.0), ())
    assert (felt.hit, felt.first_result_s, felt.full_s, felt.recovered) == (0, None, None, True)
    assert felt.dip_operations == 0


def test_an_outage_has_a_first_result_a_dip_and_an_end() -> None:
    felt = disturbance(FAULT, load(0.52), ())
    assert felt.hit == 5
    assert felt.first_result_s == felt.full_s == pytest.approx(0.52)
    # Six were open at the worst moment, one in the quiet, and one more is chance.
    assert felt.dip_operations == most_open(load(0.52), 1.0, 3.0) - 2 == 4
    assert felt.latency_max_s == pytest.approx(0.52)
    assert felt.recovered


def test_what_began_again_was_hit_however_fast_it_was() -> None:
    felt = disturbance(FAULT, load(0.0), {bytes([12])})
    assert felt.hit == 1
    assert felt.first_result_s == felt.full_s == pytest.approx(0.25)
    before = disturbance(FAULT, load(0.0), {bytes([3])})
    assert before.hit == 0, "it had ended before the fault"


def test_one_slow_operation_before_the_fault_hides_nothing() -> None:
    found = load(0.52)
    found[2].ended_s = found[2].submitted_s + 0.4
    assert disturbance(FAULT, found, ()).hit == disturbance(FAULT, load(0.52), ()).hit == 5


@pytest.mark.parametrize("found", [load(5.0), load(0.0, lost=True)])
def test_what_is_not_back_has_not_recovered(found: list[Operation]) -> None:
    felt = disturbance(FAULT, found, ())
    assert (felt.recovered, felt.full_s) == (False, None)


def test_throughput_has_whole_buckets_around_the_fault() -> None:
    buckets = throughput(Episode(0.05, 1.0, 2.0), ended(load(0.52)), 0.25)
    assert [at_s for at_s, _ in buckets] == [-0.625, -0.375, -0.125, 0.125, 0.375, 0.625, 0.875]
    assert dict(buckets)[0.125] == 0.0
    assert sum(rate * 0.25 for at_s, rate in buckets if at_s > 0) == 10


def test_quantiles_are_values() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([7.0], 0.99)) == (50, 99, 7)
