"""A replica of a chain: the component that applies, forwards and answers commands.

========= ========================================= ==========================
state     the replica                               leaves it when
========= ========================================= ==========================
NEW       waits                                     configured: JOINING, or
                                                    SERVING in the first epoch
JOINING   takes the snapshot, then commands         configured as a member
SERVING   the HEAD numbers, the TAIL answers        configured without it
FENCED    ignores every message                     never
========= ========================================= ==========================

The package's docstring has the rules; the comments below refer to them by number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import islice
from typing import Any

from raytwin.runtime.control.core.addresses import chain_of, master_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Timer
from raytwin.runtime.control.messages import (
    ChainAck,
    ChainAttach,
    ChainCommands,
    ChainConfigured,
    ChainOutput,
    ChainRequest,
    ClientUnreachable,
    Command,
    Frame,
    LogCommands,
    Logged,
    LogSnapshot,
    NodeUnreachable,
    ReplicaHeartbeat,
    ReplicaInfo,
    ReplicaJoined,
    ReplicaLost,
    ReplicaReady,
    ReplicaSuspected,
    RowLoaded,
    Snapshot,
)
from raytwin.runtime.control.replication.state_machine import Machine, encode_frames

LOG_BYTES = 4 << 20
"""A durable replica logs at least so much before it logs a snapshot again, and at least four
times the size of the last one: snapshots stay a small part of the work."""
COMMAND_BYTES = 60
"""The bytes of a command in the log, besides its body."""


class State(Enum):
    """See the table above."""

    NEW = "new"
    JOINING = "joining"
    SERVING = "serving"
    FENCED = "fenced"


class Replies:
    """The outputs that the tail owes its clients.

    The machine's sessions keep outputs until the client has confirmed them, so another tail can
    send them again. `Replies` has only the clients that are attached, and the last output sent to
    each.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._owed: dict[str, None] = {}
        """The clients that may lack an output."""
        self._attached: dict[str, tuple[float, int]] = {}
        """By attached client: its `born`, and the number of the last output sent to it."""

    def attach(self, message: ChainAttach) -> None:
        """Note a client that has attached, and owe it a reply."""
        self._attached[message.client] = (message.born, message.received)
        self._owed[message.client] = None

    def owe(self, clients: Iterable[str]) -> None:
        """Reply to these clients once their outputs may leave."""
        self._owed.update(dict.fromkeys(clients))

    def owe_nobody(self) -> None:
        """Forget the owed replies: another replica is the tail."""
        self._owed.clear()

    def detach(self) -> None:
        """Forget all clients: in a new epoch each attaches again."""
        self._attached.clear()

    def send(self, machine: Machine, limit: int) -> None:
        """Send clients the outputs of commands up to `limit` that they lack."""
        owed, self._owed = self._owed, {}
        for client in owed:
            session = machine.sessions.get(client)
            born, sent = self._attached.get(client, (0.0, 0))
            if session is None or client not in self._attached or session.born != born:
                continue  # The client will attach, or its first request is on its way.
            applied = session.applied if session.applied_index <= limit else 0
            sent_any = False
            skip = len(session.outbox) - (session.sent - sent)
            for output in islice(session.outbox, max(0, skip), None):
                if output.index > limit:
                    break
                self._ctx.send(client, ChainOutput(applied, output.sequence, output.body, born))
                sent = output.sequence
                sent_any = True
            if not sent_any and applied:
                self._ctx.send(client, ChainOutput(applied, 0, b"", born))
            self._attached[client] = (born, sent)
            if sent < session.sent or not applied:
                self._owed[client] = None


