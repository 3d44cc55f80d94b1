"""The network: control frames and bulk transfers between nodes on hosts.

The model
---------
Every *node* lives on a *host*; a host has one full-duplex network card, and a
loopback for what stays within it. What flows from one node to another uses the
directed *link* of the two, which may be overridden or cut.

Control frames (`Network.send`) are small and many. A frame arrives after
``latency + jitter + nbytes / bandwidth``, and never before one that was sent
earlier on its link. Jitter is uniform in [0, jitter_s) and between hosts only.

Bulk transfers (`Network.transfer`) are fluid and share bandwidth max-min
fairly, as many long TCP streams do: no transfer's rate can grow without
shrinking the rate of one that is no faster. The shared resources are each host's
egress and ingress (`bandwidth` each), its loopback (`loopback_bandwidth`), and
the cap of each link that has one. A transfer is done one latency after its
last byte left.

A *paused* node's process neither reads nor writes: its transfers stand still.
Frames to it still arrive, and wait in the inbox of its process.

A cut link behaves like TCP whose packets are lost: frames that would arrive
are held back and arrive in order one latency after the link heals; transfers
stand still and resume at the heal. A removed node's frames are lost, in
either direction, and its transfers fail.

Simplifications: frames neither wait for nor slow down transfers or one
another (control traffic is taken to be small beside the bandwidth); no
packets, slow start, loss, retransmission timers or limits on held frames; the
core of the network is never the bottleneck; a failed transfer is known to both
sides at once.

How it is computed
------------------
A frame is one SimPy event. All transfers on one link have the same rate, so
rates belong to links: each keeps the bytes that any transfer on it has been
served since the link was last idle, a heap of the values of that at which
transfers end, and one event for the first of them. A change marks what it
touches; at the end of that instant the connected part of the network that was
marked is filled again (progressive filling), and only links whose rate changed
are settled and scheduled again. Filling n links costs O(n log n).
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from math import inf, nextafter
from typing import Any

from simpy import Environment
from simpy.events import NORMAL

from raytwin.simulator.machine.fair_sharing import (
    ALWAYS,
    END_OF_INSTANT,
    Callback,
    Flow,
    SharedRate,
    Transfer,
    fill,
    nothing,
)


class Link:
    """One direction between two nodes: the figures that `send` needs, and the faults."""

    __slots__ = (
        "_clear",
        "_flush",
        "_held",
        "bandwidth",
        "callbacks",
        "cap",
        "cut",
        "dst_host",
        "env",
        "flow",
        "jitter_s",
        "last_arrival",
        "latency_s",
        "sent_bytes",
        "src_host",
        "stalled",
    )  # fmt: skip

    def __init__(self, env: Environment, src_host: int, dst_host: int) -> None:
        self.env = env
        self.src_host = src_host
        self.dst_host = dst_host
        self.latency_s = 0.0
        self.bandwidth = 0.0
        self.jitter_s = 0.0
        self.last_arrival = -inf
        self.sent_bytes = 0
        self.callbacks: list[Callable[[Any], None]] = [self._on_arrival]
        self.cut = False
        self.stalled = 0
        """How many of its two nodes are paused."""
        self.flow: Flow | None = None
        self.cap: SharedRate | None = None
        self._clear = True  # neither cut, nor dead, nor with held frames to deliver first
        self._held: deque[Callable[[], None]] = deque()
        self._flush: Callback | None = None

    def _on_arrival(self, frame: Callback) -> None:
        if self._clear:
            frame.call()
        else:
            self._held.append(frame.call)

    def close(self) -> None:
        """Cut the link, or cut it again before a heal has taken effect."""
        self.cut = True
        self._clear = False
        self._flush = None

    def open(self) -> None:
        """Heal the link: held frames arrive one latency from now."""
        self.cut = False
        self._flush = Callback(nothing, [self._on_flush])
        self.env.schedule(self._flush, NORMAL, self.latency_s)

    def kill(self) -> None:
        """Lose held frames and frames in flight, for good."""
        self._clear = False
        self._held.clear()
        self._flush = None

    def _on_flush(self, event: Callback) -> None:
        if event is not self._flush:
            return  # cut again, or dead
        while self._held and self._flush is event:  # a delivery may cut or kill
            self._held.popleft()()
        if self._flush is event:
            self._flush = None
            self._clear = True


class _Fault:
    """The faults of a link; they outlive its nodes, as faults of a real network do."""

    __slots__ = ("bandwidth", "cut", "latency_s")

    def __init__(self) -> None:
        self.latency_s: float | None = None
        self.bandwidth: float | None = None
        self.cut = False


class Network:
    """Latencies in seconds, bandwidths in bytes/s, sizes in bytes.

    Raises ValueError for a negative latency or jitter and for a bandwidth that
    is not positive.
    """

    def __init__(
        self,
        env: Environment,
        latency_s: float,
        bandwidth: float,
        loopback_latency_s: float,
        loopback_bandwidth: float,
        rng: random.Random,
        jitter_s: float = 0.0,
    ) -> None:
        for name, seconds in (
            ("latency_s", latency_s),
            ("loopback_latency_s", loopback_latency_s),
            ("jitter_s", jitter_s),
        ):
            _check_latency(name, seconds)
        _check_bandwidth("bandwidth", bandwidth)
        _check_bandwidth("loopback_bandwidth", loopback_bandwidth)
        self.env = env
        self.latency_s = latency_s
        self.bandwidth = bandwidth
        self.loopback_latency_s = loopback_latency_s
        self.loopback_bandwidth = loopback_bandwidth
        self.jitter_s = jitter_s
        self._random = rng.random
        self._hosts: dict[int, int] = {}  # of the nodes that are there
        self._removed: set[int] = set()
        self._paused: set[int] = set()
        self._links: dict[int, dict[int, Link]] = {}  # by source, then destination
        self._faults: dict[tuple[int, int], _Fault] = {}
        self._sent_before: Counter[tuple[int, int]] = Counter()  # on links that are gone
        self._resources: dict[tuple[str, int], SharedRate] = {}
        self._resource_count = 0
        self._marked: dict[SharedRate, None] = {}

    # -- nodes -------------------------------------------------------------

    def add_node(self, node: int, host: int) -> None:
        """Put `node` on `host`. A number that was removed may be used again.

        Raises ValueError if the node is there already.
        """
        if node in self._hosts:
            raise ValueError(f"node {node} is on host {self._hosts[node]} already")
        self._hosts[node] = host
        self._removed.discard(node)
        self._links[node] = {}

    def remove_node(self, node: int) -> None:
        """Lose all frames from and to `node`; fail its transfers at this instant.

        Until it is added again, frames from and to it are lost without a word
        and transfers fail. Overrides and cuts of its links stay in force.
        Raises ValueError if the node is not there.
        """
        if node not in self._hosts:
            raise ValueError(f"there is no node {node}")
        gone = list(self._links.pop(node).values())
        for links in self._links.values():
            link = links.pop(node, None)
            if link is not None:
                gone.append(link)
        for link in gone:
            link.kill()
            if link.flow is not None:
                link.flow.fail_all()
            self._sent_before[link.src_host, link.dst_host] += link.sent_bytes
        del self._hosts[node]
        self._removed.add(node)
        self._paused.discard(node)

    def pause_node(self, node: int) -> None:
        """Let transfers from and to `node` stand still; pausing twice is pausing once.

        Raises ValueError if the node is not there.
        """
        self._stall(node, True)

    def resume_node(self, node: int) -> None:
        """Undo `pause_node`. Raises ValueError if the node is not there."""
        self._stall(node, False)

    def _stall(self, node: int, paused: bool) -> None:
        self.host_of(node)
        if paused == (node in self._paused):
            return
        (self._paused.add if paused else self._paused.discard)(node)
        links = list(self._links[node].values())
        links += [to[node] for src, to in self._links.items() if src != node and node in to]
        for link in links:
            link.stalled += 1 if paused else -1
            flow = link.flow
            if flow is not None:
                flow.touch()
                flow.detach()
                flow.attach()

    def host_of(self, node: int) -> int:
        """Return the host of `node`; raises ValueError if the node is not there."""
        if node not in self._hosts:
            raise ValueError(f"there is no node {node}")
        return self._hosts[node]

    # -- traffic -----------------------------------------------------------

    def send(self, src: int, dst: int, nbytes: int, deliver: Callable[[], None]) -> None:
        """Send a control frame of `nbytes`; `deliver()` is called when it arrives.

        `src` may equal `dst`: a local socket. The frame is lost if either node
        was removed, or is before it arrives. Raises ValueError if either never
        existed or `nbytes` is negative.
        """
        try:
            link = self._links[src][dst]
        except KeyError:
            new = self._connect(src, dst)
            if new is None:
                return
            link = new
        if nbytes < 0:
            raise ValueError(f"a frame cannot have {nbytes} bytes")
        link.sent_bytes += nbytes
        delay_s = link.latency_s + nbytes / link.bandwidth
        if link.jitter_s:
            delay_s += link.jitter_s * self._random()
        now = self.env.now
        arrival = now + delay_s
        if arrival < link.last_arrival:  # never overtake
            delay_s = link.last_arrival - now
            while now + delay_s < link.last_arrival:  # by rounding
                delay_s = nextafter(delay_s, inf)
            arrival = now + delay_s
        link.last_arrival = arrival
        self.env.schedule(Callback(deliver, link.callbacks), NORMAL, delay_s)

    def transfer(self, src: int, dst: int, nbytes: int, done: Callable[[bool], None]) -> Transfer:
        """Move `nbytes` of bulk data; `done(True)` a latency after the last byte left.

        `done(False)` if either node is, or was, removed. `done` is always
        called from an event, never from within this call. Raises ValueError if
        either node never existed or `nbytes` is negative.
        """
        if nbytes < 0:
            raise ValueError(f"a transfer cannot have {nbytes} bytes")
        link = self._links.get(src, {}).get(dst) or self._connect(src, dst)
        if link is None:
            transfer = Transfer(src, dst, nbytes, done, None)
            transfer._state = "failed"
            self.env.schedule(Callback(transfer._fail, ALWAYS), NORMAL, 0)
            return transfer
        if link.flow is None:
            link.flow = Flow(self, link)
        transfer = Transfer(src, dst, nbytes, done, link.flow)
        link.flow.add(transfer)
        return transfer

    @property
    def bytes_sent(self) -> dict[tuple[int, int], int]:
        """Bytes sent so far by (source host, destination host), lost ones too.

        A frame counts when it is sent, a transfer as its bytes leave.
        """
        sent = Counter(self._sent_before)
        for links in self._links.values():
            for link in links.values():
                pair = link.src_host, link.dst_host
                sent[pair] += link.sent_bytes
                if link.flow is not None:
                    sent[pair] += round(
                        sum(t.sent_bytes for t in link.flow.transfers if t._state == "flowing")
                    )
        return dict(sent)

    # -- faults ------------------------------------------------------------

    def set_link(
        self,
        src: int,
        dst: int,
        latency_s: float | None = None,
        bandwidth: float | None = None,
    ) -> None:
        """Override the link from `src` to `dst`; None is the network's own figure again.

        The bandwidth is a cap shared by the link's transfers; above the card's
        it has no effect. Frames on their way are not affected. Raises
        ValueError for a bad figure or a node that never existed.
        """
        if latency_s is not None:
            _check_latency("latency_s", latency_s)
        if bandwidth is not None:
            _check_bandwidth("bandwidth", bandwidth)
        fault = self._fault(src, dst)
        fault.latency_s, fault.bandwidth = latency_s, bandwidth
        link = self._links.get(src, {}).get(dst)
        if link is None:
            return  # applied when it comes to be
        flow = link.flow
        if flow is not None:
            flow.touch()
            flow.detach()
        self._configure(link, fault)
        if flow is not None:
            flow.resources = self.resources_of(link)
            flow.attach()
            flow.touch()

    def cut(self, src: int, dst: int) -> None:
        """Let nothing through from `src` to `dst` until `heal`; cutting twice is cutting once.

        Raises ValueError for a node that never existed.
        """
        fault = self._fault(src, dst)
        if fault.cut:
            return
        fault.cut = True
        link = self._links.get(src, {}).get(dst)
        if link is not None:
            link.close()
            if link.flow is not None:
                link.flow.touch()
                link.flow.detach()

    def heal(self, src: int, dst: int) -> None:
        """Undo `cut`: held frames arrive a latency from now, transfers resume at once.

        Raises ValueError for a node that never existed.
        """
        fault = self._fault(src, dst)
        if not fault.cut:
            return
        fault.cut = False
        link = self._links.get(src, {}).get(dst)
        if link is not None:
            link.open()
            if link.flow is not None:
                link.flow.attach()
                link.flow.touch()

    # -- links -------------------------------------------------------------

    def _connect(self, src: int, dst: int) -> Link | None:
        """Return the new link between two nodes, None if either was removed."""
        for node in (src, dst):
            if node not in self._hosts:
                if node in self._removed:
                    return None
                raise ValueError(f"there is no node {node}")
        link = Link(self.env, self._hosts[src], self._hosts[dst])
        self._configure(link, self._faults.get((src, dst)))
        link.stalled = len({src, dst} & self._paused)
        self._links[src][dst] = link
        return link

    def _configure(self, link: Link, fault: _Fault | None) -> None:
        """Set a link's figures from the network's own and what was done to the link."""
        if link.src_host == link.dst_host:
            link.latency_s = self.loopback_latency_s
            link.bandwidth = self.loopback_bandwidth
            link.jitter_s = 0.0
        else:
            link.latency_s = self.latency_s
            link.bandwidth = self.bandwidth
            link.jitter_s = self.jitter_s
        link.cap = None
        if fault is None:
            return
        if fault.latency_s is not None:
            link.latency_s = fault.latency_s
        if fault.bandwidth is not None:
            link.bandwidth = min(link.bandwidth, fault.bandwidth)
            link.cap = self._new_resource(fault.bandwidth)
        if fault.cut and not link.cut:
            link.close()

    def _fault(self, src: int, dst: int) -> _Fault:
        for node in (src, dst):
            if node not in self._hosts and node not in self._removed:
                raise ValueError(f"there is no node {node}")
        return self._faults.setdefault((src, dst), _Fault())

    # -- sharing -----------------------------------------------------------

    def _new_resource(self, bandwidth: float) -> SharedRate:
        self._resource_count += 1
        return SharedRate(bandwidth, self._resource_count)

    def _resource(self, kind: str, host: int, bandwidth: float) -> SharedRate:
        resource = self._resources.get((kind, host))
        if resource is None:
            resource = self._resources[kind, host] = self._new_resource(bandwidth)
        return resource

    def resources_of(self, link: Link) -> list[SharedRate]:
        """Return the bandwidths that the transfers on `link` share."""
        if link.src_host == link.dst_host:
            used = [self._resource("loopback", link.src_host, self.loopback_bandwidth)]
        else:
            used = [
                self._resource("egress", link.src_host, self.bandwidth),
                self._resource("ingress", link.dst_host, self.bandwidth),
            ]
        if link.cap is not None:
            used.append(link.cap)
        return used

    def mark(self, resources: list[SharedRate]) -> None:
        """Have the rates on these resources computed again at the end of this instant."""
        if not self._marked:
            self.env.schedule(Callback(self._share, ALWAYS), END_OF_INSTANT, 0)
        for resource in resources:
            self._marked[resource] = None

    def _share(self) -> None:
        """Compute the rates on the marked resources and all that are connected to them."""
        reached, self._marked = self._marked, {}
        frontier = list(reached)
        seen: set[Flow] = set()
        for resource in frontier:  # grows
            for flow in resource.flows:
                if flow not in seen:
                    seen.add(flow)
                    for used in flow.resources:
                        if used not in reached:
                            reached[used] = None
                            frontier.append(used)
        for flow, rate in fill(frontier).items():
            if rate != flow.rate:
                flow.set_rate(rate)


def _check_latency(name: str, seconds: float) -> None:
    if not 0 <= seconds < inf:
        raise ValueError(f"{name} must be a finite number of seconds >= 0, not {seconds}")


def _check_bandwidth(name: str, bandwidth: float) -> None:
    if not 0 < bandwidth < inf:
        raise ValueError(f"{name} must be a positive, finite number of bytes/s, not {bandwidth}")
