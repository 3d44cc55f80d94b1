"""The checker of linearizability, against histories that are and that are not, and brute force."""

from __future__ import annotations

from itertools import permutations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.chaos.fuzz.oracle.register import Operation, is_linearizable, wrong_keys


def put(value: str, begun_s: float, ended_s: float = inf, answer: str | None = None) -> Operation:
    before = None if answer is None else answer.encode()
    return Operation(b"k", value.encode(), begun_s, ended_s, before)


def read(answer: str | None, begun_s: float, ended_s: float = inf) -> Operation:
    return Operation(b"k", None, begun_s, ended_s, None if answer is None else answer.encode())


@pytest.mark.parametrize(
    ("history", "ok"),
    [
        ([], True),
        ([put("1", 1, 2), read("1", 3, 4)], True),
        ([put("1", 1, 2), read(None, 3, 4)], False),  # a stale read
        ([put("1", 1, 5), read(None, 2, 3)], True),  # at the same time
        ([put("1", 1, 9), read("1", 2, 3), read(None, 4, 5)], False),  # it goes back
        ([put("1", 1, 2), put("2", 3, 4, "1"), read("1", 5, 6)], False),
        ([put("1", 1, 2), put("2", 3, 4)], False),  # the second overlooks the first
        ([put("1", 1), read("1", 2, 3)], True),  # no end is known, and it has happened
        ([put("1", 1), read(None, 2, 3)], True),  # it has not happened yet
        ([put("1", 1), read("1", 2, 3), read(None, 4, 5)], False),
        ([read("1", 1, 2)], False),  # nobody has put this
        ([read("1", 1, 2), put("1", 3, 4)], False),  # a read of the future
        ([read("1", 1)], True),
    ],
)
def test_histories(history: list[Operation], ok: bool) -> None:
    assert is_linearizable(history) == ok


def by_brute_force(history: list[Operation]) -> bool:
    """Try every order of every choice of the operations that have not ended."""
    for count in range(len(history) + 1):
        for order in permutations(history, count):
            if any(each.ended_s < inf and each not in order for each in history):
                continue
            value = None
            for at, each in enumerate(order):
                if any(later.ended_s < each.begun_s for later in order[at:]):
                    break
                if each.ended_s < inf and each.answer != value:
                    break
                value = each.put if each.put is not None else value
            else:
                return True
    return False


VALUES = st.sampled_from([None, b"0", b"1"])
TIMES = st.integers(0, 8)


@given(st.lists(st.tuples(VALUES, TIMES, st.integers(1, 5), st.booleans(), VALUES), max_size=5))
def test_the_search_finds_what_brute_force_finds(
    drawn: list[tuple[bytes | None, int, int, bool, bytes | None]],
) -> None:
    history = [
        Operation(b"k", value, begun + at / 10, begun + length + at / 10 if ends else inf, answer)
        for at, (value, begun, length, ends, answer) in enumerate(drawn)
    ]
    assert is_linearizable(history) == by_brute_force(history)


def test_keys_are_apart() -> None:
    stale = [Operation(b"a", b"1", 1, 2), Operation(b"a", None, 3, 4)]
    right = [Operation(b"b", b"1", 1, 2), Operation(b"b", None, 3, 4, b"1")]
    assert wrong_keys(stale + right) == [b"a"]
