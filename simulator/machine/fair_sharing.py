"""Transfers at max-min fair rates, which are computed again when one begins or ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Any, Protocol

from simpy import Environment, Event
from simpy.events import NORMAL, EventPriority

END_OF_INSTANT = EventPriority(2)
"""The priority of an event that follows all others of its instant."""


class Callback(Event):
    """An event that holds `call`, for the callbacks that it is given to use."""

    __slots__ = ("call", "callbacks")

    _ok = True
    _value = None

    def __init__(self, call: Callable[[], None], callbacks: list[Callable[[Any], None]]) -> None:
        # SimPy's own constructor is skipped: it allocates a list per event.
        self.call = call
        self.callbacks = callbacks


def make_call(event: Callback) -> None:
    event.call()


ALWAYS: list[Callable[[Any], None]] = [make_call]


class SharedRate:
    """A bandwidth in bytes/s that links share; `left` and `users` are `fill`'s."""

    __slots__ = ("bandwidth", "flows", "index", "left", "users")

    def __init__(self, bandwidth: float, index: int) -> None:
        self.bandwidth = bandwidth
        self.index = index
        self.flows: dict[Flow, None] = {}  # those that use it now
        self.left = 0.0
        self.users = 0


def fill(resources: Iterable[SharedRate]) -> dict[Flow, float]:
    """Return the max-min fair rate of one transfer of each flow on `resources`.

    `resources` must be closed: with a resource, all others that its flows use.
    Progressive filling: all rates grow together until a resource is full, whose
    flows then keep their rate. The share that a resource could still give only
    grows while others fill up, so a heap entry is at worst too low.
    """
    rates: dict[Flow, float] = {}
    heap = []
    for resource in resources:
        resource.left = resource.bandwidth
        resource.users = sum(flow.active for flow in resource.flows)
        if resource.users:
            heap.append((resource.left / resource.users, resource.index, resource))
    heapify(heap)
    while heap:
        share, index, resource = heap[0]
        if not resource.users:
            heappop(heap)
            continue
        share_now = resource.left / resource.users
        if share_now > share:
            heapreplace(heap, (share_now, index, resource))
            continue
        assert share_now > 0, "a resource was given away more than whole"
        heappop(heap)
        for flow in resource.flows:
            if flow not in rates:
                rates[flow] = share_now
                for used in flow.resources:
                    used.users -= flow.active
                    used.left -= flow.active * share_now
    return rates


class Transfer:
    """Bulk data on its way; made by `Network.transfer`."""

    __slots__ = ("_done", "_flow", "_starts", "_state", "dst", "nbytes", "src")

    def __init__(
        self, src: int, dst: int, nbytes: int, done: Callable[[bool], None], flow: Flow | None
    ) -> None:
        self.src = src
        self.dst = dst
        self.nbytes = nbytes
        self._done = done
        self._flow = flow
        self._starts = 0.0  # the flow's `served` when this began
        self._state = "flowing"  # then "landing" (last byte sent) or "failed", then "over"

    @property
    def sent_bytes(self) -> float:
        """Bytes that have left the source."""
        flow = self._flow
        if flow is None or self._state != "flowing":
            return self._starts  # set when the transfer stopped flowing
        return min(float(self.nbytes), max(0.0, flow.served_now() - self._starts))

    @property
    def rate(self) -> float:
        """Bytes/s now; in the instant of a change it may still be zero."""
        if self._flow is None or self._state != "flowing":
            return 0.0
        return self._flow.rate

    def cancel(self) -> None:
        """Give up: frees the bandwidth, and `done` is not called. Once over, does nothing."""
        if self._state == "flowing" and self._flow is not None:
            self._flow.drop(self)
        elif self._flow is not None:
            self._flow.transfers.pop(self, None)
        self._state = "over"

    def _land(self) -> None:
        if self._state == "landing":
            assert self._flow is not None
            del self._flow.transfers[self]
            self._state = "over"
            self._done(True)

    def _fail(self) -> None:
        if self._state == "failed":
            self._state = "over"
            self._done(False)


class Link(Protocol):
    """One direction between two nodes, as a flow sees it: `network.Link`."""

    sent_bytes: int
    latency_s: float
    cut: bool
    stalled: int
    callbacks: list[Callable[[Any], None]]


class Medium(Protocol):
    """The network that a flow is part of: `network.Network`."""

    env: Environment

    def resources_of(self, link: Any) -> list[SharedRate]:
        """Return the network cards and caps that the flow on a link shares with others."""

    def mark(self, resources: list[SharedRate]) -> None:
        """Have the rates on these resources computed again at the end of this instant."""


