"""What workers and their driver send each other past the node: a gain, and nothing more."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.control.core.direct_calls import OPEN_MAX
from raytwin.runtime.control.messages import (
    DirectCall,
    DirectClosed,
    DirectOpen,
    TaskResults,
)
from raytwin.runtime.processes.client.direct_channel import (
    ChannelFromWorkers,
    ChannelToDriver,
    channel_pair,
)
from raytwin.runtime.processes.net import wire
from raytwin.runtime.processes.net.component_process import ComponentProcess
from tests.control.alone import result, spec

ME, WORKER = "driver:0.0", "worker:0.1"


class Heard:
    """A component that notes what it is sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def handle(self, source: str, message: Any) -> None:
        self.messages.append((source, message))

    def end_turn(self) -> None:
        """Nothing is left to do."""


def made() -> tuple[ComponentProcess, Heard, ChannelToDriver]:
    ours, theirs = channel_pair()
    process, heard = ComponentProcess(0), Heard()
    process.add(ME, heard)
    ChannelFromWorkers(process, ME, ours)
    return process, heard, ChannelToDriver(ComponentProcess(0), WORKER, ME, theirs)


def test_packets_of_several_workers_stay_apart() -> None:
    process, heard, one = made()
    two = ChannelToDriver(ComponentProcess(0), "worker:0.2", ME, one._sock.dup())
    for number in range(1, 21):
        message = TaskResults(ME, [result(number)])
        (one if number % 2 else two).send(wire.encode(WORKER, ME, [message]))
    while len(heard.messages) < 20:
        process.step(None)
    assert heard.messages == [(WORKER, TaskResults(ME, [result(n)])) for n in range(1, 21)]


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        b"no frame at all",
        wire.encode(WORKER, "driver:0.1", [TaskResults(ME, [])]),
        wire.encode(WORKER, ME, [TaskResults(ME, [result(1)])])[:-1] + b"\xc1",
    ],
)
def test_what_does_not_belong_closes_it_and_nothing_else(data: bytes) -> None:
    process, heard, worker = made()
    worker.send(data)
    process.step(None)
    worker.send(wire.encode(WORKER, ME, [TaskResults(ME, [result(1)])]))
    process.step(0)
    assert heard.messages == []
    assert worker.closed, "nobody reads any more"


def test_who_does_not_read_holds_nobody_up() -> None:
    process, heard, worker = made()
    data = wire.encode(WORKER, ME, [TaskResults(ME, [result(1)])])
    for _ in range(10_000):
        worker.send(data)
    assert not worker.closed
    process.step(None)
    assert len(heard.messages) == 1


# -- the way back ------------------------------------------------------------------


def offered() -> tuple[ComponentProcess, Heard, ComponentProcess, Heard]:
    """Return a driver with what it hears and a worker likewise, which has offered."""
    ours, theirs = channel_pair()
    driver, heard = ComponentProcess(0), Heard()
    driver.add(ME, heard)
    ChannelFromWorkers(driver, ME, ours)
    worker, told = ComponentProcess(0), Heard()
    worker.add(WORKER, told)
    way = ChannelToDriver(worker, WORKER, ME, theirs)
    way.open_back()
    way.send(wire.encode(WORKER, ME, [DirectOpen(b"an actor")]))
    driver.step(None)
    driver.run_turns()
    return driver, heard, worker, told


def test_a_worker_that_offers_is_reached_and_by_that_driver_alone() -> None:
    driver, heard, worker, told = offered()
    assert heard.messages == [(WORKER, DirectOpen(b"an actor"))]
    driver.direct_channels[WORKER].send(wire.encode("driver:0.7", WORKER, [DirectCall(spec(1))]))
    worker.step(None)
    assert told.messages == [(ME, DirectCall(spec(1)))]


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        wire.encode(ME, "worker:0.2", [DirectCall(spec(1))]),
    ],
)
def test_what_is_no_call_closes_the_way_back(data: bytes) -> None:
    driver, heard, worker, told = offered()
    driver.direct_channels[WORKER].send(data)
    worker.step(None)
    driver.step(None)
    driver.run_turns()
    assert not told.messages
    assert heard.messages[-1] == (ME, DirectClosed(WORKER))
    assert WORKER not in driver.direct_channels


def test_an_offer_without_a_way_and_one_too_many_are_declined() -> None:
    ours, theirs = channel_pair()
    driver, heard = ComponentProcess(0), Heard()
    driver.add(ME, heard)
    ChannelFromWorkers(driver, ME, ours)
    workers = [ComponentProcess(0) for _ in range(OPEN_MAX + 2)]
    for number, worker in enumerate(workers):
        address = f"worker:0.{number}"
        worker.add(address, Heard())
        way = ChannelToDriver(worker, address, ME, theirs.dup())
        if number:
            way.open_back()
        way.send(wire.encode(address, ME, [DirectOpen(b"an actor")]))
        driver.step(None)
        driver.run_turns()
    closed = [m.worker for _, m in heard.messages if type(m) is DirectClosed]
    assert closed == ["worker:0.0", f"worker:0.{OPEN_MAX + 1}"]
    assert len(driver.direct_channels) == OPEN_MAX


