"""A worker process: takes ranges from its node and runs them."""

from __future__ import annotations

import os
import random
import socket
import sys

import msgspec
import numpy as np

from runtime.api import modules
from runtime.api.state import set_current
from runtime.backend.execution import TaskRunner
from runtime.backend.session import Session
from runtime.control.client import Client
from runtime.control.executor import Executor
from runtime.control.messages import (
    CancelTask,
    Exit,
    FunctionBlob,
    RestoreActor,
    Resume,
    RunTasks,
    TakeBack,
    TooLong,
)
from runtime.processes import interrupts
from runtime.processes.connection import Connection
from runtime.processes.local_world import LocalWorld
from runtime.processes.process import Process
from runtime.processes.settings import WorkerSettings, set_up_logging
from runtime.store.arena import Arena

# Made before the fork: what msgspec has to find out of a class takes a millisecond.
_settings_of = msgspec.msgpack.Decoder(WorkerSettings).decode

_FOR_EXECUTOR = (RunTasks, FunctionBlob, TakeBack, Resume, RestoreActor, Exit, CancelTask)


class _Both:
    """Client and executor share the worker's address; messages tell them apart."""

    def __init__(self, client: Client, executor: Executor) -> None:
        self._client = client
        self._executor = executor

    def handle(self, source: str, message: object) -> None:
        if isinstance(message, _FOR_EXECUTOR):
            self._executor.handle(source, message)
        elif isinstance(message, TooLong) and not message.tasks:
            # Results: nobody would ever hear of them. The node sees to what ran here.
            os._exit(1)
        else:
            self._client.handle(source, message)

    def end_turn(self) -> None:
        self._client.end_turn()
        self._executor.end_turn()


def _leave(reason: str) -> None:
    # The node is gone, or does not want this worker: there is nobody to tell,
    # and user code may be in the way of an orderly exit.
    os._exit(0)


def main(payload: bytes, fds: list[int]) -> None:
    """Run tasks until the node closes the connection."""
    settings = _settings_of(payload)
    set_up_logging(settings.address)
    # What a task prints is seen when it is printed: workers do not live to flush.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if os.environ.get(modules.AS_RAY):
        modules.install("ray")
    # Forked processes start with equal generators.
    random.seed()
    np.random.seed(int.from_bytes(os.urandom(4)))
    process = Process(settings.config.seed)
    ctx = process.context(settings.address)
    client = Client(ctx, settings.address, settings.node, settings.config)
    executor = Executor(ctx, settings.node, settings.config)
    process.add(settings.address, _Both(client, executor))
    world = LocalWorld(process, client, executor, Arena.attach(fds[1]), _leave)
    connection = Connection(
        process.reactor,
        socket.socket(fileno=fds[0]),
        world.on_frame,
        world.on_close,
        peer=client.node,
    )
    process.routes[client.node] = connection
    session = Session(world)
    session.on_drop = world.on_drop
    world.has_drops, world.tidy = lambda: bool(session.uncounted), session.collect
    set_current(session)
    runner = TaskRunner(world, session, executor, settings.node)
    world.report_meanwhile = runner.report_meanwhile
    interrupts.install(client, executor)
    world.start()
    with world:
        executor.start(os.getpid())
    while True:
        with world:
            assignment = executor.next() if runner.has_room() else None
            leaving = executor.exiting
        if assignment is not None:
            runner.run(assignment)
        elif leaving:
            return
        else:
            with world:
                session.collect()
                client.flush()
            world.block(lambda: runner.has_work() or executor.exiting, None)
