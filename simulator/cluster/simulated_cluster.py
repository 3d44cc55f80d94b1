"""A cluster in virtual time: its processes, their hosts, and its event loop.

Every address belongs to a component of some `SimProcess`; a process runs on a
host; frames travel over the network. All scheduling, recovery and bookkeeping is
the code of `runtime.control`; this package decides nothing.

By default each node has a host of its own; with ``nodes_per_host`` several nodes
share a host's cores, which predicts a run on one machine. The head, the driver and
node 0 run on the first host.

An operation such as `kill_node` ends or stops a process at once, in the middle of its turn.
Other processes learn of it one latency later, as the kernel of a real host would report it:
by a broken connection, or by the end of a child.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any

from greenlet import getcurrent

from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.control.assembly import make_node
from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.core.addresses import master_of, node_of, shard_address
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import job_id, root_task_id
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.gcs.sharding.shard import Shard
from raytwin.runtime.control.messages import (
    ChainAck,
    ChainCommands,
    ChainOutput,
    ChainRequest,
    DirectClosed,
    Heartbeat,
    JobInfo,
    NodeUnreachable,
    ReplicaHeartbeat,
    WorkerDied,
)
from raytwin.runtime.control.node.node_manager import NodeManager
from raytwin.runtime.control.replication.client import ChainClient
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from raytwin.runtime.journal import Journal
from raytwin.runtime.session.node_resources import (
    FIRST_DRIVER,
    NO_ACTOR,
    NO_HEAD_AGAIN,
    check_node,
    no_worker,
    node_resources,
)
from raytwin.runtime.session.session import Session
from raytwin.simulator.cluster.simulated_drivers import SimAdmission, SimDriver, SimSession
from raytwin.simulator.cluster.simulated_links import SimLinks
from raytwin.simulator.cluster.simulated_replicas import SimReplicas
from raytwin.simulator.cluster.simulated_store import SimPool, SimStore
from raytwin.simulator.cluster.simulated_worker import SimWorker
from raytwin.simulator.machine.clock import Clock
from raytwin.simulator.machine.costs import ROLES, CostModel, load_profile
from raytwin.simulator.machine.host import Host
from raytwin.simulator.machine.network import Network
from raytwin.simulator.machine.simulated_process import Counts, SimProcess
from raytwin.simulator.programs import process_ends
from raytwin.simulator.programs.virtual_values import Functions
from raytwin.simulator.programs.virtual_world import STALL_S, SimWorld

_QUIET = frozenset(
    {Heartbeat, ChainRequest, ChainOutput, ChainCommands, ChainAck, ReplicaHeartbeat}
)
"""Messages that are no sign of progress, because they are sent even if nothing happens. The work
of a GCS chain causes other messages too, between nodes, workers and drivers."""

HEAD = -1
"""The head's number in the network."""


