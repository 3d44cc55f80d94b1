"""How many threads copy one large value into the object store.

One thread does not use all of a memory's bandwidth; several are faster once a copy exceeds the
caches and takes longer than waking threads does. `store.arena_writer` has the measurements.
"""

from __future__ import annotations

PARALLEL_COPY_MIN = 64 << 20
"""The shortest copy by several threads, unless their number was given, bytes."""
THREADS_MAX = 8
"""The most threads, unless their number was given."""


def copy_threads_max(given: int, cores: int) -> int:
    """Return the most threads that any copy has; `given`: `Config.store_copy_threads`."""
    return given or min(THREADS_MAX, cores)


def copy_threads(nbytes: int, given: int, cores: int) -> int:
    """Return the number of threads that copy `nbytes` bytes on a machine of so many cores.

    A number that was given is taken as it is: figure 9 measures what each number costs.

    >>> copy_threads(1 << 20, 0, 16), copy_threads(1 << 30, 0, 16), copy_threads(1 << 30, 0, 2)
    (1, 8, 2)
    >>> copy_threads(1 << 30, 16, 2), copy_threads(100_000, 16, 2), copy_threads(0, 16, 2)
    (16, 16, 1)
    """
    if not given and nbytes < PARALLEL_COPY_MIN:
        return 1
    return max(1, min(copy_threads_max(given, cores), nbytes))
