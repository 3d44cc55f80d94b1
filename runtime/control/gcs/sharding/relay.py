"""``relay.0`` to ``relay.<n>``: what the machines of a sharded GCS have to say to one another.

They live in the head's process, beside the masters. ``relay.<a>`` speaks for chain
a with all other chains, of which it is a client like any other::

    gcs.a ──ChainOutput n, for relay.b──> relay.b
                                             └ relay.a ──ChainRequest n──> gcs.b

What machine a has to say to machine b it numbers on its own, and keeps it until b is
known to have applied it. Its n-th output becomes the n-th request of ``relay.<a>`` at b,
which applies each once, in order. So nothing that matters is the relay's: whichever
replicas die each takes effect once, and if the head does, its successor begins with
what a still keeps, of which b leaves out what it has had.

::

    output of a   KEPT at a ──request──> APPLIED at b ──acknowledged to a──> forgotten
"""

from __future__ import annotations

from collections import deque
from typing import Any

from raytwin.runtime.control.core.addresses import chain_of, master_of, relay_of
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import (
    ChainAttach,
    ChainConfigured,
    ChainHello,
    ChainOutput,
    ChainRequest,
)
from raytwin.runtime.control.replication.state_machine import RELAY_BORN

UNACKNOWLEDGED_MAX = 64
"""Outputs that have been applied without the machine that keeps them being told."""


class _Way:
    """From a relay's own chain to another one, and what comes from there."""

    __slots__ = ("acknowledged", "applied", "epoch", "head", "received", "unconfirmed")

    def __init__(self) -> None:
        self.epoch = 0
        self.head = ""
        """Of the other chain; empty before it is configured."""
        self.unconfirmed: deque[tuple[int, bytes]] = deque()
        self.applied = 0
        """Of what its own chain has said, by the other one."""
        self.received: int | None = None
        """Of what the other chain has said; None: nothing yet, so the next is the first."""
        self.acknowledged = 0
        """The last of what the other chain has said that it was told has been applied."""


class Relay:
    """Speaks for one chain with all others; is ``relay.<chain>``."""

    def __init__(self, ctx: Context, chain: int, relays: list[Relay]) -> None:
        self.ctx = ctx
        self.chain = chain
        self.address = relay_of(chain)
        self._relays = relays
        """Of all chains."""
        self._ways: dict[int, _Way] = {}

    def start(self) -> None:
        """Ask for the configuration of every other chain."""
        for other in self._relays:
            if other is not self:
                self._ways[other.chain] = _Way()
                self.ctx.send(master_of(other.chain), ChainHello(self.address, RELAY_BORN))

    def handle(self, source: str, message: Any) -> None:
        """Take one message of another chain; an unknown type is a programming error."""
        if isinstance(message, ChainOutput):
            self._on_output(chain_of(source), message)
        elif isinstance(message, ChainConfigured):
            self._on_configured(int(source.partition(".")[2] or 0), message)
        else:
            raise TypeError(f"{self.address} was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    def _on_output(self, chain: int, message: ChainOutput) -> None:
        way = self._ways[chain]
        other = self._relays[chain]
        if not way.head:
            return  # for an earlier head's relay: what is kept comes again when this one attaches
        if message.applied > way.applied:
            way.applied = message.applied
            while way.unconfirmed and way.unconfirmed[0][0] <= way.applied:
                way.unconfirmed.popleft()
            other._may_acknowledge(self.chain, way.applied)
        # What is not the next one came over two ways: from a former tail and again.
        if message.body and (way.received is None or message.sequence == way.received + 1):
            way.received = message.sequence
            other._carry(self.chain, message.sequence, message.body)

    def _carry(self, chain: int, sequence: int, body: bytes) -> None:
        """Make an output of this relay's own chain a request to another one."""
        way = self._ways[chain]
        way.unconfirmed.append((sequence, body))
        self._send(chain, sequence, body)

    def _may_acknowledge(self, chain: int, applied: int) -> None:
        """This relay's own chain has applied so much of what another one has said."""
        way = self._ways[chain]
        if way.head and applied - way.acknowledged >= UNACKNOWLEDGED_MAX:
            self._send(chain, 0, b"")

    def _send(self, chain: int, sequence: int, body: bytes) -> None:
        way = self._ways[chain]
        if way.head:
            way.acknowledged = self._relays[chain]._ways[self.chain].applied
            request = ChainRequest(
                way.epoch, self.address, RELAY_BORN, sequence, way.acknowledged, body
            )
            self.ctx.send(way.head, request)

    def _on_configured(self, chain: int, message: ChainConfigured) -> None:
        way = self._ways[chain]
        if message.epoch < way.epoch:
            return
        way.epoch = message.epoch
        way.head = message.members[0].name
        tail = message.members[-1].name
        attach = ChainAttach(message.epoch, self.address, RELAY_BORN, way.received or 0)
        self.ctx.send(tail, attach)
        for sequence, body in way.unconfirmed:
            self._send(chain, sequence, body)


def make_relays(contexts: list[Context]) -> list[Relay]:
    """Return the relays of all chains, given their contexts in the order of the chains."""
    relays: list[Relay] = []
    relays += [Relay(ctx, chain, relays) for chain, ctx in enumerate(contexts)]
    return relays
