"""The way from a worker straight to its driver, past their node.

One pair of sockets for all workers of a node: its driver reads, each worker writes.
Packets keep frames of different workers apart, so nobody has to be connected with
anybody. What a worker sends this way its node has too and tells the driver later, if
need be (see `results`): so a packet that the driver has no room for is not sent, and
whoever has lost this way lives without it.
"""

from __future__ import annotations

import socket

from runtime.control.messages import Frame
from runtime.processes.admission import WORKER_TO_DRIVER, foreign
from runtime.processes.connection import log
from runtime.processes.process import Process
from runtime.processes.reactor import READ
from runtime.processes.wire import FRAME_BYTES_MAX, FrameReader, WireError
from runtime.store.scratch import scratch

_PACKET_BYTES_MAX = 1 << 16
"""Values that come this way are short: see `plain`."""
_scratch = scratch(_PACKET_BYTES_MAX)


def shortcut_pair() -> tuple[socket.socket, socket.socket]:
    """Return the driver's end and that of the workers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


class ToDriver:
    """A worker's end; a `Way`."""

    frame_bytes_max = FRAME_BYTES_MAX

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.closed = False

    def send(self, data: bytes) -> None:
        """Send a frame, if there is room for it."""
        try:
            self._sock.send(data)
        except BlockingIOError:
            return  # the driver hears of it from the node
        except OSError as error:
            self.close(f"cannot send: {error}")

    def close(self, reason: str) -> None:
        self.closed = True
        self._sock.close()


class FromWorkers:
    """The driver's end: takes results of its tasks and calls, and nothing else."""

    def __init__(self, process: Process, address: str, sock: socket.socket) -> None:
        self._process = process
        self._address = address
        self._sock = sock
        self._closed = False
        process.reactor.add(sock.fileno(), READ, self._on_ready)

    def _on_ready(self, mask: int) -> None:
        try:
            size = self._sock.recv_into(_scratch)
            if not size:
                self.close()  # no worker is left, nor a node that could start one
                return
            self._take(FrameReader().feed(_scratch[:size]))
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            log.warning("taking no more results from workers directly: %s", error)
            self.close()

    def _take(self, frames: list[Frame]) -> None:
        if not frames:
            raise WireError("less than a frame")
        for frame in frames:
            mine = frame.destination == self._address
            wrong = foreign(frame, WORKER_TO_DRIVER if mine else None)
            if wrong:
                raise WireError(wrong)
            for message in frame.messages:
                self._process.deliver(frame.source, self._address, message)

    def close(self) -> None:
        """Take nothing more."""
        if not self._closed:
            self._closed = True
            self._process.reactor.remove(self._sock.fileno())
            self._sock.close()
