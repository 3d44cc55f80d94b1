"""The backends that programs with actors run on, each one cluster for a module's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import raytwin as ray

Start = Callable[..., Any]

NODES = {"nodes": 2, "cpus_per_node": 2}


@pytest.fixture(scope="module", params=["local", "sim"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Two nodes with two CPUs each, shared by the tests of a module; its session."""
    yield ray.init(backend=request.param, **NODES)
    ray.shutdown()


@pytest.fixture(params=["local", "sim"])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """`init` on either backend for a cluster of the test's own, which ends with it."""

    def begin(**options: Any) -> Any:
        return ray.init(backend=request.param, **{**NODES, **options})

    yield begin
    ray.shutdown()


@pytest.fixture
def local() -> Iterator[Start]:
    """`init` on real processes, for tests of what only those can do."""

    def begin(**options: Any) -> Any:
        return ray.init(**{**NODES, **options})

    yield begin
    ray.shutdown()


@pytest.fixture
def simulated() -> Iterator[Start]:
    """`init` in virtual time, for what is decided in the control plane alone."""

    def begin(**options: Any) -> Any:
        return ray.init(backend="sim", **{**NODES, **options})

    yield begin
    ray.shutdown()
