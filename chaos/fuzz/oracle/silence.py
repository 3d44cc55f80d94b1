"""Reports of silence, held against what has really arrived.

The failure detector reports a node, and a channel its peer, after a limit of silence. `Silence`
observes every heartbeat and every packet that arrives, and every report:

- a node is reported after no heartbeat of it has come for longer than the limit;
- a peer is reported after it has made no progress for longer than the limit (see
  `runtime.control.channels.channel`), while the channel kept a frame. No program has a channel keep
  as much as makes a peer unreachable by itself;
- a node is declared dead only if it was reported, or has itself reported another process.

A report of a process that has ended is right at any time, and so is that of a replica in whose
place, by its Hello, another process is.

At the end the channels between processes that reach each other keep no old frame, and each keeps
exactly the frames, and counts their bytes, of which no acknowledgement has arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Any

from raytwin.chaos.fuzz.oracle.findings import Finding, Kind
from raytwin.runtime.control.channels.channel import ACK_S, Channel, Hello
from raytwin.runtime.control.core.addresses import HEAD, HEALTH, is_node, node_of
from raytwin.runtime.control.core.turns import Received
from raytwin.runtime.control.messages import (
    Heartbeat,
    NodeUnreachable,
    ReplicaLost,
    ReplicaSuspected,
)

ROUNDING_S = 1e-6
UNACKNOWLEDGED_S = 2 * ACK_S
"""The age, at the end, of the oldest frame that may lack an acknowledgement, besides the time that
both need on their way."""


@dataclass
class End:
    """The frames that a channel has sent, and the progress of its peer."""

    channel: Channel
    sent_s: deque[float]
    """When each frame was sent that the peer has not acknowledged."""
    acknowledged: int
    progress_s: float = -inf
    link_bytes: int = 0
    """The peer has acknowledged so many bytes of the present link."""
    session: int = 0
    greeted: bool = False
    """Whether a Hello was progress, and the peer has made no other since."""

    def progress(self, now_s: float) -> None:
        self.progress_s = now_s
        self.greeted = False

    def acknowledge(self, number: int, now_s: float) -> None:
        if self.sent_s and number > self.acknowledged:
            while self.sent_s and number > self.acknowledged:
                self.sent_s.popleft()
                self.acknowledged += 1
            self.progress(now_s)

    def silent_s(self, now_s: float) -> float:
        """Return for how long the peer has owed an acknowledgement and shown no progress."""
        return now_s - max(self.progress_s, self.sent_s[0]) if self.sent_s else 0.0


class Silence:
    """Observes one simulated cluster; see `raytwin.simulator.machine.observer`."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._heard_s: dict[tuple[int, int], float] = {}
        """By node and incarnation: when it has joined, or when its last heartbeat has come."""
        self._ends: dict[tuple[str, str], End] = {}
        """By a process and its peer."""
        self._reported: set[tuple[int, int]] = set()
        """The nodes that were reported, or have reported another process."""
        self.found: list[Finding] = []
        for _, channel in self._channels():
            self._end(channel)
        cluster.observer = self
        cluster.on_turn.append(self._on_turn)
        cluster.on_membership.append(self._on_membership)

    @property
    def _now_s(self) -> float:
        now_s: float = self._cluster.env.now
        return now_s

    # -- heartbeats ----------------------------------------------------------------------

    def _on_turn(self, address: str, received: Received, sent: Mapping[str, Sequence[Any]]) -> None:
        if address != HEALTH:
            return
        for _, messages in received:
            for message in messages:
                if isinstance(message, Heartbeat):
                    self._heard_s[message.node, message.incarnation] = self._now_s
        for message in chain.from_iterable(sent.values()):
            if isinstance(message, NodeUnreachable):
                self._on_silent(message)

    def _on_silent(self, report: NodeUnreachable) -> None:
        key = report.node, report.incarnation
        self._reported.add(key)
        silent_s = self._now_s - self._heard_s.get(key, -inf)
        if not self._has_ended(f"node:{report.node}", report.incarnation):
            self._judge(f"node {report.node}", silent_s, self._cluster.config.heartbeat_timeout_s)

    def _on_membership(self, node: int, alive: bool) -> None:
        incarnation = self._cluster.known[node].incarnation
        if alive:
            self._heard_s[node, incarnation] = self._now_s
            return
        replaced = self._cluster.incarnations[node] > incarnation
        if not replaced and (node, incarnation) not in self._reported:
            self._find(f"node {node}, incarnation {incarnation}, is declared dead for no report")

    # -- channels ------------------------------------------------------------------------

    def _end(self, channel: Channel) -> End:
        key = channel._me.name, channel.peer
        end = self._ends.get(key)
        if end is None or end.channel is not channel:
            # The channel has sent these frames at a time that this observer does not know.
            kept = len(channel.kept)
            end = self._ends[key] = End(channel, deque([-inf] * kept), channel.sent - kept)
            end.session = channel._session
        return end

    def on_send(self, channel: Channel) -> None:
        self._end(channel).sent_s.append(self._now_s)

    def on_packet(self, channel: Channel, sequence: int, acknowledged: int, frame: Any) -> None:
        end = self._end(channel)
        end.acknowledge(acknowledged, self._now_s)
        if frame is not None:
            end.progress(self._now_s)
        elif sequence > end.link_bytes:
            end.link_bytes = sequence
            end.progress(self._now_s)

    def on_bytes(self, channel: Channel) -> None:
        self._end(channel).progress(self._now_s)

    def on_hello(self, channel: Channel, hello: Hello) -> None:
        end = self._end(channel)
        if end.session not in (0, hello.session):
            end.sent_s.clear()
            end.acknowledged, end.greeted = 0, False
        end.session, end.link_bytes = hello.session, 0
        if end.sent_s and not end.greeted:
            end.greeted, end.progress_s = True, self._now_s
        if hello.expected == channel._own_session:
            end.acknowledge(hello.received, self._now_s)

    def on_report(self, me: str, message: Any) -> None:
        if isinstance(message, NodeUnreachable):
            peer, incarnation = f"node:{message.node}", message.incarnation
            self._on_unreachable(me, peer, incarnation)
        elif isinstance(message, ReplicaLost | ReplicaSuspected):
            self._on_unreachable(me, message.name, 1)

    def on_leave(self, me: str) -> None:
        self._on_unreachable(me, HEAD, 1)

    def _on_unreachable(self, me: str, peer: str, incarnation: int) -> None:
        if is_node(peer):
            self._reported.add((node_of(peer), incarnation))
        if is_node(me):
            self._reported.add((node_of(me), self._cluster.incarnations[node_of(me)]))
        end = self._ends.get((me, peer))
        replaced = end is not None and end.session not in (0, end.channel._session)
        if self._has_ended(peer, incarnation) or replaced:
            return
        config = self._cluster.config
        limit_s = config.fence_s if peer == HEAD else config.heartbeat_timeout_s
        self._judge(f"{peer}, for {me},", end.silent_s(self._now_s) if end else 0.0, limit_s)

    def _has_ended(self, name: str, incarnation: int) -> bool:
        cluster = self._cluster
        if name == HEAD:
            return not cluster.head.alive
        if is_node(name) and cluster.incarnations[node_of(name)] != incarnation:
            return True
        return name not in cluster.processes

    def _judge(self, who: str, silent_s: float, limit_s: float) -> None:
        if silent_s <= limit_s - ROUNDING_S:
            self._find(f"{who} was silent for {silent_s:.6f} s, and the limit is {limit_s:g} s")

    def _find(self, text: str) -> None:
        if len(self.found) < 10:
            self.found.append(Finding(Kind.DEATHS, f"at {self._now_s:.6f} s {text}"))

    # -- at the end ----------------------------------------------------------------------

    def unacknowledged(self) -> list[Finding]:
        """Return the channels that keep what they should not, in a cluster that has settled."""
        found = []
        for process, channel in self._channels():
            end, name = self._end(channel), f"{process.name}'s channel with {channel.peer}"
            nbytes = sum(each.nbytes for each in channel.kept)
            if len(channel.kept) != len(end.sent_s) or channel.kept_bytes != nbytes:
                text = f"{name} keeps other frames, or bytes, than are unacknowledged"
                found.append(Finding(Kind.MEMORY, text))
            elif self._is_old(end, process, self._cluster.peer_process(channel)):
                found.append(Finding(Kind.MEMORY, f"{name} keeps an old frame"))
        return found

    def _is_old(self, end: End, me: Any, peer: Any) -> bool:
        """Whether two processes run and reach each other, and one should long have acknowledged
        what the other has sent."""
        if not end.sent_s or peer is None or me.paused or peer.paused:
            return False
        transit_s = self._cluster.network.transit_s  # inf if nothing passes
        way_s = transit_s(me.node, peer.node, 0) + transit_s(peer.node, me.node, 0)
        return bool(self._now_s - end.sent_s[0] > UNACKNOWLEDGED_S + way_s)

    def _channels(self) -> Iterator[tuple[Any, Channel]]:
        """Yield all channels, each with its process."""
        for process in dict.fromkeys(self._cluster.processes.values()):
            if process.channels is not None:
                for channel in process.channels.peers.channels.values():
                    yield process, channel
