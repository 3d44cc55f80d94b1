"""Settings are parsed, refused with advice, and given by scale."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.scenarios.core.scenario import (
    Option,
    UsageError,
    did_you_mean,
    matches,
    parse_number,
)

TASKS = Option("tasks", int, 10, 1000, "how many", minimum=1)
POLICIES = Option("p", str, ("a",), ("a", "b"), "which", choices=("a", "b"), many=True)


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        (TASKS, "12", 12),
        (TASKS, "1e6", 1_000_000),
        (TASKS, "1_000", 1000),
        (Option("f", float, 0.0, 0.0, ""), "2.5e-3", 0.0025),
        (Option("b", bool, False, False, ""), "Yes", True),
        (Option("b", bool, True, True, ""), "false", False),
        (Option("s", str, "", "", ""), "text", "text"),
        (POLICIES, "a, b", ("a", "b")),
        (Option("n", int, (), (), "", many=True), "1,2", (1, 2)),
    ],
)
def test_parse(option: Option, text: str, value: Any) -> None:
    parsed = option.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("option", "text", "advice"),
    [
        (TASKS, "0", "a whole number of at least 1"),
        (TASKS, "1.5", "a whole number"),
        (TASKS, "many", "a whole number"),
        (TASKS, "inf", "a whole number"),
        (Option("f", float, 0.0, 0.0, ""), "nan", "a number"),
        (Option("b", bool, False, False, ""), "2", "true or false"),
        (POLICIES, "a,c", "one of a, b, or several"),
        (POLICIES, "", "one of a, b"),
        (Option("s", str, "", "", ""), "", "a text"),
    ],
)
def test_refuse_with_advice(option: Option, text: str, advice: str) -> None:
    with pytest.raises(UsageError, match=advice) as caught:
        option.parse(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30), st.sampled_from([int, float]))
def test_numbers_are_finite_or_none(text: str, kind: type) -> None:
    value = parse_number(text, kind)
    assert value is None or (type(value) is kind and value - value == 0)


def test_default_by_scale() -> None:
    assert (TASKS.default("quick"), TASKS.default("full")) == (10, 1000)


def test_did_you_mean() -> None:
    assert did_you_mean("scalin", ["scaling", "other"]).startswith("did you mean 'scaling'?")
    assert did_you_mean("zzz", ["scaling"]) == "possible: scaling"


def test_matches() -> None:
    row = {"policy": "a", "n": 2}
    assert matches(row, {})
    assert matches(row, {"policy": ("a", "b"), "n": 2})
    assert not matches(row, {"policy": ("b",)})
    assert not matches(row, {"n": 3})
    assert not matches(row, {"absent": None})
