"""One small cluster per module and backend; time is the backend's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import raytwin as ray


@pytest.fixture(scope="module", params=["sim", "local"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Two nodes with two CPUs each; the name of the backend."""
    ray.init(backend=request.param, nodes=2, cpus_per_node=2)
    yield request.param
    ray.shutdown()
