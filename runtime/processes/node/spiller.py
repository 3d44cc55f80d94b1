"""A node's disk: one thread that writes evicted objects and reads them back.

The event loop must not wait for a disk, which may take a second for a piece that the page
cache takes in a millisecond. Copies between arena and file release the interpreter's
lock, so the loop continues. The first evicted object starts the thread; most nodes
never spill.

One file without a name contains the objects (`arena.create_file`): no directory lists it, and the
kernel frees its space when the last process that has it open ends, even by SIGKILL. Later objects
take the space of freed ones; the file is emptied when it contains none. Nothing is synced:
the file is of no use once the node has ended. Clients have it open, too: they map the objects that
found no room in memory (`Spiller.reserve`), and spilled ones that cannot return.

The thread does its jobs in order, so an object's space can be freed right after the job
that reads it was queued. Only this thread uses the file's allocator.
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
from raytwin.runtime.store.arena import FILE_BYTES

OnWritten = Callable[[int, str], None]
"""Called with the place on disk, or with -1 and the reason of the failure."""
OnRead = Callable[[str], None]
"""Called with the reason of the failure, empty for success."""

PIECE_BYTES = 8 << 20
"""The most bytes of one system call, so that none delays the end of the process for long."""


class SpillFile:
    """The objects in the file of an arena, each at a place: its offset there."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.allocator = Allocator(FILE_BYTES)

    def write(self, data: memoryview) -> int:
        """Write an object and return its place.

        Raises OSError (mostly: disk full) after freeing the space.
        """
        place = self._allocate(data.nbytes)
        at = 0
        try:
            while at < data.nbytes:
                at += os.pwrite(self.fd, data[at : at + PIECE_BYTES], place + at)
        except OSError:
            self.free(place)
            raise
        return place

    def reserve(self, nbytes: int) -> int:
        """Return a place for an object that a client writes; the disk has its blocks.

        Raises OSError as `write` does.
        """
        place = self._allocate(nbytes)
        try:
            os.posix_fallocate(self.fd, place, nbytes)
        except OSError:
            self.free(place)
            raise
        return place

    def _allocate(self, nbytes: int) -> int:
        place = self.allocator.allocate(nbytes)
        if place < 0:
            raise OSError(errno.EFBIG, "the file has no offsets left")
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
            os.ftruncate(self.fd, FILE_BYTES)


class Spiller:
    """Writes to and reads from one node's spill file."""

    def __init__(self, reactor: Reactor, fd: int, directory: str) -> None:
        """`directory`: that of the file, for errors."""
        self._reactor = reactor
        self._directory = directory
        self._file = SpillFile(fd)
        self._jobs: queue.SimpleQueue[Callable[[], Callable[[], None] | None]] = queue.SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._done_fd = -1

    def write(self, data: memoryview, on_written: OnWritten) -> None:
        """Write an object; `data` must not change until `on_written` is called."""
        self._place(lambda: self._file.write(data), on_written)

    def reserve(self, nbytes: int, on_reserved: OnWritten) -> None:
        """Find a place for an object that a client, or a fetch, writes."""
        self._place(lambda: self._file.reserve(nbytes), on_reserved)

    def _place(self, find: Callable[[], int], done: OnWritten) -> None:
        def job() -> Callable[[], None]:
            try:
                place, reason = find(), ""
            except OSError as error:
                place, reason = -1, f"{error.strerror} ({self._directory})"
            return lambda: done(place, reason)

        self._post(job)

    def read(self, place: int, into: memoryview, on_read: OnRead) -> None:
        """Read an object into the arena."""

        def job() -> Callable[[], None]:
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
