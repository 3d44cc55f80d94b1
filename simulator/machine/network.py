"""The network: control frames and bulk transfers between nodes on hosts.

The model
---------
Every *node* lives on a *host*; a host has one full-duplex network card, and a
loopback for the traffic that stays within it.

Control frames (`Network.send`) are small and many. A frame arrives after
``latency + nbytes / bandwidth``, and never before one that was sent earlier
from the same node to the same node. Beside transfers a frame has what one stream more
would have of each bandwidth that it uses, or what the transfers leave, if that is more.

A new connection (`Network.connect`) takes three round trips before it carries anything: those of
TCP, and of the proofs of the cluster's token (see `runtime/processes/net/auth`).

Bulk transfers (`Network.transfer`) are fluid and share bandwidth max-min
fairly, as long TCP streams do: the rate of no stream can grow without
shrinking the rate of one that is no faster. The shared bandwidths are each host's
egress and ingress (`bandwidth` each) and its loopback (`loopback_bandwidth`).
A transfer is done one latency after its last byte left.

With `Racks` the hosts are in racks, and a full-duplex uplink leads from each rack's switch to a
core that is never full. A transfer between racks takes part in the uplink of its source's rack,
upwards, and in that of its destination's, downwards, and so does a frame. Frames between racks take
the same latency as others.

Faults (`set_latency`, `set_bandwidth`, `set_loss`, `block`) concern one direction between two
nodes, and outlive these. Frames of a link whose bandwidth was set wait for one another. A blocked
link holds frames back, as TCP sends again what a network has lost, and its transfers stall;
datagrams are lost.

Loss is delay, as TCP shows it: what is lost arrives one retransmission timeout later, and the
frames behind it wait, since a stream is delivered in order. The timeout is that of Linux on a
steady link, a round trip and `RTO_MIN_S`. One draw decides about each frame, and about the end of
each transfer, whatever their sizes: about the last packet. Acknowledgements of later packets tell
the sender of an earlier loss within a round trip; behind the last packet there is none, so that its
timer has to run out. Datagrams are late, too: the heartbeats that they stand for go over TCP.

A *paused* node's process neither reads nor writes: its transfers stall.
Frames to it still arrive, and wait in the inbox of its process. A removed node's
frames are lost, in either direction, and its transfers fail.

Simplifications: without faults, frames neither wait for one another nor slow down transfers
(control traffic is assumed to be small compared with the bandwidth), and the transfers that flow
when a frame leaves decide how fast it is; no packets, slow start or congestion; what is sent again
is not lost again, and loss lowers no rate, so where more than a tenth is lost a real link is
slower; without racks the core of the network is never the bottleneck; both sides learn at once that
a transfer has failed.

How it is computed
------------------
A frame is one SimPy event. When a transfer begins or ends, the rates of all transfers
are computed again at the end of that instant (progressive filling). One event is due
when the next transfer ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from typing import Any

from simpy.events import EventPriority

from raytwin.simulator.machine.clock import Call, Clock

END_OF_INSTANT = EventPriority(2)
"""The priority of an event that follows all others of its instant."""

RTO_MIN_S = 0.2
"""Linux's TCP_RTO_MIN, the least that a retransmission timeout is longer than a round trip."""

HANDSHAKE_TRIPS = 6
"""Packets that open a connection, one after another, each in the other direction: SYN, SYN-ACK and
ACK of TCP; the accepting side's challenge, the answer to it, and the accepting side's proof."""
HANDSHAKE_BYTES = 78
"""Of each: the mean of TCP's three and of the proof's three, headers and their options included."""

Share = tuple[str, int] | tuple[str, int, int]
"""A bandwidth that transfers share: ``egress``, ``ingress`` or ``loopback`` of a host, ``up`` or
``down`` of a rack's uplink, or a ``link`` between two nodes whose bandwidth a fault has set."""


@dataclass(frozen=True)
class Racks:
    """Racks of equal size: host h is in rack ``h // hosts``.

    All uplinks are equal, as switches are: that of a rack which is not full, too.
    """

    hosts: int
    """Per rack, at least 1."""
    oversubscription: float = 1.0
    """The bandwidth of a full rack's hosts over that of its uplink; at 1 racks change nothing."""

    def uplink_bandwidth(self, bandwidth: float) -> float:
        """Return the bytes/s of an uplink, each way, over hosts with `bandwidth` each."""
        return self.hosts * bandwidth / self.oversubscription

    def between(self, hosts: tuple[int, int]) -> tuple[int, int] | None:
        """Return the racks of two hosts, None if both are in one."""
        source, destination = hosts[0] // self.hosts, hosts[1] // self.hosts
        return None if source == destination else (source, destination)


