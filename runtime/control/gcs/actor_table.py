"""The GCS's actor table: the node, the state and the lineage of every actor.

    CreateActors ──> PENDING ──ActorPlaced──> STARTING ──ActorStarted──> ALIVE
                        ↑                        │                         │
                        └── restarts left ───────┴── ActorFailed, node died┤
                                                                           ↓
                              none left, killed, owner gone ─────────────> DEAD

If an actor ended because its handles or its owner were gone, and the task that created it runs
again, the GCS creates the actor again: the task repeats its calls, too.

Each start is an *incarnation*; the table ignores messages of an older one. The nodes of an
actor's callers subscribe to its changes.

The table has the lineage of an actor that may restart: the calls that took effect, in order, since
its last checkpoint. A call's result leaves its node only once the call is logged here, so every
effect that a client has seen survives. `ReplyHistory` has the replies of calls before the
checkpoint, within a bound: a caller whose reply was lost with the node, or a task that runs
again, repeats the call, and the call must not take effect twice.

The logs of all actors together are bounded by ``actor_log_bytes_max``. Beyond that the
GCS drops the longest log, which an event reports. The actor lives on, but cannot restart
until it has taken its next checkpoint.

Cost: a restartable actor's call is one `CallRecord` here and a share of two
messages; calls of an actor that never restarts do not reach the GCS at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.batching import cut, record_bytes
from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import job_id, job_number, job_of
from raytwin.runtime.control.core.task_ranges import is_crash_loop
from raytwin.runtime.control.gcs.event_log import Log
from raytwin.runtime.control.gcs.job_table import JobTable
from raytwin.runtime.control.gcs.pubsub import PubSub
from raytwin.runtime.control.messages import (
    ActorChanged,
    ActorFailed,
    ActorFound,
    ActorInfo,
    ActorLineage,
    ActorPlaced,
    ActorStarted,
    CallRecord,
    CallsLogged,
    CreateActors,
    FetchLineage,
    FindActor,
    KillActor,
    LogCalls,
    PlaceTasks,
    SaveActor,
    StopActor,
    TaskSpec,
    WatchActors,
)
from raytwin.runtime.control.messages.errors import (
    ActorDeath,
    DeathCause,
    Failure,
    Unschedulable,
    brief,
)

PENDING, STARTING, ALIVE, DEAD = range(4)

DEAD_MAX = 65_536
"""How many dead actors the GCS remembers, at most, for late messages about them."""
HISTORY_BYTES_MAX = 32 << 20
"""Some 30,000 calls with small replies."""


class ActorRow(Struct):
    """A row of the actor table."""

    spec: TaskSpec
    state: int = PENDING
    node: int = -1
    incarnation: int = 0
    restarts_left: int = 0
    reason: Failure | None = None
    """Why it restarts; None if it is alive, or starts for the first time."""
    checkpoint: bytes = b""
    saved: int = 0
    """Calls that the checkpoint contains."""
    log: list[CallRecord] = field(default_factory=list)
    """Calls since then, in the order in which they took effect."""
    log_bytes: int = 0
    """The approximate memory of the log."""
    dropped: int = 0
    """Calls after the checkpoint whose log was dropped at the memory limit. Until the next
    checkpoint the actor cannot be rebuilt."""

    @property
    def logged(self) -> int:
        """The number of calls that took effect and are logged, dropped ones included."""
        return self.saved + self.dropped + len(self.log)

    @property
    def info(self) -> ActorInfo:
        """The actor's options, from its creation task."""
        assert self.spec.extra is not None and self.spec.extra.actor is not None
        return self.spec.extra.actor


class DeadActor(Struct):
    """The GCS's record of a dead actor."""

    reason: Failure
    next_incarnation: int = 0
    """The incarnation with which it may be created again, if the task that created it runs again;
    0: never, because it did not end with its handles or its owner."""


