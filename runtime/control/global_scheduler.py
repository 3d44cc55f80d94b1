"""The global scheduler: places what local schedulers do not keep.

The life of a range here::

    PlaceTasks ──> LOCATING its inputs (only if the policy looks at them)
                      │
                      ↓ ObjectLocations
                   PLACING ──no node could ever run it──> INFEASIBLE
                      │                                      │ a node joins
                      ↓ <────────────────────────────────────┘
                   logged in the task table, then AssignTasks to its node

It learns of nodes and their load from what the GCS publishes. Between two
heartbeats of a node it adds what it has sent there itself: a queue is the
node's last word plus all sent since that word.

The log entry goes to the GCS before the assignment goes to the node, so the
GCS can place every range again whose node dies; this component keeps no copy.

Cost: a range is placed in at most 2 x nodes pieces, at O(log nodes) each where
the policy is bottom-up, O(nodes) where it is one that looks at all each time.
"""

from __future__ import annotations

from typing import Any

from runtime.control.actor_placement import ActorPlacement
from runtime.control.config import Config
from runtime.control.context import Context, incarnation_of, node_of
from runtime.control.messages import (
    ActorChanged,
    ActorPlaced,
    AssignTasks,
    Event,
    Load,
    LoadChanged,
    LocateObjects,
    Location,
    NodeChanged,
    ObjectLocations,
    PlaceTasks,
    TaskSpec,
    TaskUpdates,
)
from runtime.control.policies import NodeView, make_policy
from runtime.control.ready_queue import part_of
from runtime.control.resources import ResourcePool


class _Node:
    """A living node."""

    __slots__ = ("incarnation", "load", "pool", "sent")

    def __init__(self, resources: dict[str, float], incarnation: int) -> None:
        self.incarnation = incarnation
        self.pool = ResourcePool(resources)
        self.load = Load(0, 0.0, 0.0, 0, {})
        self.sent = 0
        """Elements assigned to it so far."""

    @property
    def queue(self) -> int:
        """Elements that wait or run there, or are on their way."""
        return self.load.queue + self.sent - self.load.assigned


class _Locating:
    """A range whose inputs' places were asked for."""

    __slots__ = ("known", "spec")

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.known: dict[bytes, Location] = {}


class GlobalScheduler:
    """One for the cluster, single-threaded."""

    def __init__(self, ctx: Context, config: Config) -> None:
        self.ctx = ctx
        self.policy = make_policy(config)
        self.nodes: dict[int, _Node] = {}
        self.infeasible: list[TaskSpec] = []
        self.placed = 0
        """Elements placed so far."""
        self._locating: dict[bytes, list[_Locating]] = {}
        self._actors = ActorPlacement()

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        if isinstance(message, PlaceTasks):
            for spec in message.tasks:
                self._take(spec)
        elif isinstance(message, LoadChanged):
            if message.node in self.nodes:
                self.nodes[message.node].load = message.load
        elif isinstance(message, ObjectLocations):
            for location in message.locations:
                self._on_location(location)
        elif isinstance(message, NodeChanged):
            self._on_node(message)
        elif isinstance(message, ActorChanged):
            self._actors.gone(message.actor)
        else:
            raise TypeError(f"the global scheduler was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    def _on_node(self, message: NodeChanged) -> None:
        info = message.info
        self._actors.on_node(info)
        if not info.alive:
            self.nodes.pop(info.node, None)
            # Nobody waits for these any more; run again, their parent submits them again.
            self.infeasible = [
                spec
                for spec in self.infeasible
                if node_of(spec.owner) != info.node or incarnation_of(spec.owner) > info.incarnation
            ]
            return
        self.nodes[info.node] = _Node(info.resources, info.incarnation)
        again, self.infeasible = self.infeasible, []
        for spec in again:
            self._take(spec)

    def _take(self, spec: TaskSpec) -> None:
        if spec.extra is not None and spec.extra.actor is not None:
            self._place_actor(spec, spec.extra.actor.incarnation)
            return
        if not spec.deps or not self.policy.uses_locations:
            self._place(spec, {})
            return
        wanted = list(dict.fromkeys(spec.deps))
        entry = _Locating(spec)
        for oid in wanted:
            self._locating.setdefault(oid, []).append(entry)
        self.ctx.send("gcs", LocateObjects(wanted, subscribe=False))

    def _place_actor(self, spec: TaskSpec, incarnation: int) -> None:
        node = self._actors.place(spec)
        if node < 0:
            self._set_aside(spec)
            return
        self.nodes[node].sent += 1
        self.ctx.send("gcs", ActorPlaced(spec.array, incarnation, node))
        self.ctx.send(f"node:{node}", AssignTasks([spec]))

    def _set_aside(self, spec: TaskSpec) -> None:
        """No node could ever run it: wait for one that can."""
        self.infeasible.append(spec)
        self.ctx.send("gcs", Event("infeasible", spec.name, f"needs {spec.demand}"))

    def _on_location(self, location: Location) -> None:
        for entry in self._locating.pop(location.object, ()):
            entry.known[location.object] = location
            if len(entry.known) == len(set(entry.spec.deps)):
                self._place(entry.spec, entry.known)

    def _place(self, spec: TaskSpec, inputs: dict[bytes, Location]) -> None:
        views = self._views(spec, inputs)
        if not views:
            self._set_aside(spec)
            return
        step = -(-spec.count // (2 * len(views)))
        pieces = [min(step, spec.count - done) for done in range(0, spec.count, step)]
        shares: dict[int, int] = {}
        for view, count in zip(
            self.policy.spread(views, pieces, self.ctx.rng), pieces, strict=True
        ):
            shares[view.node] = shares.get(view.node, 0) + count
        # Elements differ by their arguments alone: how many go to a node was
        # chosen, and neighbours travel and run as one range.
        at = spec.start
        for node, count in shares.items():
            chosen = self.nodes[node]
            chosen.sent += count
            part = part_of(spec, at, count)
            self.ctx.send("gcs", TaskUpdates(node, [part], [], [], [], chosen.incarnation))
            self.ctx.send(f"node:{node}", AssignTasks([part]))
            at += count
        self.placed += spec.count

    def _views(self, spec: TaskSpec, inputs: dict[bytes, Location]) -> list[NodeView]:
        """Return the nodes that could run the range, as the policy sees them."""
        views = []
        # A node that has timed no task yet is taken to be like the others.
        timed = [n.load.mean_task_s for n in self.nodes.values() if n.load.mean_task_s]
        usual_s = sum(timed) / len(timed) if timed else 0.0
        for number, node in self.nodes.items():
            if not node.pool.feasible(spec.demand):
                continue
            remote = 0
            for location in inputs.values():
                if number not in location.nodes:
                    remote += location.size
            load = node.load
            slots = node.pool.slots(spec.demand)
            views.append(
                NodeView(
                    number,
                    node.queue,
                    slots,
                    load.mean_task_s or usual_s,
                    remote,
                    load.bandwidth,
                )
            )
        return views
