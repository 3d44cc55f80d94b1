"""The connections of direct calls: their order beside the node's, their number and their end."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.backend import current
from raytwin.runtime.control.client.direct_calls import WORKERS_MAX
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import (
    Assignment,
    DirectCall,
    DirectClosed,
    Frame,
    RunTasks,
    TaskExtra,
    TaskSpec,
)
from raytwin.runtime.processes.client.direct_connections import (
    DirectConnections,
    open_connection,
    rendezvous,
)
from raytwin.runtime.processes.client.worker_process import Worker
from raytwin.runtime.processes.net import wire
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import Connection
from raytwin.runtime.processes.net.process_settings import WorkerSettings
from raytwin.runtime.store.arena import Arena

DRIVER, NODE = "driver:0.0", "node:0"


class Taker:
    """A component that keeps the messages it takes."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Any]] = []

    def handle(self, source: str, message: Any) -> None:
        self.taken.append((source, message))

    def end_turn(self) -> None:
        """Do nothing."""


def call_of(number: int) -> TaskSpec:
    extra = TaskExtra(call=b"actor", method="f")
    return TaskSpec(number.to_bytes(12, "big"), 0, 1, b"", b"", DRIVER, "", name="f", extra=extra)


@pytest.fixture
def driver() -> Any:
    """A driver's process with a rendezvous; yields it, its component and the workers' end."""
    process, taker = ComponentProcess(0), Taker()
    process.add(DRIVER, taker)
    ours, theirs = rendezvous()
    connections = DirectConnections(process, DRIVER, ours, lambda _, frame: process.receive(frame))
    yield process, taker, theirs
    connections.close()
    for connection in list(process.routes.values()):
        connection.close("over")
    process.reactor.close()
    theirs.close()


def drop(connection: Connection, frame: Frame) -> None:
    """Ignore a frame."""


@pytest.fixture
def worker(driver: Any) -> Any:
    """A worker that has opened a connection to the driver; yields it and the node's end."""
    _, _, to_driver = driver
    node, theirs = socket.socketpair()
    arena = Arena.create(4096)
    settings = WorkerSettings("worker:0.1", 0, Config(), DRIVER)
    made = Worker(
        settings, theirs, [os.dup(arena.fd)], socket.socket(fileno=os.dup(to_driver.fileno()))
    )
    with made.world:
        assert made.executor.direct.open_channel()
    yield made, node
    made.world.close()
    arena.close()
    node.close()


def test_a_call_by_the_node_comes_behind_the_direct_call_before_it(
    driver: Any, worker: Any
) -> None:
    """The worker reads the direct call first, also where the node's socket is ready first."""
    at_driver, *_ = driver
    made, node = worker
    executor = made.executor
    executor.actor = True
    at_driver.step(0)
    for number in range(1, 40, 2):
        at_driver.context(DRIVER).send("worker:0.1", DirectCall(call_of(number)))
        at_driver.turns.run_rounds()
        node.sendall(wire.encode(NODE, "worker:0.1", [RunTasks([Assignment(call_of(number + 1))])]))
        with made.world:
            made.world.process.routes[NODE].receive()
            made.world.process.turns.run_rounds()
        came = [int.from_bytes(assignment.spec.array, "big") for assignment in executor.queue]
        assert came == list(range(1, number + 2))


@pytest.mark.parametrize("taken", [True, False])
def test_a_worker_answers_a_driver_that_has_taken_its_connection(
    driver: Any, worker: Any, taken: bool
) -> None:
    at_driver, *_ = driver
    made, _ = worker
    assert not made.executor.direct.is_ready(), "the driver may refuse the connection"
    if taken:
        at_driver.step(0)
    else:
        without_descriptors(at_driver, lambda: at_driver.step(0))
    with made.world:
        made.world.process.routes[DRIVER].receive()
    assert made.executor.direct.is_ready() is taken


