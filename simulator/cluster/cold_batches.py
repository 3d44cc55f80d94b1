"""Flushed rows in virtual time: what `cold_rows` is on disk."""

from __future__ import annotations

from collections.abc import Iterator

Rows = list[tuple[bytes, bytes]]


class ColdBatches:
    """Batches in the order they came, numbered from 1; the newest row of a key counts."""

    def __init__(self) -> None:
        self.batches: list[Rows] = []

    def append(self, rows: Rows) -> None:
        """Write rows that are newer than all that are there."""
        if rows:
            self.batches.append(rows)

    @property
    def newest(self) -> int:
        """The number of the newest batch; 0: there is none."""
        return len(self.batches)

    def find(self, key: bytes) -> bytes | None:
        """Return the newest row of a key, if there is one."""
        return next((row for rows in reversed(self.batches) for k, row in rows if k == key), None)

    def between(self, after: int, until: int) -> Iterator[tuple[int, Rows]]:
        """Yield (number, rows) of the batches behind one, up to another, the oldest first."""
        return enumerate(self.batches[after:until], after + 1)
