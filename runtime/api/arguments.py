"""How many arguments a function takes: the check of a call that costs next to nothing.

``inspect.Signature.bind`` takes microseconds a call. Most calls have positional
arguments only, and then two comparisons do; whatever they do not settle is bound.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any


def positional(function: Callable[..., Any]) -> tuple[int, int]:
    """Return how many positional arguments a function needs and takes."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return 0, sys.maxsize  # some builtins do not say
    return positional_of(signature)


def positional_of(signature: inspect.Signature) -> tuple[int, int]:
    """As `positional`, of a signature; (more than any call has, 0) if names are needed."""
    parameters = signature.parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in named)
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
        return sys.maxsize, 0
    takes_all = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return needed, sys.maxsize if takes_all else len(named)
