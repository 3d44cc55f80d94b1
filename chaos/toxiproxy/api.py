"""The HTTP API: what each path answers, as status and JSON; the errors are the real server's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib import metadata
from typing import Any
from urllib.parse import unquote

import msgspec

from raytwin.chaos.toxiproxy.connection import Stream
from raytwin.chaos.toxiproxy.link import Rule, Toxic
from raytwin.chaos.toxiproxy.proxy import Proxy
from raytwin.chaos.toxiproxy.toxics import TOXICS

API_VERSION = "2.12.0"
"""The version of Toxiproxy whose API this is."""


class ProxyInput(msgspec.Struct):
    """The body of a request about a proxy; what is None stays as it is."""

    name: str | None = None
    listen: str | None = None
    upstream: str | None = None
    enabled: bool | None = None


class ToxicInput(msgspec.Struct):
    """The body of a request about a toxic."""

    name: str | None = None
    type: str = ""
    stream: str | None = None
    toxicity: float | None = None
    attributes: dict[str, Any] | None = None


class ApiError(Exception):
    """A request that is refused."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status

    def to_data(self) -> dict[str, Any]:
        """Return the error in the form of the API."""
        return {"error": str(self), "status": self.status.value}


class Api:
    """The proxies of a server, and what requests do to them, one after another."""

    def __init__(self) -> None:
        self.proxies: dict[str, Proxy] = {}
        self._one_at_a_time = asyncio.Lock()

    async def answer(self, method: str, path: str, body: bytes) -> tuple[HTTPStatus, Any]:
        """Return the status and the JSON data of the answer, None for none."""
        known = False
        for pattern, methods in ROUTES:
            if found := re.fullmatch(pattern, unquote(path)):
                known = True
                if handler := methods.get(method):
                    async with self._one_at_a_time:
                        try:
                            return await handler(self, body, *found.groups())
                        except ApiError as error:
                            return error.status, error.to_data()
        return (HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND), None

    async def version(self, body: bytes) -> tuple[HTTPStatus, Any]:
        version = metadata.version("raytwin")
        return HTTPStatus.OK, {"version": f"{API_VERSION}+raytwin.{version}"}

    async def reset(self, body: bytes) -> tuple[HTTPStatus, Any]:
        for proxy in self.proxies.values():
            if not proxy.enabled:
                await start(proxy)
            for toxic in list(proxy.toxics):
                proxy.remove_toxic(toxic)
        return HTTPStatus.NO_CONTENT, None

    async def list_proxies(self, body: bytes) -> tuple[HTTPStatus, Any]:
        return HTTPStatus.OK, {name: proxy_data(proxy) for name, proxy in self.proxies.items()}

    async def create_proxy(self, body: bytes) -> tuple[HTTPStatus, Any]:
        given = decode(body, ProxyInput)
        proxy = new_proxy(given)
        if proxy.name in self.proxies:
            raise ApiError(HTTPStatus.CONFLICT, "proxy already exists")
        if given.enabled is not False:
            await start(proxy)
        self.proxies[proxy.name] = proxy
        return HTTPStatus.CREATED, proxy_data(proxy)

    async def populate(self, body: bytes) -> tuple[HTTPStatus, Any]:
        done: list[Proxy] = []
        try:
            given = decode(body, list[ProxyInput])
            proxies = [new_proxy(each, f" at proxy {i}") for i, each in enumerate(given, 1)]
            for each, proxy in zip(given, proxies, strict=True):
                done.append(await self._add_or_replace(proxy, each.enabled is not False))
        except ApiError as error:
            return error.status, error.to_data() | {"proxies": [*map(proxy_data, done)]}
        return HTTPStatus.CREATED, {"proxies": [*map(proxy_data, done)]}

    async def _add_or_replace(self, proxy: Proxy, enabled: bool) -> Proxy:
        existing = self.proxies.get(proxy.name)
        if existing is not None:
            try:
                if not await existing.differs(proxy.listen, proxy.upstream):
                    return existing
            except OSError as error:
                raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from None
            existing.stop()
        if enabled:
            await start(proxy)
        self.proxies[proxy.name] = proxy
        return proxy

    async def show_proxy(self, body: bytes, name: str) -> tuple[HTTPStatus, Any]:
        return HTTPStatus.OK, proxy_data(self._proxy(name))

    async def update_proxy(self, body: bytes, name: str) -> tuple[HTTPStatus, Any]:
        proxy = self._proxy(name)
        given = decode(body, ProxyInput)
        try:
            await proxy.update(
                proxy.listen if given.listen is None else given.listen,
                proxy.upstream if given.upstream is None else given.upstream,
                proxy.enabled if given.enabled is None else given.enabled,
            )
        except OSError as error:
            raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from None
        return HTTPStatus.OK, proxy_data(proxy)

    async def delete_proxy(self, body: bytes, name: str) -> tuple[HTTPStatus, Any]:
        self._proxy(name).stop()
        del self.proxies[name]
        return HTTPStatus.NO_CONTENT, None

    async def list_toxics(self, body: bytes, name: str) -> tuple[HTTPStatus, Any]:
        return HTTPStatus.OK, proxy_data(self._proxy(name))["toxics"]

    async def create_toxic(self, body: bytes, name: str) -> tuple[HTTPStatus, Any]:
        proxy = self._proxy(name)
        given = decode(body, ToxicInput)
        stream = Stream.DOWNSTREAM.value if given.stream is None else given.stream
        if stream.lower() not in [each.value for each in Stream]:
            raise ApiError(
                HTTPStatus.BAD_REQUEST, "stream was invalid, can be either upstream or downstream"
            )
        kind = TOXICS.get(given.type)
        if kind is None:
            raise ApiError(HTTPStatus.BAD_REQUEST, "invalid toxic type")
        toxic = Toxic(
            attributes=rule(kind, given.attributes or {}),
            name=given.name or f"{given.type}_{stream}",
            type=given.type,
            stream=stream,
            toxicity=1.0 if given.toxicity is None else given.toxicity,
        )
        if any(each.name == toxic.name for each in proxy.toxics):
            raise ApiError(HTTPStatus.CONFLICT, "toxic already exists")
        proxy.add_toxic(toxic)
        return HTTPStatus.OK, toxic

    async def show_toxic(self, body: bytes, name: str, toxic: str) -> tuple[HTTPStatus, Any]:
        return HTTPStatus.OK, self._toxic(name, toxic)[1]

    async def update_toxic(self, body: bytes, name: str, toxic: str) -> tuple[HTTPStatus, Any]:
        proxy, found = self._toxic(name, toxic)
        given = decode(body, ToxicInput)
        merged = msgspec.structs.asdict(found.attributes) | (given.attributes or {})
        found.attributes = rule(type(found.attributes), merged)
        if given.toxicity is not None:
            found.toxicity = given.toxicity
        proxy.update_toxic(found)
        return HTTPStatus.OK, found

    async def delete_toxic(self, body: bytes, name: str, toxic: str) -> tuple[HTTPStatus, Any]:
        proxy, found = self._toxic(name, toxic)
        proxy.remove_toxic(found)
        return HTTPStatus.NO_CONTENT, None

    def _proxy(self, name: str) -> Proxy:
        if name not in self.proxies:
            raise ApiError(HTTPStatus.NOT_FOUND, "proxy not found")
        return self.proxies[name]

    def _toxic(self, name: str, toxic: str) -> tuple[Proxy, Toxic]:
        proxy = self._proxy(name)
        for each in proxy.toxics:
            if each.name == toxic:
                return proxy, each
        raise ApiError(HTTPStatus.NOT_FOUND, "toxic not found")


