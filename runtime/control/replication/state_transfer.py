"""State transfer from the tail to a replica that joins: flushed rows, then a snapshot.

::

    tail ──ReadRows──> its storage ──ColdRows──> tail ──ColdRows──> joining ──> its storage
         <────────────────────── SnapshotTaken(ROWS), once they are written ──┘
    tail ──SnapshotPart──> joining    at most `PARTS_AHEAD` that it has not taken
         <─SnapshotTaken──

Rows are sent where there are some, `ROWS_BYTES` at a time, the oldest first, in two passes:

1. All rows at the beginning. The tail keeps no commands for the joining replica yet, and
   serves as if it were not there.
2. The tail takes the snapshot, and sends the rows flushed since the first pass began.

The snapshot's parts follow, then the commands since. A row that is flushed after the snapshot
is in it or in those commands, and the replica that applies them flushes it itself. So each row
is written once, in the order of flushing; a replica that has the snapshot in its log has the
rows; the transfer ends, however much is flushed meanwhile; and no row waits behind commands, of
which a loaded chain has seconds of work under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import ColdRows, ReadRows, ReplicaJoined, SnapshotPart

PART_BYTES = 256 * 1024
ROWS_BYTES = 4 << 20
"""Of rows that are sent at once, however small the batches that they were flushed in. To read
them takes a tail some 50 ms; to come to that, under load, a second: few and large, then."""
PARTS_AHEAD = ROWS_BYTES // PART_BYTES
"""Parts of a snapshot under way, for the same reason."""
ROWS = -1
"""The part of a snapshot that flushed rows are, for who has taken some."""


class StateTransfer:
    """One transfer, from the tail to one joining replica in one epoch."""

    def __init__(
        self,
        ctx: Context,
        epoch: int,
        to: str,
        master: str,
        snapshot: Callable[[], tuple[bytes, int]],
        storage: str,
    ) -> None:
        """`snapshot` returns the state and its last command; by then `storage` was sent the rows
        flushed up to there and no others.

        `storage`: the address whose rows are sent, too; empty for none. `master`: notified when
        the replica has joined.
        """
        self.ctx = ctx
        self.to = to
        self._master = master
        self.acked = -1
        """The last command that the replica has applied; -1 before it has the snapshot."""
        self.answered = -1
        """The command that the replica must apply to have joined; -1 once it has."""
        self._epoch = epoch
        self._snapshot = snapshot
        self._index = 0
        self._data = b""
        self._parts = 0
        """0 before the snapshot is taken."""
        self._sent = 0
        self._storage = storage
        self._place = 0
        """The batch of rows sent last; this pass sends those up to `_until`."""
        self._until = 0

    @property
    def taken(self) -> bool:
        """Whether the snapshot is taken: from here on the tail keeps commands for the replica."""
        return self._parts > 0

    @property
    def over(self) -> bool:
        """Whether every part was sent: commands follow from here on."""
        return self.taken and self._sent == self._parts

    def begin(self) -> bool:
        """Send what may be under way; return whether that includes the snapshot's last part.

        On True, here and below, the caller sends the commands since the snapshot.
        """
        if self._storage:
            self._read_rows(None)
            return False
        self._take()
        return self._send_parts()

    def _take(self) -> None:
        self._data, self._index = self._snapshot()
        self._parts = -(-len(self._data) // PART_BYTES)

    def _read_rows(self, until: int | None) -> None:
        self.ctx.send(self._storage, ReadRows(self._epoch, self._place, until))

    def on_rows(self, read: ColdRows) -> bool:
        """Take rows that the storage has read, for this transfer or an earlier one."""
        if read.epoch != self._epoch:
            return False
        self._place, self._until = read.place, read.until
        if not read.rows:
            return self._on_written()
        self.ctx.send(self.to, ColdRows(self._epoch, read.rows))
        return False

    def _on_written(self) -> bool:
        """The replica has written the rows up to `_place`."""
        if self._place < self._until:
            self._read_rows(self._until)
        elif not self.taken:
            self._take()
            self._read_rows(None)
        else:
            return self._send_parts()
        return False

    def on_taken(self, part: int) -> bool:
        """The replica has taken a part of the snapshot, or rows."""
        if part == ROWS:
            return self._on_written()
        return not self.over and self._send_parts(part)

    def _send_parts(self, taken: int = -1) -> bool:
        while self._sent < min(self._parts, taken + 1 + PARTS_AHEAD):
            start = self._sent * PART_BYTES
            data = self._data[start : start + PART_BYTES]
            part = SnapshotPart(self._epoch, self._index, self._sent, self._parts, data)
            self.ctx.send(self.to, part)
            self._sent += 1
        if self.over:
            self._data = b""
        return self.over

    def on_ack(self, index: int, applied: int) -> None:
        """The replica has applied commands up to `index`, the tail up to `applied`."""
        if self.acked < 0:
            self.answered = applied
        self.acked = index
        if 0 <= self.answered <= self.acked:
            self.answered = -1
            self.ctx.send(self._master, ReplicaJoined(self._epoch, self.to))


class Batches(Protocol):
    """Flushed rows where they are kept, in batches that are numbered as they come."""

    @property
    def newest(self) -> int:
        """The number of the newest batch."""

    def between(self, after: int, until: int) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
        """Yield (number, rows) of the batches behind one, up to another, the oldest first."""


def read_rows(batches: Batches, asked: ReadRows) -> ColdRows:
    """Return a storage's answer: batches in one until it is `ROWS_BYTES`, no key twice."""
    until = batches.newest if asked.until is None else asked.until
    merged: dict[bytes, bytes] = {}
    nbytes = 0
    for place, rows in batches.between(asked.after, until):
        merged.update(rows)
        nbytes += sum(len(key) + len(row) for key, row in rows)
        if nbytes >= ROWS_BYTES:
            return ColdRows(asked.epoch, list(merged.items()), place, until)
    return ColdRows(asked.epoch, list(merged.items()), until, until)
