"""Invariants: checked at every turn of a simulated node, and at the end of every run.

==================== ========= ==================================================
``oversubscription`` each turn the running tasks need no more than their node has, except for
                               CPUs of tasks that have resumed since all last fitted
``resources``        the end   every node's resources are free, and its queue is empty
``bundles``          the end   no placement group is left, and each node has its initial
                               resources (`sim`)
``actors``           the end   no actor is left that waits to begin, and no name is taken (`sim`)
``stores``           the end   no object is left, and no allocation for one
``disks``            the end   no object is left on disk, nor claimed (`sim`)
``tables``           the end   the GCS's tables are empty (`sim`)
``references``       the end   no client owns or borrows an array (`local`: the driver),
                               and no node keeps a reference for a value (`sim`)
``memory``           each turn no store has more than its capacity; the end: the GCS waits for no
                               object, and its replicas keep no old commands and few outputs (`sim`)
``replicas``         each turn what a node has from a chain, every living member has (`sim`)
``jobs``             the end   the jobs of the drivers that have ended are over (`sim`)
==================== ========= ==================================================

A check returns a list of violations. "The end" is when the program has
dropped all its references and all work has ended. Arrays that may rightly be left do not
count: see `_kept`.

On `sim` the checks read the parts of the cluster directly; which tasks run they read from
the workers, not from the scheduler. On `local` they use the same queries as programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raytwin.chaos.fuzz.oracle.findings import Finding, Kind
from raytwin.runtime.control.actors.actor_record import ActorState
from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.core.resources import UNIT, is_cpu, parse_demand
from raytwin.runtime.control.gcs.object_reconstruction import UNREPORTED_TIMEOUTS
from raytwin.runtime.control.ownership.owner_table import NOBODY
from raytwin.runtime.control.ownership.reference_counter import ON_ITS_WAY_S, PINNED
from raytwin.runtime.control.replication.client import UNACKNOWLEDGED_MAX
from raytwin.runtime.control.replication.replica import Replica

SETTLE_S = 2.0 + ON_ITS_WAY_S
"""Longer than every timer that continues work, on every backend, if no node has to be declared
dead before."""
SETTLE_LIMITS = 1 + UNREPORTED_TIMEOUTS
"""The limits of the failure detector that settling may take besides: a node is declared dead, and
its results that were on their way do not arrive."""
UNDER_WAY_S = 1.0
"""The age, at the end, of the oldest command that a replica may keep."""
OUTPUTS_MAX = UNACKNOWLEDGED_MAX
"""The outputs to one client, at the end, that may lack an acknowledgement."""


class Late(AssertionError):
    """A program has not ended in time."""


# -- at every turn -----------------------------------------------------------------


class Watch:
    """Checks each node of a simulated cluster after each of its turns."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._resumes: dict[str, int] = {}
        """{worker: its number of resumes when all leases of its node fitted last}."""
        self.found: list[Finding] = []
        cluster.after_node_turn.append(self._look)

    def _look(self, node: int) -> None:
        # This is called more often than all else here: a worker that runs nothing costs little.
        manager = self._cluster.node_managers[node]
        fits = min(manager.pool.free.values()) >= 0
        running: dict[str, Any] = {}
        for worker in self._cluster.workers.used():
            if worker.node != node:
                continue
            executor, address = worker.executor, worker.process.name
            if executor.running is not None:
                running[address] = worker
            if fits:
                self._resumes[address] = executor.resumes
        if running or list(manager.bundles.all()):
            for each in oversubscription(self._cluster, node, running, self._resumes):
                if len(self.found) < 10:
                    at = f"at {self._cluster.env.now:.6f} s {each.detail}"
                    self.found.append(Finding(each.kind, at))
        store = self._cluster.stores.get(node)
        if store is not None and store.used > store.capacity and len(self.found) < 10:
            text = f"the store of node {node} has {store.used:,} of {store.capacity:,} bytes"
            self.found.append(Finding(Kind.MEMORY, text))
        if self._cluster.config.gcs_replicas > 1 and len(self.found) < 10:
            self.found += lacking(self._cluster, node)


