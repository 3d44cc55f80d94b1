"""A network for a Ray cluster on this machine whose nodes have addresses of their own.

Ray's nodes find each other by address, and on one machine they share one, so that nothing can be
put between them. Here each node has a network namespace with one address. All are on a bridge,
whose namespace, the *hub*, is where the proxies run. In each namespace a rule of the packet filter
leads what is dialed at another node's address to an address of the hub that stands for these two
nodes; the proxy that listens there, at the port that was dialed, leads to the node itself:

    node 1 dials 10.77.0.3:7001 -> 10.78.2.3:7001 in the hub, a proxy -> 10.77.0.3:7001

Nodes listen on the same `PORTS`, and nothing passes at others.

Networks alone are apart: nodes share files, sockets with a path, memory and process IDs. The
machine's own network stays as it is, and the nodes do not reach it. No namespace has a name: the
kernel removes each, with its devices and rules, when no process is in it and no descriptor of this
process is left.

A namespace is that of a thread, and what a thread starts begins in it. The driver belongs to node
0, so the main thread, which makes the network, is in node 0's namespace from then on, even when the
cluster has ended: gRPC has threads that stay, and a later cluster uses them.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from raytwin.runtime.on_ray import NotOnRay
from raytwin.runtime.processes.spawn.local_cluster import ProxiedLinks

CLONE_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"
BITS = 16
HUB = "10.77.255.254"
PAIRS = f"10.78.0.0/{BITS}"
DEVICE = "eth0"
"""Of a node, by which it reaches the bridge."""
GCS_PORT = 6379
NODE_MANAGER_PORT = 7001
OBJECT_MANAGER_PORT = 7002
WORKERS_MAX = 64
"""Of one node: each has a port, and each port has proxies. What needs more waits."""
WORKER_PORTS = range(7010, 7010 + WORKERS_MAX)
PORTS = (NODE_MANAGER_PORT, OBJECT_MANAGER_PORT, *WORKER_PORTS)
PROGRAMS = {"ip": "iproute2", "iptables": "iptables"}
"""Their packages, by name."""
MISSING = "faults of links on Ray need a network namespace for each node: "
NOT_ROOT = "only root may make one (CAP_SYS_ADMIN)"

_libc = ctypes.CDLL(None, use_errno=True)


class NodeNetwork:
    """The namespaces of a cluster's nodes, by number, and the proxies between them.

    `make_links` gets the host at which the proxies' server listens. Raises NotOnRay if this process
    may not make namespaces, a program for it is missing, or this is not the main thread.
    """

    def __init__(self, make_links: Callable[[str], ProxiedLinks]) -> None:
        if threading.current_thread() is not threading.main_thread():
            # The server's port, for instance, is looked up among those of the main thread's.
            raise NotOnRay(f"{MISSING}start the cluster on the main thread")
        for program, package in PROGRAMS.items():
            if shutil.which(program) is None:
                raise NotOnRay(f"{MISSING}install {package}, which has the program {program}")
        self._spaces: dict[int, int] = {}
        with ExitStack() as undo:
            self._hub = _new_space()
            undo.callback(os.close, self._hub)
            with _inside(self._hub):
                _ip("link", "add", "bridge", "type", "bridge")
                _ip("address", "add", f"{HUB}/{BITS}", "dev", "bridge")
                _ip("link", "set", "bridge", "up")
                _ip("route", "add", "local", PAIRS, "dev", "lo")
                self.links = make_links(HUB)
            undo.callback(self.links.close)
            self._connect(0, _drivers_space())
            undo.pop_all()

    def options(self, node: int) -> dict[str, Any]:
        """Return the parameters with which Ray starts a node that is to start `inside`."""
        if node not in self._spaces:
            self._connect(node, _new_space())
        return {
            "node_ip_address": address(node),
            "node_manager_port": NODE_MANAGER_PORT,
            "object_manager_port": OBJECT_MANAGER_PORT,
            "worker_port_list": ",".join(map(str, WORKER_PORTS)),
            **({} if node else {"gcs_server_port": GCS_PORT}),
        }

    @contextmanager
    def inside(self, node: int) -> Iterator[None]:
        """Have this thread be in a node's namespace meanwhile."""
        with _inside(self._spaces[node]):
            yield

    def close(self) -> None:
        """End the proxies, and leave the namespaces to the processes that are in them."""
        self.links.close()
        try:
            with _inside(self._hub):
                # The kernel takes its time to remove the others: the driver's is free at once.
                _ip("link", "delete", _port(0))
        finally:
            for node, space in self._spaces.items():
                if node:
                    os.close(space)
            os.close(self._hub)

    def _connect(self, node: int, space: int) -> None:
        """Connect a namespace to the bridge, with rules and proxies between it and the others."""
        with _inside(self._hub):
            there = f"/proc/{os.getpid()}/fd/{space}"
            _ip("link", "add", _port(node), "type", "veth", "peer", "name", DEVICE, "netns", there)
            _ip("link", "set", _port(node), "master", "bridge", "up")
        self._spaces[node] = space
        with _inside(space):
            _ip("address", "add", f"{address(node)}/{BITS}", "dev", DEVICE)
            _ip("link", "set", DEVICE, "up")
            _ip("route", "add", "default", "via", HUB)
        for other in self._spaces:
            if other != node:
                self._lead(node, other)
                self._lead(other, node)

    def _lead(self, dialing: int, reached: int) -> None:
        """Lead what one node dials at another's address to the proxies that stand for both."""
        at, host = _pair(dialing, reached), address(reached)
        ports = PORTS if reached else (GCS_PORT, *PORTS)
        self.links.lead_ports(f"node:{dialing}", f"node:{reached}", at, host, ports)
        rule = ("OUTPUT", "-d", host, "-p", "tcp", "-j", "DNAT", "--to-destination", at)
        with _inside(self._spaces[dialing]):
            # An earlier cluster may have left the same rule to the driver's namespace.
            _run("iptables", "-w", "-t", "nat", "-A", *rule)


def address(node: int) -> str:
    """Return a node's address."""
    return f"10.77.0.{node + 1}"


def _pair(dialing: int, reached: int) -> str:
    """Return the address of the hub at which one node reaches another."""
    return f"10.78.{dialing + 1}.{reached + 1}"


def _port(node: int) -> str:
    """Return the name of the bridge's port for a node."""
    return f"node{node}"


@functools.cache
def _drivers_space() -> int:
    """Move this thread to a new namespace for good; return its descriptor."""
    space = _new_space()
    _enter(space)
    return space


def _new_space() -> int:
    """Return the descriptor of a new namespace that has its loopback."""
    before = os.open(OWN, os.O_RDONLY)
    try:
        if _libc.unshare(CLONE_NEWNET):
            number = ctypes.get_errno()
            raise NotOnRay(MISSING + (NOT_ROOT if number == errno.EPERM else os.strerror(number)))
        try:
            _ip("link", "set", "lo", "up")
            return os.open(OWN, os.O_RDONLY)
        finally:
            _enter(before)
    finally:
        os.close(before)


@contextmanager
def _inside(space: int) -> Iterator[None]:
    """Have this thread be in a namespace meanwhile."""
    before = os.open(OWN, os.O_RDONLY)
    try:
        _enter(space)
        try:
            yield
        finally:
            _enter(before)
    finally:
        os.close(before)


def _enter(space: int) -> None:
    """Move this thread to a namespace."""
    if _libc.setns(space, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    """Run a program in this thread's namespace. Raises NotOnRay if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise NotOnRay(f"{MISSING}{' '.join(command)!r} fails: {said}")
