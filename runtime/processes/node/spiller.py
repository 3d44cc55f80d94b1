"""A node's disk: one thread that writes evicted objects and reads them back.

The event loop must not wait for a disk, which may take a second for a piece that the page
cache takes in a millisecond. Copies between arena and file release the interpreter's
lock, so the loop continues. The first evicted object starts the thread; most nodes
never spill.

One file without a name contains the objects: no directory lists it, and the kernel frees
its space when the last process that has it open ends, even by SIGKILL. Later objects take
the space of freed ones; the file is truncated when it contains none. Nothing is synced:
the file is of no use once the node has ended.

The thread does its jobs in order, so an object's space can be freed right after the job
that reads it was queued. Only this thread uses the file and its allocator, except `Spiller.fd`.
Callbacks run on the event loop.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections import deque
from collections.abc import Callable

from raytwin.runtime.processes.net.reactor import READ, Reactor
from raytwin.runtime.store.allocator import Allocator

OnWritten = Callable[[int, str], None]
"""Called with the place on disk, or with -1 and the reason of the failure."""
OnRead = Callable[[str], None]
"""Called with the reason of the failure, empty for success."""

PIECE_BYTES = 8 << 20
"""The most bytes of one system call, so that none delays the end of the process for long."""
_SPAN_BYTES = 1 << 50
"""The range of offsets: the file is sparse, and the disk is full long before its end."""


class SpillFile:
    """Spilled objects, each at a place: its offset in the file.

    Raises OSError if no file can be made in `directory`.
    """

    def __init__(self, directory: str) -> None:
        import tempfile  # loaded by the first node that needs its disk

        self._file = tempfile.TemporaryFile(prefix="raytwin-", dir=directory, buffering=0)  # noqa: SIM115
        self.fd = self._file.fileno()
        self.allocator = Allocator(_SPAN_BYTES)

    def write(self, data: memoryview) -> int:
        """Write an object and return its place.

        Raises OSError (mostly: disk full) after freeing the space.
        """
        place = self.allocator.allocate(data.nbytes)
        assert place >= 0, "more was written than any disk holds"
        at = 0
        try:
            while at < data.nbytes:
                at += os.pwrite(self.fd, data[at : at + PIECE_BYTES], place + at)
        except OSError:
            self.free(place)
            raise
        return place

    def read(self, place: int, into: memoryview) -> None:
        """Fill `into` with the object at `place`. Raises OSError."""
        at = 0
        while at < into.nbytes:
            count = os.preadv(self.fd, [into[at : at + PIECE_BYTES]], place + at)
            if not count:
                raise OSError(errno.EIO, "the spill file is shorter than it was")
            at += count

    def free(self, place: int) -> None:
        """Free an object's space."""
        self.allocator.free(place)
        if not self.allocator.used:
            os.ftruncate(self.fd, 0)


class Spiller:
    """Writes to and reads from one node's spill file."""

    def __init__(self, reactor: Reactor, directory: str) -> None:
        self._reactor = reactor
        self._directory = directory
        self._file: SpillFile | None = None
        self._jobs: queue.SimpleQueue[Callable[[], Callable[[], None] | None]] = queue.SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._done_fd = -1

    @property
    def fd(self) -> int:
        """The file's descriptor, for sending objects from it."""
        assert self._file is not None, "nothing was ever written"
        return self._file.fd

    def write(self, data: memoryview, on_written: OnWritten) -> None:
        """Write an object; `data` must not change until `on_written` is called."""

        def job() -> Callable[[], None]:
            try:
                if self._file is None:
                    self._file = SpillFile(self._directory)
                place, reason = self._file.write(data), ""
            except OSError as error:
                place, reason = -1, f"{error.strerror} ({self._directory})"
            return lambda: on_written(place, reason)

        self._post(job)

    def read(self, place: int, into: memoryview, on_read: OnRead) -> None:
        """Read an object into the arena."""

        def job() -> Callable[[], None]:
            assert self._file is not None
            reason = ""
            try:
                self._file.read(place, into)
            except OSError as error:
                reason = f"{error.strerror} ({self._directory})"
            return lambda: on_read(reason)

        self._post(job)

    def free(self, place: int) -> None:
        """Free an object's space on disk."""

        def job() -> None:
            assert self._file is not None
            self._file.free(place)

        self._post(job)

    def _post(self, job: Callable[[], Callable[[], None] | None]) -> None:
        if self._done_fd < 0:
            self._done_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._reactor.add(self._done_fd, READ, self._on_done)
            threading.Thread(target=self._run, name="raytwin-disk", daemon=True).start()
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            callback = self._jobs.get()()
            if callback is not None:
                self._done.append(callback)
                os.eventfd_write(self._done_fd, 1)

    def _on_done(self, mask: int) -> None:
        os.eventfd_read(self._done_fd)
        while self._done:
            self._done.popleft()()
