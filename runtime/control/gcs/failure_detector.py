"""``health``: the failure detector in the head, which hears the heartbeats of all nodes.

A node sends a heartbeat every ``heartbeat_s``; the detector suspects a node that is silent for
``heartbeat_timeout_s``, and reports it to the GCS, which declares it dead. With the defaults that
is 50 missed heartbeats; on a busy machine a heartbeat is late by a few scheduling quanta only.

Heartbeats come over connections of their own, so that no bulk data delays them, and may be lost.
The detector answers those that ask for it: a node that hears no answer for ``Config.fence_s``
leaves (`node.heartbeats`). It is no part of the GCS, whose commands are logged and replicated:
a sign of life is neither worth that nor valid in another process.
"""

from __future__ import annotations

from typing import Any

from raytwin.runtime.control.core.addresses import MASTER, node_tables
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import (
    Heartbeat,
    HeartbeatEcho,
    LoadChanged,
    NodeChanged,
    NodeInfo,
    NodeUnreachable,
)


class FailureDetector:
    """Component ``health``. A node is watched from `NodeChanged` on, until it is dead."""

    def __init__(self, ctx: Context, config: Config) -> None:
        self._ctx = ctx
        self._config = config
        self._tables = node_tables(config.chained, config.chains)
        self._scheduler = MASTER if config.chained else "global"
        self._nodes: dict[int, NodeInfo] = {}
        self._heard_s: dict[int, float] = {}
        """When the detector last heard from each living node."""
        self._checked_s = 0.0

    def start(self) -> None:
        """Begin to look for silent nodes."""
        self._checked_s = self._ctx.now()
        self._ctx.after(self._config.heartbeat_s, self._check)

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, Heartbeat):
            self._on_heartbeat(source, message)
        else:
            assert isinstance(message, NodeChanged), (
                f"the failure detector was sent {type(message).__name__}"
            )
            self._on_node_changed(message.info)

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    def _on_heartbeat(self, source: str, message: Heartbeat) -> None:
        info = self._nodes.get(message.node)
        if info is not None and info.incarnation < message.incarnation:
            info = None  # the registration is on its way
        if info is not None and (not info.alive or info.incarnation > message.incarnation):
            self._ctx.send(source, NodeChanged(info))
            return
        if message.sent_s >= 0:
            self._ctx.send(source, HeartbeatEcho(message.sent_s))
        if info is not None:
            self._heard_s[message.node] = self._ctx.now()
            self._ctx.send(self._scheduler, LoadChanged(message.node, message.load))

    def _on_node_changed(self, info: NodeInfo) -> None:
        self._nodes[info.node] = info
        if info.alive:
            self._heard_s[info.node] = self._ctx.now()
        else:
            self._heard_s.pop(info.node, None)

    def _check(self) -> None:
        now = self._ctx.now()
        late_s = now - self._checked_s - self._config.heartbeat_s
        self._checked_s = now
        if late_s > self._config.heartbeat_s:
            # The head itself was delayed for so long: it extends every timeout.
            self._heard_s = {node: heard + late_s for node, heard in self._heard_s.items()}
        timeout_s = self._config.heartbeat_timeout_s
        for node in [n for n, heard_s in self._heard_s.items() if now - heard_s > timeout_s]:
            del self._heard_s[node]
            silent = NodeUnreachable(
                node, f"no heartbeat for {timeout_s:g} s", self._nodes[node].incarnation
            )
            for tables in self._tables:
                self._ctx.send(tables, silent)
        self._ctx.after(self._config.heartbeat_s, self._check)
