"""Calls that a driver sends to an actor's worker directly behave as calls by the node."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.runtime.control.core.config import Config

SINGLE = 4 * Config().direct_after


@ray.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, seconds: float = 0.0) -> int:
        ray.sleep(seconds)
        self.count += 1
        return self.count

    def count_now(self) -> int:
        return self.count

    def many(self, nbytes: int) -> Any:
        self.count += 1
        return np.zeros(nbytes, np.uint8)

    def fail(self) -> None:
        self.count += 1
        raise ValueError("as it should")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def child(self) -> Any:
        self.count += 1
        return ray.get(plus.remote(self.count, 1000))

    def exit(self) -> None:
        ray.actor.exit_actor()


@ray.remote
def plus(x: int, y: int) -> int:
    return x + y


@pytest.fixture(scope="module", params=["local", "sim"])
def session(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield ray.init(backend=request.param, nodes=1, cpus_per_node=2)
    ray.shutdown()


def called_directly(session: Any, **options: Any) -> Any:
    """Return an actor that the driver calls directly, after `SINGLE` calls."""
    counter = Counter.options(**options).remote()  # type: ignore[attr-defined]
    for number in range(SINGLE):
        assert ray.get(counter.add.remote(), timeout=60) == number + 1
    assert takes_direct_calls(session, counter)
    return counter


def takes_direct_calls(session: Any, actor: Any) -> bool:
    return bytes.fromhex(actor._actor_id.hex())[:12] in session.client.direct.workers


def unknown_to_the_node(session: Any, ref: Any) -> bool:
    return bool(session.client.entries[ref.binary()[:12]].private)


def test_a_driver_that_awaits_each_call_calls_the_actor_directly(session: Any) -> None:
    counter = called_directly(session)
    ref = counter.add.remote()
    assert unknown_to_the_node(session, ref)
    assert ray.get(ref, timeout=60) == SINGLE + 1


def test_an_actor_that_may_restart_is_called_by_the_node(session: Any) -> None:
    counter = Counter.options(max_restarts=1).remote()  # type: ignore[attr-defined]
    for number in range(SINGLE):
        assert ray.get(counter.add.remote(), timeout=60) == number + 1
    assert not takes_direct_calls(session, counter)


def test_a_result_is_an_input_of_other_tasks(session: Any) -> None:
    counter = called_directly(session)
    ended, running = counter.add.remote(), None
    assert ray.get(ended, timeout=60) == SINGLE + 1
    assert ray.get(plus.remote(ended, 100), timeout=60) == SINGLE + 101
    running = counter.add.remote(0.2)
    assert unknown_to_the_node(session, running)
    assert ray.get(plus.remote(running, 100), timeout=60) == SINGLE + 102
    assert ray.get([running, counter.add.remote()], timeout=60) == [SINGLE + 2, SINGLE + 3]


def test_a_reference_inside_a_value_leads_to_the_result(session: Any) -> None:
    counter = called_directly(session)
    ended = counter.add.remote()
    ray.get(ended, timeout=60)
    running = counter.add.remote(0.1)

    @ray.remote
    def inside(refs: list[Any]) -> list[int]:
        return ray.get(refs)

    box = ray.put([ended, running])
    assert ray.get(inside.remote([ended, running]), timeout=60) == [SINGLE + 1, SINGLE + 2]
    assert ray.get(ray.get(box), timeout=60) == [SINGLE + 1, SINGLE + 2]


def test_calls_begin_in_the_order_in_which_they_were_made(session: Any) -> None:
    counter = called_directly(session)
    for _ in range(20):
        refs = [counter.add.remote() for _ in range(7)]
        counts = ray.get(refs, timeout=60)
        assert counts == list(range(counts[0], counts[0] + 7))


def test_large_results_and_errors_come_as_by_the_node(session: Any) -> None:
    counter = called_directly(session)
    assert ray.get(counter.many.remote(1_000_000), timeout=60).nbytes == 1_000_000
    assert ray.get(counter.add.remote(), timeout=60) == SINGLE + 2
    other = called_directly(session)
    with pytest.raises(ValueError, match="as it should"):
        ray.get(other.fail.remote(), timeout=60)
    assert ray.get(other.add.remote(), timeout=60) == SINGLE + 2


def test_a_call_may_wait_for_tasks(session: Any) -> None:
    counter = called_directly(session, num_cpus=1)
    assert ray.get(counter.child.remote(), timeout=60) == SINGLE + 1001
    assert ray.get(counter.add.remote(), timeout=60) == SINGLE + 2


def test_a_call_ends_before_its_actor_that_nobody_refers_to(session: Any) -> None:
    counter = called_directly(session)
    ref = counter.add.remote(0.2)
    del counter
    assert ray.get(ref, timeout=60) == SINGLE + 1


@pytest.mark.parametrize("end", ["die", "exit"])
def test_a_call_ends_with_its_actor(session: Any, end: str) -> None:
    counter = called_directly(session)
    ref = getattr(counter, end).remote()
    later = counter.add.remote()
    for each in (ref, later, counter.add.remote()):
        with pytest.raises(ray.exceptions.ActorDiedError):
            ray.get(each, timeout=60)
    assert not takes_direct_calls(session, counter)


def test_a_killed_actor_answers_no_call(session: Any) -> None:
    counter = called_directly(session)
    ref = counter.add.remote(100.0)
    ray.kill(counter)
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(ref, timeout=60)


def test_no_call_behind_a_kill_runs(session: Any) -> None:
    for _ in range(10):
        counter = called_directly(session)
        ray.kill(counter)
        with pytest.raises(ray.exceptions.ActorDiedError):
            ray.get(counter.add.remote(), timeout=60)


def test_a_cancelled_call_raises_and_later_ones_run(session: Any) -> None:
    counter = called_directly(session)
    ref = counter.add.remote(0.2)
    ray.sleep(0.05)
    ray.cancel(ref)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(ref, timeout=60)
    # The call had begun, and so it took effect.
    assert ray.get(counter.add.remote(), timeout=60) == SINGLE + 2


def test_a_cancelled_call_that_others_need_takes_effect_once(session: Any) -> None:
    counter = called_directly(session)
    ref = counter.add.remote(0.2)
    ray.sleep(0.05)
    needs = plus.remote(ref, 1)
    ray.cancel(ref)
    for each in (ref, needs):
        with pytest.raises(ray.exceptions.TaskCancelledError):
            ray.get(each, timeout=60)
    assert ray.get(counter.add.remote(), timeout=60) == SINGLE + 2


@ray.remote
class Caller:
    """An actor that has another's handle."""

    def __init__(self, counter: Any = None) -> None:
        self.counter = counter

    def one(self) -> int:
        return 1

    def add(self) -> None:
        self.counter.add.remote()

    def read(self) -> int:
        return ray.get(self.counter.count_now.remote())

    def add_by_name(self, name: str) -> None:
        ray.get_actor(name).add.remote()


