"""Threads of one process against each other: no wake-up may be lost, nothing held up."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually


@ray.remote
def identity(x: Any) -> Any:
    return x


@ray.remote
def slow(seconds: float, value: Any = None) -> Any:
    time.sleep(seconds)
    return value


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=LIMIT_S)


def together(*works: Callable[[], None], limit_s: float = 60.0) -> None:
    """Run each on a thread of its own; fail if one fails or does not end."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


@pytest.fixture
def one(start: Start) -> Any:
    return start(nodes=1, cpus_per_node=2)


@pytest.mark.slow
@pytest.mark.usefixtures("one")
def test_eight_threads_get_at_once(seed: int) -> None:
    def work(number: int) -> None:
        draw = random.Random(seed + number)
        for i in range(400):
            match draw.randrange(5):
                case 0:
                    assert get(identity.remote(i)) == i
                case 1:
                    assert get([identity.remote(i), identity.remote(-i)]) == [i, -i]
                case 2:
                    refs = [identity.remote(i) for _ in range(3)]
                    ready, pending = ray.wait(refs, num_returns=2, timeout=LIMIT_S)
                    assert (len(ready), len(pending)) == (2, 1)
                case 3:
                    assert get(identity.map(range(i % 50))) == list(range(i % 50))
                case 4:
                    ref = ray.put(np.full(150_000 if i % 8 == 0 else 5, i))
                    assert get(identity.remote(ref))[-1] == i

    together(*(lambda n=n: work(n) for n in range(8)), limit_s=100)


@pytest.mark.slow
@pytest.mark.usefixtures("one")
def test_eight_threads_get_small_values_two_thousand_times() -> None:
    def work(number: int) -> None:
        for i in range(2000):
            assert get(identity.remote((number, i))) == (number, i)

    together(*(lambda n=n: work(n) for n in range(8)), limit_s=100)


@pytest.mark.usefixtures("one")
def test_a_thread_that_waits_long_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Its poll knows nothing of what the others send later."""
    over = threading.Event()
    long = slow.options(num_cpus=1).remote(3.0)

    def wait_long() -> None:
        get(long)
        over.set()

    def submit() -> None:
        touch = ray.remote(lambda path: Path(path).touch())
        for i in range(40):
            paths = [tmp_path / f"{i}-{j}" for j in range(4)]
            refs = [touch.remote(path) for path in paths]
            # Nothing here calls into raytwin: the submissions leave by themselves.
            eventually(lambda paths=paths: all(p.exists() for p in paths))
            del refs
            if over.is_set():
                return
        assert not over.is_set(), "everything waited for the long task"

    together(wait_long, submit)


@pytest.mark.usefixtures("one")
def test_one_threads_answer_does_not_wait_for_anothers() -> None:
    long = slow.remote(2.0, "long")
    first: list[str] = []

    def wait_long() -> None:
        assert get(long) == "long"
        first.append("long")

    def many_short() -> None:
        for i in range(200):
            assert get(identity.remote(i)) == i
        first.append("short")

    together(wait_long, many_short, many_short)
    assert first[-1] == "long"


def test_a_short_tasks_result_is_not_held_back_by_a_long_one(start: Start) -> None:
    start(nodes=1, cpus_per_node=1)
    both = ray.remote(lambda seconds: (time.sleep(seconds), time.monotonic())[1])
    # Timed as short, so that the long one is given ahead to the same worker.
    get([both.remote(0) for _ in range(50)])
    short, long = both.remote(0), both.remote(2.0)
    ended_s = get(short)
    seen_s = time.monotonic()
    ready, _ = ray.wait([long], timeout=0)
    assert not ready, f"seen {seen_s - ended_s} s after its end, with the long one"
    get(long)


@pytest.mark.usefixtures("one")
def test_short_elements_of_an_array_are_seen_while_a_long_one_runs() -> None:
    both = ray.remote(lambda i: (time.sleep(2.0 if i == 40 else 0), i)[1])
    get(both.map(range(30)))
    refs = both.map(range(60))
    others = [i for i in range(60) if i != 40]
    assert get([refs[i] for i in others]) == others
    assert ray.wait([refs[40]], timeout=0)[0] == []
    assert get(refs) == list(range(60))


@pytest.mark.usefixtures("one")
def test_a_running_range_is_split_again_and_again() -> None:
    """Elements block, so that what is unstarted goes back while others append."""
    nested = ray.remote(lambda i: get(identity.remote(i)) if i % 7 == 0 else i)
    for n in (10, 30, 90):
        assert get(nested.map(range(n))) == list(range(n))


@pytest.mark.slow
def test_take_back_races_with_elements_that_end(start: Start) -> None:
    start(nodes=1, cpus_per_node=4)
    uneven = ray.remote(lambda i: (time.sleep(0.03 if i % 50 == 0 else 0), i)[1])
    failing = ray.remote(lambda i: 1 // (i % 20) if i % 10 else i)
    for _ in range(15):
        assert get(uneven.map(range(200))) == list(range(200))
        refs = failing.map(range(100))
        for i, ref in enumerate(refs):
            if i % 20 == 0 and i % 10:
                with pytest.raises(ZeroDivisionError):
                    get(ref)
            else:
                get(ref)


@pytest.mark.usefixtures("one")
def test_references_are_made_and_dropped_on_many_threads(one: Any) -> None:
    arrays = [identity.map(range(1000))]
    inner = get(ray.remote(lambda: [ray.put(i) for i in range(20)]).remote())

    def work() -> None:
        draw = random.Random(threading.get_ident())
        (array,) = arrays
        for _ in range(300):
            i = draw.randrange(1000)
            assert get(array[i]) == i
            assert get(array[i : i + 3]) == list(range(i, min(1000, i + 3)))
            j = draw.randrange(20)
            assert get(inner[j]) == j
            copies = get(identity.remote([inner[j], array[i]]))
            assert get(copies) == [j, i]

    together(*[work] * 6)
    assert get(arrays[0]) == list(range(1000))
    arrays.clear()
    get(ray.put(None))
    assert all(entry.refs >= 0 for entry in one.client.entries.values())


def test_a_worker_that_computes_answers_meanwhile(start: Start) -> None:
    """The background thread of a worker sends what its task submitted, while it computes."""
    start(nodes=1, cpus_per_node=2)

    @ray.remote
    def parent() -> Any:
        refs = [identity.remote(i) for i in range(5)]
        end_s = time.monotonic() + 1.0
        while time.monotonic() < end_s:
            sum(range(100))
        # Ready already: they ran on the other CPU while this one was busy.
        return len(ray.wait(refs, num_returns=5, timeout=0)[0])

    assert get(parent.remote()) == 5


def test_shutdown_while_threads_submit(start: Start) -> None:
    for _ in range(5):
        start(nodes=1, cpus_per_node=2)
        began = threading.Barrier(5)

        def work(began: threading.Barrier = began) -> None:
            session = ray.init(ignore_reinit_error=True)
            began.wait()
            try:
                while True:
                    refs = session.submit(identity, (1,), {}, identity.task_options)
                    assert session.get(refs, LIMIT_S) == [1]
            except ray.exceptions.RaySystemError:
                return

        def stop(began: threading.Barrier = began) -> None:
            began.wait()
            time.sleep(0.05)
            ray.shutdown()

        together(work, work, work, work, stop)
