"""HTTP/1.1 as far as clients of the API speak it: requests with a Content-Length, one by one."""

from __future__ import annotations

import asyncio
import http.client
import io
import logging
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from raytwin.chaos.toxiproxy.api import Api

BODY_NBYTES_MAX = 16 * 1024 * 1024
HEAD_NBYTES_MAX = 64 * 1024

logger = logging.getLogger(__name__)


class Request(NamedTuple):
    """One request."""

    method: str
    path: str
    body: bytes
    user_agent: str
    keep_alive: bool


class BadRequest(Exception):
    """The bytes of a client are no request that this server reads."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


async def listen(api: Api, host: str, port: int) -> asyncio.Server:
    """Serve an API on an address. Raises OSError if it is taken."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer_requests(api, reader, writer)
        except ConnectionError as error:
            logger.info("an API client has gone: %s", error)
        finally:
            writer.close()

    return await asyncio.start_server(serve, host, port, limit=HEAD_NBYTES_MAX)


async def answer_requests(
    api: Api, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer a client's requests until it ends, or sends what is none."""
    keep_alive = True
    while keep_alive:
        data: Any = None
        try:
            request = await read_request(reader)
        except asyncio.IncompleteReadError:
            return
        except BadRequest as bad:
            status, keep_alive = bad.status, False
        else:
            keep_alive = request.keep_alive
            # A page in a browser must not reach a server on the loopback.
            if request.user_agent.startswith("Mozilla/"):
                status = HTTPStatus.FORBIDDEN
            else:
                status, data = await api.answer(request.method, request.path, request.body)
        writer.write(response(status, data, keep_alive))
        await writer.drain()


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Read a request. Raises BadRequest, and IncompleteReadError where the client ends."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
    line, _, fields = head.partition(b"\r\n")
    words = line.decode("latin-1").split(" ")
    if len(words) != 3 or not words[1].startswith("/"):
        raise BadRequest(HTTPStatus.BAD_REQUEST)
    method, target, version = words
    if version not in ("HTTP/1.0", "HTTP/1.1"):
        raise BadRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    try:
        headers = http.client.parse_headers(io.BytesIO(fields))
    except http.client.HTTPException:
        raise BadRequest(HTTPStatus.BAD_REQUEST) from None
    if "Transfer-Encoding" in headers:
        raise BadRequest(HTTPStatus.LENGTH_REQUIRED)
    length = headers.get("Content-Length", "0")
    if not (length.isascii() and length.isdigit()):
        raise BadRequest(HTTPStatus.BAD_REQUEST)
    if len(length) > 18 or int(length) > BODY_NBYTES_MAX:
        raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    connection = headers.get("Connection", "").lower()
    return Request(
        method=method,
        path=target.partition("?")[0],
        body=await reader.readexactly(int(length)),
        user_agent=headers.get("User-Agent", ""),
        keep_alive=version == "HTTP/1.1" and connection != "close",
    )


def response(status: HTTPStatus, data: Any, keep_alive: bool) -> bytes:
    """Return the bytes of an answer."""
    body = b"" if data is None else msgspec.json.encode(data)
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        *(["Content-Type: application/json"] if body else []),
        *([f"Content-Length: {len(body)}"] if status is not HTTPStatus.NO_CONTENT else []),
        *([] if keep_alive else ["Connection: close"]),
        "\r\n",
    ]
    return "\r\n".join(lines).encode("latin-1") + body
