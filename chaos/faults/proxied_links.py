"""Toxiproxy between the processes of a cluster: faults of links between living nodes.

Each process reaches each other one by way of a proxy of its own, named ``node0→node1`` or
``node1→head``; the head dials nobody, and a replica of the GCS no node. Connections are used both
ways, so what node 1 sends to node 2 goes *upstream* on ``node1→node2`` and *downstream* on
``node2→node1``, and a fault of that link is a toxic on each. The proxies of the processes that a
cluster starts with, and of some further ones, are there before these. In containers the nodes reach
the proxies at the gateway of the cluster's network, on which the server listens. A node of Ray
listens on several ports: there a link has a proxy for each, such as ``node0→node1:7001``, and a
fault is a toxic on all of them (`runtime/on_ray/node_network.py`).

| operation | toxic |
|---|---|
| `set_latency` | latency |
| `set_bandwidth` | bandwidth |
| `stall_link` | bandwidth with rate 0, until another proxy takes over: what waits is sent again |
| `cut` | timeout 0: data is dropped until it is removed |
| `reset_links` | the proxy is disabled for a moment; for RST, while reset_peer is in force |
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial

from raytwin.chaos.toxiproxy.proxies import Proxies
from raytwin.chaos.toxiproxy.toxiproxy_process import (
    HOST,
    NOT_INSTALLED,
    OURS,
    ToxiproxyProcess,
    find_server,
)
from raytwin.runtime.control.core.addresses import HEAD, chain_of, is_replica
from raytwin.runtime.processes.spawn import local_cluster

SPARE_NODES = 4
"""Nodes that may be added and whose links may have faults, unless a plan adds more."""
NOWHERE = "127.0.0.1:1"
"""The upstream of a proxy whose node has not been started: nobody listens there."""
KB = 1000
STALL = {"rate": 0}
TOXICS = ("latency", "bandwidth", "timeout")


class ToxiproxyLinks:
    """The proxies of one cluster, and the server that runs them: the real one if it is installed.

    Raises ServerError if the server does not start.
    """

    def __init__(
        self, nodes: int, host: str, spare_nodes: int = SPARE_NODES, server_host: str = HOST
    ) -> None:
        """The proxies listen at `host`, and their server at `server_host`; `spare_nodes` may be
        added."""
        self._host = host
        server = find_server()
        self._server = ToxiproxyProcess([server] if server else OURS, server_host)
        if server is None:
            _say_that_ours_runs()
        name = "toxiproxy-server" if server else "raytwin's own"
        for versions in _noting:
            versions["toxiproxy"] = f"{name} {self._server.version}"
        self._proxies = Proxies(self._server.url)
        self._names = [f"node:{number}" for number in range(nodes + spare_nodes)]
        self._of_link: dict[tuple[str, str], list[str]] = {}
        """The names of the proxies by (dialing process, process that it reaches)."""
        self._addresses: dict[str, tuple[str, int]] = {}
        """By proxy: where it listens."""
        self._upstreams: dict[str, str] = {}
        """By proxy: where it leads."""
        self._toxics: dict[tuple[str, str, str], dict[str, int]] = {}
        """Attributes of the toxics in force, by (proxy, kind, direction)."""
        self._add(self._names, [HEAD, *self._names])

    def add_replicas(self, names: Sequence[str]) -> None:
        """Make the proxies of the links of replicas of the GCS, which may start later."""
        self._add([*names, *self._names], names)
        self._add(names, [HEAD])

    def _add(self, sources: Iterable[str], destinations: Sequence[str]) -> None:
        for source in sources:
            for destination in destinations:
                if source != destination and not _of_two_chains(source, destination):
                    name = proxy_name(source, destination)
                    self._addresses[name] = self._proxies.add(name, NOWHERE, self._host)
                    self._of_link[source, destination] = [name]

    def lead_ports(
        self, source: str, destination: str, at: str, host: str, ports: Iterable[int]
    ) -> None:
        """Make proxies that listen `at` these ports, and lead from one process to the same ports
        of another, whose host is `host`."""
        names = {f"{proxy_name(source, destination)}:{port}": port for port in ports}
        self._upstreams |= {name: f"{host}:{port}" for name, port in names.items()}
        self._addresses |= {name: (at, port) for name, port in names.items()}
        self._proxies.add_all(
            {name: (self._upstreams[name], self._addresses[name]) for name in names}
        )
        self._of_link[source, destination] = list(names)

    def close(self) -> None:
        """End the server, and with it every proxied connection."""
        self._server.stop()

    def listening(self, process: str, address: tuple[str, int]) -> None:
        """Have the proxies lead to where a process listens now."""
        host, port = address
        for (_, destination), (name, *_) in self._of_link.items():
            if destination == process:
                self._upstreams[name] = f"{host}:{port}"
                self._proxies.lead(name, self._upstreams[name])

    def addresses_for(self, process: str) -> dict[str, tuple[str, int]]:
        """Return where a process dials the others, by their names."""
        return {
            to: self._addresses[name]
            for (by, to), (name, *_) in self._of_link.items()
            if by == process
        }

    # -- faults --------------------------------------------------------------------

    def set_latency(self, source: str, destination: str, latency_s: float, jitter_s: float) -> None:
        """Delay what one process sends to another, by whole milliseconds; 0 ends that."""
        ms, jitter_ms = round(1000 * latency_s), round(1000 * jitter_s)
        attributes = {"latency": ms, "jitter": jitter_ms}
        self._set("latency", source, destination, attributes if ms or jitter_ms else None)

    def set_bandwidth(self, source: str, destination: str, bytes_per_s: float) -> None:
        """Limit the bandwidth, to at least 1 KB/s."""
        self._set("bandwidth", source, destination, {"rate": max(1, round(bytes_per_s / KB))})

    def stall_link(self, source: str, destination: str) -> None:
        """Hold everything back until `heal`."""
        self._set("bandwidth", source, destination, STALL)

    def cut(self, source: str, destination: str) -> None:
        """Drop everything until `heal`."""
        self._set("timeout", source, destination, {"timeout": 0})

    def heal(self, source: str, destination: str) -> None:
        """End all faults of a link."""
        for kind in TOXICS:
            self._set(kind, source, destination, None)

    def reset_links(self, source: str, destination: str, rst: bool) -> None:
        """Close the connections that carry a link, by FIN or by RST. The real server always sends
        FIN: its reset_peer spares connections that are older than itself."""
        for name, direction in self._carriers(source, destination):
            if rst:
                self._proxies.add_toxic(name, "reset_peer", direction, {"timeout": 0})
            self._proxies.enable(name, False)
            if rst:
                self._proxies.remove_toxic(name, "reset_peer", direction)
            self._proxies.enable(name, True)

    def _set(
        self, kind: str, source: str, destination: str, attributes: dict[str, int] | None
    ) -> None:
        """Add, update or remove (None) a toxic on every proxy that carries a link."""
        for name, direction in self._carriers(source, destination):
            toxic = (name, kind, direction)
            if attributes is None:
                self._remove(toxic)
            elif toxic in self._toxics and kind != "bandwidth":
                self._proxies.update_toxic(name, kind, direction, attributes)
                self._toxics[toxic] = attributes
            else:
                # The real server may panic if it changes the rate of a stalled connection.
                self._remove(toxic)
                self._proxies.add_toxic(name, kind, direction, attributes)
                self._toxics[toxic] = attributes

    def _remove(self, toxic: tuple[str, str, str]) -> None:
        """Remove a toxic if it is in force."""
        attributes = self._toxics.pop(toxic, None)
        if attributes == STALL:
            # A node replaces a silent connection, and the real server waits ten seconds before it
            # removes a toxic that holds data of a connection which has been closed.
            self._replace(toxic[0])
        elif attributes is not None:
            self._proxies.remove_toxic(*toxic)

    def _replace(self, name: str) -> None:
        """Start another proxy in place of one, at its address and with its other toxics; all of its
        connections end."""
        self._proxies.remove(name)
        self._proxies.add(name, self._upstreams.get(name, NOWHERE), *self._addresses[name])
        for (proxy, kind, direction), attributes in self._toxics.items():
            if proxy == name:
                self._proxies.add_toxic(name, kind, direction, attributes)

    def _carriers(self, source: str, destination: str) -> list[tuple[str, str]]:
        """Return the proxies, and the direction in each, that carry what `source` sends to
        `destination`. Raises ValueError if there are none."""
        found = [
            (name, direction)
            for ends, direction in (
                ((source, destination), "upstream"),
                ((destination, source), "downstream"),
            )
            for name in self._of_link.get(ends, ())
        ]
        if not found:
            raise ValueError(f"no proxy carries the link {source}>{destination}")
        return found


def _of_two_chains(source: str, destination: str) -> bool:
    """Whether these are replicas of different chains, which never dial one another."""
    both = is_replica(source) and is_replica(destination)
    return both and chain_of(source) != chain_of(destination)


def proxy_name(source: str, destination: str) -> str:
    """Return the name of the proxy by way of which one process reaches another.

    >>> proxy_name("node:1", "head")
    'node1→head'
    """
    return f"{source}→{destination}".replace(":", "")


def _links_of_ray(nodes: int, host: str) -> ToxiproxyLinks:
    """Return links of which `lead_ports` makes the proxies as nodes start, with a server at `host`
    as the proxies: its namespace is not the driver's."""
    return ToxiproxyLinks(0, host, spare_nodes=0, server_host=host)


@cache
def _say_that_ours_runs() -> None:
    """Print so, once in a process."""
    print(f"raytwin: {NOT_INSTALLED}", file=sys.stderr)


_noting: list[dict[str, str]] = []


@contextmanager
def noting_version() -> Iterator[dict[str, str]]:
    """Yield what has, as ``toxiproxy``, the name and version of the server that has run links
    since; empty without any."""
    versions: dict[str, str] = {}
    _noting.append(versions)
    try:
        yield versions
    finally:
        _noting.pop()


@contextmanager
def proxied(*backends: str, spare_nodes: int = SPARE_NODES) -> Iterator[None]:
    """Put proxies on the links of clusters of these backends that start within this context.

    `spare_nodes`: how many nodes may be added whose links have proxies too.
    """
    before = dict(local_cluster.make_links)
    make = partial(ToxiproxyLinks, spare_nodes=spare_nodes)
    local_cluster.make_links.update(dict.fromkeys(backends, make))
    if "ray" in backends:
        local_cluster.make_links["ray"] = _links_of_ray
    try:
        yield
    finally:
        local_cluster.make_links.clear()
        local_cluster.make_links.update(before)
