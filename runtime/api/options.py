"""The options of a remote function: what ``@remote(...)`` and ``.options`` take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runtime.control.ids import RETURNS_MAX
from runtime.control.resources import format_demand

RETRIES_DEFAULT = 3

NAMES = ("num_cpus", "num_gpus", "resources", "num_returns", "max_retries", "name")


@dataclass(frozen=True)
class TaskOptions:
    """Checked options, with the demand in its canonical form."""

    num_cpus: float = 1
    num_gpus: float = 0
    resources: tuple[tuple[str, float], ...] = ()
    num_returns: int = 1
    max_retries: int = RETRIES_DEFAULT
    name: str = ""
    demand: str = "CPU:1"

    def changed(self, given: dict[str, Any]) -> TaskOptions:
        """Return these options with others in their place.

        Raises ValueError for an unknown name or an impossible value, TypeError
        for a value of the wrong type.
        """
        for name in given:
            if name not in NAMES:
                import difflib

                near = difflib.get_close_matches(name, NAMES, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}"
                raise ValueError(f"raytwin has no option {name!r}: {hint}")
        # None means: the default.
        changes = {name: value for name, value in given.items() if value is not None}
        if "resources" in changes:
            resources = changes["resources"]
            if not isinstance(resources, Mapping):
                raise TypeError(f"resources is a dict of amounts, not {resources!r}")
            for reserved in ("CPU", "GPU"):
                if reserved in resources:
                    raise ValueError(f"use num_{reserved.lower()}s instead of resources")
            changes["resources"] = tuple(sorted(resources.items()))
        for name in ("num_returns", "max_retries"):
            if name in changes and not isinstance(changes[name], int):
                raise TypeError(f"{name} is an integer, not {changes[name]!r}")
        options = replace(self, **changes)
        if not 0 <= options.num_returns <= RETURNS_MAX:
            raise ValueError(f"num_returns is 0 to {RETURNS_MAX}, not {options.num_returns}")
        if options.max_retries < -1:
            raise ValueError(f"max_retries is -1 (for ever) or more, not {options.max_retries}")
        amounts = {"CPU": options.num_cpus, "GPU": options.num_gpus, **dict(options.resources)}
        return replace(options, demand=format_demand(amounts))