class Replica:
    """One replica of a chain: head, middle or tail, or on its way to become the tail."""

    def __init__(
        self,
        ctx: Context,
        info: ReplicaInfo,
        config: Config,
        make: Callable[[], Machine],
        storage: str = "",
    ) -> None:
        """`make` returns a replica's machine in its first state.

        `storage` is the address of a durable replica's log, which has the commands that the
        machine has applied; empty for none. A chain with a durable replica has no others.
        """
        self.ctx = ctx
        self.info = info
        self.config = config
        self.machine = make()
        self.master = master_of(chain_of(info.name))
        self.state = State.NEW
        self.epoch = 0
        self.members: list[str] = []
        self.joining = ""
        """The replica that joins behind the tail; empty if none does."""
        self.infos: dict[str, ReplicaInfo] = {}
        """The address of every replica of the chain, by name."""
        self.kept: deque[Command] = deque()
        """Commands applied here that the successor may lack, oldest first."""
        self._make = make
        self._replies = Replies(ctx)
        self._early: list[tuple[str, Any]] = []
        """Messages of later epochs."""
        self._new: list[Command] = []
        """Commands applied in this turn."""
        self._restored = False
        """Whether a joining replica has the snapshot."""
        self._joining_has = -1
        """In the tail: the last command that the joining replica has applied; -1: it has no
        snapshot yet."""
        self._joined_at = -1
        """In the tail: the command that the joining replica must apply to become a member."""
        self._storage = storage
        self._logged = self.machine.index
        self._log_bytes = 0
        self._snapshot_bytes = LOG_BYTES
        # The chain's time is the head's clock. A replica measures the offset of its own clock, and
        # applies it when it becomes the head: time never goes back, without synchronized clocks.
        self._shift_s = 0.0
        self._tick: Timer | None = None
        self._tick_s = 0.0
        self._handlers: dict[type, Any] = {
            ChainRequest: self._on_request,
            ChainAttach: self._on_attach,
            ChainCommands: self._on_commands,
            ChainAck: self._on_ack,
            ChainConfigured: self._on_configured,
            Snapshot: self._on_snapshot,
            ReplicaLost: self._on_lost,
            NodeUnreachable: self._on_node_unreachable,
            Logged: self._on_logged,
            RowLoaded: self._on_row_loaded,
        }

    def start(self) -> None:
        """Report to the master."""
        self.ctx.send(self.master, ReplicaReady(self.info))
        self.ctx.after(self.config.heartbeat_s, self._send_heartbeat)

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        if self.state is State.FENCED:
            return
        epoch = getattr(message, "epoch", self.epoch)
        if epoch < self.epoch and type(message) in (ChainCommands, ChainAck, Snapshot):
            return
        if epoch > self.epoch and type(message) is not ChainConfigured:
            self._early.append((source, message))
            return
        self._handlers[type(message)](source, message)

    def end_turn(self) -> None:
        """Pass on the commands of this turn, acknowledge them, answer clients."""
        for to, message in self.machine.take_local():
            self.ctx.send(to, message)
        self._replies.owe(self.machine.take_touched())
        if self._new:
            new, self._new = self._new, []
            self._pass_on(new)
        if self.is_tail:
            self._replies.send(self.machine, self._limit)
        else:
            self._replies.owe_nobody()
        # The head numbers an empty command when a timer of the machine is due.
        self._set_tick(self.machine.next_due_s() if self.is_head else None)

    # -- the chain ---------------------------------------------------------------

    @property
    def fenced(self) -> bool:
        """Whether the chain goes on without this replica, whose process has to end."""
        return self.state is State.FENCED

    @property
    def is_head(self) -> bool:
        """Whether this replica numbers requests."""
        return self.state is State.SERVING and self.members[0] == self.info.name

    @property
    def is_tail(self) -> bool:
        """Whether this replica sends outputs."""
        return self.state is State.SERVING and self.members[-1] == self.info.name

    @property
    def _predecessor(self) -> str:
        return self.members[self.members.index(self.info.name) - 1]

    @property
    def _successor(self) -> str:
        """The replica that this one sends commands to: a member, or the one that joins."""
        return [*self.members, self.joining][self.members.index(self.info.name) + 1]

    def _on_configured(self, source: str, message: ChainConfigured) -> None:
        if message.epoch <= self.epoch:
            return
        self.epoch = message.epoch
        self.members = [info.name for info in message.members]
        self.joining = message.joining.name if message.joining is not None else ""
        replicas = (*message.members, message.joining)
        self.infos = {info.name: info for info in replicas if info is not None}
        self._replies.detach()
        self._joining_has = self._joined_at = -1
        if self.info.name in self.members:
            assert self.epoch == 1 or self._restored or self.state is State.SERVING, "no state"
            self.state = State.SERVING
            self._send_again()
            if self._storage and self.is_head:
                # The process that had sent these requests to the storage has ended.
                for to, asked in self.machine.unanswered():
                    self.ctx.send(to, asked)
        elif self.info.name == self.joining:
            # A replica that was joining already begins again: its tail may be another.
            self.state = State.JOINING
            self.machine = self._make()
            # The discarded machine has applied these.
            self._new.clear()
            self._restored = False
        else:
            self.state = State.FENCED
            return
        early, self._early = self._early, []
        for sender, held in early:
            self.handle(sender, held)

    def _send_again(self) -> None:
        """Rules 1 and 3: bring the successor of this epoch up to date."""
        if not self.is_tail:
            if self.kept:
                self.ctx.send(self._successor, ChainCommands(self.epoch, list(self.kept)))
            return
        self.kept.clear()
        if self.joining:
            state = Snapshot(self.epoch, self.machine.index, self.machine.snapshot())
            self.ctx.send(self.joining, state)
        self._acknowledge()

    # -- commands ----------------------------------------------------------------

    def _on_request(self, source: str, message: ChainRequest) -> None:
        if not self.is_head:
            return  # the client sends it again once it knows the head
        if self.machine.fresh(message.client, message.born, message.sequence):
            self._number(
                message.client, message.born, message.sequence, message.acked, message.body
            )
        else:
            self._replies.owe((message.client,))

    def _on_row_loaded(self, source: str, message: RowLoaded) -> None:
        """Make an answer of the storage a command."""
        tables = next(iter(self.machine.components))
        self._number("", 0.0, 0, 0, encode_frames([Frame(source, tables, [message])]))

    def _number(
        self,
        client: str,
        born: float,
        sequence: int,
        acked: int,
        body: bytes,
        due_s: float = float("-inf"),
    ) -> None:
        """As the head, apply the next command; `due_s`: the time of the timer that caused it."""
        if not self.is_head:
            return
        # When the timer runs, the clock may be slightly behind the time that it was set for.
        now_s = max(due_s, self.ctx.now() + self._shift_s)
        self._apply(Command(self.machine.index + 1, now_s, client, born, sequence, acked, body))

    def _apply(self, command: Command) -> None:
        self.machine.apply(command)
        self._new.append(command)

    def _on_commands(self, source: str, message: ChainCommands) -> None:
        if self.state is State.JOINING and not self._restored:
            return
        for command in message.commands:
            if command.index > self.machine.index:
                self._apply(command)
                self._shift_s = command.time_s - self.ctx.now()
        if not self._new and (self.state is State.JOINING or self.is_tail):
            self._acknowledge()

    def _pass_on(self, new: list[Command]) -> None:
        """Log the commands of this turn, or pass them on; the last replica acknowledges them."""
        if self._storage:
            self._log(new)
            return
        if self.state is State.SERVING and self._successor:
            self.kept += new
            self.ctx.send(self._successor, ChainCommands(self.epoch, new))
        if self.state is State.JOINING or self.is_tail:
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Acknowledge commands to the predecessor; a joining replica to the tail."""
        if self.state is State.JOINING:
            self.ctx.send(self.members[-1], ChainAck(self.epoch, self.machine.index))
        elif not self.is_head:
            # Rule 3: the tail confirms no command that the joining replica may lack.
            self.ctx.send(self._predecessor, ChainAck(self.epoch, self._limit))

    def _on_ack(self, source: str, message: ChainAck) -> None:
        if self.state is not State.SERVING:
            return
        if self.is_tail:
            if self._joining_has < 0:
                self._joined_at = self.machine.index
            self._joining_has = message.index
            if 0 <= self._joined_at <= message.index:
                self._joined_at = -1
                self.ctx.send(self.master, ReplicaJoined(self.epoch, self.joining))
            self._acknowledge()
        while self.kept and self.kept[0].index <= message.index:
            self.kept.popleft()
        if not self.is_head and not self.is_tail:
            self.ctx.send(self._predecessor, message)

    def _on_snapshot(self, source: str, message: Snapshot) -> None:
        """Rule 3: take the state of the tail from its snapshot."""
        if self.state is State.JOINING:
            self.machine = self._make()
            self.machine.restore(message.data)
            self._restored = True
            self._acknowledge()

    # -- clients -----------------------------------------------------------------

    def _on_attach(self, source: str, message: ChainAttach) -> None:
        if self.is_tail:
            self._replies.attach(message)

    @property
    def _limit(self) -> int:
        """The last command whose outputs may leave."""
        if self._storage:
            return self._logged
        return self.machine.index if self._joining_has < 0 else self._joining_has

    # -- the log of a durable replica --------------------------------------------

    def _log(self, commands: list[Command]) -> None:
        """Rule 4: log commands, and replace them by a snapshot if they are many."""
        self.ctx.send(self._storage, LogCommands(commands))
        self._log_bytes += sum(COMMAND_BYTES + len(command.body) for command in commands)
        if self._log_bytes >= self._snapshot_bytes:
            data = self.machine.snapshot()
            self._log_bytes = 0
            self._snapshot_bytes = max(LOG_BYTES, 4 * len(data))
            self.ctx.send(self._storage, LogSnapshot(self.machine.index, data))

    def _on_logged(self, source: str, message: Logged) -> None:
        self._logged = message.index

    # -- time and failures -------------------------------------------------------

    def _set_tick(self, due_s: float | None) -> None:
        """Wait for the next timer of the machine, if there is one."""
        if self._tick is not None:
            if due_s == self._tick_s:
                return
            self._tick.cancel()
            self._tick = None
        if due_s is not None:
            self._tick_s = due_s
            left_s = due_s - self._shift_s - self.ctx.now()
            self._tick = self.ctx.after(max(0.0, left_s), self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        due_s = self.machine.next_due_s()
        if due_s is not None:
            self._number("", 0.0, 0, 0, b"", due_s)

    def _on_lost(self, source: str, message: ReplicaLost) -> None:
        self.ctx.send(self.master, ReplicaSuspected(message.name, message.reason))

    def _on_node_unreachable(self, source: str, message: NodeUnreachable) -> None:
        """A client lacks outputs, and does not know: the master decides who of the two leaves."""
        client = f"node:{message.node}"
        session = self.machine.sessions.get(client)
        if session is not None:  # else it is dead
            report = ClientUnreachable(client, session.born, message.reason)
            self.ctx.send(self.master, report)

    def _send_heartbeat(self) -> None:
        if self.state is not State.FENCED:
            self.ctx.send(self.master, ReplicaHeartbeat(self.info.name))
            self.ctx.after(self.config.heartbeat_s, self._send_heartbeat)
