"""`cancel` of a running call: its further course, and the value of its reference."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.exceptions import RayTaskError, TaskCancelledError
from tests.actors.conftest import Start

WRAPPED, PLAIN = RayTaskError, TaskCancelledError


class Sync:
    """Methods that are no coroutines; each says in `log` what it has done."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def go_on(self) -> str:
        ray.sleep(0.6)
        self.log.append("went on")
        return "value"

    def large(self) -> bytes:
        ray.sleep(0.6)
        return bytes(300_000)

    def two(self) -> tuple[int, int]:
        ray.sleep(0.6)
        return 1, 2

    def fail(self) -> None:
        self.log.append("try")
        ray.sleep(0.6)
        raise ValueError

    def poll(self) -> str:
        for _ in range(500):
            if ray.get_runtime_context().is_canceled():
                self.log.append("saw it")
                return "ended"
            ray.sleep(0.02)
        return "value"

    def items(self) -> Any:
        try:
            for number in range(50):
                yield number
                ray.sleep(0.1)
        except GeneratorExit:
            self.log.append("closed")
            raise

    def last_item(self) -> Any:
        yield 0
        ray.sleep(0.6)
        self.log.append("went on")

    def failing_items(self) -> Any:
        yield 0
        ray.sleep(0.6)
        raise ValueError

    def seen(self) -> list[Any]:
        return self.log


class Async(Sync):
    """The same, and coroutines."""

    async def wait(self) -> str:
        await asyncio.sleep(1000)
        return "value"

    async def swallow(self) -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            self.log.append("swallowed")
        await asyncio.sleep(0.1)
        self.log.append("went on")
        return "value"

    async def convert(self) -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            raise ValueError from None
        return "value"

    async def late(self) -> str:
        ray.sleep(0.6)
        return "value"

    async def coming(self) -> Any:
        for number in range(1000):
            yield number
            await asyncio.sleep(1000)

    async def stubborn_items(self) -> Any:
        for number in range(1000):
            yield number
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                self.log.append("swallowed")

    async def converted_items(self) -> Any:
        yield 0
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            raise ValueError from None


KINDS: dict[str, tuple[type, dict[str, int]]] = {
    "plain": (Sync, {}),
    "threads": (Sync, {"max_concurrency": 3}),
    "coroutines": (Async, {"max_concurrency": 10}),
}
SYNC: dict[str, tuple[type, list[Any]]] = {
    "go_on": (PLAIN, ["went on"]),
    "large": (PLAIN, []),
    "two": (PLAIN, []),
    "fail": (ValueError, ["try"]),
    "poll": (PLAIN, ["saw it"]),
    "items": (PLAIN, ["closed"]),
    "last_item": (PLAIN, ["went on"]),
    "failing_items": (WRAPPED, []),
}
ASYNC: dict[str, tuple[type, list[Any]]] = {
    "go_on": (WRAPPED, ["went on"]),
    "items": (PLAIN, ["closed"]),
    "failing_items": (WRAPPED, []),
    "wait": (WRAPPED, []),
    "swallow": (WRAPPED, ["swallowed", "went on"]),
    "convert": (WRAPPED, []),
    "late": (WRAPPED, []),
    "coming": (WRAPPED, []),
    "stubborn_items": (WRAPPED, ["swallowed"]),
    "converted_items": (WRAPPED, []),
}
STREAMS = ("items", "last_item", "failing_items", "coming", "stubborn_items", "converted_items")


def actor_of(kind: str, **options: Any) -> Any:
    cls, needs = KINDS[kind]
    actor = ray.remote(cls).options(**needs, **options).remote()
    ray.get(actor.seen.remote())
    return actor


def error_of(ref: Any) -> Any:
    with pytest.raises(Exception) as caught:
        ray.get(ref, timeout=60)
    return caught.value


def cancelled_while_it_runs(actor: Any, method: str, **options: Any) -> Any:
    """Call a method, cancel it when it has begun and return the error that it ends with."""
    call = getattr(actor, method)
    ref = (call.options(**options) if options else call).remote()
    if method in STREAMS:
        assert ray.get(next(ref)) == 0
        ray.sleep(0.05)
        ray.cancel(ref)
        error = error_of(next(ref))
        assert list(ref) == []
        return error
    ray.sleep(0.2)
    one = ref[0] if isinstance(ref, list) else ref
    ray.cancel(one)
    errors = [error_of(each) for each in (ref if isinstance(ref, list) else [ref])]
    assert len({type(error) for error in errors}) == 1
    return errors[0]


