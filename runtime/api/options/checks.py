"""Checks public arguments before they are sent.

The sender encodes a message without checks, and the receiver decodes it by its type: a value that
is not exactly of its field's type would fail there, where no error reaches the program.
So each check returns exactly an `int`, `float`, `str` or `bytes`, also for a bool, a
NumPy number or a subclass of `str`. It raises TypeError for values of another type and
ValueError for values out of range, in one line that names the argument. A
simulated cluster encodes nothing, but has the same checks.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from math import inf, isfinite
from numbers import Real
from typing import Any

from raytwin.runtime.control.core.group_resources import is_of_group

INTEGER_MAX = 2**63 - 1
"""The greatest absolute value of an integer in a message."""


def integer(what: str, given: Any, least: int, most: int = INTEGER_MAX, note: str = "") -> int:
    """Return an integer from `least` to `most`; `note` explains `least` in errors."""
    try:
        number = operator.index(given)
    except TypeError:
        raise TypeError(f"{what} is an integer, not {given!r}") from None
    if number < least:
        raise ValueError(f"{what} is {least}{note} or more, not {number}")
    if number > most:
        raise ValueError(f"{what} is at most {most}, not {number}")
    return int(number)


def amount(what: str, given: Any) -> float:
    """Return an amount of a resource: a finite number that is not negative.

    Integers stay integers, so that they are shown as they were given.
    """
    if not isinstance(given, Real):
        raise TypeError(f"{what} is a number, not {given!r}")
    plain: Any = given
    try:
        number = float(plain)
    except OverflowError:
        number = inf
    if not isfinite(number):
        raise ValueError(f"{what} is a finite number, not {given}")
    if number < 0:
        raise ValueError(f"{what} is 0 or more, not {given}")
    return int(plain) if isinstance(plain, int) else number


def amounts(what: str, given: Any) -> dict[str, float]:
    """Return amounts of resources by name."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is a dict of amounts, not {given!r}")
    checked = {}
    for key, value in given.items():
        name = text(f"a name in {what}", key)
        if not name or "," in name:
            raise ValueError(f"{name!r} cannot be a resource's name")
        if is_of_group(name):
            raise ValueError(
                f"{name!r} is a placement group's: PlacementGroupSchedulingStrategy gives it"
            )
        checked[name] = amount(f"{name!r} in {what}", value)
    return checked


def namespace(given: Any) -> str:
    """Return a namespace, "" for None, which means the default."""
    if given == "":
        raise ValueError("a namespace is not empty; None gives none")
    return "" if given is None else text("namespace", given)


def binary(what: str, given: Any) -> bytes:
    """Return bytes."""
    if not isinstance(given, bytes | bytearray | memoryview):
        raise TypeError(f"{what} is bytes, not {given!r}")
    return bytes(given)


def name_of(function: Any) -> str:
    """Return the qualified name of a function or class, in a form that can be encoded."""
    return encodable(str(getattr(function, "__qualname__", None) or repr(function)))


def short_name(name: str) -> str:
    """Return the last part of a qualified name: as in Ray, tasks are called by it."""
    return name.rpartition(".")[2]


def encodable(words: str) -> str:
    """Return a string with escapes for characters without an encoding, of a file name say."""
    return words.encode(errors="backslashreplace").decode()


def text(what: str, given: Any) -> str:
    """Return a string that can be encoded."""
    if not isinstance(given, str):
        raise TypeError(f"{what} is a string, not {given!r}")
    plain = str.__str__(given)  # not str(), as a subclass may override it
    try:
        plain.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} cannot be encoded: {error}") from None
    return plain
