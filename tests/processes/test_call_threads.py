"""The pool of threads of an actor's process."""

from __future__ import annotations

import threading
import time

from raytwin.runtime.processes.client.call_threads import CallThreads


def test_a_thread_is_made_only_when_none_is_free() -> None:
    pool = CallThreads()
    seen: list[int] = []
    for _ in range(5):
        pool.run(lambda: seen.append(threading.get_ident()), 4)
        while pool._free < 1:
            time.sleep(0.001)
    assert len(seen) == 5
    assert len(set(seen)) == 1


def test_what_is_more_than_the_threads_waits_for_one() -> None:
    pool = CallThreads()
    go_on = threading.Event()
    inside = threading.Semaphore(0)
    ended = threading.Semaphore(0)

    def run() -> None:
        inside.release()
        go_on.wait()
        ended.release()

    for _ in range(5):
        pool.run(run, 2)
    assert inside.acquire(timeout=10)
    assert inside.acquire(timeout=10)
    assert not inside.acquire(timeout=0.05)
    go_on.set()
    for _ in range(5):
        assert ended.acquire(timeout=10)
    while pool._free < 2:
        time.sleep(0.001)
    assert pool._threads == 2
