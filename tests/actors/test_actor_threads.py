"""The threads of an actor are reused, and never exceed ``max_concurrency``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ActorDiedError


@ray.remote(num_cpus=0)
def echo(value: Any) -> Any:
    return value


@ray.remote(max_concurrency=3)
class Threaded:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.own = threading.local()
        self.threads: set[int] = set()
        self.inside = 0
        self.calls = 0

    def _note(self) -> None:
        with self.lock:
            self.threads.add(threading.get_ident())
            self.calls += 1
        self.own.calls = getattr(self.own, "calls", 0) + 1

    def plain(self, n: int) -> int:
        self._note()
        return n

    def meet(self) -> int:
        """Return once three are in: they are in three threads."""
        self._note()
        with self.lock:
            self.inside += 1
        while self.inside < 3:
            ray.sleep(0.001)
        return int(self.own.calls)

    def listed(self, n: int) -> list[int]:
        return [n]

    def fail(self, n: int) -> None:
        raise ValueError(f"call {n}")

    def child(self, n: int) -> Any:
        return echo.remote(n)

    def added(self, n: int, m: int) -> int:
        return n + m

    def items(self, n: int) -> Iterator[int]:
        yield from range(n)

    def leave(self) -> None:
        ray.exit_actor()

    def stop(self) -> None:
        raise SystemExit(3)

    def seen(self) -> tuple[int, int]:
        return len(self.threads), self.calls


def test_threads_are_kept_and_no_more_than_max_concurrency(local: Any) -> None:
    local()
    actor = Threaded.remote()
    ray.get([actor.meet.remote() for _ in range(3)], timeout=60)
    for n in range(20):
        assert ray.get(actor.plain.remote(n)) == n
    assert ray.get([actor.plain.remote(n) for n in range(200)]) == list(range(200))
    assert ray.get(actor.seen.remote()) == (3, 223)


def test_thread_locals_survive_between_calls(local: Any) -> None:
    local()
    actor = Threaded.remote()
    ray.get([actor.plain.remote(n) for n in range(60)], timeout=60)
    assert max(ray.get([actor.meet.remote() for _ in range(3)], timeout=60)) > 20


def test_calls_of_every_kind_end_in_their_threads(cluster: Any) -> None:
    actor = Threaded.remote()
    refs: list[Any] = []
    for n in range(60):
        refs.append(actor.plain.remote(n))
        if n % 10 == 5:
            refs += [actor.listed.remote(n), actor.added.remote(echo.remote(n), m=1)]
    failing = [actor.fail.remote(n) for n in range(5)]
    items = [ray.get(ref) for ref in actor.items.remote(4)]
    children = [actor.child.remote(n) for n in range(5)]
    expected: list[Any] = []
    for n in range(60):
        expected.append(n)
        if n % 10 == 5:
            expected += [[n], n + 1]
    assert ray.get(refs, timeout=60) == expected
    for n, ref in enumerate(failing):
        with pytest.raises(ValueError, match=f"call {n}"):
            ray.get(ref, timeout=60)
    assert items == [0, 1, 2, 3]
    assert [ray.get(ray.get(ref)) for ref in children] == list(range(5))


@pytest.mark.parametrize("end", ["leave", "stop"])
def test_a_call_that_ends_the_actor(cluster: Any, end: str) -> None:
    actor = Threaded.remote()
    assert ray.get([actor.plain.remote(n) for n in range(10)]) == list(range(10))
    with pytest.raises(ActorDiedError):
        ray.get(getattr(actor, end).remote(), timeout=60)
    with pytest.raises(ActorDiedError):
        ray.get(actor.plain.remote(1), timeout=60)
