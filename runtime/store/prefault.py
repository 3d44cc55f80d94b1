"""Touching the arena's pages ahead of need.

The first touch of a page of shared memory costs far more than copying into it:
measured here, 0.2 to 1 GB/s, against 13 GB/s for a page that was touched before.
The allocator uses touched pages first, so what grows is a store that has to take
pages above its high-water mark. A thread of the node touches those ahead: up to
half of what is in use, `AHEAD_BYTES_MAX` at most. So a store that was never used
costs nothing, and what is spent follows what the program really uses.

The thread has the lowest priority, goes in pieces, and waits until nobody has
grown the store for `QUIET_S`: beside a writer that touches pages itself it would
only slow that one down (puts in a row fell from 1.5 to 0.6 GB/s). It leaves the pages in the
file and not in this process's page table, so that they are nobody's own memory
until they are written. On a kernel without MADV_POPULATE_WRITE (before 5.14)
nothing is touched ahead.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time

AHEAD_BYTES_MAX = 256 << 20
AHEAD_SHARE = 2
"""Of a high-water mark of n bytes, n divided by this are touched ahead."""
PIECE_BYTES = 4 << 20
LARGE_BYTES = 8 << 20
"""Below this high-water mark nothing is done: the node is all but unused."""
QUIET_S = 0.05
_NICE = 19
_POPULATE_WRITE = 23

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Prefaulter:
    """Touches the pages of one arena, given by its descriptor, from a thread."""

    def __init__(self, fd: int, capacity: int) -> None:
        self._fd = fd
        self._capacity = capacity // mmap.PAGESIZE * mmap.PAGESIZE
        self._target = 0
        self._grown_s = 0.0
        self.touched = 0
        """Bytes from the start that are touched, or were allocated before that."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False

    def used(self, high_water: int) -> None:
        """The arena is in use up to here: see to what may come next."""
        if high_water < LARGE_BYTES or high_water <= self._used_before():
            return
        ahead = min(high_water // AHEAD_SHARE, AHEAD_BYTES_MAX)
        with self._changed:
            # What is allocated is touched by whoever writes it.
            self.touched = max(self.touched, high_water)
            self._target = min(high_water + ahead, self._capacity)
            self._grown_s = time.monotonic()
            self._changed.notify()
        if self._thread is None and not self._ended:
            self._thread = threading.Thread(target=self._run, name="raytwin-prefault", daemon=True)
            self._thread.start()

    def _used_before(self) -> int:
        """Return the high-water mark that the present target stands for."""
        ahead = min(self._target // (AHEAD_SHARE + 1), AHEAD_BYTES_MAX)
        return self._target - ahead

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        with mmap.mmap(self._fd, self._capacity, mmap.MAP_SHARED) as memory:
            anchor = ctypes.c_char.from_buffer(memory)
            base = ctypes.addressof(anchor)
            del anchor
            while True:
                with self._changed:
                    while self.touched >= self._target:
                        self._changed.wait()
                    busy_s = self._grown_s + QUIET_S - time.monotonic()
                    if busy_s > 0:
                        self._changed.wait(busy_s)
                        continue
                    at = self.touched // mmap.PAGESIZE * mmap.PAGESIZE
                    end = min(at + PIECE_BYTES, self._capacity)
                if not touch(base + at, end - at):
                    self._ended = True
                    return
                with self._changed:
                    self.touched = max(self.touched, end)


def touch(address: int, nbytes: int) -> bool:
    """Make the pages of a shared mapping exist; return False where that cannot be done.

    `address` and `nbytes` are multiples of a page.
    """
    if _libc.madvise(address, nbytes, _POPULATE_WRITE):
        # No such advice, or no memory: writers touch their pages themselves.
        assert ctypes.get_errno() in (errno.EINVAL, errno.ENOMEM, errno.EFAULT, errno.EAGAIN)
        return False
    _libc.madvise(address, nbytes, mmap.MADV_DONTNEED)
    return True
