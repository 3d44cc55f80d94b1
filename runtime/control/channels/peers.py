"""All channels of one process: `Peers` opens and closes them, and reports silent peers.

A process opens a channel when it has a frame for a peer, or when the peer greets. It closes the
channel when the GCS publishes that the peer's incarnation is over, and refuses the Hello of that
incarnation from then on. A node that hangs, or is cut off, may be declared dead while it lives, and
continue later without knowing: so it is fenced, and its frames reach nobody.

A peer is *unreachable* when it has been silent for the limit, and has *ended* when its parent has
reaped it. What follows::

    here       unreachable head   node                       replica of the GCS
    head       -                  NodeUnreachable to the     closed; ReplicaSuspected to its
                                  tables of nodes            chain's master
    node       it leaves          NodeUnreachable to itself  closed; ReplicaLost to itself
    replica    it leaves          closed; NodeUnreachable    closed; ReplicaLost to itself
                                  to itself

Between nodes the GCS decides which of the two leaves, so their channel stays until then. A channel
with a replica is closed at once: clients of a chain repeat what was lost, and outputs are numbered.

`Peers` is also the component ``links`` of the head, and ``links:<n>`` of a node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from raytwin.runtime.control.channels.channel import Channel, Dials, Hello, Link, Me
from raytwin.runtime.control.core.addresses import (
    HEAD,
    HEALTH,
    chain_of,
    is_node,
    is_replica,
    master_of,
    node_of,
    node_tables,
)
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.membership import refusal
from raytwin.runtime.control.messages import (
    NodeChanged,
    NodeInfo,
    NodeUnreachable,
    ReplicaLost,
    ReplicaSuspected,
)


def dials(me: str, peer: str) -> Dials:
    """Return when a process dials a peer: only nodes know where nodes listen, and nobody but the
    head's children where the head does."""
    if peer == HEAD or (is_node(me) and is_replica(peer)):
        return Dials.ALWAYS
    if me != HEAD and is_node(me) == is_node(peer):
        return Dials.WHEN_NEEDED
    return Dials.NEVER


class Network(Protocol):
    """The operations of a process's world that its channels use."""

    def dial(self, channel: Channel) -> Link | None:
        """Begin to connect with the channel's peer; None if it has no address now."""

    def deliver(self, to: str, message: Any) -> None:
        """Hand a message to a component of this process."""

    def leave(self, reason: str) -> None:
        """End this process: it has lost the head."""

    def on_new_head(self) -> None:
        """Another head has greeted than before."""

    def on_node_changed(self, info: NodeInfo) -> None:
        """A node has joined or is dead; the channel of an incarnation that is over is closed."""

    def new_session(self) -> int:
        """Return a number that no other end of a channel has, in any process, now or before."""


class Peers:
    """All channels of a process, by peer."""

    def __init__(
        self,
        ctx: Context,
        me: Me,
        config: Config,
        network: Network,
        info_of: Callable[[int], NodeInfo | None],
    ) -> None:
        """`info_of` returns a node's row as it was published."""
        self._ctx = ctx
        self._me = me
        self._config = config
        self._network = network
        self._info_of = info_of
        self.channels: dict[str, Channel] = {}

    def channel(self, peer: str) -> Channel | None:
        """Return the channel with a peer; None for a node that is not known to live."""
        found = self.channels.get(peer)
        if found is not None:
            return found
        incarnation = 1
        if is_node(peer) and dials(self._me.name, peer) is not Dials.NEVER:
            info = self._info_of(node_of(peer))
            if info is None or not info.alive:
                return None
            incarnation = info.incarnation
        return self._open(peer, incarnation)

    def _open(self, peer: str, incarnation: int) -> Channel:
        network, config = self._network, self._config
        # A head that was slow, or comes back, finds its nodes alive.
        limit_s = config.fence_s if peer == HEAD else config.heartbeat_timeout_s
        made = self.channels[peer] = Channel(
            self._ctx, self._me, network.new_session(), peer, config.stall_s, limit_s,
            dials(self._me.name, peer), network.dial, self._on_unreachable,
            self._on_new_session,
        )  # fmt: skip
        made.incarnation = incarnation
        made.start()
        return made

    def admit(self, link: Link, hello: Hello) -> Channel | None:
        """Return the channel for a link that a peer has dialed; close the link of a node that was
        declared dead.

        The caller has the channel take the Hello.
        """
        if is_node(hello.name):
            node = node_of(hello.name)
            reason = refusal(self._info_of(node), node, hello.incarnation)
            if reason:
                link.close(reason)
                return None
        return self.channels.get(hello.name) or self._open(hello.name, hello.incarnation)

    # -- the component -----------------------------------------------------------

    def handle(self, source: str, message: Any) -> None:
        """Close the channel with an incarnation that is over."""
        if not isinstance(message, NodeChanged):
            raise TypeError(f"connections were sent {type(message).__name__}")
        info = message.info
        name = f"node:{info.node}"
        channel = self.channels.get(name)
        if channel is not None:
            reason = refusal(info, info.node, channel.incarnation)
            if reason:
                self.close(name, reason)
        if self._me.name == HEAD:
            self._network.deliver(HEALTH, message)
        self._network.on_node_changed(info)

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""

    # -- what becomes of peers -----------------------------------------------------

    def on_ended(self, name: str, reason: str, incarnation: int = 1) -> None:
        """The parent of a node or a replica has reaped it, and tells the head."""
        if is_node(name):
            reason = f"its process has ended: {reason}"
            self._report_node(NodeUnreachable(node_of(name), reason, incarnation))
        else:
            self.close(name, reason)
            self._network.deliver(master_of(chain_of(name)), ReplicaLost(name, reason))

    def _report_node(self, message: NodeUnreachable) -> None:
        for tables in node_tables(self._config.chained, self._config.chains):
            self._network.deliver(tables, message)

    def _on_unreachable(self, channel: Channel, reason: str) -> None:
        peer, me = channel.peer, self._me.name
        if peer == HEAD:
            self._network.leave(reason)
        elif is_node(peer):
            message = NodeUnreachable(node_of(peer), reason, channel.incarnation)
            if me == HEAD:
                self._report_node(message)
                return
            if not is_node(me):
                self.close(peer, reason)
            self._network.deliver(me, message)
        else:
            self.close(peer, reason)
            if me == HEAD:
                self._network.deliver(master_of(chain_of(peer)), ReplicaSuspected(peer, reason))
            else:
                self._network.deliver(me, ReplicaLost(peer, reason))

    def _on_new_session(self, channel: Channel) -> None:
        """A peer's process has ended, and another one of its name has greeted."""
        if channel.peer == HEAD:
            self._network.on_new_head()
        elif is_replica(channel.peer):
            self._on_unreachable(channel, "it has given up this process")

    def close(self, peer: str, reason: str) -> None:
        """Close the channel with a peer that is dead, if there is one."""
        channel = self.channels.pop(peer, None)
        if channel is not None:
            channel.close(reason)