class SimCluster:
    """A simulated cluster: see the module's docstring."""

    def __init__(
        self,
        nodes: Sequence[Mapping[str, float]],
        config: Config,
        profile: str | os.PathLike[str],
        nodes_per_host: int,
        cores_per_host: int | None,
        store_bytes: int,
        journal: str | os.PathLike[str] | None,
    ) -> None:
        self.profile = load_profile(profile)
        self.config = config
        self.seed = config.seed
        self.env = Clock()
        self.hub: Any = getcurrent()
        self.thread = get_ident()
        """The one thread in which the simulation may run."""
        self.pid = os.getpid()
        """The real process that runs the simulation."""
        self.loop_of_hub: asyncio.AbstractEventLoop | None = None
        """The hub's running asyncio loop, saved while a program's greenlet runs."""
        self.hooks_of_hub: Any = (None, None)
        """The hub's hooks for asynchronous generators: see `sys.set_asyncgen_hooks`."""
        self.processes: dict[str, SimProcess] = {}
        self.node_managers: dict[int, NodeManager] = {}
        self.chains: dict[int, list[ChainClient]] = {}
        """By node: its clients of the chains of a replicated GCS."""
        self.stores: dict[int, SimStore] = {}
        self.resources: dict[int, dict[str, float]] = {}
        """Resources of every node that was ever started, by number."""
        self.incarnations: dict[int, int] = {}
        self._hosts_of: dict[int, int] = {}
        self._leaving: set[int] = set()
        """Nodes that have learned that they were declared dead, and are about to exit."""
        self._removed: set[int] = set()
        self.after_node_turn: list[Callable[[int], None]] = []
        """Called with a node's number after each of its turns, to check invariants."""
        self.on_membership: list[Callable[[int, bool], None]] = []
        """Called with a node's number and whether it lives, when it joins and when it dies."""
        self.workers: dict[str, SimWorker] = {}
        self.drivers: list[SimDriver] = []
        """All drivers but the first."""
        self.admission = SimAdmission(self)
        self.functions = Functions()
        self.journal = Journal(Path(journal)) if journal is not None else None
        self.journaled: set[str] = {"gcs", "global"}
        self.working = 0
        """The number of operations that will end by themselves: programs that compute, sleep or
        wait with a timeout, transfers, long turns."""
        self.stall_s = max(STALL_S, 10 * config.heartbeat_timeout_s, 2 * config.actor_end_s)
        """After so many virtual seconds without progress a driver's wait raises."""
        self.frames = 0
        """Frames sent so far, except those of `_QUIET` messages: a sign of progress."""
        self.counts: defaultdict[str, Counts] = defaultdict(Counts)
        """Turns, messages and frames of components so far, by role."""
        self.tasks = 0
        """Tasks and calls that workers have run so far, repetitions included."""
        self.closed = False
        process_ends.install()
        self._gc_thresholds = gc.get_threshold()
        # A simulation makes many objects and few cycles: with Python's thresholds the
        # collector's passes over thousands of simulated processes took half of the time.
        gc.set_threshold(500_000, 10, 100)
        self._store_bytes = store_bytes
        self.costs = {role: CostModel(getattr(self.profile, role), self.profile) for role in ROLES}
        self._cores = cores_per_host or self.profile.cores
        self.hosts = [Host(self.env, self._cores) for _ in range(-(-len(nodes) // nodes_per_host))]
        self.network = Network(
            self.env,
            self.profile.latency_s,
            self.profile.bandwidth,
            self.profile.loopback_latency_s,
            self.profile.loopback_bandwidth,
        )
        self._start_head()
        for number, resources in enumerate(nodes):
            self.resources[number] = dict(resources)
            self._hosts_of[number] = number // nodes_per_host
            self._start_node(number)

    # -- processes -------------------------------------------------------------

    def _start_head(self) -> None:
        self.network.add_node(HEAD, 0)
        process = self.head = SimProcess(self, "head", HEAD, self.hosts[0], self.costs["head"])
        self.replicas: SimReplicas | None = None
        if self.config.chained:
            self.replicas = SimReplicas(self, process, self._on_change)
            process.begin()
            return
        gcs = Gcs(process.context("gcs"), self.config)
        process.add("gcs", gcs)
        process.add("global", GlobalScheduler(process.context("global"), self.config))
        process.add("links", SimLinks(process, on_change=self._on_change))
        gcs.start()
        process.begin()

    def _on_change(self, node: int, alive: bool) -> None:
        for callback in list(self.on_membership):
            callback(node, alive)

    def _start_node(self, number: int) -> None:
        host = self._hosts_of[number]
        self.incarnations[number] = self.incarnations.get(number, 0) + 1
        self.network.add_node(number, host)
        address = f"node:{number}"
        process = SimProcess(self, address, number, self.hosts[host], self.costs["node"])
        own = {**self.resources[number], f"node:{number}": 1.0}

        def make(ctx: Context) -> NodeManager:
            return NodeManager(ctx, number, own, self.config, self.incarnations[number])

        component, chains, manager = make_node(process.context(address), address, self.config, make)
        self.journaled.add(address)
        process.add(address, component)
        store = self.stores[number] = SimStore(self, number, self._store_bytes)
        process.add(f"store:{number}", store)
        process.add(f"pool:{number}", SimPool(self, number, process))
        process.add(f"links:{number}", SimLinks(process, store.drop_peer))
        if number == 0:
            process.add("admission:0", self.admission)
        process.after_turn = lambda: self._after_turn(number, manager)
        self.node_managers[number] = manager
        self.chains[number] = chains
        manager.start(f"host-{host}", 0)
        for client in chains:
            client.start()
        process.begin()

    def _after_turn(self, number: int, manager: NodeManager) -> None:
        """Check invariants; end a node that was declared dead, as a real node exits then."""
        for callback in self.after_node_turn:
            callback(number)
        if manager.members.fenced and number not in self._leaving:
            # The frames of this turn still leave, and their receivers refuse them.
            self._leaving.add(number)
            left = self.incarnations[number]
            self.env.after(2 * self.profile.latency_s, partial(self._leave, number, left))

    def _leave(self, number: int, incarnation: int) -> None:
        if self.incarnations[number] == incarnation and f"node:{number}" in self.processes:
            self._end_node(number)

    def _end_node(self, number: int) -> None:
        """End every process of a node at once."""
        for address in list(self.processes):
            if address.partition(":")[2].partition(".")[0] == str(number):
                self._end_process(address)
        self.stores.pop(number, None)
        self._leaving.discard(number)
        self.network.remove_node(number)

    @property
    def gcs(self) -> Gcs:
        """The GCS; of a chain of replicas, the tail's copy, which is the committed state.

        With shards it is the part that is in no shard.
        """
        if self.replicas is not None:
            found = self.replicas.tail_machine().components["gcs"]
        else:
            found = self.head.components["gcs"]
        assert isinstance(found, Gcs)
        return found

    @property
    def gcs_tables(self) -> list[Gcs | Shard]:
        """The shards of the GCS; without shards, the GCS itself."""
        if self.config.gcs_shards == 1:
            return [self.gcs]
        assert self.replicas is not None
        found: list[Gcs | Shard] = []
        for shard in range(1, self.config.chains):
            tables = self.replicas.tail_machine(shard).components[shard_address(shard)]
            assert isinstance(tables, Shard)
            found.append(tables)
        return found

    # -- workers ---------------------------------------------------------------

    def start_worker(self, address: str, node: int) -> None:
        """Make a worker whose process has started, unless its node has ended."""
        if f"node:{node}" in self.processes:
            pid, values = len(self.workers) + 1, self.stores[node].values
            self.workers[address] = SimWorker(self, address, node, pid, values)

    def stop_worker(self, address: str) -> None:
        """End a worker that its node does not need; the node receives `WorkerDied`."""
        if address in self.workers:
            self._end_worker(address, "exit code 0")

    def worker_left(self, process: SimProcess, reason: str) -> None:
        """End a worker's process that has exited: an actor that exits, a program that raised."""
        self._end_process(process.name)
        # The node receives the worker's last frames before `WorkerDied`.
        died = [WorkerDied(process.name, reason)]
        self.transmit(process.node, f"pool:{process.node}", f"node:{process.node}", died, 60)

    def worker_died(self, process: SimProcess, reason: str) -> None:
        """End a worker's process whose program called `os._exit` or signalled itself."""
        self._end_worker(process.name, reason)

    def _end_process(self, address: str) -> None:
        worker = self.workers.pop(address, None)
        process = self.processes.get(address)
        if worker is not None:
            worker.end()
            if worker.executor.direct.connected:
                # The driver receives the worker's last answers before the connection's end.
                self.transmit(node_of(address), address, FIRST_DRIVER, [DirectClosed()], 60)
        elif process is not None:
            process.kill()

    def _end_worker(self, address: str, reason: str) -> None:
        node = node_of(address)
        self._end_process(address)
        process = self.processes[f"node:{node}"]
        # The node receives the worker's last frames before `WorkerDied`.
        died = [WorkerDied(address, reason)]
        self.network.send(
            node, node, 0, partial(process.arrive, f"pool:{node}", f"node:{node}", died)
        )

    # -- drivers ---------------------------------------------------------------

    def start_driver(self) -> Session:
        """Make the calling program the driver, on node 0."""
        self.admission.register(JobInfo(1, FIRST_DRIVER))
        return SimSession(self.make_driver(FIRST_DRIVER, job_id(1)), self, self.close)

    def run_driver(self, program: Callable[[], object], namespace: str = "") -> SimDriver:
        """Start a program as a further driver, on node 0.

        The driver has a job of its own, which ends with the program. It makes progress
        while the calling program waits or lets time pass.
        """
        driver = SimDriver(self, program, namespace)
        self.drivers.append(driver)
        return driver

    def make_driver(self, address: str, job: bytes) -> SimWorld:
        process = SimProcess(self, address, 0, self.hosts[0], self.costs["driver"])
        client = Client(process.context(address), address, 0, self.config)
        client.submitter.begin_task(root_task_id(f"sim/{self.seed}", job))
        process.add(address, client)
        return SimWorld(self, process, client, None, self.stores[0].values)

    # -- operations on nodes -------------------------------------------------------------

    def add_node(self, resources: Mapping[str, float]) -> int:
        """Start a node on a host of its own and return its number."""
        (checked,) = node_resources([resources], None, 0)
        number = len(self.resources)
        self.resources[number] = checked
        self._hosts_of[number] = len(self.hosts)
        self.hosts.append(Host(self.env, self._cores))
        self._start_node(number)
        return number

    def remove_node(self, node: int) -> None:
        """End a node for good: as `kill_node`, and its number is not used again."""
        self.kill_node(node)
        self._removed.add(node)

    def kill_node(self, node: int) -> None:
        """End a node and its workers at once; the head notices the broken connection."""
        self._check(node, spare_driver=True)
        if f"node:{node}" not in self.processes:
            return
        self._end_node(node)
        incarnation = self.incarnations[node]

        def unreachable() -> None:
            # A restarted node has replaced the broken connection by a new one.
            if self.incarnations[node] == incarnation:
                reason = "connection lost: the other side closed the connection"
                chains = map(master_of, range(self.config.chains))
                for to in chains if self.config.chained else ("gcs",):
                    self.head.arrive(to, to, [NodeUnreachable(node, reason, incarnation)])

        self.env.after(self.profile.latency_s, unreachable)

    def restart_node(self, node: int) -> None:
        """Start a node again under its number, empty; kills it first if it lives."""
        self.kill_node(node)
        self._start_node(node)

    def pause_node(self, node: int) -> None:
        """Stop a node and its workers, as SIGSTOP does; no effect on a node that has ended."""
        for process in self._processes_of(node):
            process.pause()
        if f"node:{node}" in self.processes:
            self.network.pause_node(node)

    def resume_node(self, node: int) -> None:
        """Continue a paused node and its workers."""
        processes = self._processes_of(node)
        if f"node:{node}" in self.processes:
            self.network.resume_node(node)
        for process in processes:
            process.resume()

    def set_latency(self, source: int, destination: int, latency_s: float | None) -> None:
        """Set the latency of the link from one node to another; None: the profile's."""
        self._check(source)
        self._check(destination)
        self.network.set_latency(source, destination, latency_s)

    # -- operations on workers ----------------------------------------------------------

    def kill_worker(self, node: int, which: int = 0) -> None:
        """End a worker; `which` counts from the node's oldest, modulo their number."""
        self._end_worker(self._worker(node, which), "killed by SIGKILL")

    def kill_actor(self, which: int = 0) -> None:
        """End an actor's process; `which` counts by node and age, modulo their number."""
        actors = [
            worker.address
            for node in sorted(self.node_managers)
            for worker in self.node_managers[node].dispatcher.workers.values()
            if worker.actor and worker.address in self.workers
        ]
        if not actors:
            raise ValueError(NO_ACTOR)
        self._end_worker(actors[which % len(actors)], "killed by SIGKILL")

    def pause_worker(self, node: int, which: int = 0) -> None:
        """Stop a worker; `which` as in `kill_worker`."""
        self.workers[self._worker(node, which)].process.pause()

    def resume_workers(self, node: int) -> None:
        """Continue all paused workers of a node, unless the node is paused itself."""
        processes = self._processes_of(node)
        if processes and not processes[0].paused:
            for process in processes:
                process.resume()

    # -- operations on the head and the replicas of the GCS ----------------------------------

    def kill_head(self) -> None:
        """End the head's process at once; a new one starts after `start_worker_s`."""
        if not self.config.gcs_durable:
            raise ValueError(NO_HEAD_AGAIN)
        if not self.head.alive:
            raise ValueError("the head has ended already")
        self.head.kill()
        self.env.after(self.profile.start_worker_s, self._restart_head)

    def _restart_head(self) -> None:
        assert self.replicas is not None
        self.head = SimProcess(self, "head", HEAD, self.hosts[0], self.costs["head"])
        self.replicas.begin(self.head)
        self.head.begin()
        for number, chains in self.chains.items():
            address = f"node:{number}"
            if address in self.processes:
                ctx = self.processes[address].contexts[address]
                for client in chains:
                    ctx.after(self.profile.latency_s, client.start)

    def kill_replica(self, name: str) -> None:
        """End the process of a replica of the GCS at once."""
        assert self.replicas is not None, "the GCS of this cluster has no replicas"
        self.replicas.kill(name)

    def kill_member(self, chain: int, which: int = 0) -> None:
        """End a member of a chain; `which` counts from the chain's head, modulo the size."""
        if self.replicas is None or chain >= self.config.chains:
            raise ValueError(f"the GCS has no chain {chain} of replicas that could die alone")
        members = [info.name for info in self.replicas.masters[chain].members]
        members = [name for name in members if name in self.processes]
        if len(members) < 2:
            raise ValueError(f"chain {chain} has one member, which alone has the state")
        self.kill_replica(members[which % len(members)])

    # -- look-ups by number ----------------------------------------------------

    def _worker(self, node: int, which: int) -> str:
        self._check(node)
        workers = [address for address in self.workers if node_of(address) == node]
        if not workers:
            raise ValueError(no_worker(node))
        return workers[which % len(workers)]

    def _processes_of(self, node: int) -> list[SimProcess]:
        """Return the processes of a node and its workers, without the driver."""
        self._check(node)
        names = [f"node:{node}", *(a for a in self.workers if node_of(a) == node)]
        return [self.processes[name] for name in names if name in self.processes]

    def _check(self, node: int, spare_driver: bool = False) -> None:
        check_node(node, self.resources, self._removed, spare_driver)

    # -- frames and time -------------------------------------------------------

    def transmit(
        self, node: int, source: str, destination: str, messages: list[Any], nbytes: int
    ) -> None:
        """Send a frame from a node; a frame to an unknown address is lost."""
        process = self.processes.get(destination)
        if process is None:
            return
        if type(messages[0]) not in _QUIET:
            self.frames += 1
        self.network.send(
            node, process.node, nbytes, partial(process.arrive, source, destination, messages)
        )

    def run_until(self, ready: Callable[[], object], watch: bool) -> None:
        """Run the simulation until `ready()` holds.

        With `watch`, raises RaySystemError once nothing was `working` and only heartbeats
        have passed for `stall_s`: then `ready()` can never hold.
        """
        env = self.env
        step = env.step
        if not watch:
            while not ready():
                step()
            return
        frames, since_s = self.frames, env.now
        while not ready():
            step()
            if self.frames != frames or self.working:
                frames, since_s = self.frames, env.now
            elif env.now - since_s > self.stall_s:
                raise RaySystemError(
                    f"nothing has happened for {self.stall_s:g} virtual seconds: the wait cannot"
                    " end (is there a task whose resources no node has?)"
                )

    def close(self) -> None:
        """End every driver and worker, and unwind their programs."""
        if self.closed:
            return
        self.closed = True
        gc.set_threshold(*self._gc_thresholds)
        if get_ident() == self.thread:  # else that thread has ended with its greenlets
            for driver in self.drivers:
                driver.kill()
            for address in list(self.workers):
                self._end_process(address)
        if self.journal is not None:
            self.journal.close()
