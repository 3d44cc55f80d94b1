"""`Observer`: sees the signs of life that reach channels, and what these report of their peers.

An oracle holds the one against the other. It sees what really arrives, whatever the control plane
notes of it.
"""

from __future__ import annotations

from typing import Any, Protocol

from raytwin.runtime.control.channels.channel import Channel, Hello


class Observer(Protocol):
    """The observer of a simulated cluster."""

    def on_send(self, channel: Channel) -> None:
        """A channel is about to be given a frame."""

    def on_packet(self, channel: Channel, sequence: int, acknowledged: int, frame: Any) -> None:
        """A packet has reached a channel, which is about to take it."""

    def on_bytes(self, channel: Channel) -> None:
        """A part of a long frame has reached a channel."""

    def on_hello(self, channel: Channel, hello: Hello) -> None:
        """A channel has taken a Hello, and did not refuse its link."""

    def on_report(self, me: str, message: Any) -> None:
        """The channels of a process have reported one of their peers."""

    def on_leave(self, me: str) -> None:
        """A process leaves: its channels have lost the head."""
