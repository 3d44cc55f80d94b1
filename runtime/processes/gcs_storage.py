"""``storage:gcs``: the GCS's log, snapshots and cold rows in one sqlite3 file.

All that a turn brings is one transaction, and the replica is told that it is
logged after that: nothing that anybody was told is lost when the process is
killed. The file is in WAL mode with ``synchronous=NORMAL``, so a commit is a
write to the page cache: it outlives the process, not the loss of power.

========= ===========================================================
table     row
========= ===========================================================
log       first index, msgpack list of commands: one row a turn
snapshot  one row: the index it was taken after, the state
cold      key, row: what was flushed
life      one row: how often a head has begun with this file
========= ===========================================================
"""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from runtime.control.context import Context
from runtime.control.flush import STORAGE
from runtime.control.messages import (
    Command,
    LoadRow,
    LogCommands,
    Logged,
    LogSnapshot,
    RowLoaded,
    StoreRows,
)
from runtime.control.replicated import Machine

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Command]).decode

SCHEMA = """
CREATE TABLE IF NOT EXISTS log (first INTEGER PRIMARY KEY, commands BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshot (one INTEGER PRIMARY KEY, after INTEGER, state BLOB);
CREATE TABLE IF NOT EXISTS cold (key BLOB PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS life (one INTEGER PRIMARY KEY, begun INTEGER NOT NULL);
"""


class GcsStorage:
    """The file behind one durable replica."""

    def __init__(self, ctx: Context, path: str) -> None:
        self._ctx = ctx
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(SCHEMA)
        self._db.execute(
            "INSERT INTO life VALUES (0, 1) ON CONFLICT (one) DO UPDATE SET begun = begun + 1"
        )
        (self.life,) = self._db.execute("SELECT begun FROM life").fetchone()
        """1 for the first head with this file."""
        self._replica = ""
        self._logged = 0
        self._open = False

    def recover(self, machine: Machine) -> Machine:
        """Bring a new machine to where the last head was; return it."""
        found = self._db.execute("SELECT state FROM snapshot").fetchone()
        if found is not None:
            machine.restore(found[0])
        for (commands,) in self._db.execute("SELECT commands FROM log ORDER BY first"):
            for command in _decode(commands):
                if command.index > machine.index:
                    machine.apply(command)
        return machine

    def handle(self, source: str, message: Any) -> None:
        """Take one message of the replica; an unknown type is a programming error."""
        if isinstance(message, LoadRow):
            found = self._db.execute("SELECT row FROM cold WHERE key = ?", (message.key,))
            row = found.fetchone()
            self._ctx.send(source, RowLoaded(message.request, None if row is None else row[0]))
            return
        if not self._open:
            self._open = True
            self._db.execute("BEGIN")
        if isinstance(message, LogCommands):
            self._replica = source
            first, self._logged = message.commands[0].index, message.commands[-1].index
            self._db.execute("INSERT INTO log VALUES (?, ?)", (first, _encode(message.commands)))
        elif isinstance(message, StoreRows):
            self._db.executemany("INSERT OR REPLACE INTO cold VALUES (?, ?)", message.rows)
        elif isinstance(message, LogSnapshot):
            self._db.execute(
                "INSERT OR REPLACE INTO snapshot VALUES (0, ?, ?)", (message.index, message.data)
            )
            self._db.execute("DELETE FROM log WHERE first <= ?", (message.index,))
        else:
            raise TypeError(f"{STORAGE} was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Commit what this turn has brought, then say so."""
        if self._open:
            self._open = False
            self._db.execute("COMMIT")
            if self._replica:
                self._ctx.send(self._replica, Logged(self._logged))
