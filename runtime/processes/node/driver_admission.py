"""The sockets of node 0's ``admission:<n>``, by which drivers join a running cluster.

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
from contextlib import suppress

import msgspec

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import Frame, JobEnded, JobInfo, RegisterJob
from raytwin.runtime.control.node.admission import Admission
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import AcceptedConnection, Connection, log
from raytwin.runtime.processes.net.process_settings import LENGTH_BYTES, Welcome, abstract
from raytwin.runtime.processes.net.reactor import READ

_CREDENTIALS = struct.Struct("3i")


class DriverAdmission:
    """Connects drivers with their node, once `Admission` admits them."""

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
        self.component: Admission[tuple[socket.socket, int]] = Admission(self)
        """The component; a driver that has proved the token is its socket and its PID."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(abstract(name))
        self._listener.listen(16)
        process.reactor.add(self._listener.fileno(), READ, self._on_ready)

    def register_first(self, driver: str) -> None:
        """Register the driver that started the cluster, as job 1."""
        self.component.register_first(JobInfo(1, driver, self._node))

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
        if uid != os.getuid() or self.component.full:
            log.warning("refused a driver of user %d", uid)
            sock.close()
            return
        AcceptedConnection(
            self._process.reactor, sock, self._token, self._on_frame, lambda *_: None,
            on_data=lambda raw: self._on_proved(raw, pid), peer=f"a driver (process {pid})",
        )  # fmt: skip

    def _on_proved(self, sock: socket.socket, pid: int) -> None:
        self.component.register(JobInfo(0, node=self._node, pid=pid), (sock, pid))

    # -- called by the component -----------------------------------------------------

    def report(self, message: RegisterJob | JobEnded) -> None:
        self._process.deliver(f"admission:{self._node}", f"node:{self._node}", message)

    def welcome(self, driver: tuple[socket.socket, int], info: JobInfo) -> None:
        sock, pid = driver
        welcome = Welcome(info.driver, info.number, self._node, self._config)
        try:
            self._answer(sock, welcome)
        except OSError as error:
            sock.close()
            self._report_end(info, str(error))
            return
        _Driver(self._process, sock, info, pid, self._on_frame, self._report_end)

    def refuse(self, driver: tuple[socket.socket, int], reason: str) -> None:
        with driver[0] as sock, suppress(OSError):
            self._answer(sock, Welcome("", 0, self._node, self._config, reason))

    def _answer(self, sock: socket.socket, welcome: Welcome) -> None:
        body = msgspec.msgpack.encode(welcome)
        data = len(body).to_bytes(LENGTH_BYTES, "big") + body
        sock.setblocking(True)
        socket.send_fds(sock, [data], list(self._arena_fds))

    def _report_end(self, info: JobInfo, reason: str) -> None:
        self.component.ended(info.number, reason)


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
