"""A thread of its own completes futures; no race with another thread loses one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.backend import current
from raytwin.runtime.session import futures
from raytwin.runtime.session.futures import PendingFutures
from raytwin.runtime.session.session import Session

LIMIT_S = 20.0
PAUSE_S = 0.3


@ray.remote
def one(x: int) -> int:
    return x


@pytest.fixture
def pending() -> Iterator[PendingFutures]:
    """That of a driver whose thread waits for a future all the time."""
    ray.init(backend="local", nodes=1, cpus_per_node=2)
    try:
        ray.get(one.remote(0), timeout=LIMIT_S)
        session = current()
        assert isinstance(session, Session)
        one.options(resources={"none": 1}).remote(0).future()
        yield session.futures
    finally:
        ray.shutdown()


class PausedLock:
    """A lock for which one thread has to wait longer than a task takes."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._paused = threading.current_thread()

    def __enter__(self) -> Any:
        if threading.current_thread() is self._paused:
            time.sleep(PAUSE_S)
        return self._lock.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._lock.__exit__(*exc)


def test_a_value_that_comes_while_its_future_is_made(
    pending: PendingFutures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "_lock", PausedLock(pending._lock))
    assert one.remote(7).future().result(timeout=LIMIT_S) == 7


def test_a_future_of_another_thread_is_not_given_up_with_the_tasks(
    pending: PendingFutures, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    class Held(threading.Thread):
        def run(self) -> None:
            goes_on.wait(LIMIT_S)
            super().run()

    give_up = pending._give_up
    found = []

    def meanwhile(reason: str) -> Any:
        given_up = give_up(reason)
        monkeypatch.setattr(futures.threading, "Thread", Held)
        ref = one.remote(7)
        found.append(ref.future())
        assert ray.get(ref, timeout=LIMIT_S) == 7
        return given_up

    monkeypatch.setattr(pending, "_give_up", meanwhile)
    pending.abandon()
    goes_on.set()
    assert found[0].result(timeout=LIMIT_S) == 7
