"""Hostile or broken peers: their connection closes, a line is logged, the cluster goes on."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import raytwin as ray
from raytwin.runtime.control import messages as m
from raytwin.runtime.control.channels.channel import Hello
from raytwin.runtime.processes.net import auth, wire
from raytwin.runtime.processes.node.object_store import REQUEST
from tests.processes.helpers import LIMIT_S, eventually

square = ray.remote(lambda x: x * x)
FEW = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Target:
    """A cluster, its ports by name, and what its processes have logged."""

    def __init__(self, session: Any, log: Path) -> None:
        self.session = session
        self.log = log
        self.token: bytes = session.cluster._token
        self.ports = {"head": session.cluster._head}
        for row in ray.nodes():
            address = (row["NodeManagerAddress"], row["NodeManagerPort"])
            self.ports[f"node:{row['NodeID']}"] = address
        session.cluster.poll()
        self.pids = dict(session.cluster.pids)

    def connect(self, port: str) -> socket.socket:
        return socket.create_connection(self.ports[port], timeout=LIMIT_S)

    def proven(self, port: str, kind: bytes = auth.CHANNEL) -> socket.socket:
        """Return a connection that knows the token."""
        sock = self.connect(port)
        challenge = receive(sock, auth.CHALLENGE_BYTES)
        answer = auth.answer(self.token, challenge, kind)
        sock.sendall(answer)
        auth.check_acceptor(self.token, challenge, answer, receive(sock, auth.PROOF_BYTES))
        return sock

    def lines(self) -> int:
        return len(self.log.read_text().splitlines())

    def works(self) -> None:
        """Every process is the one that it was, and tasks run on both nodes."""
        on_one = square.options(resources={"node:1": 0.01})
        refs = [square.remote(i) for i in range(5)] + [on_one.remote(i) for i in range(5)]
        assert ray.get(refs, timeout=LIMIT_S) == [i * i for i in range(5)] * 2
        self.session.cluster.poll()
        assert not self.session.cluster.exited
        assert all(row["Alive"] for row in ray.nodes())


def greeting(name: str) -> bytes:
    """Return the first packet of a process of that name."""
    return wire.encode_hello(Hello(name, 1, 77, 0, 0))


def packet(number: int, source: str, destination: str, message: Any) -> bytes:
    return wire.encode_packet(number, 0, wire.encode_body(source, destination, [message]))


def receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        assert part, "closed too early"
        data += part
    return data


def is_closed(sock: socket.socket) -> None:
    """Wait until the other side has closed the connection."""
    sock.settimeout(LIMIT_S)
    try:
        while sock.recv(4096):
            continue
    except ConnectionResetError:
        return
    finally:
        sock.close()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A cluster of two nodes whose processes log to a file."""
    log = tmp_path_factory.mktemp("log") / "stderr"
    saved = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        session = ray.init(nodes=2, cpus_per_node=1)
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    yield Target(session, log)
    ray.shutdown()


PORTS = st.sampled_from(["head", "node:0", "node:1"])


@FEW
@given(PORTS, st.binary(min_size=1, max_size=300))
def test_junk_instead_of_a_handshake(target: Target, port: str, junk: bytes) -> None:
    before = target.lines()
    sock = target.connect(port)
    sock.sendall(junk)
    sock.shutdown(socket.SHUT_WR)
    is_closed(sock)
    eventually(lambda: target.lines() == before + 1)
    target.works()


@FEW
@given(PORTS, st.sampled_from([auth.CHANNEL, auth.DATA, b"?"]), st.binary(min_size=32, max_size=32))
def test_a_wrong_token(target: Target, port: str, kind: bytes, token: bytes) -> None:
    before = target.lines()
    sock = target.connect(port)
    sock.sendall(auth.answer(token, receive(sock, auth.CHALLENGE_BYTES), kind))
    is_closed(sock)
    eventually(lambda: target.lines() == before + 1)
    assert "token" in target.log.read_text().splitlines()[-1]
    target.works()


@pytest.mark.parametrize("port", ["head", "node:0", "node:1"])
def test_an_unknown_kind_of_connection(target: Target, port: str) -> None:
    before = target.lines()
    sock = target.connect(port)
    sock.sendall(auth.answer(target.token, receive(sock, auth.CHALLENGE_BYTES), b"X"))
    is_closed(sock)
    assert target.lines() == before + 1
    target.works()


@FEW
@given(PORTS, st.binary(min_size=1, max_size=500))
def test_malformed_frames_after_a_right_handshake(target: Target, port: str, junk: bytes) -> None:
    before = target.lines()
    sock = target.proven(port)
    sock.sendall(struct.pack(">I", len(junk)) + bytes(20) + junk)
    is_closed(sock)
    assert target.lines() == before + 1
    target.works()


@pytest.mark.parametrize("port", ["head", "node:0", "node:1"])
@pytest.mark.parametrize("length", [wire.FRAME_BYTES_MAX + 1, 2**31 - 1, 2**32 - 1])
def test_an_oversized_frame(target: Target, port: str, length: int) -> None:
    before = target.lines()
    sock = target.proven(port)
    sock.sendall(struct.pack(">I", length))
    is_closed(sock)
    assert target.lines() == before + 1
    shown = length if length < 2**31 else length - 2**31  # the highest bit marks a greeting
    assert f"{shown:,} bytes" in target.log.read_text().splitlines()[-1]
    target.works()


