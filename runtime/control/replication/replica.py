"""A replica of a chain: chain replication after van Renesse and Schneider (2004).

Theory of operation
-------------------
The replicas of a chain apply the same commands, in the same order, to equal
deterministic machines (`replicated`)::

    client ──ChainRequest──> HEAD ──ChainCommands──> ... ──> TAIL ──ChainOutput──> client
                               <──────────ChainAck───────────

The head numbers a request and applies it. Every replica passes on what it has
applied and keeps it until the tail has said that it has it too. Only the tail
lets outputs out, so whatever a client has seen is known to every replica: it
survives the loss of all but one. Reads are commands like any other. One order
for all, and no answer before the tail has applied it: linearizable.

A **master** (`chain_master`) decides who is in the chain. Each of its decisions
is a new *epoch*; a replica takes no command or acknowledgement of another one,
which fences whoever has not heard of the latest.

Its states are in `chain_member`, with what being the head or the tail means.

Rules
-----
1. On a new epoch each replica sends its successor again all that the tail is
   not known to have. What the successor has it leaves out; a gap cannot be,
   since nobody acknowledges what his successor lacks.
2. On a new epoch every client sends the head again what was not confirmed, and
   tells the tail how far it has come, which sends the outputs after that. The
   machine's sessions let both take effect once.
3. A joining replica is fed by the tail, which serves meanwhile: flushed rows, a
   snapshot in parts, a few under way, then every command since. Once it has
   the snapshot the tail confirms nothing any more, to clients or to its
   predecessor, that the joining one has not acknowledged.
   Only when it has all that was answered before, too, is the master told that
   it has joined: else the tail could die with what its clients were told.
4. What comes from a later epoch than this replica has heard of waits for it.

A **durable** replica has a log as well (`replica_log`). It passes on, acknowledges and
answers nothing before its own log has it, as if the disk were between it and its
successor. Time is the head's, see `chain_clock`; what clients are owed is in
`chain_answers`, what a joining replica is sent in `feeding`.

Cost: per request of a chain of n, n + 1 messages and n times the machine's own
work; memory for what is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice, takewhile
from typing import Any

from raytwin.runtime.control.core.addresses import MASTER as MASTER
from raytwin.runtime.control.core.addresses import chain_of, master_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import (
    ChainAck,
    ChainAttach,
    ChainCommands,
    ChainConfigured,
    ChainRequest,
    ColdRows,
    Command,
    Frame,
    Logged,
    ReplicaBeat,
    ReplicaInfo,
    ReplicaLost,
    ReplicaReady,
    ReplicaSuspected,
    RowLoaded,
    SnapshotPart,
    SnapshotTaken,
)
from raytwin.runtime.control.replication.clock import ChainClock
from raytwin.runtime.control.replication.log import Recovered, ReplicaLog
from raytwin.runtime.control.replication.master_recovery import EPOCHS_PER_LIFE
from raytwin.runtime.control.replication.position import Member, State
from raytwin.runtime.control.replication.replies import Answers
from raytwin.runtime.control.replication.state_machine import Machine, encode_frames
from raytwin.runtime.control.replication.state_transfer import ROWS, Feed


class Replica(Member):
    """One member of a chain; see the module's theory of operation."""

    def __init__(
        self,
        ctx: Context,
        info: ReplicaInfo,
        config: Config,
        make: Callable[[], Machine],
        log: str = "",
        recovered: Recovered | None = None,
    ) -> None:
        self.ctx = ctx
        known = recovered if recovered is not None else Recovered(make(), 0, [])
        super().__init__(info, known.epoch, known.members)
        self.config = config
        self.machine = known.machine
        self.master = master_of(chain_of(info.name))
        self.kept: deque[Command] = deque()
        """Applied here, and not known to be where it has to be: oldest first."""
        self._make = make
        self._log = ReplicaLog(ctx, log, self.machine.index) if log else None
        self._recovered = recovered is not None
        self._passed = 0
        """The last command that the successor was sent in this epoch, where there is a log."""
        self._clock = ChainClock(ctx, self._on_due)
        self._answers = Answers(ctx)
        self._feed: Feed | None = None
        self._parts: list[bytes] = []
        self._restored = False
        self._early: list[tuple[str, Any]] = []
        self._new: list[Command] = []
        """Applied in this turn."""
        self._handlers: dict[type, Any] = {
            ChainRequest: self._on_request,
            ChainAttach: self._on_attach,
            ChainCommands: self._on_commands,
            ChainAck: self._on_ack,
            ChainConfigured: self._on_configured,
            SnapshotPart: self._on_part,
            SnapshotTaken: self._on_taken,
            ReplicaLost: self._on_lost,
            Logged: self._on_logged,
            ColdRows: self._on_rows,
        }

    def start(self) -> None:
        """Tell the master that this replica is there."""
        self.report()
        self.ctx.after(self.config.heartbeat_s, self._beat)

    def report(self) -> None:
        """Tell the master what this replica is; also if another one has taken its place."""
        self._answers.detach_head()
        serving = self.state is State.SERVING or (self.state is State.NEW and self._recovered)
        self.ctx.send(self.master, ReplicaReady(self.info, self.epoch, list(self.members), serving))

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        if self.state is State.FENCED:
            return
        if type(message) is RowLoaded:
            # An answer of the machine's own storage: it is part of the history.
            tables = next(iter(self.machine.components))
            self._number("", 0.0, 0, 0, encode_frames([Frame(source, tables, [message])]))
            return
        if type(message) is ColdRows and self._log is not None and source == self._log.address:
            if self._feed is not None and self._feed.on_rows(message):
                self._send_kept()
            return
        epoch = getattr(message, "epoch", self.epoch)
        if epoch > self.epoch and type(message) is not ChainConfigured:
            self._early.append((source, message))
            return
        self._handlers[type(message)](source, message)

    def end_turn(self) -> None:
        """Pass on what was applied, acknowledge it, answer clients."""
        self._send_local()
        self._answers.owe(self.machine.take_touched())
        if self._new:
            new, self._new = self._new, []
            self._keep(new)
        if self.is_tail:
            self._answers.send(self.machine, self._limit)
        else:
            self._answers.owe_nobody()
        # The head numbers an empty command when a timer of the machine is due.
        self._clock.set(self.machine.next_due_s() if self.is_head else None)

    def _send_local(self) -> None:
        """Send the storage what the machine has for it."""
        for _, to, message in self.machine.take_local():
            self.ctx.send(to, message)

    # -- epochs ----------------------------------------------------------------

    def _on_configured(self, source: str, message: ChainConfigured) -> None:
        if message.epoch <= self.epoch:
            return
        self._take_place(message)
        me = self.info.name
        self._feed = None
        self._answers.detach()
        if me in self.members:
            has = self.state is not State.NEW or self._recovered
            assert has or self.epoch % EPOCHS_PER_LIFE == 1, "it has nothing of the others' state"
            self.state = State.SERVING
            self._log_epoch()
            self._send_again()
            if self._log is not None and self.is_head:
                for to, asked in self.machine.unanswered():
                    self.ctx.send(to, asked)
        elif me == self._joining:
            # Again from the start if it was joining already: its feed may be another.
            self.state = State.JOINING
            self.machine = self._make()
            # Applied in this very turn, by the machine that it no longer has.
            self._new.clear()
            self._parts = []
            self._restored = False
            if self._log is not None:
                self._log.begin_joining()
            self._log_epoch()
        else:
            self.state = State.FENCED
            return
        early, self._early = self._early, []
        for sender, held in early:
            self.handle(sender, held)

    def _send_again(self) -> None:
        """Rules 1 and 3: bring the successor of this epoch up to date."""
        if not self.is_tail:
            self._send_kept()
            return
        self.kept.clear()
        if self._joining:
            rows = ""
            if self._log is not None and self.config.gcs_memory_max:
                rows = self._log.address
            self._feed = Feed(
                self.ctx, self.epoch, self._joining, self.master, self._snapshot, rows
            )
            if self._feed.begin():
                self._send_kept()
        self._acknowledge()

    def _snapshot(self) -> tuple[bytes, int]:
        """Return the state for who joins, and the command it is after."""
        # What was flushed is not in it any more: it is read from the storage, behind this.
        self._send_local()
        return self.machine.snapshot(), self.machine.index

    def _send_kept(self) -> None:
        """Send the successor all that is kept, from the start."""
        if self._log is not None:
            self._passed = 0
            self._pass_on()
        elif self.kept:
            self.ctx.send(self.successor, ChainCommands(self.epoch, list(self.kept)))

    def _log_epoch(self) -> None:
        if self._log is not None:
            self._log.begin_epoch(self.epoch, self.members, self.state is State.SERVING)

    # -- commands --------------------------------------------------------------

    def _on_request(self, source: str, message: ChainRequest) -> None:
        if not self.is_head:
            return  # its client has not heard who is; it will send it again
        if self.machine.fresh(message.client, message.born, message.sequence):
            self._number(
                message.client, message.born, message.sequence, message.acked, message.body
            )
        else:
            self._answers.owe((message.client,))

    def _number(
        self,
        client: str,
        born: float,
        sequence: int,
        acked: int,
        body: bytes,
        due_s: float = float("-inf"),
    ) -> None:
        if not self.is_head:
            return
        now_s = self._clock.stamp_s(due_s)
        self._apply(Command(self.machine.index + 1, now_s, client, born, sequence, acked, body))

    def _apply(self, command: Command) -> None:
        self.machine.apply(command)
        self._new.append(command)

    def _on_commands(self, source: str, message: ChainCommands) -> None:
        if message.epoch != self.epoch or (self.state is State.JOINING and not self._restored):
            return
        for command in message.commands:
            if command.index > self.machine.index:
                self._apply(command)
                self._clock.follow(command.time_s)
        if not self._new and (self.state is State.JOINING or self.is_tail):
            self._acknowledge()

    def _keep(self, new: list[Command]) -> None:
        """Pass on what was applied in this turn."""
        if self._log is not None:
            self._log.append(new, self.machine)
            if self.state is not State.JOINING and self._keeps:
                self.kept += new
            return
        if self.state is State.JOINING:
            self._acknowledge()
            return
        if self.successor:
            self.kept += new
            if self._feed is None or self._feed.over:
                self.ctx.send(self.successor, ChainCommands(self.epoch, new))
        if self.is_tail:
            self._acknowledge()

    @property
    def _keeps(self) -> bool:
        """Whether somebody is to have what is applied: not before the snapshot that has it."""
        return bool(self.successor) and (self._feed is None or self._feed.taken)

    def _pass_on(self) -> None:
        """Send the successor what the log has, and it was not sent."""
        if self._feed is not None and not self._feed.over:
            return
        safe = self._safe
        first = self._passed + 1 - self.kept[0].index if self.kept else 0
        ahead = islice(self.kept, max(0, first), None)
        due = list(takewhile(lambda command: command.index <= safe, ahead))
        if due:
            self._passed = due[-1].index
            self.ctx.send(self.successor, ChainCommands(self.epoch, due))

    def _acknowledge(self) -> None:
        """Tell the predecessor, or who feeds this replica, how far it has come."""
        if self.state is State.JOINING:
            if self._safe and self._restored:
                self.ctx.send(self.members[-1], ChainAck(self.epoch, self._safe))
        elif not self.is_head:
            # Like an answer: what a joining replica may lack is still to be kept.
            self.ctx.send(self.predecessor, ChainAck(self.epoch, self._limit))

    def _on_ack(self, source: str, message: ChainAck) -> None:
        if message.epoch != self.epoch or self.state is not State.SERVING:
            return
        if self._feed is not None:
            self._feed.on_ack(message.index, self.machine.index)
            self._acknowledge()
        while self.kept and self.kept[0].index <= message.index:
            self.kept.popleft()
        if not self.is_head and not self.is_tail:
            self.ctx.send(self.predecessor, message)

    # -- clients ---------------------------------------------------------------

    def _on_attach(self, source: str, message: ChainAttach) -> None:
        if not self.is_tail:
            return
        self._answers.attach(message)

    @property
    def _safe(self) -> int:
        """The last command that this replica has, in its log if it has one."""
        return self.machine.index if self._log is None else self._log.index

    @property
    def _limit(self) -> int:
        """The last command whose outputs may leave."""
        if self._feed is not None and self._feed.acked >= 0:
            return min(self._safe, self._feed.acked)
        return self._safe

    # -- a new replica ---------------------------------------------------------

    def _on_taken(self, source: str, message: SnapshotTaken) -> None:
        feed = self._feed
        if message.epoch == self.epoch and feed is not None and feed.on_taken(message.part):
            self._send_kept()

    def _on_part(self, source: str, message: SnapshotPart) -> None:
        if message.epoch != self.epoch or self.state is not State.JOINING:
            return
        assert message.part == len(self._parts), "parts of a snapshot came out of order"
        self._parts.append(message.data)
        self.ctx.send(source, SnapshotTaken(self.epoch, message.part))
        if len(self._parts) == message.parts:
            self.machine = self._make()
            self.machine.restore(b"".join(self._parts))
            self._restored = True
            if self._log is not None:
                self._log.begin_with(self.machine.index, b"".join(self._parts))
            self._parts = []
            self._acknowledge()

    # -- the log ---------------------------------------------------------------

    def _on_logged(self, source: str, message: Logged) -> None:
        assert self._log is not None
        if self._log.rows_written():
            self.ctx.send(self.members[-1], SnapshotTaken(self.epoch, ROWS))
        if self.state is State.JOINING and not self._restored:
            return  # of what it was before
        self._log.index = message.index
        if self.state is State.SERVING and self.successor:
            self._pass_on()
        if self.state is State.JOINING or self.is_tail:
            self._acknowledge()

    def _on_rows(self, source: str, message: ColdRows) -> None:
        if message.epoch == self.epoch and self.state is State.JOINING:
            assert self._log is not None
            self._log.write_rows(message.rows)

    # -- time and failures -----------------------------------------------------

    def _on_due(self) -> None:
        due_s = self.machine.next_due_s()
        if due_s is None:
            return
        self._number("", 0.0, 0, 0, b"", due_s)

    def _on_lost(self, source: str, message: ReplicaLost) -> None:
        self.ctx.send(self.master, ReplicaSuspected(message.name, message.reason))

    def _beat(self) -> None:
        if self.state is not State.FENCED:
            self.ctx.send(self.master, ReplicaBeat(self.info.name, self.machine.index))
            self.ctx.after(self.config.heartbeat_s, self._beat)
