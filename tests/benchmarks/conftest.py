"""Benchmarks measure when they are asked to; else they are not part of a run.

``pytest tests/benchmarks --benchmark-only`` measures (``make bench`` does so),
``--benchmark-disable`` runs each once, to see that it still works.

Two runs are compared by ``--benchmark-compare=FILE --benchmark-compare-fail=min:10%``, where FILE
is what ``--benchmark-json`` wrote. That is for the parts, which compute in one process; what runs
on a cluster differs from one cluster to the next: ``raytwin bench --against`` measures it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.session import PerformanceRegression

import raytwin

HERE = Path(__file__).parent
CPUS = 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is in this directory, unless an option asks for it."""
    if config.getoption("benchmark_only") or config.getoption("benchmark_disable"):
        return
    left_out = [item for item in items if HERE in item.path.parents]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary() -> Iterator[None]:
    """Say in one line what makes ``--benchmark-compare-fail`` fail, and exit with 1.

    pytest-benchmark reports a regression, or that there is nothing to compare with, by exceptions
    that pytest expects nowhere so late, and shows as errors of its own.
    """
    try:
        return (yield)
    except PerformanceRegression as regression:
        pytest.exit(str(regression), returncode=pytest.ExitCode.TESTS_FAILED)
    except pytest.UsageError as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """The API, connected to a cluster of one node with `CPUS` CPUs."""
    raytwin.init(cpus_per_node=CPUS, object_store_memory=2 << 30)
    yield raytwin
    raytwin.shutdown()
