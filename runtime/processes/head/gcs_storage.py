"""``storage:gcs``: the GCS's log, snapshots and cold rows in one sqlite3 file.

A GCS in the head's process has one file; replicas have one each, in one directory (see
`path_of`).

The commands of one turn are one transaction. The replica receives `Logged` after the
commit and answers its clients after that, so an acknowledged write survives the death of
the process. The file is in WAL mode with ``synchronous=NORMAL``, so a commit is a write to
the page cache: it survives the process, but not the loss of power.

========= ===========================================================
table     row
========= ===========================================================
log       first index, msgpack list of commands: one row a turn
snapshot  one row: the index it was taken after, the state
cold      flushed rows, see `cold_rows`
life      one row: how many processes have opened this file
epoch     one row: the chain's epoch and members, was the replica one
========= ===========================================================
"""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from raytwin.runtime.api.options.init_options import check_directory
from raytwin.runtime.control.core.addresses import STORAGE, chain_of
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import (
    Command,
    LoadRow,
    LogCommands,
    LogEpoch,
    Logged,
    LogSnapshot,
    ReadRows,
    RowLoaded,
    StoreRows,
)
from raytwin.runtime.control.replication.log import Recovered
from raytwin.runtime.control.replication.master_recovery import number_of
from raytwin.runtime.control.replication.state_machine import Machine
from raytwin.runtime.control.replication.state_transfer import read_rows
from raytwin.runtime.processes.head import cold_rows
from raytwin.runtime.processes.net.heap_trim import trim

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Command]).decode
_names = msgspec.msgpack.Decoder(list[str]).decode

SCHEMA = (
    """
CREATE TABLE IF NOT EXISTS log (first INTEGER PRIMARY KEY, commands BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshot (one INTEGER PRIMARY KEY, after INTEGER, state BLOB);
CREATE TABLE IF NOT EXISTS life (one INTEGER PRIMARY KEY, begun INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS epoch (one INTEGER PRIMARY KEY, epoch INTEGER, members BLOB, serving);
"""
    + cold_rows.SCHEMA
)
TRIM_S = 0.1
"""Interval of trimming the heap while the file is written. Commands, rows and snapshots leave
holes in it: without trimming, memory would be 15 % above the use and vary with snapshots."""
_NAME = re.compile(r"chain([0-9]+)-([0-9]+)\.sqlite3")


def path_of(directory: str, replica: str) -> Path:
    """Return a replica's file."""
    number = number_of(replica)
    return Path(directory) / f"chain{chain_of(replica)}-{number}.sqlite3"


def remove(directory: str, replica: str) -> None:
    """Remove a replica's file, if it has one."""
    path = path_of(directory, replica)
    for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        each.unlink(missing_ok=True)


def check_storage(path: Path, alone: bool) -> None:
    """Check that a new cluster can keep its state at `path`.

    `alone`: in one file; else in a directory, which is made. Raises ValueError if the path is
    of the other kind, cannot be written, or holds the state of another cluster, whose nodes
    have ended.
    """
    if alone and path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "a device"
        raise ValueError(f"gcs_storage={str(path)!r} is {kind}: give a file")
    if not alone and path.exists() and not path.is_dir():
        raise ValueError(
            f"gcs_storage={str(path)!r} is a file: with replicas or shards give a directory,"
            " in which each has a file"
        )
    if not alone:
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"gcs_storage={str(path)!r} cannot be made: {error.strerror}"
            ) from None
    folder = path.resolve().parent if alone else path
    check_directory(f"gcs_storage={str(path)!r}", folder)
    if path.stat().st_size if alone and path.exists() else not alone and look(str(path)):
        raise ValueError(
            f"gcs_storage={str(path)!r} has the state of a cluster that has ended: give another"
            " path, or remove it"
        )


def look(directory: str) -> list[tuple[str, int, int, bool]]:
    """Return (replica, epoch, last command, was it a member) of every file."""
    matches = filter(None, map(_NAME.fullmatch, sorted(os.listdir(directory))))
    return [kept for match in matches if (kept := look_at(directory, f"replica:0.{match[2]}"))]


