"""Plain values: those that need not be serialized at once, nor alone."""

from __future__ import annotations

from typing import Any

_PLAIN_BYTES = 16
"""A number's share of a list's serialized form, at most."""
_PLAIN_BYTES_MAX = 1024
"""What is longer is not worth holding back."""


def plain_bytes(value: Any) -> int:
    """Return about how long a value is in a list's serialized form; -1 if it is not plain.

    A plain value is short and cannot change, so that it may be serialized later.
    """
    kind = type(value)
    if kind is bytes or kind is str:
        nbytes = _PLAIN_BYTES + 4 * len(value)
    elif kind is int:
        nbytes = _PLAIN_BYTES + value.bit_length()
    elif value is None or kind is float or kind is bool:
        return _PLAIN_BYTES
    else:
        return -1
    return nbytes if nbytes <= _PLAIN_BYTES_MAX else -1


def again(caught: list[BaseException]) -> Any:
    """Raise a caught error where it can be reported.

    Not from a variable: its traceback would refer to it, and all that it keeps alive
    would be so until the garbage collector finds the circle.
    """
    raise caught.pop()
