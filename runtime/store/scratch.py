"""Memory to receive into: each process's own, and of that only the pages it needed."""

from __future__ import annotations

import mmap


def scratch(nbytes: int) -> memoryview:
    """Return a writable buffer; a forked child has one of its own."""
    return memoryview(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE))