@pytest.mark.parametrize("port", ["head", "node:0"])
@pytest.mark.parametrize(
    "source", ["", "gcs", "global", "driver:0.0", "worker:0.1", "node:", "node:x", "node:-1",
               "node:01", "node:7 ", "node:0.1", "node:" + "9" * 50]
)  # fmt: skip
def test_a_sender_that_is_no_process_of_a_cluster(target: Target, port: str, source: str) -> None:
    before = target.lines()
    sock = target.proven(port)
    sock.sendall(greeting(source))
    is_closed(sock)
    assert target.lines() == before + 1
    target.works()


@pytest.mark.parametrize("port", ["head", "node:0"])
def test_a_sender_that_changes_its_name(target: Target, port: str) -> None:
    before = target.lines()
    sock = target.proven(port)
    event = m.Event("test", "x") if port == "head" else m.PullObject(b"x" * 18)
    destination = "gcs" if port == "head" else "node:0"
    sock.sendall(greeting("node:7") + packet(1, "node:7", destination, event))
    sock.sendall(packet(2, "node:1", destination, event))
    is_closed(sock)
    assert target.lines() == before + 1
    assert "speaks as node:1" in target.log.read_text().splitlines()[-1]
    target.works()


@pytest.mark.parametrize("port", ["head", "node:0"])
def test_a_frame_before_the_greeting(target: Target, port: str) -> None:
    before = target.lines()
    sock = target.proven(port)
    sock.sendall(packet(1, "node:7", "node:0", m.PullObject(b"x" * 18)))
    is_closed(sock)
    assert target.lines() == before + 1
    assert "greeted" in target.log.read_text().splitlines()[-1]
    target.works()


def test_heartbeats_go_to_the_failure_detector_alone(target: Target) -> None:
    for port, source, destination in (
        ("head", "node:7", "health"), ("head", "heartbeat:7", "gcs"),
        ("node:0", "heartbeat:7", "health"),
    ):  # fmt: skip
        before = target.lines()
        sock = target.proven(port, auth.HEARTBEATS)
        sock.sendall(wire.encode(source, destination, [m.Event("test", "x")]))
        is_closed(sock)
        assert target.lines() == before + 1
    target.works()


def test_a_node_that_calls_itself(target: Target) -> None:
    before = target.lines()
    sock = target.proven("node:1")
    sock.sendall(greeting("node:1"))
    is_closed(sock)
    assert target.lines() == before + 1
    target.works()


@FEW
@given(st.sampled_from(["node:0", "node:1"]), st.binary(min_size=1, max_size=200))
def test_junk_on_a_data_connection(target: Target, port: str, junk: bytes) -> None:
    sock = target.proven(port, auth.DATA)
    sock.sendall(junk)
    sock.shutdown(socket.SHUT_WR)
    answers = b""
    while part := sock.recv(4096):
        answers += part
    sock.close()
    # Each whole request for bytes is answered: the object is not here.
    whole = len(junk) // REQUEST.size * REQUEST.size
    asked = sum(length > 0 for _, _, length in REQUEST.iter_unpack(junk[:whole]))
    assert answers == struct.pack(">?Q", False, 0) * asked
    target.works()


def test_the_head_has_no_object_data(target: Target) -> None:
    before = target.lines()
    sock = target.connect("head")
    sock.sendall(auth.answer(target.token, receive(sock, auth.CHALLENGE_BYTES), auth.DATA))
    is_closed(sock)
    assert target.lines() == before + 1


def test_half_open_and_idle_connections_block_no_others(target: Target) -> None:
    silent = [target.connect(port) for port in target.ports for _ in range(30)]
    partial = [target.connect(port) for port in target.ports for _ in range(10)]
    for sock in partial:
        sock.sendall(b"x" * 10)
    halves = [target.proven(port) for port in target.ports for _ in range(10)]
    for sock in halves:
        sock.sendall(struct.pack(">I", 1000) + b"x" * 500)
    for _ in range(5):
        target.works()
    for sock in (*silent, *partial, *halves):
        sock.close()
    target.works()
    gone = {sock.fileno() for sock in (*silent, *partial, *halves)}
    assert gone == {-1}


def test_a_flood_of_connections(target: Target) -> None:
    node = psutil.Process(target.pids["node:0"])
    before = node.num_fds()
    for _ in range(300):
        target.connect("node:0").close()
    target.works()
    eventually(lambda: node.num_fds() <= before + 2)


def test_a_peer_that_does_not_read(target: Target) -> None:
    sock = target.proven("node:0")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.sendall(greeting("node:7"))
    deadline = time.monotonic() + LIMIT_S
    for number in range(1, 500):
        sock.sendall(packet(number, "node:7", "node:0", m.Query("timeline", 1, "x")))
        assert time.monotonic() < deadline
    target.works()
    sock.close()
    target.works()
