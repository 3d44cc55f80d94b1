"""The GCS in shards, in virtual time: more of them take more operations a second."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.backend import connected

KV_S = 50e-6
"""What one operation on a key costs here."""
CLIENTS = 32
PUTS = 40


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Return the paper's profile, with a GCS that keys are work for."""
    data = json.loads(files("raytwin.simulator").joinpath("profiles", "paper.json").read_text())
    data["head"]["received_by_type"]["KvPut"] = {"message_s": KV_S}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def ops_per_s(profile: Path, **options: Any) -> float:
    """Return how many keys a second are set by `CLIENTS` tasks, on as many nodes."""

    @ray.remote
    def put(client: int) -> None:
        session: Any = connected()
        for number in range(PUTS):
            session.kv_put(b"%d/%d" % (client, number), b"value")

    session: Any = ray.init(
        backend="sim", nodes=CLIENTS, cpus_per_node=1, profile=str(profile), **options
    )
    try:
        ray.get([put.remote(-1) for _ in range(CLIENTS)])
        began_s = ray.now()
        ray.get([put.options(scheduling_strategy="SPREAD").remote(n) for n in range(CLIENTS)])
        elapsed_s = ray.now() - began_s
        tables = session.cluster.gcs_tables
        assert sum(len(table.kv.values) for table in tables) == (CLIENTS + 1) * PUTS
        assert all(len(table.kv.values) for table in tables)
    finally:
        ray.shutdown()
    return CLIENTS * PUTS / elapsed_s


@pytest.mark.parametrize("replicas", [1, 2])
def test_shards_add_up(profile: Path, replicas: int) -> None:
    rates = {
        shards: ops_per_s(profile, gcs_shards=shards, gcs_replicas=replicas) for shards in (1, 2, 4)
    }
    assert rates[1] < 1 / KV_S
    assert rates[2] / rates[1] > 1.7, rates
    assert rates[4] / rates[1] > 2.8, rates


def test_one_shard_costs_nothing() -> None:
    """It is the plain GCS in the head's process, and not a chain."""
    session: Any = ray.init(backend="sim", nodes=2, cpus_per_node=1, gcs_shards=1)
    try:
        assert session.cluster.replicas is None
        assert session.cluster.gcs_tables == [session.cluster.gcs]
    finally:
        ray.shutdown()
