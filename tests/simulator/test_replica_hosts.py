"""Where simulated replicas live: no two of a chain on one host while there are enough hosts."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

import pytest

import raytwin as ray


@pytest.fixture(params=[0, -1], ids=["head", "tail"])
def killed(request: pytest.FixtureRequest) -> Iterator[tuple[Any, int]]:
    session: Any = ray.init(backend="sim", nodes=2, cpus_per_node=1, gcs_replicas=2)
    yield session, request.param
    ray.shutdown()


def write_s(session: Any, writes: int) -> float:
    took = []
    for number in range(writes):
        began_s = ray.now()
        session.kv_put(b"key", b"%d" % number)
        took.append(ray.now() - began_s)
    return median(took)


def test_a_new_replica_is_not_where_the_other_one_is(killed: tuple[Any, int]) -> None:
    session, member = killed
    before_s = write_s(session, 100)
    now = names = session.query("chain")[0]["names"]
    session.cluster.kill_replica(names[member])
    while now == names or len(now) < 2:
        write_s(session, 1)
        now = session.query("chain")[0]["names"]
    hosts = {id(session.cluster.processes[name].host) for name in now}
    assert names[member] not in now
    assert len(hosts) == 2
    # The same two ways between hosts, so the same time.
    assert write_s(session, 100) == pytest.approx(before_s, rel=0.01)
