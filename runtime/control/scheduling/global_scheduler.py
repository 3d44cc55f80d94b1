"""The global scheduler: places the ranges and actors that local schedulers spill.

The life of a range here::

    PlaceTasks ──> LOCATING its inputs (only if the policy looks at them)
                      │
                      ↓ ObjectLocations
                   PLACING ──no node could ever run it──> INFEASIBLE
                      │                                      │ a node joins
                      ↓ <────────────────────────────────────┘
                   logged in the task table, then AssignTasks to its node

Which node: the policy chooses it for tasks (`policies`), `actor_placement` for actors.

The GCS publishes the nodes and their load to it. Between two heartbeats of a node
it adds the elements that it has sent to the node since: so a queue's length is the
last reported one plus all elements sent since.

It logs a range in the GCS before it assigns it to a node, so that the GCS can have the
range placed again if the node dies; the scheduler keeps no copy.

Cost: a placement looks at the nodes that have changed since the last one with the same demand,
which are its own node and those whose heartbeats have come since (`node_views`); then it places at
most 2 x nodes pieces, at O(log nodes) each (`candidates`), or O(nodes) with a user's policy that
looks at all nodes. One task is 15 to 50 microseconds of CPU, on 100 nodes and on 10,000.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from raytwin.runtime.control.core.addresses import incarnation_of, node_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.failed_values import end_of, failed_result
from raytwin.runtime.control.core.group_resources import group_of, plain_amounts
from raytwin.runtime.control.core.ids import job_of
from raytwin.runtime.control.core.resources import UNIT, format_demand
from raytwin.runtime.control.core.task_ranges import cut, job_of_task, part_of
from raytwin.runtime.control.messages import (
    ActorChanged,
    ActorFailed,
    ActorInfo,
    ActorPlaced,
    AssignTasks,
    BundlePrepared,
    CancelTask,
    CreateGroup,
    Event,
    GiveBack,
    GroupCreated,
    JobEnded,
    LoadChanged,
    LocateObjects,
    Location,
    MoveTasks,
    NodeChanged,
    NodeInfo,
    ObjectLocations,
    PlaceTasks,
    Query,
    QueryReply,
    RangeResult,
    RemoveGroup,
    TaskResults,
    TasksMoved,
    TaskSpec,
    TaskUpdates,
)
from raytwin.runtime.control.messages.errors import Failure, Unschedulable
from raytwin.runtime.control.scheduling.actor_placement import node_for_actor
from raytwin.runtime.control.scheduling.candidates import UNTIMED_TASK_S, NodeView
from raytwin.runtime.control.scheduling.node_views import MOVED_MAX, Node, NodeIndex
from raytwin.runtime.control.scheduling.placement_groups import GroupTable
from raytwin.runtime.control.scheduling.policies import make_policy
from raytwin.runtime.control.scheduling.strategies import (
    SPREAD,
    Spreading,
    is_hard,
    strategy_of,
    target_of,
)

ASK_BACK_S = 10.0
"""The least time between two requests for what programs have dropped: each runs the garbage
collectors of all drivers and workers."""


class _Locating:
    """A range whose inputs the GCS was asked to locate."""

    __slots__ = ("cancelled", "known", "spec")

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.cancelled = False
        self.known: dict[bytes, Location] = {}


class GlobalScheduler:
    """Places ranges and actors; there is one for the cluster."""

    def __init__(self, ctx: Context, config: Config) -> None:
        self.ctx = ctx
        self.policy = make_policy(config)
        self.spreading = Spreading()
        self.groups = GroupTable(
            ctx, self._free, self._totals, self._on_bundle, self._incarnation_of
        )
        self.nodes: dict[int, Node] = {}
        self._incarnations: dict[int, int] = {}
        """The last incarnation of each node of which the GCS has sent news."""
        self._early: list[TasksMoved] = []
        """Messages of nodes of whose registration the GCS has not told this scheduler yet."""
        self.joined = 0
        """The number of nodes that have ever joined."""
        self.node_index = NodeIndex()
        """The nodes that could run each demand; `NodeIndex.changed` hears of every change."""
        self.infeasible: list[TaskSpec] = []
        self.placements: deque[tuple[Any, ...]] = deque(maxlen=config.timeline_ranges_max)
        """The rows of ``placements``, see `queries`: ranges and creations of actors."""
        self.placed = 0
        """Elements placed so far."""
        self._warned: set[tuple[bytes, str, str]] = set()
        """(job, name, demand) of the infeasible ranges and actors that drivers were warned of."""
        self._locating: dict[bytes, list[_Locating]] = {}
        self._heartbeat_s = config.heartbeat_s
        self._actors: dict[bytes, int] = {}
        """The node of each actor."""
        self._asked_back_s = -ASK_BACK_S
        """When it last asked all clients for dropped handles of actors."""
        self._ended: set[bytes] = set()
        """Jobs that have ended."""

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        if isinstance(message, PlaceTasks):
            for spec in message.tasks:
                self._take(spec)
        elif isinstance(message, LoadChanged):
            if message.node in self.nodes:
                self.nodes[message.node].heard(message.load)
                self.node_index.changed(message.node)
                for demand, count in message.load.starving.items():
                    self._on_starving(message.node, demand, count)
        elif isinstance(message, TasksMoved):
            self._on_moved(message)
        elif isinstance(message, ObjectLocations):
            for location in message.locations:
                self._on_location(location)
        elif isinstance(message, NodeChanged):
            self._on_node(message)
        elif isinstance(message, ActorChanged):
            self._forget_actor(message.actor)
            self.infeasible = [spec for spec in self.infeasible if spec.array != message.actor]
        elif isinstance(message, CancelTask):
            self._on_cancel(source, message)
        elif isinstance(message, BundlePrepared):
            if self.groups.on_prepared(message):
                self._try_infeasible()
        elif isinstance(message, CreateGroup):
            self._create_group(source, message)
        elif isinstance(message, JobEnded):
            self._end_job(message.job)
        elif isinstance(message, RemoveGroup):
            self.groups.remove(message)
            self._try_infeasible()
        else:
            assert isinstance(message, Query), (
                f"the global scheduler was sent {type(message).__name__}"
            )
            if message.kind == "placements":
                rows: list[Any] = list(self.placements)
            else:
                rows = self.groups.rows(removed=message.kind == "groups")
            self.ctx.send(source, QueryReply(message.key, message.client, rows))

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    def _note_placed(self, spec: TaskSpec, node: int) -> None:
        row = (self.ctx.now(), spec.name, spec.array, spec.start, spec.count, node, spec.owner)
        self.placements.append(row)

    def _on_node(self, message: NodeChanged) -> None:
        info = message.info
        self._incarnations[info.node] = info.incarnation
        self._update_node(info)
        early, self._early = self._early, []
        for moved in early:
            self._on_moved(moved)

    def _update_node(self, info: NodeInfo) -> None:
        """A node has joined or died."""
        self.node_index.changed(info.node)
        self._actors = {actor: at for actor, at in self._actors.items() if at != info.node}
        if not info.alive:
            self.nodes.pop(info.node, None)
            self.groups.on_node_died(info.node)
            # No client waits for these any more: their parent submits them again if it runs again.
            self.infeasible = [
                spec
                for spec in self.infeasible
                if node_of(spec.owner) != info.node or incarnation_of(spec.owner) > info.incarnation
            ]
            self._try_infeasible()
            return
        known = self.nodes.get(info.node)
        self.joined += 1
        position = self.joined if known is None else known.position
        node = self.nodes[info.node] = Node(info.resources, info.incarnation, position)
        self._warned = {warning for warning in self._warned if not node.owns(warning[2])}
        self.groups.on_node_joined()
        self._try_infeasible()

    def _end_job(self, job: bytes) -> None:
        """Drop the waiting ranges of a job, and return the resources of its groups."""
        self._ended.add(job)
        self.infeasible = [spec for spec in self.infeasible if job_of_task(spec) != job]
        self._warned = {warning for warning in self._warned if warning[0] != job}
        for oid, entries in list(self._locating.items()):
            self._locating[oid] = [e for e in entries if job_of(e.spec.array) != job]
            if not self._locating[oid]:
                del self._locating[oid]
        self.groups.end_job(job)
        self._try_infeasible()

    def _create_group(self, source: str, message: CreateGroup) -> None:
        named = self.groups.create(message)
        if named:
            self.ctx.send(source, GroupCreated(message.request, message.client, named))

    def _on_bundle(
        self, number: int, bundle: Mapping[str, float], named: dict[str, float], there: bool
    ) -> None:
        """A node has committed a bundle, and has its named resources now, or has returned it."""
        node = self.nodes.get(number)
        if node is None:
            return
        if there:
            node.pool.remove(bundle)
            node.pool.add(named)
        else:
            node.pool.remove(named)
            node.pool.add(bundle)
        self.node_index.changed(number)

    def _free(self) -> dict[int, dict[str, float]]:
        """Return the free resources of each node, as last reported."""
        return {
            number: dict(node.load.available or node.pool.available())
            for number, node in self.nodes.items()
        }

    def _totals(self) -> dict[int, dict[str, float]]:
        """Return the total resources of each node."""
        return {number: node.own for number, node in self.nodes.items()}

    def _incarnation_of(self, number: int) -> int:
        return self.nodes[number].incarnation

    def _try_infeasible(self) -> None:
        again, self.infeasible = self.infeasible, []
        for spec in again:
            self._take(spec)

    def _is_over(self, spec: TaskSpec) -> bool:
        return bool(self._ended) and job_of_task(spec) in self._ended

    def _take(self, spec: TaskSpec) -> None:
        if self._is_over(spec) or self._is_refused(spec):
            return
        if spec.extra is not None and spec.extra.actor is not None:
            self._place_actor(spec, spec.extra.actor)
            return
        if not spec.deps or not self.policy.uses_locations:
            self._place(spec, {})
            return
        wanted = list(dict.fromkeys(spec.deps))
        entry = _Locating(spec)
        for oid in wanted:
            self._locating.setdefault(oid, []).append(entry)
        self.ctx.send("gcs", LocateObjects(wanted, subscribe=False))

    def _is_refused(self, spec: TaskSpec) -> bool:
        """Fail a range or an actor that may not run in its group; return whether it may not."""
        refusal = self.groups.refusal(spec)
        if refusal is None:
            return False
        if spec.extra is not None and spec.extra.actor is not None:
            self._fail_actor(spec, refusal)
        else:
            self._end(spec, refusal)
        return True

    def _place_actor(self, spec: TaskSpec, actor: ActorInfo) -> None:
        strategy = strategy_of(spec)
        self._forget_actor(spec.array)
        number = node_for_actor(self.nodes, spec.demand, actor.placement, strategy)
        if number is None and self._is_unschedulable(spec, strategy):
            text = f"no living {strategy} has what it needs ({_needed(spec)})"
            self._fail_actor(spec, Unschedulable(spec.name, text, actor=True))
            return
        if number is None:
            self._await_node(spec)
            return
        self._actors[spec.array] = number
        self.nodes[number].give_actor(spec.demand)
        self.node_index.changed(number)
        self.ctx.send("gcs", ActorPlaced(spec.array, actor.incarnation, number))
        self.ctx.send(f"node:{number}", AssignTasks([spec]))
        self._note_placed(spec, number)

    def _forget_actor(self, actor: bytes) -> None:
        """An actor is dead, or about to be placed again."""
        number = self._actors.pop(actor, None)
        if number in self.nodes:
            self.nodes[number].actors -= 1

    def _fail_actor(self, spec: TaskSpec, reason: Failure) -> None:
        """No node will ever run an actor: report it as failed to the GCS."""
        assert spec.extra is not None and spec.extra.actor is not None
        incarnation = spec.extra.actor.incarnation
        self.ctx.send("gcs", ActorFailed(spec.array, incarnation, reason, True))

    def _is_unschedulable(self, spec: TaskSpec, strategy: str) -> bool:
        """Whether a task fails because its strategy names a node that can never run it.

        A living node may run it later, if placement groups have the resources now.
        """
        if not is_hard(strategy):
            return False
        node = self.nodes.get(target_of(strategy))
        return node is None or not node.owns(_needed(spec))

    def _await_node(self, spec: TaskSpec) -> None:
        """Keep an infeasible range until a node can run it.

        Warn the driver, once, if that takes another node or a larger bundle than there is.
        """
        self.infeasible.append(spec)
        needed = _needed(spec)
        group = group_of(spec)
        job = b""
        if self.groups.is_waited_for(spec):
            detail = f"waits for placement group {group}"
        elif any(node.owns(needed) for node in self.nodes.values()):
            detail = f"waits, since it needs {needed}, which placement groups hold"
        else:
            warning = (job_of_task(spec), spec.name, needed)
            if warning not in self._warned:
                self._warned.add(warning)
                job = warning[0]
            detail = self._lack(needed, group)
        self.ctx.send("gcs", Event("infeasible", spec.name, detail, job=job))

    def _lack(self, demand: str, group: str) -> str:
        """Return why a demand is infeasible: what it is, and what one node, or its group on one
        node, has at most."""
        amounts = plain_amounts(demand)
        needed = format_demand(amounts)
        most = []
        for name in amounts:
            if group:
                named = f"{name}_group_{group}"
                there = [node.pool.total.get(named, 0) / UNIT for node in self.nodes.values()]
            else:
                there = [node.own.get(name, 0.0) for node in self.nodes.values()]
            most.append(f"{name}:{max(there, default=0.0):.15g}")
        where = f" in placement group {self.groups.label(group)}" if group else ""
        return (
            f"waits, since it needs {needed}, and no node has all of that{where}: the most on one"
            f" node is {', '.join(most)}"
        )

    def _on_location(self, location: Location) -> None:
        for entry in self._locating.pop(location.object, ()):
            entry.known[location.object] = location
            if len(entry.known) < len(set(entry.spec.deps)):
                continue
            if not self._is_refused(entry.spec):  # its group may have been removed meanwhile
                self._place(entry.spec, entry.known)

    def _place(
        self, spec: TaskSpec, inputs: dict[bytes, Location], left: int = -1, thief: int = -1
    ) -> None:
        """Place a range; `left` is the node that it has left, -1 for none.

        `thief` is the node that has asked for it, -1 for none.
        """
        strategy = strategy_of(spec)
        able = self.node_index.able(self.nodes, spec.demand)
        able.locate(inputs.values())
        home = node_of(spec.owner) if left < 0 else left
        nodes = able.allowed(strategy, home, left, thief)
        if left < 0 and not nodes and self._is_unschedulable(spec, strategy):
            reason = f"no living {strategy} has what it needs ({spec.demand})"
            self._end(spec, Unschedulable(spec.name, reason))
            return
        if left < 0 and not nodes:
            self._await_node(spec)
            return
        parts = self._divide(spec, nodes) if nodes else [(left, spec)]
        for node, part in parts:
            there = self.nodes[node]
            there.sent += part.count
            self.node_index.changed(node)
            if node == left:
                # Only this node can run it, or could until a placement group took its resources.
                self.ctx.send(f"node:{node}", AssignTasks([part], there.incarnation))
            else:
                self.assign(node, there.incarnation, part, left)
                self._note_placed(part, node)
        self.placed += spec.count

    def _divide(self, spec: TaskSpec, nodes: Sequence[NodeView]) -> list[tuple[int, TaskSpec]]:
        """Return which node gets which part of a range."""
        step = -(-spec.count // (2 * len(nodes)))
        pieces = [min(step, spec.count - done) for done in range(0, spec.count, step)]
        if strategy_of(spec) == SPREAD:
            chosen = self.spreading.spread(nodes, pieces)
        else:
            chosen = self.policy.spread(nodes, pieces, self.ctx.rng)
        if len(pieces) == 1:
            return [(chosen[0].node, spec)]
        shares: dict[int, int] = {}
        for view, count in zip(chosen, pieces, strict=True):
            shares[view.node] = shares.get(view.node, 0) + count
        # Elements differ by their arguments alone, so the policy has chosen only their number
        # per node: consecutive ones travel and run as one range.
        at = spec.start
        parts = []
        for node, count in shares.items():
            parts.append((node, part_of(spec, at, count)))
            at += count
        return parts

    def _on_starving(self, node: int, demand: str, count: int) -> None:
        """Ask a node for as many of its starving elements as other nodes have room for."""
        able = self.node_index.able(self.nodes, demand)
        room = able.room_beside(node)
        # A slot may run so many of them before the next heartbeat.
        usual_s = self.node_index.usual_s(self.nodes) or UNTIMED_TASK_S
        room *= max(1, int(self._heartbeat_s / usual_s))
        if not self.nodes[node].pool.usable(demand) and not able.all_held():
            room = count
        if room:
            asked = min(count, room, MOVED_MAX)
            self.ctx.send(f"node:{node}", MoveTasks(demand, asked))
        elif self._actors and self.ctx.now() >= self._asked_back_s + ASK_BACK_S:
            # Actors may live that only handles in reference cycles keep.
            self._asked_back_s = self.ctx.now()
            for number in self.nodes:
                self.ctx.send(f"node:{number}", GiveBack(cycles=True))

    def _on_moved(self, message: TasksMoved) -> None:
        """Place the tasks that have left a node, unless it has died: then the GCS does."""
        node = self.nodes.get(message.node)
        if message.incarnation > self._incarnations.get(message.node, 0):
            self._early.append(message)
            return
        if node is None or node.incarnation != message.incarnation:
            return
        for spec in message.tasks:
            node.load.queue = max(0, node.load.queue - spec.count)
            self.node_index.changed(message.node)
            if self._is_over(spec):
                continue
            if spec.extra is not None and spec.extra.actor is not None:
                self._place_actor(spec, spec.extra.actor)
            else:
                self._place(spec, {}, message.node, message.thief)

    def assign(self, node: int, incarnation: int, part: TaskSpec, left: int = -1) -> None:
        """Log a range, then assign it to its node; `left`: the node that it has left."""
        news = TaskUpdates(node, [part], [], [], [], incarnation=incarnation, left=left)
        self.ctx.send("gcs", news)
        self.ctx.send(f"node:{node}", AssignTasks([part], incarnation))

    def _end(self, spec: TaskSpec, failure: Failure) -> None:
        """End a range with an error of the system."""
        self._notify_owner(spec.owner, failed_result(spec, failure, -1))

    def _notify_owner(self, owner: str, result: RangeResult) -> None:
        self.ctx.send(f"node:{node_of(owner)}", TaskResults(owner, [result]))

    def _on_cancel(self, source: str, message: CancelTask) -> None:
        """Cancel elements that wait here, and forward the request to the nodes of the others."""
        if source == "gcs":
            for node in message.nodes:
                self.ctx.send(f"node:{node}", message)
            return
        kept: list[TaskSpec] = []
        for spec in self.infeasible:
            left, cancelled = cut(spec, message)
            kept += left
            if cancelled is not None:
                ended = failed_result(cancelled, end_of(cancelled, message), -1)
                self._notify_owner(cancelled.owner, ended)
        self.infeasible = kept
        for oid, entries in list(self._locating.items()):
            for entry in [e for e in entries if cut(e.spec, message)[1] is not None]:
                # A range with inputs has one element, so all of it is cancelled.
                entries.remove(entry)
                if not entry.cancelled:
                    entry.cancelled = True
                    ended = failed_result(entry.spec, end_of(entry.spec, message), -1)
                    self._notify_owner(entry.spec.owner, ended)
            if not entries:
                del self._locating[oid]
        if message.array:
            self.ctx.send("gcs", message)
            return
        for node in self.nodes:
            if f"node:{node}" != source:
                self.ctx.send(f"node:{node}", message)


def _needed(spec: TaskSpec) -> str:
    """Return what a node must have for a range or an actor."""
    actor = None if spec.extra is None else spec.extra.actor
    return spec.demand if actor is None else actor.placement or spec.demand
