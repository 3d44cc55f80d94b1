"""A proxy: it listens, dials its upstream for each client, and keeps the toxics of both."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from raytwin.chaos.toxiproxy.connection import Connection
from raytwin.chaos.toxiproxy.link import Link, Toxic

BACKLOG = 1024
ACCEPT_AGAIN_S = 1.0
"""When a proxy that was out of descriptors accepts again."""

logger = logging.getLogger(__name__)


class Proxy:
    """One proxy of a server. `listen` is what was asked for, and once started the true address."""

    def __init__(self, name: str, listen: str, upstream: str) -> None:
        self.name = name
        self.listen = listen
        self.upstream = upstream
        self.toxics: list[Toxic] = []
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()
        self._dials: set[asyncio.Task[None]] = set()

    @property
    def enabled(self) -> bool:
        """Whether the proxy listens."""
        return self._listener is not None

    async def differs(self, listen: str, upstream: str) -> bool:
        """Return whether the proxy would have to start again. Raises OSError as `start` does."""
        _, address = await resolve(listen)
        return self.listen != join(address) or self.upstream != upstream

    async def start(self) -> None:
        """Listen. Raises OSError if the address is wrong or taken."""
        family, address = await resolve(self.listen)
        listener = socket.create_server(
            address[:2],
            family=family,
            backlog=BACKLOG,
            dualstack_ipv6=address[0] == "::" and socket.has_dualstack_ipv6(),
        )
        listener.setblocking(False)
        self._listener = listener
        self.listen = join(listener.getsockname())
        self._accept_from(listener)

    def stop(self) -> None:
        """Close the listener and every connection."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for dial in self._dials:
            dial.cancel()
        for connection in list(self._connections):
            connection.close()

    async def update(self, listen: str, upstream: str, enabled: bool) -> None:
        """Start again if an address has changed, and start or stop. Raises OSError."""
        if await self.differs(listen, upstream):
            self.stop()
            self.listen, self.upstream = listen, upstream
        if enabled and not self.enabled:
            await self.start()
        elif not enabled:
            self.stop()

    def add_toxic(self, toxic: Toxic) -> None:
        """Apply a toxic to living and future connections, behind those that there are."""
        self.toxics.append(toxic)
        self._change(Link.add, toxic)

    def update_toxic(self, toxic: Toxic) -> None:
        """Apply the new parameters of a toxic to living connections."""
        self._change(Link.update, toxic)

    def remove_toxic(self, toxic: Toxic) -> None:
        """Take a toxic away from living connections, too."""
        self.toxics.remove(toxic)
        self._change(Link.remove, toxic)

    def _change(self, method: Callable[[Link, Toxic, float], None], toxic: Toxic) -> None:
        for connection in list(self._connections):
            connection.change(method, toxic)

    def _accept_from(self, listener: socket.socket) -> None:
        if listener is self._listener:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            client, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            logger.warning("%s accepts nobody for %s s: %s", self.name, ACCEPT_AGAIN_S, error)
            loop.remove_reader(listener)
            loop.call_later(ACCEPT_AGAIN_S, self._accept_from, listener)
            return
        dial = loop.create_task(self._dial(client))
        self._dials.add(dial)
        dial.add_done_callback(self._dials.discard)

    async def _dial(self, client: socket.socket) -> None:
        try:
            upstream = await connect(self.upstream)
        except OSError as error:
            logger.warning("%s does not reach %s: %s", self.name, self.upstream, error)
            client.close()
        except asyncio.CancelledError:
            client.close()
            raise
        else:
            self._connections.add(
                Connection(client, upstream, self.toxics, self._connections.discard)
            )


async def resolve(address: str) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the family and the address to listen on; no host is every address of the machine.

    Raises OSError.
    """
    found = await look_up(address)
    # The IPv4 address of a name first, as the real server does.
    family, resolved = min(found, key=lambda each: each[0] is not socket.AF_INET)
    return family, (str(resolved[0]), int(resolved[1]))


async def connect(address: str) -> socket.socket:
    """Return a socket that is connected to `address`. Raises OSError."""
    error = OSError(f"no address for {address!r}")
    for family, resolved in await look_up(address):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, resolved)
            return sock
        except OSError as failed:
            sock.close()
            error = failed
        except asyncio.CancelledError:
            sock.close()
            raise
    raise error


async def look_up(address: str) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    """Return what ``host:port`` stands for, the host with or without brackets. Raises OSError."""
    host, colon, port = address.rpartition(":")
    if address and not colon:
        raise OSError(f"address {address}: missing port in address")
    if not host:
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    host = host.removeprefix("[").removesuffix("]")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port or "0", type=socket.SOCK_STREAM
        )
    except ValueError as error:  # No name that could be looked up.
        raise OSError(f"address {address!r}: {error}") from None
    return [(family, resolved) for family, _, _, _, resolved in found]


def join(address: tuple[str, int]) -> str:
    """Return an address as ``host:port``, an IPv6 host in brackets."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
