"""Checks a call's arguments against the function's parameters, at next to no cost.

``inspect.Signature.bind`` takes microseconds a call. Most calls have positional
arguments only, and then two comparisons suffice; other calls are bound.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any


class Parameters:
    """The parameters of a function or class.

    Accepts any call if there is no function, or no signature, as for some builtins.
    """

    __slots__ = ("_signature", "least", "most")

    def __init__(self, function: Any) -> None:
        self.least, self.most = 0, sys.maxsize
        """The bounds of a call with positional arguments only; least > most: none is right."""
        self._signature: inspect.Signature | None = None
        if function is None:
            return
        try:
            self._signature = inspect.signature(function)
        except (TypeError, ValueError):
            return
        parameters = self._signature.parameters.values()
        named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
            self.least, self.most = sys.maxsize, 0
            return
        self.least = sum(p.default is p.empty for p in named)
        if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
            self.most = len(named)

    def check(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise TypeError for arguments that the function does not take."""
        if self._signature is None:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}(): {error}") from None