class Fault:
    """The faults of one direction between two nodes."""

    __slots__ = ("bandwidth", "blocked", "free_s", "jitter_s", "latency_s", "loss")

    def __init__(self) -> None:
        self.latency_s: float | None = None
        """In place of the network's own."""
        self.jitter_s = 0.0
        """How far the latency of each frame is from the link's at most, uniformly distributed."""
        self.bandwidth: float | None = None
        self.loss = 0.0
        """The probability that a packet is lost."""
        self.blocked = False
        self.free_s = 0.0
        """When the last frame will have left, if the bandwidth is set."""

    @property
    def healed(self) -> bool:
        """Whether nothing is wrong."""
        return (self.latency_s is None and not self.jitter_s and self.bandwidth is None
                and not self.loss and not self.blocked)  # fmt: skip


class Stream:
    """One direction of a connection: what is sent there arrives in that order."""

    __slots__ = ("last_arrival_s",)

    def __init__(self) -> None:
        self.last_arrival_s = -inf


class Link:
    """One direction between two nodes."""

    __slots__ = (
        "alive", "bandwidth", "callbacks", "ends", "fault", "held", "hosts", "latency_s",
        "racks", "sent_bytes", "stream",
    )  # fmt: skip

    def __init__(
        self, ends: tuple[int, int], hosts: tuple[int, int], latency_s: float, bandwidth: float
    ) -> None:
        self.ends = ends
        self.hosts = hosts
        self.latency_s = latency_s
        self.bandwidth = bandwidth
        self.racks: tuple[int, int] | None = None
        """The racks of the two hosts; None if one rack has both, or the network has no racks."""
        self.fault: Fault | None = None
        self.held: list[tuple[int, Callable[[], None], Stream]] = []
        """Frames that wait until the link is no longer blocked: (bytes, delivery, stream)."""
        self.stream = Stream()
        """The two nodes share it for frames that are in no connection's stream."""
        self.sent_bytes = 0
        self.alive = True
        self.callbacks: list[Callable[[Any], None]] = [self._on_arrival]

    @property
    def shares(self) -> tuple[Share, ...]:
        """The bandwidths that a transfer over this link takes part in."""
        source, destination = self.hosts
        shares: tuple[Share, ...] = (
            (("loopback", source),)
            if source == destination
            else (("egress", source), ("ingress", destination))
        )
        if self.racks is not None:
            shares += (("up", self.racks[0]), ("down", self.racks[1]))
        if self.fault is not None and self.fault.bandwidth is not None:
            shares += (("link", *self.ends),)
        return shares

    def _on_arrival(self, frame: Call) -> None:
        if self.alive:
            frame.call()


class Transfer:
    """Bulk data on its way; made by `Network.transfer`."""

    __slots__ = ("done", "dst", "ends_s", "left", "link", "nbytes", "rate", "since_s", "src",
                 "streams")  # fmt: skip

    def __init__(
        self, src: int, dst: int, nbytes: int, streams: int, done: Callable[[bool], None]
    ) -> None:
        self.src = src
        self.dst = dst
        self.nbytes = nbytes
        self.streams = streams
        self.done = done
        self.link: Link
        """Unset if one of the nodes does not exist."""
        self.rate = 0.0
        """Bytes/s since `since_s`."""
        self.since_s = 0.0
        self.left = float(nbytes)
        """Bytes that had not yet left the source at `since_s`."""
        self.ends_s = inf

    def sent_bytes(self, now_s: float) -> float:
        """Return the bytes that have left the source."""
        return self.nbytes - max(0.0, self.left - self.rate * (now_s - self.since_s))

    def set_rate(self, rate: float, now_s: float) -> None:
        """Change the rate from now on."""
        self.left = max(0.0, self.left - self.rate * (now_s - self.since_s))
        self.since_s = now_s
        self.rate = rate
        self.ends_s = now_s + self.left / rate if rate else inf


