"""Packets between the zygote and its clients: lists, with descriptors attached.

Each packet is one message of a packet socket, in msgpack. `zygote` lists requests and answers.
"""

from __future__ import annotations

import os
import socket
from array import array
from collections import deque
from typing import Any

import msgspec

from raytwin.runtime.store.scratch import scratch

PACKET_BYTES_MAX = 1 << 20
FDS_MAX = 250
"""The most descriptors of a packet; Linux passes 253 at once."""
_FDS_BYTES = socket.CMSG_SPACE(FDS_MAX * array("i").itemsize)
_received = scratch(PACKET_BYTES_MAX)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def send_packet(sock: socket.socket, packet: list[Any], fds: tuple[int, ...] = ()) -> None:
    """Send one request or answer with descriptors attached."""
    data = _encode(packet)
    if fds:
        socket.send_fds(sock, [data], list(fds))
    else:
        sock.send(data)


def receive_packet(sock: socket.socket, flags: int = 0) -> tuple[list[Any], list[int]] | None:
    """Receive one packet and its descriptors; None once the peer has closed."""
    size, ancillary, _, _ = sock.recvmsg_into([_received], _FDS_BYTES, flags)
    fds = array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return (_decode(_received[:size]), list(fds)) if size else None


class PacketQueue:
    """Packets that wait for space in the socket's buffer, so that their sender does not block.

    The zygote and its clients both send in bursts: two blocking senders could deadlock.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waiting: deque[tuple[list[Any], tuple[int, ...]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def send(self, packet: list[Any], fds: tuple[int, ...] = ()) -> None:
        """Send as soon as there is space; the queue owns the descriptors and closes them once
        sent."""
        self._waiting.append((packet, fds))
        if len(self._waiting) == 1:
            self.flush()

    def flush(self) -> None:
        """Send as many packets as the socket has space for."""
        while self._waiting:
            packet, fds = self._waiting[0]
            try:
                self._sock.sendmsg([_encode(packet)], _ancillary(fds), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                # The receiver has ended: reading from the socket will show it.
                pass
            self._waiting.popleft()
            for fd in fds:
                os.close(fd)


def _ancillary(fds: tuple[int, ...]) -> list[tuple[int, int, bytes]]:
    packed = array("i", fds).tobytes()
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if fds else []


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a packet socket."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