@ray.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def pid(self) -> int:
        return os.getpid()

    def nap(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.add()

    def fails(self) -> None:
        raise KeyError("no such thing")

    def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))


@ray.remote
def twice(x: int) -> int:
    return 2 * x


def test_without_it_every_value_comes_by_way_of_the_node(start: Any) -> None:
    session = start(nodes=1, cpus_per_node=1)
    counter = Counter.remote()
    assert [ray.get(counter.add.remote()) for _ in range(10)] == list(range(1, 11))
    session.world.from_workers.close()
    assert [ray.get(counter.add.remote()) for _ in range(10)] == list(range(11, 21))
    assert [ray.get(twice.remote(x)) for x in range(10)] == [2 * x for x in range(10)]


def test_what_came_this_way_is_an_input_and_ends_with_its_references(start: Any) -> None:
    session = start(nodes=2, cpus_per_node=1)
    counter = Counter.remote()
    refs = []
    for expected in range(1, 30):
        ref = counter.add.remote()
        assert ray.get(ref) == expected
        assert ray.get(twice.remote(ref)) == 2 * expected
        refs.append(ref)
    pid = ray.get(counter.pid.remote())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(counter.add.remote())
    assert ray.get(refs) == list(range(1, 30))
    assert ray.get([twice.remote(ref) for ref in refs]) == [2 * n for n in range(1, 30)]
    assert session.client.entries


# -- calls past the node -----------------------------------------------------------


def acquainted(session: Any) -> Any:
    """Return a counter that the driver calls directly, after 20 calls."""
    counter = Counter.remote()
    for expected in range(1, 21):
        assert ray.get(counter.add.remote()) == expected
    assert session.world.process.direct_channels, "it takes calls directly"
    return counter


def test_every_call_takes_effect_once_whichever_way_it_came(start: Any) -> None:
    session = start(nodes=1, cpus_per_node=2)
    counter = acquainted(session)
    expected = 20
    for number in range(400):
        if number % 7 == 3:
            refs = [counter.add.remote() for _ in range(5)]
            assert ray.get(refs) == list(range(expected + 1, expected + 6))
            expected += 5
        if number % 11 == 5:
            with pytest.raises(KeyError):
                ray.get(counter.fails.remote())
        expected += 1
        ref = counter.add.remote()
        if number % 5:
            assert ray.get(ref) == expected
        else:
            assert ray.get(twice.remote(ref)) == 2 * expected
    assert ray.get(counter.add.remote()) == expected + 1


def test_threads_of_a_driver_keep_the_order_of_their_own_calls(start: Any) -> None:
    session = start(nodes=1, cpus_per_node=2)
    counter = acquainted(session)
    seen: list[list[int]] = [[], [], []]

    def call(mine: list[int]) -> None:
        for _ in range(100):
            mine.append(ray.get(counter.add.remote()))

    threads = [threading.Thread(target=call, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in seen)
    assert sorted(value for mine in seen for value in mine) == list(range(21, 321))


def test_a_slow_call_behind_one_that_went_ahead_does_not_keep_its_value_back(start: Any) -> None:
    session = start(nodes=1, cpus_per_node=2)
    counter = acquainted(session)
    first = counter.add.remote()
    assert ray.get(first) == 21
    slow = counter.nap.remote(20.0)
    assert ray.get(twice.remote(first), timeout=15) == 42
    ray.cancel(slow)


def test_an_actor_that_dies_ends_the_way_and_its_call(start: Any) -> None:
    session = start(nodes=1, cpus_per_node=2)
    counter = acquainted(session)
    pid = ray.get(counter.pid.remote())
    ref = counter.nap.remote(60.0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(ref)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(counter.add.remote())
    assert not session.world.process.direct_channels
    assert not session.client.buffer.direct


def test_a_killed_actor_runs_nothing_more(start: Any, tmp_path: Any) -> None:
    session = start(nodes=1, cpus_per_node=2)
    counter = acquainted(session)
    ray.kill(counter)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(counter.add.remote())


def test_actors_that_may_restart_are_called_by_their_node_alone(start: Any) -> None:
    session = start(nodes=1, cpus_per_node=2)
    counter = Counter.options(max_restarts=1).remote()
    for expected in range(1, 41):
        assert ray.get(counter.add.remote()) == expected
    assert not session.world.process.direct_channels


def test_descriptors_are_given_back(start: Any) -> None:
    session = start(nodes=1, cpus_per_node=2)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        ray.kill(acquainted(session))
        end_s = time.monotonic() + 30
        while session.world.process.direct_channels and time.monotonic() < end_s:
            time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) == before
