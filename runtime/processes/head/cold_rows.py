"""Flushed rows of the GCS on disk: appended in batches, found by a scan of their keys.

Flushed rows are hardly ever read, and their keys arrive in random order. A B-tree would change
a page for every row: at a million rows that wrote 14,000 rows a second, where appended batches
reach 500,000. The reader pays: it scans 12 bytes a row, in sqlite's own code, which takes
20 ms per million rows.

========= ===========================================================
column    value
========= ===========================================================
id        the order of batches, the newest has the largest
keys      the batch's keys, one behind the other, each `ARRAY_BYTES`
rows      msgpack list of the batch's rows, in the same order
========= ===========================================================

A key may have several rows; the newest counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from raytwin.runtime.control.core.ids import ARRAY_BYTES

SCHEMA = """
CREATE TABLE IF NOT EXISTS cold (id INTEGER PRIMARY KEY, keys BLOB NOT NULL, rows BLOB NOT NULL);
"""

Rows = list[tuple[bytes, bytes]]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


class ColdRows:
    """The table of flushed rows in a database; the caller begins and commits transactions."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def append(self, rows: Rows) -> None:
        """Write a batch, whose rows are newer than all before."""
        if not rows:
            return
        assert all(len(key) == ARRAY_BYTES for key, _ in rows)
        keys = b"".join(key for key, _ in rows)
        packed = _encode([row for _, row in rows])
        self._db.execute("INSERT INTO cold VALUES (?, ?, ?)", (self.newest + 1, keys, packed))

    @property
    def newest(self) -> int:
        """The number of the newest batch, from 1 on; 0: there is none."""
        (number,) = self._db.execute("SELECT ifnull(max(id), 0) FROM cold").fetchone()
        return int(number)

    def find(self, key: bytes) -> bytes | None:
        """Return the newest row of a key, if there is one."""
        batches = self._db.execute(
            "SELECT id, keys FROM cold WHERE instr(keys, ?) ORDER BY id DESC", (key,)
        )
        for number, keys in batches:
            # `instr` also matches across the border of two keys.
            for at in range(0, len(keys), ARRAY_BYTES):
                if keys[at : at + ARRAY_BYTES] == key:
                    return _decode(self._rows_of(number))[at // ARRAY_BYTES]
        return None

    def between(self, after: int, until: int) -> Iterator[tuple[int, Rows]]:
        """Yield (number, rows) of the batches after number `after` up to `until`, oldest first.

        The caller must not write before it has read them all.
        """
        found = self._db.execute(
            "SELECT id, keys, rows FROM cold WHERE id > ? AND id <= ? ORDER BY id", (after, until)
        )
        for place, keys, packed in found:
            each = (keys[at : at + ARRAY_BYTES] for at in range(0, len(keys), ARRAY_BYTES))
            yield place, list(zip(each, _decode(packed), strict=True))

    def _rows_of(self, number: int) -> bytes:
        found = self._db.execute("SELECT rows FROM cold WHERE id = ?", (number,)).fetchone()
        rows: bytes = found[0]
        return rows
