"""Blobs have the bytes that they claim in messages, and none in a simulated store."""

from __future__ import annotations

from typing import Any

import raytwin as ray
from raytwin.runtime.serialization.serialization import deserialize
from raytwin.simulator.programs import virtual_values
from tests.simulator.virtual_cluster import start

NBYTES = 50_000


def test_a_small_blob_travels_with_its_bytes(free: str) -> None:
    session: Any = start(nodes=1, cpus_per_node=1, profile=free)
    echo = ray.remote(lambda value: value)
    counts = session.cluster.counts
    ray.get(echo.remote(None))
    before = {role: counts[role].bytes for role in ("driver", "node", "worker")}
    assert ray.get(echo.remote(ray.Blob(NBYTES))) == ray.Blob(NBYTES)
    # The driver submits it, the node gives the task to the worker, and the worker returns it.
    for role, nbytes in before.items():
        assert counts[role].bytes - nbytes >= NBYTES
    assert ray.get(ray.put([ray.Blob(NBYTES), "text"])) == [ray.Blob(NBYTES), "text"]


def test_a_message_has_the_size_of_a_value_and_a_store_its_pickle() -> None:
    blob = virtual_values.Blob(NBYTES)
    values: list[Any] = [blob, ["text", blob], [blob] * 2]
    for value in values:
        written = virtual_values.serialize(value)
        assert len(written.to_bytes()) == written.nbytes > NBYTES
        assert len(virtual_values.stored(written)) < 300
        for form in (written.to_bytes(), virtual_values.stored(written)):
            assert deserialize(form, lambda: None) == value
