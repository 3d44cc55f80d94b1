"""The GCS's function table: serialized functions and classes, by ID.

A driver exports a function before it submits tasks of it. A node that fetches a function
which the table does not have yet gets it when it is exported.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import job_of
from raytwin.runtime.control.gcs.pubsub import PubSub
from raytwin.runtime.control.messages import ExportFunction, FetchFunction, FunctionBlob


class FunctionTable:
    """Function ID -> serialized function."""

    def __init__(self, ctx: Context, pubsub: PubSub, ended: Set[bytes]) -> None:
        """`ended`: the jobs that have ended, whose exports come late."""
        self._ctx = ctx
        self._pubsub = pubsub
        self._ended = ended
        self.blobs: dict[bytes, bytes] = {}

    def on_export(self, source: str, message: ExportFunction) -> None:
        """Keep a function, and send it to the nodes that wait for it."""
        if self.is_over(message.function):
            return
        self.blobs[message.function] = message.blob
        for address in self._pubsub.close(message.function):
            self._ctx.send(address, FunctionBlob(message.function, message.blob))

    def on_fetch(self, source: str, message: FetchFunction) -> None:
        """Send a function to a node, now or once it is exported."""
        blob = self.blobs.get(message.function)
        if blob is None:
            self._pubsub.subscribe(message.function, source)
        else:
            self._ctx.send(source, FunctionBlob(message.function, blob))

    def is_over(self, function: bytes) -> bool:
        """Whether the job of a function has ended."""
        return job_of(function) in self._ended

    def drop_ended(self, kept: Collection[bytes]) -> None:
        """Forget the functions of ended jobs; detached actors need those in `kept`."""
        for function in [f for f in self.blobs if self.is_over(f) and f not in kept]:
            del self.blobs[function]
