"""Giving memory back to the system."""

from __future__ import annotations

import ctypes

_libc = ctypes.CDLL(None)


def trim() -> None:
    """Give back the free pages of the C heap, which keeps them else.

    Loading modules leaves many: 1.7 MB in a driver that has started a cluster. Takes
    a millisecond. Only glibc has need of this, and has it.
    """
    release = getattr(_libc, "malloc_trim", None)
    if release is not None:
        release(0)
