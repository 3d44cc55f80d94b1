"""``storage:gcs``: the log, the snapshot and the flushed rows of a durable replica, in one file.

The commands of one turn are written at its end, all or none. The replica receives `Logged` after
that and answers its clients then, so an acknowledged write survives the death of the process. Once
a snapshot is written, the commands before it are dropped.

The world has the file: see `LogFile`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from raytwin.runtime.control.core.addresses import STORAGE
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import (
    Command,
    LoadRow,
    LogCommands,
    Logged,
    LogSnapshot,
    RowLoaded,
    StoreRows,
)
from raytwin.runtime.control.replication.state_machine import Machine


class LogFile(Protocol):
    """The operations of a world's file; what is written counts from `commit` on."""

    def begin(self) -> None:
        """Begin the writes of a turn."""

    def append(self, commands: list[Command]) -> None:
        """Log commands."""

    def replace(self, index: int, state: bytes) -> None:
        """Write a snapshot, taken after command `index`, and drop the commands up to that one; some
        of them may stay."""

    def add_rows(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Write flushed rows: (key, row)."""

    def commit(self) -> None:
        """End the writes of a turn."""

    def snapshot(self) -> bytes | None:
        """Return the state in the snapshot, if there is one."""

    def commands(self) -> Iterable[Command]:
        """Yield the logged commands in their order."""

    def find_row(self, key: bytes) -> bytes | None:
        """Return the newest row of a key, if there is one."""


class Storage:
    """The component between a durable replica and its file."""

    def __init__(self, ctx: Context, file: LogFile) -> None:
        self._ctx = ctx
        self._file = file
        self._replica = ""
        self._logged = 0
        self._writes = False
        """Whether this turn writes."""

    def recover(self, machine: Machine) -> Machine:
        """Restore a new machine from snapshot and log; return it."""
        state = self._file.snapshot()
        if state is not None:
            machine.restore(state)
        for command in self._file.commands():
            if command.index > machine.index:
                machine.apply(command)
        self._logged = machine.index
        return machine

    def handle(self, source: str, message: Any) -> None:
        """Take one message of the replica; raises TypeError for an unknown type."""
        if isinstance(message, LoadRow):
            row = self._file.find_row(message.key)
            self._ctx.send(source, RowLoaded(message.request, row))
            return
        if not self._writes:
            self._writes = True
            self._file.begin()
        if isinstance(message, LogCommands):
            self._replica, self._logged = source, message.commands[-1].index
            self._file.append(message.commands)
        elif isinstance(message, StoreRows):
            self._file.add_rows(message.rows)
        elif isinstance(message, LogSnapshot):
            self._file.replace(message.index, message.data)
        else:
            raise TypeError(f"{STORAGE} was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Commit what the turn has written, then send `Logged`."""
        if self._writes:
            self._writes = False
            self._file.commit()
            if self._replica:
                self._ctx.send(self._replica, Logged(self._logged))
