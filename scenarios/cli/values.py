"""The values that a shell completes: names of scenarios, backends and fault plans.

A person waits for it, so no scenario is imported.
"""

from __future__ import annotations

import pkgutil

from raytwin.scenarios.core.scenario import BACKENDS


def scenarios(incomplete: str) -> list[str]:
    """Return the names of scenarios, and `all`, that begin so."""
    from raytwin.scenarios import figures

    names = [info.name.replace("_", "-") for info in pkgutil.iter_modules(figures.__path__)]
    return [name for name in (*names, "all") if name.startswith(incomplete)]


def backends(incomplete: str) -> list[str]:
    """Return lists of backends whose last one begins as that of an incomplete list."""
    *given, last = incomplete.split(",")
    left = [name for name in BACKENDS if name not in given and name.startswith(last)]
    return [",".join([*given, name]) for name in left]


def plans(incomplete: str) -> list[str]:
    """Return the names of the fault plans that begin so; a shell adds files by itself."""
    from raytwin.chaos.faults import plan_files

    return [name for name in plan_files.ready_plans() if name.startswith(incomplete)]
