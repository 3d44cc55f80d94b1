"""A process's connections to nodes in virtual time: it accepts no frame of a dead incarnation.

The counterpart of `links` in the real processes. Here a frame needs no connection: a process
refuses the frames of an incarnation once `NodeChanged` has reported its death.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raytwin.runtime.control.messages import NodeChanged, NodeInfo
from raytwin.simulator.machine.simulated_process import SimProcess


class SimLinks:
    """``links`` of the head, ``links:<n>`` of a node."""

    def __init__(
        self,
        process: SimProcess,
        drop_peer: Callable[[int], None] | None = None,
        on_change: Callable[[int, bool], None] | None = None,
        known: dict[int, NodeInfo] | None = None,
    ) -> None:
        """`known`: each node's last change that `on_change` has received, also from an earlier
        process."""
        self._process = process
        self._known = {} if known is None else known
        self._drop_peer = drop_peer
        self._on_change = on_change

    def handle(self, source: str, message: Any) -> None:
        if not isinstance(message, NodeChanged):
            raise TypeError(f"connections were sent {type(message).__name__}")
        info = message.info
        last_dead = info.incarnation - 1 if info.alive else info.incarnation
        if last_dead and info.node != self._process.node:
            self._process.refused[f"node:{info.node}"] = last_dead
        if not info.alive and self._drop_peer is not None:
            self._drop_peer(info.node)
        if self._on_change is not None and self._known.get(info.node) != info:
            self._known[info.node] = info
            self._on_change(info.node, info.alive)

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""
