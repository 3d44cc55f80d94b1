"""Only waits of the thread that runs a task release the task's CPU."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.fuzz.oracle.findings import Kind
from raytwin.chaos.fuzz.oracle.invariants import Watch
from raytwin.runtime.api.exceptions import TaskCancelledError
from raytwin.runtime.session.session import Session
from raytwin.simulator.cluster.simulated_session import SimSession

LIMIT_S = 30.0


@pytest.fixture(params=["sim", "local"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """One CPU, so that nobody has another one."""
    ray.init(backend=request.param, nodes=1, cpus_per_node=1, resources={"X": 1})
    yield request.param
    ray.shutdown()


@pytest.fixture
def threads(backend: str) -> None:
    if backend == "sim":
        pytest.skip("simulated programs have one thread")


@ray.remote(num_cpus=0)
def later(seconds: float) -> int:
    ray.sleep(seconds)
    return 1


def beside(wait: Callable[[Any], Any], ref: Any) -> threading.Thread:
    thread = threading.Thread(target=wait, args=(ref,), daemon=True)
    thread.start()
    return thread


async def awaited(ref: Any) -> Any:
    return await ref


def computed(ref: Any) -> None:
    ref.future()
    ray.compute(0.4)


@ray.remote
def runs(wait: Callable[[Any], Any], ref: list[Any]) -> tuple[float, float]:
    began_s = ray.now()
    wait(ref[0])
    return began_s, ray.now()


WAITS: dict[str, Callable[[Any], Any]] = {
    "a future's result": lambda ref: ref.future().result(),
    "a future that nobody waits for": computed,
    "await": lambda ref: asyncio.run(awaited(ref)),
    "get of another thread": lambda ref: beside(ray.get, ref).join(),
    "wait of another thread": lambda ref: beside(lambda ref: ray.wait([ref]), ref).join(),
}


@pytest.mark.parametrize("name", WAITS)
def test_other_threads_do_not_release_the_cpu(backend: str, name: str) -> None:
    if backend == "sim" and "thread" in name:
        pytest.skip("simulated programs have one thread")
    ray.get([runs.remote(lambda ref: None, [None]), later.remote(0.0)], timeout=LIMIT_S)
    one = runs.remote(WAITS[name], [later.remote(0.5)])
    ray.sleep(0.1)
    other = runs.remote(lambda ref: None, [None])
    (_, ended_s), (began_s, _) = ray.get([one, other], timeout=LIMIT_S)
    assert ended_s <= began_s, "two tasks at once on one CPU"


def test_the_tasks_thread_releases_the_cpu_while_others_wait(threads: None) -> None:
    @ray.remote
    def one(never: list[Any]) -> int:
        beside(ray.get, never[0])
        time.sleep(0.05)
        return ray.get(two.remote())

    @ray.remote
    def two() -> int:
        return 2

    assert ray.get(one.remote([later.remote(1000.0)]), timeout=LIMIT_S) == 2
    assert ray.get(two.remote(), timeout=LIMIT_S) == 2


def test_a_task_with_a_call_back_goes_on_to_wait_itself(backend: str) -> None:
    @ray.remote
    def one() -> tuple[int, list[int]]:
        called: list[int] = []
        ref = two.remote()
        future = ref.future()
        future.add_done_callback(lambda done: called.append(done.result()))
        value = ray.get(ref)
        future.result()
        return value, called

    @ray.remote
    def two() -> int:
        return 2

    assert ray.get(one.remote(), timeout=LIMIT_S) == (2, [2])


def test_a_task_ends_whatever_its_threads_wait_for(threads: None) -> None:
    @ray.remote(resources={"X": 1})
    def leaves(never: list[Any]) -> int:
        beside(ray.get, never[0])
        time.sleep(0.05)
        return os.getpid()

    never = later.remote(1000.0)
    pids = [ray.get(leaves.remote([never]), timeout=LIMIT_S) for _ in range(5)]
    assert len(set(pids)) == 1, "its worker was not free again"
    end_s = time.monotonic() + LIMIT_S
    while ray.available_resources() != ray.cluster_resources():
        assert time.monotonic() < end_s, ray.available_resources()
        time.sleep(0.02)


def keeps_computing() -> None:
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        pass


@pytest.mark.parametrize("wait", [lambda ref: beside(ray.get, ref), lambda ref: ref.future()])
def test_a_task_is_interrupted_while_another_thread_waits(
    threads: None, wait: Any, tmp_path: Path
) -> None:
    @ray.remote
    def computes(never: list[Any], note: Path) -> None:
        wait(never[0])
        time.sleep(0.05)
        note.touch()
        keeps_computing()

    note = tmp_path / "computes"
    ref = computes.remote([later.remote(1000.0)], note)
    end_s = time.monotonic() + LIMIT_S
    while not note.exists():
        assert time.monotonic() < end_s
        time.sleep(0.01)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref, timeout=LIMIT_S)


# -- the values before an element that takes long ------------------------------------


@ray.remote(num_cpus=0)
class Gate:
    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def open(self) -> None:
        self.opened.set()

    async def passed(self) -> bool:
        await self.opened.wait()
        return True


@ray.remote
def element(i: int, gate: Any, here: bool) -> int:
    if i < 5:
        return i
    if here:
        ray.get(gate.passed.remote())
    else:
        thread = beside(ray.get, gate.passed.remote())
        while thread.is_alive():
            time.sleep(0.01)
    return i


def values_before_the_last(here: bool) -> list[int]:
    gate = Gate.remote()
    # From here on a worker is given several at a time.
    ray.get([element.remote(0, gate, here) for _ in range(300)], timeout=LIMIT_S)
    refs = element.map(range(6), [gate] * 6, [here] * 6)
    # The last element waits for what comes of the values before it.
    first = ray.get([refs[i] for i in range(5)], timeout=LIMIT_S)
    ray.get(gate.open.remote(), timeout=LIMIT_S)
    return [*first, ray.get(refs[5], timeout=LIMIT_S)]


def test_values_come_while_a_later_element_waits(backend: str) -> None:
    assert values_before_the_last(here=True) == list(range(6))


def test_values_come_while_a_thread_of_a_later_element_waits(threads: None) -> None:
    assert values_before_the_last(here=False) == list(range(6))


# -- and it would be seen ----------------------------------------------------------


def test_a_task_that_computes_without_its_cpu_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(self: Session, ref: Any) -> None:
        executor = self.world.executor
        assert executor is not None
        with self.world:
            executor.block()

    @ray.remote
    def one(ref: list[Any]) -> None:
        computed(ref[0])
        ray.get(ref[0])

    @ray.remote
    def other() -> None:
        ray.compute(0.2)

    found = []
    for broken in (False, True):
        if broken:
            monkeypatch.setattr(SimSession, "future", wrong)
        session: Any = ray.init(backend="sim", nodes=1, cpus_per_node=1)
        try:
            watch = Watch(session.cluster)
            ray.get([one.remote([later.remote(1.0)]), other.remote()], timeout=LIMIT_S)
            found.append(watch.found)
        finally:
            ray.shutdown()
    assert not found[0]
    assert found[1] and all(each.kind is Kind.OVERSUBSCRIPTION for each in found[1]), found
