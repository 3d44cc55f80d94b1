"""Placement groups: bundles of resources, reserved all together or not at all.

The life of a group, at the global scheduler (`GroupTable`)::

    CreateGroup ──> PENDING ──place()──> PREPARING ──every node could──> CREATED
                       ↑                     │ one could not: all are       │ a node
                       └──── `RETRY_S` ──────┘ returned                     │ died
                       ↑                                              RESCHEDULING:
                       └──────── the bundles that were there <──────────────┘
    RemoveGroup ──> REMOVED

and of a bundle on its node (`Bundles`)::

    PrepareBundle: its resources are taken ──CommitBundle──> the node has resources
    named after the group instead ──ReturnBundle──> those who use them are ended, then the
    names vanish and the bundle's resources are free again

A committed bundle i of group g with 2 CPUs is ``CPU_group_<i>_<g>: 2`` and
``CPU_group_<g>: 2``. A task in the group demands those instead of ``CPU``
(`demand_in`), so that schedulers need to know nothing of groups. Every task
takes a little of ``bundle_group_<g>`` too: one without demands has to run there
as well. A task whose group is not there (any more) waits at the global
scheduler, with those that no node can run.

A group is its job's: other jobs can neither run anything in it nor remove it, unless it is
detached. Which it is the table knows alone, so a node keeps nothing of what another job has
in a group (`Keeping`), and the global scheduler refuses it. Nor does it keep what a client
submits that has just removed the group.

All that is said to a node is for one of its incarnations. What is on its way when that ends
the next one does not take: it was not asked, and nobody would ever give back what it took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from runtime.control.context import Context
from runtime.control.ids import ARRAY_BYTES, JOB_BYTES, NUMBER_BYTES, job_number
from runtime.control.messages import (
    SYSTEM_ERROR,
    BundlePrepared,
    CommitBundle,
    CreateGroup,
    Event,
    KillWorker,
    ObjectValue,
    PlaceTasks,
    PrepareBundle,
    RemoveGroup,
    ReturnBundle,
    TaskSpec,
)
from runtime.control.resources import UNIT, ResourcePool, format_demand, parse_demand

if TYPE_CHECKING:
    from runtime.control.local_scheduler import LocalScheduler

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
RETRY_S = 0.1
"""Pause before the next try when no node has room: heartbeats tell of room so often."""
HEX = frozenset("0123456789abcdef")
MARK = 1000.0
"""How much of ``bundle_group_<g>`` a bundle has, and"""
MARK_PER_TASK = 0.001
"""how much of it a task takes."""

Free = dict[str, float]


def demand_in(demand: str, group: str, index: int) -> str:
    """Return a demand rewritten to the resources of a group; bundle -1: of any."""
    amounts: dict[str, float] = {}
    parts = [*parse_demand(demand), ("bundle", round(MARK_PER_TASK * UNIT))]
    for name, units in parts:
        amounts[f"{name}_group_{group}"] = units / UNIT
        if index >= 0:
            amounts[f"{name}_group_{index}_{group}"] = units / UNIT
    return format_demand(amounts)


def group_resources(bundle: Mapping[str, float], group: str, index: int) -> Free:
    """Return the resources that a node has because of a committed bundle."""
    named: Free = {}
    for name, amount in [*bundle.items(), ("bundle", MARK)]:
        named[f"{name}_group_{group}"] = amount
        named[f"{name}_group_{index}_{group}"] = amount
    return named


def is_of_group(resource: str) -> bool:
    """Whether a resource of this name is there only where a group is."""
    group = resource.rpartition("_")[2]
    return "_group_" in resource and len(group) == 2 * ARRAY_BYTES and set(group) <= HEX


def removed_error(name: str, group: str, kind: str = "Task") -> bytes:
    """Return the payload for a task whose group was removed, or an ``Actor`` that waits."""
    return (
        f"{kind}PlacementGroupRemoved: {name} was in placement group {group}, which is gone"
    ).encode()


# -- where bundles go ----------------------------------------------------------


def place(
    bundles: Mapping[int, Mapping[str, float]],
    free: Mapping[int, Free],
    strategy: str,
    used: set[int],
) -> dict[int, int] | None:
    """Return {bundle: node} for all bundles, None if there is no room now.

    ``used`` are the nodes that other bundles of the group are on. Greedy, by
    descending size for the packing strategies; PACK and SPREAD are wishes.
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
        # Then where most is left, the first among equals.
        node = min(fitting, key=lambda n: ((n in used) is spread, -sum(left[n].values()), n))
        chosen[index] = node
        used.add(node)
        for name, amount in bundle.items():
            left[node][name] -= amount
    return chosen


def _fits(bundle: Mapping[str, float], free: Free) -> bool:
    return all(free.get(name, 0.0) + 0.5 / UNIT >= amount for name, amount in bundle.items())


# -- at the global scheduler ---------------------------------------------------


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
        if message.group not in self.groups and _job_of(message.group) not in self._ended:
            self.groups[message.group] = Group(message)
            self._place_all()

    def remove(self, message: RemoveGroup) -> None:
        """Give everything back, unless the group is none of theirs who ask."""
        group = self.groups.get(message.group)
        if group is None or group.state == "REMOVED":
            return
        if message.job and not self._is_open(group.id, message.job):
            whose = f"placement group {group.id} belongs to {_whose(group.id)}"
            self._ctx.send("gcs", Event("refused", f"job {job_number(message.job)}", whose))
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
            if _job_of(key) == job.hex() and not group.detached:
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
            f" which belongs to {_whose(group)} and is not detached"
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


def _job_of(group: str) -> str:
    """Return the job that a group belongs to, in hexadecimal as its own ID."""
    return group[: 2 * JOB_BYTES]


