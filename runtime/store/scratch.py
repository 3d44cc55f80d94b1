"""Anonymous memory, private to a process or shared with its forked children."""

from __future__ import annotations

import mmap


def scratch(nbytes: int) -> memoryview:
    """Return a writable buffer, private to each forked child; only touched pages take memory."""
    return memoryview(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE))


def shared(nbytes: int) -> memoryview:
    """Return a writable buffer of zeros that forked children share with this process."""
    return memoryview(mmap.mmap(-1, nbytes, flags=mmap.MAP_SHARED))
