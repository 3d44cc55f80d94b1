"""A cluster in virtual time: its processes, their hosts, and its event loop.

Every address belongs to a component of some `SimProcess`; a process runs on a
host; frames travel over the network. All scheduling, recovery and bookkeeping is
the code of `runtime.control`; this package decides nothing.

By default each node has a host of its own; with ``nodes_per_host`` several nodes
share a host's cores, which predicts a run on one machine. The head, the driver and
node 0 run on the first host. Hosts fill `Racks` in their order, if there are any.

An operation such as `kill_node` ends or stops a process at once, in the middle of its turn.
The process that started it reports its end one latency later; links with it break.
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
from raytwin.runtime.control.channels.channel import Channel, Me
from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.core.addresses import (
    HEAD,
    HEALTH,
    chain_of,
    heartbeat_of,
    is_node,
    is_replica,
    node_of,
    shard_address,
)
from raytwin.runtime.control.core.config import Config, quiet_s_max
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.ids import job_id, root_task_id
from raytwin.runtime.control.core.resources import UNIT, parse_demand
from raytwin.runtime.control.core.turns import Received
from raytwin.runtime.control.core.worker_record import Worker
from raytwin.runtime.control.gcs.failure_detector import FailureDetector
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.gcs.sharding.shard import Shard
from raytwin.runtime.control.messages import (
    ChainAck,
    ChainCommands,
    ChainOutput,
    ChainRequest,
    DirectClosed,
    Heartbeat,
    HeartbeatEcho,
    JobInfo,
    NodeInfo,
    ReplicaHeartbeat,
    WorkerDied,
)
from raytwin.runtime.control.node.heartbeats import Heartbeats
from raytwin.runtime.control.node.node_manager import NodeManager
from raytwin.runtime.control.replication.client import ChainClient
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from raytwin.runtime.control.scheduling.near_threshold import ThresholdCounter
from raytwin.runtime.journal import Journal
from raytwin.runtime.session.node_resources import (
    EXITED,
    FIRST_DRIVER,
    NO_ACTOR,
    NO_HEAD_AGAIN,
    check_node,
    member_to_kill,
    no_chain,
    no_worker,
    node_resources,
    with_system_resources,
)
from raytwin.runtime.session.recording import Recording
from raytwin.runtime.session.session import Session
from raytwin.runtime.session.world import cluster_gone
from raytwin.simulator.cluster.simulated_drivers import SimAdmission, SimDriver
from raytwin.simulator.cluster.simulated_replicas import SimReplicas
from raytwin.simulator.cluster.simulated_session import SimSession
from raytwin.simulator.cluster.simulated_store import SimPool, SimStore
from raytwin.simulator.cluster.simulated_workers import SimWorkers, SimZygotes
from raytwin.simulator.machine.clock import Clock
from raytwin.simulator.machine.costs import ROLES, CostModel, load_profile
from raytwin.simulator.machine.frame_faults import FrameFault, FrameFaults
from raytwin.simulator.machine.host import Host, Processor, SharedProcessor
from raytwin.simulator.machine.interpreter import Interpreter
from raytwin.simulator.machine.network import Network, Racks
from raytwin.simulator.machine.observer import Observer
from raytwin.simulator.machine.run_queues import RunQueueHost
from raytwin.simulator.machine.simulated_channels import SimChannels
from raytwin.simulator.machine.simulated_process import Counts, SimProcess
from raytwin.simulator.programs import process_ends
from raytwin.simulator.programs.body_costs import (
    BodyCost,
    DeclaredCosts,
    MeasuredCosts,
    RecordedCosts,
)
from raytwin.simulator.programs.virtual_values import Functions
from raytwin.simulator.programs.virtual_world import STALL_S, BodyCosts, SimWorld


def _start_of(process: str) -> str:
    """Return the owner of the CPU time that a process takes to start."""
    return f"start of {process}"


def _transfers_of(node: int) -> str:
    """Return the owner of what a node's store computes for transfers: see `use_core`."""
    return f"store:{node}"


_QUIET = frozenset(
    {Heartbeat, HeartbeatEcho, ChainRequest, ChainOutput, ChainCommands, ChainAck, ReplicaHeartbeat}
)
"""Messages that are no sign of progress, because they are sent even if nothing happens. The work
of a GCS chain causes other messages too, between nodes, workers and drivers."""

