"""A connection that carries frames or packets, and the handshake that opens it.

    TCP, accepted    CHALLENGED ──answer──> OPEN
    TCP, connecting  CONNECTING ──challenge──> ANSWERED ──proof──> OPEN
    Unix socket pair OPEN at once: the descriptor itself was passed

A connection buffers what is sent before it is open. Any error closes this
connection, is logged in one line, and touches nothing else. Connections of the kind `auth.CHANNEL`
carry packets, all others frames; see `wire`.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from raytwin.runtime.processes.net import auth, wire
from raytwin.runtime.processes.net.reactor import HANG_UP, READ, WRITE, Reactor, RealTimer
from raytwin.runtime.processes.net.wire import FrameReader, PacketReader, WireError
from raytwin.runtime.store.scratch import scratch

log = logging.getLogger("raytwin")

HANDSHAKE_TIMEOUT_S = 10.0
UNSENT_BYTES_MAX = 1 << 30
UNSENT_S_MAX = 10.0
"""A peer counts as dead if more than `UNSENT_BYTES_MAX` wait for it and it has read none of them
for `UNSENT_S_MAX`. The size alone proves nothing: one turn may send more."""
TCP_SILENCE_S = 10.0
"""The kernel breaks a TCP connection whose peer has acknowledged nothing for so long."""

_scratch = scratch(1 << 20)
"""The buffer for received data; one for all connections of a process."""


class Connection:
    """A non-blocking stream of frames or packets with one peer.

    `on_frame` takes each of them. `on_close` is called once, with the reason.
    """

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        on_frame: Callable[[Connection, Any], None],
        on_close: Callable[[Connection, str], None],
        peer: str = "",
    ) -> None:
        self.peer = peer
        """The peer's address; until a frame names it, a text for logs."""
        self.bound = False
        """Whether a frame has named the peer."""
        self.received_bytes = 0
        """Bytes received since the connection is open."""
        self.open = True
        self.closed = False
        self._reactor = reactor
        self._sock = sock
        self._fd = sock.fileno()
        self._on_frame = on_frame
        self._on_close = on_close
        self.on_part: Callable[[Connection], None] = lambda connection: None
        """Called when bytes have arrived that complete no frame."""
        self._reader: FrameReader | PacketReader = FrameReader()
        self._unsent: list[bytes | memoryview] = []
        self._unsent_bytes = 0
        self._progress_s = 0.0
        """When the peer last read data, or when data first had to wait for it."""
        self._writing = False
        sock.setblocking(False)
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_connected(sock)
        reactor.add(self._fd, READ, self._on_ready)

    @property
    def has_unsent(self) -> bool:
        """Whether data waits for space in the socket's buffer."""
        return bool(self._unsent)

    def send_body(self, body: bytes) -> None:
        """Send a frame, encoded by `wire.encode_body`."""
        self.send(wire.LENGTH.pack(len(body)) + body)

    def send(self, data: bytes) -> None:
        """Send as many bytes now as the socket takes, and the rest when it is writable."""
        if self.closed:
            return
        if self._unsent or not self.open:
            self._enqueue(data)
            return
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.close(f"cannot send: {error}")
            return
        if sent < len(data):
            self._enqueue(memoryview(data)[sent:])

    def _enqueue(self, data: bytes | memoryview) -> None:
        now_s = time.monotonic()
        if not self._unsent:
            self._progress_s = now_s
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes > UNSENT_BYTES_MAX and now_s - self._progress_s > UNSENT_S_MAX:
            self.close(f"does not read: {self._unsent_bytes:,} bytes wait for it")
        elif self.open:
            self._want_write(True)

    def _want_write(self, wanted: bool) -> None:
        if wanted != self._writing:
            self._writing = wanted
            self._reactor.modify(self._fd, READ | WRITE if wanted else READ)

    def _on_ready(self, mask: int) -> None:
        if mask & WRITE:
            self._flush()
        if not self.closed and mask & (READ | HANG_UP):
            self.receive()

    def _flush(self) -> None:
        while self._unsent and not self.closed:
            data = self._unsent[0]
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                return
            except OSError as error:
                self.close(f"cannot send: {error}")
                return
            self._unsent_bytes -= sent
            self._progress_s = time.monotonic()
            if sent < len(data):
                self._unsent[0] = memoryview(data)[sent:]
                return
            self._unsent.pop(0)
        if not self.closed:
            self._want_write(False)

    def receive(self) -> None:
        """Read what has arrived, if anything."""
        try:
            size = self._sock.recv_into(_scratch)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(f"{error}")
            return
        if not size:
            self.close("the other side closed the connection")
            return
        self._take(_scratch[:size])

    def drain(self) -> None:
        """Read all data of a peer that has ended; then close."""
        while not self.closed:
            try:
                size = self._sock.recv_into(_scratch)
            except OSError as error:
                # All data is read; a child of the peer may still hold its end open.
                self.close(str(error))
                return
            if size:
                self._take(_scratch[:size])
            else:
                self.close("the other side closed the connection")

    def _take(self, data: memoryview) -> None:
        self.received_bytes += len(data)
        try:
            frames = self._reader.feed(data)
        except WireError as error:
            self.refuse(str(error))
            return
        if not frames:
            self.on_part(self)
        for frame in frames:
            if self.closed:
                return
            self._on_frame(self, frame)

    def refuse(self, reason: str) -> None:
        """Close the connection because the peer broke the protocol, and log the reason."""
        if not self.closed:
            log.warning("closing the connection with %s: %s", self.peer or "?", reason)
            self.close(reason)

    def close(self, reason: str) -> None:
        """Close the connection, and call `on_close` once."""
        if self.closed:
            return
        self.closed = True
        self._reactor.remove(self._fd)
        self._sock.close()
        self._unsent.clear()
        self._on_close(self, reason)


