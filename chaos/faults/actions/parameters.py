"""Checks that actions share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def none(given: Mapping[str, Any]) -> dict[str, Any]:
    """For an action without parameters. Raises ValueError if one is given."""
    only(given, ())
    return {}


def only(given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raise ValueError for a parameter that is not known."""
    for name in given:
        if name not in known:
            right = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ValueError(f"no parameter {name!r}: {right}")


def is_amount(value: Any) -> bool:
    """Whether a value is a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value >= 0
