"""The GCS as a chain in virtual time: the master in the head, a process per replica.

A new replica's host is the one with the fewest replicas of its chain, so that one host's death
ends at most one of them while there are as many hosts. Each replica has a number of its own in
the network. When a replica is killed the head learns of it one latency later, from the process
that has started the replica; its peers learn it from the master.

The state travels to a joining replica over the network like any message. Besides, encoding it
and restoring it each cost the CPU time of one copy (`ReplicaCosts`): a lower bound, and the
only figure that profiles have for it.

The one replica of a durable GCS is in the head's process. Its storage is in memory, and writing
takes no time. When the head is killed, another one starts after the time that a process takes
to start; nodes reconnect a latency later.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from raytwin.runtime.control.assembly import make_machine
from raytwin.runtime.control.channels.channel import Channel, Me
from raytwin.runtime.control.core.addresses import (
    HEAD,
    RELAY,
    STORAGE,
    chain_of,
    is_replica,
    master_of,
    node_of,
)
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.gcs.sharding.relay import Relay
from raytwin.runtime.control.messages import (
    Command,
    LoadRow,
    LogCommands,
    Logged,
    LogSnapshot,
    NodeUnreachable,
    ReplicaInfo,
    ReplicaLost,
    RowLoaded,
    Snapshot,
    StartReplica,
    StopReplica,
    StoreRows,
)
from raytwin.runtime.control.replication.client import ChainClient
from raytwin.runtime.control.replication.master import LAUNCHER, Master
from raytwin.runtime.control.replication.replica import Replica, State
from raytwin.runtime.control.replication.state_machine import Machine
from raytwin.simulator.cluster.cluster_port import ClusterPort
from raytwin.simulator.machine.costs import CostModel, Profile
from raytwin.simulator.machine.simulated_channels import SimChannels
from raytwin.simulator.machine.simulated_process import SimProcess


class ReplicaCosts(CostModel):
    """The costs of a replica's turns: those of the head, and copies of snapshots."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile.head)
        self._bandwidth = profile.memory_bandwidth

    def received(self, messages: list[Any]) -> float:
        """Add the time to restore snapshots."""
        return super().received(messages) + self._copying_s(messages)

    def sent(self, messages: list[Any]) -> tuple[float, int]:
        """Add the time to encode snapshots."""
        total_s, nbytes = super().sent(messages)
        return total_s + self._copying_s(messages), nbytes

    def _copying_s(self, messages: list[Any]) -> float:
        return sum(len(m.data) for m in messages if type(m) is Snapshot) / self._bandwidth