HEAD_NUMBER = -1
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
        memory_bytes: int,
        store_bytes: int,
        journal: str | os.PathLike[str] | None,
        cost: BodyCost = BodyCost.DECLARED,
        recording: Recording | None = None,
        racks: Racks | None = None,
        host_speeds: Sequence[float] = (),
    ) -> None:
        """`recording`: of the program, if bodies cost what was recorded; `host_speeds`: of the
        hosts, in their order, over that of the profile's; hosts without one are as fast as that."""
        self.profile = load_profile(profile)
        self.costs_of_bodies: BodyCosts = DeclaredCosts()
        self._root = root_task_id(f"sim/{config.seed}", job_id(1))
        if cost is BodyCost.MEASURED:
            self.costs_of_bodies = MeasuredCosts(self.profile.body_scale)
        elif recording is not None:
            recorded = RecordedCosts(recording, self.profile.body_scale)
            self.costs_of_bodies = recorded
            self._root = recorded.root
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
        """Resources that every node that was ever started was given, by number."""
        self.incarnations: dict[int, int] = {}
        self.skews_s: dict[int, float] = {}
        """By node whose clock was set: how far it is ahead of virtual time."""
        self._hosts_of: dict[int, int] = {}
        self._leaving: set[int] = set()
        """Nodes that have learned that they were declared dead, and are about to exit."""
        self._removed: set[int] = set()
        self._gone = ""
        """Why the first driver has lost the cluster; empty: it has not."""
        self.after_node_turn: list[Callable[[int], None]] = []
        """Called with a node's number after each of its turns, to check invariants."""
        self.on_membership: list[Callable[[int, bool], None]] = []
        """Called with a node's number and whether it lives, when it joins and when it dies."""
        self.on_end: list[Callable[[int], None]] = []
        """Called with a node's number before its processes end."""
        self.on_kill: list[Callable[[str], None]] = []
        """Called with a worker's address before it is killed by an operation of this cluster."""
        self.on_frame: list[Callable[[str, list[Any]], None]] = []
        """Called with the receiver's address and the messages of each frame that is sent."""
        self.on_output: list[Callable[[str, float, bytes], None]] = []
        self.on_turn: list[Callable[[str, Received, Mapping[str, Sequence[Any]]], None]] = []
        """Called after each turn, as `ProcessPort` says."""
        self.observer: Observer | None = None
        """Sees what reaches channels, and what they report of their peers."""
        self.workers = SimWorkers(self)
        self.drivers: list[SimDriver] = []
        """All drivers but the first."""
        self.admission = SimAdmission(self)
        self.functions = Functions()
        self.journal = Journal.of_simulation(Path(journal)) if journal is not None else None
        self.journaled: set[str] = {"gcs", "global"}
        self.working = 0
        """The number of operations that will end by themselves: programs that compute, sleep or
        wait with a timeout, transfers, long turns."""
        self.stall_s = max(STALL_S, quiet_s_max(config))
        """After so many virtual seconds without progress a driver's wait raises."""
        self.frames = 0
        """Frames sent so far, except those of `_QUIET` messages: a sign of progress."""
        self.counts: defaultdict[str, Counts] = defaultdict(Counts)
        """Turns, messages and frames of components so far, by role."""
        self.tasks = 0
        """Tasks and calls that workers have run so far, repetitions included."""
        self.bodies_s = 0.0
        """CPU seconds and sleeps of their bodies so far, without waits for other tasks."""
        self.threshold = ThresholdCounter(config)
        """Counts what the local schedulers decide near their policy's threshold."""
        self.closed = False
        process_ends.install()
        self._gc_thresholds = gc.get_threshold()
        # A simulation makes many objects and few cycles: with Python's thresholds the
        # collector's passes over thousands of simulated processes took half of the time, and
        # with a pass after each 500,000 new objects still 4 % of 100,000 tasks on 1,000 nodes.
        # The price: a program's own cycles are freed after as many objects.
        gc.set_threshold(5_000_000, 50, 100)
        self._memory_bytes = memory_bytes
        self._store_bytes = store_bytes
        self.costs = {role: CostModel(getattr(self.profile, role), self.profile) for role in ROLES}
        self._cores = cores_per_host or self.profile.cores
        self._host_speeds = host_speeds
        self.hosts: list[SharedProcessor] = []
        for _ in range(-(-len(nodes) // nodes_per_host)):
            self._add_host()
        self.network = Network(
            self.env,
            self.profile.latency_s,
            self.profile.bandwidth,
            self.profile.loopback_latency_s,
            self.profile.loopback_bandwidth,
            self.seed,
            racks,
        )
        self.zygotes = SimZygotes(self)
        self.known: dict[int, NodeInfo] = {}
        """Each node's last row that the callbacks of `on_membership` were called for."""
        self._sessions = 0
        self.frame_faults = FrameFaults(self.seed)
        self._start_head()
        for number, resources in enumerate(nodes):
            self.resources[number] = dict(resources)
            self._hosts_of[number] = number // nodes_per_host
            self._start_node(number)

    # -- processes -------------------------------------------------------------

    def _start_head(self) -> None:
        self.network.add_node(HEAD_NUMBER, 0)
        process = self.head = SimProcess(self, HEAD, HEAD_NUMBER, self.hosts[0], self.costs["head"])
        self.replicas: SimReplicas | None = None
        if self.config.chained:
            self.replicas = SimReplicas(self, process)
        else:
            gcs = Gcs(process.context("gcs"), self.config)
            process.add("gcs", gcs)
            process.add("global", GlobalScheduler(process.context("global"), self.config))
        self._add_head_channels(process)
        process.begin()

    def _add_head_channels(self, process: SimProcess) -> None:
        """Add ``links`` and ``health`` to a head's process."""

        def info_of(node: int) -> NodeInfo | None:
            rows = (
                self.replicas.masters[0].nodes if self.replicas is not None else self.gcs.nodes.rows
            )
            return rows.get(node)

        def on_change(info: NodeInfo) -> None:
            if self.known.get(info.node) != info:
                self.known[info.node] = info
                for callback in list(self.on_membership):
                    callback(info.node, info.alive)

        channels = SimChannels(
            process, self.network, self.frame_faults, self.config, Me(HEAD, 1), info_of,
            self.peer_process, on_node_changed=on_change,
        )  # fmt: skip
        health = FailureDetector(process.context(HEALTH), self.config)
        process.add("links", channels.peers)
        process.add(HEALTH, health)
        health.start()

    def peer_process(self, channel: Channel) -> SimProcess | None:
        """Return the living process that is a channel's peer, if there is one."""
        peer = channel.peer
        if peer == HEAD:
            return self.head if self.head.alive else None
        if is_node(peer) and self.incarnations.get(node_of(peer)) != channel.incarnation:
            return None
        return self.processes.get(peer)

    def new_session(self) -> int:
        """Return a number for one end of a channel, which no other end gets."""
        self._sessions += 1
        return self._sessions

    def _start_node(self, number: int) -> None:
        host = self._hosts_of[number]
        self.incarnations[number] = self.incarnations.get(number, 0) + 1
        self.network.add_node(number, host)
        address = f"node:{number}"
        process = SimProcess(self, address, number, self.hosts[host], self.costs["node"])
        own, incarnation = self.own_resources(number), self.incarnations[number]

        def make(ctx: Context) -> NodeManager:
            return NodeManager(ctx, number, own, self.config, incarnation)

        component, chains, manager = make_node(
            process.context(address), address, incarnation, self.config, make
        )
        manager.spillback.policy.on_threshold = self.threshold
        self.journaled.add(address)
        process.add(address, component)
        store = self.stores[number] = SimStore(self, number, self._store_bytes)
        process.add(f"store:{number}", store)
        process.add(f"pool:{number}", SimPool(self, number, process))
        heartbeat = heartbeat_of(number)
        heartbeats = Heartbeats(process.context(heartbeat), number, incarnation, self.config)
        process.add(heartbeat, heartbeats)

        def on_change(info: NodeInfo) -> None:
            if not info.alive:
                store.drop_peer(info.node)

        def on_new_head() -> None:
            for client in chains:
                process.contexts[address].after(0.0, client.start)

        channels = SimChannels(
            process, self.network, self.frame_faults, self.config, Me(address, incarnation),
            manager.members.nodes.get, self.peer_process,
            lambda reason: self._leave(number, incarnation), on_new_head, on_change,
        )  # fmt: skip
        process.add(f"links:{number}", channels.peers)
        if number == 0:
            process.add("admission:0", self.admission.component)
        process.after_turn = partial(self._after_turn, number, manager)
        self.node_managers[number] = manager
        self.chains[number] = chains
        manager.start(f"host-{host}", 0)
        for client in chains:
            client.start()
        process.begin()

    def own_resources(self, number: int) -> dict[str, float]:
        """Return all resources that a node starts with."""
        given = self.resources[number]
        return with_system_resources(number, given, self._memory_bytes, self._store_bytes)

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
            self._report_end(number, EXITED)
            if number == node_of(FIRST_DRIVER):
                # The driver has ended with it, so the program would wait for ever.
                self._gone = "the driver's node was declared dead"
                raise cluster_gone(self._gone)

    def _report_end(self, number: int, how: str) -> None:
        """The head learns from the process that has started a node that the node has ended."""
        incarnation = self.incarnations[number]

        def report() -> None:
            self.head.channels.peers.on_ended(f"node:{number}", how, incarnation)

        host = self.hosts[self._hosts_of[number]]
        self.after_end(
            host, f"node:{number}", partial(self.env.after, self.profile.latency_s, report)
        )

    def after_start(self, host: Processor, process: str, started: Callable[[], None]) -> None:
        """Call back when a new node, head or replica of a host has started, for which it needs a
        core."""
        owner = _start_of(process)
        cpu_s = self.profile.start_node_s
        if cpu_s is None:
            cpu_s = self.profile.start_worker_s

        def begin() -> None:
            host.cancel(owner)  # it runs under its own name from now on
            started()

        host.run(cpu_s, begin, owner)

    def after_end(self, host: Processor, process: str, reaped: Callable[[], None]) -> None:
        """Call back when the parent of a process that has ended reaps it.

        Before, the kernel gives back the memory of the process, on a core of its host.
        """
        large = process == HEAD or process.startswith("node:")
        cpu_s = self.profile.end_node_s if large else self.profile.end_process_s
        if cpu_s:
            host.run(cpu_s, reaped, f"end of {process}")
        else:
            reaped()

    def _end_node(self, number: int) -> None:
        """End every process of a node at once."""
        for callback in self.on_end:
            callback(number)
        processes = [address for address in self.processes if address not in self.workers]
        for address in processes + list(self.workers):
            if address.partition(":")[2].partition(".")[0] == str(number):
                self._end_process(address)
        self.hosts[self._hosts_of[number]].cancel(_transfers_of(number))
        self.zygotes.end_node(number)
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
        if self.config.chains == 1:
            return [self.gcs]
        assert self.replicas is not None
        found: list[Gcs | Shard] = []
        for shard in range(1, self.config.chains):
            tables = self.replicas.tail_machine(shard).components[shard_address(shard)]
            assert isinstance(tables, Shard)
            found.append(tables)
        return found

    # -- workers ---------------------------------------------------------------

    def use_core(self, node: int, cpu_s: float, done: Callable[[], None]) -> None:
        """Have a node's process use a core of its host for `cpu_s` seconds, then call `done`.

        Beside its turns: they do not wait for it, as those of a real node do for a moment.
        """
        process = self.processes.get(f"node:{node}")
        if process is not None:
            process.busy_s += cpu_s
        self.hosts[self._hosts_of[node]].run(cpu_s, done, _transfers_of(node))

    def start_worker(self, address: str, node: int) -> None:
        """Begin the life of a worker whose process has started, unless its node has ended."""
        if f"node:{node}" in self.processes:
            self.workers.start(address, node)

    def stop_worker(self, address: str) -> None:
        """End a worker that its node does not need; the node receives `WorkerDied`."""
        if address in self.workers:
            self._end_worker(address, EXITED)

    def worker_left(self, process: SimProcess, reason: str) -> None:
        """End a worker's process that has exited: an actor that exits, a program that raised."""
        self._end_process(process.name)
        # The node receives the worker's last frames before `WorkerDied`.
        died = [WorkerDied(process.name, reason)]
        self.transmit(process, f"pool:{process.node}", f"node:{process.node}", died, 60)

    def worker_died(self, process: SimProcess, reason: str) -> None:
        """End a worker's process whose program called `os._exit` or signalled itself."""
        self._end_worker(process.name, reason)

    def _end_process(self, address: str) -> None:
        worker = self.workers.end(address)
        process = self.processes.get(address)
        if worker is not None and worker.executor.direct.connected:
            # The driver receives the worker's last answers before the connection's end.
            self.transmit(worker.process, address, FIRST_DRIVER, [DirectClosed()], 60)
        elif process is not None:
            process.kill()

    def _end_worker(self, address: str, reason: str) -> None:
        node = node_of(address)
        self._end_process(address)
        process = self.processes[f"node:{node}"]
        # The node receives the worker's last frames before `WorkerDied`.
        died = [WorkerDied(address, reason)]
        arrive = partial(process.arrive, f"pool:{node}", f"node:{node}", died)
        reaped = partial(self.network.send, node, node, 0, arrive)
        self.after_end(process.host, address, reaped)

    # -- drivers ---------------------------------------------------------------

    def start_driver(self) -> Session:
        """Make the calling program the driver, on node 0."""
        self.admission.component.register_first(JobInfo(1, FIRST_DRIVER))
        world = self._make_driver(FIRST_DRIVER, self._root)
        world.session = session = SimSession(world, self, self.close)
        return session

    def run_driver(self, program: Callable[[], object], namespace: str = "") -> SimDriver:
        """Start a program as a further driver, on node 0.

        The driver has a job of its own, which ends with the program. It makes progress
        while the calling program waits or lets time pass.
        """
        driver = SimDriver(self, program, namespace)
        self.drivers.append(driver)
        return driver

    def make_driver(self, address: str, job: bytes) -> SimWorld:
        return self._make_driver(address, root_task_id(f"sim/{self.seed}", job))

    def _make_driver(self, address: str, root: bytes) -> SimWorld:
        interpreter = Interpreter(self.env, self.hosts[0])
        process = SimProcess(self, address, 0, interpreter, self.costs["driver"])
        client = Client(process.context(address), address, 0, self.config)
        client.submitter.begin_task(root)
        process.add(address, client)
        return SimWorld(self, process, client, None, self.stores[0])

    # -- operations on nodes -------------------------------------------------------------

    def _add_host(self) -> None:
        kind = RunQueueHost if self.profile.run_queues else Host
        self.hosts.append(kind(self.env, self._cores))
        self._slow_host(len(self.hosts) - 1, 1.0)

    def _slow_host(self, host: int, factor: float) -> None:
        """Have what a host computes from now on take `factor` times as long as at its own speed."""
        speed = self._host_speeds[host] if host < len(self._host_speeds) else 1.0
        self.hosts[host].slowdown = factor / speed

    def add_node(self, resources: Mapping[str, float]) -> int:
        """Start a node on a host of its own and return its number; it joins once it has started."""
        (checked,) = node_resources([resources], None, 0)
        number = len(self.resources)
        self.resources[number] = checked
        self._hosts_of[number] = len(self.hosts)
        self._add_host()
        self._start_later(number)
        return number

    def remove_node(self, node: int) -> None:
        """End a node for good: as `kill_node`, and its number is not used again."""
        self.kill_node(node)
        self._removed.add(node)

    def kill_node(self, node: int) -> None:
        """End a node and its workers at once; the process that has started it tells the head."""
        self._check(node, spare_driver=True)
        if f"node:{node}" not in self.processes:
            self.hosts[self._hosts_of[node]].cancel(_start_of(f"node:{node}"))
            return
        self._end_node(node)
        self._report_end(node, "killed by SIGKILL")

    def restart_node(self, node: int) -> None:
        """Start a node again under its number, empty; kills it first if it lives."""
        self.kill_node(node)
        self._start_later(node)

    def _start_later(self, number: int) -> None:
        """Start a node after the time that its process takes to start."""
        host = self.hosts[self._hosts_of[number]]
        self.after_start(host, f"node:{number}", partial(self._start_node, number))

    def pause_node(self, node: int) -> None:
        """Stop a node and its workers, as SIGSTOP does; no effect on a node that has ended, or has
        not started yet."""
        if f"node:{node}" not in self.processes:
            return
        for process in self._processes_of(node):
            process.pause()
        self.hosts[self._hosts_of[node]].pause(_transfers_of(node))
        self.network.pause_node(node)

    def resume_node(self, node: int) -> None:
        """Continue a paused node and its workers."""
        processes = self._processes_of(node)
        if f"node:{node}" in self.processes:
            self.network.resume_node(node)
        for process in processes:
            process.resume()
        self.hosts[self._hosts_of[node]].resume(_transfers_of(node))

    def slow_cores(self, node: int, factor: float) -> None:
        """Have what a node's host computes from now on take `factor` times as long."""
        self._check(node)
        self._slow_host(self._hosts_of[node], factor)

    def slow_disk(self, node: int, bytes_per_s: float) -> None:
        """Have a node's disk move `bytes_per_s`. Raises ValueError if the node has ended."""
        self._store_of(node).disk_bandwidth = bytes_per_s

    def fill_disk(self, node: int) -> None:
        """Have every further write to a node's disk fail. Raises ValueError if it has ended."""
        self._store_of(node).disk_full = True

    def _store_of(self, node: int) -> SimStore:
        self._check(node)
        if node not in self.stores:
            raise ValueError(f"node {node} has ended")
        return self.stores[node]

    def skew_clock(self, node: int, skew_s: float) -> None:
        """Set the clock of a node ahead of virtual time by `skew_s`, or back.

        The clock of a process only grows (`core.context`): one that runs follows a clock that is
        set ahead, and only processes that begin later follow one that is set back.
        """
        self._check(node)
        self.workers.of_node(node)  # those that live have a clock already
        self.skews_s[node] = skew_s
        for process in set(self.processes.values()):
            if process.node == node:
                process.skew_s = max(process.skew_s, skew_s)

    def press_memory(self, node: int, nbytes: int) -> None:
        """Kill a node's largest worker, as the kernel does, if its workers leave less than `nbytes`
        of the node's `memory`. Raises ValueError if the node has no worker.

        A worker takes the `memory` that its task or actor reserves. Of equal ones that which runs
        something is the larger one, and then the older one.
        """
        self._check(node)
        manager = self.node_managers.get(node)  # None: the node starts for the first time
        there = manager.dispatcher.workers.values() if manager is not None else ()
        workers = [worker for worker in there if worker.address in self.workers]
        if not workers:
            raise ValueError(no_worker(node))

        def memory(worker: Worker) -> int:
            return dict(parse_demand(worker.demand)).get("memory", 0)

        if sum(map(memory, workers)) / UNIT + nbytes > self.own_resources(node)["memory"]:
            largest = max(
                workers, key=lambda each: (memory(each), bool(each.assigned or each.actor))
            )
            self._kill(largest.address)

    def heal_node(self, node: int) -> None:
        """Give a node's host and disk their own speed again, and set its clock right.

        Of pressure on memory nothing lasts.
        """
        self.slow_cores(node, 1.0)
        self.skew_clock(node, 0.0)
        if node in self.stores:
            self.slow_disk(node, self.profile.disk_bandwidth)
            self.stores[node].disk_full = False

    # -- operations on links -------------------------------------------------------------

    def set_latency(
        self, source: str, destination: str, latency_s: float, jitter_s: float = 0.0
    ) -> None:
        """Set the latency of a link; 0: the profile's."""
        self.network.set_latency(*self._ends(source, destination), latency_s or None, jitter_s)

    def set_bandwidth(self, source: str, destination: str, bytes_per_s: float) -> None:
        """Limit the bandwidth of a link."""
        self.network.set_bandwidth(*self._ends(source, destination), bytes_per_s)

    def lose_packets(self, source: str, destination: str, share: float) -> None:
        """Lose a share of the packets of a link: what they carry arrives late."""
        self.network.set_loss(*self._ends(source, destination), share)

    def cut(self, source: str, destination: str) -> None:
        """Let nothing pass from one process to another."""
        self.network.block(*self._ends(source, destination))

    def is_cut(self, source: str, destination: str) -> bool:
        """Whether nothing passes from one process to another."""
        return self.network.is_blocked(*self._ends(source, destination))

    def stall_link(self, source: str, destination: str) -> None:
        """Hold back what one process sends to another until `heal`: in virtual time a cut does the
        same, since what it loses is sent again."""
        self.cut(source, destination)

    def heal(self, source: str, destination: str) -> None:
        """Undo all faults of a link."""
        self.network.heal(*self._ends(source, destination))

    def reset_links(self, source: str, destination: str, rst: bool = True) -> None:
        """Break the connections between two processes; new ones may open."""
        process = self._endpoint(source)
        peer = self._endpoint(destination)
        if process is not None and peer is not None:
            process.channels.break_links(peer.name)
            for one, other in ((process.node, peer.node), (peer.node, process.node)):
                if one in self.stores:
                    self.stores[one].break_connection(other)

    def lose_frames(self, kind: str, probability: float) -> None:
        """Lose frames between nodes that carry a message of a class; 0 ends that."""
        self.frame_faults.set(FrameFault.LOSE, kind, probability)

    def double_frames(self, kind: str, probability: float) -> None:
        """Deliver such frames twice."""
        self.frame_faults.set(FrameFault.DOUBLE, kind, probability)

    def delay_frames(self, kind: str, probability: float, delay_s: float) -> None:
        """Deliver such frames later, maybe after those that were sent later."""
        self.frame_faults.set(FrameFault.DELAY, kind, probability, delay_s)

    def _ends(self, source: str, destination: str) -> tuple[int, int]:
        """Return the numbers of two endpoints in the network."""
        return self._end(source), self._end(destination)

    def _endpoint(self, endpoint: str) -> SimProcess | None:
        """Return the living process at ``node:1``, ``head`` or ``replica:0.1``."""
        number = self._end(endpoint)
        if number == HEAD_NUMBER:
            return self.head if self.head.alive else None
        found = (p for p in self.processes.values() if p.node == number and p.channels is not None)
        return next(found, None)

    # -- operations on workers ----------------------------------------------------------

    def kill_worker(self, node: int, which: int = 0) -> None:
        """End a worker; `which` counts from the node's oldest, modulo their number."""
        self._kill(self._worker(node, which))

    def kill_actor(self, which: int = 0) -> None:
        """End an actor's process; `which` counts by node and age, modulo their number."""
        actors = self._actors()
        self._kill(actors[which % len(actors)])

    def pause_actor(self, which: int = 0) -> None:
        """Stop an actor's process; `which` as in `kill_actor`."""
        actors = self._actors()
        self.workers[actors[which % len(actors)]].process.pause()

    def resume_actors(self) -> None:
        """Continue all paused actors' processes, but for those of paused nodes."""
        for address in self._actors():
            if not self.processes[f"node:{node_of(address)}"].paused:
                self.workers[address].process.resume()

    def _actors(self) -> list[str]:
        """Return the addresses of actors' workers, by node and age."""
        actors = [
            worker.address
            for node in sorted(self.node_managers)
            for worker in self.node_managers[node].dispatcher.workers.values()
            if worker.actor and worker.address in self.workers
        ]
        if not actors:
            raise ValueError(NO_ACTOR)
        return actors

    def _kill(self, worker: str) -> None:
        for callback in self.on_kill:
            callback(worker)
        self._end_worker(worker, "killed by SIGKILL")

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
        """End the head's process at once; a new one starts."""
        if not self.config.gcs_durable:
            raise ValueError(NO_HEAD_AGAIN)
        if not self.head.alive:
            raise ValueError("the head has ended already")
        self.head.kill()
        start = partial(self.after_start, self.hosts[0], HEAD, self._restart_head)
        self.after_end(self.hosts[0], HEAD, start)

    def pause_head(self) -> None:
        """Stop the head's process, as SIGSTOP does."""
        self.head.pause()

    def resume_head(self) -> None:
        """Continue the head's process."""
        self.head.resume()

    def _restart_head(self) -> None:
        assert self.replicas is not None
        self.head = SimProcess(self, HEAD, HEAD_NUMBER, self.hosts[0], self.costs["head"])
        self.replicas.begin(self.head)
        self._add_head_channels(self.head)
        self.head.begin()

    def kill_replica(self, name: str) -> None:
        """End the process of a replica of the GCS at once."""
        assert self.replicas is not None, "the GCS of this cluster has no replicas"
        self.replicas.kill(name)

    def kill_member(self, chain: int, which: int = 0) -> None:
        """End a member of a chain; `which` counts from the chain's head, modulo the size."""
        members = self._members(chain)
        self.kill_replica(member_to_kill(chain, members, which))

    def pause_member(self, chain: int, which: int = 0) -> None:
        """Stop a member of a chain, as SIGSTOP does; `which` as in `kill_member`."""
        members = self._members(chain)
        if self.config.gcs_durable:
            raise ValueError("the one replica of a durable GCS is in the head: pause the head")
        self.processes[members[which % len(members)]].pause()

    def resume_members(self, chain: int) -> None:
        """Continue all paused replicas of a chain, its members or not any more."""
        self._members(chain)
        if self.config.gcs_durable:
            raise ValueError("the one replica of a durable GCS is in the head: resume the head")
        for name, process in list(self.processes.items()):
            if is_replica(name) and chain_of(name) == chain:
                process.resume()

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
        own = self.processes.get(f"node:{node}")
        workers = [worker.process for worker in self.workers.of_node(node)]
        return workers if own is None else [own, *workers]

    def _end(self, endpoint: str) -> int:
        """Return the number in the network of ``node:1``, ``head`` or ``replica:0.1``."""
        kind, _, numbers = endpoint.partition(":")
        if kind == HEAD:
            return HEAD_NUMBER
        if kind == "replica":
            chain, which = map(int, numbers.split("."))
            members = self._members(chain)
            return self.processes[members[which % len(members)]].node
        self._check(int(numbers))
        return int(numbers)

    def _members(self, chain: int) -> list[str]:
        """Return the living members of a chain, from its head."""
        if self.replicas is None or chain >= self.config.chains:
            raise ValueError(no_chain(chain))
        members = [info.name for info in self.replicas.masters[chain].members]
        living = [name for name in members if name in self.processes]
        if not living:
            raise ValueError(f"chain {chain} has no member now")
        return living

    def _check(self, node: int, spare_driver: bool = False) -> None:
        check_node(node, self.resources, self._removed, spare_driver)

    # -- frames and time -------------------------------------------------------

    def transmit(
        self, sender: SimProcess, source: str, destination: str, messages: list[Any], nbytes: int
    ) -> None:
        """Send a frame from a process; a frame to an unknown address is lost."""
        for callback in self.on_frame:
            callback(destination, messages)
        process = self.processes.get(destination)
        if process is None:
            if destination not in self.workers:
                return
            process = self.workers[destination].process  # this is the first frame for it
        if type(messages[0]) not in _QUIET:
            self.frames += 1
        node = sender.node
        if process.node == node:
            self.network.send(
                node, node, nbytes, partial(process.arrive, source, destination, messages)
            )
        elif HEALTH in (source, destination):
            arrive = partial(process.arrive, source, destination, messages)
            if not self.frame_faults.rules:
                self.network.send_datagram(node, process.node, nbytes, arrive)
                return
            send = partial(self.network.send_datagram, node, process.node, nbytes, arrive)
            for delay_s in self.frame_faults.delays_s(messages):
                self.env.after(delay_s, send)
        else:
            sender.channels.send(process.name, (source, destination, messages), nbytes)

    def run_until(self, ready: Callable[[], object], watch: bool) -> None:
        """Run the simulation until `ready()` holds.

        With `watch`, raises RaySystemError once nothing was `working` and only heartbeats
        have passed for `stall_s`: then `ready()` can never hold.
        """
        if self._gone:
            raise cluster_gone(self._gone)
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
        try:
            self._end_all()
        finally:
            gc.set_threshold(*self._gc_thresholds)

    def _end_all(self) -> None:
        if get_ident() == self.thread:  # else that thread has ended with its greenlets
            for driver in self.drivers:
                driver.kill()
            for address in list(self.workers):
                self._end_process(address)
        if self.journal is not None:
            self.journal.close()
