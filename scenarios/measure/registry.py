"""The registry of scenarios: the modules of `figures` that have a ``SCENARIO``.

The registry imports every module there, so that a broken one raises when scenarios are
listed instead of missing from the list.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re

from raytwin.scenarios import figures as package
from raytwin.scenarios.core.scenario import BACKENDS, Scenario

_FIGURE = re.compile(r"(fig|table)\d")


@functools.cache
def scenarios() -> dict[str, Scenario]:
    """Return all scenarios by name: the paper's figures in its order, then the others.

    Raises whatever a broken module raises, and TypeError for one that breaks
    the rules of `scenario`.
    """
    found: dict[str, Scenario] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        scenario = getattr(module, "SCENARIO", None)
        if scenario is not None:
            found[scenario.name] = check(info.name, scenario)
        elif _FIGURE.match(info.name):
            raise TypeError(f"scenarios/figures/{info.name}.py has no SCENARIO")
    return dict(sorted(found.items(), key=lambda item: _natural(item[0])))


def check(module: str, scenario: object) -> Scenario:
    """Return `scenario` if it keeps the rules; raises TypeError if not.

    It is named as its module is, with hyphens for underscores, as fault plans are.
    """
    if not isinstance(scenario, Scenario):
        raise TypeError(f"SCENARIO of scenarios/figures/{module}.py is no Scenario")
    if scenario.name != module.replace("_", "-"):
        raise TypeError(f"scenarios/figures/{module}.py calls its scenario {scenario.name!r}")
    foreign = set(scenario.backends) - set(BACKENDS)
    if foreign or not scenario.backends:
        raise TypeError(f"{module} names backends {sorted(foreign)}; known: {BACKENDS}")
    names = [option.name for option in scenario.options]
    if len(set(names)) < len(names):
        raise TypeError(f"{module} has two options of one name: {names}")
    return scenario


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts fig9 before fig10a, and both before what is no figure of the paper."""
    ours = (0 if _FIGURE.match(name) else 1, "")
    return [ours] + [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
