"""Numbers for people."""

from __future__ import annotations

import doctest

import pytest

from raytwin.reports import numbers


def test_examples() -> None:
    failed, tried = doctest.testmod(numbers)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0, "s", "0"),
        (999_999.99, "", "1M"),
        (1234, "", "1.23K"),
        (-2e6, "", "-2M"),
        (2.5e-7, "s", "250 ns"),
        (12, "s", "12 s"),
        (3e-12, "s", "0.003 ns"),
        (1.5e9, "bytes", "1.5 GB"),
        (0.5, "bytes", "0.5 B"),
    ],
)
def test_short(value: float, unit: str, shown: str) -> None:
    assert numbers.short(value, unit) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1e-9, "1.000e-09"), (0.0, "0"), (2e20, "2.000e+20"), (1000.4, "1,000"), ("t", "t")],
)
def test_show(value: object, shown: str) -> None:
    assert numbers.show(value) == shown
