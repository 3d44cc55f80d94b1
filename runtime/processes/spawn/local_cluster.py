"""A cluster on this machine, for the driver that starts it: its processes, and their faults.

    driver (this process) ──spawns──> zygote ──forks──> head, nodes, workers
       └───────socket pair───────> node 0

Sockets and arenas are passed as descriptors (see `zygote`). The head's listening
socket is bound here, so that nodes start without waiting for the head.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.control.core.addresses import (
    HEAD,
    REPLICAS_PER_CHAIN,
    chain_of,
    is_replica,
)
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.processes.client import preload, running_clusters
from raytwin.runtime.processes.client.direct_connections import rendezvous
from raytwin.runtime.processes.client.running_clusters import ClusterFile
from raytwin.runtime.processes.net import auth
from raytwin.runtime.processes.net.connection import listen
from raytwin.runtime.processes.net.packets import FDS_MAX, packet_pair, send_packet
from raytwin.runtime.processes.net.process_settings import HeadSettings, NodeSettings
from raytwin.runtime.processes.spawn.worker_pids import memory_of, send_signal, worker_pids
from raytwin.runtime.session.node_resources import (
    NO_ACTOR,
    NO_HEAD_AGAIN,
    check_node,
    member_to_kill,
    no_chain,
    no_worker,
    node_resources,
    with_system_resources,
)
from raytwin.runtime.store.arena import Arena

LOOPBACK = "127.0.0.1"
NODES_MAX = 500
"""The most nodes of a cluster on one machine; each node is at least two processes."""
END_TIMEOUT_S = 20.0
SPARE_REPLICAS = 4
"""Replicas of a chain that may take the place of ended ones and whose links may have faults."""
WORKER_WAIT_S = 1.0
"""How long a fault plan's action on a worker waits for the node to have one."""


class ProxiedLinks(Protocol):
    """Proxies between the processes of a cluster, by way of which they dial one another.

    Processes are named ``head``, ``node:<n>`` and ``replica:0.<n>``. The faults are those of
    `chaos/faults/cluster_operations.py`.
    """

    def add_replicas(self, names: Sequence[str]) -> None:
        """Make the proxies of the links of replicas of the GCS, which may start later."""

    def listening(self, process: str, address: tuple[str, int]) -> None:
        """A process listens at an address, in place of an earlier one of its name."""

    def lead_ports(
        self, source: str, destination: str, at: str, host: str, ports: Iterable[int]
    ) -> None:
        """Make proxies that listen `at` these ports, and lead from one process to the same ports
        of another, whose host is `host`."""

    def addresses_for(self, process: str) -> dict[str, tuple[str, int]]:
        """Return the addresses at which a process reaches the others, by their names."""

    def close(self) -> None:
        """End the proxies."""

    def set_latency(
        self, source: str, destination: str, latency_s: float, jitter_s: float
    ) -> None: ...
    def set_bandwidth(self, source: str, destination: str, bytes_per_s: float) -> None: ...
    def reset_links(self, source: str, destination: str, rst: bool) -> None: ...
    def stall_link(self, source: str, destination: str) -> None: ...
    def cut(self, source: str, destination: str) -> None: ...
    def heal(self, source: str, destination: str) -> None: ...


make_links: dict[str, Callable[[int, str], ProxiedLinks]] = {}
"""By backend: makes the proxies of a new cluster, of so many nodes, that listen at a host. Who
wants faults on links adds it; else the processes of a cluster dial one another themselves."""


def new_links(backend: str, nodes: int, host: str) -> ProxiedLinks | None:
    """Return the proxies of a new cluster, None if it needs none; see `make_links`."""
    make = make_links.get(backend)
    return make(nodes, host) if make is not None else None


