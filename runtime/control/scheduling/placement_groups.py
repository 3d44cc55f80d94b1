"""Placement groups: bundles of resources, reserved all together or not at all.

The life of a group, at the global scheduler (`GroupTable`)::

    CreateGroup ──> PENDING ──place()──> PREPARING ──every node could──> CREATED
                       ↑                     │ one could not: all are       │ a node
                       └──── `RETRY_S` ──────┘ returned                     │ died
                       ↑                                              RESCHEDULING:
                       └──────── the bundles that were there <──────────────┘
    RemoveGroup ──> REMOVED, until `REMOVED_MAX` others have been, too

`bundles` is the node's side; `group_resources` defines the resources that a task in a group
demands, so that schedulers need to know nothing of groups. A task whose group is not placed waits
at the global scheduler, as infeasible tasks do.

`placement_group()` returns when the group is in the table (`GroupCreated`). Before that,
no client has a handle to the group, so none can submit a task in it. If a task arrives for a group
that is not in the table, the group was removed or has ended with its job.

A group ends with its job unless it is detached. When a client has removed a group, its node spills
all tasks that it submits in that group (`submission`).

A name belongs to one group at a time, among the groups that a job may see: its own and all detached
ones. If a second group asks for the name, the table answers with the ID of the first.

The strategy decides on the nodes of the bundles, by the free resources that nodes have reported::

    PACK          on few nodes
    SPREAD        on many
    STRICT_PACK   all on one node
    STRICT_SPREAD each on a node of its own

The first two are preferences, the others are required.

Cost: waiting groups are checked each time that resources may have become free, placed groups when
a node dies, removed groups never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.group_resources import (
    group_of,
    group_resources,
    job_of,
)
from raytwin.runtime.control.core.ids import NUMBER_BYTES
from raytwin.runtime.control.core.resources import UNIT
from raytwin.runtime.control.messages import (
    BundlePrepared,
    CommitBundle,
    CreateGroup,
    Event,
    PrepareBundle,
    RemoveGroup,
    ReturnBundle,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import GroupRemoved

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

Free = dict[str, float]
"""The free amount of each resource on a node."""

RETRY_S = 0.1
"""Pause before the next try when no node has room: a heartbeat's interval."""
DETACHED = 6
"""The position of `detached` in a group's row."""
REMOVED_MAX = 2_000
"""The bound of the map of removed groups, which the table needs for late tasks, creators that run
again and `placement_group_table`. A row with few bundles has up to 1 KB: 2 MB in each replica of
this table, 0.2 MB in the answer to a query."""


class Group:
    """A row of the table."""

    def __init__(self, message: CreateGroup) -> None:
        self.id = message.group
        self.name = message.name
        self.bundles = message.bundles
        self.strategy = message.strategy
        self.detached = message.detached
        self.number = 0
        """The group's position in the order of placement."""
        self.state = "PENDING"
        self.nodes: dict[int, int] = {}
        """The node of each committed bundle."""
        self.trying: dict[int, int] = {}
        """By bundle: the node that has the `PrepareBundle`, until all nodes have answered."""
        self.attempt = 0
        """The number of this attempt, unique in the table."""
        self.prepared: set[int] = set()
        self.unanswered: set[int] = set()
        self.infeasible = False
        """Whether even empty nodes could not take its missing bundles."""
        self.created_s = 0.0
        """When the table was asked for it."""
        self.looked_s = 0.0
        """When the table last looked for nodes of its missing bundles."""
        self.looks = 0
        """How often the table has looked for them."""
        self.retry_s = 0.0
        """The longest pause between two looks: 0 if the first one found nodes."""
        self.creation_s = 0.0
        """The time from `created_s` until all bundles were committed; 0 until then."""
        self.placement_s = 0.0
        """The time from the look that found the nodes until all bundles were committed."""

    @property
    def names(self) -> tuple[str, str]:
        """The job in which the group's name is unique, empty for all jobs, and that name."""
        return ("" if self.detached else number_of(self.id), self.name)

    @property
    def row(self) -> list[Any]:
        """The group as queries return it."""
        nodes = {str(index): node for index, node in self.nodes.items()}
        stats = [self.scheduling, self.creation_s, self.placement_s, self.looks, self.retry_s]
        return [
            self.id, self.name, self.bundles, nodes, self.strategy, self.state, self.detached,
            stats,
        ]  # fmt: skip

    @property
    def label(self) -> str:
        """The group in a warning: its name, or its ID if it has none."""
        return self.name or self.id

    @property
    def scheduling(self) -> str:
        """How far the placement of the bundles is, in Ray's words."""
        if self.state in ("CREATED", "REMOVED"):
            return "FINISHED" if self.state == "CREATED" else "REMOVED"
        if self.trying:
            return "SCHEDULING_STARTED"
        return "INFEASIBLE" if self.infeasible else "NO_RESOURCES"


