"""Clusters for the tests of the `local` backend, and ways to look inside them.

Tests never assert how long something takes; every wait has a limit that only a
hang reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import raytwin as ray
from tests.processes.joined import Joined

Start = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One node with two CPUs, shared by the tests of a module; its session."""
    session = ray.init(nodes=1, cpus_per_node=2)
    yield session
    ray.shutdown()


@pytest.fixture
def start() -> Iterator[Start]:
    """`init` for a cluster of the test's own, which ends with the test."""
    yield ray.init
    ray.shutdown()


@pytest.fixture
def join() -> Iterator[Callable[..., Joined]]:
    """Make `Joined`s, which are killed at the end if they are still there."""
    made: list[Joined] = []

    def make(*args: Any, **environment: str) -> Joined:
        made.append(Joined(*args, **environment))
        return made[-1]

    yield make
    for joined in made:
        joined.process.kill()
        joined.process.communicate()
