"""A caller dies in mid-stream and runs again: no item is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.fuzz.oracle.invariants import at_end, settled
from raytwin.runtime.api.exceptions import ObjectLostError
from raytwin.runtime.control.actors import actor_record
from raytwin.runtime.control.core.batching import ITEM_BYTES

WAIT_S = 30
LARGE_BYTES = 150_000
FOREVER = {"max_restarts": -1, "max_task_retries": -1}
NODES = [{"CPU": 2}, {"CPU": 2, "actor": 1}, {"CPU": 2, "callers": 1}]


@pytest.fixture
def sim() -> Iterator[Any]:
    yield ray.init(backend="sim", nodes=NODES, heartbeat_timeout_s=2.0)
    ray.shutdown()


@ray.remote(resources={"actor": 0.1})
class Source:
    def __init__(self) -> None:
        self.calls = 0

    def items(self, n: int, nbytes: int, seconds: float) -> Iterator[bytes]:
        self.calls += 1
        for i in range(n):
            ray.sleep(seconds)
            yield bytes([i]) * nbytes

    def refs(self, n: int, nbytes: int, seconds: float) -> Iterator[list[Any]]:
        self.calls += 1
        kept = []
        for i in range(n):
            ray.sleep(seconds)
            kept.append(ray.put(bytes([i]) * nbytes))
            yield kept[-1:]

    def count(self) -> int:
        return self.calls


@ray.remote(max_retries=-1, resources={"callers": 0.1})
def reader(source: Any, inside: bool, n: int, nbytes: int, mark: str, after: int) -> list[int]:
    """Take all items; make a mark after some. Items that it released would be lost."""
    refs = []
    method = source.refs if inside else source.items
    for ref in method.remote(n, nbytes, 0.2):
        value = ray.get(ref)
        refs.append(value[0] if inside else ref)
        if len(refs) == after and not Path(mark).exists():
            Path(mark).touch()
            if after == n:
                ray.sleep(WAIT_S)
    return [ray.get(ref)[0] for ref in refs]


@ray.remote(resources={"callers": 0.1}, **FOREVER)
class Reader:
    def read(self, source: Any, n: int, nbytes: int, mark: str, after: int) -> list[int]:
        found = []
        for ref in source.items.remote(n, nbytes, 0.1):
            found.append(ray.get(ref)[0])
            if len(found) == after:
                Path(mark).touch()
        return found


def strike(cluster: Any, mark: Path, elsewhere: bool) -> None:
    """Kill the callers' node once the mark is set; it comes back, or another one takes over."""
    while not mark.exists():
        ray.sleep(0.02)
    if elsewhere:
        cluster.add_node({"CPU": 2, "callers": 1})
        ray.sleep(0.3)
        cluster.kill_node(2)
    else:
        cluster.restart_node(2)


def check(
    session: Any, mark: Path, elsewhere: bool, nbytes: int, inside: bool, after: int, **options: Any
) -> None:
    source = Source.options(**options).remote()
    ran = reader.remote(source, inside, 5, nbytes, str(mark), after)
    strike(session.cluster, mark, elsewhere)
    assert ray.get(ran, timeout=WAIT_S) == [0, 1, 2, 3, 4]
    assert ray.get(source.count.remote(), timeout=WAIT_S) == 1
    del source, ran
    assert settled(lambda: at_end(session), ray.sleep) == []


@pytest.mark.parametrize(
    ("inside", "after"),
    [(False, 1), (False, 3), (False, 5), (True, 1), (True, 3)],
    # The actor has released the objects inside items of a call that has ended.
    ids=["values-1", "values-3", "values-5", "references-1", "references-3"],
)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["back", "elsewhere"])
@pytest.mark.parametrize("nbytes", [1, LARGE_BYTES])
@pytest.mark.parametrize("options", [{}, FOREVER], ids=["once", "forever"])
def test_a_restarted_caller_gets_earlier_items_again(
    sim: Any, tmp_path: Path, inside: bool, elsewhere: bool, nbytes: int, options: Any, after: int
) -> None:
    """In mid-stream, and when the stream has ended."""
    check(sim, tmp_path / "mark", elsewhere, nbytes, inside, after, **options)


@pytest.mark.parametrize("nbytes", [1, LARGE_BYTES])
def test_a_restarted_caller_gets_earlier_items_on_real_processes(
    local: Any, tmp_path: Path, nbytes: int
) -> None:
    session = local(nodes=NODES, heartbeat_timeout_s=2.0)
    check(session, tmp_path / "mark", True, nbytes, False, 3)


@pytest.mark.parametrize("nbytes", [1, LARGE_BYTES])
def test_a_restarted_actor_gets_earlier_items_on_another_node(
    sim: Any, tmp_path: Path, nbytes: int
) -> None:
    source, caller = Source.remote(), Reader.remote()
    mark = tmp_path / "mark"
    ran = caller.read.remote(source, 20, nbytes, str(mark), 4)
    strike(sim.cluster, mark, elsewhere=True)
    assert ray.get(ran, timeout=WAIT_S) == list(range(20))
    assert ray.get(source.count.remote(), timeout=WAIT_S) == 1


def test_items_forgotten_by_the_reply_cache_are_lost_and_not_skipped(
    sim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that lacks earlier items gets an error, not a shorter stream."""
    monkeypatch.setattr(actor_record, "REPLY_BYTES_MAX", 2 * ITEM_BYTES)
    mark = tmp_path / "mark"

    @ray.remote(max_retries=-1, resources={"callers": 0.1})
    def forgetful(source: Any, mark: str) -> list[int]:
        stream = source.items.remote(6, 1, 0.3)
        if not Path(mark).exists():
            ray.get([next(stream), next(stream)])
            del stream
            ray.put(0)  # reports the released references
            Path(mark).touch()
            ray.sleep(WAIT_S)
        ray.sleep(2)  # those that come later are there
        return [ray.get(ref)[0] for ref in stream]

    ran = forgetful.remote(Source.remote(), str(mark))
    while not mark.exists():
        ray.sleep(0.02)
    for which in range(2):
        sim.cluster.kill_worker(2, which)
    with pytest.raises(ObjectLostError, match="has released it"):
        ray.get(ran, timeout=WAIT_S)


def test_items_are_released_when_no_caller_can_ask_for_them(start: Any) -> None:
    """Large ones are on the actor's node, and their owner is not."""
    session = start(nodes=NODES)
    source = Source.remote()

    @ray.remote(resources={"callers": 0.1})
    def take(source: Any, n: int, seconds: float) -> None:
        stream = source.items.remote(3, LARGE_BYTES, seconds)
        for _ in range(n):
            ray.get(next(stream))

    taken = [take.remote(source, n, seconds) for n in range(4) for seconds in (0.0, 0.3)]
    ray.get(taken, timeout=WAIT_S)
    assert ray.get(source.count.remote(), timeout=WAIT_S) == len(taken)
    del source, taken
    assert settled(lambda: at_end(session), ray.sleep) == []
