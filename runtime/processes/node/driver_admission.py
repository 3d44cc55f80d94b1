"""Node 0's ``admission:<n>``: admits the drivers that join a running cluster.

    driver                              node 0                        GCS
    connects to the abstract socket ──>
    proves itself, see `auth`       <──>
                                        RegisterJob ────────────────>
                                                    <──────────────── JobRegistered
    <── `Welcome`, and the arena's descriptor
    frames                          <──>
    ends, however it does           ──> JobEnded ───────────────────>

The socket has a name in the abstract name space, so it leaves nothing in any file system.
The cluster's file contains the name. A process that connects must belong to the same user
and prove that it knows the token. The driver that started the cluster does not join: its
socket was handed over as a descriptor, and it is registered here as job 1.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

import msgspec

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import job_id
from raytwin.runtime.control.messages import Frame, JobEnded, JobInfo, JobRegistered, RegisterJob
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import AcceptedConnection, Connection, log
from raytwin.runtime.processes.net.process_settings import LENGTH_BYTES, Welcome, abstract
from raytwin.runtime.processes.net.reactor import READ

_CREDENTIALS = struct.Struct("3i")
WAITING_MAX = 64
"""Drivers that may wait at once for the GCS's answer."""


class DriverAdmission:
    """Admits drivers, and reports their ends to the node manager."""

    def __init__(
        self,
        process: ComponentProcess,
        node: int,
        token: bytes,
        config: Config,
        arena_fd: int,
        name: str,
        on_frame: Callable[[Connection, Frame], None],
    ) -> None:
        self._process = process
        self._node = node
        self._token = token
        self._config = config
        self._arena_fd = arena_fd
        self._on_frame = on_frame
        self._keys = 0
        self._waiting: dict[int, tuple[socket.socket, int]] = {}
        """Sockets and PIDs of drivers that have proved the token, by key."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(abstract(name))
        self._listener.listen(16)
        process.reactor.add(self._listener.fileno(), READ, self._on_ready)

    def register_first(self, driver: str) -> None:
        """Register the driver that started the cluster, as job 1."""
        self._register(JobInfo(1, driver, self._node), 0)

    def _register(self, info: JobInfo, key: int) -> None:
        to = f"node:{self._node}"
        self._process.deliver(f"admission:{self._node}", to, RegisterJob(info, key))

    def _on_ready(self, mask: int) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            log.warning("cannot let a driver in: %s", error)
            return
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        if uid != os.getuid() or len(self._waiting) >= WAITING_MAX:
            log.warning("a driver of user %d was turned away", uid)
            sock.close()
            return
        AcceptedConnection(
            self._process.reactor, sock, self._token, self._on_frame, lambda *_: None,
            on_data=lambda raw: self._entered(raw, pid), peer=f"a driver (process {pid})",
        )  # fmt: skip

    def _entered(self, sock: socket.socket, pid: int) -> None:
        self._keys += 1
        self._waiting[self._keys] = (sock, pid)
        self._register(JobInfo(0, node=self._node, pid=pid), self._keys)

    def handle(self, source: str, message: JobRegistered) -> None:
        """Admit the driver whose job the GCS has numbered, or refuse it."""
        if message.key not in self._waiting:
            return  # the first job's driver, which is connected already
        sock, pid = self._waiting.pop(message.key)
        info = message.info
        welcome = Welcome(info.driver, info.number, self._node, self._config)
        if not info.number:
            welcome.address, welcome.reason = "", "the cluster has had all the jobs that it can"
        body = msgspec.msgpack.encode(welcome)
        data = len(body).to_bytes(LENGTH_BYTES, "big") + body
        try:
            sock.setblocking(True)
            socket.send_fds(sock, [data], [self._arena_fd])
        except OSError as error:
            sock.close()
            if info.number:
                self._ended(info, str(error))
            return
        if not info.number:
            sock.close()
            return
        _Driver(self._process, sock, info, pid, self._on_frame, self._ended)

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""

    def _ended(self, info: JobInfo, reason: str) -> None:
        ended = JobEnded(job_id(info.number), f"its driver is gone ({reason})")
        self._process.deliver(f"admission:{self._node}", f"node:{self._node}", ended)


class _Driver:
    """A driver that has joined: its connection and its process.

    The process is watched too, since a child that the driver has forked may hold the
    connection open after its end.
    """

    def __init__(
        self,
        process: ComponentProcess,
        sock: socket.socket,
        info: JobInfo,
        pid: int,
        on_frame: Callable[[Connection, Frame], None],
        on_end: Callable[[JobInfo, str], None],
    ) -> None:
        self._process = process
        self._info = info
        self._on_end = on_end
        self._connection = Connection(
            process.reactor, sock, on_frame, self._on_close, peer=info.driver
        )
        process.routes[info.driver] = self._connection
        self._pidfd = -1
        if pid:  # 0 for a driver in another PID name space
            try:
                self._pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                self._connection.close("its process has ended")
                return
            process.reactor.add(self._pidfd, READ, self._on_exit)

    def _on_exit(self, mask: int) -> None:
        # The driver's last frames come before the news of its end.
        self._connection.drain()

    def _on_close(self, connection: Connection, reason: str) -> None:
        self._process.routes.pop(connection.peer, None)
        if self._pidfd >= 0:
            self._process.reactor.remove(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._on_end(self._info, reason)
