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

========= ========================================= ==========================
state     what it does                              leaves it when
========= ========================================= ==========================
NEW       nothing                                   configured: JOINING, or
                                                    SERVING in the first epoch
JOINING   takes the snapshot, then commands         configured as a member
SERVING   by its place: HEAD numbers, TAIL answers  configured without it
FENCED    nothing, ever                             --
========= ========================================= ==========================

Rules
-----
1. On a new epoch each replica sends its successor again all that the tail is
   not known to have. What the successor has it leaves out; a gap cannot be,
   since nobody acknowledges what his successor lacks.
2. On a new epoch every client sends the head again what was not confirmed, and
   tells the tail how far it has come, which sends the outputs after that. The
   machine's sessions let both take effect once.
3. A joining replica is fed by the tail, which serves meanwhile: a snapshot in
   parts, a few under way, then every command since. Once it has
   the snapshot the tail confirms nothing any more, to clients or to its
   predecessor, that the joining one has not acknowledged.
   Only when it has all that was answered before, too, is the master told that
   it has joined: else the tail could die with what its clients were told.
4. What comes from a later epoch than this replica has heard of waits for it.

A **durable** replica has a log as well (an address; I/O is behind it). It passes on,
acknowledges and answers nothing before its own log has it, as if the disk were between
it and its successor. So the log of any member has all that was ever answered, and the
longest of the latest epoch is what to go on with when no replica is left. Rows that
were flushed are not in snapshots: who feeds a new replica reads them from its own
storage in pieces, behind the snapshot, and each is written there unless it has a newer one.

Time: the head stamps commands with its clock, shifted so that it goes on from
its predecessor's stamps; replicas on several hosts need no common clock.

Cost: per request of a chain of n, n + 1 messages and n times the machine's own
work; memory for what is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from itertools import islice, takewhile
from typing import Any, NamedTuple

from runtime.control.config import Config
from runtime.control.context import Context, Timer
from runtime.control.feeding import ROWS, Feed
from runtime.control.messages import (
    ChainAck,
    ChainAttach,
    ChainCommands,
    ChainConfigured,
    ChainOutput,
    ChainRequest,
    ColdRows,
    Command,
    Frame,
    LogCommands,
    LogEpoch,
    Logged,
    LogSnapshot,
    ReplicaBeat,
    ReplicaInfo,
    ReplicaJoined,
    ReplicaLost,
    ReplicaReady,
    ReplicaSuspected,
    RowLoaded,
    SnapshotPart,
    SnapshotTaken,
)
from runtime.control.replicated import MASTER as MASTER
from runtime.control.replicated import Machine, encode_frames
from runtime.control.shards import chain_of, master_of
from runtime.control.succession import EPOCHS_PER_LIFE

LOG_BYTES = 4 << 20
"""A durable replica logs at least so much before it logs a snapshot again, and at
least four times what the last one took: snapshots stay a small part of the work."""
COMMAND_BYTES = 60
"""Of a command in the log, besides its body."""


class State(Enum):
    """See the table above."""

    NEW = "new"
    JOINING = "joining"
    SERVING = "serving"
    FENCED = "fenced"


class Recovered(NamedTuple):
    """What a durable replica finds in its log."""

    machine: Machine
    epoch: int
    members: list[str]


