"""The channels of a simulated process: the control plane's own, over connections in virtual time.

A connection is a pair of `SimLink`s. Its packets are frames of the network; it breaks for both ends
at once, as after a reset, or a latency later for the other end if one end closes it. A packet of a
broken connection is lost, wherever it is. The dialing end greets when the connection is set up: see
`Network.connect`.

A process that is paused reads nothing, so neither packets nor timers reach its channels until it
is resumed. A packet costs no CPU time besides that of its frame: an acknowledgement of its own is
sent after 64 frames, or ten times a second at most.

A long frame takes its time on a slow link, and its receiver sees its bytes come in: `part_s` apart.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from raytwin.runtime.control.channels.channel import Channel, Hello, Me, look_s
from raytwin.runtime.control.channels.peers import Peers
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import NodeInfo
from raytwin.simulator.machine.frame_faults import FrameFaults
from raytwin.simulator.machine.network import Network, Stream
from raytwin.simulator.machine.simulated_process import SimProcess

PACKET_BYTES = 24
"""An acknowledgement, or a frame's header; sizes of messages count the latter already."""
HELLO_BYTES = 100


class _Timer:
    """A callback of a channel; see `context.Timer`."""

    __slots__ = ("callback", "process")

    def __init__(self, process: SimProcess, callback: Callable[[], None]) -> None:
        self.process = process
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def fire(self) -> None:
        if self.callback is not None and self.process.alive:
            self.process.when_running(self._call)

    def _call(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


class _ChannelContext:
    """`context.Context` for channels: time and timers without turns."""

    def __init__(self, process: SimProcess, seed: int) -> None:
        self._process = process
        self._env = process.cluster.env
        self._seed = f"{seed}/{process.name}/channels"
        self._rng: random.Random | None = None

    @property
    def rng(self) -> random.Random:
        # Only back-offs draw numbers, and seeding takes long.
        if self._rng is None:
            self._rng = random.Random(self._seed)
        return self._rng

    def now(self) -> float:
        return self._env.now + self._process.skew_s

    def send(self, to: str, message: Any) -> None:
        raise TypeError("a channel sends no messages of its own")

    def after(self, delay_s: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(self._process, callback)
        self._env.after(self._process.costs.timer(delay_s), timer.fire)
        return timer


class SimLink:
    """One end of a simulated connection."""

    __slots__ = (
        "channel",
        "channels",
        "dialed",
        "node",
        "open",
        "other",
        "received_bytes",
        "stream",
    )

    other: SimLink

    def __init__(self, channels: SimChannels, channel: Channel | None = None) -> None:
        self.channels = channels
        self.dialed = channel is not None
        """Whether this end opens the connection."""
        self.node = channels.process.node
        self.channel = channel
        """None until the peer has greeted."""
        self.open = True
        self.received_bytes = 0
        self.stream = Stream()
        """This end sends its packets in it."""

    # -- the channel's calls -----------------------------------------------------

    def greet(self, hello: Hello) -> None:
        if self.dialed and self.other is not self:
            self.channels.network.connect(self.node, self.other.node, partial(self._greet, hello))
        else:
            self._greet(hello)

    def _greet(self, hello: Hello) -> None:
        if self.open:
            self._send(HELLO_BYTES, partial(self.other._on_hello, hello))

    def write(self, sequence: int, acknowledged: int, frame: Any, nbytes: int) -> None:
        channels = self.channels
        if nbytes > channels.long_bytes:
            self._announce_parts(nbytes)
        deliver = partial(self.other._on_packet, sequence, acknowledged, frame, nbytes)
        faults = channels.frame_faults
        if frame is None or not faults.rules:
            self._send(nbytes or PACKET_BYTES, deliver)
            return
        for delay_s in faults.delays_s(frame[2]):
            channels.process.cluster.env.after(delay_s, partial(self._send, nbytes, deliver))

    def close(self, reason: str) -> None:
        if self.open:
            self.open = False
            self.channels.links.pop(self, None)
            self._send(0, self.other.lose)

    def _send(self, nbytes: int, deliver: Callable[[], None]) -> None:
        if self.other is not self:  # else nobody listens
            self.channels.network.send(self.node, self.other.node, nbytes, deliver, self.stream)

    # -- what arrives ------------------------------------------------------------

    def lose(self) -> None:
        """The connection has ended."""
        if self.open:
            self.open = False
            self.channels.links.pop(self, None)
            if self.channel is not None:
                self.channels.process.when_running(partial(self.channel.on_lost, self))

    def _on_hello(self, hello: Hello) -> None:
        self.channels.process.when_running(partial(self._take_hello, hello))

    def _take_hello(self, hello: Hello) -> None:
        if not self.open:
            return
        if self.channel is None:
            self.channel = self.channels.peers.admit(self, hello)
        channel = self.channel
        if channel is not None:
            channel.on_hello(self, hello)
            observer = self.channels.process.cluster.observer
            if observer is not None and self.open:
                observer.on_hello(channel, hello)

    def _on_packet(self, sequence: int, acknowledged: int, frame: Any, nbytes: int) -> None:
        process = self.channels.process
        if process.paused or not process.alive:
            process.when_running(partial(self._on_packet, sequence, acknowledged, frame, nbytes))
            return
        if not self.open or self.channel is None:
            return
        self.received_bytes += nbytes
        observer = process.cluster.observer
        if observer is not None:
            observer.on_packet(self.channel, sequence, acknowledged, frame)
        if self.channel.on_packet(self, sequence, acknowledged, frame, nbytes):
            process.arrive(*frame)

    def _on_bytes(self, link_bytes: int) -> None:
        channel, observer = self.channel, self.channels.process.cluster.observer
        if channel is None or not self.open:
            return
        if observer is not None:
            observer.on_bytes(channel)
        channel.on_bytes(self, link_bytes)

    def _announce_parts(self, nbytes: int) -> None:
        """Have the receiver see the bytes of a long frame come in."""
        channels, other = self.channels, self.other
        transit_s = channels.network.transit_s(self.node, other.node, nbytes)
        part_s = channels.part_s
        if transit_s < part_s or transit_s > 1000 * part_s:
            return

        def part() -> None:
            if other.open and other.channel is not None and other.channels.process.alive:
                other.received_bytes += 1
                other.channels.process.when_running(partial(other._on_bytes, other.received_bytes))

        for number in range(1, int(transit_s / part_s) + 1):
            channels.process.cluster.env.after(number * part_s, part)


class SimChannels:
    """All channels of one process: dials, accepts, and breaks."""

    def __init__(
        self,
        process: SimProcess,
        network: Network,
        frame_faults: FrameFaults,
        config: Config,
        me: Me,
        info_of: Callable[[int], NodeInfo | None],
        peer_process: Callable[[Channel], SimProcess | None],
        leave: Callable[[str], None] = lambda reason: None,
        on_new_head: Callable[[], None] = lambda: None,
        on_node_changed: Callable[[NodeInfo], None] = lambda info: None,
    ) -> None:
        """`peer_process` returns the living process that a channel's peer is, if there is one;
        for the other functions see `processes/net/channels`."""
        self.process = process
        self.network = network
        self.frame_faults = frame_faults
        self.links: dict[SimLink, None] = {}
        """The ends here of connections that are open, oldest first."""
        self.part_s = look_s(config.stall_s) / 2
        self.long_bytes = 10_000
        """Frames up to so many bytes are never watched while they arrive."""
        self._peer_process = peer_process
        self._leave = leave
        self.on_new_head = on_new_head
        self.on_node_changed = on_node_changed
        self.peers = Peers(_ChannelContext(process, config.seed), me, config, self, info_of)
        process.channels = self

    def send(self, peer: str, frame: Any, nbytes: int) -> None:
        """Send a frame to another process; it is lost if that is not known to live."""
        channel = self.peers.channels.get(peer) or self.peers.channel(peer)
        if channel is not None:
            observer = self.process.cluster.observer
            if observer is not None:
                observer.on_send(channel)
            channel.send(frame, nbytes)

    def break_links(self, peer: str) -> None:
        """Break the connections with a peer for both ends at once, as a reset does."""
        for link in list(self.links):
            if link.other.channels.process.name == peer:
                link.lose()
                link.other.lose()

    def end(self) -> None:
        """The process has ended: its kernel closes the connections."""
        network, node = self.network, self.process.node
        for link in list(self.links):
            link.open = False
            # An end whose process has ended does not hear of it, and its node may be gone.
            if not link.other.open:
                continue
            if network.is_blocked(node, link.other.node):
                # A host that lives repeats the end of the connection until it arrives.
                network.send(node, link.other.node, 0, link.other.lose, link.stream)
            else:
                self.process.cluster.env.after(
                    network.transit_s(node, link.other.node, 0), link.other.lose
                )
        self.links.clear()

    # -- the network of the channels ---------------------------------------------------

    def new_session(self) -> int:
        return self.process.cluster.new_session()

    def dial(self, channel: Channel) -> SimLink | None:
        link = SimLink(self, channel)
        self.links[link] = None
        peer = self._peer_process(channel)
        if peer is None or peer.channels is None:
            # Nobody listens there: the connection is refused.
            link.other = link
            self.process.cluster.env.after(2 * self.network.latency_s, link.lose)
            return link
        theirs = SimLink(peer.channels)
        link.other, theirs.other = theirs, link
        peer.channels.links[theirs] = None
        return link

    def leave(self, reason: str) -> None:
        observer = self.process.cluster.observer
        if observer is not None:
            observer.on_leave(self.process.name)
        self._leave(reason)

    def deliver(self, to: str, message: Any) -> None:
        observer = self.process.cluster.observer
        if observer is not None:
            observer.on_report(self.process.name, message)
        self.process.arrive(to, to, [message])