class SimReplicas:
    """``launcher`` of each head in turn, and the replicas that it has launched."""

    def __init__(self, cluster: ClusterPort, head: SimProcess) -> None:
        self.cluster = cluster
        self._hosts: dict[str, int] = {}
        """By replica, ended ones included: its host."""
        self._file = SimFile()
        """The file of a durable GCS."""
        self.begin(head)

    def begin(self, head: SimProcess) -> None:
        """Make the components of a head."""
        config = self.cluster.config
        self.masters: list[Master] = []
        """By number of the chain; see `gcs.sharding`."""
        clients = [self._add_master(head, chain) for chain in range(config.chains)]
        head.add(LAUNCHER, self)
        for client, master in zip(clients, self.masters, strict=True):
            client.start()
            master.start()
        if len(clients) > 1:
            relay = Relay(head.context(RELAY), len(clients))
            head.add(RELAY, relay)
            relay.start()

    def _add_master(self, head: SimProcess, chain: int) -> ChainClient:
        address, config = master_of(chain), self.cluster.config
        client = ChainClient(
            head.context(address), address, lambda ctx: Master(ctx, config, chain), chain
        )
        assert isinstance(client.inner, Master)
        self.masters.append(client.inner)
        head.add(address, client)
        return client

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, StopReplica):
            if message.name in self.cluster.processes:
                self.kill(message.name)
            return
        if not isinstance(message, StartReplica):
            raise TypeError(f"the launcher was sent {type(message).__name__}")
        name, head = message.name, self.cluster.head

        def start() -> None:
            # A head that has died meanwhile starts no replica: its successor would not know it.
            if head.alive:
                self._start(name)

        self.cluster.env.after(self.cluster.profile.start_worker_s, start)

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""

    def tail_machine(self, chain: int = 0) -> Machine:
        """Return the tail's state machine; raises LookupError if the chain has no member."""
        for name in reversed([info.name for info in self.masters[chain].members]):
            head = self.cluster.head if self.cluster.config.gcs_durable else None
            process = head or self.cluster.processes.get(name)
            if process is not None:
                replica = process.components[name]
                assert isinstance(replica, Replica)
                return replica.machine
        raise LookupError("no replica of the GCS serves")

    def _start(self, name: str) -> None:
        cluster = self.cluster
        if cluster.config.gcs_durable:
            self._start_in_head(name)
            return
        number = int(name.partition(".")[2])
        host = self._hosts.setdefault(name, self._host_for(name, number))
        # Numbers below the head's belong to no node.
        node = cluster.head.node - number
        cluster.network.add_node(node, host)
        process = SimProcess(
            cluster, name, node, cluster.hosts[host], ReplicaCosts(cluster.profile)
        )
        replica = Replica(
            process.context(name),
            ReplicaInfo(name, f"host-{host}", 0),
            cluster.config,
            lambda: make_machine(cluster.config, chain_of(name)),
        )
        process.add(name, replica)
        self._add_channels(process)
        process.after_turn = lambda: self._leave_if_fenced(name, replica)
        replica.start()
        process.begin()

    def _add_channels(self, process: SimProcess) -> None:
        cluster, name = self.cluster, process.name

        def on_unreachable(channel: Channel, reason: str) -> None:
            if channel.peer == HEAD:
                self.kill(name)
                return
            process.channels.peers.close(channel.peer, reason)
            if is_replica(channel.peer):
                process.arrive(name, name, [ReplicaLost(channel.peer, reason)])
            else:
                lost = NodeUnreachable(node_of(channel.peer), reason, channel.incarnation)
                process.arrive(name, name, [lost])

        SimChannels(
            process, cluster.network, cluster.frame_faults, cluster.config, Me(name, 1),
            lambda node: None, cluster.peer_process, on_unreachable,
        )  # fmt: skip

    def _host_for(self, name: str, number: int) -> int:
        """Return the host with the fewest living replicas of a chain; among equals, in turn."""
        chain, hosts = chain_of(name), len(self.cluster.hosts)
        living = Counter(
            host
            for other, host in self._hosts.items()
            if chain_of(other) == chain and other in self.cluster.processes
        )
        in_turn = ((number - 1 + chain + step) % hosts for step in range(hosts))
        return min(in_turn, key=lambda host: living[host])

    def _start_in_head(self, name: str) -> None:
        """Start the one replica of a durable GCS, and its storage, in the head."""
        cluster, head = self.cluster, self.cluster.head
        head.add(STORAGE, SimStorage(head.context(STORAGE), self._file))
        info = ReplicaInfo(name, "host-0", 0)
        machine = self._file.recover(make_machine(cluster.config))
        replica = Replica(head.context(name), info, cluster.config, lambda: machine, STORAGE)
        head.add(name, replica)
        replica.start()
        head.begin()

    def _leave_if_fenced(self, name: str, replica: Replica) -> None:
        if replica.state is State.FENCED and name in self.cluster.processes:
            self.kill(name)

    def kill(self, name: str) -> None:
        """End a replica's process at once; raises KeyError if there is none.

        The process that has started it reports its end to the head.
        """
        cluster = self.cluster
        process = cluster.processes[name]
        process.kill()
        cluster.network.remove_node(process.node)
        head = cluster.head

        def ended() -> None:
            if head.alive:
                head.channels.peers.close(name, "it was killed")
                lost = ReplicaLost(name, "it was killed")
                head.arrive(LAUNCHER, master_of(chain_of(name)), [lost])

        same_host = head.host is process.host
        profile = cluster.profile
        cluster.env.after(profile.loopback_latency_s if same_host else profile.latency_s, ended)


class SimFile:
    """The file that a `SimStorage` writes; it outlives the head."""

    def __init__(self) -> None:
        self.cold: list[list[tuple[bytes, bytes]]] = []
        """Batches of flushed rows; a key's newest row counts."""
        self.state: bytes | None = None
        self.commands: list[Command] = []

    def recover(self, machine: Machine) -> Machine:
        """Restore a new machine from snapshot and commands; return it."""
        if self.state is not None:
            machine.restore(self.state)
        for command in self.commands:
            machine.apply(command)
        return machine

    def find(self, key: bytes) -> bytes | None:
        """Return the newest row of a key, if there is one."""
        return next((row for rows in reversed(self.cold) for k, row in rows if k == key), None)


class SimStorage:
    """``storage:gcs`` in virtual time: writing takes no time."""

    def __init__(self, ctx: Context, file: SimFile) -> None:
        self._ctx = ctx
        self.file = file
        self._logged: tuple[str, int] | None = None

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, LogCommands):
            self.file.commands += message.commands
            self._logged = source, message.commands[-1].index
        elif isinstance(message, StoreRows):
            self.file.cold.append(message.rows)
        elif isinstance(message, LoadRow):
            self._ctx.send(source, RowLoaded(message.request, self.file.find(message.key)))
        elif isinstance(message, LogSnapshot):
            file = self.file
            file.state = message.data
            file.commands = [c for c in file.commands if c.index > message.index]
        else:
            raise TypeError(f"{STORAGE} was sent {type(message).__name__}")

    def end_turn(self) -> None:
        if self._logged is not None:
            (to, index), self._logged = self._logged, None
            self._ctx.send(to, Logged(index))