class Replica:
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
        self.info = info
        self.config = config
        self.machine = recovered.machine if recovered is not None else make()
        self.master = master_of(chain_of(info.name))
        self.state = State.NEW
        self.epoch = recovered.epoch if recovered is not None else 0
        self.members = recovered.members if recovered is not None else []
        self.places: dict[str, ReplicaInfo] = {}
        """Where every replica of the chain listens, by name."""
        self.kept: deque[Command] = deque()
        """Applied here, and not known to be where it has to be: oldest first."""
        self._make = make
        self._log = log
        self._recovered = recovered is not None
        self._logged = self.machine.index
        self._passed = 0
        """The last command that the successor was sent in this epoch, where there is a log."""
        self._rows_owed = False
        """Who feeds this replica waits for it to have written rows."""
        self._logged_bytes = 0
        self._snapshot_bytes = LOG_BYTES
        self._shift_s = 0.0
        self._joining = ""
        self._feed: Feed | None = None
        self._parts: list[bytes] = []
        self._restored = False
        self._early: list[tuple[str, Any]] = []
        self._new: list[Command] = []
        """Applied in this turn."""
        self._owed: dict[str, None] = {}
        """Clients that the tail owes an answer."""
        self._attached: dict[str, tuple[float, int]] = {}
        """The tail's clients: which life of each, and the last output sent to it."""
        self._tick: Timer | None = None
        self._tick_s = 0.0
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
        # The head's clients are other ones now: who has their addresses has not had what
        # was sent to these.
        nodes = {c: a for c, a in self._attached.items() if c.startswith("node:")}
        self._attached = nodes
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
        if source == self._log and type(message) is ColdRows:
            if self._feed is not None:
                self._feed.on_rows(message.rows)
            return
        epoch = getattr(message, "epoch", self.epoch)
        if epoch > self.epoch and type(message) is not ChainConfigured:
            self._early.append((source, message))
            return
        self._handlers[type(message)](source, message)

    def end_turn(self) -> None:
        """Pass on what was applied, acknowledge it, answer clients."""
        for component, to, message in self.machine.take_local():
            del component
            self.ctx.send(to, message)
        for client in self.machine.take_touched():
            self._owed[client] = None
        if self._new:
            new, self._new = self._new, []
            self._keep(new)
        if self.is_tail:
            self._answer()
        else:
            self._owed.clear()
        self._set_tick()

    # -- places ----------------------------------------------------------------

    @property
    def is_head(self) -> bool:
        """Whether this replica numbers requests."""
        return self.state is State.SERVING and self.members[0] == self.info.name

    @property
    def is_tail(self) -> bool:
        """Whether this replica lets outputs out."""
        return self.state is State.SERVING and self.members[-1] == self.info.name

    @property
    def successor(self) -> str:
        """Who gets the commands next: a member, or who joins behind the tail."""
        at = self.members.index(self.info.name) + 1
        if at < len(self.members):
            return self.members[at]
        return self._joining

    def _on_configured(self, source: str, message: ChainConfigured) -> None:
        if message.epoch <= self.epoch:
            return
        self.epoch = message.epoch
        me = self.info.name
        self.members = [info.name for info in message.members]
        self._joining = message.joining.name if message.joining is not None else ""
        self.places = {
            info.name: info for info in (*message.members, message.joining) if info is not None
        }
        self._feed = None
        self._attached.clear()
        if me in self.members:
            has = self.state is not State.NEW or self._recovered
            assert has or self.epoch % EPOCHS_PER_LIFE == 1, "it has nothing of the others' state"
            self.state = State.SERVING
            self._log_epoch()
            self._send_again()
            if self._log and self.is_head:
                for to, asked in self.machine.unanswered():
                    self.ctx.send(to, asked)
        elif me == self._joining:
            # Again from the start if it was joining already: its feed may be another.
            self.state = State.JOINING
            self.machine = self._make()
            # Applied in this very turn, by the machine that it no longer has.
            self._new.clear()
            self._parts = []
            self._restored = self._rows_owed = False
            self._logged = 0
            self._log_epoch()
        else:
            self.state = State.FENCED
            return
        early, self._early = self._early, []
        for sender, held in early:
            self.handle(sender, held)

    def _send_again(self) -> None:
        """Rules 1 and 3: bring the successor of this epoch up to date."""
        if self.is_tail and self._joining:
            rows = self._log if self.config.gcs_memory_max else ""
            data, index = self.machine.snapshot(), self.machine.index
            self.kept.clear()
            self._feed = Feed(self.ctx, self.epoch, self._joining, index, data, rows)
            if self._feed.send_parts():
                self._follow(self._feed)
        elif self.is_tail:
            self.kept.clear()
        elif self._log:
            self._passed = 0
            self._pass_on()
        elif self.kept:
            self.ctx.send(self.successor, ChainCommands(self.epoch, list(self.kept)))
        if self.is_tail:
            self._acknowledge()

    def _log_epoch(self) -> None:
        if self._log:
            serving = self.state is State.SERVING
            self.ctx.send(self._log, LogEpoch(self.epoch, list(self.members), serving))

    # -- commands --------------------------------------------------------------

    def _on_request(self, source: str, message: ChainRequest) -> None:
        if not self.is_head:
            return  # its client has not heard who is; it will send it again
        if self.machine.fresh(message.client, message.born, message.sequence):
            self._number(
                message.client, message.born, message.sequence, message.acked, message.body
            )
        else:
            self._owed[message.client] = None

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
        # A timer's clock may be a hair behind what it was to wait for.
        now_s = max(due_s, self.ctx.now() + self._shift_s)
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
                self._shift_s = command.time_s - self.ctx.now()
        if not self._new and (self.state is State.JOINING or self.is_tail):
            self._acknowledge()

    def _keep(self, new: list[Command]) -> None:
        """Pass on what was applied in this turn."""
        if self._log:
            self.ctx.send(self._log, LogCommands(new))
            self._logged_bytes += sum(COMMAND_BYTES + len(command.body) for command in new)
            if self._logged_bytes >= self._snapshot_bytes:
                data = self.machine.snapshot()
                self._logged_bytes = 0
                self._snapshot_bytes = max(LOG_BYTES, 4 * len(data))
                self.ctx.send(self._log, LogSnapshot(self.machine.index, data))
            if self.state is not State.JOINING and self.successor:
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

    def _pass_on(self) -> None:
        """Send the successor what the log has, and it was not sent."""
        if self._feed is not None and not self._feed.over:
            return
        first = self._passed + 1 - self.kept[0].index if self.kept else 0
        ahead = islice(self.kept, max(0, first), None)
        due = list(takewhile(lambda command: command.index <= self._logged, ahead))
        if due:
            self._passed = due[-1].index
            self.ctx.send(self.successor, ChainCommands(self.epoch, due))

    def _acknowledge(self) -> None:
        """Tell the predecessor, or who feeds this replica, how far it has come."""
        if self.state is State.JOINING:
            index = self._logged if self._log else self.machine.index
            if index and self._restored:
                self.ctx.send(self.members[-1], ChainAck(self.epoch, index))
        elif not self.is_head:
            before = self.members[self.members.index(self.info.name) - 1]
            # Like an answer: what a joining replica may lack is still to be kept.
            self.ctx.send(before, ChainAck(self.epoch, self._limit))

    def _on_ack(self, source: str, message: ChainAck) -> None:
        if message.epoch != self.epoch or self.state is not State.SERVING:
            return
        if self._feed is not None:
            self._on_fed(self._feed, message.index)
            self._acknowledge()
        while self.kept and self.kept[0].index <= message.index:
            self.kept.popleft()
        if not self.is_head and not self.is_tail:
            before = self.members[self.members.index(self.info.name) - 1]
            self.ctx.send(before, message)

    # -- clients ---------------------------------------------------------------

    def _on_attach(self, source: str, message: ChainAttach) -> None:
        if not self.is_tail:
            return
        self._attached[message.client] = (message.born, message.received)
        self._owed[message.client] = None

    @property
    def _limit(self) -> int:
        """The last command whose outputs may leave."""
        limit = self._logged if self._log else self.machine.index
        if self._feed is not None and self._feed.acked >= 0:
            return min(limit, self._feed.acked)
        return limit

    def _answer(self) -> None:
        """Send clients what they lack and may have."""
        limit = self._limit
        owed, self._owed = self._owed, {}
        for client in owed:
            session = self.machine.sessions.get(client)
            born, sent = self._attached.get(client, (0.0, 0))
            if session is None or client not in self._attached or session.born != born:
                continue  # it will attach, or its first request is on its way
            applied = session.applied if session.applied_index <= limit else 0
            told = False
            skip = len(session.outbox) - (session.sent - sent)
            for output in islice(session.outbox, max(0, skip), None):
                if output.index > limit:
                    break
                self.ctx.send(client, ChainOutput(applied, output.sequence, output.body, born))
                sent = output.sequence
                told = True
            if not told and applied:
                self.ctx.send(client, ChainOutput(applied, 0, b"", born))
            self._attached[client] = (born, sent)
            if sent < session.sent or not applied:
                self._owed[client] = None

    # -- a new replica ---------------------------------------------------------

    def _follow(self, feed: Feed) -> None:
        """The snapshot was sent: send what came since."""
        if self._log:
            self._passed = 0
            self._pass_on()
        elif self.kept:
            self.ctx.send(feed.to, ChainCommands(self.epoch, list(self.kept)))

    def _on_fed(self, feed: Feed, index: int) -> None:
        """The joining replica says how far it has come."""
        if feed.acked < 0:
            feed.answered = self.machine.index
        feed.acked = index
        self._may_join(feed)

    def _may_join(self, feed: Feed) -> None:
        if feed.joined:
            feed.answered = -1
            self.ctx.send(self.master, ReplicaJoined(self.epoch, feed.to))

    def _on_taken(self, source: str, message: SnapshotTaken) -> None:
        feed = self._feed
        if message.epoch == self.epoch and feed is not None:
            if feed.on_taken(message.part):
                self._follow(feed)
            self._may_join(feed)

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
            if self._log:
                self.ctx.send(self._log, LogSnapshot(self.machine.index, b"".join(self._parts)))
            self._parts = []
            self._acknowledge()

    # -- the log ---------------------------------------------------------------

    def _on_logged(self, source: str, message: Logged) -> None:
        if self.state is State.JOINING and not self._restored:
            return  # of what it was before
        self._logged = message.index
        if self._rows_owed:
            self._rows_owed = False
            self.ctx.send(self.members[-1], SnapshotTaken(self.epoch, ROWS))
        if self.state is State.SERVING and self.successor:
            self._pass_on()
        if self.state is State.JOINING or self.is_tail:
            self._acknowledge()

    def _on_rows(self, source: str, message: ColdRows) -> None:
        if message.epoch == self.epoch and self.state is State.JOINING:
            self._rows_owed = True
            self.ctx.send(self._log, message)

    # -- time and failures -----------------------------------------------------

    def _set_tick(self) -> None:
        """The head numbers an empty command when a timer of the machine is due."""
        due_s = self.machine.next_due_s() if self.is_head else None
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
        if due_s is None:
            return
        self._number("", 0.0, 0, 0, b"", due_s)

    def _on_lost(self, source: str, message: ReplicaLost) -> None:
        self.ctx.send(self.master, ReplicaSuspected(message.name, message.reason))

    def _beat(self) -> None:
        if self.state is not State.FENCED:
            self.ctx.send(self.master, ReplicaBeat(self.info.name, self.machine.index))
            self.ctx.after(self.config.heartbeat_s, self._beat)
