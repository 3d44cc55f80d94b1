"""Clusters of the tests of the simulator end with the test; a profile that is free."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import raytwin as ray
from raytwin.simulator.machine.costs import Profile, RoleCost
from tests.simulator.virtual_cluster import BANDWIDTH, LATENCY_S


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    ray.shutdown()


@pytest.fixture
def free(tmp_path: Path) -> str:
    """A profile in which nothing costs anything but latency and bandwidth."""
    role = RoleCost()
    profile = Profile(
        name="free", source="made up", cores=2, latency_s=LATENCY_S, bandwidth=BANDWIDTH,
        loopback_latency_s=0.0, loopback_bandwidth=1e30, memory_bandwidth=1e30,
        start_worker_s=0.0, head=role, node=role, worker=role, driver=role,
    )  # fmt: skip
    path = tmp_path / "free.json"
    path.write_bytes(msgspec.json.encode(profile))
    return str(path)


def changed(profile: str, tmp_path: Path, **costs: float) -> str:
    """Return a copy of a profile with other costs, for one test."""
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({**json.loads(Path(profile).read_text()), **costs}))
    return str(path)
