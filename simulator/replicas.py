"""The GCS as a chain in virtual time: the master in the head, a process per replica.

The replicas live on hosts in turn, from the first one on, each under a number
of its own in the network. When one is killed the kernel of its host closes its
connections: whoever has one hears of it one latency later.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from runtime.control.chain import MASTER, Replica, State
from runtime.control.chain_client import Chained
from runtime.control.chain_master import LAUNCHER, Master
from runtime.control.gcs_machine import make_machine
from runtime.control.messages import ReplicaInfo, ReplicaLost, StartReplica
from simulator.process import SimProcess

if TYPE_CHECKING:
    from simulator.cluster import SimCluster


class SimReplicas:
    """``launcher`` and all that it has launched."""

    def __init__(self, cluster: SimCluster, head: SimProcess) -> None:
        self.cluster = cluster
        config = cluster.config
        chained = Chained(head.context(MASTER), MASTER, lambda ctx: Master(ctx, config))
        assert isinstance(chained.inner, Master)
        self.master = chained.inner
        head.add(MASTER, chained)
        head.add(LAUNCHER, self)
        chained.start()
        self.master.start()

    def handle(self, source: str, message: Any) -> None:
        if not isinstance(message, StartReplica):
            raise TypeError(f"the launcher was sent {type(message).__name__}")
        name = message.name
        started = self.cluster.env.timeout(self.cluster.profile.start_worker_s)
        started.callbacks.append(lambda _: self._start(name))

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    def _start(self, name: str) -> None:
        cluster = self.cluster
        number = int(name.partition(".")[2])
        host = (number - 1) % len(cluster.hosts)
        # Below the head's number, where no node's is.
        node = cluster.head.node - number
        cluster.network.add_node(node, host)
        process = SimProcess(cluster, name, node, cluster.hosts[host], cluster.costs["head"])
        replica = Replica(
            process.context(name),
            ReplicaInfo(name, f"host-{host}", 0),
            cluster.config,
            lambda: make_machine(cluster.config),
        )
        process.add(name, replica)
        process.after_turn = lambda: self._leave_if_fenced(name, replica)
        replica.start()
        process.begin()

    def _leave_if_fenced(self, name: str, replica: Replica) -> None:
        if replica.state is State.FENCED and name in self.cluster.processes:
            self.kill(name)

    def kill(self, name: str) -> None:
        """End a replica's process at once; raises KeyError if there is none."""
        cluster = self.cluster
        process = cluster.processes[name]
        process.kill()
        cluster.network.remove_node(process.node)
        for address, other in list(cluster.processes.items()):
            if address == MASTER or address.startswith(("replica:", "node:")):
                near = other.host is process.host
                profile = cluster.profile
                latency_s = profile.loopback_latency_s if near else profile.latency_s
                tell = partial(other.arrive, address, address, [ReplicaLost(name, "it was killed")])
                cluster.env.timeout(latency_s).callbacks.append(lambda _, tell=tell: tell())
