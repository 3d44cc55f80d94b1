"""The worker process: takes ranges of tasks from its node and runs them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

import msgspec

from raytwin.runtime.api import modules
from raytwin.runtime.api.backend import set_current
from raytwin.runtime.control.client.client import WorkerComponent
from raytwin.runtime.control.messages import Frame
from raytwin.runtime.execution.task_execution import TaskRunner
from raytwin.runtime.processes.client import interrupts, preload
from raytwin.runtime.processes.client.direct_connections import open_connection
from raytwin.runtime.processes.client.local_world import LocalWorld, recorder
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import Connection
from raytwin.runtime.processes.net.process_settings import WorkerSettings, set_up_logging
from raytwin.runtime.session.session import Session
from raytwin.runtime.session.world import BodyWatcher
from raytwin.runtime.store.arena import Arena

# Made before the fork: msgspec takes a millisecond to inspect a class.
_settings_of = msgspec.msgpack.Decoder(WorkerSettings).decode


def _exit(reason: str) -> None:
    # The node has ended, or has closed the connection: the worker can send nothing, and user
    # code may block a regular exit.
    os._exit(0)


class Worker:
    """A worker without the threads, signals and streams of its process, as the zygote needs it
    for a `rehearsal`. It owns its descriptors.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        sock: socket.socket,
        arena_fds: Sequence[int],
        to_driver: socket.socket | None = None,
        watcher: BodyWatcher | None = None,
    ) -> None:
        """`to_driver`: see `direct_connections.rendezvous`. `watcher`: see `World`."""
        process = ComponentProcess(settings.config.seed)
        component = WorkerComponent(
            process.context(settings.address),
            settings.address,
            settings.node,
            settings.config,
            settings.driver if to_driver is not None else "",
        )
        self.client, self.executor = component.client, component.executor
        executor = self.executor
        process.add(settings.address, component)
        arena = Arena.attach(*arena_fds)
        self.world = world = LocalWorld(process, self.client, executor, arena, _exit)
        world.watcher = watcher
        self._to_node = process.routes[self.client.node] = Connection(
            process.reactor, sock, self._on_node_frame, world.on_close, peer=self.client.node
        )
        self._direct: Connection | None = None
        self._to_driver = to_driver
        if to_driver is not None:
            executor.direct.open_channel = self._open_channel
            executor.direct.is_ready = self._is_ready
        self.session = session = Session(world)
        references = session.references
        references.on_drop = world.on_drop
        world.has_drops, world.tidy = lambda: bool(references.dropped), references.collect
        self.runner = TaskRunner(world, session, executor, settings.node)
        self._flush_held = executor.before_results
        executor.before_results = self._before_results

    def _open_channel(self) -> bool:
        assert self._to_driver is not None
        self._direct = open_connection(
            self.world.process, self._to_driver, self.client.address, self.executor.direct.driver,
            self._on_driver_frame,
        )  # fmt: skip
        return self._direct is not None

    def _on_driver_frame(self, connection: Connection, frame: Frame) -> None:
        connection.bound = True
        self.world.on_frame(connection, frame)

    def _is_ready(self) -> bool:
        direct = self._direct
        return direct is not None and direct.bound and not (direct.closed or direct.has_unsent)

    def _on_node_frame(self, connection: Connection, frame: Frame) -> None:
        if self.executor.actor and self._direct is not None and not self._direct.closed:
            # The driver has sent a direct call before any later call that came through the node.
            self._direct.receive()
        self.world.on_frame(connection, frame)

    def _before_results(self) -> None:
        preload.note()
        self._flush_held()

    def report_ready(self) -> None:
        """Report to the node that this worker is ready for tasks."""
        with self.world:
            self.executor.start(os.getpid())

    def run(self) -> None:
        """Run ranges until the worker may exit."""
        self.runner.work()
        self.world.block(lambda: not self._to_node.has_unsent, None)


def main(payload: bytes, fds: list[int]) -> None:
    """Run tasks until the node closes the connection."""
    settings = _settings_of(payload)
    set_up_logging(settings.address)
    if os.environ.get(modules.AS_RAY):
        modules.install("ray")
    # Forked processes start with equal generators; Python itself seeds that of `random` again.
    if "numpy.random" in sys.modules:  # else numpy seeds it on import
        import numpy as np

        np.random.seed(int.from_bytes(os.urandom(4)))
    to_driver = socket.socket(fileno=fds[3]) if settings.driver else None
    worker = Worker(settings, socket.socket(fileno=fds[0]), fds[1:3], to_driver, recorder())
    set_current(worker.session)
    interrupts.install(worker.executor)
    worker.world.start()
    worker.report_ready()
    worker.run()
