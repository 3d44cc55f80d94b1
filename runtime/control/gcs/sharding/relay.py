"""``relay``: carries messages between the chains of a sharded GCS.

The relay runs in the head's process, as the masters do, and is a client of every chain::

    gcs.a ──ChainOutput, for gcs.b──> relay ──ChainRequest──> gcs.b

Chains number their outputs and clients their requests (`replication`), so each message takes
effect once, in order, whichever replicas die.
"""

from __future__ import annotations

from typing import Any

from raytwin.runtime.control.core.addresses import RELAY, chain_of
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import ChainConfigured, ChainOutput, Frame
from raytwin.runtime.control.replication.client import ChainClient
from raytwin.runtime.control.replication.state_machine import RELAY_BORN


def _number(address: str) -> int:
    """Return the chain of a machine's component, or of a master."""
    return int(address.partition(".")[2] or 0)


class Relay:
    """A client of all chains: the outputs of one chain become requests to others."""

    def __init__(self, ctx: Context, chains: int) -> None:
        self._clients = [
            ChainClient(ctx, RELAY, lambda _: _Endpoint(self), chain, RELAY_BORN)
            for chain in range(chains)
        ]

    def start(self) -> None:
        """Ask for the configuration of every chain."""
        for client in self._clients:
            client.start()

    def handle(self, source: str, message: Any) -> None:
        """Take one message of a chain; an unknown type is a programming error."""
        if isinstance(message, ChainOutput):
            self._clients[chain_of(source)].handle(source, message)
        else:
            assert isinstance(message, ChainConfigured), (
                f"{RELAY} was sent {type(message).__name__}"
            )
            self._clients[_number(source)].handle(source, message)

    def carry(self, frame: Frame) -> None:
        """Make a frame of one chain a part of the next request to another."""
        client = self._clients[_number(frame.destination)]
        for message in frame.messages:
            client.request(frame.destination, message, frame.source)

    def end_turn(self) -> None:
        """Send the requests of this turn."""
        for client in self._clients:
            client.end_turn()


class _Endpoint:
    """The component within each of the relay's clients."""

    def __init__(self, relay: Relay) -> None:
        self.take = relay.carry

    def handle(self, source: str, message: Any) -> None:
        raise TypeError(f"{RELAY} was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""
