"""A cluster in virtual time: the ``sim`` backend's ``init``.

Every address is a component of some `SimProcess`; a process runs on a host;
frames travel over the network. All scheduling, recovery and bookkeeping is the
code of `runtime.control`; this package decides nothing.

One host per node by default; with ``nodes_per_host`` several nodes share a
host's cores, which is how a run on one machine is predicted. The head runs on
the first host, as does the driver with node 0.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from greenlet import getcurrent

from runtime.api.exceptions import RaySystemError
from runtime.api.state import set_current
from runtime.backend.journal import Journal
from runtime.backend.nodes import (
    FIRST_DRIVER,
    NO_ACTOR,
    NO_HEAD_AGAIN,
    check_node,
    check_replicas,
    check_shards,
    check_storage,
    no_worker,
    node_resources,
    store_config,
)
from runtime.backend.protocol import Backend
from runtime.backend.session import Session
from runtime.control.chain_client import Chained
from runtime.control.client import Client
from runtime.control.config import Config
from runtime.control.context import Context, node_of
from runtime.control.gcs import Gcs
from runtime.control.gcs_machine import make_node
from runtime.control.global_scheduler import GlobalScheduler
from runtime.control.ids import job_id, root_task_id
from runtime.control.local_scheduler import LocalScheduler
from runtime.control.messages import (
    ChainAck,
    ChainCommands,
    ChainOutput,
    ChainRequest,
    Heartbeat,
    JobInfo,
    NodeUnreachable,
    ReplicaBeat,
    TimelineRows,
    WorkerDied,
)
from runtime.control.policies import make_policy
from runtime.control.resources import ResourcePool
from runtime.control.shards import master_of, shard_address
from simulator.clock import Clock
from simulator.costs import ROLES, CostModel, load_profile
from simulator.drivers import SimDoor, SimDriver, SimSession
from simulator.host import Host
from simulator.links import SimLinks
from simulator.network import Network
from simulator.process import SimProcess
from simulator.replicas import SimReplicas
from simulator.store import SimPool, SimStore
from simulator.worker import SimWorker
from simulator.world import STALL_S, SimWorld

_QUIET = frozenset(
    {Heartbeat, ChainRequest, ChainOutput, ChainCommands, ChainAck, ReplicaBeat, TimelineRows}
)
"""What passes even when nothing happens, or tells of what is over. Of what is under way
in a chain, more than that passes too: between nodes, workers and drivers."""

HEAD = -1
"""The head's number in the network."""


