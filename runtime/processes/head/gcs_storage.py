"""The GCS's log, a snapshot and flushed rows in one sqlite3 file; see `replication.storage`.

The writes of one turn are one transaction. The file is in WAL mode with ``synchronous=NORMAL``, so
a commit is a write to the page cache: it survives the process, but not the loss of power.

========= ===========================================================
table     row
========= ===========================================================
log       first index, msgpack list of commands: one row a turn
snapshot  one row: the index it was taken after, the state
cold      flushed rows, one batch a row: see `ColdRows`
========= ===========================================================
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from raytwin.runtime.api.options.init_options import check_directory
from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.messages import Command
from raytwin.runtime.processes.net.heap_trim import trim

_encode = msgspec.msgpack.Encoder().encode
_decode_commands = msgspec.msgpack.Decoder(list[Command]).decode
_decode_rows = msgspec.msgpack.Decoder(list[bytes]).decode

SCHEMA = """
CREATE TABLE IF NOT EXISTS log (first INTEGER PRIMARY KEY, commands BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshot (one INTEGER PRIMARY KEY, after INTEGER, state BLOB);
CREATE TABLE IF NOT EXISTS cold (id INTEGER PRIMARY KEY, keys BLOB NOT NULL, rows BLOB NOT NULL);
"""
TRIM_S = 0.1
"""Interval of trimming the heap while the file is written. Commands, rows and snapshots leave
holes in the heap: untrimmed, the process took 15 % more memory, which varied with snapshots."""


def check_storage(path: Path) -> None:
    """Check that a new cluster can keep its state in the file `path`.

    Raises ValueError if it is not a file, cannot be written, or contains the state of another
    cluster, whose nodes have ended.
    """
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "a device"
        raise ValueError(f"gcs_storage={str(path)!r} is {kind}: give a file")
    check_directory(f"gcs_storage={str(path)!r}", path.resolve().parent)
    if path.exists() and path.stat().st_size:
        raise ValueError(
            f"gcs_storage={str(path)!r} has the state of a cluster that has ended: give another"
            " path, or remove it"
        )


class ColdRows:
    """The flushed rows in a database: appended in batches, found by a scan of their keys.

    Flushed rows are hardly ever read, and their keys arrive in random order. A B-tree would
    change a page for every row: with a million rows it took 14,000 a second, while appended
    batches reach 500,000. In return a read scans 12 bytes a row, in sqlite's own code: 20 ms
    per million rows.

    A batch has a number, its concatenated keys, and a msgpack list of its rows in the same
    order. A key may have several rows; the newest counts. The caller begins and commits
    transactions.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def append(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Write a batch, whose rows are newer than all earlier ones."""
        assert all(len(key) == ARRAY_BYTES for key, _ in rows)
        keys = b"".join(key for key, _ in rows)
        packed = _encode([row for _, row in rows])
        self._db.execute("INSERT INTO cold (keys, rows) VALUES (?, ?)", (keys, packed))

    def find(self, key: bytes) -> bytes | None:
        """Return the newest row of a key, if there is one."""
        batches = self._db.execute(
            "SELECT id, keys FROM cold WHERE instr(keys, ?) ORDER BY id DESC", (key,)
        )
        for number, keys in batches:
            # `instr` also matches across the border of two keys.
            for at in range(0, len(keys), ARRAY_BYTES):
                if keys[at : at + ARRAY_BYTES] == key:
                    found = self._db.execute("SELECT rows FROM cold WHERE id = ?", (number,))
                    return _decode_rows(found.fetchone()[0])[at // ARRAY_BYTES]
        return None


class SqliteFile:
    """The `LogFile` of a durable GCS on a real disk."""

    def __init__(
        self, after: Callable[[float, Callable[[], None]], object], path: str | Path
    ) -> None:
        """`after`: as that of the storage's `Context`."""
        self._after = after
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(SCHEMA)
        self._cold = ColdRows(self._db)
        self.add_rows = self._cold.append
        self.find_row = self._cold.find
        self._trim_due = False

    def begin(self) -> None:
        self._db.execute("BEGIN")

    def append(self, commands: list[Command]) -> None:
        self._db.execute("INSERT INTO log VALUES (?, ?)", (commands[0].index, _encode(commands)))

    def replace(self, index: int, state: bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO snapshot VALUES (0, ?, ?)", (index, state))
        self._db.execute("DELETE FROM log WHERE first <= ?", (index,))
        # After this turn, which still references the snapshot, as large as the whole state.
        self._after(0.0, trim)

    def commit(self) -> None:
        self._db.execute("COMMIT")
        if not self._trim_due:
            self._trim_due = True
            self._after(TRIM_S, self._trim)

    def snapshot(self) -> bytes | None:
        found = self._db.execute("SELECT state FROM snapshot").fetchone()
        return None if found is None else found[0]

    def commands(self) -> Iterator[Command]:
        for (commands,) in self._db.execute("SELECT commands FROM log ORDER BY first"):
            yield from _decode_commands(commands)

    def _trim(self) -> None:
        self._trim_due = False
        trim()
