"""Flushed rows in their file, against a list of them."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.messages import ReadRows
from raytwin.runtime.control.replication import state_transfer
from raytwin.runtime.control.replication.state_transfer import read_rows
from raytwin.runtime.processes.head.cold_rows import SCHEMA, ColdRows
from raytwin.simulator.cluster.cold_batches import ColdBatches

# Few letters, so that keys come again, and are there across two others.
KEYS = st.text("ab", min_size=ARRAY_BYTES, max_size=ARRAY_BYTES).map(str.encode)
BATCHES = st.lists(st.lists(st.tuples(KEYS, st.binary(max_size=3)), max_size=4), max_size=6)


def table() -> ColdRows:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.executescript(SCHEMA)
    return ColdRows(db)


@given(BATCHES, st.binary(max_size=2 * ARRAY_BYTES))
def test_the_newest_row_is_found(batches: list[list[tuple[bytes, bytes]]], other: bytes) -> None:
    cold, simulated = table(), ColdBatches()
    for batch in batches:
        cold.append(list(dict(batch).items()))
        simulated.append(list(dict(batch).items()))
    known = dict(row for batch in batches for row in batch)
    for key in (*known, other):
        assert cold.find(key) == simulated.find(key) == known.get(key)


@given(BATCHES, st.integers(1, 80), st.booleans())
def test_a_copy_that_is_made_piece_by_piece_finds_the_same(
    batches: list[list[tuple[bytes, bytes]]], nbytes: int, later: bool
) -> None:
    cold, simulated, copy = table(), ColdBatches(), table()
    written = [list(dict(batch).items()) for batch in batches if batch]
    for batch in written:
        cold.append(batch)
        simulated.append(batch)
    place, until = 0, None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_transfer, "ROWS_BYTES", nbytes)
        while until is None or place < until:
            asked = ReadRows(7, place, until)
            read = read_rows(cold, asked)
            assert read == read_rows(simulated, asked)
            keys = [key for key, _ in read.rows]
            assert len(set(keys)) == len(keys)
            assert read.epoch == 7
            assert read.place > place or not written
            copy.append(read.rows)
            if until is None and later:
                # No part of what is read: it is behind the newest that there was.
                cold.append([(b"c" * ARRAY_BYTES, b"")])
                simulated.append([(b"c" * ARRAY_BYTES, b"")])
            place, until = read.place, read.until
    for key, row in dict(row for batch in written for row in batch).items():
        assert copy.find(key) == row
    assert copy.find(b"c" * ARRAY_BYTES) is None


def test_keys_that_are_there_across_two_others_are_not_found() -> None:
    cold = table()
    first, second = b"a" * 6 + b"b" * 6, b"c" * 6 + b"d" * 6
    cold.append([(first, b"1"), (second, b"2")])
    assert cold.find(b"b" * 6 + b"c" * 6) is None
    assert cold.find(b"b") is None
    assert cold.find(b"") is None
    assert [cold.find(first), cold.find(second)] == [b"1", b"2"]
