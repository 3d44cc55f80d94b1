"""Gives free memory of the C heap back to the system."""

from __future__ import annotations

import ctypes

_libc = ctypes.CDLL(None)


def trim() -> None:
    """Give the free pages of the C heap back to the system, which malloc would keep.

    Loading modules leaves many: 1.7 MB in a driver that has started a cluster. Trimming
    takes a millisecond. Does nothing unless the C library is glibc, which alone needs it.
    """
    release = getattr(_libc, "malloc_trim", None)
    if release is not None:
        release(0)
