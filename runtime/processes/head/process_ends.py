"""The ends of nodes and replicas, as the zygote reports them to the head.

A process whose parent has reaped it is dead for certain, while a broken connection proves nothing.
"""

from __future__ import annotations

import socket

from raytwin.runtime.control.channels.peers import Peers
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.packets import receive_packet
from raytwin.runtime.processes.net.reactor import READ


class ProcessEnds:
    """Reads the zygote's reports."""

    def __init__(
        self,
        process: ComponentProcess,
        spawner: socket.socket,
        peers: Peers,
    ) -> None:
        self._process = process
        self._spawner = spawner
        self._peers = peers
        process.reactor.add(spawner.fileno(), READ, self._on_ready)

    def _on_ready(self, mask: int) -> None:
        packet = receive_packet(self._spawner)
        if packet is None:
            self._process.stop("the zygote is gone")
            return
        kind, name, detail, *started = packet[0]
        if kind != "exited":
            return
        self._peers.on_ended(name, detail, *started)
