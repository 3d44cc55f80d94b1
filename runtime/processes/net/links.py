"""A process's connections to nodes: it accepts no frame of a dead incarnation.

The connecting side states its node's incarnation in the handshake (see `auth`).
A node that hangs, or is cut off, may be declared dead while its connections are
open, and continue later without knowing. So a process that receives `NodeChanged`
closes the connections of incarnations that are over, and refuses them from then on:
the node is fenced, and its messages to the GCS and to other nodes are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.membership import refusal
from raytwin.runtime.control.messages import NodeChanged, NodeInfo
from raytwin.runtime.processes.net.connection import Connection


class Links:
    """``links`` or ``links:<n>``: the connections whose node is known."""

    def __init__(
        self,
        info_of: Callable[[int], NodeInfo | None],
        notify_fenced: Callable[[Connection, str, NodeInfo], None] | None = None,
        on_death: Callable[[int], None] | None = None,
    ) -> None:
        """`notify_fenced` is called before a fenced node's connection closes, `on_death` with
        the number of a node that has died."""
        self._info_of = info_of
        self._notify_fenced = notify_fenced
        self._on_death = on_death
        self._open: dict[Connection, None] = {}

    def bind(self, connection: Connection, peer: str) -> bool:
        """Bind a connection to the node that its first frame names.

        Returns False, and refuses the connection, if that incarnation is over.
        """
        node = node_of(peer)
        info = self._info_of(node)
        reason = refusal(info, node, connection.incarnation)
        if reason:
            if self._notify_fenced is not None and info is not None:
                self._notify_fenced(connection, peer, info)
            connection.refuse(reason)
            return False
        connection.bound = True
        connection.peer = peer
        self._open[connection] = None
        return True

    def discard(self, connection: Connection) -> None:
        """Forget a connection that was closed."""
        self._open.pop(connection, None)

    def handle(self, source: str, message: Any) -> None:
        """Close the connections of an incarnation that is over."""
        if not isinstance(message, NodeChanged):
            raise TypeError(f"connections were sent {type(message).__name__}")
        info = message.info
        for connection in list(self._open):
            if node_of(connection.peer) == info.node:
                reason = refusal(info, info.node, connection.incarnation)
                if reason:
                    if self._notify_fenced is not None:
                        self._notify_fenced(connection, connection.peer, info)
                    connection.close(reason)
        if self._on_death is not None and not info.alive:
            self._on_death(info.node)

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""
