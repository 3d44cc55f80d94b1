"""The head process of a durable GCS: one replica, with its log on disk.

The replica and the chain's master are in this process, so nodes reach both over their
one connection with the head. When the process is killed the zygote forks a new one, with
the same listening socket; it restores its state from the file, and the nodes reconnect
and repeat their unacknowledged requests.
"""

from __future__ import annotations

import socket
from typing import Any

from raytwin.runtime.control.assembly import make_durable_replica, make_machine
from raytwin.runtime.control.core.addresses import STORAGE
from raytwin.runtime.control.messages import StartReplica
from raytwin.runtime.control.replication.master import LAUNCHER
from raytwin.runtime.control.replication.storage import Storage
from raytwin.runtime.journal import Origin
from raytwin.runtime.processes.head.gcs_storage import SqliteFile
from raytwin.runtime.processes.head.replicated_head import ReplicatedHead
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.process_settings import HeadSettings


def durable_head(
    settings: HeadSettings, listener: socket.socket, spawner: socket.socket
) -> ReplicatedHead:
    """Return a head whose only replica is a component of its own process."""

    def add_launcher(process: ComponentProcess) -> None:
        ctx = process.context(STORAGE)
        storage = Storage(ctx, SqliteFile(ctx.after, settings.storage))
        process.add(STORAGE, storage)
        launcher = _InProcessLauncher(process, settings, storage)
        process.add(LAUNCHER, launcher)

    return ReplicatedHead(settings, listener, spawner, add_launcher)


class _InProcessLauncher:
    """``launcher``: starts the replica in this process."""

    def __init__(self, process: ComponentProcess, settings: HeadSettings, storage: Storage) -> None:
        self._process = process
        self._settings = settings
        self._storage = storage

    def handle(self, source: str, message: Any) -> None:
        if not isinstance(message, StartReplica):
            raise TypeError(f"the launcher was sent {type(message).__name__}")
        config = self._settings.config
        process, name = self._process, message.name
        machine = self._storage.recover(make_machine(config))
        state = machine.snapshot() if machine.index and process.keeps_journals else b""
        ctx = process.begin_first_turn(name)
        replica = make_durable_replica(ctx, name, config, machine)
        process.add(name, replica)
        replica.start()
        process.end_first_turn(Origin(name, config, state=state))

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""
