"""``heartbeat:<n>``: sends a node's heartbeats to the head, and fences a node that nobody hears.

The node manager hands over a heartbeat in each period. About five times within the failure
detector's limit it asks for an echo. If no heartbeat of the last ``Config.fence_s`` was echoed, the
head does not hear this node, or this node does not hear the head: the cluster goes on without it,
and the node manager is told so, as if the GCS had said it.
"""

from __future__ import annotations

from math import inf
from typing import Any

from raytwin.runtime.control.core.addresses import HEALTH
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import Heartbeat, HeartbeatEcho, NodeChanged, NodeInfo

ECHOES = 5
"""How often a node asks for an echo within the failure detector's limit."""


class Heartbeats:
    """Component ``heartbeat:<n>`` of a node."""

    def __init__(self, ctx: Context, node: int, incarnation: int, config: Config) -> None:
        self._ctx = ctx
        self._node = node
        self._incarnation = incarnation
        self._config = config
        self._sent_s = -1.0
        """When the last heartbeat was sent."""
        self._asked_s = -inf
        """When the last one was sent that asks for an echo."""
        self._echoed_s = 0.0
        """When the last one was sent that was echoed; the first heartbeat counts as such."""

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, Heartbeat):
            self._send(message)
        elif isinstance(message, HeartbeatEcho):
            self._echoed_s = max(self._echoed_s, message.sent_s)
        else:
            assert isinstance(message, NodeChanged), (
                f"heartbeats were sent {type(message).__name__}"
            )
            self._ctx.send(f"node:{self._node}", message)

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    def _send(self, message: Heartbeat) -> None:
        now = self._ctx.now()
        if self._sent_s < 0:
            self._echoed_s = self._sent_s = now
        # This node itself may have been delayed, and not the echo.
        late_s = now - self._sent_s - self._config.heartbeat_s
        if late_s > self._config.heartbeat_s:
            self._echoed_s += late_s
        self._sent_s = now
        if now - self._asked_s >= self._config.heartbeat_timeout_s / ECHOES:
            self._asked_s = message.sent_s = now
        self._ctx.send(HEALTH, message)
        silent_s = now - self._echoed_s
        if silent_s > self._config.fence_s:
            reason = f"the head has not answered for {silent_s:.1f} s"
            dead = NodeInfo(
                self._node, "", 0, {}, alive=False, incarnation=self._incarnation, reason=reason
            )
            self._ctx.send(f"node:{self._node}", NodeChanged(dead))