def lacking(cluster: Any, node: int) -> list[Finding]:
    """Return the replicas that lack what a node has from their chain: it might die with others."""
    found = []
    for chain, (client, master) in enumerate(
        zip(cluster.chains[node], cluster.replicas.masters, strict=True)
    ):
        confirmed = client.confirmed
        for name in [info.name for info in master.members]:
            process = cluster.processes.get(name)
            if process is None:
                continue
            session = process.components[name].machine.sessions.get(client.address)
            if session is None or session.born != client.born:
                continue  # the node is dead for the chain
            if session.applied < confirmed or session.sent < client.received:
                text = f"node {node} has answers of chain {chain} that {name} lacks"
                found.append(Finding(Kind.REPLICAS, text))
    return found


def oversubscription(
    cluster: Any, node: int, workers: Mapping[str, Any], resumes: Mapping[str, int]
) -> list[Finding]:
    """Return the resources of which more is in use than the node has.

    `workers` are those of the node that run a task. The CPU of one that has resumed since `resumes`
    does not count: a resumed task does not wait for its CPU, and the node starts nothing until all
    fits again. The CPU of a worker that has given it up counts if the task uses it nevertheless.
    A bundle of a placement group uses the resources it has taken, and adds its own to the node's.
    """
    used: dict[str, int] = {}
    bundles = list(cluster.node_managers[node].bundles.all())
    for bundle in bundles:
        for name, units in parse_demand(bundle.demand):
            used[name] = used.get(name, 0) + units
    for address, worker in workers.items():
        executor = worker.executor
        running = executor.running
        gone_on = executor.resumes > resumes.get(address, 0)
        without = gone_on or (executor.suspended and not worker.in_use)
        for name, units in parse_demand(running.demand):
            if not without or not is_cpu(name):
                used[name] = used.get(name, 0) + units
    if not used:
        return []
    own = cluster.own_resources(node)
    added = [bundle.resources for bundle in bundles if bundle.committed]
    found = []
    for name, units in used.items():
        has = own.get(name, 0.0) + sum(each.get(name, 0.0) for each in added)
        if units > round(has * UNIT):
            text = f"node {node} uses {units / UNIT:g} of {has:g} {name}"
            found.append(Finding(Kind.OVERSUBSCRIPTION, text))
    return found


# -- at the end --------------------------------------------------------------------


def at_end(session: Any) -> list[Finding]:
    """Return the remains of a program that has dropped everything and has settled.

    Takes the driver's session, of `sim` or `local`.
    """
    with session.world:
        session.references.collect()
        session.client.buffer.flush()
    return _at_end_of_sim(session) if session.name == "sim" else _at_end_of_local(session)


def _at_end_of_local(session: Any) -> list[Finding]:
    found = []
    for node, queue, total, available in session.query("loads"):
        found += _resources(node, queue, total, available)
    for node, objects, nbytes, places in session.query("stores"):
        found += _store(node, objects, nbytes, places)
    return found + _references([session.client], set())


def _at_end_of_sim(session: Any) -> list[Finding]:
    cluster = session.cluster
    found = []
    kept = _kept(session)
    whole = _whole_nodes(cluster)
    for number, scheduler in cluster.node_managers.items():
        if number not in whole:
            continue
        pool = scheduler.pool
        total = {name: units / UNIT for name, units in pool.total.items()}
        found += _lasting(scheduler, total, cluster.own_resources(number))
        found += _resources(scheduler.node, scheduler.queue, total, pool.available())
        stored = scheduler.objects.memory._stored.items()
        left = [size for oid, (_, size) in stored if oid[:ARRAY_BYTES] not in kept]
        memory = scheduler.objects.memory
        nowhere = cluster.stores[scheduler.node].used - memory.stored_bytes
        found += _store(scheduler.node, len(left), sum(left), nowhere)
        found += _disk(scheduler, cluster.stores[scheduler.node].disk_used, kept)
    rows = [array for tables in cluster.gcs_tables for array in tables.arrays]
    remaining = [array.hex() for array in rows if array not in kept]
    if remaining:
        first = remaining[0]
        text = f"{len(remaining)} arrays are left in the GCS, the first is {first}"
        found.append(Finding(Kind.TABLES, text))
    clients = [each.client for each in cluster.workers.used() if each.node in whole]
    found += _unsettled(cluster) + _kept_by_replicas(cluster) + _jobs(cluster)
    found += _names(cluster)
    found += _references([session.client, *clients], kept)
    for scheduler in cluster.node_managers.values():
        contained_references = scheduler.contained_references
        if scheduler.node in whole:
            inside = [array for array in contained_references.contained if array not in kept]
            if inside or contained_references._promised:
                text = (
                    f"node {scheduler.node} keeps references for {len(inside)} values"
                    f" and was promised some by {len(contained_references._promised)} workers"
                )
                found.append(Finding(Kind.REFERENCES, text))
    return found


