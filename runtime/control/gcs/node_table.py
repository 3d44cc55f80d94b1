"""The GCS's node table: which nodes are members of the cluster, and which have failed.

::

    RegisterNode ──> ALIVE ──NodeUnreachable, or a pair is cut off──> DEAD
                       ↑                                              │
                       └─────RegisterNode with a later incarnation────┘

The failure detector reports a node whose heartbeats stay out, and the world one whose process has
ended. A dead incarnation stays dead, and everybody refuses its frames: it is fenced. If the node
was merely slow, or cut off, it leaves when it hears of this. An incarnation may be dead before it
registers: the chains of the GCS have ended its sessions, so it must not join.

Two nodes may both reach the head and not one another. `PeerUnreachable` says so, and one of the
pair has to leave, because each may wait for the other forever. The reports of `PAIR_PERIODS`
heartbeats are judged together: a node that cannot reach several others leaves before any of
these. Of a single pair the later node leaves; node 0, which has the first driver, never does.

Nodes that register in one turn are published together: each of them gets the node table, and each
node that was there before gets all who have joined, in one message; so N nodes that start together
cause O(N) messages. Whatever the GCS does next, in the same turn too, finds them published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.gcs.event_log import Log
from raytwin.runtime.control.gcs.pubsub import PubSub
from raytwin.runtime.control.messages import (
    NodeChanged,
    NodeInfo,
    NodesJoined,
    NodeUnreachable,
    PeerUnreachable,
    Registered,
    RegisterNode,
)

PAIR_PERIODS = 5
"""Heartbeat periods for which the GCS collects reports of pairs before it judges them."""


class NodeTable:
    """Every node that ever joined, by number.

    It publishes each change on channel ``nodes``, for what is in the head and for shards; on
    channel ``members``, for nodes, it publishes each death, and together those who have joined.
    """

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
        self._pairs: dict[tuple[int, int], str] = {}
        """Pairs of nodes, the lesser first, of which one cannot reach the other, and the reason."""
        self._judging = False
        self._joined: list[NodeInfo] = []
        """Nodes that have registered in this turn and are not published yet."""

    def on_register(self, source: str, message: RegisterNode) -> None:
        """Add a node, or a later incarnation of one; refuse an incarnation that is dead."""
        info = message.info
        known = self.rows.get(info.node)
        incarnation = info.incarnation
        if known is not None:
            if incarnation <= known.incarnation:
                self.publish_joined()
                self._ctx.send(source, NodeChanged(known))
                return
            self.declare_dead(info.node, "another process took its place")
        info = NodeInfo(
            info.node, info.host, info.port, info.resources, alive=True, incarnation=incarnation
        )
        self.rows[info.node] = info
        self.alive.add(info.node)
        self._pairs = {p: why for p, why in self._pairs.items() if info.node not in p}
        self._joined.append(info)
        self._log("node_added", source)

    def publish_joined(self) -> None:
        """Publish the nodes that have registered since the last call, and subscribe them."""
        joined, self._joined = self._joined, []
        if not joined:
            return
        for info in joined:
            self._pubsub.publish("nodes", NodeChanged(info))
        self._pubsub.publish("members", NodesJoined(joined))
        rows = dict(self.rows)
        for info in joined:
            address = f"node:{info.node}"
            self._ctx.send(address, Registered(info.incarnation, rows))
            self._pubsub.subscribe("members", address)
            self._pubsub.subscribe("jobs", address)

    def on_unreachable(self, source: str, message: NodeUnreachable) -> None:
        """Declare a node dead whose process has ended, or whose heartbeats stay out."""
        node, incarnation, reason = message.node, message.incarnation, message.reason
        known = self.rows.get(node)
        if known is not None and known.incarnation > incarnation:
            return  # a later incarnation has registered already
        self.declare_dead(node, reason)
        if known is None or known.incarnation < incarnation:
            self._fence(NodeInfo(node, "", 0, {}, False, incarnation, reason))

    def on_peer_unreachable(self, source: str, message: PeerUnreachable) -> None:
        """Note a pair of nodes that is cut, unless one of them is dead; judge it a little later."""
        for node, incarnation in (
            (message.node, message.incarnation),
            (message.peer, message.peer_incarnation),
        ):
            if node not in self.alive or self.rows[node].incarnation != incarnation:
                return
        pair = (min(message.node, message.peer), max(message.node, message.peer))
        reason = f"node {message.node} cannot reach node {message.peer}: {message.reason}"
        self._pairs.setdefault(pair, reason)
        if not self._judging:
            self._judging = True
            self._ctx.after(PAIR_PERIODS * self._config.heartbeat_s, self._judge)

    def _judge(self) -> None:
        """Declare nodes dead until no pair of living nodes is left that is cut."""
        self._judging = False
        counts = Counter(node for pair in self._pairs for node in pair)
        while cut := [pair for pair in self._pairs if self.alive.issuperset(pair)]:
            among = {node for pair in cut for node in pair}
            worst = max(among, key=lambda node: (node > 0, counts[node], node))
            reason = next(self._pairs[pair] for pair in cut if worst in pair)
            self.declare_dead(worst, reason)
        # The dead of these pairs count further: they show which living node had lost many.
        self._pairs = {p: why for p, why in self._pairs.items() if not self.alive.isdisjoint(p)}

    def declare_dead(self, node: int, reason: str) -> None:
        """Fence a living node's incarnation, and publish its death."""
        info = self.rows.get(node)
        if info is None or not info.alive:
            return
        self._fence(
            NodeInfo(node, info.host, info.port, info.resources, False, info.incarnation, reason)
        )

    def _fence(self, info: NodeInfo) -> None:
        """Enter the row of a dead incarnation, and publish it."""
        self.publish_joined()
        self.rows[info.node] = info
        self.alive.discard(info.node)
        self._log("node_died", f"node:{info.node}", info.reason)
        self._pubsub.publish("nodes", NodeChanged(info))
        # The dead node is notified as well: it may only be cut off.
        self._pubsub.publish("members", NodeChanged(info))
        self._pubsub.drop(f"node:{info.node}")
        self._on_died(info)