class _Handshake(Connection):
    """A TCP connection whose peer has not proved itself yet."""

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        token: bytes,
        on_frame: Callable[[Connection, Any], None],
        on_close: Callable[[Connection, str], None],
        peer: str,
    ) -> None:
        super().__init__(reactor, sock, on_frame, on_close, peer)
        self.open = False
        self.kind = b""
        """The purpose of the connection, see `auth`; empty until it is known."""
        self._token = token
        self._received = bytearray()
        self._deadline: RealTimer = reactor.after(HANDSHAKE_TIMEOUT_S, self._on_timeout)

    def _on_timeout(self) -> None:
        if not self.open:
            self.refuse("did not prove itself in time")

    def refuse(self, reason: str) -> None:
        self._received.clear()
        super().refuse(reason)

    def close(self, reason: str) -> None:
        self._deadline.cancel()
        super().close(reason)

    def _detach(self) -> socket.socket:
        """Take the socket out of a connection for object data, and return it."""
        self._reactor.remove(self._fd)
        self.closed = True
        self._deadline.cancel()
        return socket.socket(fileno=self._sock.detach())

    def _opened(self) -> None:
        self._deadline.cancel()
        self.open = True
        if self.kind == auth.CHANNEL:
            self._reader = PacketReader()
        rest = bytes(self._received)
        self._received.clear()
        if self._unsent:
            self._want_write(True)
        if rest:
            super()._take(memoryview(rest))

    def _write(self, data: bytes) -> bool:
        # Handshake messages fit into an empty socket buffer.
        try:
            sent = self._sock.send(data)
        except OSError as error:
            self.close(f"cannot send: {error}")
            return False
        if sent < len(data):
            self.close("cannot send the handshake")
            return False
        return True


