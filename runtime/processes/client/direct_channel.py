"""Direct channels between a driver and the workers of its node, past the node process.

To the driver: one pair of packet sockets for all workers; the driver reads, each worker
writes. A packet holds whole frames, so frames of different workers do not mix. The node
receives a worker's results as well, and sends them to the driver if need be (see
`objects.task_results`). So a worker drops a packet for which the driver has no room, and a
process whose channel is broken works without it.

To a worker: a pair of sockets for each worker that opens one; it keeps one end and sends
the other along with a packet. The node sends these calls as well (see
`actors.direct_calls`).
"""

from __future__ import annotations

import array
import socket
from collections.abc import Callable

from raytwin.runtime.control.core.direct_calls import OPEN_MAX
from raytwin.runtime.control.messages import DirectClosed, DirectOpen, Frame
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import log
from raytwin.runtime.processes.net.reactor import READ
from raytwin.runtime.processes.net.wire import FrameReader, WireError
from raytwin.runtime.store.scratch import scratch

_PACKET_BYTES_MAX = 1 << 16
"""Results and arguments on a direct channel are short: see `actors.direct_calls`."""
_FD_BYTES = socket.CMSG_SPACE(array.array("i", [0]).itemsize)
_scratch = scratch(_PACKET_BYTES_MAX)


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Return the reading end and the writing end of a channel."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


class _Sender:
    """The writing end of a channel; a `FrameSink`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.closed = False

    def send(self, data: bytes) -> None:
        """Send a frame, if the socket has room for it."""
        try:
            self._sock.send(data)
        except BlockingIOError:
            return  # the receiver gets the message from the node
        except OSError as error:
            self.close(f"cannot send: {error}")

    def close(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self._sock.close()


class _Receiver:
    """The reading end of a channel: takes messages for one component."""

    def __init__(self, process: ComponentProcess, address: str, sock: socket.socket) -> None:
        self._process = process
        self._address = address
        self._sock = sock
        self._closed = False
        process.reactor.add(sock.fileno(), READ, self._on_ready)

    def _on_ready(self, mask: int) -> None:
        try:
            size, fds = self._receive()
            if size:
                self._take(FrameReader().feed(_scratch[:size]), fds)
            else:
                self.close()  # all writing ends are closed
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            log.warning("taking nothing more past the node: %s", error)
            self.close()

    def _receive(self) -> tuple[int, list[int]]:
        return self._sock.recv_into(_scratch), []

    def _take(self, frames: list[Frame], fds: list[int]) -> None:
        if not frames:
            raise WireError("less than a frame")
        for frame in frames:
            if frame.destination != self._address:
                raise WireError(f"a frame for {frame.destination}")
            for message in frame.messages:
                self._process.deliver(frame.source, self._address, message)

    def close(self) -> None:
        """Close the socket."""
        if not self._closed:
            self._closed = True
            self._process.reactor.remove(self._sock.fileno())
            self._sock.close()


class ChannelToDriver(_Sender):
    """A worker's writing end of the channel to the driver."""

    def __init__(
        self, process: ComponentProcess, address: str, driver: str, sock: socket.socket
    ) -> None:
        super().__init__(sock)
        self._process = process
        self._address = address
        self._driver = driver
        self._theirs: socket.socket | None = None
        """The driver's end of the channel to this worker; goes with the next packet."""

    def open_back(self) -> None:
        """Open a channel from the driver; the next packet takes its other end along."""
        try:
            ours, self._theirs = channel_pair()
        except OSError as error:
            log.warning("no calls come past the node: %s", error)
            return
        _ChannelFromDriver(self._process, self._address, ours, self._driver)

    def send(self, data: bytes) -> None:
        theirs, self._theirs = self._theirs, None
        if theirs is None:
            super().send(data)
            return
        with theirs:
            try:
                socket.send_fds(self._sock, [data], [theirs.fileno()])
            except BlockingIOError:
                return  # the end in the packet is lost too, and the channel is not opened
            except OSError as error:
                self.close(f"cannot send: {error}")


class _ChannelFromDriver(_Receiver):
    """A worker's reading end of the channel from the driver."""

    def __init__(
        self, process: ComponentProcess, address: str, sock: socket.socket, driver: str
    ) -> None:
        super().__init__(process, address, sock)
        self._driver = driver

    def _take(self, frames: list[Frame], fds: list[int]) -> None:
        for frame in frames:
            frame.source = self._driver  # only the driver has the other end
        super()._take(frames, fds)


class _ChannelToWorker(_Sender):
    """A driver's writing end of the channel to one worker; calls `gone` when it closes."""

    def __init__(
        self, process: ComponentProcess, sock: socket.socket, gone: Callable[[], None]
    ) -> None:
        super().__init__(sock)
        sock.setblocking(False)
        self._process = process
        self._gone = gone
        process.reactor.add(sock.fileno(), 0, lambda mask: self.close("it has gone"))

    def close(self, reason: str) -> None:
        if not self.closed:
            self._process.reactor.remove(self._sock.fileno())
            super().close(reason)
            self._gone()


class ChannelFromWorkers(_Receiver):
    """A driver's reading end: takes results of its tasks and calls, and channels to workers."""

    def __init__(self, process: ComponentProcess, address: str, sock: socket.socket) -> None:
        super().__init__(process, address, sock)
        self._back: dict[str, _ChannelToWorker] = {}

    def _receive(self) -> tuple[int, list[int]]:
        size, ancillary, _, _ = self._sock.recvmsg_into([_scratch], _FD_BYTES)
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        return size, list(fds)

    def _take(self, frames: list[Frame], fds: list[int]) -> None:
        ends = [socket.socket(fileno=fd) for fd in fds]
        try:
            super()._take(frames, fds)
            for frame in frames:
                if any(type(message) is DirectOpen for message in frame.messages):
                    self._open(frame.source, ends)
        finally:
            for end in ends:
                end.close()

    def _open(self, worker: str, ends: list[socket.socket]) -> None:
        """Open the channel to a worker, of which it has sent an end."""
        if worker in self._back:
            return  # there is one already
        if not ends or len(self._back) >= OPEN_MAX:
            self._gone(worker)
            return
        way = _ChannelToWorker(self._process, ends.pop(), lambda: self._gone(worker))
        self._back[worker] = self._process.direct_channels[worker] = way

    def _gone(self, worker: str) -> None:
        self._back.pop(worker, None)
        self._process.direct_channels.pop(worker, None)
        self._process.deliver(self._address, self._address, DirectClosed(worker))

    def close(self) -> None:
        super().close()
        for way in [*self._back.values()]:
            way.close("the driver leaves")