def is_cancelled(error: Exception, kind: type) -> bool:
    right = isinstance(error, TaskCancelledError) and "while it ran" in str(error)
    return right and isinstance(error, RayTaskError) == (kind is WRAPPED)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_running_call_ends_by_its_kind(start: Start, kind: str) -> None:
    start(nodes=1)
    actor = actor_of(kind)
    expected_log: list[Any] = []
    for method, (expected, log) in (ASYNC if kind == "coroutines" else SYNC).items():
        options = {"num_returns": 2} if method == "two" else {}
        error = cancelled_while_it_runs(actor, method, **options)
        if expected is ValueError:
            assert isinstance(error, ValueError)
            assert not isinstance(error, TaskCancelledError)
        else:
            assert is_cancelled(error, expected), (method, error)
        if method == "swallow":
            ray.sleep(0.3)
        expected_log += log
        assert ray.get(actor.seen.remote()) == expected_log, method


def test_a_cancelled_call_is_not_retried(start: Start) -> None:
    start(nodes=1)
    actor = actor_of("plain", max_task_retries=5)
    error = cancelled_while_it_runs(actor, "fail", retry_exceptions=True)
    assert isinstance(error, ValueError)
    assert ray.get(actor.seen.remote()) == ["try"]


@pytest.mark.parametrize(("method", "log"), [("go_on", ["went on"]), ("poll", ["saw it"])])
@pytest.mark.parametrize("kind", ["plain", "threads"])
def test_a_cancelled_call_that_took_effect_is_replayed(
    start: Start, kind: str, method: str, log: list[Any]
) -> None:
    start(nodes=1)
    actor = actor_of(kind, max_restarts=1, max_task_retries=1)
    error = cancelled_while_it_runs(actor, method)
    assert is_cancelled(error, PLAIN)
    ray.kill(actor, no_restart=False)
    assert ray.get(actor.seen.remote()) == log


class Counting:
    """Yields without end, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def items(self) -> Any:
        while True:
            self.count += 1
            yield self.count
            ray.sleep(0.05)

    def get(self) -> int:
        return self.count


@pytest.mark.parametrize("most", [1, 3])
def test_a_stream_that_is_replayed_ends_where_it_had_ended(start: Start, most: int) -> None:
    start(nodes=1)
    actor: Any = (
        ray.remote(Counting)
        .options(max_restarts=1, max_task_retries=1, max_concurrency=most)
        .remote()
    )
    stream = actor.items.remote()
    assert [ray.get(next(stream)) for _ in range(5)] == [1, 2, 3, 4, 5]
    ray.cancel(stream)
    with pytest.raises(TaskCancelledError):
        ray.get(list(stream)[-1])
    count = ray.get(actor.get.remote())
    ray.kill(actor, no_restart=False)
    assert ray.get(actor.get.remote()) == count


@pytest.mark.parametrize("method", ["wait", "swallow", "coming"])
def test_a_coroutine_that_is_replayed_is_cancelled_again(start: Start, method: str) -> None:
    start(nodes=1)
    actor = actor_of("coroutines", max_restarts=1, max_task_retries=1)
    error = cancelled_while_it_runs(actor, method)
    assert is_cancelled(error, WRAPPED)
    ray.kill(actor, no_restart=False)
    assert ray.get(actor.seen.remote(), timeout=30) == ASYNC[method][1]


class TestIsCanceled:
    def test_is_canceled_in_a_task(self, start: Start, tmp_path: Path) -> None:
        begun = tmp_path / "begun"

        @ray.remote
        def task() -> tuple[bool, bool]:
            before = ray.get_runtime_context().is_canceled()
            try:
                begun.touch()
                ray.sleep(1000)
            except KeyboardInterrupt:
                return before, ray.get_runtime_context().is_canceled()
            return before, False

        @ray.remote
        def other() -> bool:
            return ray.get_runtime_context().is_canceled()

        start(nodes=1)
        ref = task.remote()
        while not begun.exists():
            ray.sleep(0.05)
        ray.cancel(ref)
        assert ray.get(ref, timeout=60) == (False, True)
        assert ray.get([other.remote() for _ in range(8)]) == [False] * 8

    @pytest.mark.parametrize("kind", ["plain", "threads"])
    def test_is_canceled_is_true_only_for_the_cancelled_call(self, start: Start, kind: str) -> None:
        class Asking(Sync):
            def ask(self) -> bool:
                return ray.get_runtime_context().is_canceled()

        start(nodes=1)
        actor = ray.remote(Asking).options(**KINDS[kind][1]).remote()
        ray.get(actor.seen.remote())
        polling, asking = actor.poll.remote(), actor.ask.remote()
        ray.sleep(0.2)
        ray.cancel(polling)
        assert isinstance(error_of(polling), TaskCancelledError)
        assert not ray.get(asking)
        assert not ray.get(actor.ask.remote())

    def test_is_canceled_raises_in_coroutines_and_drivers(self, start: Start) -> None:
        class Asking(Async):
            async def ask(self) -> bool:
                return ray.get_runtime_context().is_canceled()

        start(nodes=1)
        actor = ray.remote(Asking).options(max_concurrency=2).remote()
        with pytest.raises(RuntimeError, match="coroutines"):
            ray.get(actor.ask.remote())
        with pytest.raises(RuntimeError, match="driver"):
            ray.get_runtime_context().is_canceled()
