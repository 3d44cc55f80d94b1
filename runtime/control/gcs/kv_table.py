"""The GCS's key-value table: single-key operations for users of the cluster.

Each is answered by `KvReply` with the value that the key had, and takes effect
at one moment between request and answer. Both sides are bytes; a key and its
value together are as long as a message may be.
"""

from __future__ import annotations

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import KvGet, KvPut, KvReply


class KvTable:
    """Keys and values; asked by nodes for their clients."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.values: dict[bytes, bytes] = {}

    def on_put(self, source: str, message: KvPut) -> None:
        """Set a key; answer with its value before."""
        before = self.values.get(message.key)
        self.values[message.key] = message.value
        self._ctx.send(source, KvReply(message.request, message.client, before))

    def on_get(self, source: str, message: KvGet) -> None:
        """Answer with a key's value."""
        value = self.values.get(message.key)
        self._ctx.send(source, KvReply(message.request, message.client, value))
