"""Clusters of containers for the tests, where there is a Docker engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import raytwin as ray
from tests.processes.helpers import eventually
from tests.requirements import require

Start = Callable[..., Any]


def left_in(client: Any) -> list[str]:
    """Return the names of all containers and networks of raytwin's in an engine."""
    from raytwin.runtime.containers.engine import LABEL

    rows = client.api.containers(all=True, filters={"label": LABEL})
    networks = client.networks.list(filters={"label": LABEL})
    return [*(row["Names"][0] for row in rows), *(network.name for network in networks)]


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[Any]:
    """A client of the engine; at the end nothing of the tests is in it."""
    from raytwin.runtime.containers import engine

    try:
        client = engine.connect()
    except engine.NoEngine as error:
        require("docker", False, str(error))
    before = set(left_in(client))
    yield client
    eventually(lambda: set(left_in(client)) <= before)
    client.close()


@pytest.fixture
def start(docker_engine: Any) -> Iterator[Start]:
    """`init` for a cluster of the test's own, which ends with the test."""
    yield lambda **options: ray.init(
        **{"backend": "docker", "nodes": 3, "cpus_per_node": 1, "heartbeat_timeout_s": 1.0,
           **options}
    )  # fmt: skip
    ray.shutdown()
