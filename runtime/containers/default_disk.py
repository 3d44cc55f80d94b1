"""The limit of a container's disk where the program gives none: only a limited disk can be full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

DISK_BYTES = 256 << 20
SHARE = 0.25
"""The most of a container's limited memory, where its disk is."""

_wanted = False


@contextmanager
def limited_disks(wanted: bool = True) -> Iterator[None]:
    """Limit the disks of the containers of clusters that start within this context, if wanted."""
    global _wanted
    before, _wanted = _wanted, _wanted or wanted
    try:
        yield
    finally:
        _wanted = before


def disk_bytes(memory_bytes: int | None) -> int | None:
    """Return the limit of the disk of a container with such a limit of its memory; None: none."""
    if not _wanted:
        return None
    return DISK_BYTES if memory_bytes is None else min(DISK_BYTES, int(SHARE * memory_bytes))
