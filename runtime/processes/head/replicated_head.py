"""The head process of a GCS of one or several chains: the masters, and the launcher of replicas.

Replicas and nodes connect to the head's listener. The GCS and the global
scheduler are in the replicas, each a process of its own (`replica_process`).
"""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from raytwin.runtime.control.assembly import Masters
from raytwin.runtime.control.messages import (
    StartReplica,
    StopReplica,
)
from raytwin.runtime.control.replication.master import LAUNCHER
from raytwin.runtime.journal import Origin
from raytwin.runtime.processes.head.head_channels import add_head_channels
from raytwin.runtime.processes.head.process_ends import ProcessEnds
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.packets import send_packet
from raytwin.runtime.processes.net.process_settings import (
    HeadSettings,
    ReplicaSettings,
    journal_path,
)

log = logging.getLogger("raytwin")


class ReplicatedHead:
    """The head of a replicated GCS: joins the masters to the connections of replicas and nodes."""

    def __init__(
        self,
        settings: HeadSettings,
        listener: socket.socket,
        spawner: socket.socket,
        add_launcher: Callable[[ComponentProcess], None],
    ) -> None:
        """`add_launcher` adds the component that starts replicas to the head's process."""
        config = settings.config
        self.process = ComponentProcess(config.seed, journal_path(settings.journal))
        self.masters = Masters(config, self.process.begin_first_turn, self.process.add)
        add_launcher(self.process)
        nodes = self.masters.of_chains[0].nodes
        channels = add_head_channels(self.process, settings, listener, nodes.get)
        ProcessEnds(self.process, spawner, channels.peers)
        self.masters.start()
        for address in self.masters.addresses:
            self.process.end_first_turn(Origin(address, config))

    def run(self) -> None:
        """Run until the head is killed, or no replica has the GCS's state any more."""
        process = self.process
        process.turns.run_rounds()
        while not process.stopped:
            process.step(None)
            for lost in filter(None, (master.lost for master in self.masters.of_chains)):
                log.error("%s", lost)
                process.stop(lost)


def replicated_head(
    settings: HeadSettings,
    listener: socket.socket,
    spawner: socket.socket,
    of_replicas: Sequence[socket.socket],
) -> ReplicatedHead:
    """Return a head whose replicas are processes, which the zygote forks.

    `of_replicas`: the sockets on which those of `settings.replicas` listen.
    """

    def add_launcher(process: ComponentProcess) -> None:
        sockets = dict(zip(settings.replicas, of_replicas, strict=True))
        launcher = Launcher(settings, listener.getsockname()[:2], spawner, sockets)
        process.add(LAUNCHER, launcher)

    return ReplicatedHead(settings, listener, spawner, add_launcher)


class Launcher:
    """``launcher``: has the zygote fork and kill replicas."""

    def __init__(
        self,
        settings: HeadSettings,
        head: tuple[str, int],
        spawner: socket.socket,
        sockets: dict[str, socket.socket],
    ) -> None:
        """`sockets`: those on which replicas listen, by name; any other one makes its own."""
        self._settings = settings
        self._head = head
        self._spawner = spawner
        self._sockets = sockets

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, StopReplica):
            send_packet(self._spawner, ["kill", message.name, int(signal.SIGKILL)])
            return
        if not isinstance(message, StartReplica):
            raise TypeError(f"the launcher was sent {type(message).__name__}")
        settings = ReplicaSettings(
            message.name,
            self._settings.config,
            self._settings.token,
            self._head,
            self._head[0],
            self._settings.journal,
            self._settings.replicas.get(message.name, {}),
        )
        packet = ["spawn", "replica", message.name, msgspec.msgpack.encode(settings)]
        sock = self._sockets.pop(message.name, None)
        if sock is None:
            send_packet(self._spawner, packet)
        else:
            with sock:  # which nobody would accept from when the replica has ended
                send_packet(self._spawner, packet, (sock.fileno(),))

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""
