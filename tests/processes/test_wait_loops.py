"""`wait` in a loop: the remembered list gives the same results as a full check."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

import pytest

import raytwin as ray
from raytwin import ObjectRef
from raytwin.runtime.session.session import Session
from raytwin.runtime.session.wait_group import KEPT_MIN
from tests.processes.helpers import LIMIT_S, eventually

MANY = 4 * KEPT_MIN

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def value(x: Any) -> Any:
    return x


@ray.remote
def after(path: str, x: Any) -> Any:
    """Return `x` once the file is there."""
    eventually(lambda: os.path.exists(path))
    return x


def test_each_reference_is_ready_once_and_lists_keep_the_order() -> None:
    refs = [value.remote(i) for i in range(MANY)]
    ray.get(refs)
    left, order = refs, []
    while left:
        before = left
        ready, left = ray.wait(left, timeout=LIMIT_S)
        assert type(ready) is type(left) is list
        assert ready + left == before  # all are ready: the first one comes first
        order += ready
    assert order == refs


def test_ready_ones_behind_those_that_are_not(tmp_path: Any) -> None:
    slow = [after.remote(str(tmp_path / "go"), i) for i in range(2)]
    quick = [ray.put(i) for i in range(MANY)]
    refs = [*quick[:3], slow[0], *quick[3:], slow[1]]
    ready, left = ray.wait(refs, num_returns=4, timeout=LIMIT_S)
    assert ready == quick[:4]
    assert left == [slow[0], *quick[4:], slow[1]]
    ready, left = ray.wait(left, num_returns=len(left), timeout=0)
    assert (ready, left) == (quick[4:], slow)
    assert ray.wait(left, timeout=0) == ([], slow)
    (tmp_path / "go").touch()
    ready, left = ray.wait(left, num_returns=2, timeout=LIMIT_S)
    assert (ready, left) == (slow, [])


def test_the_list_may_be_changed_between_two_calls() -> None:
    rng = random.Random(7)
    left = [value.remote(i) for i in range(MANY)]
    expected = set(range(MANY))
    seen: list[Any] = []
    for turn in range(3 * MANY):
        if not left:
            break
        match rng.randrange(6):
            case 0:
                left.append(value.remote(MANY + turn))
                expected.add(MANY + turn)
            case 1:
                rng.shuffle(left)
            case 2:
                left = list(left)
            case 3 if len(left) > 1:
                expected.discard(ray.get(left.pop()))
        count = rng.randint(1, min(3, len(left)))
        before = list(left)
        ready, left = ray.wait(left, num_returns=count, timeout=LIMIT_S)
        assert len(ready) == count
        taken = set(ready)
        assert ready == [ref for ref in before if ref in taken]
        assert left == [ref for ref in before if ref not in taken]
        seen += ray.get(ready)
    assert len(seen) == len(set(seen))
    assert set(seen) <= expected


@pytest.mark.parametrize("wrong", ["twice", "more", "a number", "negative"])
def test_a_list_that_was_right_once_is_checked_when_it_has_changed(wrong: str) -> None:
    _, left = ray.wait([value.remote(i) for i in range(MANY)], timeout=LIMIT_S)
    if wrong == "twice":
        with pytest.raises(ValueError, match="differ"):
            ray.wait([*left, left[0]])
        left[3] = left[4]
        with pytest.raises(ValueError, match="differ"):
            ray.wait(left)
    elif wrong == "more":
        with pytest.raises(ValueError, match="num_returns"):
            ray.wait(left, num_returns=len(left) + 1)
    elif wrong == "negative":
        with pytest.raises(ValueError, match="negative"):
            ray.wait(left, timeout=-1)
    else:
        left.append(7)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            ray.wait(left)


def test_errors_and_large_values_are_ready_too() -> None:
    @ray.remote
    def odd(i: int) -> Any:
        if i % 2:
            raise ValueError(i)
        return bytes(300_000)

    left = [odd.remote(i) for i in range(MANY)]
    for fetch in (True, False):
        for _ in range(MANY // 2):
            ready, left = ray.wait(left, timeout=LIMIT_S, fetch_local=fetch)
            assert len(ready) == 1
    assert left == []


def test_the_wait_group_keeps_no_object_alive(cluster: Session) -> None:
    """The list's objects go when the program lets go of it, call or no call."""

    def owned() -> int:
        return len(cluster.client.entries)

    eventually(lambda: owned() == 0)
    _, left = ray.wait([ray.put(i) for i in range(MANY)])
    ray.get(ray.put(1))
    assert owned() >= MANY - 1
    del _, left
    ray.get(ray.put(1))
    assert owned() <= 1


