"""Clusters of three nodes on each backend, and what must be left of references: nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.fuzz.oracle import invariants

Start = Callable[..., Any]

NODES = [{"CPU": 2.0, "N0": 9.0}, {"CPU": 2.0, "N1": 9.0}, {"CPU": 2.0, "N2": 9.0}]


@pytest.fixture(scope="module", params=["sim", "local"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Three nodes with two CPUs each, shared by the tests of a module; its session."""
    yield ray.init(backend=request.param, nodes=NODES)
    ray.shutdown()


@pytest.fixture(params=["sim", "local"])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """`init` on either backend for a cluster of the test's own, which ends with it."""

    def begin(**options: Any) -> Any:
        return ray.init(backend=request.param, **{"nodes": NODES, **options})

    yield begin
    ray.shutdown()


def nothing_left(session: Any) -> None:
    """All that was made is freed, on every node, at its owners and in the GCS."""
    gc.collect()
    assert invariants.settled(lambda: invariants.at_end(session), ray.sleep) == []


def stored(session: Any) -> int:
    """How many large objects there are."""
    return sum(objects for _, objects, *_ in session.query("stores"))


def until(condition: Callable[[], Any], limit_s: float = 30.0) -> None:
    """Wait until a condition holds; fail after what only a hang takes."""
    waited_s = 0.0
    while not condition():
        assert waited_s < limit_s, "it never came to be"
        ray.sleep(0.02)
        waited_s += 0.02
