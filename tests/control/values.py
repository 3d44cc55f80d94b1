"""Values of the world of these tests, numbers with a size, and the errors in their place."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from raytwin.runtime.control.core.resources import UNIT

FUNCTION = b"the-one-function"
INLINE_BYTES_MAX = 100
"""Every cluster of these tests; values say how large they are."""

Code = Generator[Any, None, Any]
"""User code: it yields how many seconds it sleeps, or a predicate that it waits for."""


class TaskFailed(Exception):
    """What a result with an error is raised as; `text` is its payload."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def size_of(value: Any) -> int:
    """A value is a number, or a number with a size: ``[number, bytes]``."""
    return value[1] if isinstance(value, list) and value[1] > INLINE_BYTES_MAX else 0


def number_of(value: Any) -> int:
    """Return the number in a value."""
    return value[0] if isinstance(value, list) else value


def units(amount: float) -> int:
    """Return an amount in the pool's own units."""
    return round(amount * UNIT)
