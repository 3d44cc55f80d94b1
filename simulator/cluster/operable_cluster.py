"""Faults and other operations on a running simulated cluster: `chaos/faults/targets.py`.

A process ends or stops at once, in the middle of its turn. Other processes learn of that one
latency later, by what the kernel of a real host would report: a broken connection, or the
end of a child.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raytwin.runtime.control.core.addresses import master_of, node_of
from raytwin.runtime.control.messages import NodeUnreachable
from raytwin.runtime.session.node_resources import (
    NO_ACTOR,
    NO_HEAD_AGAIN,
    check_node,
    no_worker,
    node_resources,
)
from raytwin.simulator.cluster.simulated_cluster import HEAD, SimCluster
from raytwin.simulator.machine.host import Host
from raytwin.simulator.machine.simulated_process import SimProcess


class OperableCluster(SimCluster):
    """A cluster that can be changed and broken while it runs."""

    # -- nodes -----------------------------------------------------------------

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
        """Stop a node and its workers, as SIGSTOP does; does nothing to a node that has ended."""
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

    # -- workers ---------------------------------------------------------------

    def kill_worker(self, node: int, which: int = 0) -> None:
        """End a worker; `which` counts from the node's oldest, modulo their number."""
        self._end_worker(self._worker(node, which), "killed by SIGKILL")

    def kill_actor(self, which: int = 0) -> None:
        """End an actor's process; `which` counts by node and age, modulo their number."""
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
        """Stop a worker; `which` as in `kill_worker`."""
        self.workers[self._worker(node, which)].process.pause()

    def resume_workers(self, node: int) -> None:
        """Continue all paused workers of a node, unless the node is paused itself."""
        processes = self._processes_of(node)
        if processes and not processes[0].paused:
            for process in processes:
                process.resume()

    # -- the head and the replicas of the GCS ----------------------------------

    def kill_head(self) -> None:
        """End the head's process at once; a new one starts after `start_worker_s`."""
        if not self.config.gcs_durable:
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
        """End a member of a chain of the GCS; `which` counts from the chain's head, modulo."""
        if self.replicas is None or chain >= self.config.chains:
            raise ValueError(f"the GCS has no chain {chain} of replicas that could die alone")
        members = [info.name for info in self.replicas.masters[chain].members]
        members = [name for name in members if name in self.processes]
        if len(members) < 2:
            raise ValueError(f"chain {chain} has one member, who alone has the state")
        self.kill_replica(members[which % len(members)])

    # -- by number -------------------------------------------------------------

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
