"""What workers have loaded when they begin, besides what they run on.

numpy takes 0.1 s to load and 15 MB, which are shared by what is forked after that. A
program without arrays needs none of it. So the zygote loads these modules at once if
the driver had numpy when it started the cluster, and else before it forks the next
worker after one has loaded them by itself. That is said in a page which all of them
share: a byte for each module, set before the results of the task that has loaded it
are sent.
"""

from __future__ import annotations

import sys

from raytwin.runtime.store.scratch import shared

MODULES = ("numpy", "numpy.random")
_noted = shared(len(MODULES))


def of_driver() -> list[str]:
    """Return what workers should have, by what the calling process has."""
    return list(MODULES) if "numpy" in sys.modules else []


def note() -> None:
    """Say what of it this process has."""
    for at, name in enumerate(MODULES):
        if name in sys.modules:
            _noted[at] = 1


def missing() -> list[str]:
    """Return what another process has noted and this one has not loaded."""
    return [name for at, name in enumerate(MODULES) if _noted[at] and name not in sys.modules]
