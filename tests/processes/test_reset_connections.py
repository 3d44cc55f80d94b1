"""TCP connections between living processes of a cluster are reset from outside.

No proxy is on the way: the test duplicates a socket of a node or of the head and disconnects it,
upon which the kernel sends the peer an RST and fails the owner's next operation. A firewall that
forgets its connections looks like that. The channels resume: no call is lost or made twice.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import socket
from collections.abc import Iterator

import pytest

import raytwin as ray
from raytwin.runtime.processes.net.connection import TCP_SILENCE_S
from tests.chaos.test_link_faults import NODES, Program, alive
from tests.requirements import require

LIBC = ctypes.CDLL(None, use_errno=True)
PIDFD_GETFD = 438
"""The number of the system call, the same on all architectures of Linux but Alpha."""
UNSPECIFIED = ctypes.create_string_buffer(16)
"""A `sockaddr` of family AF_UNSPEC, which is 0: to connect to it is to disconnect."""
STEPS = 150
GONE = (errno.EBADF, errno.ENOTSOCK, errno.ENOTCONN)
"""Errors of a descriptor that has been closed, or used again, and of a socket without a peer."""


def checked(result: int) -> int:
    """Return what a function of the C library has returned. Raises OSError for an error."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def duplicate(pid: int, fd: int) -> int:
    """Return a descriptor for the open file behind another process's descriptor."""
    process = os.pidfd_open(pid)
    try:
        return checked(LIBC.syscall(PIDFD_GETFD, process, fd, 0))
    finally:
        os.close(process)


def sockets_of(pid: int) -> list[int]:
    """Return the descriptors of a process's sockets."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                found.append(int(name))
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


def reset(pid: int, fd: int) -> bool:
    """Reset the TCP connection of a socket; False if it has none."""
    try:
        with socket.socket(fileno=duplicate(pid, fd)) as sock:
            if sock.family != socket.AF_INET:
                return False
            sock.getpeername()  # not of one that listens
            checked(LIBC.connect(sock.fileno(), UNSPECIFIED, len(UNSPECIFIED)))
    except OSError as error:
        if error.errno not in GONE:
            raise
        return False
    return True


def listens(sock: socket.socket) -> bool:
    """Whether a socket waits for connections, and so is none."""
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Of a cluster: the processes of its nodes and its head, whose sockets may be duplicated."""
    cluster = ray.init(nodes=NODES, cpus_per_node=1).cluster
    try:
        cluster.await_pids()
        found = [pid for name, pid in cluster.pids.items() if name != "zygote"]
        try:
            os.close(duplicate(found[0], sockets_of(found[0])[0]))
        except OSError as error:
            require("ptrace", False, f"pidfd_getfd: {error.strerror}")
        yield found
    finally:
        ray.shutdown()


def test_the_kernel_ends_a_connection_whose_peer_is_silent(pids: list[int]) -> None:
    """Long after the failure detector would: only what nothing else notices is left to it."""
    timeouts_ms = []
    for pid in pids:
        for fd in sockets_of(pid):
            with socket.socket(fileno=duplicate(pid, fd)) as sock:
                if sock.family == socket.AF_INET and not listens(sock):
                    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                    timeouts_ms.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    assert {*timeouts_ms} == {1000 * int(TCP_SILENCE_S)}
    assert len(timeouts_ms) >= 2 * NODES, "each node has two connections to the head, at least"


def test_connections_that_are_reset_from_outside_change_nothing(pids: list[int], seed: int) -> None:
    """One at a time, and now and then all at once."""
    rng = random.Random(seed)
    resets = 0

    def between(step: int) -> None:
        nonlocal resets
        sockets = [(pid, fd) for pid in pids for fd in sockets_of(pid)]
        rng.shuffle(sockets)
        for each in sockets:
            done = reset(*each)
            resets += done
            if done and step % 30 != 29:
                break

    program = Program()
    program.run(STEPS, between)
    program.check()
    assert alive() == [True] * NODES
    assert resets >= STEPS / 2
