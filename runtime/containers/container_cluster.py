"""A cluster whose nodes are containers, for the driver that starts it, and its faults.

Node 0 and the head are processes of this machine, in a `LocalCluster` of one node.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from raytwin.runtime.api import modules
from raytwin.runtime.containers import engine, left_clusters
from raytwin.runtime.containers.container_node import ContainerSettings
from raytwin.runtime.containers.engine import ended_ignored, reported
from raytwin.runtime.containers.host_image import (
    SCRATCH,
    host_image,
    mounts,
    program_folders,
    system_folders,
)
from raytwin.runtime.containers.node_container import Limits, NodeContainer, Recipe
from raytwin.runtime.containers.packet_filters import ANY_PORT, End, LinkFault, Verdict, commands
from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.processes.client import preload
from raytwin.runtime.processes.spawn.driver_watcher import Watcher
from raytwin.runtime.processes.spawn.local_cluster import (
    LocalCluster,
    ProxiedLinks,
    actors_of,
    new_links,
)
from raytwin.runtime.processes.spawn.worker_pids import send_signal
from raytwin.runtime.session.node_resources import check_node, no_worker, node_resources

NODES_MAX = 200
"""The most nodes of a cluster: its subnet has 254 addresses, and none is used for two nodes."""
NODE_PORT = 7000
"""The port of each node in a container, all of whose ports are its own."""
MEMORY_SHARE = 0.7
"""The ``memory`` of a container with a limit, as a share of it; the default store has the rest."""
WORKER_WAIT_S = 1.0
"""How long a fault plan's action on a worker waits for the node to have one."""
LEAVE_S = 1.0
"""How long after a command in it has failed a container may still turn out to have ended."""
RESET_S = 0.5
"""How long packets of a link that is reset are answered with RST; heartbeats are more frequent."""
HEAD = "head"


class Filters(NamedTuple):
    """The fault of one direction of a link, and the node whose container has its filters."""

    node: int
    fault: LinkFault


