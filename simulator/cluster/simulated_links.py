"""``links`` and ``links:<n>``: passes changes of the node table on to a process's channels.

The counterpart of `processes/net/channels`, whose sockets are `machine/simulated_channels` here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raytwin.runtime.control.messages import NodeChanged, NodeInfo
from raytwin.simulator.machine.simulated_process import SimProcess


class SimLinks:
    """``links`` of the head, ``links:<n>`` of a node."""

    def __init__(self, process: SimProcess, on_change: Callable[[NodeInfo], None]) -> None:
        """`on_change` is called after the channel of an incarnation that is over was closed."""
        self._process = process
        self._on_change = on_change

    def handle(self, source: str, message: Any) -> None:
        if not isinstance(message, NodeChanged):
            raise TypeError(f"connections were sent {type(message).__name__}")
        self._process.channels.peers.on_node_changed(message.info)
        self._on_change(message.info)

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""
