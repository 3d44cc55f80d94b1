"""Placement groups: bundles of resources, reserved all together or not at all.

The life of a group, at the global scheduler (`GroupTable`)::

    CreateGroup ──> PENDING ──place()──> PREPARING ──every node could──> CREATED
                       ↑                     │ one could not: all are       │ a node
                       └──── `RETRY_S` ──────┘ returned                     │ died
                       ↑                                              RESCHEDULING:
                       └──────── the bundles that were there <──────────────┘
    RemoveGroup ──> REMOVED

Where its bundles go is in `bundle_placement`; what a node does with one in `bundles`; by which
resources a task demands to run in one, so that schedulers need to know nothing of groups, in
`group_names`. A task whose group is not there (any more) waits at the global scheduler, with
those that no node can run.

A group is its job's: other jobs can neither run anything in it nor remove it, unless it is
detached. Which it is the table knows alone, so a node keeps nothing of what another job has
in a group (`Keeping`), and the global scheduler refuses it. Nor does it keep what a client
submits that has just removed the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runtime.control.bundle_placement import Free, place
from runtime.control.context import Context
from runtime.control.group_names import group_of, group_resources, is_of_job, job_of, whose
from runtime.control.ids import job_number
from runtime.control.messages import (
    BundlePrepared,
    CommitBundle,
    CreateGroup,
    Event,
    PrepareBundle,
    RemoveGroup,
    ReturnBundle,
    TaskSpec,
)

RETRY_S = 0.1
"""Pause before the next try when no node has room: heartbeats tell of room so often."""


class Group:
    """A row of the table."""

    def __init__(self, message: CreateGroup) -> None:
        self.id = message.group
        self.name = message.name
        self.bundles = message.bundles
        self.strategy = message.strategy
        self.detached = message.detached
        self.state = "PENDING"
        self.nodes: dict[int, int] = {}
        """Where committed bundles are."""
        self.trying: dict[int, int] = {}
        """Where bundles were asked for, until every node has answered."""
        self.attempt = 0
        """Counts how often that was begun."""
        self.prepared: set[int] = set()
        self.unanswered: set[int] = set()


class GroupTable:
    """Places groups; part of the global scheduler."""

    def __init__(
        self,
        ctx: Context,
        free: Callable[[], dict[int, Free]],
        changed: Callable[[int, Mapping[str, float], Free, bool], None],
        life: Callable[[int], int],
    ) -> None:
        self._ctx = ctx
        self._free = free
        self._life = life
        """Returns the incarnation of a living node."""
        self._changed = changed
        """Called with (node, bundle, its named resources, whether it is there from now on)."""
        self.groups: dict[str, Group] = {}
        self._ended: set[str] = set()
        """Jobs that are over."""
        self._retrying = False

    def create(self, message: CreateGroup) -> None:
        """Begin to place a group, unless it is there: its task may run twice."""
        if message.group not in self.groups and job_of(message.group) not in self._ended:
            self.groups[message.group] = Group(message)
            self._place_all()

    def remove(self, message: RemoveGroup) -> None:
        """Give everything back, unless the group is none of theirs who ask."""
        group = self.groups.get(message.group)
        if group is None or group.state == "REMOVED":
            return
        if message.job and not self._is_open(group.id, message.job):
            reason = f"placement group {group.id} belongs to {whose(group.id)}"
            self._ctx.send("gcs", Event("refused", f"job {job_number(message.job)}", reason))
            return
        group.state = "REMOVED"
        for index, node in {**group.nodes, **group.trying}.items():
            self._give_back(group, index, node)
        group.nodes, group.trying = {}, {}
        group.unanswered.clear()

    def end_job(self, job: bytes) -> None:
        """Forget a job's groups, but for detached ones."""
        self._ended.add(job.hex())
        for key, group in list(self.groups.items()):
            if job_of(key) == job.hex() and not group.detached:
                self.remove(RemoveGroup(key))
                del self.groups[key]

    def is_removed(self, spec: TaskSpec) -> bool:
        """Whether a task belongs to a group that was removed."""
        group = self.groups.get(group_of(spec))
        return group is not None and group.state == "REMOVED"

    def refusal(self, spec: TaskSpec) -> str:
        """Return why a task may not run in its group, an empty string if it may."""
        group = group_of(spec)
        if not group or self._is_open(group, spec.array):
            return ""
        return (
            f"PlacementGroupOfOtherJobError: {spec.name} cannot be in placement group {group},"
            f" which belongs to {whose(group)} and is not detached"
        )

    def _is_open(self, group: str, some_id: bytes) -> bool:
        """Whether the job that something belongs to may use a group."""
        if is_of_job(group, some_id):
            return True
        row = self.groups.get(group)
        return row is not None and row.detached

    def on_prepared(self, message: BundlePrepared) -> None:
        """A node has answered."""
        group = self.groups.get(message.group)
        index = message.index
        if group is None or message.attempt != group.attempt or index not in group.unanswered:
            # Meanwhile it was removed or given up: the bundle was returned, or died with its node.
            return
        group.unanswered.discard(index)
        if message.ok:
            group.prepared.add(index)
        if group.unanswered:
            return
        if len(group.prepared) < len(group.trying):
            self._give_up(group)
            return
        for index, node in sorted(group.trying.items()):
            self._ctx.send(f"node:{node}", CommitBundle(group.id, index, self._life(node)))
            group.nodes[index] = node
        committed, group.trying = group.trying, {}
        group.prepared = set()
        group.state = "CREATED"
        for index, node in sorted(committed.items()):
            self._tell(group, index, node, True)

    def on_node_died(self, node: int) -> None:
        """Place again what was there."""
        for group in self.groups.values():
            if node in group.trying.values():
                self._give_up(group, dead=node)
            lost = [index for index, at in group.nodes.items() if at == node]
            for index in lost:
                del group.nodes[index]
            if lost:
                group.state = "RESCHEDULING"
        self._place_all()

    def rows(self) -> list[list[Any]]:
        """Return [id, name, bundles, {bundle: node}, strategy, state, detached] of every group."""
        return [
            [
                g.id,
                g.name,
                g.bundles,
                {str(i): n for i, n in g.nodes.items()},
                g.strategy,
                g.state,
                g.detached,
            ]
            for g in self.groups.values()
        ]

    def place_soon(self) -> None:
        """Something may have come free: try again what waits."""
        if not self._retrying and any(self._missing(g) for g in self.groups.values()):
            self._retrying = True
            self._ctx.after(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self._place_all()

    @staticmethod
    def _missing(group: Group) -> dict[int, Mapping[str, float]]:
        if group.state not in ("PENDING", "RESCHEDULING") or group.trying:
            return {}
        return {i: b for i, b in enumerate(group.bundles) if i not in group.nodes}

    def _place_all(self) -> None:
        free = self._free()
        for group in self.groups.values():
            # What is asked for and not answered is not in any heartbeat yet.
            for index, node in group.trying.items():
                for name, amount in group.bundles[index].items():
                    if node in free:
                        free[node][name] = free[node].get(name, 0.0) - amount
        for group in self.groups.values():
            missing = self._missing(group)
            if not missing:
                continue
            chosen = place(missing, free, group.strategy, set(group.nodes.values()))
            if chosen is None:
                continue
            group.trying = chosen
            group.attempt += 1
            group.prepared = set()
            group.unanswered = set(chosen)
            for index, node in sorted(chosen.items()):
                for name, amount in group.bundles[index].items():
                    free[node][name] -= amount
                bundle = dict(group.bundles[index])
                prepare = PrepareBundle(group.id, index, bundle, self._life(node), group.attempt)
                self._ctx.send(f"node:{node}", prepare)
        self.place_soon()

    def _give_up(self, group: Group, dead: int = -1) -> None:
        """Not all of it could be prepared: nothing is."""
        for index, node in sorted(group.trying.items()):
            if node != dead:
                self._return(group, index, node)
        group.trying = {}
        group.prepared = set()
        group.unanswered = set()
        self.place_soon()

    def _return(self, group: Group, index: int, node: int) -> None:
        self._ctx.send(f"node:{node}", ReturnBundle(group.id, index, self._life(node)))

    def _give_back(self, group: Group, index: int, node: int) -> None:
        self._return(group, index, node)
        if index in group.nodes:
            self._tell(group, index, node, False)

    def _tell(self, group: Group, index: int, node: int, there: bool) -> None:
        bundle = group.bundles[index]
        self._changed(node, bundle, group_resources(bundle, group.id, index), there)