class Flow:
    """The transfers on one link, which all have the same rate."""

    def __init__(self, network: Medium, link: Link) -> None:
        self.network = network
        self.link = link
        self.resources = network.resources_of(link)
        self.transfers: dict[Transfer, None] = {}  # in order of start; flowing and landing
        self.active = 0  # those that flow
        self.rate = 0.0
        self._served = 0.0  # bytes each has got since the flow was last idle, as of _settled
        self._settled = 0.0
        self._ends: list[tuple[float, int, Transfer]] = []  # by value of `served`
        self._started = 0
        self._event: Callback | None = None  # in the schedule, at or before _due
        self._event_at = inf
        self._due = inf  # when the first transfer ends

    def served_now(self) -> float:
        return self._served + self.rate * (self.network.env.now - self._settled)

    def add(self, transfer: Transfer) -> None:
        self.transfers[transfer] = None
        if transfer.nbytes == 0:
            self._last_byte(transfer)
            return
        self.touch()
        self.active += 1
        transfer._starts = self._served
        self._started += 1
        heappush(self._ends, (self._served + transfer.nbytes, self._started, transfer))
        self.attach()

    def drop(self, transfer: Transfer) -> None:
        """Forget a flowing transfer, whose bytes sent so far count as sent."""
        transfer._starts = transfer.sent_bytes
        self.link.sent_bytes += round(transfer._starts)
        transfer._state = "over"
        del self.transfers[transfer]
        self.touch()
        self.active -= 1
        self._rest_if_idle()

    def fail_all(self) -> None:
        """End all transfers with `done(False)`, from events at this instant."""
        self.touch()
        self.detach()
        for transfer in self.transfers:
            if transfer._state == "flowing":
                transfer._starts = transfer.sent_bytes
                self.link.sent_bytes += round(transfer._starts)
            transfer._state = "failed"
            self.network.env.schedule(Callback(transfer._fail, ALWAYS), NORMAL, 0)
        self.transfers = {}
        self.active = 0
        self._ends = []

    def touch(self) -> None:
        """Set the rate to 0 until the end of this instant, when rates are computed again."""
        now = self.network.env.now
        self._served += self.rate * (now - self._settled)
        self._settled = now
        self.rate = 0.0
        self._due = inf
        self.network.mark(self.resources)

    def attach(self) -> None:
        """Take part in the sharing, unless idle or cut."""
        if self.active and not self.link.cut and not self.link.stalled:
            for resource in self.resources:
                resource.flows[self] = None

    def detach(self) -> None:
        for resource in self.resources:
            resource.flows.pop(self, None)

    def set_rate(self, rate: float) -> None:
        now = self.network.env.now
        self._served += self.rate * (now - self._settled)
        self._settled = now
        self.rate = rate
        while self._ends[0][2]._state != "flowing":  # cancelled
            heappop(self._ends)
        delay_s = max(0.0, (self._ends[0][0] - self._served) / rate)
        self._due = now + delay_s
        # An event that comes too early is put off when it comes.
        if self._event is None or self._event_at > self._due:
            self._schedule(delay_s)

    def _schedule(self, delay_s: float) -> None:
        env = self.network.env
        self._event = Callback(nothing, [self._on_event])
        self._event_at = env.now + delay_s
        env.schedule(self._event, NORMAL, delay_s)

    def _on_event(self, event: Callback) -> None:
        if event is not self._event:
            return  # an earlier event has replaced it
        self._event = None
        now = self.network.env.now
        if now < self._due:
            if self._due < inf:
                self._due = now + (self._due - now)  # exactly when the event will be due
                self._schedule(self._due - now)
            return
        self.touch()
        # Rounding must not leave a byte's billionth behind.
        self._served = max(self._served, self._ends[0][0])
        while self._ends and self._ends[0][0] <= self._served:
            transfer = heappop(self._ends)[2]
            if transfer._state == "flowing":
                self.active -= 1
                self._last_byte(transfer)
        self._rest_if_idle()

    def _last_byte(self, transfer: Transfer) -> None:
        transfer._state = "landing"
        transfer._starts = float(transfer.nbytes)
        link = self.link
        link.sent_bytes += transfer.nbytes
        self.network.env.schedule(Callback(transfer._land, link.callbacks), NORMAL, link.latency_s)

    def _rest_if_idle(self) -> None:
        if not self.active:
            self.detach()
            self._ends = []
            self._served = 0.0


def nothing() -> None:
    """Do nothing: the `call` of an event whose callback does the work."""
