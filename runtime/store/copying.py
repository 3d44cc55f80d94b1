"""Copies into the arena, by several threads where that pays.

One thread does not use all of a memory's bandwidth; two or more start to pay
where a copy leaves the caches and takes longer than waking threads does. Medians
of 20 copies between touched pages on two cores, GB/s::

    size      1 thread   2 threads   4 threads   8 threads
    1 MB          48          11           8           4
    16 MB         27          16          17          15
    64 MB       12.4        13.0        13.6        13.0
    256 MB      12.1        14.1        13.8        13.6

Machines with more cores and memory channels gain more (the paper: 8 threads
above 0.5 MB, on 16 cores). The caller copies one part himself. A copy of
`GIL_FREE_COPY_MIN` and more lets go of the interpreter's lock.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

GIL_FREE_COPY_MIN = 1 << 20
"""From here on a copy lets go of the GIL, bytes.

numpy.copyto, a memoryview's slice assignment and ctypes.memmove all run at
memcpy's speed from 1 MB up; below, the slice assignment has the least overhead.
Only the first and the last let other threads run meanwhile.
"""
PARALLEL_COPY_MIN = 64 << 20
"""From here on several threads copy, unless their number was given, bytes."""
THREADS_MAX = 8
PART_BYTES_MIN = 64 * 1024
"""A thread is not woken for less."""
_ALIGNMENT = 64


def copy(target: memoryview, source: bytes | memoryview) -> None:
    """Copy the bytes of `source` to `target`, which is as long, in this thread."""
    if target.nbytes < GIL_FREE_COPY_MIN:
        target[:] = source
    else:
        import numpy as np  # as in `serialization`: not before it is needed

        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def copy_at(target: memoryview, start: int, source: bytes | memoryview) -> None:
    """Copy the bytes of `source` to `target`, from `start` on, in this thread."""
    copy(target[start : start + len(source)], source)


class Copier:
    """Copies with `threads` threads: 0 for as many as pay, by size and cores."""

    def __init__(self, threads: int = 0) -> None:
        if threads < 0:
            raise ValueError(f"{threads} threads cannot copy")
        self._given = threads
        self._most = threads or min(THREADS_MAX, os.cpu_count() or 1)
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    def threads_for(self, nbytes: int) -> int:
        """Return how many threads copy so many bytes."""
        if not self._given and nbytes < PARALLEL_COPY_MIN:
            return 1
        return max(1, min(self._most, nbytes // PART_BYTES_MIN))

    def copy(self, target: memoryview, source: bytes | memoryview) -> None:
        """Copy the bytes of `source` to `target`, which is as long."""
        threads = self.threads_for(target.nbytes)
        if threads == 1:
            copy(target, source)
            return
        import numpy as np

        into = np.frombuffer(target, np.uint8)
        out = np.frombuffer(source, np.uint8)
        part = -(-into.nbytes // threads // _ALIGNMENT) * _ALIGNMENT
        others = [
            self._threads().submit(np.copyto, into[at : at + part], out[at : at + part])
            for at in range(part, into.nbytes, part)
        ]
        try:
            np.copyto(into[:part], out[:part])
        finally:
            # Whatever happens here: nobody writes to the target after this returns.
            for other in others:
                other.result()

    def _threads(self) -> ThreadPoolExecutor:
        """Return the threads, which are made when they are first needed."""
        if self._pool is None or self._pid != os.getpid():
            self._pid = os.getpid()  # a forked child has none of its parent's
            self._pool = ThreadPoolExecutor(self._most - 1, "raytwin-copy")
        return self._pool

    def close(self) -> None:
        """End the threads."""
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.shutdown()
