"""The GCS's history of tasks: a row for each that has finished, the coldest on disk.

With ``task_history`` the GCS keeps a row of an array of tasks when its last owner releases it.
Without a limit the history grows with every task, as the paper's GCS does without flushing. At
the limit the GCS writes a batch of the oldest rows to the storage for each batch of new ones, so
that memory stays constant and no turn takes long. The storage reads a row back only for a
`FindTask`.

Cost in memory: about `ROW_BYTES` and the row's own bytes each.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec

from raytwin.runtime.control.core.addresses import STORAGE
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.gcs.array_row import ArrayRow
from raytwin.runtime.control.messages import FindTask, LoadRow, RowLoaded, StoreRows, TaskFound

ROW_BYTES = 140
"""Memory of a row beyond its contents: two bytes objects of 33 bytes and their rounding, and what a
dict has for an item; a resident set grew by 200 bytes for each of a million rows of 60."""
BATCH_ROWS = 512
"""How many rows are flushed at once: one at a time would be slow, because Python walks over the
slots of all deleted rows to find the first one."""

_encode = msgspec.msgpack.Encoder().encode


class TaskHistory:
    """Rows of finished arrays."""

    def __init__(self, ctx: Context, memory_max: int = 0) -> None:
        self._ctx = ctx
        self._memory_max = memory_max
        self.rows: dict[bytes, bytes] = {}
        """Array -> its row in memory, the oldest first."""
        self.nbytes = 0
        """The size of the rows in memory."""
        self.flushed = 0
        """Rows that are on disk and nowhere else."""
        self._asked: dict[int, tuple[str, int, str, bytes]] = {}
        self._requests = 0

    def add(self, array: bytes, row: ArrayRow) -> None:
        """Keep the row of an array that its last owner releases."""
        packed = pack(row)
        earlier = self.rows.pop(array, None)  # of a task that ran again
        if earlier is not None:
            self.nbytes -= _bytes_of(array, earlier)
        self.rows[array] = packed
        self.nbytes += _bytes_of(array, packed)
        if self._memory_max and self.nbytes > self._memory_max:
            self._flush()

    def _flush(self) -> None:
        """Write a batch of the oldest rows to disk."""
        rows = list(islice(self.rows.items(), BATCH_ROWS))
        for array, _ in rows:
            del self.rows[array]
        self.nbytes -= sum(_bytes_of(*row) for row in rows)
        self.flushed += len(rows)
        self._ctx.send(STORAGE, StoreRows(rows))

    def on_find(self, source: str, message: FindTask) -> None:
        """Answer from memory, or ask the disk."""
        array = message.array
        row = self.rows.get(array)
        if row is not None or not self.flushed:
            self._ctx.send(source, TaskFound(message.request, message.client, row))
            return
        self._requests += 1
        self._asked[self._requests] = (source, message.request, message.client, array)
        self._ctx.send(STORAGE, LoadRow(array, self._requests))

    def unanswered(self) -> list[LoadRow]:
        """Return the questions that the storage has not answered."""
        return [LoadRow(array, number) for number, (*_, array) in self._asked.items()]

    def on_loaded(self, source: str, message: RowLoaded) -> None:
        """The disk has answered."""
        asked = self._asked.pop(message.request, None)
        if asked is not None:  # else the head asked before a restart, and again after it
            to, request, client, _ = asked
            self._ctx.send(to, TaskFound(request, client, message.row))


def _bytes_of(array: bytes, row: bytes) -> int:
    return ROW_BYTES + len(array) + len(row)


def pack(row: ArrayRow) -> bytes:
    """Return an array's row for the history; see `unpack`."""
    runs = [*((spec, -1) for spec in row.lineage), *row.accepted]
    tasks = [(spec.name, spec.function, spec.start, spec.count, node) for spec, node in runs]
    return _encode((row.former, tasks, [(d.start, d.count, d.node) for d in row.done]))


def unpack(row: bytes) -> dict[str, Any]:
    """Return {owner, tasks, done} of a packed row.

    ``tasks``: [name, function ID, start, count, node] of the ranges that were
    accepted, node -1 where their values are lost or freed; ``done``: [start, count,
    node] of those that have ended.
    """
    owner, tasks, done = msgspec.msgpack.decode(row)
    return {"owner": owner, "tasks": tasks, "done": done}
