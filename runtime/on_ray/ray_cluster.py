"""A Ray cluster on this machine: its nodes, and the faults that a plan can inject into them.

Ray's own `ray.cluster_utils.Cluster` starts the nodes: each is a raylet with an object store and
workers of its own. Nodes have numbers, from 0 on, and a node that starts again is a new one for
Ray under the number that it had. All files are in a folder that the cluster removes at its end, or
a watcher at the end of this process. If its links are to have faults, its nodes are in a
`NodeNetwork`.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from raytwin.runtime.on_ray import cluster_processes
from raytwin.runtime.on_ray.node_network import NodeNetwork
from raytwin.runtime.processes.spawn.driver_watcher import Watcher
from raytwin.runtime.processes.spawn.local_cluster import ProxiedLinks, make_links

TMPDIR = "RAY_TMPDIR"
"""The environment variable with the folder of Ray's files."""
SHORT = "/tmp"
"""Sockets are deep below that folder, and a socket's path has at most 107 bytes."""
STORE_BYTES = 200 << 20
"""Of each node's object store, unless a program says otherwise."""
HEALTH_CHECKS = 5
"""Missed one after the other, they make a node dead."""
WORKER = "ray::"
_OF_THE_NODE = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


class RayCluster:
    """The nodes of a Ray cluster; see `cluster_operations` for what fault plans do with it.

    `resources` has each node's, by number.
    """

    backend = "ray"

    def __init__(
        self,
        resources: Sequence[Mapping[str, float]],
        object_store_memory: int | None = None,
        heartbeat_timeout_s: float = 5.0,
        system_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.resources = dict(enumerate(resources))
        self._store_bytes = object_store_memory or STORE_BYTES
        self._folder = tempfile.mkdtemp(prefix="rtr-", dir=SHORT)
        self._tmpdir = os.environ.get(TMPDIR)
        os.environ[TMPDIR] = self._folder
        os.makedirs(Path(self._folder, "ray"))
        self._watcher = Watcher(cluster_processes.__name__, self._folder)
        self._lock = threading.Lock()
        self._nodes: dict[int, Any] = {}
        self._processes: dict[int, psutil.Process] = {}
        """The raylet of each node that was not killed, by number."""
        self._cluster: Any = None
        self._network: NodeNetwork | None = None
        try:
            if make := make_links.get(self.backend):
                self._network = NodeNetwork(partial(make, len(self.resources)))
            from ray.cluster_utils import Cluster

            self._cluster = Cluster(shutdown_at_exit=True)
            period_ms = max(1, int(1e3 * heartbeat_timeout_s / HEALTH_CHECKS))
            config = {
                "health_check_initial_delay_ms": 0,
                "health_check_period_ms": period_ms,
                "health_check_timeout_ms": period_ms,
                "health_check_failure_threshold": HEALTH_CHECKS,
                **(system_config or {}),
            }
            self._start(0, include_dashboard=False, _system_config=config)
            for number in range(1, len(self.resources)):
                self._start(number, wait=False)
            self._cluster.wait_for_nodes()
        except BaseException:
            self.shutdown()
            raise

    @property
    def address(self) -> str:
        """The address at which drivers join."""
        return str(self._cluster.address)

    def _start(self, number: int, **more: Any) -> None:
        # On the main thread the kernel ends a node with this process, and with the thread on
        # another one, such as a fault plan has. There only the watcher ends it with this process.
        on_main = threading.current_thread() is threading.main_thread()
        self._cluster._shutdown_at_exit = on_main
        own = {name: amount for name, amount in self.resources[number].items() if amount}
        place: AbstractContextManager[None] = nullcontext()
        if self._network is not None:
            more |= self._network.options(number)
            place = self._network.inside(number)
        with place:
            node = self._cluster.add_node(
                num_cpus=own.pop("CPU", 0),
                num_gpus=own.pop("GPU", 0),
                # Tasks name a node by it, as on raytwin's own backends.
                resources={**own, f"node:{number}": 1.0},
                object_store_memory=self._store_bytes,
                **more,
            )
        self._nodes[number] = node
        self._processes[number] = psutil.Process(node.all_processes["raylet"][0].process.pid)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per node: its number, whether Ray says that it lives, its resources."""
        import ray

        alive = {row["NodeID"]: row["Alive"] for row in ray.nodes()}
        with self._lock:
            return [
                {"node": number, "alive": alive.get(node.node_id, False),
                 "resources": self.resources[number]}
                for number, node in self._nodes.items()
            ]  # fmt: skip

    def shutdown(self) -> None:
        """End all nodes, and remove their files."""
        for pid in cluster_processes.members(self._folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)  # what is paused would not end
        if self._cluster is not None:
            self._cluster.shutdown()
        # Ray knows neither what its raylets have started, nor a node whose start was interrupted.
        cluster_processes.clean_up(self._folder)
        self._watcher.dismiss()
        if self._tmpdir is None:
            os.environ.pop(TMPDIR, None)
        else:
            os.environ[TMPDIR] = self._tmpdir
        if self._network is not None:
            self._network.close()

    # -- faults ------------------------------------------------------------------------

    def add_node(self, resources: Mapping[str, float]) -> int:
        """Start a node; return its number."""
        with self._lock:
            number = len(self.resources)
            self.resources[number] = dict(resources)
            self._start(number, wait=False)
            return number

    def remove_node(self, node: int) -> None:
        """End a node for good, without draining it."""
        self.kill_node(node)

    def kill_node(self, node: int) -> None:
        """End a node and its workers at once, by SIGKILL."""
        with self._lock:
            self._kill(node)

    def _kill(self, node: int) -> None:
        raylet = self._raylet(node)
        if node == 0:
            raise ValueError("node 0 is the driver's, and the GCS is on it")
        left = [raylet, *_children(raylet)]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        del self._processes[node]
        self._cluster.remove_node(self._nodes[node], allow_graceful=False)

    def restart_node(self, node: int) -> None:
        """Start a node again, empty; kill it first if it lives."""
        with self._lock:
            if node not in self.resources:
                raise ValueError(f"there is no node {node}")
            if node in self._processes:
                self._kill(node)
            self._start(node, wait=False)

    def pause_node(self, node: int) -> None:
        """Suspend a node and its workers, by SIGSTOP."""
        with self._lock:
            raylet = self._raylet(node)
            _signal([raylet, *_children(raylet)], signal.SIGSTOP)

    def resume_node(self, node: int) -> None:
        """Resume a node and its workers."""
        with self._lock:
            raylet = self._raylet(node)
            _signal([raylet, *_children(raylet)], signal.SIGCONT)

    def kill_worker(self, node: int, which: int = 0) -> None:
        """End the `which`-th oldest worker of a node, modulo their number."""
        with self._lock:
            workers = _workers(self._raylet(node))
            if not workers:
                raise ValueError(f"node {node} has no worker")
            _signal([workers[which % len(workers)]], signal.SIGKILL)

    def kill_actor(self, which: int = 0) -> None:
        """End the process of the `which`-th actor, by node and age, modulo their number."""
        self._signal_actor(which, signal.SIGKILL)

    def pause_actor(self, which: int = 0) -> None:
        """Suspend an actor's process, by SIGSTOP; `which` as in `kill_actor`."""
        self._signal_actor(which, signal.SIGSTOP)

    def resume_actors(self) -> None:
        """Resume all actors' processes, by SIGCONT."""
        with self._lock:
            _signal(_living(self._actors()), signal.SIGCONT)

    # -- faults of links, by proxies -----------------------------------------------------

    @property
    def proxied(self) -> bool:
        """Whether the cluster was started with proxies on its links."""
        return self._network is not None

    @property
    def links(self) -> ProxiedLinks:
        """The proxies. Raises ValueError if the cluster was started without."""
        if self._network is None:
            raise ValueError("the cluster was started without proxies on its links")
        return self._network.links

    def set_latency(
        self, source: str, destination: str, latency_s: float, jitter_s: float = 0.0
    ) -> None:
        """Delay what one node sends to another; 0: no longer."""
        self.links.set_latency(source, destination, latency_s, jitter_s)

    def set_bandwidth(self, source: str, destination: str, bytes_per_s: float) -> None:
        """Limit the bandwidth of each connection from one node to another."""
        self.links.set_bandwidth(source, destination, bytes_per_s)

    def reset_links(self, source: str, destination: str, rst: bool = True) -> None:
        """Close the connections between two nodes; new ones may open."""
        self.links.reset_links(source, destination, rst)

    def stall_link(self, source: str, destination: str) -> None:
        """Hold back what one node sends to another, until `heal`."""
        self.links.stall_link(source, destination)

    def cut(self, source: str, destination: str) -> None:
        """Lose what one node sends to another, until `heal`."""
        self.links.cut(source, destination)

    def heal(self, source: str, destination: str) -> None:
        """End all faults of a link."""
        self.links.heal(source, destination)

    # -- processes -----------------------------------------------------------------------

    def _signal_actor(self, which: int, number: int) -> None:
        with self._lock:
            actors = self._actors()
            _signal(_living([actors[which % len(actors)]]), number)

    def _actors(self) -> list[int]:
        """Return the PIDs of actors' processes, by node and age."""
        from ray._private import state

        nodes = {node.node_id: number for number, node in self._nodes.items()}
        actors = sorted(
            (nodes.get(row["Address"]["NodeID"], -1), row["StartTime"], row["Pid"])
            for row in state.actors(actor_state_name="ALIVE").values()
        )
        if not actors:
            raise ValueError("there is no actor")
        return [pid for _, _, pid in actors]

    def _raylet(self, node: int) -> psutil.Process:
        if node not in self._processes:
            raise ValueError(f"there is no node {node}")
        return self._processes[node]


def _children(raylet: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return list(raylet.children(recursive=True))
    return []


def _workers(raylet: psutil.Process) -> list[psutil.Process]:
    """Return a node's workers, the oldest first."""
    found = []
    for child in _children(raylet):
        with suppress(psutil.NoSuchProcess):
            title = (child.cmdline() or [""])[0]
            if title.startswith(WORKER) and not title.startswith(_OF_THE_NODE):
                found.append(child)
    return sorted(found, key=lambda process: (process.create_time(), process.pid))


def _living(pids: Sequence[int]) -> list[psutil.Process]:
    """Return the processes that have not ended."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