class AcceptedConnection(_Handshake):
    """The accepting side of the handshake."""

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        token: bytes,
        on_frame: Callable[[Connection, Any], None],
        on_close: Callable[[Connection, str], None],
        on_data: Callable[[socket.socket], None] | None = None,
        peer: str = "",
    ) -> None:
        super().__init__(reactor, sock, token, on_frame, on_close, peer)
        self._on_data = on_data
        self._challenge = auth.challenge()
        self._write(self._challenge)

    def close(self, reason: str) -> None:
        if not self.closed and not self.open and self._received:
            log.warning("%s left before it had proved itself: %s", self.peer, reason)
        super().close(reason)

    def _take(self, data: memoryview) -> None:
        if self.open:
            super()._take(data)
            return
        self._received += data
        if len(self._received) < auth.ANSWER_BYTES:
            return
        answer = bytes(self._received[: auth.ANSWER_BYTES])
        del self._received[: auth.ANSWER_BYTES]
        try:
            kind, proof = auth.check(self._token, self._challenge, answer)
        except auth.AuthError as error:
            self.refuse(str(error))
            return
        self.kind = kind
        if kind == auth.DATA and self._on_data is None:
            self.refuse("asks for object data, which is not here")
            return
        if not self._write(proof):
            return
        if self._on_data is None or kind != auth.DATA:
            self._opened()
        elif self._received:
            self.refuse("sent a request before the handshake was over")
        else:
            self._on_data(self._detach())


class DialedConnection(_Handshake):
    """The connecting side of the handshake.

    With `on_data` the connection is for object data: after the handshake `on_data`
    takes the socket.
    """

    def __init__(
        self,
        reactor: Reactor,
        address: tuple[str, int],
        token: bytes,
        on_frame: Callable[[Connection, Any], None],
        on_close: Callable[[Connection, str], None],
        peer: str,
        kind: bytes,
        on_data: Callable[[socket.socket], None] | None = None,
    ) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        failed = sock.connect_ex(address)
        super().__init__(reactor, sock, token, on_frame, on_close, peer)
        self._on_data = on_data
        self.kind = kind
        self._challenge = b""
        self._answer = b""
        self._failed = "" if failed in (0, errno.EINPROGRESS) else f"cannot connect: error {failed}"
        if self._failed:
            reactor.after(0, lambda: self.close(self._failed))

    def _take(self, data: memoryview) -> None:
        if self.open:
            super()._take(data)
            return
        self._received += data
        if not self._challenge:
            if len(self._received) < auth.CHALLENGE_BYTES:
                return
            self._challenge = bytes(self._received[: auth.CHALLENGE_BYTES])
            del self._received[: auth.CHALLENGE_BYTES]
            try:
                self._answer = auth.answer(self._token, self._challenge, self.kind)
            except auth.AuthError as error:
                self.refuse(str(error))
                return
            if not self._write(self._answer):
                return
        if len(self._received) >= auth.PROOF_BYTES:
            proof = bytes(self._received[: auth.PROOF_BYTES])
            del self._received[: auth.PROOF_BYTES]
            try:
                auth.check_acceptor(self._token, self._challenge, self._answer, proof)
            except auth.AuthError as error:
                self.refuse(str(error))
                return
            if self._on_data is None:
                self._opened()
            else:
                self._on_data(self._detach())


class Listener:
    """Accepts TCP connections, which begin with the handshake."""

    def __init__(
        self, reactor: Reactor, sock: socket.socket, accept: Callable[[socket.socket, str], None]
    ) -> None:
        self._reactor = reactor
        self._sock = sock
        self._accept = accept
        sock.setblocking(False)
        reactor.add(sock.fileno(), READ, self._on_ready)

    @property
    def address(self) -> tuple[str, int]:
        """Return (host, port)."""
        host, port = self._sock.getsockname()[:2]
        return host, port

    def _on_ready(self, mask: int) -> None:
        try:
            sock, (host, port) = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            # Probably out of descriptors: the connection waits in the backlog.
            log.warning("cannot accept a connection: %s", error)
            return
        self._accept(sock, f"{host}:{port}")

    def close(self) -> None:
        self._reactor.remove(self._sock.fileno())
        self._sock.close()


def keep_connected(sock: socket.socket) -> None:
    """Have the kernel notice a peer that is cut off."""
    silence_s = int(TCP_SILENCE_S)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, silence_s // 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, silence_s // 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * silence_s)


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Return a listening TCP socket."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen(512)
    return sock
