"""How numbers are written for people: as many digits as say something."""

from __future__ import annotations

import re
from typing import Any

_OF_NUMBER = re.compile(r"_\d+_[a-z]+\Z")
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B"))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_COUNTS = ((1e9, "G"), (1e6, "M"), (1e3, "K"), (1.0, ""))


def show(value: Any) -> str:
    """Return a table cell: four significant digits, thousands parted by commas.

    >>> show(1834567.3), show(0.01234567), show(12000), show(None), show(True)
    ('1,834,567', '0.01235', '12,000', '', 'yes')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if value and not 1e-4 <= abs(value) < 1e15:
        return f"{value:.3e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def short(value: float, unit: str = "") -> str:
    """Return a label for an axis; `unit` is "", ``bytes`` or ``s``.

    >>> short(1.8e6), short(100_000, "bytes"), short(0.005, "s"), short(0.25)
    ('1.8M', '100 KB', '5 ms', '0.25')
    """
    if value == 0:
        return "0"
    scales = {"bytes": _BYTES, "s": _SECONDS}.get(unit, _COUNTS)
    size = abs(value)
    if not unit and size < 1:
        return f"{value:.3g}"
    # a hair below a step belongs to it: 999,999.9 is 1M
    factor, name = next((step for step in scales if size >= step[0] * 0.9999), scales[-1])
    digits = f"{value / factor:.3g}"
    return f"{digits} {name}" if unit else f"{digits}{name}"


def with_unit(value: Any, name: str) -> str:
    """Return `value` in the unit that its name ends with, if that is bytes or s.

    Behind a number the unit is that number's: the name says at what it was measured.

    >>> with_unit(0.0052, "latency_s"), with_unit(1e6, "input_bytes"), with_unit(5, "tasks_per_s")
    ('5.2 ms', '1 MB', '5')
    >>> with_unit(0.5, "latency_ms_1000_bytes"), with_unit(0.99, "goodput_every_60_s")
    ('0.5', '0.99')
    """
    measured = isinstance(value, int | float) and not isinstance(value, bool)
    if measured and not _OF_NUMBER.search(name):
        if name.endswith("_bytes"):
            return short(value, "bytes")
        if name.endswith("_s") and not name.endswith("_per_s"):
            return short(value, "s")
    return show(value)


def percent(value: float) -> str:
    """Return a share as a signed percentage.

    >>> percent(0.0312), percent(-0.25), percent(-0.0001)
    ('+3.1 %', '−25.0 %', '0.0 %')
    """
    rounded = round(value * 100, 1)
    sign = "+" if rounded > 0 else ""
    return f"{sign}{rounded or 0.0:.1f} %".replace("-", "\N{MINUS SIGN}")


def lasting(seconds: float) -> str:
    """Return a duration as people say it.

    >>> lasting(0.42), lasting(75), lasting(3 * 3600 + 120)
    ('0.42 s', '1 min 15 s', '3 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
