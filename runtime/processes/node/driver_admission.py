"""Node 0's ``admission:<n>``: admits the drivers that join a running cluster.

    driver                              node 0                        GCS
    connects to the abstract socket ──>
    proves itself, see `auth`       <──>
                                        RegisterJob ────────────────>
                                                    <──────────────── JobRegistered
    <── `Welcome`, and the arena's descriptor
    frames                          <──>
    shuts down, or dies             ──> JobEnded ───────────────────>

The socket has a name in the abstract name space, so it leaves nothing in any file system.
The cluster's file contains the name. A process that connects must belong to the same user
and prove that it knows the token. The driver that started the cluster does not join: node 0
inherits its socket as a descriptor, and registers it as job 1.
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
"""The most drivers that may wait for the GCS's answer at once."""


class DriverAdmission:
    """Admits drivers, and reports their ends to the node manager."""

    def __init__(
        self,
        process: ComponentProcess,
        node: int,
        token: bytes,
        config: Config,
        arena_fds: tuple[int, ...],
        name: str,
        on_frame: Callable[[Connection, Frame], None],
    ) -> None:
        self._process = process
        self._node = node
        self._token = token
        self._config = config
        self._arena_fds = arena_fds
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
            log.warning("cannot accept a driver: %s", error)
            return
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        if uid != os.getuid() or len(self._waiting) >= WAITING_MAX:
            log.warning("refused a driver of user %d", uid)
            sock.close()
            return
        AcceptedConnection(
            self._process.reactor, sock, self._token, self._on_frame, lambda *_: None,
            on_data=lambda raw: self._on_proved(raw, pid), peer=f"a driver (process {pid})",
        )  # fmt: skip

    def _on_proved(self, sock: socket.socket, pid: int) -> None:
        self._keys += 1
        self._waiting[self._keys] = (sock, pid)
        self._register(JobInfo(0, node=self._node, pid=pid), self._keys)

    def handle(self, source: str, message: JobRegistered) -> None:
        """Admit the driver whose job the GCS has numbered, or refuse it."""
        if message.key not in self._waiting:
            return  # the driver of job 1, which is connected already
        sock, pid = self._waiting.pop(message.key)
        info = message.info
        welcome = Welcome(info.driver, info.number, self._node, self._config)
        if not info.number:
            welcome.address, welcome.reason = "", "the cluster has no job number left"
        body = msgspec.msgpack.encode(welcome)
        data = len(body).to_bytes(LENGTH_BYTES, "big") + body
        try:
            sock.setblocking(True)
            socket.send_fds(sock, [data], list(self._arena_fds))
        except OSError as error:
            sock.close()
            if info.number:
                self._report_end(info, str(error))
            return
        if not info.number:
            sock.close()
            return
        _Driver(self._process, sock, info, pid, self._on_frame, self._report_end)

    def end_turn(self) -> None:
        """Do nothing: no work is left for the end of a turn."""

    def _report_end(self, info: JobInfo, reason: str) -> None:
        ended = JobEnded(job_id(info.number), f"its driver is gone ({reason})")
        self._process.deliver(f"admission:{self._node}", f"node:{self._node}", ended)


class _Driver:
    """A driver that has joined: its connection and its process.

    This class watches the process too: a child that the driver has forked may keep the
    connection open after the driver's death.
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
        # The node must receive the driver's last frames before it learns of its death.
        self._connection.drain()

    def _on_close(self, connection: Connection, reason: str) -> None:
        self._process.routes.pop(connection.peer, None)
        if self._pidfd >= 0:
            self._process.reactor.remove(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._on_end(self._info, reason)