@ray.remote
def add_to(counter: Any) -> None:
    counter.add.remote()


def awaited(actor: Any) -> None:
    for _ in range(SINGLE):
        assert ray.get(actor.one.remote(), timeout=60) == 1


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_driver_sees_what_an_awaited_call_has_submitted(session: Any, restarts: int) -> None:
    counter = Counter.options(max_restarts=restarts).remote()  # type: ignore[attr-defined]
    caller = Caller.remote(counter)
    for number in range(1, 200):
        if number % 40 == 1:
            awaited(caller)
        ray.get(caller.add.remote(), timeout=60)
        assert ray.get(counter.count_now.remote(), timeout=60) == number


def test_a_driver_sees_what_an_awaited_task_has_submitted(session: Any) -> None:
    counter = called_directly(session)
    for number in range(1, 200):
        ray.get(add_to.remote(counter), timeout=60)
        assert ray.get(counter.count_now.remote(), timeout=60) == SINGLE + number


def test_a_driver_sees_the_calls_of_others_by_the_actors_name(session: Any) -> None:
    name = f"counter {session.now()}"
    counter = Counter.options(name=name).remote()  # type: ignore[attr-defined]
    caller = Caller.remote()
    for number in range(1, 100):
        ray.get(caller.add_by_name.remote(name), timeout=60)
        assert ray.get(counter.count_now.remote(), timeout=60) == number
    assert not takes_direct_calls(session, counter)


def test_a_call_sees_what_its_driver_has_submitted_before(session: Any) -> None:
    counter = Counter.remote()
    caller = Caller.remote(counter)
    for number in range(1, 30):
        awaited(caller)
        counter.add.remote()
        assert ray.get(caller.read.remote(), timeout=60) == number


def test_errors_end_direct_calls_for_a_while(session: Any) -> None:
    counter = called_directly(session)
    with pytest.raises(ValueError, match="as it should"):
        ray.get(counter.fail.remote(), timeout=60)
    assert not takes_direct_calls(session, counter)
    for _ in range(SINGLE):
        ray.get(counter.add.remote(), timeout=60)
    assert takes_direct_calls(session, counter)


def test_calls_that_return_small_objects_are_direct(session: Any) -> None:
    counter = Counter.remote()
    for _ in range(SINGLE):
        assert ray.get(counter.many.remote(10), timeout=60).nbytes == 10
    assert takes_direct_calls(session, counter)


def test_the_timeline_has_direct_calls(session: Any) -> None:
    before = calls_in_timeline()
    counter = called_directly(session)
    for number in range(300):
        ref = counter.add.remote()
        if number % 3 == 0:
            ray.get(plus.remote(ref, 1), timeout=60)
        else:
            ray.get(ref, timeout=60)
    ray.sleep(0.5)
    assert calls_in_timeline() == before + SINGLE + 300
    executed = [row[4] for row in session.query("actors") if row[0] == "Counter"]
    assert SINGLE + 300 in executed


def calls_in_timeline() -> int:
    return sum(event["args"]["tasks"] for event in ray.timeline() if event["name"] == "Counter.add")