def _unsettled(cluster: Any) -> list[Finding]:
    """Return what the GCS still waits for."""
    sizes: Counter[str] = Counter()
    for tables in cluster.gcs_tables:
        sizes.update(tables.table.sizes())
    found = {name: sizes[name] for name in ("awaited", "unheard") if sizes[name]}
    return [Finding(Kind.MEMORY, f"the GCS has {found}")] if found else []


def _kept_by_replicas(cluster: Any) -> list[Finding]:
    """Return the replicas that keep what others have acknowledged."""
    found = []
    for name, process in cluster.processes.items():
        for replica in process.components.values():
            if not isinstance(replica, Replica):
                continue
            machine = replica.machine
            if replica.kept and replica.kept[0].time_s < machine.time_s - UNDER_WAY_S:
                text = f"{name} keeps commands that are older than {UNDER_WAY_S:g} s"
                found.append(Finding(Kind.MEMORY, text))
            for client, session in machine.sessions.items():
                if len(session.outbox) > OUTPUTS_MAX:
                    text = f"{name} keeps more than {OUTPUTS_MAX} outputs for {client}"
                    found.append(Finding(Kind.MEMORY, text))
    return found


def _jobs(cluster: Any) -> list[Finding]:
    left = [each.job for each in cluster.drivers if each.job in cluster.gcs.jobs.rows]
    return [Finding(Kind.JOBS, f"{left} of drivers that have ended go on")] if left else []


def _names(cluster: Any) -> list[Finding]:
    """Return the names that are taken: programs kill their detached actors, others have ended."""
    names = sorted(name for _, name in cluster.gcs.actors.names)
    return [Finding(Kind.ACTORS, f"the names {names} are still taken")] if names else []


def _whole_nodes(cluster: Any) -> set[int]:
    """Return the nodes that run: some may be dead, or paused or cut off for good.

    A node that the head does not hear, or the other way round, is declared dead, and leaves after
    ``Config.fence_s``.
    """
    names = {number: f"node:{number}" for number in cluster.node_managers}
    return {
        number
        for number, name in names.items()
        if name in cluster.processes
        and not cluster.processes[name].paused
        and not (cluster.is_cut("head", name) or cluster.is_cut(name, "head"))
    }


def _references(clients: Iterable[Any], kept: set[bytes]) -> list[Finding]:
    found = []
    for client in clients:
        owned = [array for array in client.entries if array not in kept]
        borrowed = [array for array in client.references.counter.loans if array not in kept]
        guarded = client.references.counter.guarded
        if owned or borrowed or guarded:
            text = (
                f"{client.address} owns {len(owned)} arrays, has borrowed"
                f" {len(borrowed)} and guards arguments of {len(guarded)} tasks"
            )
            found.append(Finding(Kind.REFERENCES, text))
    return found


