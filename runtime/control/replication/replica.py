"""A replica of a chain: the component that applies, passes on and answers commands.

`Replica` joins the parts: its `Position` in the chain, the `StateMachine` it replicates, the
`ChainClock`, the `Replies` that a tail owes clients, the `ReplicaLog` of a durable replica, and
the `StateTransfer` to a replica that joins. The package's docstring has the rules; the comments
below refer to them by number.
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
from raytwin.runtime.control.replication.position import Position, State
from raytwin.runtime.control.replication.replies import Replies
from raytwin.runtime.control.replication.state_machine import Machine, encode_frames
from raytwin.runtime.control.replication.state_transfer import ROWS, StateTransfer


class Replica:
    """One replica of a chain: head, middle or tail, or on its way to become the tail."""

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
        """`make` returns a machine that has applied nothing; `log` is the address of the log,
        empty for none; `recovered` is what that log had when the process started.
        """
        known = recovered if recovered is not None else Recovered(make(), 0, [])
        self.info = info
        self.place = Position(info.name, known.epoch, known.members)
        self.config = config
        self.machine = known.machine
        self.master = master_of(chain_of(info.name))
        self.kept: deque[Command] = deque()
        """Commands applied here that the successor may lack, oldest first."""
        self._make = make
        self._log = ReplicaLog(ctx, log, self.machine.index) if log else None
        self._recovered = recovered is not None
        self._passed = 0
        """The last command sent to the successor in this epoch; used with a log only."""
        self._clock = ChainClock(ctx, self._on_due)
        self._replies = Replies(ctx)
        self._transfer: StateTransfer | None = None
        self._parts: list[bytes] = []
        self._restored = False
        self._early: list[tuple[str, Any]] = []
        self._new: list[Command] = []
        """Commands applied in this turn."""
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
        """Report to the master; again whenever a new master takes over."""
        self._replies.detach_head()
        serving = self.place.state is State.SERVING or (
            self.place.state is State.NEW and self._recovered
        )
        self.ctx.send(
            self.master,
            ReplicaReady(self.info, self.place.epoch, list(self.place.members), serving),
        )

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        if self.place.state is State.FENCED:
            return
        if type(message) is RowLoaded:
            # An answer of the head's storage becomes a command, so that all replicas have it.
            tables = next(iter(self.machine.components))
            self._number("", 0.0, 0, 0, encode_frames([Frame(source, tables, [message])]))
            return
        if type(message) is ColdRows and self._log is not None and source == self._log.address:
            if self._transfer is not None and self._transfer.on_rows(message):
                self._send_kept()
            return
        epoch = getattr(message, "epoch", self.place.epoch)
        if epoch > self.place.epoch and type(message) is not ChainConfigured:
            self._early.append((source, message))
            return
        self._handlers[type(message)](source, message)

    def end_turn(self) -> None:
        """Pass on the commands of this turn, acknowledge them, answer clients."""
        self._send_local()
        self._replies.owe(self.machine.take_touched())
        if self._new:
            new, self._new = self._new, []
            self._keep(new)
        if self.place.is_tail:
            self._replies.send(self.machine, self._limit)
        else:
            self._replies.owe_nobody()
        # The head numbers an empty command when a timer of the machine is due.
        self._clock.set(self.machine.next_due_s() if self.place.is_head else None)

    def _send_local(self) -> None:
        """Send the machine's messages for the storage."""
        for _, to, message in self.machine.take_local():
            self.ctx.send(to, message)

    # -- epochs ----------------------------------------------------------------

    def _on_configured(self, source: str, message: ChainConfigured) -> None:
        if message.epoch <= self.place.epoch:
            return
        self.place.configure(message)
        me = self.info.name
        self._transfer = None
        self._replies.detach()
        if me in self.place.members:
            has = self.place.state is not State.NEW or self._recovered
            assert has or self.place.epoch % EPOCHS_PER_LIFE == 1, "a member has no state"
            self.place.state = State.SERVING
            self._log_epoch()
            self._send_again()
            if self._log is not None and self.place.is_head:
                for to, asked in self.machine.unanswered():
                    self.ctx.send(to, asked)
        elif me == self.place.joining:
            # A replica that was joining already begins again: its tail may be another.
            self.place.state = State.JOINING
            self.machine = self._make()
            # The discarded machine has applied these.
            self._new.clear()
            self._parts = []
            self._restored = False
            if self._log is not None:
                self._log.begin_joining()
            self._log_epoch()
        else:
            self.place.state = State.FENCED
            return
        early, self._early = self._early, []
        for sender, held in early:
            self.handle(sender, held)

    def _send_again(self) -> None:
        """Rules 1 and 3: bring the successor of this epoch up to date."""
        if not self.place.is_tail:
            self._send_kept()
            return
        self.kept.clear()
        if self.place.joining:
            rows = ""
            if self._log is not None and self.config.gcs_memory_max:
                rows = self._log.address
            self._transfer = StateTransfer(
                self.ctx, self.place.epoch, self.place.joining, self.master, self._snapshot, rows
            )
            if self._transfer.begin():
                self._send_kept()
        self._acknowledge()

    def _snapshot(self) -> tuple[bytes, int]:
        """Return the state for the joining replica, and its last command."""
        # Flushed rows are not in the state: the transfer reads them from the storage, which
        # must have got them before.
        self._send_local()
        return self.machine.snapshot(), self.machine.index

    def _send_kept(self) -> None:
        """Send the successor every kept command."""
        if self._log is not None:
            self._passed = 0
            self._pass_on()
        elif self.kept:
            self.ctx.send(self.place.successor, ChainCommands(self.place.epoch, list(self.kept)))

    def _log_epoch(self) -> None:
        if self._log is not None:
            self._log.begin_epoch(
                self.place.epoch, self.place.members, self.place.state is State.SERVING
            )

    # -- commands --------------------------------------------------------------

    def _on_request(self, source: str, message: ChainRequest) -> None:
        if not self.place.is_head:
            return  # the client sends it again once it knows the head
        if self.machine.fresh(message.client, message.born, message.sequence):
            self._number(
                message.client, message.born, message.sequence, message.acked, message.body
            )
        else:
            self._replies.owe((message.client,))

    def _number(
        self,
        client: str,
        born: float,
        sequence: int,
        acked: int,
        body: bytes,
        due_s: float = float("-inf"),
    ) -> None:
        if not self.place.is_head:
            return
        now_s = self._clock.stamp_s(due_s)
        self._apply(Command(self.machine.index + 1, now_s, client, born, sequence, acked, body))

    def _apply(self, command: Command) -> None:
        self.machine.apply(command)
        self._new.append(command)

    def _on_commands(self, source: str, message: ChainCommands) -> None:
        if message.epoch != self.place.epoch or (
            self.place.state is State.JOINING and not self._restored
        ):
            return
        for command in message.commands:
            if command.index > self.machine.index:
                self._apply(command)
                self._clock.follow(command.time_s)
        if not self._new and (self.place.state is State.JOINING or self.place.is_tail):
            self._acknowledge()

    def _keep(self, new: list[Command]) -> None:
        """Keep and pass on the commands of this turn."""
        if self._log is not None:
            self._log.append(new, self.machine)
            if self.place.state is not State.JOINING and self._keeps:
                self.kept += new
            return
        if self.place.state is State.JOINING:
            self._acknowledge()
            return
        if self.place.successor:
            self.kept += new
            if self._transfer is None or self._transfer.over:
                self.ctx.send(self.place.successor, ChainCommands(self.place.epoch, new))
        if self.place.is_tail:
            self._acknowledge()

    @property
    def _keeps(self) -> bool:
        """Whether commands are kept for a successor: not before its snapshot is taken."""
        return bool(self.place.successor) and (self._transfer is None or self._transfer.taken)

    def _pass_on(self) -> None:
        """Send the successor the logged commands that it was not sent."""
        if self._transfer is not None and not self._transfer.over:
            return
        safe = self._safe
        first = self._passed + 1 - self.kept[0].index if self.kept else 0
        ahead = islice(self.kept, max(0, first), None)
        due = list(takewhile(lambda command: command.index <= safe, ahead))
        if due:
            self._passed = due[-1].index
            self.ctx.send(self.place.successor, ChainCommands(self.place.epoch, due))

    def _acknowledge(self) -> None:
        """Acknowledge commands to the predecessor; a joining replica to the tail."""
        if self.place.state is State.JOINING:
            if self._safe and self._restored:
                self.ctx.send(self.place.members[-1], ChainAck(self.place.epoch, self._safe))
        elif not self.place.is_head:
            # Rule 3: the tail confirms no command that the joining replica may lack.
            self.ctx.send(self.place.predecessor, ChainAck(self.place.epoch, self._limit))

    def _on_ack(self, source: str, message: ChainAck) -> None:
        if message.epoch != self.place.epoch or self.place.state is not State.SERVING:
            return
        if self._transfer is not None:
            self._transfer.on_ack(message.index, self.machine.index)
            self._acknowledge()
        while self.kept and self.kept[0].index <= message.index:
            self.kept.popleft()
        if not self.place.is_head and not self.place.is_tail:
            self.ctx.send(self.place.predecessor, message)

    # -- clients ---------------------------------------------------------------

    def _on_attach(self, source: str, message: ChainAttach) -> None:
        if not self.place.is_tail:
            return
        self._replies.attach(message)

    @property
    def _safe(self) -> int:
        """The last command that is safe here: applied, and logged if there is a log."""
        return self.machine.index if self._log is None else self._log.index

    @property
    def _limit(self) -> int:
        """The last command whose outputs may leave."""
        if self._transfer is not None and self._transfer.acked >= 0:
            return min(self._safe, self._transfer.acked)
        return self._safe

    # -- a new replica ---------------------------------------------------------

    def _on_taken(self, source: str, message: SnapshotTaken) -> None:
        feed = self._transfer
        if message.epoch == self.place.epoch and feed is not None and feed.on_taken(message.part):
            self._send_kept()

    def _on_part(self, source: str, message: SnapshotPart) -> None:
        if message.epoch != self.place.epoch or self.place.state is not State.JOINING:
            return
        assert message.part == len(self._parts), "parts of a snapshot came out of order"
        self._parts.append(message.data)
        self.ctx.send(source, SnapshotTaken(self.place.epoch, message.part))
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
            self.ctx.send(self.place.members[-1], SnapshotTaken(self.place.epoch, ROWS))
        if self.place.state is State.JOINING and not self._restored:
            return  # of the replica's former state
        self._log.index = message.index
        if self.place.state is State.SERVING and self.place.successor:
            self._pass_on()
        if self.place.state is State.JOINING or self.place.is_tail:
            self._acknowledge()

    def _on_rows(self, source: str, message: ColdRows) -> None:
        if message.epoch == self.place.epoch and self.place.state is State.JOINING:
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
        if self.place.state is not State.FENCED:
            self.ctx.send(self.master, ReplicaBeat(self.info.name, self.machine.index))
            self.ctx.after(self.config.heartbeat_s, self._beat)
