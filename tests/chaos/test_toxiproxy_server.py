"""One contract for two servers: the real Toxiproxy, and ours.

Each test runs against both, through plain HTTP, the client ``toxiproxy-python`` or `Proxies`; what
it sees of connections, it sees through sockets of its own. Where the real server behaves otherwise
on purpose of neither, the test says so.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
import toxiproxy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from raytwin.chaos.faults import proxied_links
from raytwin.chaos.toxiproxy.proxies import Proxies, ProxyError
from raytwin.chaos.toxiproxy.toxiproxy_process import (
    INSTALL,
    OURS,
    ServerError,
    ToxiproxyProcess,
    find_server,
)
from tests.requirements import require

pytestmark = pytest.mark.real

LIMIT_S = 30.0
"""How long something may take that is sure to happen."""
QUIET_S = 0.15
"""How long a test looks for what must not happen."""
SERVERS = ["ours", pytest.param("real", marks=pytest.mark.toxiproxy)]


class Server:
    """A running server, and what a test needs around it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.process = ToxiproxyProcess(command(kind))
        self.proxies = Proxies(self.process.url)
        self.client = toxiproxy.Toxiproxy()

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return status and data of an answer; `body` is text, or data to be sent as JSON."""
        connection = http.client.HTTPConnection(*self.address, timeout=LIMIT_S)
        with contextlib.closing(connection):
            text = body if isinstance(body, str) else json.dumps(body)
            connection.request(method, path, None if body is None else text.encode(), headers)
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if data.startswith((b"{", b"[")) else None

    @property
    def address(self) -> tuple[str, int]:
        return self.process.host, self.process.port

    def clear(self) -> None:
        for name in self.request("GET", "/proxies")[1]:
            self.request("DELETE", "/proxies/" + quote(name))


def command(kind: str) -> list[str]:
    """Return the command of a kind of server, or skip the test."""
    if kind == "ours":
        return list(OURS)
    try:
        path = find_server()
    except ServerError:
        path = None
    require("toxiproxy", path is not None, INSTALL)
    return [str(path)]


@pytest.fixture(scope="module", params=SERVERS)
def started(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.param)
    yield server
    server.process.stop()


@pytest.fixture
def server(started: Server) -> Iterator[Server]:
    # The client's address is global to its class.
    started.client.update_api_consumer(*started.address)
    yield started
    assert started.process.running
    started.clear()


class Wire:
    """A proxy in front of a listener of the test's, and the connections through it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(LIMIT_S)
        self.sockets: list[socket.socket] = [self.listener]
        host, port = self.listener.getsockname()
        self.upstream = f"{host}:{port}"
        self.address = server.proxies.add("wire", self.upstream)

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a new connection: the client's, and the upstream's."""
        client = socket.create_connection(self.address, LIMIT_S)
        upstream, _ = self.listener.accept()
        for sock in (client, upstream):
            sock.settimeout(LIMIT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sockets += [client, upstream]
        return client, upstream

    def toxic(self, kind: str, stream: str = "downstream", **attributes: int) -> None:
        self.server.proxies.add_toxic("wire", kind, stream, attributes)

    def update(self, kind: str, stream: str = "downstream", **attributes: int) -> None:
        self.server.proxies.update_toxic("wire", kind, stream, attributes)

    def remove(self, kind: str, stream: str = "downstream") -> None:
        self.server.proxies.remove_toxic("wire", kind, stream)


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    wire = Wire(server)
    yield wire
    for sock in wire.sockets:
        sock.close()


def receive(sock: socket.socket, nbytes: int) -> bytes:
    """Return `nbytes` bytes, fewer only if the stream ends."""
    data = bytearray()
    while len(data) < nbytes and (more := sock.recv(nbytes - len(data))):
        data += more
    return bytes(data)


def rest(sock: socket.socket) -> bytes:
    """Return all bytes up to the end of the stream, or to a reset."""
    data = bytearray()
    with contextlib.suppress(ConnectionError):
        while more := sock.recv(1 << 16):
            data += more
    return bytes(data)


def silent(sock: socket.socket) -> bool:
    """Whether neither bytes nor an end come for a while."""
    sock.settimeout(QUIET_S)
    try:
        sock.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(LIMIT_S)
    return False


def sent_in(data: bytes, sock: socket.socket) -> threading.Thread:
    """Send in a thread of its own."""
    thread = threading.Thread(target=sock.sendall, args=(data,), daemon=True)
    thread.start()
    return thread


def seconds_to(send: socket.socket, get: socket.socket, nbytes: int = 1) -> float:
    """Return how long bytes take from one end to the other."""
    begin = time.monotonic()
    send.sendall(bytes(nbytes))
    assert len(receive(get, nbytes)) == nbytes
    return time.monotonic() - begin


def fastest_s(send: socket.socket, get: socket.socket, nbytes: int = 1) -> float:
    """Return how long bytes take if the machine has time."""
    return min(seconds_to(send, get, nbytes) for _ in range(5))


# -- the HTTP API --------------------------------------------------------------------


def test_a_proxy_is_created_shown_listed_and_deleted(server: Server) -> None:
    given = {"name": "a", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9"}
    status, proxy = server.request("POST", "/proxies", given)
    assert status == 201
    host, _, port = proxy["listen"].rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    expected = given | {"listen": proxy["listen"], "enabled": True, "toxics": []}
    assert expected.items() <= proxy.items()
    assert server.request("GET", "/proxies/a") == (200, proxy)
    assert server.request("GET", "/proxies") == (200, {"a": proxy})
    assert server.request("DELETE", "/proxies/a") == (204, None)
    assert server.request("GET", "/proxies") == (200, {})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("GET", "/proxies/none", None, 404, "proxy not found"),
        ("POST", "/proxies/none", {}, 404, "proxy not found"),
        ("DELETE", "/proxies/none", None, 404, "proxy not found"),
        ("GET", "/proxies/none/toxics", None, 404, "proxy not found"),
        ("POST", "/proxies/none/toxics", {"type": "latency"}, 404, "proxy not found"),
        ("GET", "/proxies/a/toxics/none", None, 404, "toxic not found"),
        ("PATCH", "/proxies/a/toxics/none", {}, 404, "toxic not found"),
        ("DELETE", "/proxies/a/toxics/none", None, 404, "toxic not found"),
        ("POST", "/proxies", {}, 400, "missing required field: name"),
        ("POST", "/proxies", {"name": "b"}, 400, "missing required field: upstream"),
        ("POST", "/proxies", {"name": "a", "upstream": "x:1"}, 409, "proxy already exists"),
        ("POST", "/proxies/a/toxics", {"type": "latency"}, 409, "toxic already exists"),
        ("POST", "/proxies/a/toxics", {"type": "late"}, 400, "invalid toxic type"),
        ("POST", "/proxies/a/toxics", {}, 400, "invalid toxic type"),
        (
            "POST", "/proxies/a/toxics", {"type": "latency", "stream": "sideways"}, 400,
            "stream was invalid, can be either upstream or downstream",
        ),
        (
            "POST", "/populate", [{"name": "b", "upstream": "x:1"}, {"upstream": "x:1"}], 400,
            "missing required field: name at proxy 2",
        ),
    ],
)  # fmt: skip
def test_errors_have_a_status_and_say_why(
    server: Server, method: str, path: str, body: Any, status: int, error: str
) -> None:
    server.proxies.add("a", "127.0.0.1:9")
    server.proxies.add_toxic("a", "latency", "downstream", {})
    got, data = server.request(method, path, body)
    assert got == status
    assert data.items() >= {"error": error, "status": status}.items()


@pytest.mark.parametrize("path", ["/proxies", "/populate", "/proxies/a", "/proxies/a/toxics"])
@pytest.mark.parametrize("body", ["", "{", "7", '"text"', '{"name": 7}', '[{"upstream": []}]'])
def test_a_bad_body_is_refused(server: Server, path: str, body: str) -> None:
    server.proxies.add("a", "127.0.0.1:9")
    status, data = server.request("POST", path, body)
    assert (status, data["status"]) == (400, 400)
    assert data["error"].startswith("bad request body: ")
    assert list(server.request("GET", "/proxies")[1]) == ["a"]


@pytest.mark.parametrize("value", [1.5, "5", True, [5], 2**63])
def test_an_attribute_of_the_wrong_type_is_refused(server: Server, value: object) -> None:
    server.proxies.add("a", "127.0.0.1:9")
    body = {"type": "latency", "attributes": {"latency": value}}
    status, data = server.request("POST", "/proxies/a/toxics", body)
    assert status == 400
    assert data["error"].startswith("bad request body: ")
    assert server.request("GET", "/proxies/a/toxics") == (200, [])


@pytest.mark.parametrize("listen", ["127.0.0.1:no-such-port", "127.0.0.1", "192.0.2.1:0"])
def test_an_address_that_nobody_can_listen_on_is_an_error(server: Server, listen: str) -> None:
    body = {"name": "a", "listen": listen, "upstream": "127.0.0.1:9"}
    status, data = server.request("POST", "/proxies", body)
    assert (status, data["status"]) == (500, 500)
    assert data["error"]
    assert server.request("GET", "/proxies") == (200, {})


def test_a_port_that_is_taken_is_an_error(server: Server) -> None:
    host, port = server.proxies.add("a", "127.0.0.1:9")
    body = {"name": "b", "listen": f"{host}:{port}", "upstream": "127.0.0.1:9"}
    status, data = server.request("POST", "/proxies", body)
    assert status == 500
    assert "address already in use" in data["error"].lower()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404), ("GET", "/proxies/a/b", 404), ("POST", "/proxies/a/toxics/b/c", 404),
        ("PUT", "/proxies", 405), ("GET", "/reset", 405), ("POST", "/version", 405),
        ("PUT", "/proxies/a", 405), ("DELETE", "/proxies/a/toxics", 405),
    ],
)  # fmt: skip
def test_unknown_paths_and_methods(server: Server, method: str, path: str, status: int) -> None:
    assert server.request(method, path) == (status, None)


def test_browsers_are_kept_out(server: Server) -> None:
    agent = {"User-Agent": "Mozilla/5.0 (X11)"}
    assert server.request("POST", "/reset", **agent)[0] == 403


def test_one_connection_carries_several_requests(server: Server) -> None:
    connection = http.client.HTTPConnection(*server.address, timeout=LIMIT_S)
    with contextlib.closing(connection):
        for _ in range(3):
            connection.request("GET", "/version")
            answer = connection.getresponse()
            assert answer.status == 200
            assert json.loads(answer.read()).keys() == {"version"}
            connection.request("POST", "/reset")
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (204, b"")


def test_names_may_have_any_letters(server: Server) -> None:
    name = "node0→node1 (a&b)?"
    body = {"name": name, "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9"}
    assert server.request("POST", "/proxies", body)[0] == 201
    assert server.request("GET", "/proxies/" + quote(name))[1]["name"] == name
    server.proxies.add_toxic(name, "latency", "upstream", {"latency": 5})
    assert [toxic["type"] for toxic in server.proxies.toxics(name)] == ["latency"]
    server.proxies.remove(name)


def test_populate_keeps_what_is_the_same_and_replaces_the_rest(server: Server) -> None:
    def body(**upstreams: str) -> list[dict[str, str]]:
        return [
            {"name": name, "listen": listens.get(name, "127.0.0.1:0"), "upstream": upstream}
            for name, upstream in upstreams.items()
        ]

    listens: dict[str, str] = {}
    status, data = server.request("POST", "/populate", body(a="127.0.0.1:1", b="127.0.0.1:1"))
    assert status == 201
    listens = {proxy["name"]: proxy["listen"] for proxy in data["proxies"]}
    assert list(listens) == ["a", "b"]
    for name in listens:
        server.proxies.add_toxic(name, "latency", "upstream", {})
    again = body(a="127.0.0.1:1", b="127.0.0.1:2", c="127.0.0.1:1")
    status, data = server.request("POST", "/populate", again)
    assert status == 201
    found = {proxy["name"]: proxy for proxy in data["proxies"]}
    assert {name: len(proxy["toxics"]) for name, proxy in found.items()} == {"a": 1, "b": 0, "c": 0}
    assert found["b"]["upstream"] == "127.0.0.1:2"
    assert {name: found[name]["listen"] for name in listens} == listens


def test_populate_says_what_it_has_done_before_an_error(server: Server) -> None:
    good = {"name": "a", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9"}
    bad = {"name": "b", "listen": "127.0.0.1:no-such-port", "upstream": "127.0.0.1:9"}
    status, data = server.request("POST", "/populate", [good, bad])
    assert (status, data["status"]) == (500, 500)
    assert [proxy["name"] for proxy in data["proxies"]] == ["a"]


def test_toxics_have_defaults_and_an_order(server: Server) -> None:
    server.proxies.add("a", "127.0.0.1:9")
    default = {
        "name": "latency_downstream", "type": "latency", "stream": "downstream", "toxicity": 1,
        "attributes": {"latency": 0, "jitter": 0},
    }  # fmt: skip
    created = server.request("POST", "/proxies/a/toxics", {"type": "latency"})
    assert created == (200, default)
    other = {"type": "slicer", "name": "s", "stream": "upstream", "toxicity": 0.5}
    status, second = server.request("POST", "/proxies/a/toxics", other)
    assert status == 200
    assert second["attributes"] == {"average_size": 0, "size_variation": 0, "delay": 0}
    assert server.request("GET", "/proxies/a/toxics") == (200, [second, default])
    assert server.request("GET", "/proxies/a")[1]["toxics"] == [second, default]
    assert server.request("GET", "/proxies/a/toxics/s") == (200, second)


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("bandwidth", {"rate": 3}),
        ("latency", {"latency": 3, "jitter": 1}),
        ("limit_data", {"bytes": 3}),
        ("noop", {}),
        ("reset_peer", {"timeout": 3}),
        ("slicer", {"average_size": 3, "size_variation": 1, "delay": 2}),
        ("slow_close", {"delay": 3}),
        ("timeout", {"timeout": 3}),
    ],
)
def test_every_kind_of_toxic_keeps_its_attributes(
    server: Server, kind: str, attributes: dict[str, int]
) -> None:
    server.proxies.add("a", "127.0.0.1:9")
    server.proxies.add_toxic("a", kind, "upstream", attributes)
    (toxic,) = server.proxies.toxics("a")
    assert toxic["attributes"] == attributes


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_an_update_changes_what_it_names(server: Server, method: str) -> None:
    server.proxies.add("a", "127.0.0.1:9")
    server.proxies.add_toxic("a", "latency", "upstream", {"latency": 5, "jitter": 2})
    path = "/proxies/a/toxics/latency_upstream"
    status, toxic = server.request(method, path, {"attributes": {"latency": 7}})
    assert (status, toxic["attributes"], toxic["toxicity"]) == (200, {"latency": 7, "jitter": 2}, 1)
    status, toxic = server.request(method, path, {"toxicity": 0.25})
    assert (toxic["attributes"], toxic["toxicity"]) == ({"latency": 7, "jitter": 2}, 0.25)
    assert server.request("GET", path) == (200, toxic)


def test_reset_enables_proxies_and_removes_toxics(server: Server) -> None:
    address = server.proxies.add("a", "127.0.0.1:9")
    server.proxies.add_toxic("a", "latency", "upstream", {})
    server.proxies.add_toxic("a", "timeout", "downstream", {})
    server.proxies.enable("a", False)
    server.proxies.reset()
    proxy = server.request("GET", "/proxies/a")[1]
    assert (proxy["enabled"], proxy["toxics"]) == (True, [])
    socket.create_connection(address, LIMIT_S).close()


# -- the client ----------------------------------------------------------------------


def test_the_client_manages_proxies(server: Server) -> None:
    client = server.client
    assert client.running()
    assert b"version" in client.version()
    created = client.create(upstream="127.0.0.1:9", name="a")
    with pytest.raises(ProxyExists):
        client.create(upstream="127.0.0.1:9", name="a")
    client.populate([{"name": "b", "upstream": "127.0.0.1:9", "listen": "127.0.0.1:0"}])
    assert set(client.proxies()) == {"a", "b"}
    assert client.get_proxy("a").listen == created.listen
    with created.down():
        assert not client.get_proxy("a").enabled
    assert client.get_proxy("a").enabled
    assert client.destroy(created)
    assert client.get_proxy("a") is None
    client.destroy_all()
    assert client.proxies() == {}


def test_the_client_manages_toxics(server: Server) -> None:
    proxy = server.client.create(upstream="127.0.0.1:9", name="a")
    proxy.add_toxic(type="latency", attributes={"latency": 5})
    proxy.add_toxic(type="bandwidth", name="b", stream="upstream", toxicity=0.5)
    assert set(proxy.toxics()) == {"latency_downstream", "b"}
    assert proxy.get_toxic("latency_downstream").attributes == {"latency": 5, "jitter": 0}
    assert proxy.get_toxic("b").toxicity == 0.5
    with pytest.raises(InvalidToxic):
        proxy.add_toxic(type="late")
    with pytest.raises(NotFound):
        proxy.destroy_toxic("none")
    proxy.destroy_toxic("b")
    server.client.reset()
    assert proxy.toxics() == {}


def test_proxies_say_what_the_server_says(server: Server) -> None:
    server.proxies.add("a", "127.0.0.1:9")
    with pytest.raises(ProxyError, match="proxy already exists"):
        server.proxies.add("a", "127.0.0.1:9")
    with pytest.raises(ProxyError, match="invalid toxic type"):
        server.proxies.add_toxic("a", "late", "upstream", {})
    with pytest.raises(ProxyError, match="toxic not found"):
        server.proxies.update_toxic("a", "latency", "upstream", {})
    with pytest.raises(ProxyError, match="toxic not found"):
        server.proxies.remove_toxic("a", "latency", "upstream")
    with pytest.raises(ProxyError, match="proxy not found"):
        server.proxies.remove("b")
    with pytest.raises(ProxyError, match="assign requested address"):  # Status 500.
        server.proxies.add("b", "127.0.0.1:9", host="192.0.2.1")


def test_two_servers_in_one_process_do_not_mix(server: Server) -> None:
    with ToxiproxyProcess(command(server.kind)) as process:
        other = Proxies(process.url)
        server.proxies.add("a", "127.0.0.1:9")
        other.add("b", "127.0.0.1:9")
        server.proxies.add_toxic("a", "latency", "upstream", {})
        with pytest.raises(ProxyError, match="proxy not found"):
            other.toxics("a")
    with pytest.raises(ProxyError, match="no answer from"):
        other.reset()
    assert len(server.proxies.toxics("a")) == 1


# -- connections without toxics ------------------------------------------------------


@pytest.mark.parametrize("toxics", [False, True], ids=["plain", "toxics"])
def test_what_is_relayed_is_exact_and_ordered(wire: Wire, toxics: bool, seed: int) -> None:
    if toxics:
        for stream in ("upstream", "downstream"):
            wire.toxic("latency", stream, latency=5, jitter=4)
            wire.toxic("slicer", stream, average_size=5000, size_variation=3000, delay=1)
            wire.toxic("bandwidth", stream, rate=50_000)
    rng = random.Random(seed)
    pairs = [wire.connect() for _ in range(4)]
    ends = [*pairs, *((upstream, client) for client, upstream in pairs)]
    contents = [rng.randbytes(rng.randrange(500_000, 1_500_000)) for _ in ends]
    threads = [sent_in(data, sender) for data, (sender, _) in zip(contents, ends, strict=True)]
    got: list[bytes] = [b""] * len(ends)

    def read(i: int) -> None:
        got[i] = receive(ends[i][1], len(contents[i]))

    threads += [threading.Thread(target=read, args=(i,), daemon=True) for i in range(len(ends))]
    for thread in threads[len(ends) :]:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert got == contents


def test_many_connections_at_once(wire: Wire) -> None:
    pairs = [wire.connect() for _ in range(200)]
    for i, (client, _) in enumerate(pairs):
        client.sendall(b"%d\n" % i)
    for i, (_, upstream) in enumerate(pairs):
        assert receive(upstream, len(b"%d\n" % i)) == b"%d\n" % i


@pytest.mark.parametrize("stalled", [False, True], ids=["slow receiver", "stalled link"])
def test_a_receiver_that_does_not_read_stops_the_sender(
    wire: Wire, stalled: bool, seed: int
) -> None:
    if stalled:
        wire.toxic("bandwidth", "upstream", rate=0)
    client, upstream = wire.connect()
    block = random.Random(seed).randbytes(1 << 20)
    client.settimeout(1.0)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 256 << 20:
            sent += client.send(block[sent % len(block) :])
    if stalled:
        assert silent(upstream)
        wire.remove("bandwidth", "upstream")
    client.shutdown(socket.SHUT_WR)
    got = rest(upstream)
    assert len(got) == sent
    assert got == (block * (sent // len(block) + 1))[:sent]


def test_an_end_of_stream_comes_behind_the_bytes(wire: Wire) -> None:
    """The other direction goes on with our server; the real one closes the whole connection."""
    client, upstream = wire.connect()
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)
    assert rest(upstream) == b"question"
    if wire.server.kind == "ours":
        assert silent(client)
        upstream.sendall(b"answer")
        upstream.close()
    assert rest(client) == (b"answer" if wire.server.kind == "ours" else b"")


def test_the_end_of_the_upstream_comes_behind_its_bytes(wire: Wire) -> None:
    client, upstream = wire.connect()
    upstream.sendall(bytes(300_000))
    upstream.close()
    assert len(rest(client)) == 300_000


@pytest.mark.parametrize("loser", ["client", "upstream"])
def test_the_loss_of_one_end_closes_the_other(wire: Wire, loser: str) -> None:
    client, upstream = wire.connect()
    lost, left = (client, upstream) if loser == "client" else (upstream, client)
    lost.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    lost.close()
    assert rest(left) == b""
    with pytest.raises(ConnectionError):  # Nobody is there to take it.
        left.sendall(bytes(256 << 20))


def test_an_upstream_that_refuses_closes_the_client(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())
    client = socket.create_connection(server.proxies.add("a", address), LIMIT_S)
    assert rest(client) == b""
    client.close()


@pytest.mark.parametrize("deleted", [False, True], ids=["disabled", "deleted"])
def test_a_disabled_proxy_closes_connections_and_listener(wire: Wire, deleted: bool) -> None:
    wire.toxic("latency", latency=60_000)
    pairs = [wire.connect() for _ in range(3)]
    pairs[0][1].sendall(b"never arrives")
    proxies = wire.server.proxies
    if deleted:
        proxies.remove("wire")
    else:
        proxies.enable("wire", False)
    for client, upstream in pairs:
        assert rest(client) == b""
        assert rest(upstream) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(wire.address, LIMIT_S)
    if not deleted:
        proxies.enable("wire", True)
        wire.remove("latency")
        seconds_to(*wire.connect())


def test_another_upstream_starts_the_proxy_again(wire: Wire) -> None:
    client, _ = wire.connect()
    old = wire.listener
    wire.listener = socket.create_server(("127.0.0.1", 0))
    wire.sockets.append(wire.listener)
    host, port = wire.listener.getsockname()
    status, proxy = wire.server.request("PATCH", "/proxies/wire", {"upstream": f"{host}:{port}"})
    assert (status, proxy["enabled"]) == (200, True)
    assert proxy["listen"] == "{}:{}".format(*wire.address)
    assert rest(client) == b""
    seconds_to(*wire.connect())
    old.settimeout(QUIET_S)
    with pytest.raises(TimeoutError):
        old.accept()


def test_a_lack_of_descriptors_passes() -> None:
    few = ["sh", "-c", 'ulimit -n 40; exec "$@"', "sh", *OURS]
    with ToxiproxyProcess(few) as process, socket.create_server(("127.0.0.1", 0)) as listener:
        address = Proxies(process.url).add("a", "{}:{}".format(*listener.getsockname()))
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(socket.create_connection(address, LIMIT_S))
        threading.Thread(target=greet, args=(listener,), daemon=True).start()
        deadline = time.monotonic() + LIMIT_S
        while True:  # A client may still be refused.
            with socket.create_connection(address, LIMIT_S) as client:
                client.settimeout(LIMIT_S)
                if rest(client) == b"hello":
                    break
            assert time.monotonic() < deadline


def greet(listener: socket.socket) -> None:
    """Greet and close each connection until the listener is closed."""
    with contextlib.suppress(OSError):
        while True:
            sock, _ = listener.accept()
            with sock, contextlib.suppress(ConnectionError):
                sock.sendall(b"hello")


# -- toxics --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
def test_latency_delays_one_direction_until_it_is_removed(wire: Wire, stream: str) -> None:
    client, upstream = wire.connect()
    there, back = (client, upstream) if stream == "upstream" else (upstream, client)
    plain_s = fastest_s(there, back)
    wire.toxic("latency", stream, latency=50)  # On a living connection.
    assert 0.04 < fastest_s(there, back) - plain_s < 0.5
    wire.update("latency", stream, latency=250)
    assert 0.2 < seconds_to(there, back) - plain_s < 2.5
    assert fastest_s(back, there) < 0.2
    new = wire.connect()
    assert seconds_to(*(new if stream == "upstream" else new[::-1])) > 0.2
    wire.remove("latency", stream)
    assert fastest_s(there, back) < 0.2


def test_jitter_is_to_both_sides_of_the_latency_and_no_delay_is_negative(wire: Wire) -> None:
    wire.toxic("latency", latency=10, jitter=40)
    client, upstream = wire.connect()
    times = [seconds_to(upstream, client) for _ in range(80)]
    # Three of eight delays would be negative, and as many are between 20 and 50 ms.
    assert sum(each < 0.01 for each in times) > 80 / 8
    assert sum(each > 0.02 for each in times) > 80 / 8


def test_latency_leaves_the_throughput(wire: Wire) -> None:
    wire.toxic("latency", latency=100)
    client, upstream = wire.connect()
    begin = time.monotonic()
    for _ in range(30):
        upstream.sendall(b"x")
        time.sleep(0.005)
    assert receive(client, 30) == b"x" * 30
    assert time.monotonic() - begin < 30 * 0.1 / 2


def test_what_latency_holds_arrives_when_it_is_removed(wire: Wire) -> None:
    wire.toxic("latency", latency=60_000)
    client, upstream = wire.connect()
    upstream.sendall(b"held")
    assert silent(client)
    wire.remove("latency")
    assert receive(client, 4) == b"held"


def test_bandwidth_limits_the_rate(wire: Wire) -> None:
    client, upstream = wire.connect()
    wire.toxic("bandwidth", rate=200)
    limited_s = seconds_to(upstream, client, 100_000)
    assert 0.4 < limited_s < 4.0
    wire.update("bandwidth", rate=100_000)
    assert fastest_s(upstream, client, 100_000) < limited_s / 2


def test_a_rate_of_0_stalls_until_it_changes(wire: Wire) -> None:
    client, upstream = wire.connect()
    wire.toxic("bandwidth", rate=0)
    upstream.sendall(b"stalled")
    assert silent(client)
    client.sendall(b"other direction")
    assert receive(upstream, 15) == b"other direction"
    wire.update("bandwidth", rate=1000)
    assert receive(client, 7) == b"stalled"


def test_a_timeout_of_0_drops_until_its_removal_closes(wire: Wire) -> None:
    client, upstream = wire.connect()
    wire.toxic("timeout", timeout=0)
    upstream.sendall(bytes(1 << 20))  # More than fits anywhere if nobody reads.
    assert silent(client)
    assert silent(upstream)
    client.sendall(b"other direction")
    assert receive(upstream, 15) == b"other direction"
    wire.remove("timeout")
    assert rest(client) == b""
    assert rest(upstream) == b""
    seconds_to(*wire.connect())


def test_a_timeout_closes_both_ends(wire: Wire) -> None:
    wire.toxic("timeout", timeout=200)
    begin = time.monotonic()
    client, upstream = wire.connect()
    upstream.sendall(b"dropped")
    assert rest(client) == b""
    assert 0.19 < time.monotonic() - begin < 5
    assert rest(upstream) == b""


def test_slow_close_delays_the_end_only(wire: Wire) -> None:
    client, upstream = wire.connect()
    wire.toxic("slow_close", delay=300)
    assert fastest_s(upstream, client) < 0.25
    begin = time.monotonic()
    upstream.close()
    assert rest(client) == b""
    assert 0.25 < time.monotonic() - begin < 5


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
def test_reset_peer_resets_both_ends(wire: Wire, stream: str) -> None:
    wire.toxic("reset_peer", stream, timeout=50)
    client, upstream = wire.connect()
    assert silent(client)
    (client if stream == "upstream" else upstream).sendall(b"lost")
    for sock in (client, upstream):
        with pytest.raises(ConnectionResetError):
            sock.recv(100)


def test_reset_peer_ends_living_connections(wire: Wire) -> None:
    """By RST with our server; the real one only closes those that are older than the toxic."""
    client, upstream = wire.connect()
    seconds_to(client, upstream)
    wire.toxic("reset_peer", "upstream", timeout=0)
    client.sendall(b"lost")
    for sock in (client, upstream):
        if wire.server.kind == "ours":
            with pytest.raises(ConnectionResetError):
                sock.recv(100)
        else:
            assert rest(sock) == b""


def test_a_proxy_that_is_disabled_under_reset_peer_resets(wire: Wire) -> None:
    wire.toxic("reset_peer", timeout=60_000)
    client, upstream = wire.connect()
    assert silent(client)
    wire.server.proxies.enable("wire", False)
    for sock in (client, upstream):
        with pytest.raises(ConnectionResetError):
            sock.recv(100)


@pytest.mark.parametrize("rst", [True, False])
def test_our_server_resets_a_link_as_asked(rst: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxied_links, "find_server", lambda: None)
    links = proxied_links.ToxiproxyLinks(2, "127.0.0.1")
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            links.listening("node:1", listener.getsockname())
            address = links.addresses_for("node:0")["node:1"]
            for _ in range(2):
                with socket.create_connection(address, LIMIT_S) as dialed:
                    accepted, _ = listener.accept()
                    with accepted:
                        accepted.settimeout(LIMIT_S)
                        seconds_to(dialed, accepted)
                        links.reset_links("node:0", "node:1", rst)
                        for sock in (dialed, accepted):
                            if rst:
                                with pytest.raises(ConnectionResetError):
                                    sock.recv(100)
                            else:
                                assert sock.recv(100) == b""
    finally:
        links.close()


def test_slicer_cuts_into_pieces(wire: Wire) -> None:
    wire.toxic("slicer", average_size=100, size_variation=50, delay=5000)
    client, upstream = wire.connect()
    upstream.sendall(bytes(5000))
    sizes = []
    while sum(sizes) < 5000:
        sizes.append(len(client.recv(5000)))
    assert 10 < len(sizes) < 200
    assert statistics.median(sizes) < 1000


def test_limit_data_closes_behind_its_bytes(wire: Wire) -> None:
    wire.toxic("limit_data", bytes=100)
    client, upstream = wire.connect()
    seconds_to(upstream, client, 60)
    upstream.sendall(bytes(60))
    assert len(rest(client)) == 40
    assert rest(upstream) == b""


def test_toxics_follow_one_another(wire: Wire) -> None:
    wire.toxic("limit_data", bytes=10)
    wire.toxic("latency", latency=100)
    client, upstream = wire.connect()
    begin = time.monotonic()
    upstream.sendall(b"0123456789abc")
    assert rest(client) == b"0123456789"
    assert time.monotonic() - begin > 0.09


def test_toxicity_is_the_share_of_connections(wire: Wire) -> None:
    wire.server.proxies.add_toxic("wire", "limit_data", "downstream", {"bytes": 1}, 0.5)
    pairs = [wire.connect() for _ in range(60)]
    got = []
    for client, upstream in pairs:
        upstream.sendall(b"ab")
        upstream.close()
        got.append(rest(client))
    assert set(got) == {b"a", b"ab"}  # 60 equal draws: once in 10^17 runs.


# -- junk ----------------------------------------------------------------------------

FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
LINES = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda *parts: b" ".join(parts) + b"\r\n",
        st.sampled_from([b"GET", b"POST", b"DELETE", b"get", b"\xff"]),
        st.sampled_from([b"/proxies", b"/proxies/%ff", b"/proxies/a/toxics", b"//", b"*", b""]),
        st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9", b""]),
    ),
    st.sampled_from(
        [
            b"\r\n", b"Host: a\r\n", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n",
            b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n",
            b"Connection: close\r\n", b": \r\n", b"\0\r\n", b"{}",
        ]
    ),
)  # fmt: skip


@FEW
@given(junk=st.lists(LINES, max_size=8))
def test_junk_on_the_api_closes_its_connection_and_nothing_else(
    wire: Wire, junk: list[bytes]
) -> None:
    pair = wire.connect()
    with socket.create_connection(wire.server.address, LIMIT_S) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(b"".join(junk))
            sock.shutdown(socket.SHUT_WR)
        rest(sock)
    seconds_to(*pair)
    assert wire.server.request("GET", "/version")[0] == 200


# -- processes -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_dies_with_its_parent(kind: str) -> None:
    program = f"""
