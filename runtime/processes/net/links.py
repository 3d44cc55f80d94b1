"""A process's connections to nodes: nothing is taken from the dead.

The connecting side states its node's incarnation in the handshake (see `auth`).
A node that hangs, or is cut off, may be declared dead while its connections are
open, and go on later without knowing. So connections of incarnations that are
over are closed when the news come, and refused from then on: whatever such a
node still says, to the GCS or to another node, is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.membership import refusal
from raytwin.runtime.control.messages import NodeChanged, NodeInfo
from raytwin.runtime.processes.net.connection import Connection


class Links:
    """Knows every connection whose node is known; is ``links`` or ``links:<n>``."""

    def __init__(
        self,
        info_of: Callable[[int], NodeInfo | None],
        tell: Callable[[Connection, str, NodeInfo], None] | None = None,
    ) -> None:
        """`tell` lets a node know, before it is refused, that it is over."""
        self._info_of = info_of
        self._tell = tell
        self._open: dict[Connection, None] = {}

    def bind(self, connection: Connection, peer: str) -> bool:
        """A frame says who the peer is; return whether it may speak, else refuse it."""
        node = node_of(peer)
        info = self._info_of(node)
        reason = refusal(info, node, connection.incarnation)
        if reason:
            if self._tell is not None and info is not None:
                self._tell(connection, peer, info)
            connection.refuse(reason)
            return False
        connection.bound = True
        connection.peer = peer
        self._open[connection] = None
        return True

    def discard(self, connection: Connection) -> None:
        """A connection was closed."""
        self._open.pop(connection, None)

    def handle(self, source: str, message: Any) -> None:
        """Close what belongs to incarnations that are over."""
        if not isinstance(message, NodeChanged):
            raise TypeError(f"connections were sent {type(message).__name__}")
        info = message.info
        for connection in list(self._open):
            if node_of(connection.peer) == info.node:
                reason = refusal(info, info.node, connection.incarnation)
                if reason:
                    if self._tell is not None:
                        self._tell(connection, connection.peer, info)
                    connection.close(reason)

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""