class SimCluster:
    """All of a simulated cluster."""

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
        self.loop_of_hub: asyncio.AbstractEventLoop | None = None
        """The asyncio loop that runs in the hub, while a program's greenlet has the thread."""
        self.processes: dict[str, SimProcess] = {}
        self.schedulers: dict[int, LocalScheduler] = {}
        self.chains: dict[int, list[Chained]] = {}
        """By node: its links with the GCS's chains, where there are any."""
        self.stores: dict[int, SimStore] = {}
        self.resources: dict[int, dict[str, float]] = {}
        """Of every node that was ever started, by number."""
        self.incarnations: dict[int, int] = {}
        self._hosts_of: dict[int, int] = {}
        self._leaving: set[int] = set()
        """Nodes that have learned that they were declared dead."""
        self._removed: set[int] = set()
        self.after_node_turn: list[Callable[[int], None]] = []
        """Called with the number of a node that has had a turn: where invariants look."""
        self.on_membership: list[Callable[[int, bool], None]] = []
        """Called with a node's number and whether it lives, when it joins and when it dies."""
        self.workers: dict[str, SimWorker] = {}
        self.drivers: list[SimDriver] = []
        """Further ones than the first."""
        self.door = SimDoor(self)
        self.journal = Journal(Path(journal)) if journal is not None else None
        self.journaled: set[str] = {"gcs", "global"}
        self.working = 0
        """What will end by itself: programs that use time or wait with a timeout, transfers."""
        self.stall_s = max(STALL_S, 10 * config.heartbeat_timeout_s)
        """How long nothing may happen while a driver waits."""
        self.frames = 0
        """Frames other than heartbeats, sent so far: signs of progress."""
        self.closed = False
        self._gc_thresholds = gc.get_threshold()
        # A simulation makes many objects and few cycles: the collector's full
        # passes over thousands of simulated processes took half of the time.
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
            random.Random(f"{config.seed}/network"),
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

    def _start_node(self, number: int) -> None:
        host = self._hosts_of[number]
        self.incarnations[number] = self.incarnations.get(number, 0) + 1
        self.network.add_node(number, host)
        address = f"node:{number}"
        process = SimProcess(self, address, number, self.hosts[host], self.costs["node"])
        own = {**self.resources[number], f"node:{number}": 1.0}

        def make(ctx: Context) -> LocalScheduler:
            return LocalScheduler(ctx, number, own, self.config, self.incarnations[number])

        component, chains, scheduler = make_node(
            process.context(address), address, self.config, make
        )
        self.journaled.add(address)
        process.add(address, component)
        store = self.stores[number] = SimStore(self, number, self._store_bytes)
        process.add(f"store:{number}", store)
        process.add(f"pool:{number}", SimPool(self, number, process))
        process.add(f"links:{number}", SimLinks(process, store.drop_peer))
        if number == 0:
            process.add("door:0", self.door)
        process.after_turn = lambda: self._after_turn(number, scheduler)
        self.schedulers[number] = scheduler
        self.chains[number] = chains
        scheduler.start(f"host-{host}", 0)
        for chained in chains:
            chained.start()
        process.begin()

    def _after_turn(self, number: int, scheduler: LocalScheduler) -> None:
        """A node that was declared dead leaves, as a real one does."""
        for called in self.after_node_turn:
            called(number)
        if scheduler.members.fenced and number not in self._leaving:
            # What it has just sent still goes out: for others to refuse.
            self._leaving.add(number)
            left = self.incarnations[number]
            self.env.timeout(2 * self.profile.latency_s).callbacks.append(
                lambda _: self._leave(number, left)
            )

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
        """The GCS; of a chain of several replicas the tail's, whose word counts.

        Of one with shards, what is not in `gcs_tables`.
        """
        if self.replicas is not None:
            found = self.replicas.tail_machine().components["gcs"]
        else:
            found = self.head.components["gcs"]
        assert isinstance(found, Gcs)
        return found

    @property
    def gcs_tables(self) -> list[Gcs]:
        """Who has the tables that shards may have: these, or the one GCS there is."""
        if self.config.gcs_shards == 1:
            return [self.gcs]
        assert self.replicas is not None
        found = []
        for shard in range(1, self.config.chains):
            tables = self.replicas.tail_machine(shard).components[shard_address(shard)]
            assert isinstance(tables, Gcs)
            found.append(tables)
        return found

    def kill_head(self) -> None:
        """End the head's process at once; another one takes its place."""
        if self.replicas is None:
            raise ValueError(NO_HEAD_AGAIN)
        if not self.head.alive:
            raise ValueError("the head is away already")
        self.head.kill()
        started = self.env.timeout(self.profile.start_worker_s)
        started.callbacks.append(lambda _: self._start_head_again())

    def _start_head_again(self) -> None:
        assert self.replicas is not None
        self.head = SimProcess(self, "head", HEAD, self.hosts[0], self.costs["head"])
        self.replicas.begin(self.head)
        self.head.begin()
        for number, chains in self.chains.items():
            address = f"node:{number}"
            if address in self.processes:
                ctx = self.processes[address].contexts[address]
                for chained in chains:
                    ctx.after(self.profile.latency_s, chained.start)

    def kill_replica(self, name: str) -> None:
        """End the process of a replica of the GCS at once."""
        assert self.replicas is not None, "the GCS of this cluster has no replicas"
        self.replicas.kill(name)

    def kill_member(self, chain: int, which: int = 0) -> None:
        """End a member of a chain of the GCS, counted from its head, round and round."""
        if self.replicas is None or chain >= self.config.chains:
            raise ValueError(f"the GCS has no chain {chain} of replicas that could die alone")
        members = [info.name for info in self.replicas.masters[chain].members]
        members = [name for name in members if name in self.processes]
        if not members or (len(members) < 2 and not self.config.last_returns):
            raise ValueError(f"chain {chain} has one member, who alone has the state")
        self.kill_replica(members[which % len(members)])

    def start_worker(self, address: str, node: int) -> None:
        """A worker's process has come up."""
        if f"node:{node}" in self.processes:
            self.workers[address] = SimWorker(self, address, node, len(self.workers) + 1)

    def stop_worker(self, address: str) -> None:
        """A worker is not needed any more; its node hears of its end, as of any."""
        if address in self.workers:
            self._end_worker(address, "exit code 0")

    def worker_left(self, process: SimProcess) -> None:
        """A worker has ended by itself, as an actor does that exits."""
        self._end_process(process.name)
        # Behind what it has sent, as a real one's last words come first.
        died = [WorkerDied(process.name, "exit code 0")]
        self.transmit(process.node, f"pool:{process.node}", f"node:{process.node}", died, 60)

    def _end_process(self, address: str) -> None:
        worker = self.workers.pop(address, None)
        process = self.processes.get(address)
        if worker is not None:
            worker.end()
        elif process is not None:
            process.kill()

    # -- operations on a running cluster: see `chaos.cluster.Cluster` -------------

    def add_node(self, resources: Mapping[str, float]) -> int:
        """Start a node on a host of its own and return its number."""
        ResourcePool(resources)
        number = len(self.resources)
        self.resources[number] = {name: float(amount) for name, amount in resources.items()}
        self._hosts_of[number] = len(self.hosts)
        self.hosts.append(Host(self.env, self._cores))
        self._start_node(number)
        return number

    def remove_node(self, node: int) -> None:
        """End a node for good: as `kill_node`, and its number is not used again."""
        self.kill_node(node)
        self._removed.add(node)

    def kill_node(self, node: int) -> None:
        """End a node and its workers at once; the head sees the connection break."""
        self._check(node, spare_driver=True)
        if f"node:{node}" not in self.processes:
            return
        self._end_node(node)
        incarnation = self.incarnations[node]

        def unreachable(_: Any) -> None:
            # A new connection of the same node takes the place of the old one.
            if self.incarnations[node] == incarnation:
                reason = "connection lost: the other side closed the connection"
                chains = map(master_of, range(self.config.chains))
                for to in chains if self.config.chained else ("gcs",):
                    self.head.arrive(to, to, [NodeUnreachable(node, reason, incarnation)])

        self.env.timeout(self.profile.latency_s).callbacks.append(unreachable)

    def restart_node(self, node: int) -> None:
        """Start a node again under its number, empty; kills it first if it lives."""
        self.kill_node(node)
        self._start_node(node)

    def pause_node(self, node: int) -> None:
        """Have a node and its workers stand still; nothing happens to one that has ended."""
        for process in self._processes_of(node):
            process.pause()
        if f"node:{node}" in self.processes:
            self.network.pause_node(node)

    def resume_node(self, node: int) -> None:
        """Have a paused node and its workers go on."""
        processes = self._processes_of(node)
        if f"node:{node}" in self.processes:
            self.network.resume_node(node)
        for process in processes:
            process.resume()

    def kill_worker(self, node: int, which: int = 0) -> None:
        """End a worker, counted from the node's oldest, round and round."""
        self._end_worker(self._worker(node, which), "killed by SIGKILL")

    def kill_actor(self, which: int = 0) -> None:
        """End an actor's process, counted round and round by node and its process's age."""
        actors = [
            worker.address
            for node in sorted(self.schedulers)
            for worker in self.schedulers[node].dispatcher.workers.values()
            if worker.actor and worker.address in self.workers
        ]
        if not actors:
            raise ValueError(NO_ACTOR)
        self._end_worker(actors[which % len(actors)], "killed by SIGKILL")

    def pause_worker(self, node: int, which: int = 0) -> None:
        """Have a worker stand still; counted as in `kill_worker`."""
        self.workers[self._worker(node, which)].process.pause()

    def resume_workers(self, node: int) -> None:
        """Have all paused workers of a node go on, unless that is paused itself."""
        processes = self._processes_of(node)
        if processes and not processes[0].paused:
            for process in processes:
                process.resume()

    def set_latency(self, source: int, destination: int, latency_s: float | None) -> None:
        """Give the link from one node to another a latency; None is the profile's."""
        self._check(source)
        self._check(destination)
        self.network.set_link(source, destination, latency_s)

    def _on_change(self, node: int, alive: bool) -> None:
        for told in list(self.on_membership):
            told(node, alive)

    def _end_worker(self, address: str, reason: str) -> None:
        node = node_of(address)
        self._end_process(address)
        scheduler = self.processes[f"node:{node}"]
        # What it had sent before its end comes before the news of it.
        died = [WorkerDied(address, reason)]
        self.network.send(
            node, node, 0, partial(scheduler.arrive, f"pool:{node}", f"node:{node}", died)
        )

    def _worker(self, node: int, which: int) -> str:
        self._check(node)
        workers = [address for address in self.workers if node_of(address) == node]
        if not workers:
            raise ValueError(no_worker(node))
        return workers[which % len(workers)]

    def _processes_of(self, node: int) -> list[SimProcess]:
        """Return a node's scheduler and workers, not the driver."""
        self._check(node)
        names = [f"node:{node}", *(a for a in self.workers if node_of(a) == node)]
        return [self.processes[name] for name in names if name in self.processes]

    def _check(self, node: int, spare_driver: bool = False) -> None:
        check_node(node, self.resources, self._removed, spare_driver)

    def start_driver(self) -> Session:
        """Make the calling program the driver, on node 0."""
        self.door.register(JobInfo(1, FIRST_DRIVER))
        return SimSession(self.make_driver(FIRST_DRIVER, job_id(1)), self, self.close)

    def run_driver(self, program: Callable[[], object], namespace: str = "") -> SimDriver:
        """Begin to run a program as a further driver, on node 0, beside the one that calls.

        It is a job of its own, which ends with the program. It makes progress
        while the calling program waits or lets time pass.
        """
        return SimDriver(self, program, namespace)

    def make_driver(self, address: str, job: bytes) -> SimWorld:
        process = SimProcess(self, address, 0, self.hosts[0], self.costs["driver"])
        client = Client(process.context(address), address, 0, self.config)
        client.begin_task(root_task_id(f"sim/{self.seed}", job))
        process.add(address, client)
        return SimWorld(self, process, client, None, self.stores[0])

    # -- frames and time -------------------------------------------------------

    def transmit(
        self, node: int, source: str, destination: str, messages: list[Any], nbytes: int
    ) -> None:
        """Send a frame on its way; to an address that is not there it is lost."""
        process = self.processes.get(destination)
        if process is None:
            return
        if type(messages[0]) not in _QUIET:
            self.frames += 1
        self.network.send(
            node, process.node, nbytes, partial(process.arrive, source, destination, messages)
        )

    def run_until(self, ready: Callable[[], object], watch: bool) -> None:
        """Run the simulation until something holds.

        With `watch`, raises RaySystemError when it cannot come to hold: nothing
        is `working` and only heartbeats have passed for `stall_s`.
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
                    f"nothing has happened for {self.stall_s:g} virtual seconds: what is awaited"
                    " cannot come (is there a task whose resources no node has?)"
                )

    def close(self) -> None:
        """End every worker, and with it the program that waits there."""
        if self.closed:
            return
        self.closed = True
        gc.set_threshold(*self._gc_thresholds)
        for driver in self.drivers:
            driver.kill()
        for address in list(self.workers):
            self._end_process(address)
        if self.journal is not None:
            self.journal.close()


def _lookup() -> Backend | None:
    return getattr(getcurrent(), "session", None)


def connect(*, address: str | None = None, **options: Any) -> Session:
    """Start a simulated cluster; there is none to join."""
    if address is not None:
        raise ValueError(
            f"a simulated cluster lives in the program that started it: {address!r} cannot be"
            " joined, and session.cluster.run_driver() runs a second driver"
        )
    return start(**options)


def start(
    *,
    nodes: int | Sequence[Mapping[str, float]] = 1,
    cpus_per_node: float | None = None,
    more_resources: Mapping[str, float] | None = None,
    profile: str | os.PathLike[str] = "paper",
    policy: str = "bottom-up",
    seed: int = 0,
    nodes_per_host: int = 1,
    cores_per_host: int | None = None,
    object_store_memory: int = 64 << 30,
    journal: str | os.PathLike[str] | None = None,
    heartbeat_timeout_s: float = 5.0,
    store_copy_threads: int = 0,
    fetch_streams: int = Config().fetch_streams,
    gcs_replicas: int = 1,
    gcs_shards: int = 1,
    gcs_storage: str | os.PathLike[str] | None = None,
    gcs_memory_max: int = 0,
    task_history: bool = False,
    actor_log_bytes_max: int = Config().actor_log_bytes_max,
) -> Session:
    """Start a simulated cluster and become its driver.

    Any `gcs_storage` makes the GCS durable; no file is written.
    """
    config = store_config(
        Config(
            policy=policy,
            seed=seed,
            heartbeat_timeout_s=heartbeat_timeout_s,
            gcs_replicas=check_replicas(gcs_replicas),
            gcs_shards=check_shards(gcs_shards),
            gcs_durable=check_storage(gcs_storage, gcs_memory_max),
            gcs_memory_max=gcs_memory_max,
            task_history=task_history,
            actor_log_bytes_max=actor_log_bytes_max,
        ),
        store_copy_threads,
        fetch_streams,
    )
    make_policy(config)
    if nodes_per_host < 1:
        raise ValueError(f"{nodes_per_host} nodes per host")
    cores = load_profile(profile).cores
    resources = node_resources(nodes, cpus_per_node, cores, more_resources)
    cluster = SimCluster(
        resources, config, profile, nodes_per_host, cores_per_host, object_store_memory, journal
    )
    session = cluster.start_driver()
    set_current(session, _lookup)
    count = len(resources)
    session.world.block(lambda: sum(i.alive for i in _known_nodes(cluster).values()) == count, None)
    return session


def _known_nodes(cluster: SimCluster) -> dict[int, Any]:
    return cluster.schedulers[0].members.nodes
