"""``relay``: carries what the machines of a sharded GCS have to say to one another.

It lives in the head's process, beside the masters, and is a client of every
chain. What a machine sends to a component of another one comes out of its chain
as an output for the relay, which makes it a request to that other chain::

    gcs ──ChainOutput──> relay ──ChainRequest──> gcs.2

Outputs and requests are numbered, and both ends keep what is not confirmed, so
each takes effect once, and in order from one machine to another, whichever
replicas die.
"""

from __future__ import annotations

from typing import Any

from runtime.control.chain_client import Chained
from runtime.control.context import Component, Context
from runtime.control.messages import ChainConfigured, ChainOutput, Frame
from runtime.control.replicated import RELAY
from runtime.control.shards import chain_addresses, chain_of, master_of


class _Port:
    """The relay as one chain sees it."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def take(self, frame: Frame) -> None:
        """Pass on what is for another machine."""
        link = self._relay.link_of[frame.destination]
        for message in frame.messages:
            link.request(frame.destination, message, frame.source)

    def handle(self, source: str, message: Any) -> None:
        raise TypeError(f"the relay was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""


class Relay:
    """Of `shards` shards and the rest, as chains 0 to `shards`."""

    def __init__(self, ctx: Context, shards: int) -> None:
        def make(inner: Context) -> Component:
            return _Port(self)

        self.links = [Chained(ctx, RELAY, make, chain) for chain in range(shards + 1)]
        self.link_of = {
            address: link
            for chain, link in enumerate(self.links)
            for address in chain_addresses(chain)
        }
        self._by_master = {master_of(chain): link for chain, link in enumerate(self.links)}

    def start(self) -> None:
        """Ask for every chain's configuration; be its client from the start."""
        for link in self.links:
            link.greet()
            link.start()

    def handle(self, source: str, message: Any) -> None:
        """Take one message of a chain; an unknown type is a programming error."""
        if isinstance(message, ChainOutput):
            self.links[chain_of(source)].handle(source, message)
        elif isinstance(message, ChainConfigured):
            self._by_master[source].handle(source, message)
        else:
            raise TypeError(f"the relay was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Send each chain one request with all that came for it."""
        for link in self.links:
            link.end_turn()