from raytwin.chaos.toxiproxy.toxiproxy_process import ToxiproxyProcess
import threading, time
servers = []
thread = threading.Thread(target=lambda: servers.append(ToxiproxyProcess({command(kind)!r})))
thread.start()
thread.join()
time.sleep(0.2)
print(servers[0].pid, servers[0].running, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pid, running = parent.stdout.readline().split()
        assert running == "True", "the server outlives the thread that started it"
        child = psutil.Process(int(pid))
        parent.kill()
        child.wait(LIMIT_S)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_stopped_server_is_gone(kind: str) -> None:
    with ToxiproxyProcess(command(kind)) as process:
        address = Proxies(process.url).add("a", "127.0.0.1:9")
        child = psutil.Process(process.pid)
    assert not child.is_running()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, LIMIT_S)


def test_a_server_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="ended with"):
        ToxiproxyProcess([str(tmp_path / "none")])
    with pytest.raises(ServerError, match="ended with 3"):
        ToxiproxyProcess([sys.executable, "-c", "raise SystemExit(3)"])


def test_an_address_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [*OURS, "-host", "127.0.0.1", "-port", port],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server(number: signal.Signals) -> None:
    with subprocess.Popen([*OURS, "-port", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("serving")
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 0


def test_the_real_server_is_found_by_name(tmp_path: Path) -> None:
    def program(path: Path) -> str:
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return str(path)

    home = {"PATH": str(tmp_path / "path"), "GOPATH": str(tmp_path)}
    assert find_server(home) is None
    installed_by_go = program(tmp_path / "bin" / "server")
    assert find_server(home) == installed_by_go
    packaged = program(tmp_path / "path" / "toxiproxy-server")
    assert find_server(home) == packaged
    named = program(tmp_path / "mine")
    assert find_server(home | {"TOXIPROXY_SERVER": named}) == named
    with pytest.raises(ServerError, match="none, which is no program: go install"):
        find_server(home | {"TOXIPROXY_SERVER": str(tmp_path / "none")})


@pytest.mark.toxiproxy
def test_a_hop_costs_no_more_than_a_few_times_that_of_the_real_server() -> None:
    echo = socket.create_server(("127.0.0.1", 0))
    address = "{}:{}".format(*echo.getsockname())
    with contextlib.ExitStack() as stack:
        stack.enter_context(echo)
        ways = {}
        for kind in ("ours", "real"):
            process = stack.enter_context(ToxiproxyProcess(command(kind)))
            client = socket.create_connection(Proxies(process.url).add("a", address), LIMIT_S)
            ways[kind] = (stack.enter_context(client), stack.enter_context(echo.accept()[0]))
        times: dict[str, list[float]] = {kind: [] for kind in ways}
        for _ in range(30):
            for kind, way in ways.items():
                times[kind] += [seconds_to(*way, 100) + seconds_to(*way[::-1], 100)]
    medians = {kind: statistics.median(found) for kind, found in times.items()}
    assert medians["ours"] < 5 * medians["real"], medians


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_has_more_proxies_than_its_parent_may_have_files(kind: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 256
    ends = {f"{n}": ("127.0.0.1:1", (f"127.0.1.{n}", 0)) for n in range(1, 250)}
    ends |= {f"{n}'": each for n, each in ends.items()}
    assert few < len(ends) < hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        with ToxiproxyProcess(command(kind)) as process:
            proxies = Proxies(process.url)
            proxies.add_all(ends)
            proxies.add_toxic("249'", "latency", "upstream", {"latency": 1})
            assert len(proxies.toxics("249'")) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
