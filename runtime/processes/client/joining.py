"""Joins a running cluster as a further driver: ``init(address=...)``.

`driver_admission` is the node's side. A driver that has joined has a socket to node 0 and that
node's arena, like the first driver; but the cluster does not end with it.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from typing import Any

import msgspec

from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.control.core.ids import job_id, root_task_id
from raytwin.runtime.processes.client import running_clusters
from raytwin.runtime.processes.client.driver_sessions import DriverSession, make_driver
from raytwin.runtime.processes.client.running_clusters import ClusterFile
from raytwin.runtime.processes.net import auth
from raytwin.runtime.processes.net.process_settings import (
    ARENA_FDS,
    LENGTH_BYTES,
    Welcome,
    abstract,
)
from raytwin.runtime.session import job_setup
from raytwin.runtime.store.arena import Arena

ANSWER_TIMEOUT_S = 30.0
AUTO = "auto"
_ADDRESS = re.compile(r"[^:/]+:[0-9]+")


def join(address: str) -> DriverSession:
    """Join the cluster at ``host:port``, or with ``"auto"`` the one started last.

    Raises ConnectionError if there is none, ValueError for a malformed address.
    """
    return _join_over(*_find(address))


def check(address: str) -> None:
    """Check that there is a cluster at an address, without joining it; raises as `join`."""
    sock, _ = _find(address)
    sock.close()


def _find(address: str) -> tuple[socket.socket, ClusterFile]:
    """Return a connection to a cluster's join socket, and its file; raises as `join`."""
    if address != AUTO and not _ADDRESS.fullmatch(address):
        raise ValueError(f"raytwin cannot connect to {address!r}: an address is host:port or auto")
    entries = running_clusters.running()
    if address != AUTO:
        entries = [entry for entry in entries if entry[1].address == address]
    for path, cluster in entries:
        try:
            sock = _connect(cluster)
        except (ConnectionRefusedError, FileNotFoundError):
            # No process listens: the cluster was killed before it could remove its file.
            path.unlink(missing_ok=True)
            continue
        return sock, cluster
    where = "on this machine" if address == AUTO else f"at {address!r}"
    raise ConnectionError(
        f"no raytwin cluster of this user is running {where}: `raytwin start` starts one,"
        " and `init()` without an address one that ends with its program"
    )


def _connect(cluster: ClusterFile) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(ANSWER_TIMEOUT_S)
    try:
        sock.connect(abstract(cluster.join_socket))
    except BaseException:
        sock.close()
        raise
    return sock


def _join_over(sock: socket.socket, cluster: ClusterFile) -> DriverSession:
    try:
        welcome, arena_fds = _handshake(sock, bytes.fromhex(cluster.token))
    except (OSError, auth.AuthError) as error:
        sock.close()
        raise ConnectionError(f"cannot join {cluster.address}: {error}") from error
    if not welcome.address:
        sock.close()
        for fd in arena_fds:
            os.close(fd)
        raise RaySystemError(f"cannot join {cluster.address}: {welcome.reason}")
    sock.settimeout(None)
    root = root_task_id(uuid.uuid4().hex, job_id(welcome.job))
    arena = Arena.attach(*arena_fds)
    session = make_driver(
        welcome.address, welcome.node, welcome.config, root, sock, arena, cluster.address
    )
    session.tasks.setup = job_setup.describe()
    return session


def _handshake(sock: socket.socket, token: bytes) -> tuple[Welcome, list[int]]:
    challenge = _receive(sock, auth.CHALLENGE_BYTES)
    answer = auth.answer(token, challenge, auth.DATA)
    sock.sendall(answer)
    auth.check_acceptor(token, challenge, answer, _receive(sock, auth.PROOF_BYTES))
    head, fds, _, _ = socket.recv_fds(sock, LENGTH_BYTES, ARENA_FDS)
    if len(head) != LENGTH_BYTES or len(fds) != ARENA_FDS:
        raise ConnectionResetError("the cluster closed the connection")
    body = _receive(sock, int.from_bytes(head, "big"))
    return msgspec.msgpack.decode(body, type=Welcome), fds


def _receive(sock: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        part = sock.recv(nbytes - len(data))
        if not part:
            raise ConnectionResetError("the cluster closed the connection")
        data += part
    return data


def connect(address: str, **options: Any) -> DriverSession:
    """Join a cluster; raises ValueError for options, which only a new cluster can have."""
    if options:
        raise ValueError(
            f"the cluster at {address!r} is there already: {', '.join(sorted(options))} cannot be"
            " chosen when joining it (address 'local' starts one)"
        )
    return join(address)
