"""Threads of OpenBLAS, numpy's library of linear algebra, in workers that are forked with it.

OpenBLAS reads ``OMP_NUM_THREADS`` once, when it is loaded. The zygote loads it, with numpy, before
anyone knows what a worker's tasks reserve, and so with a thread for each core of the machine. A
worker's products of matrices would have as many, whatever they reserve. So the zygote sets it to
one thread, which most tasks reserve, and a worker to more where its tasks do. To set it in a
forked process starts threads anew, which spin for 0.1 s: a worker leaves it alone where it can.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_NAME = re.compile(r"openblas.*\.so")
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Where a user sets one of them, the libraries keep to it."""
_SETTERS = (
    "scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_", "openblas_set_num_threads",
)  # fmt: skip
"""The function's names in builds of OpenBLAS; the first two are in numpy's own packages."""
_found: list[Callable[[int], object]] = []
_threads = 1
"""The number of threads that the libraries in `_found` use."""


def find() -> None:
    """Have the libraries that are loaded use one thread; processes forked later know them."""
    global _threads
    lines = (line.split(maxsplit=5) for line in _MAPS.read_text().splitlines())
    paths = {Path(fields[5]) for fields in lines if len(fields) > 5}
    _found.clear()
    for path in sorted(path for path in paths if _NAME.search(path.name)):
        library = ctypes.CDLL(str(path))
        _found.extend(getattr(library, name) for name in _SETTERS if hasattr(library, name))
    for set_threads in _found:
        set_threads(1)
    _threads = 1


def use(threads: int) -> None:
    """Have the libraries that were found use so many threads."""
    global _threads
    if threads != _threads:
        for set_threads in _found:
            set_threads(threads)
        _threads = threads
