"""Modules that the zygote loads for workers, besides those of the runtime.

numpy takes 0.1 s and 15 MB to load, which processes forked afterwards share. A program
without arrays does not need it. So the zygote loads these modules at once if the driver had
numpy when it started the cluster; otherwise before the first fork after a worker has loaded
them. Workers report that in a page that all of them share with the zygote: one byte per
module, which a worker sets before it sends the results of the task.
"""

from __future__ import annotations

import sys

from raytwin.runtime.store.scratch import shared

MODULES = ("numpy", "numpy.random")
_noted = shared(len(MODULES))


def of_driver() -> list[str]:
    """Return the modules that the zygote should load at once for the calling driver."""
    return list(MODULES) if "numpy" in sys.modules else []


def note() -> None:
    """Report the modules that this process has loaded."""
    for at, name in enumerate(MODULES):
        if name in sys.modules:
            _noted[at] = 1


def missing() -> list[str]:
    """Return modules that another process has reported and this one has not loaded."""
    return [name for at, name in enumerate(MODULES) if _noted[at] and name not in sys.modules]
