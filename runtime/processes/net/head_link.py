"""The connection of a node or replica with the head; a node redials a restarted head."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from raytwin.runtime.control.messages import Frame
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import Connection, DialedConnection, log
from raytwin.runtime.processes.net.process_settings import HEAD_RETRY_S, HEAD_RETURN_S


class HeadLink:
    """Keeps the routes to the head's components; ends the process if there is no head."""

    def __init__(
        self,
        process: ComponentProcess,
        head: tuple[str, int],
        token: bytes,
        components: Collection[str],
        on_frame: Callable[[Connection, Frame], None],
        introduce: Callable[[], None] | None = None,
        own_incarnation: int = 1,
    ) -> None:
        """Connect with the head.

        `components`: the addresses of its components. `own_incarnation`: this node's.
        `introduce` is called after each attempt to connect with a restarted head, and
        announces this process to it; None if a killed head is not restarted.
        """
        self._process = process
        self._head = head
        self._token = token
        self._components = components
        self._on_frame = on_frame
        self._introduce = introduce
        self._own_incarnation = own_incarnation
        self._disconnected_since_s = 0.0
        """When the connection was lost; 0 while there is one."""
        self._dial()

    def _dial(self) -> None:
        head = DialedConnection(
            self._process.reactor,
            self._head,
            self._token,
            self._on_any_frame,
            self._on_lost,
            "head",
            own_incarnation=self._own_incarnation,
        )
        for address in self._components:
            self._process.routes[address] = head

    def _on_any_frame(self, connection: Connection, frame: Frame) -> None:
        self._disconnected_since_s = 0.0
        self._on_frame(connection, frame)

    def _on_lost(self, connection: Connection, reason: str) -> None:
        now_s = time.monotonic()
        self._disconnected_since_s = self._disconnected_since_s or now_s
        if self._introduce is None or now_s - self._disconnected_since_s > HEAD_RETURN_S:
            log.warning("the head is gone: %s", reason)
            self._process.stop("the head is gone")
            return
        self._process.reactor.after(HEAD_RETRY_S, self._redial)

    def _redial(self) -> None:
        """Try to connect with a restarted head."""
        assert self._introduce is not None
        self._dial()
        self._introduce()
