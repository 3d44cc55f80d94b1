"""Our Toxiproxy server answers any bytes and any JSON, and goes on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from raytwin.chaos.toxiproxy.api import Api
from raytwin.chaos.toxiproxy.http_server import BadRequest, read_request, response

STATUSES = {200, 201, 204, 400, 404, 405, 409, 500}
NUMBERS = st.none() | st.booleans() | st.integers() | st.floats()
VALUES = st.recursive(
    NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
ATTRIBUTES = ["average_size", "bytes", "delay", "jitter", "latency", "rate", "timeout"]
ADDRESSES = ["127.0.0.1:0", "127.0.0.1:x", "127.0.0.1:99999", "[::1]:0", "\0:0", "." * 70 + ":0"]
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "b", "é/"]) | VALUES,
        "upstream": st.sampled_from(ADDRESSES) | VALUES,
        "listen": st.sampled_from(ADDRESSES) | NUMBERS,
        "enabled": VALUES,
        "type": st.sampled_from(["latency", "slicer", "bandwidth", "timeout"]) | VALUES,
        "stream": st.sampled_from(["upstream", "DownStream"]) | VALUES,
        "toxicity": VALUES,
        "attributes": VALUES | st.dictionaries(st.sampled_from(ATTRIBUTES), st.integers()),
    },
)
REQUESTS = st.tuples(
    st.sampled_from(["POST", "PATCH", "DELETE", "GET"]),
    st.sampled_from(
        [
            "/proxies", "/populate", "/reset", "/proxies/a", "/proxies/a/toxics",
            "/proxies/a/toxics/latency_upstream", "/proxies/%ff%00", "/proxies//toxics",
        ]
    ),
    st.one_of(
        FIELDS.map(json.dumps), st.lists(FIELDS, max_size=3).map(json.dumps),
        VALUES.map(json.dumps), st.text(max_size=20), st.just("[" * 100_000),
    ),
)  # fmt: skip


@given(st.lists(REQUESTS, max_size=6))
def test_any_request_is_answered(requests: list[tuple[str, str, str]]) -> None:
    async def run() -> None:
        api = Api()
        await api.answer(
            "POST", "/proxies", b'{"name": "a", "upstream": "127.0.0.1:9", "listen": "127.0.0.1:0"}'
        )
        for method, path, body in requests:
            status, data = await api.answer(method, path, body.encode(errors="surrogatepass"))
            assert status in STATUSES
            if data is not None:
                head, _, text = response(status, data, True).partition(b"\r\n\r\n")
                assert f"Content-Length: {len(text)}".encode() in head
                found = json.loads(text)
                if status >= 400:
                    assert found["status"] == status
                    assert found["error"]
            assert status < 400 or data is not None or status in (404, 405)
        for proxy in api.proxies.values():
            proxy.stop()

    asyncio.run(run())


PIECES = st.sampled_from(
    [
        b"GET", b"POST", b" ", b" /version", b" HTTP/1.1", b" HTTP/1.0", b" HTTP/2", b"\r\n",
        b"\r\n\r\n", b"Content-Length: ", b"5", b"-5", b"9" * 30, b"\xb2", b"Transfer-Encoding: x",
        b"Connection: close", b"\0", b": ", b"{}", b"A" * 70_000, b"a: b\r\n" * 150,
    ]
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(PIECES | st.binary(max_size=20), max_size=12).map(b"".join))
def test_any_bytes_are_a_request_or_a_bad_one(junk: bytes) -> None:
    async def read() -> Any:
        reader = asyncio.StreamReader(limit=1 << 16)
        reader.feed_data(junk)
        reader.feed_eof()
        try:
            return await read_request(reader)
        except (BadRequest, asyncio.IncompleteReadError) as error:
            return error

    found = asyncio.run(read())
    if isinstance(found, BadRequest):
        assert 400 <= found.status < 600
