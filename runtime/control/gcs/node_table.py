"""The GCS's node table: which nodes are members of the cluster, and which have failed.

::

    RegisterNode ──> ALIVE ──NodeUnreachable, or heartbeat timeout──> DEAD
                       ↑                                              │
                       └─────RegisterNode with a later incarnation────┘

A node sends a heartbeat every ``heartbeat_s``; the failure detector suspects a node that is
silent for ``heartbeat_timeout_s``. With the defaults that is 50 missed heartbeats; on a busy
machine a heartbeat is late by a few scheduling quanta only.

The GCS declares a suspected incarnation dead, which is final and fences it. If the node was merely
slow, the answer to its next heartbeat makes it leave; the GCS ignores its other messages.
"""

from __future__ import annotations

from collections.abc import Callable

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.gcs.event_log import Log
from raytwin.runtime.control.gcs.pubsub import PubSub
from raytwin.runtime.control.messages import (
    Heartbeat,
    LoadChanged,
    NodeChanged,
    NodeInfo,
    NodeUnreachable,
    Registered,
    RegisterNode,
)


class FailureDetector:
    """The times at which the GCS last heard from each node."""

    def __init__(self, timeout_s: float) -> None:
        if not timeout_s > 0:
            raise ValueError(f"a heartbeat timeout of {timeout_s} s")
        self.timeout_s = timeout_s
        self._heard: dict[int, float] = {}

    def heard(self, node: int, now: float) -> None:
        """Note a sign of life."""
        self._heard[node] = now

    def extend_timeouts(self, stall_s: float) -> None:
        """Extend every node's timeout by a delay of the GCS itself."""
        for node in self._heard:
            self._heard[node] += stall_s

    def forget(self, node: int) -> None:
        """Stop watching a node."""
        self._heard.pop(node, None)

    def suspects(self, now: float) -> list[int]:
        """Return the nodes whose silence is longer than the timeout."""
        return [n for n, heard in self._heard.items() if now - heard > self.timeout_s]


class NodeTable:
    """Every node that ever joined, by number; publishes each change on channel ``nodes``."""

    def __init__(
        self,
        ctx: Context,
        config: Config,
        pubsub: PubSub,
        log: Log,
        on_died: Callable[[NodeInfo], None],
    ) -> None:
        """`on_died` is called after a node was declared dead and the change was published."""
        self._ctx = ctx
        self._config = config
        self._pubsub = pubsub
        self._log = log
        self._on_died = on_died
        self.rows: dict[int, NodeInfo] = {}
        self.alive: set[int] = set()
        """The numbers of living nodes."""
        self.detector = FailureDetector(config.heartbeat_timeout_s)
        self._checked_s = 0.0

    def start(self) -> None:
        """Begin to watch the nodes."""
        self._checked_s = self._ctx.now()
        self._ctx.after(self._config.heartbeat_s, self._check)

    def on_register(self, source: str, message: RegisterNode) -> None:
        """Add a node, or a later incarnation of one; refuse an incarnation that is dead."""
        info = message.info
        known = self.rows.get(info.node)
        incarnation = info.incarnation
        if known is not None:
            if incarnation <= known.incarnation:
                self._ctx.send(source, NodeChanged(known))
                return
            self.declare_dead(info.node, "another process took its place")
        info = NodeInfo(
            info.node, info.host, info.port, info.resources, alive=True, incarnation=incarnation
        )
        self.rows[info.node] = info
        self.alive.add(info.node)
        self.detector.heard(info.node, self._ctx.now())
        self._ctx.send(source, Registered(incarnation, list(self.rows.values())))
        self._pubsub.publish("nodes", NodeChanged(info), but=source)
        self._pubsub.subscribe("nodes", source)
        self._pubsub.subscribe("jobs", source)
        self._log("node_added", source)

    def on_heartbeat(self, source: str, message: Heartbeat) -> None:
        """Note a sign of life and pass the load on; fence an incarnation that is dead."""
        info = self.rows.get(message.node)
        if info is None or not info.alive or info.incarnation != message.incarnation:
            if info is not None:
                self._ctx.send(source, NodeChanged(info))
            return
        self.detector.heard(message.node, self._ctx.now())
        self._ctx.send("global", LoadChanged(message.node, message.load))

    def on_unreachable(self, source: str, message: NodeUnreachable) -> None:
        """Declare a node dead whose connection has ended."""
        known = self.rows.get(message.node)
        if message.incarnation and known is not None and known.incarnation > message.incarnation:
            return  # a later incarnation has registered already
        self.declare_dead(message.node, message.reason)

    def _check(self) -> None:
        now = self._ctx.now()
        late_s = now - self._checked_s - self._config.heartbeat_s
        self._checked_s = now
        if late_s > self._config.heartbeat_s:
            self.detector.extend_timeouts(late_s)
        for node in self.detector.suspects(now):
            self.declare_dead(node, f"no heartbeat for {self.detector.timeout_s:g} s")
        self._ctx.after(self._config.heartbeat_s, self._check)

    def declare_dead(self, node: int, reason: str) -> None:
        """Fence a living node's incarnation, and publish its death."""
        info = self.rows.get(node)
        if info is None or not info.alive:
            return
        info = NodeInfo(node, info.host, info.port, info.resources, False, info.incarnation, reason)
        self.rows[node] = info
        self.alive.discard(node)
        self.detector.forget(node)
        self._log("node_died", f"node:{node}", reason)
        # The dead node is notified as well: it may only be cut off.
        self._pubsub.publish("nodes", NodeChanged(info))
        self._pubsub.drop(f"node:{node}")
        self._on_died(info)
