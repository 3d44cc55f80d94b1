"""Memory that is in no file: each process's own to receive into, or a family's."""

from __future__ import annotations

import mmap


def scratch(nbytes: int) -> memoryview:
    """Return a writable buffer; a forked child has one of its own, of the pages it needed."""
    return memoryview(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE))


def shared(nbytes: int) -> memoryview:
    """Return a writable buffer of zeros that forked children have in common with this process."""
    return memoryview(mmap.mmap(-1, nbytes, flags=mmap.MAP_SHARED))
