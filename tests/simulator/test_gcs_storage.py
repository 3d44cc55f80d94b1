"""A durable head answers a write after the transaction of its turn, which takes time."""

from __future__ import annotations

from pathlib import Path

import pytest

import raytwin as ray
from raytwin.runtime.api.backend import current
from tests.simulator.conftest import changed

COMMIT_S = 0.001
WRITES = 10


def seconds_of_writes(profile: str, storage: Path) -> float:
    """Return how long some writes to the key-value table take, one after the other."""
    ray.init(backend="sim", nodes=1, profile=profile, gcs_storage=str(storage))
    try:
        session = current()
        session.kv_put(b"key", b"")
        began_s = ray.now()
        for number in range(WRITES):
            session.kv_put(b"key", b"%d" % number)
        return ray.now() - began_s
    finally:
        ray.shutdown()


def test_each_write_waits_for_its_transaction(free: str, tmp_path: Path) -> None:
    before_s = seconds_of_writes(free, tmp_path / "fast")
    slow = changed(free, tmp_path, commit_s=COMMIT_S)
    after_s = seconds_of_writes(slow, tmp_path / "slow")
    assert after_s - before_s == pytest.approx(WRITES * COMMIT_S)