def is_of_job(group: str, some_id: bytes) -> bool:
    """Whether a group belongs to the same job as something with an ID."""
    return group.startswith(some_id[:NUMBER_BYTES].hex())


def _whose(group: str) -> str:
    return f"job {int(group[: 2 * NUMBER_BYTES], 16)}"


def group_of(spec: TaskSpec) -> str:
    """Return the ID of a task's group, an empty string for none."""
    return "" if spec.extra is None else spec.extra.group.partition("/")[0]


# -- on a node -----------------------------------------------------------------


class _Bundle:
    __slots__ = ("committed", "demand", "removed", "resources", "returning")

    def __init__(self, demand: str, resources: Free) -> None:
        self.demand = demand
        self.resources = resources
        """What the node has once it is committed."""
        self.committed = False
        self.removed = False
        """A client of this node has removed its group; it is not told to return it as yet."""
        self.returning = False


class Bundles:
    """The bundles of one node, for its scheduler."""

    def __init__(self, scheduler: LocalScheduler, pool: ResourcePool) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._bundles: dict[tuple[str, int], _Bundle] = {}

    def all(self) -> Iterable[_Bundle]:
        """Return those that are here, prepared or committed."""
        return self._bundles.values()

    def on_remove(self, group: str, job: bytes) -> None:
        """A client of this node removes a group: what it submits from now on is not kept.

        One of another job's may be refused; of that nothing is kept in any case.
        """
        if is_of_job(group, job):
            for bundle in self._of(group):
                bundle.removed = True

    def is_removed(self, group: str) -> bool:
        """Whether a client of this node has removed a group of which a bundle is here."""
        return any(bundle.removed for bundle in self._of(group))

    def _of(self, group: str) -> list[_Bundle]:
        return [bundle for (of, _), bundle in self._bundles.items() if of == group]

    def on_prepare(self, source: str, message: PrepareBundle) -> None:
        """Take the bundle's resources if they are free."""
        if message.incarnation != self._scheduler.incarnation:
            return  # who sent it is about to hear that the one that was meant is dead
        key = (message.group, message.index)
        demand = format_demand(message.resources)
        ok = key not in self._bundles and self._pool.fits(demand)
        if ok:
            self._pool.take(demand)
            named = group_resources(message.resources, message.group, message.index)
            self._bundles[key] = _Bundle(demand, named)
        answer = BundlePrepared(
            self._scheduler.node, message.group, message.index, ok, message.attempt
        )
        self._scheduler.ctx.send("global", answer)

    def on_commit(self, source: str, message: CommitBundle) -> None:
        """Let tasks use it."""
        if message.incarnation != self._scheduler.incarnation:
            return
        bundle = self._bundles[(message.group, message.index)]
        bundle.committed = True
        self._pool.lend(bundle.demand)
        self._pool.add(bundle.resources)
        # What this node could run until now, and cannot while the bundle is there.
        self._send_back(lambda spec: not self._pool.feasible(spec.demand))

    def _send_back(self, chosen: Callable[[TaskSpec], bool]) -> None:
        """Have ready ranges placed anew."""
        back = self._scheduler.dispatcher.ready.withdraw(chosen)
        for spec in back:
            self._scheduler.inputs.unclaim(spec)
        if back:
            self._scheduler.ctx.send("global", PlaceTasks(back))

    def _end_waiting(self, group: str) -> None:
        """Only what is removed is returned once it is committed: what waits in it ends here,
        where it is logged, and not at the global scheduler."""
        for spec in self._scheduler.dispatcher.ready.withdraw(lambda s: group_of(s) == group):
            self.end(spec)

    def end(self, spec: TaskSpec) -> None:
        """End a range that was accepted here and whose bundle is being returned, or was."""
        error = ObjectValue(b"", SYSTEM_ERROR, removed_error(spec.name, group_of(spec)))
        self._scheduler.inputs.unclaim(spec)
        self._scheduler.inputs.fail(spec, error)

    def on_return(self, source: str, message: ReturnBundle) -> None:
        """Give it back, at once or when those who use it are gone."""
        if message.incarnation != self._scheduler.incarnation:
            return
        key = (message.group, message.index)
        bundle = self._bundles.get(key)
        if bundle is None:
            return  # it could not be prepared
        if not bundle.committed:
            del self._bundles[key]
            self._pool.give(bundle.demand)
            return
        bundle.returning = True
        for worker in self._scheduler.dispatcher.workers.values():
            if worker.kill_error is None and self._uses(worker.demand, bundle):
                running = worker.assigned[0].name if worker.assigned else "a task"
                payload = removed_error(running, message.group)
                worker.kill_error = ObjectValue(b"", SYSTEM_ERROR, payload)
                ctx = self._scheduler.ctx
                ctx.send(f"pool:{self._scheduler.node}", KillWorker(worker.address))

    @staticmethod
    def _uses(demand: str, bundle: _Bundle) -> bool:
        return any(name in bundle.resources for name, _ in parse_demand(demand))

    def end_turn(self) -> None:
        """Finish what is being returned."""
        if not self._bundles:
            return
        for key, bundle in list(self._bundles.items()):
            if not bundle.returning:
                continue
            self._end_waiting(key[0])
            waiting = self._scheduler.actors.withdraw(
                lambda spec, group=key[0]: group_of(spec) == group  # type: ignore[misc]
            )
            for spec in waiting:
                self._scheduler.ctx.send("global", PlaceTasks([spec]))
            if self._pool.is_free(bundle.resources):
                del self._bundles[key]
                self._pool.remove(bundle.resources)
                self._pool.end_loan(bundle.demand)
