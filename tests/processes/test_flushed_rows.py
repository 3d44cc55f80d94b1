"""Flushed rows in their file, against a list of them."""

from __future__ import annotations

import sqlite3

from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.processes.head.gcs_storage import SCHEMA, ColdRows

# Few letters, so that keys come again, and are there across two others.
KEYS = st.text("ab", min_size=ARRAY_BYTES, max_size=ARRAY_BYTES).map(str.encode)
BATCHES = st.lists(st.lists(st.tuples(KEYS, st.binary(max_size=3)), max_size=4), max_size=6)


def table() -> ColdRows:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.executescript(SCHEMA)
    return ColdRows(db)


@given(BATCHES, st.binary(max_size=2 * ARRAY_BYTES))
def test_the_newest_row_is_found(batches: list[list[tuple[bytes, bytes]]], other: bytes) -> None:
    cold = table()
    for batch in batches:
        cold.append(list(dict(batch).items()))
    known = dict(row for batch in batches for row in batch)
    for key in (*known, other):
        assert cold.find(key) == known.get(key)


def test_keys_that_are_there_across_two_others_are_not_found() -> None:
    cold = table()
    first, second = b"a" * 6 + b"b" * 6, b"c" * 6 + b"d" * 6
    cold.append([(first, b"1"), (second, b"2")])
    assert cold.find(b"b" * 6 + b"c" * 6) is None
    assert cold.find(b"b") is None
    assert cold.find(b"") is None
    assert [cold.find(first), cold.find(second)] == [b"1", b"2"]