def test_the_end_of_a_worker_comes_behind_its_last_answer(driver: Any) -> None:
    at_driver, taker, to_driver = driver
    process = ComponentProcess(0)
    connection = open_connection(process, to_driver, "worker:0.1", DRIVER, drop)
    assert connection is not None
    at_driver.step(0)
    connection.send(wire.encode("worker:0.2", DRIVER, [DirectCall(call_of(1))]))
    connection.close("it has died")
    for _ in range(3):
        at_driver.step(0)
    assert [type(message) for _, message in taker.taken] == [DirectCall, DirectClosed]
    assert {source for source, _ in taker.taken} == {"worker:0.1"}
    assert "worker:0.1" not in at_driver.routes
    process.reactor.close()


def without_descriptors(process: ComponentProcess, act: Any) -> Any:
    """Call `act` while the process can open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open("/dev/null", os.O_RDONLY)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        return act()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_without_free_descriptors_offers_no_direct_calls(driver: Any) -> None:
    _, _, to_driver = driver
    process = ComponentProcess(0)

    def act() -> Any:
        return open_connection(process, to_driver, "worker:0.1", DRIVER, drop)

    assert without_descriptors(process, act) is None
    process.reactor.close()


def test_a_driver_without_free_descriptors_takes_no_connection(driver: Any) -> None:
    at_driver, taker, to_driver = driver
    process = ComponentProcess(0)
    connection = open_connection(process, to_driver, "worker:0.1", DRIVER, drop)
    assert connection is not None
    without_descriptors(at_driver, lambda: at_driver.step(0))
    connection.receive()
    assert connection.closed and not at_driver.routes and not taker.taken
    process.reactor.close()


def test_a_closed_rendezvous_frees_its_descriptor(driver: Any) -> None:
    at_driver, *_ = driver
    ours, theirs = rendezvous()
    number = ours.fileno()
    DirectConnections(at_driver, DRIVER, ours, lambda _, frame: at_driver.receive(frame)).close()
    with pytest.raises(OSError):
        os.fstat(number)
    theirs.close()


def test_a_driver_refuses_more_connections_than_it_can_have(driver: Any) -> None:
    at_driver, _, to_driver = driver
    process = ComponentProcess(0)
    opened = []
    for number in range(WORKERS_MAX + 3):
        connection = open_connection(process, to_driver, f"worker:0.{number}", DRIVER, drop)
        assert connection is not None
        opened.append(connection)
        at_driver.step(0)
    assert len(at_driver.routes) == WORKERS_MAX
    for connection in opened:
        connection.receive()
    assert [c.closed for c in opened] == [False] * WORKERS_MAX + [True] * 3
    for connection in opened:
        connection.close("over")
    process.reactor.close()


def test_many_actors_are_called_directly_or_by_the_node() -> None:
    ray.init(num_cpus=2)
    try:

        @ray.remote(num_cpus=0)
        class Counter:
            def __init__(self) -> None:
                self.count = 0

            def add(self) -> int:
                self.count += 1
                return self.count

        counters = [Counter.remote() for _ in range(WORKERS_MAX + 6)]
        calls = 2 * Config().direct_after
        for counter in counters:
            for number in range(calls):
                assert ray.get(counter.add.remote(), timeout=60) == number + 1
        fds = len(os.listdir("/proc/self/fd"))
        del counter
        counters.clear()
        deadline_s = time.monotonic() + 60
        while len(os.listdir("/proc/self/fd")) > fds - WORKERS_MAX:
            assert time.monotonic() < deadline_s, "the connections of ended actors stay open"
            time.sleep(0.01)
        one = Counter.remote()
        for number in range(calls):
            assert ray.get(one.add.remote(), timeout=60) == number + 1
    finally:
        ray.shutdown()


def test_the_node_delivers_a_result_whose_worker_dies_before_it_answers_the_driver() -> None:

    @ray.remote
    def pid() -> int:
        return os.getpid()

    @ray.remote(max_retries=0)
    def die_before_the_answer() -> int:
        answers = current().world.process.routes[DRIVER]  # type: ignore[attr-defined]
        answers.send = lambda data: os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    ray.init(num_cpus=1)
    try:
        pids = set()
        for _ in range(5):
            for _ in range(Config().direct_after + 2):
                worker = ray.get(pid.remote(), timeout=60)
            assert ray.get(die_before_the_answer.remote(), timeout=60) == worker
            pids.add(worker)
        assert len(pids) == 5
    finally:
        ray.shutdown()