class Network:
    """Latencies in seconds, bandwidths in bytes/s, sizes in bytes."""

    def __init__(
        self,
        env: Clock,
        latency_s: float,
        bandwidth: float,
        loopback_latency_s: float,
        loopback_bandwidth: float,
        seed: int = 0,
        racks: Racks | None = None,
    ) -> None:
        """`seed`: of the jitter and loss that faults add; `racks`: None if there is one switch."""
        self.env = env
        self._rng = Random(f"{seed}/network")
        self.latency_s = latency_s
        self.loopback_latency_s = loopback_latency_s
        self._bandwidths = {
            "egress": bandwidth, "ingress": bandwidth, "loopback": loopback_bandwidth
        }  # fmt: skip
        self.racks = racks
        if racks is not None:
            uplink = racks.uplink_bandwidth(bandwidth)
            self._bandwidths |= {"up": uplink, "down": uplink}
        self._hosts: dict[int, int] = {}
        """By node."""
        self._paused: set[int] = set()
        self._links: dict[int, dict[int, Link]] = {}
        """By source, then destination."""
        self._faults: dict[tuple[int, int], Fault] = {}
        """By source and destination."""
        self._sent_before: Counter[tuple[int, int]] = Counter()
        """By hosts: bytes sent on links of removed nodes."""
        self._flowing: dict[Transfer, None] = {}
        self._ending: dict[Transfer, bool] = {}
        """Transfers that are about to end, and whether they have arrived."""
        self._used: dict[Share, tuple[float, int]] = {}
        """Of each share that transfers use: their bytes/s, and their streams."""
        self._shares_due = False
        self._next_end: Call | None = None

    # -- nodes -------------------------------------------------------------

    def add_node(self, node: int, host: int) -> None:
        """Put `node` on `host`. The number of a removed node may be used again.

        Raises ValueError if the node exists already.
        """
        if node in self._hosts:
            raise ValueError(f"node {node} is on host {self._hosts[node]} already")
        self._hosts[node] = host
        self._links[node] = {}

    def remove_node(self, node: int) -> None:
        """Lose all frames from and to `node`; fail its transfers at this instant.

        Until it is added again, its frames are lost silently and its transfers fail.
        Raises ValueError if the node does not exist.
        """
        self.host_of(node)
        for transfer in [*self._flowing, *self._ending]:
            if node in (transfer.src, transfer.dst):
                self._stop(transfer)
                self._end_after(0, transfer, False)
        gone = list(self._links.pop(node).values())
        gone += [links.pop(node) for links in self._links.values() if node in links]
        for link in gone:
            link.alive = False
            self._sent_before[link.hosts] += link.sent_bytes
        del self._hosts[node]
        self._paused.discard(node)

    def pause_node(self, node: int) -> None:
        """Stall transfers from and to `node`; a second pause has no effect.

        Raises ValueError if the node does not exist.
        """
        self.host_of(node)
        self._paused.add(node)
        self._share_later()

    def resume_node(self, node: int) -> None:
        """Undo `pause_node`. Raises ValueError if the node does not exist."""
        self.host_of(node)
        self._paused.discard(node)
        self._share_later()

    def host_of(self, node: int) -> int:
        """Return the host of `node`; raises ValueError if the node does not exist."""
        if node not in self._hosts:
            raise ValueError(f"there is no node {node}")
        return self._hosts[node]

    # -- faults ------------------------------------------------------------

    def set_latency(
        self, src: int, dst: int, latency_s: float | None, jitter_s: float = 0.0
    ) -> None:
        """Set the latency from `src` to `dst`, ± up to `jitter_s`; None restores the network's own.

        Frames that were sent earlier are not affected.
        """
        fault = self._fault(src, dst)
        fault.latency_s, fault.jitter_s = latency_s, jitter_s
        self._changed(src, dst)

    def set_bandwidth(self, src: int, dst: int, bandwidth: float | None) -> None:
        """Set the bandwidth from `src` to `dst`; None restores the network's own."""
        fault = self._fault(src, dst)
        fault.bandwidth, fault.free_s = bandwidth, self.env.now
        self._changed(src, dst)

    def set_loss(self, src: int, dst: int, probability: float) -> None:
        """Lose packets from `src` to `dst` with a probability; 0 ends that."""
        self._fault(src, dst).loss = probability
        self._changed(src, dst)

    def block(self, src: int, dst: int) -> None:
        """Let nothing pass from `src` to `dst`; frames under way still arrive."""
        self._fault(src, dst).blocked = True
        self._changed(src, dst)

    def unblock(self, src: int, dst: int) -> None:
        """Undo `block`: what was held back leaves now, in order."""
        self._fault(src, dst).blocked = False
        self._changed(src, dst)
        link = self._links.get(src, {}).get(dst)
        if link is not None:
            held, link.held = link.held, []
            for nbytes, deliver, stream in held:
                link.sent_bytes -= nbytes
                self.send(src, dst, nbytes, deliver, stream)

    def heal(self, src: int, dst: int) -> None:
        """Undo all faults from `src` to `dst`."""
        fault = self._fault(src, dst)
        fault.latency_s, fault.jitter_s, fault.bandwidth, fault.loss = None, 0.0, None, 0.0
        self.unblock(src, dst)

    def is_blocked(self, src: int, dst: int) -> bool:
        """Whether nothing passes from `src` to `dst`."""
        fault = self._faults.get((src, dst))
        return fault is not None and fault.blocked

    def _fault(self, src: int, dst: int) -> Fault:
        return self._faults.setdefault((src, dst), Fault())

    def _changed(self, src: int, dst: int) -> None:
        """A fault between two nodes has begun, changed or ended."""
        fault = self._faults[src, dst]
        if fault.healed:
            del self._faults[src, dst]
        link = self._links.get(src, {}).get(dst)
        if link is not None:
            link.fault = None if fault.healed else fault
            link.latency_s = self._latency_of(src, dst)
        self._share_later()

    # -- traffic -----------------------------------------------------------

    def connect(self, src: int, dst: int, done: Callable[[], None]) -> None:
        """Open a connection; `done()` is called when `src` can send its first packet over it.

        It is never called if one of the nodes does not exist, or is removed meanwhile.
        """
        stream = Stream()  # waits for nothing that another connection has lost

        def trip(number: int, here: int, there: int) -> None:
            arrived = partial(trip, number + 1, there, here) if number < HANDSHAKE_TRIPS else done
            self.send(here, there, HANDSHAKE_BYTES, arrived, stream)

        trip(1, src, dst)

    def send(
        self,
        src: int,
        dst: int,
        nbytes: int,
        deliver: Callable[[], None],
        stream: Stream | None = None,
    ) -> None:
        """Send a control frame of `nbytes`; `deliver()` is called when it arrives.

        Without a `stream` it is in one that the two nodes share. `src` may equal `dst`: a local
        socket. The frame is lost if either node does not exist, or is removed before it arrives.
        """
        try:
            link = self._links[src][dst]
        except KeyError:
            new = self._new_link(src, dst)
            if new is None:
                return
            link = new
        link.sent_bytes += nbytes
        if link.fault is None:
            bandwidth = self._frame_bandwidth(link) if self._flowing else link.bandwidth
            arrival_s = self.env.now + (link.latency_s + nbytes / bandwidth)
        elif link.fault.blocked:
            link.held.append((nbytes, deliver, stream or link.stream))
            return
        else:
            arrival_s = self._arrival_s(link, link.fault, nbytes)
        # A frame never overtakes an earlier one.
        stream = stream or link.stream
        if arrival_s < stream.last_arrival_s:
            arrival_s = stream.last_arrival_s
        stream.last_arrival_s = arrival_s
        self.env.schedule_at(Call(deliver, link.callbacks), arrival_s)

    def send_datagram(self, src: int, dst: int, nbytes: int, deliver: Callable[[], None]) -> None:
        """Send a frame that waits for no other one, and is lost where the link is blocked."""
        link = self._links.get(src, {}).get(dst) or self._new_link(src, dst)
        if link is None or (link.fault is not None and link.fault.blocked):
            return
        link.sent_bytes += nbytes
        latency_s = self._drawn_latency_s(link)
        bandwidth = self._frame_bandwidth(link)
        arrival_s = self.env.now + (latency_s + nbytes / bandwidth)
        self.env.schedule_at(Call(deliver, link.callbacks), arrival_s)

    def _arrival_s(self, link: Link, fault: Fault, nbytes: int) -> float:
        """Return when a frame arrives that leaves now, on a link with a fault."""
        latency_s = self._drawn_latency_s(link)
        bandwidth = self._frame_bandwidth(link)
        if fault.bandwidth is None:
            return self.env.now + (latency_s + nbytes / bandwidth)
        # With transfers the link itself is one of the shares, whose bandwidth is the fault's.
        bandwidth = min(bandwidth, fault.bandwidth)
        fault.free_s = max(fault.free_s, self.env.now) + nbytes / bandwidth
        return fault.free_s + latency_s

    def _frame_bandwidth(self, link: Link) -> float:
        """Return the bytes/s that a frame has on a link."""
        if not self._flowing:
            return link.bandwidth
        return min(self._left_for_a_frame(share) for share in link.shares)

    def _left_for_a_frame(self, share: Share) -> float:
        bandwidth = self._bandwidth_of(share)
        rate, streams = self._used.get(share, (0.0, 0))
        return max(bandwidth / (1 + streams), bandwidth - rate)

    def _drawn_latency_s(self, link: Link) -> float:
        """Return the latency of what leaves now: with jitter, at least 0 as behind Toxiproxy, and
        with the retransmission of its last packet, if that is lost."""
        latency_s, fault = link.latency_s, link.fault
        if fault is None:
            return latency_s
        if fault.jitter_s:
            latency_s = max(0.0, latency_s + self._rng.uniform(-fault.jitter_s, fault.jitter_s))
        if fault.loss and self._rng.random() < fault.loss:
            source, destination = link.ends
            latency_s += RTO_MIN_S + link.latency_s + self._latency_of(destination, source)
        return latency_s

    def transit_s(self, src: int, dst: int, nbytes: int) -> float:
        """Return how long a frame that is sent now will be on its way, without jitter and loss; inf
        if its link is blocked."""
        fault = self._faults.get((src, dst))
        if fault is not None and fault.blocked:
            return inf
        link = self._links.get(src, {}).get(dst) or self._new_link(src, dst)
        assert link is not None
        bandwidth, waits_s = self._frame_bandwidth(link), 0.0
        if fault is not None and fault.bandwidth is not None:
            bandwidth = min(bandwidth, fault.bandwidth)
            waits_s = max(0.0, fault.free_s - self.env.now)
        return link.latency_s + waits_s + nbytes / bandwidth

    def transfer(
        self, src: int, dst: int, nbytes: int, done: Callable[[bool], None], streams: int = 1
    ) -> Transfer:
        """Move `nbytes` over `streams` streams; `done(True)` a latency after the last byte left.

        `done(False)` if either node does not exist, or is removed meanwhile. `done` is always
        called from an event, never from within this call.
        """
        transfer = Transfer(src, dst, nbytes, streams, done)
        link = self._links.get(src, {}).get(dst) or self._new_link(src, dst)
        if link is None:
            self._end_after(0, transfer, False)
            return transfer
        transfer.link = link
        if nbytes:
            self._flowing[transfer] = None
            self._share_later()
        else:
            self._arrive(transfer)
        return transfer

    def cancel(self, transfer: Transfer) -> None:
        """Cancel a transfer without calling `done`; no effect on one that has ended."""
        self._stop(transfer)
        self._ending.pop(transfer, None)

    @property
    def bytes_sent(self) -> dict[tuple[int, int], int]:
        """Bytes sent so far by (source host, destination host), lost ones too.

        A frame counts when it is sent, a transfer as its bytes leave.
        """
        sent = Counter(self._sent_before)
        for links in self._links.values():
            for link in links.values():
                sent[link.hosts] += link.sent_bytes
        for transfer in self._flowing:
            sent[transfer.link.hosts] += round(transfer.sent_bytes(self.env.now))
        return dict(sent)

    # -- links -------------------------------------------------------------

    def _new_link(self, src: int, dst: int) -> Link | None:
        """Return the new link between two nodes, None if either does not exist."""
        if src not in self._hosts or dst not in self._hosts:
            return None
        hosts = self._hosts[src], self._hosts[dst]
        bandwidth = self._bandwidths["loopback" if hosts[0] == hosts[1] else "egress"]
        link = self._links[src][dst] = Link(
            (src, dst), hosts, self._latency_of(src, dst), bandwidth
        )
        link.fault = self._faults.get((src, dst))
        if self.racks is not None:
            link.racks = self.racks.between(hosts)
            if link.racks is not None:
                link.bandwidth = min(bandwidth, self._bandwidths["up"])
        return link

    def _latency_of(self, src: int, dst: int) -> float:
        local = self._hosts[src] == self._hosts[dst]
        own_s = self.loopback_latency_s if local else self.latency_s
        fault = self._faults.get((src, dst))
        return own_s if fault is None or fault.latency_s is None else fault.latency_s

    # -- transfers ---------------------------------------------------------

    def _stop(self, transfer: Transfer) -> None:
        """Stop a transfer that still flows; its bytes so far count as sent."""
        if transfer in self._flowing:
            transfer.link.sent_bytes += round(transfer.sent_bytes(self.env.now))
            del self._flowing[transfer]
            self._share_later()

    def _arrive(self, transfer: Transfer) -> None:
        """End a transfer whose last byte leaves now, once that has arrived."""
        self._end_after(self._drawn_latency_s(transfer.link), transfer, True)

    def _end_after(self, delay_s: float, transfer: Transfer, arrived: bool) -> None:
        self._ending[transfer] = arrived
        self.env.after(delay_s, partial(self._end, transfer))

    def _end(self, transfer: Transfer) -> None:
        if transfer in self._ending:
            transfer.done(self._ending.pop(transfer))

    def _share_later(self) -> None:
        """Schedule `_share` for the end of this instant."""
        if not self._shares_due:
            self._shares_due = True
            self.env.schedule(Call(self._share), END_OF_INSTANT, 0)

    def _share(self) -> None:
        """Set the rates of all transfers; schedule an event for the end of the next one."""
        self._shares_due = False
        paused = self._paused
        moving = [t for t in self._flowing if t.src not in paused and t.dst not in paused]
        if self._faults:
            # Acknowledgements come back the other way.
            moving = [
                t for t in moving
                if not self.is_blocked(t.src, t.dst) and not self.is_blocked(t.dst, t.src)
            ]  # fmt: skip
        rates = fair_rates(moving, self._bandwidth_of)
        self._used = {}
        for transfer, rate in rates.items():
            for share in transfer.link.shares:
                used, streams = self._used.get(share, (0.0, 0))
                self._used[share] = used + rate, streams + transfer.streams
        now_s = self.env.now
        for transfer in self._flowing:
            rate = rates.get(transfer, 0.0)
            if rate != transfer.rate:
                transfer.set_rate(rate, now_s)
        ends_s = min((transfer.ends_s for transfer in self._flowing), default=inf)
        if ends_s < inf:
            # The event of an earlier set of rates sees that this one has replaced it.
            self._next_end = event = Call(lambda: self._on_end(event))
            self.env.schedule_at(event, ends_s)

    def _bandwidth_of(self, share: Share) -> float:
        kind, *ends = share
        if kind != "link":
            return self._bandwidths[kind]
        bandwidth = self._faults[ends[0], ends[1]].bandwidth
        assert bandwidth is not None
        return bandwidth

    def _on_end(self, event: Call) -> None:
        if event is not self._next_end:
            return
        for transfer in [t for t in self._flowing if t.ends_s <= self.env.now]:
            transfer.left = transfer.rate = 0.0  # rounding may have left a rest
            self._stop(transfer)
            self._arrive(transfer)


def fair_rates(
    transfers: Iterable[Transfer], bandwidth_of: Callable[[Share], float]
) -> dict[Transfer, float]:
    """Return the max-min fair rate of each transfer, by progressive filling.

    The rates of all streams grow together until a bandwidth is used up; the streams that
    share it keep their rate, and the others grow further.
    """
    users: dict[Share, list[Transfer]] = {}
    for transfer in transfers:
        for share in transfer.link.shares:
            users.setdefault(share, []).append(transfer)
    left = {share: bandwidth_of(share) for share in users}
    growing = {share: sum(t.streams for t in found) for share, found in users.items()}
    rates: dict[Transfer, float] = {}
    while growing:
        tightest = min(growing, key=lambda share: left[share] / growing[share])
        rate = left[tightest] / growing[tightest]
        for transfer in users[tightest]:
            if transfer in rates:
                continue
            rates[transfer] = rate * transfer.streams
            for share in transfer.link.shares:
                left[share] -= rate * transfer.streams
                growing[share] -= transfer.streams
                if not growing[share]:
                    del growing[share]
    return rates