class LocalCluster:
    """The processes of one cluster, for the driver that has started it."""

    backend = "local"

    def __init__(
        self,
        nodes: Sequence[Mapping[str, float]],
        config: Config,
        memory_bytes: int,
        store_bytes: int,
        journal: str,
        spill_directory: str,
        storage: str = "",
        host: str = LOOPBACK,
        links: ProxiedLinks | None = None,
    ) -> None:
        """`host`: the address on which the head, nodes and replicas listen. The cluster ends the
        proxies `links` with itself."""
        self.config = config
        self.pids: dict[str, int] = {}
        """PID by ``zygote``, ``head``, ``node:<n>`` and ``replica:0.<n>``."""
        self.exited: dict[str, str] = {}
        self.resources: dict[int, dict[str, float]] = {}
        """Resources that every node that was ever started was given, by number."""
        self._incarnations: dict[int, int] = {}
        self._removed: set[int] = set()
        self._paused: set[int] = set()
        self._token = auth.new_token()
        self._join_socket = f"raytwin-{os.urandom(16).hex()}"
        self._file: Path | None = None
        self._journal = journal
        self._storage = storage
        self._memory_bytes = memory_bytes
        self._store_bytes = store_bytes
        self._spill_directory = spill_directory
        self._host = host
        self._control, theirs = packet_pair()
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "raytwin.runtime.processes.spawn.zygote", str(theirs.fileno()),
             str(os.getpid())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            # Ctrl-C at the terminal interrupts the driver alone.
            start_new_session=True,
            env=_environment(),
        )  # fmt: skip
        theirs.close()
        self.pids["zygote"] = self._zygote.pid
        self._lock = threading.Lock()
        self._links = links
        self.query: Callable[[str], Any] = _unconnected
        """The driver session's query of its node; see `observability.queries`."""
        try:
            self._start(nodes)
        except BaseException:
            self.end()
            raise

    def _start(self, nodes: Sequence[Mapping[str, float]]) -> None:
        head = listen(self._host)
        self._head = head.getsockname()[:2]
        self._file = running_clusters.write(
            ClusterFile(
                self.address, self._join_socket, self._token.hex(), os.getpid(), time.time()
            )
        )
        paths = [p or os.getcwd() for p in sys.path]
        kinds = [
            "head",
            "node",
            *(["replica"] if self.config.chained and not self.config.gcs_durable else []),
        ]
        send_packet(self._control, ["start", paths, str(self._file), kinds, preload.of_driver()])
        settings = HeadSettings(self.config, self._token, self._journal, self._storage)
        of_replicas: list[socket.socket] = []
        if self._links is not None:
            names = _names_of_replicas(self.config)
            self._links.add_replicas(names)
            self._links.listening(HEAD, self._head)
            for name in names:
                of_replicas.append(listen(self._host))
                self._links.listening(name, of_replicas[-1].getsockname()[:2])
                settings.replicas[name] = self._links.addresses_for(name)
        fds = tuple(sock.fileno() for sock in (head, *of_replicas))
        # The zygote restarts a killed head if its state is in a file.
        self._spawn("head", "head", settings, fds, self.config.gcs_durable)
        for sock in (head, *of_replicas):
            sock.close()
        ours, theirs = socket.socketpair()
        self.driver_socket = ours
        self.from_workers, to_driver = rendezvous()
        for number, resources in enumerate(nodes):
            self.resources[number] = dict(resources)
            self._spawn_node(number, (theirs, to_driver) if number == 0 else ())
        theirs.close()
        to_driver.close()

    @property
    def address(self) -> str:
        """Return ``host:port``, at which other drivers of this user may join."""
        host, port = self._head
        return f"{host}:{port}"

    def _spawn_node(self, number: int, driver: tuple[socket.socket, ...] = ()) -> None:
        """Start a node. `driver`: the sockets to a driver there, the node's and the workers'."""
        arena = Arena.create(self._store_bytes, self._spill_directory)
        self._incarnations[number] = self._incarnations.get(number, 0) + 1
        if number == 0:
            self.arena = arena
        settings = self.node_settings(
            number, self.resources[number], self._incarnations[number], self._store_bytes
        )
        fds = [*arena.fds, *(sock.fileno() for sock in driver)]
        if self._links is None:
            self._spawn("node", f"node:{number}", settings, tuple(fds))
        else:
            name = f"node:{number}"
            with listen(self._host) as sock:
                self._links.listening(name, sock.getsockname()[:2])
                settings.via = self._links.addresses_for(name)
                settings.listening = True
                self._spawn("node", name, settings, (*fds, sock.fileno()))
        if number != 0:
            arena.close()

    def node_settings(
        self, number: int, resources: Mapping[str, float], incarnation: int, store_bytes: int
    ) -> NodeSettings:
        """Return the settings of a node of this cluster, on this host."""
        return NodeSettings(
            number,
            with_system_resources(number, resources, self._memory_bytes, store_bytes),
            self.config,
            self._token,
            self._head,
            self._host,
            journal=self._journal,
            incarnation=incarnation,
            spill_directory=self._spill_directory,
            join_socket=self._join_socket if number == 0 else "",
        )

    def _spawn(
        self, kind: str, key: str, settings: Any, fds: tuple[int, ...], restart: bool = False
    ) -> None:
        packet = ["spawn", kind, key, msgspec.msgpack.encode(settings), restart]
        send_packet(self._control, packet, fds)

    def poll(self) -> None:
        """Read the zygote's answers: PIDs, and the ends of processes."""
        with self._lock:
            while True:
                try:
                    data = self._control.recv(1 << 16, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return
                except ConnectionResetError:
                    data = b""
                if not data:
                    self.exited["zygote"] = "gone"
                    return
                kind, key, detail = msgspec.msgpack.decode(data)
                if kind == "spawned":
                    self.pids[key] = detail
                    self.exited.pop(key, None)
                else:
                    self.exited[key] = detail

    def await_pids(self) -> None:
        """Wait for the PIDs of the head and of all nodes.

        A node may have joined before the zygote, which forked it, has reported its PID.
        """
        started = {"head", *(f"node:{number}" for number in self.resources)}
        self._await(lambda: started <= self.pids.keys(), "the zygote reports no PIDs")

    def kill(self, key: str, signal_number: int) -> None:
        """Send a signal to the head, a node or a replica of the GCS."""
        self._await(lambda: key in self.pids, f"{key} does not start")
        if key not in self.exited:
            send_signal([self.pids[key]], signal_number)

    def _await(self, condition: Callable[[], bool], error: str) -> None:
        """Read the zygote's answers until a condition holds; raises RuntimeError at a timeout."""
        deadline_s = time.monotonic() + END_TIMEOUT_S
        self.poll()
        while not condition():
            if time.monotonic() > deadline_s or "zygote" in self.exited:
                raise RuntimeError(error)
            time.sleep(0.001)
            self.poll()

    def kill_replica(self, name: str) -> None:
        """Send SIGKILL to a replica of the GCS."""
        self.kill(name, signal.SIGKILL)

    def kill_member(self, chain: int, which: int = 0) -> None:
        """Send SIGKILL to a replica of a chain; `which` counts from the oldest, modulo the size.

        The others may not have the state yet: only the chain's master knows that.
        """
        members = self._members(chain)
        self.kill_replica(member_to_kill(chain, members, which))

    def pause_member(self, chain: int, which: int = 0) -> None:
        """Send SIGSTOP to a replica of a chain; `which` as in `kill_member`."""
        members = self._members(chain)
        self.kill(members[which % len(members)], signal.SIGSTOP)

    def resume_members(self, chain: int) -> None:
        """Send SIGCONT to all replicas of a chain."""
        for name in self._members(chain):
            self.kill(name, signal.SIGCONT)

    def _members(self, chain: int) -> list[str]:
        """Return the living replicas of a chain, from the oldest."""
        self.poll()
        living = [key for key in self.pids if is_replica(key) and key not in self.exited]
        members = [key for key in living if chain_of(key) == chain]
        if not members:
            raise ValueError(no_chain(chain))
        return members

    def _process_at(self, end: str) -> str:
        """Return the name of the process at a link's end: ``replica:0.1`` counts members."""
        if not end.startswith("replica:"):
            return end
        chain, which = map(int, end.removeprefix("replica:").split("."))
        members = self._members(chain)
        return members[which % len(members)]

    def _ends(self, source: str, destination: str) -> tuple[str, str]:
        return self._process_at(source), self._process_at(destination)

    # -- operations on a running cluster: see `chaos/faults/targets.py` ----------------

    def add_node(self, resources: Mapping[str, float]) -> int:
        """Start a node and return its number; it joins when it is up."""
        (checked,) = node_resources([resources], None, 0)
        number = len(self.resources)
        if number >= NODES_MAX:
            raise ValueError(f"{number + 1} nodes on one machine; at most {NODES_MAX} may be")
        self.resources[number] = checked
        self._spawn_node(number)
        return number

    def remove_node(self, node: int) -> None:
        """End a node for good: as `kill_node`, and its number is not used again."""
        self.kill_node(node)
        self._removed.add(node)

    def kill_node(self, node: int) -> None:
        """Kill a node; the zygote kills its workers. Raises RuntimeError if it does not end."""
        self._check(node, spare_driver=True)
        self._paused.discard(node)
        key = f"node:{node}"
        self.kill(key, signal.SIGKILL)
        self._await(lambda: key in self.exited, f"{key} does not end")

    def restart_node(self, node: int) -> None:
        """Kill a node if it lives, then start it again under its number, empty.

        Raises RuntimeError if it does not end.
        """
        key = f"node:{node}"
        self.kill_node(node)
        del self.exited[key], self.pids[key]
        self._spawn_node(node)

    def pause_node(self, node: int) -> None:
        """Send SIGSTOP to a node, then to its workers, so that it never finds them silent."""
        self._check(node)
        self._paused.add(node)
        self.kill(f"node:{node}", signal.SIGSTOP)
        send_signal(self._workers(node), signal.SIGSTOP)

    def resume_node(self, node: int) -> None:
        """Send SIGCONT to the workers of a node, then to the node."""
        self._check(node)
        self._paused.discard(node)
        self.resume_workers(node)
        self.kill(f"node:{node}", signal.SIGCONT)

    def kill_worker(self, node: int, which: int = 0) -> None:
        """Send SIGKILL to a worker; `which` counts from the node's oldest, modulo their number."""
        self._signal_worker(node, which, signal.SIGKILL)

    def kill_actor(self, which: int = 0) -> None:
        """Send SIGKILL to an actor's worker; `which` counts by node and the worker's age.

        Queries every node for its actors, which takes a round trip to each; raises ValueError
        if there is no actor, or while a node is paused.
        """
        self._signal_actor(which, signal.SIGKILL)

    def pause_actor(self, which: int = 0) -> None:
        """Send SIGSTOP to an actor's worker; `which` and errors as in `kill_actor`."""
        self._signal_actor(which, signal.SIGSTOP)

    def resume_actors(self) -> None:
        """Send SIGCONT to all actors' workers; errors as in `kill_actor`."""
        send_signal([pid for _, pid in self._actors()], signal.SIGCONT)

    def _signal_actor(self, which: int, number: int) -> None:
        actors = self._actors()
        address, pid = actors[which % len(actors)]
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise ValueError(f"{address} has ended") from None

    def _actors(self) -> list[tuple[str, int]]:
        """Return the addresses and PIDs of actors' workers, by node and age."""
        if self._paused:
            raise ValueError(f"node {min(self._paused)} is paused and cannot list its actors")
        return actors_of(self.query)

    def kill_head(self) -> None:
        """Send SIGKILL to the head; raises ValueError if the zygote would not restart it."""
        if not self.config.gcs_durable:
            raise ValueError(NO_HEAD_AGAIN)
        self.poll()
        if "head" in self.exited:
            raise ValueError(f"the head has ended: {self.exited['head']}")
        self.kill("head", signal.SIGKILL)

    def pause_head(self) -> None:
        """Send SIGSTOP to the head."""
        self.kill("head", signal.SIGSTOP)

    def resume_head(self) -> None:
        """Send SIGCONT to the head."""
        self.kill("head", signal.SIGCONT)

    # -- faults of links, by proxies -----------------------------------------------------

    @property
    def proxied(self) -> bool:
        """Whether the cluster was started with proxies on its links."""
        return self._links is not None

    @property
    def links(self) -> ProxiedLinks:
        """The proxies. Raises ValueError if the cluster was started without."""
        if self._links is None:
            raise ValueError("the cluster was started without proxies on its links")
        return self._links

    def set_latency(
        self, source: str, destination: str, latency_s: float, jitter_s: float = 0.0
    ) -> None:
        """Delay what one process sends to another; 0: no longer."""
        self.links.set_latency(*self._ends(source, destination), latency_s, jitter_s)

    def set_bandwidth(self, source: str, destination: str, bytes_per_s: float) -> None:
        """Limit the bandwidth from one process to another."""
        self.links.set_bandwidth(*self._ends(source, destination), bytes_per_s)

    def reset_links(self, source: str, destination: str, rst: bool = True) -> None:
        """Close the connections between two processes; new ones may open."""
        self.links.reset_links(*self._ends(source, destination), rst)

    def stall_link(self, source: str, destination: str) -> None:
        """Hold back what one process sends to another, until `heal`."""
        self.links.stall_link(*self._ends(source, destination))

    def cut(self, source: str, destination: str) -> None:
        """Lose what one process sends to another, until `heal`."""
        self.links.cut(*self._ends(source, destination))

    def heal(self, source: str, destination: str) -> None:
        """End all faults of a link."""
        self.links.heal(*self._ends(source, destination))

    # -- operations on workers -----------------------------------------------------------

    def pause_worker(self, node: int, which: int = 0) -> None:
        """Send SIGSTOP to a worker; `which` as in `kill_worker`."""
        self._signal_worker(node, which, signal.SIGSTOP)

    def resume_workers(self, node: int) -> None:
        """Send SIGCONT to all workers of a node, unless the node is paused itself."""
        self._check(node)
        if node not in self._paused:
            send_signal(self._workers(node), signal.SIGCONT)

    def _signal_worker(self, node: int, which: int, number: int) -> None:
        """Send a signal to a worker of a node; raises ValueError if it has none."""
        workers = self._await_workers(node)
        send_signal([workers[which % len(workers)]], number)

    def press_memory(self, node: int, nbytes: int) -> None:
        """Kill the worker of a node with most resident memory, as the kernel does, if its workers
        leave less than `nbytes` of the node's `memory`.

        Nothing is occupied: that would be the machine's memory, which all nodes share. Raises
        ValueError if the node has no worker.
        """
        used = memory_of(self._await_workers(node))
        own = with_system_resources(
            node, self.resources[node], self._memory_bytes, self._store_bytes
        )
        if used and sum(each.share for each in used.values()) + nbytes > own["memory"]:
            send_signal([max(used, key=lambda pid: used[pid].resident)], signal.SIGKILL)

    def heal_node(self, node: int) -> None:
        """End pressure on memory, of which nothing lasts."""
        self._check(node)

    def _await_workers(self, node: int) -> list[int]:
        """Return the PIDs of a node's workers; raises ValueError if it has none for a while."""
        self._check(node)
        deadline_s = time.monotonic() + WORKER_WAIT_S
        while not (workers := self._workers(node)):
            if time.monotonic() > deadline_s or f"node:{node}" in self.exited:
                raise ValueError(no_worker(node))
            time.sleep(0.01)
        return workers

    def _workers(self, node: int) -> list[int]:
        """Return the PIDs of a node's workers, oldest first."""
        self.poll()
        if f"node:{node}" in self.exited:
            return []
        return worker_pids(self._zygote.pid, node)

    def _check(self, node: int, spare_driver: bool = False) -> None:
        check_node(node, self.resources, self._removed, spare_driver)

    def end(self) -> None:
        """Kill all processes of the cluster and wait until they have ended."""
        self.query = _unconnected
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        self._control.close()
        if self._links is not None:
            self._links.close()
        if self._zygote.poll() is None:
            # Popen's own wait with a timeout polls in intervals; a pidfd wakes up at once.
            pidfd = os.pidfd_open(self._zygote.pid)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            ended = poll.poll(END_TIMEOUT_S * 1000)
            os.close(pidfd)
            if not ended:
                # The zygote hangs. The kernel kills its children with it.
                self._zygote.kill()
        self._zygote.wait()


def _unconnected(kind: str) -> Any:
    raise RaySystemError(f"cannot query {kind}: the cluster has no driver")


def actors_of(query: Callable[[str], Any]) -> list[tuple[str, int]]:
    """Return the addresses and PIDs of actors' workers, by node and age.

    Raises ValueError if there is no actor.
    """
    actors = [(address, pid) for *_, address, pid in query("actors") if pid]
    if not actors:
        raise ValueError(NO_ACTOR)
    return sorted(actors, key=lambda row: [int(n) for n in row[0][len("worker:") :].split(".")])


def _names_of_replicas(config: Config) -> list[str]:
    """Return the names of the first replicas that are processes, of all chains.

    Raises ValueError if they are too many for faults on their links.
    """
    if not config.chained or config.gcs_durable:
        return []
    per_chain = config.gcs_replicas + SPARE_REPLICAS
    if config.chains * per_chain > FDS_MAX - 2:
        raise ValueError(
            f"{config.chains} chains of {config.gcs_replicas} replicas of the GCS: the links of at"
            f" most {FDS_MAX - 2 - config.chains * SPARE_REPLICAS} may have faults"
        )
    return [
        f"replica:0.{chain * REPLICAS_PER_CHAIN + number}"
        for chain in range(config.chains)
        for number in range(1, per_chain + 1)
    ]


def _environment() -> dict[str, str]:
    # The zygote imports raytwin from the driver's path; the `start` packet brings the rest
    # of the driver's `sys.path`.
    root = str(Path(__file__).absolute().parents[4])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
