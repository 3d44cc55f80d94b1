"""Flushed rows in their file, against a list of them."""

from __future__ import annotations

import sqlite3

from hypothesis import given
from hypothesis import strategies as st

from runtime.control.ids import ARRAY_BYTES
from runtime.processes.cold_rows import SCHEMA, ColdRows

# Few letters, so that keys come again, and are there across two others.
KEYS = st.text("ab", min_size=ARRAY_BYTES, max_size=ARRAY_BYTES).map(str.encode)
BATCHES = st.lists(st.lists(st.tuples(KEYS, st.binary(max_size=3)), max_size=4), max_size=6)


def table() -> ColdRows:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.executescript(SCHEMA)
    return ColdRows(db)


@given(BATCHES, BATCHES, st.binary(max_size=2 * ARRAY_BYTES))
def test_the_newest_row_is_found(
    newer: list[list[tuple[bytes, bytes]]], older: list[list[tuple[bytes, bytes]]], other: bytes
) -> None:
    cold = table()
    for batch in newer:
        cold.append(list(dict(batch).items()))
    for batch in older:
        cold.prepend(list(dict(batch).items()))
    in_order = [row for batch in [*reversed(older), *newer] for row in batch]
    known = dict(in_order)
    for key, row in known.items():
        assert cold.find(key) == row
    assert cold.find(other) == known.get(other)


@given(BATCHES)
def test_batches_are_read_from_the_newest_on(batches: list[list[tuple[bytes, bytes]]]) -> None:
    cold, copy = table(), table()
    written = [list(dict(batch).items()) for batch in batches if batch]
    for batch in written:
        cold.append(batch)
    read = []
    place: int | None = None
    while (found := cold.before(place)) is not None:
        place, rows = found
        read.append(rows)
        copy.prepend(rows)
    assert read == written[::-1]
    for key in dict(row for batch in written for row in batch):
        assert copy.find(key) == cold.find(key)


def test_keys_that_are_there_across_two_others_are_not_found() -> None:
    cold = table()
    first, second = b"a" * 6 + b"b" * 6, b"c" * 6 + b"d" * 6
    cold.append([(first, b"1"), (second, b"2")])
    assert cold.find(b"b" * 6 + b"c" * 6) is None
    assert cold.find(b"b") is None
    assert cold.find(b"") is None
    assert [cold.find(first), cold.find(second)] == [b"1", b"2"]
