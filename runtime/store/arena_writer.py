"""Writes values into an arena, with several threads where that is faster.

One thread does not use all of a memory's bandwidth; two or more are faster once
a copy exceeds the caches and takes longer than waking threads does. Medians
of 20 copies between touched pages on two cores, GB/s::

    size      1 thread   2 threads   4 threads   8 threads
    1 MB          48          11           8           4
    16 MB         27          16          17          15
    64 MB       12.4        13.0        13.6        13.0
    256 MB      12.1        14.1        13.8        13.6

Machines with more cores and memory channels gain more (the paper: 8 threads
above 0.5 MB, on 16 cores). The calling thread copies one part.

Some pages of the arena were never touched. A store through the mapping causes a fault for
each such page, and the kernel fills the page with zeros before it is written. A write through
the descriptor does neither, but is slower for pages that exist. So the writer divides each
larger piece::

    offset ──existing pages──> first hole ──never touched──> end
            copied to the mapping           written to the descriptor

The writer looks for a hole at the end first, so a piece without holes costs one system call: the
allocator prefers memory that was used before, so new pages are at the end.
Medians of 0.8 GB on two cores, GB/s: 1.9 for untouched pages, 1.15 through the mapping;
4 for existing pages, 16 through the mapping. A second write to the same place
maps the pages, at 1.5 to 2.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from raytwin.runtime.control.objects.copy_threads import copy_threads, copy_threads_max
from raytwin.runtime.serialization.serialization import Serialized
from raytwin.runtime.store.arena import Arena

GIL_FREE_COPY_MIN = 1 << 20
"""The shortest copy that releases the GIL, bytes.

numpy.copyto, a memoryview's slice assignment and ctypes.memmove all run at
memcpy's speed from 1 MB up; below, the slice assignment has the least overhead.
Only the first and the last let other threads run meanwhile.
"""
LOOK_MIN = 1 << 20
"""The shortest piece that is searched for untouched pages, bytes."""
PIECE_BYTES = 4 << 20
"""The most that one system call writes; other writers of the arena wait meanwhile."""
_ALIGNMENT = 64


class Copier:
    """Copies with `threads` threads; 0: as many as `copy_threads` chooses."""

    def __init__(self, threads: int = 0) -> None:
        if threads < 0:
            raise ValueError(f"{threads} threads cannot copy")
        self._given = threads
        self._cores = os.cpu_count() or 1
        self._pool: ThreadPoolExecutor | None = None

    def threads_for(self, nbytes: int) -> int:
        """Return the number of threads that copy `nbytes` bytes."""
        return copy_threads(nbytes, self._given, self._cores)

    def copy(self, target: memoryview, source: bytes | memoryview) -> None:
        """Copy the bytes of `source` to `target`, which has the same length."""
        threads = self.threads_for(target.nbytes)
        if threads == 1 and target.nbytes < GIL_FREE_COPY_MIN:
            target[:] = source
            return
        import numpy as np  # as in `serialization`: not before it is needed

        into = np.frombuffer(target, np.uint8)
        out = np.frombuffer(source, np.uint8)
        if threads == 1:
            np.copyto(into, out)
            return
        if self._pool is None:
            most = copy_threads_max(self._given, self._cores)
            self._pool = ThreadPoolExecutor(most - 1, "raytwin-copy")
        part = -(-into.nbytes // threads // _ALIGNMENT) * _ALIGNMENT
        others = [
            self._pool.submit(np.copyto, into[at : at + part], out[at : at + part])
            for at in range(part, into.nbytes, part)
        ]
        try:
            np.copyto(into[:part], out[:part])
        finally:
            # Even after an error: no thread may write to the target once `copy` has returned.
            for other in others:
                other.result()

    def close(self) -> None:
        """End the threads."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


class ArenaWriter:
    """Writes values into one arena; a copier writes to pages that exist."""

    def __init__(self, arena: Arena, copier: Copier) -> None:
        self._arena = arena
        self._copier = copier

    def write(self, value: Serialized, offset: int) -> None:
        """Write a value at an offset of the arena, bytes.

        Raises ValueError if it does not fit there or the arena is closed, OSError if the
        machine has no memory left.
        """
        place = self._arena.writable(offset, value.nbytes)
        value.write_into(place, partial(self._copy, offset))

    def _copy(
        self, offset: int, target: memoryview, start: int, source: bytes | memoryview
    ) -> None:
        """Copy to `start` in `target`, which is at `offset` of the arena."""
        nbytes = len(source)
        fd, at = self._arena.locate(offset + start)
        known = nbytes if nbytes < LOOK_MIN else self._touched(fd, at, nbytes)
        if known:
            self._copier.copy(target[start : start + known], memoryview(source)[:known])
        if known < nbytes:
            self._write(memoryview(source)[known:], fd, at + known)

    def _touched(self, fd: int, at: int, nbytes: int) -> int:
        """Return the number of bytes from a position on that have pages; all if the last has."""
        if fd != self._arena.fd:
            return 0  # A page of the file on disk costs a fault, whether it has a block or not.
        last = at + nbytes - 1
        if os.lseek(fd, last, os.SEEK_HOLE) != last:
            return nbytes
        # lseek returns the position itself if it is in a hole.
        return min(os.lseek(fd, at, os.SEEK_HOLE) - at, nbytes)

    def _write(self, source: memoryview, fd: int, at: int) -> None:
        while source:
            done = os.pwrite(fd, source[:PIECE_BYTES], at)
            source, at = source[done:], at + done
