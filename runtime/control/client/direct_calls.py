"""Direct calls: a driver calls an actor of its node past the node, as Ray's callers do today.

A program that calls an actor, waits for the result and calls again would wake its node twice a
call. So after `Config.direct_after` such calls the actor's worker offers a connection::

    driver ──DirectCall──> worker ──TaskResults──> driver      a small, plain result
                              └─────DirectClosed──> driver      any other, or the worker died

The node does not know of a direct call, and need not: only actors that never restart take them, so
no call is logged, replayed or sent again. Nobody can tell a direct call from one through the node
by the order of effects, either:

* The driver has the only handle: a handle that was serialized ends the actor's direct calls, and
  named actors have none.
* The driver waits for no other call of the actor. A later call through the node reaches the worker
  behind the direct one.
* The node has handled all that the driver sent it (`SendBuffer.last`).
* The worker answers directly only if the call has sent the node nothing that others may see.

The driver **publishes** a call, once, when others need it:

================================================== ==============================================
the reference leaves the driver, in an argument    no result yet: the driver submits the call
or in a value                                      through the node; else it puts the value
the connection closes before the result            the driver submits the call through the node
================================================== ==============================================

The worker does not run a direct call again that then comes through the node: the worker answers the
node (`worker.direct_answers`), and only that answer counts for the driver. If the actor is dead,
its node fails the call as any other. A call that is not published when its last reference is
dropped leaves no trace in the node but a row of the timeline.
"""

from __future__ import annotations

from raytwin.runtime.control.client.owned_arrays import Entry
from raytwin.runtime.control.client.send_buffer import SendBuffer
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import DirectCall, RangeResult, TaskExtra, TaskSpec

ARGS_BYTES_MAX = 16 << 10
"""Longer arguments go through the node: a direct call must fit into the socket at once."""
WORKERS_MAX = 64
"""A driver has so many connections to workers, at most."""


class DirectCalls:
    """The driver's side: the actors that it calls directly, and the calls without a result."""

    def __init__(
        self, ctx: Context, address: str, entries: dict[bytes, Entry], buffer: SendBuffer
    ) -> None:
        """`entries` are the arrays that the client owns."""
        self._ctx = ctx
        self._address = address
        self._entries = entries
        self._buffer = buffer
        self.workers: dict[bytes, str] = {}
        """The worker of each actor that takes direct calls."""
        self._pending: dict[bytes, TaskSpec] = {}
        """By array, the calls without a result that the node does not know."""

    def on_open(self, actor: bytes, worker: str) -> None:
        """A worker takes direct calls of its actor."""
        handle = self._entries.get(actor)
        if handle is not None and not handle.shared and len(self.workers) < WORKERS_MAX:
            self.workers[actor] = worker

    def on_closed(self, worker: str) -> None:
        """A worker takes no further direct call: publish the one that it has not answered."""
        self.workers = {actor: at for actor, at in self.workers.items() if at != worker}
        for entry in [self._entries[array] for array in self._pending]:
            if entry.worker == worker:
                self.publish(entry)

    def close(self, actor: bytes) -> None:
        """Call an actor through the node from here on."""
        self.workers.pop(actor, None)

    def call(
        self, entry: Entry, actor: bytes, extra: TaskExtra, name: str, retries: int, args: bytes
    ) -> bool:
        """Call an actor directly; return False if the call has to go through the node."""
        worker = self.workers.get(actor)
        handle = self._entries.get(actor)
        if worker is None or handle is None or handle.holds or len(args) > ARGS_BYTES_MAX:
            return False  # each call without a result holds the actor
        if not self._node_is_level():
            return False
        spec = self._pending[entry.array] = TaskSpec(
            entry.array, 0, 1, b"", args, self._address, "", (), 1, retries, -1, name, extra
        )
        entry.worker, entry.private = worker, True
        self._ctx.send(worker, DirectCall(spec))
        return True

    def _node_is_level(self) -> bool:
        """Whether the node has handled everything that this client has submitted or asked."""
        if self._buffer.has_tasks or not self._buffer.last:
            return False
        last = self._entries.get(self._buffer.last)
        return last is None or not last.missing

    def takes(self, result: RangeResult) -> bool:
        """Whether a worker's answer counts: a task's first result, or a call's that is not
        published."""
        entry = self._entries.get(result.array)
        if entry is not None and not entry.worker:
            return entry.result is None
        return self._pending.pop(result.array, None) is not None

    def publish(self, entry: Entry) -> None:
        """Have the node know an array that only the driver and a worker may know."""
        if not entry.private:
            return
        entry.private = False
        if entry.result is None:
            self._buffer.submit([self._pending.pop(entry.array)])
        else:
            self._buffer.put(entry.result)

    def share(self, array: bytes) -> None:
        """A reference is serialized: publish the array, or end direct calls of the actor."""
        entry = self._entries.get(array)
        if entry is not None:
            entry.shared = True
            self.close(array)
            self.publish(entry)
