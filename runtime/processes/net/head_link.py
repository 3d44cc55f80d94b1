"""A node's or replica's connection with the head, and a node's with the next head."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from raytwin.runtime.control.messages import Frame
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import Connection, DialedConnection, log
from raytwin.runtime.processes.net.process_settings import HEAD_AWAY_S, HEAD_PAUSE_S


class HeadLink:
    """Keeps the routes to the head's components; ends the process if there is no head."""

    def __init__(
        self,
        process: ComponentProcess,
        head: tuple[str, int],
        token: bytes,
        inside: Collection[str],
        on_frame: Callable[[Connection, Frame], None],
        on_return: Callable[[], None] | None = None,
        mine: int = 1,
    ) -> None:
        """Connect with the head.

        `inside`: the addresses of its components. `mine`: this node's incarnation. `on_return`:
        called after each attempt to connect with a head that was started again, so that this
        process introduces itself; None: a killed head is not started again.
        """
        self._process = process
        self._head = head
        self._token = token
        self._inside = inside
        self._on_frame = on_frame
        self._on_return = on_return
        self._mine = mine
        self._away_since_s = 0.0
        """Since when there is no connection; 0 if there is one."""
        self._dial()

    def _dial(self) -> None:
        head = DialedConnection(
            self._process.reactor,
            self._head,
            self._token,
            self._on_any_frame,
            self._on_lost,
            "head",
            mine=self._mine,
        )
        for address in self._inside:
            self._process.routes[address] = head

    def _on_any_frame(self, connection: Connection, frame: Frame) -> None:
        self._away_since_s = 0.0
        self._on_frame(connection, frame)

    def _on_lost(self, connection: Connection, reason: str) -> None:
        now_s = time.monotonic()
        self._away_since_s = self._away_since_s or now_s
        if self._on_return is None or now_s - self._away_since_s > HEAD_AWAY_S:
            log.warning("the head is gone: %s", reason)
            self._process.stop("the head is gone")
            return
        self._process.reactor.after(HEAD_PAUSE_S, self._return)

    def _return(self) -> None:
        """Try to connect with a new head."""
        assert self._on_return is not None
        self._dial()
        self._on_return()
