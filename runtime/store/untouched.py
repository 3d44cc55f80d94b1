"""Writing values into an arena, whose pages may never have been touched.

A store through a mapping takes a fault for each such page, and the kernel fills the page
with zeros before it is written. A write through the descriptor does neither, and costs
more where pages are there. So of each larger piece::

    offset ──pages are there──> first hole ──never touched──> end
            copied to the mapping            written to the descriptor

A hole is looked for at the end first, which is one system call where there is none: the
allocator takes the memory that was used before all other, so what is new is at the end.
Medians of 0.8 GB on two cores, GB/s: 1.9 for untouched pages, 1.15 through the mapping;
4 for pages that are there, 16 through the mapping. Who writes to the same place once more
maps the pages then, at 1.5 to 2.
"""

from __future__ import annotations

import os
from functools import partial

from raytwin.runtime.serialization.serialization import Serialized
from raytwin.runtime.store.arena import Arena
from raytwin.runtime.store.copying import Copier

LOOK_MIN = 1 << 20
"""What is smaller is copied whatever its pages are, bytes."""
PIECE_BYTES = 4 << 20
"""So much is written by one system call, during which other writers of the arena wait."""


class ArenaWriter:
    """Writes values into one arena, with a copier for what was touched before."""

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
        """Copy to `target`, which is at `offset` of the arena."""
        nbytes = len(source)
        known = nbytes if nbytes < LOOK_MIN else self._touched(offset + start, nbytes)
        if known:
            self._copier.copy(target[start : start + known], memoryview(source)[:known])
        if known < nbytes:
            self._write(memoryview(source)[known:], offset + start + known)

    def _touched(self, offset: int, nbytes: int) -> int:
        """Return how many bytes from an offset on have pages; all, if the last one has."""
        last = offset + nbytes - 1
        if os.lseek(self._arena.fd, last, os.SEEK_HOLE) != last:
            return nbytes
        # Where the offset is in a hole itself, that is what is found.
        return min(os.lseek(self._arena.fd, offset, os.SEEK_HOLE) - offset, nbytes)

    def _write(self, source: memoryview, offset: int) -> None:
        while source:
            done = os.pwrite(self._arena.fd, source[:PIECE_BYTES], offset)
            source, offset = source[done:], offset + done