class ContainerCluster:
    """The containers of one cluster, and its processes on this machine."""

    backend = "docker"

    def __init__(
        self,
        nodes: Sequence[Mapping[str, float]],
        start_here: Callable[[str, ProxiedLinks | None], LocalCluster],
        store_bytes: int,
        image: str | None = None,
        limits: Limits | None = None,
        shared: Iterable[str] = (),
    ) -> None:
        """`start_here` starts the head and node 0, given the address to listen at and the proxies
        on the cluster's links. `shared`: the directories of this machine that containers may write
        to."""
        self.name = f"raytwin-{os.urandom(6).hex()}"
        self.resources: dict[int, dict[str, float]] = {0: dict(nodes[0])}
        """Resources that every node that was ever started was given, by number."""
        self.containers: dict[int, NodeContainer] = {}
        """The last container of each node that was started, by number."""
        self._limits = limits or Limits()
        self._store_bytes = store_bytes
        self._incarnations: dict[int, int] = {}
        self._removed: set[int] = set()
        self._links: dict[tuple[str, str], Filters] = {}
        self._local: LocalCluster | None = None
        self._client = engine.connect()
        self._watcher = Watcher(left_clusters.__name__, self.name)
        try:
            self._subnet = engine.create_network(self._client, self.name)
            self._local = _started(start_here, str(self._subnet[1]), len(nodes))
            self.config = self._local.config
            self._recipe = self._make_recipe(image, shared)
            self._start(nodes)
        except BaseException:
            self.end()
            raise

    def _make_recipe(self, image: str | None, shared: Iterable[str]) -> Recipe:
        """Return the recipe for containers of an image, or of this machine's files."""
        program = program_folders([path or os.getcwd() for path in sys.path])
        environment = {"PYTHONDONTWRITEBYTECODE": "1"}
        if modules.AS_RAY in os.environ:
            environment[modules.AS_RAY] = os.environ[modules.AS_RAY]
        if image is None:
            root = str(Path(__file__).absolute().parents[3])
            # Users other than root may lack the folder of iptables in their path.
            path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
            environment |= {"PYTHONPATH": root, "PATH": path}
            read_only, python = [*system_folders(), root, *program], sys.executable
            image = host_image(self._client)
        else:
            read_only, python = program, "python"
        mounted = mounts(read_only, shared)
        return Recipe(
            self._client, self.name, image, mounted, environment, python, program, self._limits
        )

    @reported
    def _start(self, nodes: Sequence[Mapping[str, float]]) -> None:
        self.resources |= {number: dict(given) for number, given in enumerate(nodes)}
        with ThreadPoolExecutor(engine.CONNECTIONS) as threads:
            list(threads.map(self._start_node, range(1, len(nodes))))

    def _start_node(self, number: int) -> None:
        incarnation = self._incarnations[number] = self._incarnations.get(number, 0) + 1
        assert self._local is not None
        host = str(self._subnet[number + 1])
        container = NodeContainer(self._recipe, number, incarnation, host)
        self.containers[number] = container
        for link, filters in self._links.items():
            if filters.node == number:
                self._filter(link, number, filters.fault, add=True)
        resources = self.resources[number]
        if self._limits.memory_bytes is not None:
            resources = {
                "memory": float(int(self._limits.memory_bytes * MEMORY_SHARE)),
                **resources,
            }
        settings = self._local.node_settings(number, resources, incarnation, self._store_bytes)
        node = msgspec.structs.replace(settings, host=host, port=NODE_PORT, spill_directory=SCRATCH)
        if self._local.proxied:
            self._local.links.listening(f"node:{number}", (host, NODE_PORT))
            node.via = self._local.links.addresses_for(f"node:{number}")
        container.begin(
            ContainerSettings(
                node, self._store_bytes, sys.version_info[:2], self._recipe.paths,
                preload.of_driver(),
            )
        )  # fmt: skip

    # -- what the driver's session needs ---------------------------------------------------

    @property
    def _here(self) -> LocalCluster:
        assert self._local is not None, "the cluster has not started"
        return self._local

    @property
    def address(self) -> str:
        """Return ``host:port``, at which other drivers of this user may join."""
        return self._here.address

    @property
    def driver_socket(self) -> Any:
        """Return the driver's end of its socket to node 0."""
        return self._here.driver_socket

    @property
    def from_workers(self) -> Any:
        """Return the driver's end of its rendezvous with node 0's workers."""
        return self._here.from_workers

    @property
    def arena(self) -> Any:
        """Return node 0's arena."""
        return self._here.arena

    @property
    def pids(self) -> dict[str, int]:
        """Return the PIDs of processes on this machine; see `LocalCluster`."""
        return self._here.pids

    @property
    def exited(self) -> dict[str, str]:
        """Return the ends of processes on this machine, and of containers."""
        ended = [number for number, each in self.containers.items() if each.ended.is_set()]
        return self._here.exited | {f"node:{number}": "its container ended" for number in ended}

    @property
    def query(self) -> Callable[[str], Any]:
        """The driver session's query of its node; see `observability.queries`."""
        return self._here.query

    @query.setter
    def query(self, query: Callable[[str], Any]) -> None:
        self._here.query = query

    def poll(self) -> None:
        """Read the reports of processes on this machine."""
        self._here.poll()

    def await_pids(self) -> None:
        """Wait for the PIDs of processes on this machine; see `LocalCluster`."""
        self._here.await_pids()

    @reported
    def end(self) -> None:
        """Remove the containers and the network, and end all processes of the cluster."""
        try:
            # First, or containers would report that the head is gone.
            engine.remove_cluster(self._client, self.name)
            self._watcher.dismiss()
        finally:
            if self._local is not None:
                self._local.end()
            self._client.close()

    # -- operations on a running cluster: see `chaos/faults/targets.py` --------------------

    @reported
    def add_node(self, resources: Mapping[str, float] | None = None) -> int:
        """Start a node, by default with the resources of node 0; return its number."""
        (checked,) = node_resources([resources or self.resources[0]], None, 0)
        number = len(self.resources)
        if number >= NODES_MAX:
            raise ValueError(f"{number + 1} nodes in containers; at most {NODES_MAX} may be")
        self.resources[number] = checked
        self._start_node(number)
        return number

    def remove_node(self, node: int) -> None:
        """End a node for good: as `kill_node`, and its number is not used again."""
        self.kill_node(node)
        self._removed.add(node)

    @reported
    def kill_node(self, node: int) -> None:
        """Kill a node's container. Raises RuntimeError if it does not end."""
        self._check(node, spare_driver=True)
        self.containers[node].kill()

    @reported
    def restart_node(self, node: int) -> None:
        """Kill a node if it lives, then start it again under its number and address, empty."""
        self.kill_node(node)
        self.containers[node].await_removal()
        self._start_node(node)

    @reported
    def pause_node(self, node: int) -> None:
        """Freeze a node's container; stop the processes of node 0."""
        self._check(node)
        if node == 0:
            self._here.pause_node(0)
        else:
            self.containers[node].pause()

    @reported
    def resume_node(self, node: int) -> None:
        """Go on with a paused node."""
        self._check(node)
        if node == 0:
            self._here.resume_node(0)
        else:
            self.containers[node].resume()

    def kill_worker(self, node: int, which: int = 0) -> None:
        """Send SIGKILL to a worker; `which` counts from the node's oldest, modulo their number."""
        self._signal_worker(node, which, signal.SIGKILL)

    def pause_worker(self, node: int, which: int = 0) -> None:
        """Send SIGSTOP to a worker; `which` as in `kill_worker`."""
        self._signal_worker(node, which, signal.SIGSTOP)

    def resume_workers(self, node: int) -> None:
        """Send SIGCONT to all workers of a node."""
        self._check(node)
        if node == 0:
            self._here.resume_workers(0)
        else:
            send_signal(self.containers[node].workers(), signal.SIGCONT)

    def kill_actor(self, which: int = 0) -> None:
        """Send SIGKILL to an actor's worker; `which` counts by node and the worker's age.

        Queries every node for its actors, which takes a round trip to each; raises ValueError
        if there is no actor, or while a node is paused or disconnected.
        """
        self._signal_actor(which, signal.SIGKILL)

    def pause_actor(self, which: int = 0) -> None:
        """Send SIGSTOP to an actor's worker; `which` and errors as in `kill_actor`."""
        self._signal_actor(which, signal.SIGSTOP)

    def resume_actors(self) -> None:
        """Send SIGCONT to all actors' workers; errors as in `kill_actor`."""
        for address, pid in self._actors():
            send_signal(self._outer_pids(address, pid), signal.SIGCONT)

    def _signal_actor(self, which: int, number: int) -> None:
        actors = self._actors()
        address, pid = actors[which % len(actors)]
        pids = self._outer_pids(address, pid)
        if not pids:
            raise ValueError(f"{address} has ended")
        send_signal(pids, number)

    def _actors(self) -> list[tuple[str, int]]:
        """Return the addresses of actors' workers and their PIDs where they are."""
        for node, container in self.containers.items():
            if container.silent:
                raise ValueError(f"node {node} is {container.silent} and cannot list its actors")
        return actors_of(self.query)

    def _outer_pids(self, worker: str, pid: int) -> list[int]:
        node = node_of(worker)
        return [pid] if node == 0 else self.containers[node].outer_pids(pid)

    def _signal_worker(self, node: int, which: int, number: int) -> None:
        self._check(node)
        if node == 0:
            {signal.SIGKILL: self._here.kill_worker, signal.SIGSTOP: self._here.pause_worker}[
                signal.Signals(number)
            ](0, which)
            return
        deadline_s = time.monotonic() + WORKER_WAIT_S
        container = self.containers[node]
        while not (workers := container.workers()):
            if time.monotonic() > deadline_s or container.ended.is_set():
                raise ValueError(no_worker(node))
            time.sleep(0.01)
        send_signal([workers[which % len(workers)]], number)

    def kill_head(self) -> None:
        """Send SIGKILL to the head; raises ValueError if it would not start again."""
        self._here.kill_head()

    def pause_head(self) -> None:
        """Send SIGSTOP to the head."""
        self._here.pause_head()

    def resume_head(self) -> None:
        """Send SIGCONT to the head."""
        self._here.resume_head()

    def kill_member(self, chain: int, which: int = 0) -> None:
        """Send SIGKILL to a replica of a chain of the GCS; see `LocalCluster`."""
        self._here.kill_member(chain, which)

    def pause_member(self, chain: int, which: int = 0) -> None:
        """Send SIGSTOP to a replica of a chain of the GCS."""
        self._here.pause_member(chain, which)

    def resume_members(self, chain: int) -> None:
        """Send SIGCONT to all replicas of a chain of the GCS."""
        self._here.resume_members(chain)

    # -- links, of which an end is `node:1`, `head`, or, with proxies, `replica:0.1` -------

    @property
    def proxied(self) -> bool:
        """Whether the cluster was started with proxies on its links."""
        return self._here.proxied

    # Where they have proxies, a packet's address does not tell its sender to a filter.

    def set_latency(
        self, source: str, destination: str, latency_s: float, jitter_s: float = 0.0
    ) -> None:
        """Delay what one end of a link sends to the other; 0: no longer."""
        self._here.set_latency(source, destination, latency_s, jitter_s)

    def set_bandwidth(self, source: str, destination: str, bytes_per_s: float) -> None:
        """Limit the bandwidth from one end of a link to the other."""
        self._here.set_bandwidth(source, destination, bytes_per_s)

    def stall_link(self, source: str, destination: str) -> None:
        """Hold back what one end of a link sends to the other, until `heal`."""
        self._here.stall_link(source, destination)

    def cut(self, source: str, destination: str) -> None:
        """Drop everything that one end of a link sends to the other, until `heal`."""
        if self._here.proxied:
            self._here.cut(source, destination)
            return
        self._set_link((source, destination), LinkFault(Verdict.DROP))

    def lose_packets(self, source: str, destination: str, share: float) -> None:
        """Drop a share of the packets from one end of a link to the other, until `heal`."""
        if not 0 < share <= 1:
            raise ValueError(f"a share of {share:g} of the packets: give one from 0 to 1")
        if self._here.proxied:
            raise ValueError("packets are lost on links without proxies")
        self._set_link((source, destination), LinkFault(Verdict.DROP, share))

    def heal(self, source: str, destination: str) -> None:
        """Undo the fault of one direction of a link, if it has one."""
        if self._here.proxied:
            self._here.heal(source, destination)
            return
        self._set_link((source, destination), None)

    def reset_links(self, source: str, destination: str, rst: bool = True) -> None:
        """Answer all packets between two ends with RST for `RESET_S`, and so close connections.

        A connection on which neither end sends anything in that time stays open. Proxies close all
        connections of the link.
        """
        if self._here.proxied:
            self._here.reset_links(source, destination, rst)
            return
        if not rst:
            raise ValueError("without proxies containers close connections by RST, not by FIN")
        both = (source, destination), (destination, source)
        before = [filters and filters.fault for filters in map(self._links.get, both)]
        for link in both:
            self._set_link(link, LinkFault(Verdict.RESET))
        time.sleep(RESET_S)
        for link, fault in zip(both, before, strict=True):
            self._set_link(link, fault)

    @reported
    def disconnect_node(self, node: int) -> None:
        """Take the network from a node in a container, as if its cable were pulled."""
        self._container(node).disconnect()

    @reported
    def reconnect_node(self, node: int) -> None:
        """Give the network back to a node, with its old address."""
        self._container(node).reconnect()

    @reported
    def _set_link(self, link: tuple[str, str], fault: LinkFault | None) -> None:
        """Give one direction of a link a fault instead of the one that it has, or none."""
        nodes = [self._node_at(end) for end in link]
        if link in self._links:
            filters = self._links[link]
            self._filter(link, filters.node, filters.fault, add=False)
            del self._links[link]
        if fault is not None:
            # The filters are at the receiver, unless it has no container, or a paused one.
            able = [node for node in reversed(nodes) if node > 0]
            if link[0] == link[1] or not able:
                raise ValueError(f"no link leads from {link[0]} to {link[1]}: give two ends, not"
                                 " both on this machine, as node 0 and the head are")  # fmt: skip
            node = min(able, key=lambda node: self.containers[node].paused)
            self._filter(link, node, fault, add=True)
            self._links[link] = Filters(node, fault)

    def _node_at(self, end: str) -> int:
        """Return the number of a link's end that is a node, 0 for the head."""
        kind, _, number = end.partition(":")
        if kind == "node" and number.isdecimal():
            self._check(int(number))
        elif end != HEAD:
            raise ValueError(
                f"no end {end!r} of a link that has no proxies: on docker it is node:1 or head"
            )
        return int(number or 0)

    def _filter(self, link: tuple[str, str], node: int, fault: LinkFault, add: bool) -> None:
        container = self.containers[node]
        if container.paused:
            raise ValueError(f"node {node} is paused: the link can change when it goes on")
        source, destination = (self._end(end, other) for end, other in (link, link[::-1]))
        for command in commands(source, destination, link[0] == f"node:{node}", fault, add):
            # What has ended needs no filter; the node's next container starts with it.
            try:
                with ended_ignored():
                    container.run_as_root(command)
            except RuntimeError:  # maybe the node left meanwhile, and took the command along
                if not container.ended.wait(LEAVE_S):
                    raise

    def _end(self, end: str, other: str) -> End:
        """Return an end of a link as filters tell it apart from the other ends at its address."""
        if end == HEAD:
            host, port = self.address.rsplit(":", 1)
            return End(host, int(port))
        node = self._node_at(end)
        if node == 0:
            (row,) = (row for row in self.query("nodes") if row["node"] == 0)
            return End(row["host"], row["port"])
        # The head dials no node: what comes to a node's port from this machine is node 0's.
        return End(self.containers[node].host, ANY_PORT if other == HEAD else NODE_PORT)

    # -- disks and memory ------------------------------------------------------------------

    @reported
    def fill_disk(self, node: int) -> None:
        """Fill the disk of a node's spilled objects; raises ValueError if it has no limit."""
        self._container(node).fill_disk()

    @reported
    def press_memory(self, node: int, nbytes: int) -> None:
        """Occupy so much of the memory that a node's processes may use together."""
        self._container(node).press_memory(nbytes)

    @reported
    def heal_node(self, node: int) -> None:
        """End a full disk and the pressure on memory."""
        self._container(node).free()

    def _container(self, node: int) -> NodeContainer:
        self._check(node)
        if node == 0:
            raise ValueError("node 0 is the driver's own, on this machine and in no container")
        return self.containers[node]

    def _check(self, node: int, spare_driver: bool = False) -> None:
        check_node(node, self.resources, self._removed, spare_driver)


def _started(
    start_here: Callable[[str, ProxiedLinks | None], LocalCluster], gateway: str, nodes: int
) -> LocalCluster:
    """Start the part of a cluster that is on this machine, at the gateway of its network."""
    try:
        return start_here(gateway, new_links("docker", nodes, gateway))
    except OSError as error:
        raise RuntimeError(
            f"cannot listen at {gateway}, the gateway of the cluster's network ({error.strerror}):"
            " backend docker needs an engine on this machine, without a virtual machine between"
        ) from error