def _kept(session: Any) -> set[bytes]:
    """Return the arrays that may rightly be left.

    An array lives as long as its owner if the program has pickled a reference to it itself.
    If its owner or the owner's node has died, it waits for a new owner. The GCS keeps the
    specs of a released array while the lineage of others needs them. All arrays whose
    references these contain may be left, too.
    """
    cluster = session.cluster
    clients = [session.client, *(worker.client for worker in cluster.workers.used())]
    kept = {
        array
        for client in clients
        for array, entry in client.entries.items()
        if entry.borrowers and PINNED in entry.borrowers.has
    }
    for scheduler in cluster.node_managers.values():
        kept.update(a for a, owner in scheduler.objects.owners.items() if owner == NOBODY)
    for table in (tables.table for tables in cluster.gcs_tables):
        for array, row in table.store.rows.items():
            # A released row stays as the lineage of arrays that had it as an input.
            if array in table.store.lineage.uses if row.released else not row.owners:
                kept.add(array)
    contained: dict[bytes, set[bytes]] = {}
    for scheduler in cluster.node_managers.values():
        for array, inside in scheduler.contained_references.contained.items():
            contained.setdefault(array, set()).update(each for each, _ in inside)
    pending = list(kept)
    while pending:
        new = contained.get(pending.pop(), set()) - kept
        kept |= new
        pending += new
    return kept


def _resources(
    node: int, queue: int, total: dict[str, float], available: dict[str, float]
) -> list[Finding]:
    lines = [f"{queue} tasks are queued on node {node}"] if queue else []
    for name, amount in total.items():
        if available.get(name, 0.0) != amount:
            lines.append(
                f"{available.get(name, 0.0):g} of {amount:g} {name} are free on node {node}"
            )
    return [Finding(Kind.RESOURCES, line) for line in lines]


def _lasting(scheduler: Any, total: Mapping[str, float], own: Mapping[str, float]) -> list[Finding]:
    # A living actor may belong to an owner that is to run again.
    waiting = [a for a in scheduler.actors.actors.values() if a.state is not ActorState.ALIVE]
    if waiting:
        text = f"{len(waiting)} are left on node {scheduler.node}, and never began"
        return [Finding(Kind.ACTORS, text)]
    left = len(list(scheduler.bundles.all()))
    if not left and total == own:
        return []
    text = f"{left} are left on node {scheduler.node}, which has {total} and not {own}"
    return [Finding(Kind.BUNDLES, text)]


def _store(node: int, objects: int, nbytes: int, places: int) -> list[Finding]:
    if not (objects or nbytes or places):
        return []
    text = (
        f"{objects} objects of {nbytes:,} bytes are left on node {node}, and {places:,}"
        " more in places or bytes"
    )
    return [Finding(Kind.STORES, text)]


def _disk(scheduler: Any, used: int, kept: set[bytes]) -> list[Finding]:
    memory = scheduler.objects.memory
    left = [oid for oid in memory.on_disk if oid[:ARRAY_BYTES] not in kept]
    nowhere = used - memory.spilled_bytes - sum(memory.in_file().values())
    if not (left or nowhere or memory._claims):
        return []
    text = (
        f"{len(left)} objects are left on the disk of node {scheduler.node}, {nowhere:,}"
        f" bytes more, and {len(memory._claims)} objects are claimed"
    )
    return [Finding(Kind.DISKS, text)]


def settled(
    check: Callable[[], list[Finding]],
    pause: Callable[[float], None],
    limit_s: float = 0.0,
    leaves_s: float = 0.0,
) -> list[Finding]:
    """Return the violations once they stay the same for long enough, or [] once there are none.

    That is `SETTLE_S`, and `SETTLE_LIMITS` times the failure detector's limit `limit_s` where nodes
    may still break; and `leaves_s`, which a node may need to notice that it must leave. `pause`
    lets time pass. Violations that change for twice as long are returned, too: an actor may restart
    for ever.
    """
    step_s = 0.1
    settle_s = SETTLE_S + SETTLE_LIMITS * limit_s + leaves_s
    quiet_s = waited_s = 0.0
    before = check()
    while before and quiet_s < settle_s and waited_s < 2 * settle_s:
        pause(step_s)
        now = check()
        waited_s += step_s
        quiet_s = quiet_s + step_s if now == before else 0.0
        before = now
    return before
