"""A durable replica's log, as the replica sees it: what it was sent to write, and what it has.

::

    replica ──LogEpoch, LogCommands──> log      I/O is behind an address; it writes
            <────────Logged─────────── log      what it is sent in order
            ──LogSnapshot──> log                instead of the commands before it, now and then
            ──StoreRows──> log ──Logged──> who feeds this replica gets to know

The replica passes on, acknowledges and answers nothing before its own log has it. So the
log of any member has all that was ever answered, and the longest of the latest epoch is what
to go on with when no replica is left (`Recovered`). Rows that were flushed are not in
snapshots: who feeds a new replica reads them from its own storage in pieces, ahead of the
snapshot, and they are written there before those that it flushes itself.

`index` is the last command that would survive the replica's process.
"""

from __future__ import annotations

from typing import NamedTuple

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import Command, LogCommands, LogEpoch, LogSnapshot, StoreRows
from raytwin.runtime.control.replication.state_machine import Machine

LOG_BYTES = 4 << 20
"""A durable replica logs at least so much before it logs a snapshot again, and at
least four times what the last one took: snapshots stay a small part of the work."""
COMMAND_BYTES = 60
"""Of a command in the log, besides its body."""


class Recovered(NamedTuple):
    """What a durable replica finds in its log."""

    machine: Machine
    epoch: int
    members: list[str]


class ReplicaLog:
    """The log of one replica."""

    def __init__(self, ctx: Context, address: str, index: int) -> None:
        """`index`: the last command that is in it already."""
        self.address = address
        self.index = index
        self._ctx = ctx
        self._bytes = 0
        self._snapshot_bytes = LOG_BYTES
        self._rows_owed = False
        """Who feeds this replica waits for it to have written rows."""

    def begin_epoch(self, epoch: int, members: list[str], serving: bool) -> None:
        """Write who is in the chain from here on."""
        self._ctx.send(self.address, LogEpoch(epoch, list(members), serving))

    def begin_joining(self) -> None:
        """What it had is no part of what it will have."""
        self.index = 0
        self._rows_owed = False

    def append(self, commands: list[Command], machine: Machine) -> None:
        """Write what the machine has applied; a snapshot of it where that is much."""
        self._ctx.send(self.address, LogCommands(commands))
        self._bytes += sum(COMMAND_BYTES + len(command.body) for command in commands)
        if self._bytes >= self._snapshot_bytes:
            data = machine.snapshot()
            self._bytes = 0
            self._snapshot_bytes = max(LOG_BYTES, 4 * len(data))
            self.begin_with(machine.index, data)

    def begin_with(self, index: int, snapshot: bytes) -> None:
        """Write a snapshot in place of all before it."""
        self._ctx.send(self.address, LogSnapshot(index, snapshot))

    def write_rows(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Write flushed rows that another replica has sent."""
        self._rows_owed = True
        self._ctx.send(self.address, StoreRows(rows))

    def rows_written(self) -> bool:
        """Return, when something has been written, whether it owes word of rows."""
        owed, self._rows_owed = self._rows_owed, False
        return owed
