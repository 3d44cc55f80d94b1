"""The proxies of one server, as the fault injector uses them.

Requests go through the client ``toxiproxy-python``, whose flaws end here: its server's address is
global to its class, so each request sets it, one at a time; it has no update of a toxic, which is a
plain POST; and its methods read an answer of status 500 as if it were a proxy (KeyError 'name'), so
this module looks at the status before it reads the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import toxiproxy
from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

_address_in_use = threading.Lock()


class ProxyError(Exception):
    """The server refuses a request, or does not answer; says why in one line."""


class Proxies:
    """The proxies of the server at `server_url`; several such objects may live side by side."""

    def __init__(self, server_url: str) -> None:
        address = urlsplit(server_url)
        if not address.hostname or not address.port:
            raise ValueError(f"no server at {server_url!r}: give http://host:port")
        self._host, self._port = address.hostname, address.port

    def add(
        self, name: str, upstream: str, host: str = "127.0.0.1", port: int = 0
    ) -> tuple[str, int]:
        """Start a proxy on a port of `host`, by default a free one, and return its address."""
        listen = f"{host}:{port}"
        proxy = self._request(
            APIConsumer.post,
            "/proxies",
            json={"name": name, "upstream": upstream, "listen": listen, "enabled": True},
        )
        found, _, port = proxy["listen"].rpartition(":")
        return found, int(port)

    def add_all(self, ends: Mapping[str, tuple[str, tuple[str, int]]]) -> None:
        """Start a proxy for each name, in one request: its upstream, and where it listens."""
        given = [
            {"name": name, "upstream": upstream, "listen": f"{host}:{port}", "enabled": True}
            for name, (upstream, (host, port)) in ends.items()
        ]
        self._request(APIConsumer.post, "/populate", json=given)

    def remove(self, name: str) -> None:
        """Close a proxy's connections and its listener, and forget it."""
        self._request(APIConsumer.delete, path("proxies", name))

    def lead(self, name: str, upstream: str) -> None:
        """Have a proxy's new connections lead to another upstream."""
        self._request(APIConsumer.post, path("proxies", name), json={"upstream": upstream})

    def enable(self, name: str, enabled: bool) -> None:
        """Start a proxy's listener again, or close it with all connections."""
        self._request(APIConsumer.post, path("proxies", name), json={"enabled": enabled})

    def add_toxic(
        self,
        name: str,
        kind: str,
        direction: str,
        attributes: Mapping[str, int],
        toxicity: float = 1.0,
    ) -> None:
        """Add a toxic to a direction of a proxy; its name is ``kind_direction``."""
        self._request(
            APIConsumer.post,
            path("proxies", name, "toxics"),
            json={
                "name": toxic_name(kind, direction),
                "type": kind,
                "stream": direction,
                "toxicity": toxicity,
                "attributes": dict(attributes),
            },
        )

    def update_toxic(
        self, name: str, kind: str, direction: str, attributes: Mapping[str, int]
    ) -> None:
        """Change attributes of a toxic on living connections; the others stay."""
        self._request(
            APIConsumer.post,
            path("proxies", name, "toxics", toxic_name(kind, direction)),
            json={"attributes": dict(attributes)},
        )

    def remove_toxic(self, name: str, kind: str, direction: str) -> None:
        """Remove a toxic.

        The real server waits up to ten seconds for data that the toxic holds for a connection which
        has been closed.
        """
        self._request(
            APIConsumer.delete, path("proxies", name, "toxics", toxic_name(kind, direction))
        )

    def toxics(self, name: str) -> list[dict[str, Any]]:
        """Return the toxics of a proxy as data of the API."""
        found: list[dict[str, Any]] = self._request(
            APIConsumer.get, path("proxies", name, "toxics")
        )
        return found

    def reset(self) -> None:
        """Remove all toxics, and enable all proxies."""
        self._request(APIConsumer.post, "/reset")

    def _request(self, send: Callable[..., Any], url: str, **options: Any) -> Any:
        """Return the data of an answer, None if it has none. Raises ProxyError."""
        with _address_in_use:
            toxiproxy.Toxiproxy().update_api_consumer(self._host, self._port)
            try:
                answer = send(url, **options)
            except (InvalidToxic, NotFound, ProxyExists) as refused:
                raise ProxyError(f"{url}: {refused.args[0].decode().strip()}") from None
            except OSError as error:  # The client raises it for a server that is gone.
                raise ProxyError(f"no answer from {self._host}:{self._port}: {error}") from None
        if not answer.ok:
            raise ProxyError(f"{url}: {answer.text.strip()}")
        return answer.json() if answer.content else None


def toxic_name(kind: str, direction: str) -> str:
    """Return the name of the toxic of a kind in a direction, which is the server's default."""
    return f"{kind}_{direction}"


def path(*parts: str) -> str:
    """Return the path of these parts, of which each may have any letters."""
    return "/" + "/".join(quote(part, safe="") for part in parts)
