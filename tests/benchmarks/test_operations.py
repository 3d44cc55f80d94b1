"""The operations of ``raytwin bench``, ours alone, as pytest-benchmark sees them.

``raytwin bench`` gives rates beside a peer's; this gives each operation's
distribution, which pytest-benchmark can save and compare between commits. Where Ray's own
microbenchmark (``ray microbenchmark``) has the operation, it has Ray's name.
"""

from __future__ import annotations

from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from raytwin.scenarios.bench.cases import CASES, IN_FLIGHT, Case


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.ray_name or case.name)
        for case in CASES.values()
        if case.name != "put_800mb"
    ],
)
def test_operation(case: Case, cluster: Any, benchmark: BenchmarkFixture) -> None:
    benchmark.extra_info |= {"unit": case.unit, "amount_per_call": case.amount}
    benchmark(case.prepare(cluster))


@pytest.mark.parametrize("count", [IN_FLIGHT, 100 * IN_FLIGHT])
def test_task_array(count: int, cluster: Any, benchmark: BenchmarkFixture) -> None:
    """What one more task of an array costs, from the difference of the two."""

    @cluster.remote
    def same(number: int) -> int:
        return number

    found = benchmark(lambda: cluster.get(same.map(range(count))))
    assert found == list(range(count))
