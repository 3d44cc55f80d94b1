"""Methods that yield: callers get items before the call ends, from any kind of actor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import raytwin as ray
from tests.actors.conftest import Start

BIG = 300_000


@ray.remote
class Plain:
    def __init__(self) -> None:
        self.calls = 0

    def count(self, n: int, seconds: float = 0) -> Iterator[int]:
        for i in range(n):
            ray.sleep(seconds)
            yield i
        self.calls += 1

    def large(self, n: int, seconds: float = 0) -> Iterator[bytes]:
        for i in range(n):
            yield bytes([i]) * BIG
            ray.sleep(seconds)

    def fail(self) -> Iterator[int]:
        yield 1
        raise KeyError("here")

    @ray.method(num_returns="streaming")
    def given(self, items: list[int]) -> list[int]:
        return items

    def done(self) -> int:
        return self.calls

    def leave(self) -> Iterator[int]:
        yield 1
        ray.exit_actor()


@ray.remote
class Async:
    async def count(self, n: int, seconds: float = 0) -> AsyncIterator[int]:
        for i in range(n):
            await asyncio.sleep(seconds)
            yield i

    async def fail(self) -> AsyncIterator[int]:
        yield 1
        raise KeyError("here")


@ray.remote(max_concurrency=4)
class Threaded:
    def count(self, n: int, seconds: float = 0) -> Iterator[int]:
        for i in range(n):
            ray.sleep(seconds)
            yield i


@ray.remote
class Mixed:
    """Its calls are coroutines of one event loop."""

    def count(self, n: int) -> Iterator[int]:
        yield from range(n)

    async def other(self) -> None: ...


def on(node: int, soft: bool = False) -> Any:
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(str(node), soft=soft)


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("restarts", [0, 1])
def test_items_come_one_by_one(start: Start, node: int, restarts: int) -> None:
    start()
    actor: Any = Plain.options(scheduling_strategy=on(node), max_restarts=restarts).remote()
    stream = actor.count.remote(3, 0.2)
    assert isinstance(stream, ray.ObjectRefGenerator)
    behind = actor.done.remote()
    assert ray.get(next(stream)) == 0
    assert ray.wait([behind], timeout=0)[1], "the stream was over before its first item came"
    assert [ray.get(ref) for ref in stream] == [1, 2]
    assert ray.get(behind) == 1
    assert [ray.get(ref) for ref in actor.given.remote([5, 6])] == [5, 6]
    assert [len(ray.get(ref)) for ref in actor.large.remote(3)] == [BIG] * 3
    failing = actor.fail.remote()
    assert ray.get(next(failing)) == 1
    with pytest.raises(KeyError, match="here"):
        ray.get(next(failing))
    with pytest.raises(StopIteration):
        next(failing)
    ray.get(stream.completed())
    assert list(actor.count.remote(0)) == []
    assert ray.get(actor.done.remote()) == 2


@pytest.mark.parametrize("large", [False, True])
def test_an_item_is_an_input_of_a_task_elsewhere(start: Start, large: bool) -> None:
    """Neither of the actor's node nor of its caller's; in mid-stream."""
    start(nodes=3)
    actor: Any = Plain.options(scheduling_strategy=on(1)).remote()
    stream = actor.large.remote(2) if large else actor.count.remote(2, 0.5)

    @ray.remote
    def follow(item: Any) -> Any:
        return item[0] if large else item

    ends = [follow.options(scheduling_strategy=on(2)).remote(item) for item in stream]
    assert ray.get(ends, timeout=30) == [0, 1]


def test_actors_of_coroutines_and_of_threads(start: Start) -> None:
    start()
    for cls in (Async, Threaded):
        actor: Any = cls.options(scheduling_strategy=on(1)).remote()
        streams = [actor.count.remote(4, 0.1) for _ in range(3)]
        assert [[ray.get(ref) for ref in stream] for stream in streams] == [[0, 1, 2, 3]] * 3
    one_by_one: Any = Async.options(max_concurrency=1).remote()
    assert [ray.get(ref) for ref in one_by_one.count.remote(3)] == [0, 1, 2]
    failing = Async.remote().fail.remote()
    refs = list(failing)
    assert ray.get(refs[0]) == 1
    with pytest.raises(KeyError):
        ray.get(refs[1])


def test_one_return_value_of_a_method_that_yields_is_its_first_item(start: Start) -> None:
    start()
    for cls in (Plain, Threaded, Mixed):
        first: Any = cls.remote().count.options(num_returns=1)
        assert ray.get([first.remote(n) for n in (1, 3)]) == [0, 0]
        with pytest.raises(ValueError, match="yielded 0 values"):
            ray.get(first.remote(0))


def test_a_stream_ends_with_its_actor(start: Start) -> None:
    start()
    actor: Any = Plain.remote()
    stream = actor.count.remote(100, 0.2)
    assert ray.get(next(stream)) == 0
    ray.kill(actor)
    with pytest.raises(ray.exceptions.ActorDiedError):
        for ref in stream:
            ray.get(ref)
    actor = Plain.remote()
    leaving = actor.leave.remote()
    assert ray.get(next(leaving)) == 1
    with pytest.raises(ray.exceptions.ActorDiedError):
        for ref in leaving:
            ray.get(ref)


def test_a_lost_item_of_a_call_without_a_replay_names_the_cause(start: Start) -> None:
    session = start(nodes=3)
    options = {"max_restarts": 1, "max_task_retries": 0, "scheduling_strategy": on(1, soft=True)}
    actor: Any = Plain.options(**options).remote()
    stream = actor.large.remote(2, 1000)
    first = next(stream)
    session.cluster.kill_node(1)
    why = "ActorUnavailableError: Plain.large: the actor restarts before the call's result came"
    with pytest.raises(ray.exceptions.ActorUnavailableError):
        ray.get(stream.completed(), timeout=60)

    @ray.remote
    def read(refs: list[Any]) -> Any:
        return ray.get(refs[0])

    with pytest.raises(ray.exceptions.ObjectLostError, match=why):
        ray.get(first, timeout=60)
    with pytest.raises(ray.exceptions.ObjectLostError, match=why):
        ray.get(read.options(scheduling_strategy=on(2)).remote([first]), timeout=60)


def test_a_stream_of_coroutines_can_be_cancelled(start: Start) -> None:
    start()
    actor: Any = Async.remote()
    stream = actor.count.remote(1000, 0.1)
    assert ray.get(next(stream)) == 0
    ray.cancel(stream)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        for ref in stream:
            ray.get(ref)


def test_wait_takes_streams_beside_references(start: Start) -> None:
    start()
    actor: Any = Plain.remote()

    @ray.remote(num_cpus=0)
    def later(seconds: float) -> float:
        ray.sleep(seconds)
        return seconds

    @ray.remote(num_cpus=0)
    def items(n: int, seconds: float) -> Iterator[int]:
        for i in range(n):
            ray.sleep(seconds)
            yield i

    slow = later.remote(1000)
    stream, of_actor = items.remote(2, 0.1), actor.count.remote(1)
    assert ray.wait([slow, stream], timeout=0) == ([], [slow, stream])
    seen: list[Any] = []
    left: list[Any] = [slow, stream, of_actor]
    while len(left) > 1:
        ready, left = ray.wait(left, timeout=60)
        for one in ready:
            try:
                seen.append(ray.get(next(one)))
                left.append(one)
            except StopIteration:
                pass
    assert sorted(seen) == [0, 0, 1]
    assert left == [slow]
    ray.cancel(slow, force=True)
    with pytest.raises(ValueError, match="num_returns"):
        ray.wait([items.remote(1, 0)], num_returns=2)