Handler = Callable[..., Awaitable[tuple[HTTPStatus, Any]]]
ROUTES: list[tuple[str, dict[str, Handler]]] = [
    ("/version", {"GET": Api.version}),
    ("/reset", {"POST": Api.reset}),
    ("/populate", {"POST": Api.populate}),
    ("/proxies", {"GET": Api.list_proxies, "POST": Api.create_proxy}),
    (
        "/proxies/([^/]+)",
        {
            "GET": Api.show_proxy,
            "POST": Api.update_proxy,
            "PATCH": Api.update_proxy,
            "DELETE": Api.delete_proxy,
        },
    ),
    ("/proxies/([^/]+)/toxics", {"GET": Api.list_toxics, "POST": Api.create_toxic}),
    (
        "/proxies/([^/]+)/toxics/([^/]+)",
        {
            "GET": Api.show_toxic,
            "POST": Api.update_toxic,
            "PATCH": Api.update_toxic,
            "DELETE": Api.delete_toxic,
        },
    ),
]
"""The paths, and what the methods do there."""


def decode(body: bytes, kind: Any) -> Any:
    """Return a body as `kind`. Raises ApiError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_body(error) from None


def rule(kind: type[Rule], attributes: dict[str, Any]) -> Rule:
    """Return a toxic's rule with these parameters. Raises ApiError."""
    try:
        return msgspec.convert(attributes, kind)
    except msgspec.ValidationError as error:
        raise bad_body(error) from None


def bad_body(error: Exception) -> ApiError:
    """Return the error for a body that is no JSON, or has the wrong types."""
    return ApiError(HTTPStatus.BAD_REQUEST, f"bad request body: {error}")


def new_proxy(given: ProxyInput, where: str = "") -> Proxy:
    """Return the proxy that a body describes, not started. Raises ApiError."""
    for field in ("name", "upstream"):
        if not getattr(given, field):
            raise ApiError(HTTPStatus.BAD_REQUEST, f"missing required field: {field}{where}")
    return Proxy(str(given.name), given.listen or "", str(given.upstream))


async def start(proxy: Proxy) -> None:
    """Start a proxy. Raises ApiError."""
    try:
        await proxy.start()
    except OSError as error:
        raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from None


def proxy_data(proxy: Proxy) -> dict[str, Any]:
    """Return a proxy in the form of the API: toxics of the upstream first."""
    return {
        "name": proxy.name,
        "listen": proxy.listen,
        "upstream": proxy.upstream,
        "enabled": proxy.enabled,
        "toxics": sorted(proxy.toxics, key=lambda t: t.stream.lower() != Stream.UPSTREAM.value),
    }
