"""Work stealing: a node with idle workers and an empty queue takes ranges from another node.

Only if the policy says so (`policies.Policy.steals`)::

    thief                      victim                     the global scheduler
    StealTasks ──────────────> half of its ready ranges
    (its free resources)           │
         <──StealAnswer────────────┤  how many come
                                   └──TasksMoved────────> logs them in the GCS,
         <──AssignTasks───────────────────────────────────then assigns them

Ranges move as those do that starve (`starvation`): one message (`TaskUpdates.left`) changes the
node of a range in the GCS, so that the GCS has it placed again exactly once if either node dies. If
the thief has died before, they go wherever the policy places them.

The thief asks nodes drawn at random, one after another::

    WORKING ──idle──> ASKING ──a node gives──> RECEIVING ──AssignTasks──> WORKING
       ↑                │ ↑ ↓                      │
       │                │ └─ a node has nothing,   │ nothing came for `heartbeat_s`
       │                │    or does not answer    │
       │                ↓                          ↓
       └───────────── RESTING <────────────────────┘

After `VICTIMS_MAX` nodes without any, or when it has asked all, it rests: `REST_S_MIN` the first
time, then twice as long each time, up to `REST_S_MAX`, until a node gives something. It gives up a
request that was lost with a broken node after `heartbeat_s`, and takes ranges that come later.

The victim looks when it has leased its workers at the end of the turn. It gives up to half of the
elements that may leave: those of demands that it cannot start itself and the thief can, oldest
first, since the thief starts them at once; at least one. A range stays if it is in a placement
group or has a scheduling strategy, or if it has begun here on a worker that died, since its
children are here.

Cost: one comparison a turn, and per idle node up to `VICTIMS_MAX` requests in `REST_S_MAX`: 250 a
second. A steal looks at `LOOK_MAX` ranges of each lane.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Handlers, Timer
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.core.resources import ResourcePool, times_in
from raytwin.runtime.control.core.task_ranges import part_of
from raytwin.runtime.control.local_scheduler.cancellation import Canceller
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.local_scheduler.ready_queue import ReadyQueue
from raytwin.runtime.control.local_scheduler.starvation import LOOK_MAX, Starvation
from raytwin.runtime.control.local_scheduler.worker_pool import WorkerPool
from raytwin.runtime.control.messages import StealAnswer, StealTasks, TaskSpec

VICTIMS_MAX = 8
"""How many nodes a thief asks, one after another, before it rests."""
REST_S_MIN = 0.001
"""How long a thief rests when no node has given it anything, the first time."""
REST_S_MAX = 0.032
"""The longest rest: a burst after a quiet time waits so long for its first thieves."""


class Stage(Enum):
    """The state of a node as a thief; see the picture above."""

    WORKING = 1
    """The node has work, and asks nobody."""
    ASKING = 2
    """The thief waits for the answer of a victim."""
    RECEIVING = 3
    """A victim has given the thief ranges, and the global scheduler has not assigned them yet."""
    RESTING = 4
    """No victim had a range to give; the thief asks nobody for a while."""


class Stealing:
    """The two sides of one node: as a thief if `steals`, and as a victim."""

    def __init__(
        self,
        ctx: Context,
        config: Config,
        steals: bool,
        pool: ResourcePool,
        members: Membership,
        ready: ReadyQueue,
        inputs: TaskInputs,
        workers: WorkerPool,
        starvation: Starvation,
        canceller: Canceller,
        assigned: Callable[[], int],
    ) -> None:
        """`assigned` returns how many elements the global scheduler has assigned to this node."""
        self._ctx = ctx
        self._patience_s = config.heartbeat_s
        """How long it waits for an answer, or for ranges that were announced."""
        self.steals = steals
        self._pool = pool
        self._members = members
        self._ready = ready
        self._inputs = inputs
        self._workers = workers
        self._starvation = starvation
        self._canceller = canceller
        self._assigned = assigned
        self.stage = Stage.WORKING
        self._victims: list[int] = []
        """Nodes to ask next, the last one first."""
        self._asked = -1
        """The node that was asked last."""
        self._assigned_before = 0
        """The elements assigned to this node when it asked."""
        self._rest_s = REST_S_MIN
        self._timer: Timer | None = None
        self.requests: list[tuple[int, StealTasks]] = []
        """Requests of this turn, each with the thief."""

    def handlers(self) -> Handlers:
        return {StealTasks: self.on_request, StealAnswer: self.on_answer}

    # -- the victim ----------------------------------------------------------------

    def on_request(self, source: str, message: StealTasks) -> None:
        """Note a request until this node's own workers have their share."""
        self.requests.append((node_of(source), message))

    def _serve(self) -> None:
        """Answer the requests of this turn."""
        requests, self.requests = self.requests, []
        for thief, message in requests:
            ranges = self._give(message.available) if self._ready.size else []
            count = sum(spec.count for spec in ranges)
            self._ctx.send(f"node:{thief}", StealAnswer(count))
            if ranges:
                self._canceller.sent_on(ranges)
                self._starvation.send_away([], ranges, thief)

    def _give(self, available: dict[str, float]) -> list[TaskSpec]:
        """Take up to half of the ready elements that a thief can run out of the queue."""
        ready = self._ready
        lanes = {
            lane
            for lane in ready.lanes()
            if times_in(available, lane[1], 1) and not self._pool.fits(lane[1])
        }
        waiting = sum(
            spec.count for lane in lanes for spec in ready.first(lane, LOOK_MAX) if _may_leave(spec)
        )
        left = -(-waiting // 2)
        demands = {demand for _, demand in lanes}

        def taken(spec: TaskSpec) -> TaskSpec | None:
            nonlocal left
            count = min(spec.count, left) if spec.demand in demands and _may_leave(spec) else 0
            left -= count
            return part_of(spec, spec.start, count) if count else None

        return ready.take_out(taken, LOOK_MAX) if left else []

    # -- the thief -----------------------------------------------------------------

    def end_turn(self) -> None:
        """Answer requests, and ask another node if this one has become idle."""
        if self.requests:
            self._serve()
        if not self.steals:
            return
        if self.stage is Stage.RECEIVING and self._assigned() != self._assigned_before:
            self._change(Stage.WORKING)
        if self.stage is Stage.WORKING and self._is_idle():
            others = self._members.others()
            self._victims = self._ctx.rng.sample(others, min(VICTIMS_MAX, len(others)))
            self._ask()

    def on_answer(self, source: str, message: StealAnswer) -> None:
        """A victim has given ranges, or has none."""
        if message.count:
            self._rest_s = REST_S_MIN
        if self.stage is not Stage.ASKING or node_of(source) != self._asked:
            return  # it came too late
        if message.count:
            self._change(Stage.RECEIVING, self._patience_s)
        else:
            self._ask_next()

    def _is_idle(self) -> bool:
        """Whether a worker of this node has nothing to do, and nothing comes for it."""
        return bool(
            not self._ready.size
            and self._pool.free.get("CPU", 0) > 0
            and (self._workers.idle or not self._workers.starting)
            and not self._members.alone
            and not self._inputs.arriving
        )

    def _ask(self) -> None:
        """Ask the next victim, or rest if none is left."""
        if not self._victims:
            self._change(Stage.RESTING, self._rest_s)
            self._rest_s = min(2 * self._rest_s, REST_S_MAX)
            return
        self._asked = self._victims.pop()
        self._assigned_before = self._assigned()
        self._ctx.send(f"node:{self._asked}", StealTasks(self._pool.available()))
        self._change(Stage.ASKING, self._patience_s)

    def _ask_next(self) -> None:
        """The last victim has nothing, or does not answer."""
        if self._is_idle():
            self._ask()
        else:
            self._change(Stage.WORKING)

    def _change(self, stage: Stage, for_s: float = 0.0) -> None:
        """Change the stage, for so many seconds at most; 0: without a limit."""
        if self._timer is not None:
            self._timer.cancel()
        self.stage = stage
        self._timer = self._ctx.after(for_s, self._on_timer) if for_s else None

    def _on_timer(self) -> None:
        """The stage has lasted for long enough; the end of this turn looks again."""
        self._timer = None
        if self.stage is Stage.ASKING:
            self._ask_next()
        else:
            self._change(Stage.WORKING)


def _may_leave(spec: TaskSpec) -> bool:
    """Whether a range may run on another node than the one that has it."""
    extra = spec.extra
    return extra is None or (extra.begun < 0 and not (extra.strategy or extra.group))
