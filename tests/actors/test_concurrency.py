"""Actors with concurrent calls, in threads and coroutines, follow Ray's rules."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ActorUnavailableError


@ray.remote(num_cpus=0)
def sleep(seconds: float) -> float:
    ray.sleep(seconds)
    return seconds


@ray.remote
class Meeting:
    """`enter` returns once so many are in: only calls beside one another get through."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.inside = 0
        self.most = 0
        self.lock = threading.Lock()

    def enter(self) -> int:
        with self.lock:
            self.inside += 1
        while self.inside < self.size:
            ray.sleep(0.001)
        return self.inside

    def work(self) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        ray.sleep(0.01)
        with self.lock:
            self.inside -= 1

    def highest(self) -> int:
        return self.most

    def nested(self, n: int) -> int:
        return sum(ray.get([one.remote() for _ in range(n)]))

    def fail(self) -> None:
        raise ValueError("in a thread")

    @ray.method(num_returns=2)
    def two(self) -> tuple[int, int]:
        return 1, 2


@ray.remote(num_cpus=0)
def one() -> int:
    return 1


@ray.remote
class Board:
    """Coroutines that wait for one another."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.waiting = 0
        self.log: list[int] = []

    async def wait(self, n: int) -> int:
        self.waiting += 1
        await self.event.wait()
        return n

    async def open(self) -> int:
        self.event.set()
        return self.waiting

    async def pause(self, n: int, seconds: float) -> int:
        await asyncio.sleep(seconds)
        self.log.append(n)
        return n

    async def order(self) -> list[int]:
        return self.log

    def plain(self, n: int) -> int:
        return n + 1

    async def fail(self) -> None:
        await asyncio.sleep(0.001)
        raise KeyError("in a coroutine")

    async def leave(self) -> None:
        ray.exit_actor()

    @ray.method(num_returns=2)
    async def two(self) -> tuple[int, int]:
        return 1, 2


# -- threads -------------------------------------------------------------------


def test_threads_run_concurrently(cluster: Any) -> None:
    meeting = Meeting.options(max_concurrency=4).remote(4)
    assert max(ray.get([meeting.enter.remote() for _ in range(4)])) == 4


@pytest.mark.parametrize("limit", [1, 3])
def test_not_more_than_max_concurrency(cluster: Any, limit: int) -> None:
    meeting = Meeting.options(max_concurrency=limit).remote(0)
    ray.get([meeting.work.remote() for _ in range(12)])
    assert ray.get(meeting.highest.remote()) == limit


def test_threads_wait_for_tasks(cluster: Any) -> None:
    meeting = Meeting.options(max_concurrency=4).remote(0)
    assert ray.get([meeting.nested.remote(n) for n in range(8)]) == list(range(8))


def test_errors_and_several_values_in_threads(cluster: Any) -> None:
    meeting = Meeting.options(max_concurrency=2).remote(0)
    with pytest.raises(ValueError, match="in a thread"):
        ray.get(meeting.fail.remote())
    assert ray.get(meeting.two.remote()) == [1, 2]
    assert ray.get(meeting.nested.remote(sleep.remote(0))) == 0


def test_a_call_may_wait_for_a_later_one(cluster: Any) -> None:
    @ray.remote(max_concurrency=2)
    class Self:
        def __init__(self) -> None:
            self.value = 0

        def wait(self) -> int:
            while not self.value:
                ray.sleep(0.001)
            return self.value

        def set(self, value: int) -> None:
            self.value = value

    actor = Self.remote()
    waiting = actor.wait.remote()
    actor.set.remote(7)
    assert ray.get(waiting) == 7


# -- coroutines ----------------------------------------------------------------


def test_coroutines_run_concurrently(cluster: Any) -> None:
    board = Board.remote()
    refs = [board.wait.remote(n) for n in range(50)]
    ray.wait(refs, timeout=0.05)
    assert 0 <= ray.get(board.open.remote()) <= 50
    assert ray.get(refs) == list(range(50))


def test_coroutines_begin_in_order_and_end_as_they_end(cluster: Any) -> None:
    board = Board.remote()
    ray.get([board.pause.remote(n, 0.2 - 0.06 * n) for n in range(3)])
    assert ray.get(board.order.remote()) == [2, 1, 0]
    board = Board.options(max_concurrency=1).remote()
    ray.get([board.pause.remote(n, 0.03 - 0.01 * n) for n in range(3)])
    assert ray.get(board.order.remote()) == [0, 1, 2]


def test_errors_and_several_values_in_coroutines(cluster: Any) -> None:
    board = Board.remote()
    with pytest.raises(KeyError, match="in a coroutine"):
        ray.get(board.fail.remote())
    assert ray.get(board.two.remote()) == [1, 2]
    assert ray.get(board.plain.remote(1)) == 2


def test_state_of_concurrent_actors_is_reconstructed(cluster: Any) -> None:
    board = Board.options(max_restarts=-1, max_task_retries=-1).remote()
    ray.get([board.pause.remote(n, 0.001) for n in range(20)])
    before = ray.get(board.order.remote())
    ray.kill(board, no_restart=False)
    assert ray.get(board.order.remote()) == before
    assert sorted(before) == list(range(20))


def test_calls_that_waited_for_one_another_are_replayed(cluster: Any) -> None:
    @ray.remote(max_concurrency=2, max_restarts=-1, max_task_retries=-1)
    class Pair:
        def __init__(self) -> None:
            self.begun = self.answered = False

        def ask(self) -> str:
            self.begun = True
            while not self.answered:
                ray.sleep(0.001)
            return "asked"

        def answer(self) -> str:
            """Ends first, but not without the other having begun."""
            while not self.begun:
                ray.sleep(0.001)
            self.answered = True
            return "answered"

    pair = Pair.remote()
    assert ray.get([pair.ask.remote(), pair.answer.remote()]) == ["asked", "answered"]
    ray.kill(pair, no_restart=False)
    assert ray.get(pair.ask.remote()) == "asked"


def test_waiting_coroutines_of_a_restarted_actor(cluster: Any) -> None:
    board = Board.options(max_restarts=-1, max_task_retries=-1).remote()
    again = board.wait.remote(5)
    assert ray.wait([again], timeout=0.1)[0] == []
    ray.kill(board, no_restart=False)
    ray.get(board.open.remote())
    assert ray.get(again) == 5
    board = Board.options(max_restarts=-1).remote()
    ray.get(board.__ray_ready__.remote())
    lost = board.wait.remote(5)
    assert ray.wait([lost], timeout=0.1)[0] == []
    ray.kill(board, no_restart=False)
    with pytest.raises(ActorUnavailableError):
        ray.get(lost)


def test_an_async_actor_stands_between_tasks(cluster: Any) -> None:
    board = Board.remote()

    @ray.remote(num_cpus=0)
    def wait(board: Any) -> int:
        return int(ray.get(board.wait.remote(3)))

    @ray.remote(num_cpus=0)
    def release(board: Any) -> None:
        ray.get(board.open.remote())

    waiting = [wait.remote(board) for _ in range(5)]
    ray.get(release.remote(board))
    assert ray.get(waiting) == [3] * 5
