"""Publish and subscribe: channels of addresses that receive a table's changes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from raytwin.runtime.control.core.context import Context


class PubSub:
    """Channels of subscribers; each message goes to them in the order of their subscriptions."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._channels: dict[Hashable, dict[str, None]] = {}

    def subscribe(self, channel: Hashable, address: str) -> None:
        """Add a subscriber; has no effect if it subscribes already."""
        self._channels.setdefault(channel, {})[address] = None

    def publish(self, channel: Hashable, message: Any) -> None:
        """Send `message` to every subscriber of the channel."""
        for address in self._channels.get(channel, ()):
            self._ctx.send(address, message)

    def has(self, channel: Hashable) -> bool:
        """Whether a channel has a subscriber."""
        return channel in self._channels

    def close(self, channel: Hashable) -> list[str]:
        """Drop a channel and return its subscribers."""
        return list(self._channels.pop(channel, ()))

    def drop(self, address: str) -> None:
        """Forget a subscriber everywhere."""
        for channel in list(self._channels):
            self._channels[channel].pop(address, None)
            if not self._channels[channel]:
                del self._channels[channel]
