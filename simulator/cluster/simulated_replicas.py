"""The GCS as a chain in virtual time: the master in the head, a process per replica.

Each replica has a number of its own in the network. When a replica is killed the head learns of it
one latency later, from the process that has started the replica; its peers learn it from the
master.

The state travels to a joining replica over the network like any message. Besides, encoding it
and restoring it each cost the CPU time of one copy (`ReplicaCosts`): a lower bound, and the
only figure that profiles have for it.

The one replica of a durable GCS is in the head's process. Its storage is in memory, and a turn that
writes takes the time of a transaction. When the head is killed, another one starts after the time
that a process takes to start, and reads its file: that costs a copy of the snapshot, and what the
messages in the commands since then had cost when they came. Nodes reconnect a latency later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from raytwin.runtime.control.assembly import Masters, make_durable_replica, make_machine
from raytwin.runtime.control.channels.channel import Me
from raytwin.runtime.control.core.addresses import (
    STORAGE,
    chain_of,
)
from raytwin.runtime.control.messages import (
    Command,
    Frame,
    ReplicaInfo,
    Snapshot,
    StartReplica,
    StopReplica,
)
from raytwin.runtime.control.replication.master import LAUNCHER
from raytwin.runtime.control.replication.replica import Replica
from raytwin.runtime.control.replication.replica_hosts import host_of_replica
from raytwin.runtime.control.replication.state_machine import Machine
from raytwin.runtime.control.replication.storage import Storage
from raytwin.simulator.cluster.cluster_port import ClusterPort
from raytwin.simulator.machine.costs import CostModel, Profile
from raytwin.simulator.machine.simulated_channels import SimChannels
from raytwin.simulator.machine.simulated_process import SimProcess


class ReplicaCosts(CostModel):
    """The costs of a replica's turns: those of the head, and copies of snapshots."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile.head, profile)

    def received(self, messages: list[Any]) -> float:
        """Add the time to restore snapshots."""
        return super().received(messages) + self._copying_s(messages)

    def sent(self, messages: list[Any]) -> tuple[float, int]:
        """Add the time to encode snapshots."""
        total_s, nbytes = super().sent(messages)
        return total_s + self._copying_s(messages), nbytes

    def _copying_s(self, messages: list[Any]) -> float:
        return sum(len(m.data) for m in messages if type(m) is Snapshot) / self.memory_bandwidth


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
        assembled = Masters(config, head.context, head.add)
        self.masters = assembled.of_chains
        """By number of the chain; see `gcs.sharding`."""
        head.add(LAUNCHER, self)
        assembled.start()

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

        if self.cluster.config.gcs_durable:
            # In the head's process, after its turn.
            recover_s = head.costs.recovered(self._file.snapshot(), self._file.commands())
            if recover_s:
                head.busy_s += recover_s
                head.host.run(recover_s, start, head)
            else:
                self.cluster.env.after(0.0, start)
        else:
            # The head's host forks it, wherever it then runs.
            self.cluster.after_start(self.cluster.hosts[0], name, start)

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
            partial(self._make_machine, chain_of(name)),
        )
        process.add(name, replica)
        self._add_channels(process)
        process.after_turn = lambda: self._leave_if_fenced(name, replica)
        replica.start()
        process.begin()

    def _add_channels(self, process: SimProcess) -> None:
        cluster, name = self.cluster, process.name

        SimChannels(
            process, cluster.network, cluster.frame_faults, cluster.config, Me(name, 1),
            lambda node: None, cluster.peer_process, lambda reason: self.kill(name),
        )  # fmt: skip

    def _host_for(self, name: str, number: int) -> int:
        """Return the host of a new replica."""
        chain, processes = chain_of(name), self.cluster.processes
        living = [
            host
            for other, host in self._hosts.items()
            if chain_of(other) == chain and other in processes
        ]
        return host_of_replica(number, chain, len(self.cluster.hosts), living)

    def _start_in_head(self, name: str) -> None:
        """Start the one replica of a durable GCS, and its storage, in the head."""
        cluster, head = self.cluster, self.cluster.head
        self._file.on_commit = partial(head.charge, cluster.profile.commit_s)
        storage = Storage(head.context(STORAGE), self._file)
        head.add(STORAGE, storage)
        machine = storage.recover(self._make_machine())
        replica = make_durable_replica(head.context(name), name, cluster.config, machine)
        head.add(name, replica)
        replica.start()
        head.begin()

    def _make_machine(self, chain: int = 0) -> Machine:
        """Return a replica's machine in its first state, which shows what it sends, and what its
        components send one another."""
        machine = make_machine(self.cluster.config, chain)
        machine.on_output = self._show
        machine.on_inside = self._show_inside
        return machine

    def _show(self, client: str, born: float, body: bytes) -> None:
        for callback in self.cluster.on_output:
            callback(client, born, body)

    def _show_inside(self, frame: Frame) -> None:
        for observe in self.cluster.on_turn:
            observe(frame.source, [], {frame.destination: frame.messages})

    def _leave_if_fenced(self, name: str, replica: Replica) -> None:
        if replica.fenced and name in self.cluster.processes:
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
                head.channels.peers.on_ended(name, "it was killed")

        same_host = head.host is process.host
        profile = cluster.profile
        latency_s = profile.loopback_latency_s if same_host else profile.latency_s
        cluster.after_end(process.host, name, partial(cluster.env.after, latency_s, ended))


class SimFile:
    """The `LogFile` of a durable GCS in memory; it outlives the head."""

    def __init__(self) -> None:
        self._cold: list[list[tuple[bytes, bytes]]] = []
        """Batches of flushed rows; a key's newest row counts."""
        self._state: bytes | None = None
        self._commands: list[Command] = []
        self.add_rows = self._cold.append
        self.on_commit: Callable[[], None] = lambda: None
        """Called when a turn has written."""

    def begin(self) -> None:
        """Do nothing: what is written counts at once."""

    def append(self, commands: list[Command]) -> None:
        self._commands += commands

    def replace(self, index: int, state: bytes) -> None:
        self._state = state
        self._commands = [command for command in self._commands if command.index > index]

    def commit(self) -> None:
        self.on_commit()

    def snapshot(self) -> bytes | None:
        return self._state

    def commands(self) -> list[Command]:
        return self._commands

    def find_row(self, key: bytes) -> bytes | None:
        return next((row for rows in reversed(self._cold) for k, row in rows if k == key), None)