class ReplyHistory:
    """Calls that the checkpoints of actors contain, with their replies, by actor.

    A call that a checkpoint contains is not replayed when its actor is rebuilt, and the replies
    that its node remembered are lost with the incarnation. So the GCS gives the next incarnation
    these records, without arguments (`ActorLineage.kept`). The GCS cannot know whether a call
    will be repeated, so all records together have `HISTORY_BYTES_MAX`, and it drops the oldest.
    """

    def __init__(self, bytes_max: int = HISTORY_BYTES_MAX) -> None:
        self._of: dict[bytes, dict[bytes, CallRecord]] = {}
        self._order: deque[tuple[bytes, bytes]] = deque()
        """Actor and call, oldest first; also of records that were dropped since."""
        self._bytes_max = bytes_max
        self._count = 0
        self.nbytes = 0

    def keep(self, actor: bytes, record: CallRecord) -> None:
        """Remember a call that a checkpoint contains."""
        task = record.task
        calls = self._of.setdefault(actor, {})
        if task.array in calls:
            return
        light = CallRecord(replace(task, args=b"", deps=()), record.result)
        calls[task.array] = light
        self._order.append((actor, task.array))
        self._count += 1
        self.nbytes += record_bytes(light)
        while self.nbytes > self._bytes_max:
            self._forget(*self._order.popleft())
        if len(self._order) > 1000 + 2 * self._count:
            self._order = deque(key for key in self._order if key[1] in self._of.get(key[0], ()))

    def of(self, actor: bytes) -> list[CallRecord]:
        """Return the records of an actor's calls."""
        return list(self._of.get(actor, {}).values())

    def drop(self, actor: bytes) -> None:
        """An actor does not restart: forget its records."""
        for call in list(self._of.get(actor, ())):
            self._forget(actor, call)

    def end_job(self, job: bytes) -> None:
        """A job has ended: forget the records of its actors."""
        for actor, calls in list(self._of.items()):
            for call in [call for call in calls if job_of(call) == job]:
                self._forget(actor, call)

    def _forget(self, actor: bytes, call: bytes) -> None:
        record = self._of.get(actor, {}).pop(call, None)
        if record is None:
            return
        self._count -= 1
        self.nbytes -= record_bytes(record)
        if not self._of[actor]:
            del self._of[actor]


