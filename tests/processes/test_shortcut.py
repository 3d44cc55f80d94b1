"""Results that workers send to their driver past the node: a gain, and nothing more."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import raytwin as ray
from runtime.control.messages import Release, TaskResults
from runtime.processes import wire
from runtime.processes.process import Process
from runtime.processes.shortcut import FromWorkers, ToDriver, shortcut_pair
from tests.control.alone import result

ME, WORKER = "driver:0.0", "worker:0.1"


class Heard:
    """A component that notes what it is sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def handle(self, source: str, message: Any) -> None:
        self.messages.append((source, message))

    def end_turn(self) -> None:
        """Nothing is left to do."""


def made() -> tuple[Process, Heard, ToDriver]:
    ours, theirs = shortcut_pair()
    process, heard = Process(0), Heard()
    process.add(ME, heard)
    FromWorkers(process, ME, ours)
    return process, heard, ToDriver(theirs)


def test_packets_of_several_workers_stay_apart() -> None:
    process, heard, one = made()
    two = ToDriver(one._sock.dup())
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
        wire.encode(WORKER, ME, [Release([])]),
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


@ray.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def pid(self) -> int:
        return os.getpid()


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
