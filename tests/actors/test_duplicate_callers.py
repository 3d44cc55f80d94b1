"""A task runs twice: on a node declared dead that does not know it, and on another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.simulator.cluster.simulated_cluster import HEAD_NUMBER

WAIT_S = 30
LARGE_BYTES = 150_000
NODES = [{"CPU": 2}, {"CPU": 2, "actor": 1}, {"CPU": 2, "callers": 1}]


@ray.remote(resources={"actor": 0.1})
class Slow:
    def __init__(self) -> None:
        self.calls = 0

    def value(self, nbytes: int) -> bytes:
        self.calls += 1
        ray.sleep(4)
        return bytes([self.calls]) * nbytes

    def items(self, nbytes: int) -> Iterator[bytes]:
        self.calls += 1
        for _ in range(4):
            ray.sleep(1)
            yield bytes([self.calls]) * nbytes

    def count(self) -> int:
        return self.calls


@ray.remote(max_retries=-1, resources={"callers": 0.1})
def caller(slow: Any, stream: bool, nbytes: int, mark: str) -> list[int]:
    """Call when it runs again at once, the first time later: so that is what comes last."""
    ray.get(slow.count.remote())
    if not Path(mark).exists():
        Path(mark).touch()
        ray.sleep(2.5)
    refs = list(slow.items.remote(nbytes)) if stream else [slow.value.remote(nbytes)]
    return [ray.get(ref)[0] for ref in refs]


@pytest.mark.parametrize("stream", [False, True], ids=["value", "stream"])
@pytest.mark.parametrize("restarts", [0, -1])
@pytest.mark.parametrize("nbytes", [1, LARGE_BYTES])
def test_the_living_caller_gets_its_reply_though_the_fenced_one_asked_last(
    tmp_path: Path, stream: bool, restarts: int, nbytes: int
) -> None:
    session: Any = ray.init(backend="sim", nodes=NODES, heartbeat_timeout_s=14.0)
    cluster = session.cluster
    mark = tmp_path / "mark"
    try:
        slow = Slow.options(max_restarts=restarts, max_task_retries=restarts).remote()
        ran = caller.remote(slow, stream, nbytes, str(mark))
        while not mark.exists():
            ray.sleep(0.05)
        cluster.add_node({"CPU": 2, "callers": 1})
        ray.sleep(0.2)
        cluster.pause_node(2)
        for node in (1, 2):
            # The actor's node hears as late that the caller's is dead as that one does.
            cluster.network.set_latency(HEAD_NUMBER, node, 6.0)
        ray.sleep(15.0)
        cluster.resume_node(2)
        assert ray.get(ran, timeout=WAIT_S) == [1] * (4 if stream else 1)
        assert ray.get(slow.count.remote(), timeout=WAIT_S) == 1
    finally:
        ray.shutdown()