class ActorTable:
    """The actors' rows, names and lineage."""

    def __init__(
        self,
        ctx: Context,
        pubsub: PubSub,
        alive: set[int],
        log: Log,
        jobs: JobTable,
        log_bytes_max: int,
        on_settled: Callable[[bytes], None],
        on_branch_ended: Callable[[bytes, str], None],
    ) -> None:
        """`on_settled` is called with an actor that has been rebuilt, or never will be;
        `on_branch_ended` with the prefix of a dead detached actor's IDs and the reason.
        """
        self.ctx = ctx
        self._jobs = jobs
        self.log_bytes = 0
        """The approximate memory of the logs of all actors; bounded."""
        self._log_bytes_max = log_bytes_max
        self.past = ReplyHistory()
        self.rows: dict[bytes, ActorRow] = {}
        self.names: dict[tuple[str, str], bytes] = {}
        self.dead: BoundedMap[bytes, DeadActor] = BoundedMap(DEAD_MAX)
        self._on_settled = on_settled
        self._on_branch_ended = on_branch_ended
        self._pubsub = pubsub
        self._alive = alive
        self._log = log

    # -- creation and names ----------------------------------------------------

    def on_create(self, source: str, message: CreateActors) -> None:
        """Place new actors."""
        for spec in message.tasks:
            self._create(spec)

    def _create(self, spec: TaskSpec) -> None:
        row = self.rows.get(spec.array)
        if row is not None:
            # Its creator ran again: the actor exists, and gets a new owner.
            row.spec.owner = spec.owner
            return
        dead = self.dead.get(spec.array)
        if job_of(spec.array) in self._jobs.ended or (
            dead is not None and not dead.next_incarnation
        ):
            return  # its subscribers know that, or learn it when they ask
        row = self.rows[spec.array] = ActorRow(spec)
        if dead is not None:
            row.incarnation = dead.next_incarnation
            del self.dead[spec.array]
        row.restarts_left = row.info.max_restarts
        if row.info.detached:
            row.info.branch = self._jobs.next_branch(spec.array)
            if not row.info.branch:
                text = "its job has no detached actors left"
                self._fail(row, Unschedulable(spec.name, text, actor=True), True)
                return
        self._log("actor_created", spec.name)
        self._place(row)
        if dead is not None:
            # A dead actor has no subscribers.
            for node in sorted(self._alive):
                self.ctx.send(f"node:{node}", self._change(row))

    def _place(self, row: ActorRow) -> None:
        row.state, row.node = PENDING, -1
        info = replace(row.info, incarnation=row.incarnation)
        assert row.spec.extra is not None
        # A copy: nodes may still hold the task of an earlier incarnation.
        row.spec = replace(row.spec, extra=replace(row.spec.extra, actor=info))
        self.ctx.send("global", PlaceTasks([row.spec]))

    def on_find(self, source: str, message: FindActor) -> None:
        """Answer which actor has a name, or create one if the request has a creation task."""
        namespace = message.namespace or self._jobs.namespace_of(message.job)
        name = (namespace, message.name)
        actor = self.names.get(name)
        created = False
        create = message.create
        if create is not None and job_of(create.array) in self._jobs.ended:
            return  # The request is late: no client waits for the answer.
        if actor is None and create is not None:
            assert create.extra is not None and create.extra.actor is not None
            create.extra.actor.namespace = namespace
            actor = self.names[name] = create.array
            self._create(create)
            created = True
        handle = self.rows[actor].info.handle if actor in self.rows else b""
        self.ctx.send(
            source, ActorFound(message.key, message.client, actor or b"", handle, created)
        )

    # -- changes ---------------------------------------------------------------

    def on_placed(self, source: str, message: ActorPlaced) -> None:
        """Note the node that the global scheduler has chosen."""
        row = self._current(message.actor, message.incarnation)
        if row is None:
            # It ended while the global scheduler chose.
            self.ctx.send(f"node:{message.node}", StopActor(message.actor, message.incarnation))
            return
        if row.state not in (PENDING, STARTING):
            return  # it may move before it has started: see `starvation`
        row.state, row.node = STARTING, message.node
        if message.node not in self._alive:
            self._place(row)

    def on_started(self, source: str, message: ActorStarted) -> None:
        """Note that an actor is alive; stop an incarnation that is not the current one."""
        row = self._current(message.actor, message.incarnation)
        # The node's report may overtake the global scheduler's, which has chosen it.
        early = row is not None and row.state == PENDING and message.node in self._alive
        if row is None or not (early or row.node == message.node):
            self.ctx.send(source, StopActor(message.actor, message.incarnation))
            return
        row.state, row.node, row.reason = ALIVE, message.node, None
        if row.incarnation:
            self._log("actor_restarted", row.spec.name, f"{message.replayed} calls replayed")
            if message.replayed:
                self._log("call_replayed", row.spec.name, "", message.replayed)
            self._on_settled(message.actor)
        self._publish(row)

    def on_failed(self, source: str, message: ActorFailed) -> None:
        """Restart an actor, or declare it dead."""
        row = self._current(message.actor, message.incarnation)
        if row is not None:
            self._fail(row, message.reason, message.final)

    def on_node_died(self, node: int, reason: str) -> bool:
        """Restart the dead node's actors on other nodes, or declare them dead.

        Returns whether any of them restarts.
        """
        there = [r for r in self.rows.values() if r.node == node]
        restarts = any(row.restarts_left != 0 for row in there)
        for row in there:
            self._fail(row, ActorDeath(DeathCause.NODE_DIED, detail=reason), False)
        return restarts

    def drop_orphans(self, died: Callable[[str], bool]) -> None:
        """End the actors of dead clients, unless another client owns them since."""
        for row in list(self.rows.values()):
            if not row.info.detached and died(row.spec.owner):
                self._stop(row)
                self._fail(row, ActorDeath(DeathCause.OWNERS_NODE_DIED), True)
                self._allow_recreation(row)

    def end_job(self, job: bytes) -> None:
        """End the actors of a job that has ended, except detached ones."""
        self.past.end_job(job)
        for actor, row in list(self.rows.items()):
            if job_of(actor) == job and not row.info.detached and actor in self.rows:
                self._stop(row)
                self._fail(row, ActorDeath(DeathCause.JOB_ENDED), True)

    def classes(self) -> set[bytes]:
        """Return the functions that make detached actors."""
        return {row.spec.function for row in self.rows.values() if row.info.detached}

    def on_kill(self, source: str, message: KillActor) -> None:
        """Kill an actor."""
        row = self.rows.get(message.actor)
        if row is None:
            return
        if message.owner and (row.info.detached or row.spec.owner != message.owner):
            return
        self._stop(row, message.restart and row.restarts_left != 0, message.graceful)
        self._fail(row, message.reason, not message.restart)
        if message.owner:
            self._allow_recreation(row)

    def _allow_recreation(self, row: ActorRow) -> None:
        """Note that an actor ended because its handles or owner were gone: it may be created
        again."""
        if row.spec.array in self.dead:
            self.dead[row.spec.array].next_incarnation = row.incarnation + 1

    def _stop(self, row: ActorRow, restarts: bool = False, graceful: bool = False) -> None:
        if row.node in self._alive:
            stop = StopActor(row.spec.array, row.incarnation, restarts, graceful)
            self.ctx.send(f"node:{row.node}", stop)

    def _fail(self, row: ActorRow, reason: Failure, final: bool) -> None:
        actor = row.spec.array
        outgrown = bool(row.dropped) and not final
        final = final or outgrown
        if isinstance(reason, ActorDeath):
            reason = replace(reason, name=row.spec.name, actor=actor, outgrown=outgrown)
        row.reason = reason
        if final or row.restarts_left == 0:
            self._shrink(row, len(row.log))
            row.state = DEAD
            self._log("actor_died", row.spec.name, brief(reason))
            self._publish(row)
            self._pubsub.close(actor)
            del self.rows[actor]
            self.past.drop(actor)
            name = (row.info.namespace, row.info.name)
            if self.names.get(name) == actor:
                del self.names[name]
            self.dead[actor] = DeadActor(reason)
            self._on_settled(actor)
            if row.info.detached and row.info.branch:
                self._on_branch_ended(job_id(job_number(actor), row.info.branch), brief(reason))
            return
        row.restarts_left -= row.restarts_left > 0
        row.incarnation += 1
        self._log("actor_restarting", row.spec.name, brief(reason))
        if is_crash_loop(row.incarnation):
            detail = f"the actor has died {row.incarnation} times, and restarts"
            self._log("crash_loop", row.spec.name, detail, 1, job_id(job_number(actor)), reason)
        self._place(row)
        self._publish(row)

    def _current(self, actor: bytes, incarnation: int) -> ActorRow | None:
        row = self.rows.get(actor)
        return row if row is not None and row.incarnation == incarnation else None

    # -- subscribers -----------------------------------------------------------

    def on_watch(self, source: str, message: WatchActors) -> None:
        """Subscribe a node to actors' changes."""
        for actor in message.actors:
            row = self.rows.get(actor)
            dead = self.dead.get(actor)
            if dead is not None:
                self.ctx.send(source, ActorChanged(actor, DEAD, -1, 0, dead.reason))
                continue
            # The actor may be unknown here: its creation is on its way by another path.
            self._pubsub.subscribe(actor, source)
            row = self.rows.get(actor)
            if row is not None:
                self.ctx.send(source, self._change(row))

    def _publish(self, row: ActorRow) -> None:
        change = self._change(row)
        self._pubsub.publish(row.spec.array, change)
        self._pubsub.publish("actors", change)
        if row.state == DEAD:
            self.ctx.send("global", change)

    @staticmethod
    def _change(row: ActorRow) -> ActorChanged:
        logged = row.info.max_restarts != 0
        return ActorChanged(
            row.spec.array, row.state, row.node, row.incarnation, row.reason, logged
        )

    def replays(self, actor: bytes, call: bytes) -> bool:
        """Whether an actor is being rebuilt, and will replay that call."""
        row = self.rows.get(actor)
        if row is None or row.state not in (PENDING, STARTING):
            return False
        return any(record.task.array == call for record in row.log)

    def may_replay(self, call: bytes) -> bool:
        """Whether any actor is being rebuilt that will replay that call."""
        return any(self.replays(actor, call) for actor in self.rows)

    # -- lineage ---------------------------------------------------------------

    def on_log(self, source: str, message: LogCalls) -> None:
        """Append calls to an actor's lineage, and confirm them."""
        row = self._current(message.actor, message.incarnation)
        if row is None:
            return  # its results never leave that node
        known = row.logged
        assert message.first <= known, "a gap in an actor's lineage"
        new = message.calls[known - message.first :]
        row.log += new
        nbytes = sum(map(record_bytes, new))
        row.log_bytes += nbytes
        self.log_bytes += nbytes
        if row.dropped:
            self._drop_log(row)
        elif self.log_bytes > self._log_bytes_max:
            self._make_room()
        self.ctx.send(source, CallsLogged(message.actor, message.incarnation, row.logged))

    def _make_room(self) -> None:
        """Drop the longest logs, except those from which an actor is being rebuilt."""
        for row in sorted(self.rows.values(), key=lambda row: row.log_bytes, reverse=True):
            if self.log_bytes <= self._log_bytes_max:
                return
            if row.state == ALIVE and row.log:
                self._log("actor_log_outgrown", row.spec.name, f"{row.log_bytes:,} bytes")
                self._drop_log(row)

    def _drop_log(self, row: ActorRow) -> None:
        """Drop an actor's log: the actor cannot be rebuilt until it takes a checkpoint."""
        count = len(row.log)
        self._shrink(row, count)
        row.dropped += count
        if not row.info.checkpoint_interval:
            # The actor never restarts, so no caller will ask for its replies.
            self.past.drop(row.spec.array)

    def _shrink(self, row: ActorRow, count: int) -> None:
        """Remove calls from the log; the history keeps their replies."""
        gone = row.log[:count]
        for record in gone:
            self.past.keep(row.spec.array, record)
        del row.log[:count]
        nbytes = sum(map(record_bytes, gone))
        row.log_bytes -= nbytes
        self.log_bytes -= nbytes

    def on_save(self, source: str, message: SaveActor) -> None:
        """Keep a checkpoint in place of the calls that it contains."""
        row = self._current(message.actor, message.incarnation)
        if row is None or message.upto <= row.saved:
            return
        assert message.upto <= row.logged, "a checkpoint of calls that are not logged"
        count = message.upto - row.saved - row.dropped
        if count < 0:
            return  # Calls since then are in no log; the next checkpoint may be complete.
        self._shrink(row, count)
        row.dropped = 0
        row.saved, row.checkpoint = message.upto, message.state

    def on_fetch_lineage(self, source: str, message: FetchLineage) -> None:
        """Send an actor's lineage to the node that rebuilds it."""
        row = self._current(message.actor, message.incarnation)
        if row is None:
            self.ctx.send(source, StopActor(message.actor, message.incarnation))
            return
        kept: list[tuple[list[CallRecord], list[CallRecord]]] = [
            ([], piece) for piece in cut(self.past.of(message.actor), record_bytes)
        ]
        pieces = kept + [(piece, []) for piece in cut(row.log, record_bytes)]
        about = message.actor, message.incarnation, row.saved
        # The checkpoint has a message to itself: it may be long.
        self.ctx.send(source, ActorLineage(*about, row.checkpoint, [], [], bool(pieces)))
        for number, (calls, before) in enumerate(pieces, start=1):
            self.ctx.send(source, ActorLineage(*about, b"", calls, before, number < len(pieces)))
        if pieces and row.state != ALIVE:
            # Its callers may ask it for replies; see `actors`.
            there = replace(self._change(row), state=STARTING, node=node_of(source))
            self._pubsub.publish(message.actor, there)
