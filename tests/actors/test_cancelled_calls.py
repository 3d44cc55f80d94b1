"""`cancel` of actors' calls: unstarted ones never run, a coroutine ends where it waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import raytwin as ray
from tests.actors.conftest import Start


@ray.remote
class Log:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def add(self, x: Any, seconds: float = 0, *more: Any) -> int:
        self.seen.append(x)
        ray.sleep(seconds)
        return len(self.seen)

    def all(self) -> list[Any]:
        return self.seen


@ray.remote
class Waiting:
    def __init__(self) -> None:
        self.ended: list[str] = []

    async def wait(self, name: str) -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            self.ended.append(name)
            raise
        return name

    async def defy(self) -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            return "went on"
        return ""

    async def all(self) -> list[str]:
        return self.ended


def cancelled(ref: Any) -> bool:
    try:
        ray.get(ref, timeout=60)
    except ray.exceptions.TaskCancelledError:
        return True
    return False


@ray.remote
def later(seconds: float) -> Any:
    ray.sleep(seconds)
    return bytes(200_000)


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("max_restarts", [0, 1])
def test_a_call_that_has_not_begun_never_runs(start: Start, node: int, max_restarts: int) -> None:
    start()
    where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(str(node), soft=False)
    log: Any = Log.options(
        scheduling_strategy=where, max_restarts=max_restarts, max_task_retries=max_restarts
    ).remote()
    ray.get(log.all.remote())
    first = log.add.remote("first", 0.5)
    with_input = log.add.remote("input", 0, ray.put(bytes(300_000)))
    behind = [log.add.remote(i) for i in range(10)]
    for_input = log.add.remote("late", 0, later.remote(0.3))
    ray.sleep(0.1)
    for ref in (with_input, *behind[::2], for_input):
        ray.cancel(ref)
    last = log.add.remote("last")
    assert ray.get(first) == 1
    assert [cancelled(ref) for ref in behind] == [True, False] * 5
    assert cancelled(with_input) and cancelled(for_input)
    assert ray.get(last) == 7
    expected = ["first", 1, 3, 5, 7, 9, "last"]
    assert ray.get(log.all.remote()) == expected
    if max_restarts:
        # What never ran is no part of what the actor is rebuilt from.
        ray.kill(log, no_restart=False)
        assert ray.get(log.all.remote()) == expected
    ray.cancel(first)
    assert ray.get(first) == 1


def test_a_call_is_cancelled_before_its_actor_has_started(start: Start) -> None:
    session = start()
    log: Any = Log.options(resources={"later": 1}).remote()
    refs = [log.add.remote(x) for x in range(3)]
    ray.cancel(refs[1])
    assert cancelled(refs[1])
    session.cluster.add_node({"CPU": 1, "later": 1})
    assert ray.get([refs[0], refs[2]]) == [1, 2]


def test_only_cancelled_calls_that_say_so_took_effect_while_others_are_awaited(
    start: Start,
) -> None:
    start(nodes=1)
    log: Any = Log.remote()
    for _ in range(20):
        ray.get(log.add.remote(-1))
    ended = []
    for number in range(300):
        ref = log.add.remote(number)
        ray.cancel(ref)
        try:
            ray.get(ref, timeout=60)
        except ray.exceptions.TaskCancelledError as error:
            took_effect = "while it ran" in str(error)
        else:
            took_effect = True
        ended += [number] * took_effect
        ray.get(log.add.remote(-1))
    assert [x for x in ray.get(log.all.remote()) if x >= 0] == ended


def test_force_is_not_for_calls(start: Start) -> None:
    start()
    log: Any = Log.remote()
    ray.get(log.all.remote())
    running = log.add.remote("x", 0.4)
    ray.sleep(0.2)
    with pytest.raises(ValueError, match="end the actor"):
        ray.cancel(running, force=True)
    assert ray.get(running) == 1


def test_a_coroutine_is_cancelled_where_it_waits(start: Start) -> None:
    start()
    actor: Any = Waiting.options(max_concurrency=10).remote()
    refs = [actor.wait.remote(str(x)) for x in range(5)]
    stubborn = actor.defy.remote()
    assert ray.get(actor.all.remote()) == []
    ray.sleep(0.2)
    for ref in (*refs[1:4], stubborn):
        ray.cancel(ref)
    assert all(cancelled(ref) for ref in (*refs[1:4], stubborn))
    assert sorted(ray.get(actor.all.remote())) == ["1", "2", "3"]
    assert ray.wait([refs[0], refs[4]], num_returns=2, timeout=0.1)[0] == []
    for ref in (refs[0], refs[4]):
        ray.cancel(ref)
        assert cancelled(ref)
