"""Flushed rows of the GCS in virtual time: the counterpart of `cold_rows` on disk."""

from __future__ import annotations

from collections.abc import Iterator

Rows = list[tuple[bytes, bytes]]


class ColdBatches:
    """Batches in the order of their arrival, numbered from 1; a key's newest row counts."""

    def __init__(self) -> None:
        self.batches: list[Rows] = []

    def append(self, rows: Rows) -> None:
        """Write a batch, whose rows are newer than all before."""
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
        """Yield (number, rows) of the batches after number `after` up to `until`, oldest first."""
        return enumerate(self.batches[after:until], after + 1)
