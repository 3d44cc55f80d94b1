"""The ends of nodes and replicas, as the zygote reports them to the head.

A process whose parent has reaped it is dead for certain, while a broken connection proves nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from raytwin.runtime.control.core.addresses import is_node, node_of
from raytwin.runtime.control.messages import NodeUnreachable
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.packets import receive_packet
from raytwin.runtime.processes.net.reactor import READ


class ProcessEnds:
    """Reads the zygote's reports."""

    def __init__(
        self,
        process: ComponentProcess,
        spawner: socket.socket,
        on_node: Callable[[NodeUnreachable], None],
        on_replica: Callable[[str, str], None] | None = None,
    ) -> None:
        """`on_replica` is called with the name of a replica and the reason of its end."""
        self._process = process
        self._spawner = spawner
        self._on_node = on_node
        self._on_replica = on_replica
        process.reactor.add(spawner.fileno(), READ, self._on_ready)

    def _on_ready(self, mask: int) -> None:
        packet = receive_packet(self._spawner)
        if packet is None:
            self._process.stop("the zygote is gone")
            return
        kind, name, detail, *started = packet[0]
        if kind != "exited":
            return
        if is_node(name):
            (incarnation,) = started
            reason = f"its process has ended: {detail}"
            self._on_node(NodeUnreachable(node_of(name), reason, incarnation))
        elif self._on_replica is not None:
            self._on_replica(name, detail)
