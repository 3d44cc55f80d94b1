"""The GCS's history of tasks: a row for each that has finished, the coldest on disk.

With ``task_history`` the GCS keeps what an array of tasks was when its owner
lets go of it. Without a limit this grows with every task, as the paper's GCS
does without flushing. With one::

    add ──> newest generation ──its share is full──> ... ──> oldest ──the limit──> StoreRows

At the limit a batch of the oldest generation goes to the storage whenever as much has come,
so memory stays where it is and no turn does much. What is on disk is read back only if
somebody asks for it, through the same address.

Cost in memory: about `ROW_BYTES` and the row's own bytes each.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from raytwin.runtime.control.core.addresses import STORAGE
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.gcs.array_row import ArrayRow
from raytwin.runtime.control.messages import FindTask, LoadRow, RowLoaded, StoreRows, TaskFound

ROW_BYTES = 180
"""Of a row's two bytes objects and its place in a dict, besides their contents."""
BATCH_ROWS = 512
GENERATIONS = 16
"""That the limit is divided into: from the front of one dictionary rows cannot be taken."""

_encode = msgspec.msgpack.Encoder().encode


class TaskHistory:
    """Rows of finished arrays, by ID."""

    def __init__(self, ctx: Context, memory_max: int = 0) -> None:
        self._ctx = ctx
        self._memory_max = memory_max
        self.generations: deque[dict[bytes, bytes]] = deque([{}])
        """The rows in memory, those that came last in the last one."""
        self.nbytes = 0
        """What they take."""
        self._newest_bytes = 0
        self.flushed = 0
        """Rows that are on disk and nowhere else."""
        self._asked: dict[int, tuple[str, int, str, bytes]] = {}
        self._requests = 0

    def add(self, array: bytes, row: ArrayRow) -> None:
        """Keep what an array was that its owner lets go of."""
        packed = pack(row)
        newest = self.generations[-1]
        earlier = newest.pop(array, None)  # a parent that ran again made it its own
        if earlier is not None:
            self._count(-_bytes_of(array, earlier))
        newest[array] = packed
        self._count(_bytes_of(array, packed))
        if not self._memory_max:
            return
        if self._newest_bytes >= self._memory_max // GENERATIONS:
            self.generations.append({})
            self._newest_bytes = 0
        if self.nbytes > self._memory_max:
            self._flush()

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._newest_bytes += nbytes

    def _flush(self) -> None:
        """Write a batch of the oldest rows to disk."""
        if len(self.generations) == 1:
            self.generations.append({})
            self._newest_bytes = 0
        oldest = self.generations[0]
        rows = [oldest.popitem() for _ in range(min(BATCH_ROWS, len(oldest)))]
        if not oldest:
            self.generations.popleft()
        self.nbytes -= sum(_bytes_of(*row) for row in rows)
        self.flushed += len(rows)
        self._ctx.send(STORAGE, StoreRows(rows))

    def find(self, array: bytes) -> bytes | None:
        """Return the last row of an array that is in memory."""
        return next((rows[array] for rows in reversed(self.generations) if array in rows), None)

    def on_find(self, source: str, message: FindTask) -> None:
        """Answer from memory, or ask the disk."""
        array = message.array
        row = self.find(array)
        if row is not None or not self.flushed:
            self._ctx.send(source, TaskFound(message.request, message.client, row))
            return
        self._requests += 1
        self._asked[self._requests] = (source, message.request, message.client, array)
        self._ctx.send(STORAGE, LoadRow(array, self._requests))

    def unanswered(self) -> list[LoadRow]:
        """Return what the storage was asked and has not answered: it may be another one's."""
        return [LoadRow(array, number) for number, (*_, array) in self._asked.items()]

    def on_loaded(self, source: str, message: RowLoaded) -> None:
        """The disk has answered."""
        asked = self._asked.pop(message.request, None)
        if asked is not None:  # else it was asked before a restart, and again after it
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