def test_references_dropped_by_a_program_that_makes_no_calls(cluster: Session) -> None:
    refs: list[ObjectRef] = [ray.put(i) for i in range(MANY)]
    ray.get(refs)
    assert cluster.client.entries
    refs.clear()
    eventually(lambda: not cluster.client.entries)


def test_an_actor_that_is_dropped_ends_without_a_further_call() -> None:
    @ray.remote(num_cpus=0)
    class Empty:
        def pid(self) -> int:
            return os.getpid()

    actor = Empty.remote()
    pid = ray.get(actor.pid.remote())
    os.kill(pid, 0)
    del actor

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    eventually(gone)


def test_a_value_wakes_only_the_threads_that_wait_for_it(cluster: Session, tmp_path: Any) -> None:
    """Each message woke all that waited, and each of them looked and went on waiting."""
    go = tmp_path / "go"
    slow = after.remote(str(go), 1)
    looks: dict[int, int] = {}
    got: list[int] = []

    def wait() -> None:
        me = threading.get_ident()

        def ready() -> bool:
            if threading.get_ident() == me:
                looks[me] = looks.get(me, 0) + 1
            return go.exists()

        cluster.world.block(ready, LIMIT_S)
        got.append(ray.get(slow, timeout=LIMIT_S))

    threads = [threading.Thread(target=wait) for _ in range(10)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(looks) == 10)
    for i in range(200):
        assert ray.get(value.remote(i), timeout=LIMIT_S) == i
    seen = sorted(looks.values())
    go.touch()
    for thread in threads:
        thread.join(LIMIT_S)
    assert got == [1] * 10
    # One of them polls, and looks whenever something comes. At the end of each of its polls
    # the main thread may leave that to the next.
    assert sum(seen) <= 3 * 200, seen


def test_an_error_is_raised_only_in_the_thread_that_waits_for_it(
    cluster: Session, tmp_path: Any
) -> None:
    """The thread that polls looks for the others."""
    broken = threading.Event()
    errors: list[str] = []

    def ready() -> bool:
        if broken.is_set():
            raise ValueError("broken")
        return False

    def wait() -> None:
        try:
            cluster.world.block(ready, LIMIT_S)
        except ValueError as error:
            errors.append(str(error))

    first = after.remote(str(tmp_path / "first"), 1)
    polls = threading.Thread(target=lambda: ray.get(first, timeout=LIMIT_S))
    sleeps = threading.Thread(target=wait)
    for thread in (polls, sleeps):
        thread.start()
        time.sleep(0.2)
    broken.set()
    (tmp_path / "first").touch()
    for thread in (polls, sleeps):
        thread.join(LIMIT_S)
    assert errors == ["broken"]


def test_a_signals_handler_holds_up_no_other_thread(tmp_path: Any) -> None:
    """The thread that polled left it to the main thread, which was in the handler."""
    paths = [str(tmp_path / name) for name in ("first", "second", "third")]
    refs = [after.remote(path, path) for path in paths]
    over = [threading.Event() for _ in refs]
    outcome: list[bool] = []

    def wait(i: int) -> None:
        assert ray.get(refs[i], timeout=LIMIT_S) == paths[i]
        over[i].set()

    def handler(*_: Any) -> None:
        for i in range(2):
            (tmp_path / ("first", "second")[i]).touch()
            outcome.append(over[i].wait(LIMIT_S / 2))
        (tmp_path / "third").touch()

    def rest() -> None:
        # By now the first one polls and the main thread waits.
        second.start()
        time.sleep(0.2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    first, second = (threading.Thread(target=wait, args=(i,)) for i in range(2))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        first.start()
        time.sleep(0.2)
        threading.Timer(0.3, rest).start()
        wait(2)
    finally:
        signal.signal(signal.SIGUSR1, before)
        first.join(LIMIT_S)
        second.join(LIMIT_S)
    assert outcome == [True, True]