def number_of(group: str) -> str:
    """Return the number of the job that a group belongs to, in hexadecimal.

    Detached actors of the job have the same number; `job_of` distinguishes them.
    """
    return group[: 2 * NUMBER_BYTES]


class GroupTable:
    """Places groups; part of the global scheduler."""

    def __init__(
        self,
        ctx: Context,
        free: Callable[[], dict[int, Free]],
        totals: Callable[[], dict[int, Free]],
        changed: Callable[[int, Mapping[str, float], Free, bool], None],
        incarnation_of: Callable[[int], int],
    ) -> None:
        self._ctx = ctx
        self._free = free
        self._totals = totals
        self._incarnation_of = incarnation_of
        """Returns the incarnation of a living node."""
        self._changed = changed
        """Called with (node, bundle, its named resources, True if committed, False if returned)."""
        self.groups: dict[str, Group] = {}
        """All groups that were not removed."""
        self._unplaced: dict[str, Group] = {}
        """The groups that lack bundles, or whose nodes have not all answered."""
        self._names: dict[tuple[str, str], str] = {}
        """The ID of the group with each name."""
        self._removed: BoundedMap[str, list[Any]] = BoundedMap(REMOVED_MAX)
        """The rows of removed groups."""
        self._created = 0
        self._attempts = 0
        self._ended: set[str] = set()
        """Jobs that have ended."""
        self._retrying = False

    def create(self, message: CreateGroup) -> str:
        """Begin to place a group, unless it exists: the task that creates it may run twice.

        Return the ID of the group with its name, which may be another group; empty if its job has
        ended, since then no client waits for the answer.
        """
        if job_of(message.group) in self._ended:
            return ""
        if message.group in self.groups or message.group in self._removed:
            return message.group
        group = Group(message)
        if group.name:
            for names in ((number_of(group.id), group.name), ("", group.name)):
                if names in self._names:
                    return self._names[names]
            self._names[group.names] = group.id
        self._created += 1
        group.number = self._created
        group.created_s = self._ctx.now()
        self.groups[group.id] = self._unplaced[group.id] = group
        self._place_all()
        self._warn(group)
        return group.id

    def remove(self, message: RemoveGroup) -> None:
        """Remove a group and return all its bundles."""
        group = self.groups.get(message.group)
        if group is not None:
            self._remove(group)
            self._removed[group.id] = group.row

    def _remove(self, group: Group) -> None:
        group.state = "REMOVED"
        for index, node in {**group.nodes, **group.trying}.items():
            self._give_back(group, index, node)
        group.trying = {}
        del self.groups[group.id]
        self._unplaced.pop(group.id, None)
        if group.name:
            del self._names[group.names]

    def end_job(self, job: bytes) -> None:
        """Forget a job's groups, except detached ones."""
        ended = job.hex()
        self._ended.add(ended)
        for group in list(self.groups.values()):
            if job_of(group.id) == ended and not group.detached:
                self._remove(group)
        for key, row in list(self._removed.items()):
            if job_of(key) == ended and not row[DETACHED]:
                del self._removed[key]

    def refusal(self, spec: TaskSpec) -> GroupRemoved | None:
        """Return why a task or an actor may not run in its group, None if it may."""
        group = group_of(spec)
        if not group or group in self.groups:
            return None
        is_actor = spec.extra is not None and spec.extra.actor is not None
        return GroupRemoved(spec.name, group, is_actor)

    def is_waited_for(self, spec: TaskSpec) -> bool:
        """Whether a task or an actor waits for its group, whose driver is warned on its own."""
        return group_of(spec) in self._unplaced

    def label(self, group: str) -> str:
        """Return a group's name, or its ID if it has none or was removed."""
        there = self.groups.get(group)
        return there.label if there is not None else group

    def on_prepared(self, message: BundlePrepared) -> bool:
        """A node has answered; return whether tasks may use further bundles now."""
        group = self.groups.get(message.group)
        index = message.index
        if group is None or message.attempt != group.attempt or index not in group.unanswered:
            # The group was removed or the attempt given up: the bundle was returned, or its node
            # has died.
            return False
        group.unanswered.discard(index)
        if message.ok:
            group.prepared.add(index)
        if group.unanswered:
            return False
        if len(group.prepared) < len(group.trying):
            self._give_up(group)
            return False
        for index, node in sorted(group.trying.items()):
            self._ctx.send(
                f"node:{node}", CommitBundle(group.id, index, self._incarnation_of(node))
            )
            group.nodes[index] = node
        committed, group.trying = group.trying, {}
        group.prepared = set()
        if len(group.nodes) == len(group.bundles):
            group.state = "CREATED"
            group.placement_s = self._ctx.now() - group.looked_s
            group.creation_s = group.creation_s or self._ctx.now() - group.created_s
            del self._unplaced[group.id]
        else:
            self.place_soon()  # others were lost meanwhile
        for index, node in sorted(committed.items()):
            self._notify(group, index, node, True)
        return True

    def on_node_died(self, node: int) -> None:
        """Place the bundles of a dead node again."""
        for group in self.groups.values():
            if node in group.trying.values():
                self._give_up(group, dead=node)
            lost = [index for index, at in group.nodes.items() if at == node]
            for index in lost:
                del group.nodes[index]
            if lost:
                group.state = "RESCHEDULING"
                self._unplaced[group.id] = group
        self._place_all()
        for group in self._unplaced.values():
            self._warn(group)

    def on_node_joined(self) -> None:
        """A node has joined, which may take bundles that no other one could."""
        for group in self._unplaced.values():
            group.infeasible = group.infeasible and self._is_infeasible(group)
        self.place_soon()

    def _is_infeasible(self, group: Group) -> bool:
        missing, used = self._missing(group), set(group.nodes.values())
        return bool(missing) and place(missing, self._totals(), group.strategy, used) is None

    def _warn(self, group: Group) -> None:
        """Warn the driver of a group that even empty nodes cannot take any more."""
        was, group.infeasible = group.infeasible, self._is_infeasible(group)
        if was or not group.infeasible:
            return
        missing, nodes = self._missing(group), self._totals()
        bundles = ", ".join(str(dict(bundle)) for bundle in missing.values())
        names = {name for bundle in missing.values() for name in bundle}
        there = Counter(
            str({name: total[name] for name in sorted(names) if name in total})
            for total in nodes.values()
        )
        detail = (
            f"waits, since the nodes can not take the bundles {bundles} by {group.strategy}: they"
            " have " + ", ".join(f"{count} x {total}" for total, count in there.items())
        )
        job = bytes.fromhex(job_of(group.id))
        subject = f"placement group {group.label}"
        self._ctx.send("gcs", Event("infeasible", subject, detail, job=job))

    def rows(self, removed: bool = True) -> list[list[Any]]:
        """Return a row of every group: [id, name, bundles, {bundle: node}, strategy, state,
        detached, stats].

        The stats are [how far its placement is, seconds until it was created, seconds of the
        placement that succeeded, looks for nodes, seconds of the longest pause between two].
        Removed groups come first, if `removed`, in the order of their removal, then the others,
        oldest first.
        """
        there = [group.row for group in self.groups.values()]
        return [*self._removed.values(), *there] if removed else there

    def place_soon(self) -> None:
        """Resources may have become free: try again to place the waiting groups."""
        if not self._retrying and any(map(self._missing, self._unplaced.values())):
            self._retrying = True
            self._ctx.after(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self._place_all()

    @staticmethod
    def _missing(group: Group) -> dict[int, Mapping[str, float]]:
        if group.trying:
            return {}
        return {i: b for i, b in enumerate(group.bundles) if i not in group.nodes}

    def _place_all(self) -> None:
        waiting = [group for group in self._unplaced.values() if self._missing(group)]
        if not waiting:
            return
        free = self._free()
        for group in self._unplaced.values():
            # No heartbeat counts a bundle that a node has not answered for yet.
            for index, node in group.trying.items():
                for name, amount in group.bundles[index].items():
                    if node in free:
                        free[node][name] = free[node].get(name, 0.0) - amount
        for group in sorted(waiting, key=lambda group: group.number):
            missing = self._missing(group)
            group.looks += 1
            group.looked_s = self._ctx.now()
            chosen = place(missing, free, group.strategy, set(group.nodes.values()))
            if chosen is None:
                group.retry_s = RETRY_S
                continue
            group.trying, group.infeasible = chosen, False
            self._attempts += 1
            group.attempt = self._attempts
            group.prepared = set()
            group.unanswered = set(chosen)
            for index, node in sorted(chosen.items()):
                for name, amount in group.bundles[index].items():
                    free[node][name] -= amount
                bundle = dict(group.bundles[index])
                prepare = PrepareBundle(
                    group.id, index, bundle, self._incarnation_of(node), group.attempt
                )
                self._ctx.send(f"node:{node}", prepare)
        self.place_soon()

    def _give_up(self, group: Group, dead: int = -1) -> None:
        """A node could not prepare its bundle: return all bundles, and try again later."""
        for index, node in sorted(group.trying.items()):
            if node != dead:
                self._return(group, index, node)
        group.trying = {}
        group.prepared = set()
        group.unanswered = set()
        group.retry_s = RETRY_S
        self.place_soon()

    def _return(self, group: Group, index: int, node: int) -> None:
        self._ctx.send(f"node:{node}", ReturnBundle(group.id, index, self._incarnation_of(node)))

    def _give_back(self, group: Group, index: int, node: int) -> None:
        self._return(group, index, node)
        if index in group.nodes:
            self._notify(group, index, node, False)

    def _notify(self, group: Group, index: int, node: int, there: bool) -> None:
        bundle = group.bundles[index]
        self._changed(node, bundle, group_resources(bundle, group.id, index), there)


def place(
    bundles: Mapping[int, Mapping[str, float]],
    free: Mapping[int, Free],
    strategy: str,
    used: set[int],
) -> dict[int, int] | None:
    """Return {bundle: node} for all bundles, None if there is no room now.

    ``used`` are the nodes that other bundles of the group are on. Greedy, by
    descending size for the packing strategies; PACK and SPREAD are preferences.
    """
    left = {node: dict(amounts) for node, amounts in free.items()}
    used = set(used)
    if strategy == "STRICT_PACK":
        whole: Free = {}
        for bundle in bundles.values():
            for name, amount in bundle.items():
                whole[name] = whole.get(name, 0.0) + amount
        candidates = [n for n in sorted(left) if (not used or n in used) and _fits(whole, left[n])]
        return dict.fromkeys(bundles, candidates[0]) if candidates else None
    chosen: dict[int, int] = {}
    order = sorted(bundles, key=lambda i: (-sum(bundles[i].values()), i))
    for index in order:
        bundle = bundles[index]
        fitting = [node for node in sorted(left) if _fits(bundle, left[node])]
        if strategy == "STRICT_SPREAD":
            fitting = [node for node in fitting if node not in used]
        if not fitting:
            return None
        spread = strategy in ("SPREAD", "STRICT_SPREAD")
        # Then the node with the most left of what the bundle takes, the first among equals.
        room = {n: sum(left[n].get(name, 0.0) for name in bundle) for n in fitting}
        node = min(fitting, key=lambda n: ((n in used) is spread, -room[n], n))
        chosen[index] = node
        used.add(node)
        for name, amount in bundle.items():
            left[node][name] -= amount
    return chosen


def _fits(bundle: Mapping[str, float], free: Free) -> bool:
    return all(free.get(name, 0.0) + 0.5 / UNIT >= amount for name, amount in bundle.items())
