"""A process's connection with the head; with the next one, when the head was killed and returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from raytwin.runtime.control.messages import Frame
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import Connection, DialedConnection, log
from raytwin.runtime.processes.net.process_settings import HEAD_AWAY_S, HEAD_PAUSE_S


class HeadLink:
    """Keeps the routes to what is in the head's process; without a head the process ends."""

    def __init__(
        self,
        process: ComponentProcess,
        head: tuple[str, int],
        token: bytes,
        inside: Collection[str],
        on_frame: Callable[[Connection, Frame], None],
        on_return: Callable[[], None],
        returns: bool = True,
        mine: int = 1,
    ) -> None:
        """Dial it. `inside`: the addresses of what is there. `mine`: this node's incarnation.

        `on_return` is called when another head is dialed, which does not know who this is;
        unless it `returns` there is no other one.
        """
        self._process = process
        self._head = head
        self._token = token
        self._inside = inside
        self._on_frame = on_frame
        self._on_return = on_return
        self._returns = returns
        self._mine = mine
        self._away_since_s = 0.0
        """0: it is not."""
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
        if not self._returns or now_s - self._away_since_s > HEAD_AWAY_S:
            log.warning("the head is gone: %s", reason)
            self._process.stop("the head is gone")
            return
        self._process.reactor.after(HEAD_PAUSE_S, self._return)

    def _return(self) -> None:
        """Connect with the one that may have taken its place."""
        self._dial()
        self._on_return()