def look_at(directory: str, replica: str) -> tuple[str, int, int, bool] | None:
    """Return the same of one replica that does not live; None if it has no file."""
    path = path_of(directory, replica)
    if not path.exists():
        return None
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(SCHEMA)
    epoch, serving = db.execute("SELECT epoch, serving FROM epoch").fetchone() or (0, False)
    (index,) = db.execute("SELECT ifnull(max(after), 0) FROM snapshot").fetchone()
    last = db.execute("SELECT commands FROM log ORDER BY first DESC LIMIT 1").fetchone()
    if last is not None:
        index = max(index, _decode(last[0])[-1].index)
    db.close()
    return replica, epoch, index, bool(serving)


class GcsStorage:
    """The file behind one durable replica."""

    def __init__(self, ctx: Context, path: str | Path) -> None:
        self._ctx = ctx
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(SCHEMA)
        self._cold = cold_rows.ColdRows(self._db)
        self._db.execute(
            "INSERT INTO life VALUES (0, 1) ON CONFLICT (one) DO UPDATE SET begun = begun + 1"
        )
        (self.life,) = self._db.execute("SELECT begun FROM life").fetchone()
        """1 for the first process that opens the file."""
        self._replica = ""
        self._logged = 0
        self._open = False
        self._trims = False

    def recover(self, machine: Machine) -> Machine:
        """Restore a new machine from snapshot and log; return it."""
        found = self._db.execute("SELECT state FROM snapshot").fetchone()
        if found is not None:
            machine.restore(found[0])
        for (commands,) in self._db.execute("SELECT commands FROM log ORDER BY first"):
            for command in _decode(commands):
                if command.index > machine.index:
                    machine.apply(command)
        self._logged = machine.index
        return machine

    def recovered(self, machine: Machine) -> Recovered | None:
        """Return the state of a replica that was a member of its chain; else None."""
        found = self._db.execute("SELECT epoch, members, serving FROM epoch").fetchone()
        if found is None or not found[2]:
            return None
        return Recovered(self.recover(machine), found[0], _names(found[1]))

    def handle(self, source: str, message: Any) -> None:
        """Take one message of the replica; raises TypeError for an unknown type."""
        if isinstance(message, LoadRow):
            self._ctx.send(source, RowLoaded(message.request, self._cold.find(message.key)))
            return
        if isinstance(message, ReadRows):
            self._ctx.send(source, read_rows(self._cold, message))
            return
        if not self._open:
            self._open = True
            self._db.execute("BEGIN")
        if isinstance(message, LogCommands):
            self._replica = source
            first, self._logged = message.commands[0].index, message.commands[-1].index
            self._db.execute("INSERT INTO log VALUES (?, ?)", (first, _encode(message.commands)))
        elif isinstance(message, StoreRows):
            self._cold.append(message.rows)
        elif isinstance(message, LogSnapshot):
            self._db.execute(
                "INSERT OR REPLACE INTO snapshot VALUES (0, ?, ?)", (message.index, message.data)
            )
            self._db.execute("DELETE FROM log WHERE first <= ?", (message.index,))
            self._replica = source
            self._logged = max(self._logged, message.index)
            # After this turn, which still refers to the snapshot: it is as large as the state.
            self._ctx.after(0.0, trim)
        elif isinstance(message, LogEpoch):
            self._replica = source
            if not message.serving:
                # A replica that joins gets the state from another one; its own is obsolete.
                self._logged = 0
                for table in ("log", "snapshot", "cold"):
                    self._db.execute(f"DELETE FROM {table}")
            self._db.execute(
                "INSERT OR REPLACE INTO epoch VALUES (0, ?, ?, ?)",
                (message.epoch, _encode(message.members), message.serving),
            )
        else:
            raise TypeError(f"{STORAGE} was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Commit the turn's transaction, then send `Logged`."""
        if self._open:
            self._open = False
            self._db.execute("COMMIT")
            if not self._trims:
                self._trims = True
                self._ctx.after(TRIM_S, self._trim)
            if self._replica:
                self._ctx.send(self._replica, Logged(self._logged))

    def _trim(self) -> None:
        self._trims = False
        trim()
