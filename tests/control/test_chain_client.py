"""`ChainClient`: the replies that a client of a chain accepts."""

from __future__ import annotations

from typing import Any

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import ChainOutput, Event, Frame
from raytwin.runtime.control.replication.client import ChainClient
from raytwin.runtime.control.replication.state_machine import encode_frames
from tests.control.alone import Alone

TAIL = "replica:0.2"


class Inner:
    """A component that notes what it is told and greets the chain's machine."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.heard: list[tuple[str, Any]] = []

    def handle(self, source: str, message: Any) -> None:
        self.heard.append((source, message))

    def end_turn(self) -> None:
        """It has nothing to say."""


def test_a_reply_to_the_clients_former_process_is_ignored() -> None:
    ctx = Alone()
    ctx.time_s = 7.5
    client = ChainClient(ctx, "node:1", Inner)
    client.request("gcs", Event("first", "it"))
    client.end_turn()
    body = encode_frames([Frame("gcs", "node:1", [Event("hello", "it")])])
    client.handle(TAIL, ChainOutput(5, 1, body, born=0.0))
    assert len(client.unconfirmed) == 1 and client.received == 0
    client.handle(TAIL, ChainOutput(1, 1, body, born=7.5))
    assert not client.unconfirmed
    assert isinstance(client.inner, Inner)
    assert client.inner.heard == [("gcs", Event("hello", "it"))]
