"""What a tail sends to the replica that joins its chain: a snapshot, then flushed rows.

::

    tail ──SnapshotPart──> joining    at most `PARTS_AHEAD` that it has not taken
         <─SnapshotTaken──
    tail ──ReadRows──> its storage ──ColdRows──> tail ──ColdRows──> joining ──> its storage
         <────────────────────── SnapshotTaken(ROWS), once they are written ──┘

Commands since the snapshot follow its last part; the rows, where there are some, go
beside them, a batch at a time, the newest first, and none is the last.
"""

from __future__ import annotations

from runtime.control.context import Context
from runtime.control.messages import ColdRows, ReadRows, ReplicaJoined, SnapshotPart

PART_BYTES = 256 * 1024
PARTS_AHEAD = 4
"""Parts of a snapshot under way: 1 MB, a few milliseconds of a network."""
ROWS = -1
"""The part of a snapshot that flushed rows are, for who has taken some."""


class Feed:
    """A snapshot after command `index`, and the rows of a storage, on their way."""

    def __init__(
        self,
        ctx: Context,
        epoch: int,
        to: str,
        master: str,
        index: int,
        data: bytes,
        storage: str,
    ) -> None:
        """`storage`: whose rows are sent, too; empty: there are none. `master` is told when
        the replica has joined."""
        self.ctx = ctx
        self.to = to
        self._master = master
        self.acked = -1
        """What it has applied; -1 before it has the snapshot."""
        self.answered = -1
        """What it has to have before it has joined; -1 once that was so."""
        self._epoch = epoch
        self._index = index
        self._data = data
        self._parts = -(-len(data) // PART_BYTES)
        self._sent = 0
        self._storage = storage
        self._place: int | None = None
        """Of the batch that was sent last, the next older one follows; None: there was none."""
        self._rows_left = bool(storage)

    @property
    def over(self) -> bool:
        """Whether every part was sent: commands follow from here on."""
        return self._sent == self._parts

    @property
    def joined(self) -> bool:
        """Whether it has all there is, and all that was answered when it had the snapshot."""
        return 0 <= self.answered <= self.acked and not self._rows_left

    def send_parts(self, taken: int = -1) -> bool:
        """Send what may be under way; return whether the snapshot's last part is."""
        while self._sent < min(self._parts, taken + 1 + PARTS_AHEAD):
            start = self._sent * PART_BYTES
            data = self._data[start : start + PART_BYTES]
            part = SnapshotPart(self._epoch, self._index, self._sent, self._parts, data)
            self.ctx.send(self.to, part)
            self._sent += 1
        if self.over:
            self._data = b""
            if self._storage:
                self.ctx.send(self._storage, ReadRows(None))
        return self.over

    def on_taken(self, part: int) -> bool:
        """It has a part, or rows; return whether the snapshot's last part is now sent."""
        if not self.over:
            return self.send_parts(part)
        if part == ROWS and self._place is not None:
            self.ctx.send(self._storage, ReadRows(self._place))
        elif part == ROWS:
            self._rows_left = False
        return False

    def on_rows(self, batch: ColdRows) -> None:
        """The storage has read a batch."""
        if self.over:
            self._place = batch.place
            self.ctx.send(self.to, ColdRows(self._epoch, batch.rows))

    def on_ack(self, index: int, applied: int) -> None:
        """It says how far it has come; who feeds it has come to `applied`."""
        if self.acked < 0:
            self.answered = applied
        self.acked = index
        self.may_join()

    def may_join(self) -> None:
        """Tell the master if it has joined, once."""
        if self.joined:
            self.answered = -1
            self.ctx.send(self._master, ReplicaJoined(self._epoch, self.to))
