"""`Blob`: real bytes of a given size."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.serialization.real_blob import Blob
from raytwin.runtime.serialization.serialization import deserialize, serialize

MB = 1 << 20


@given(st.integers(0, 300_000))
def test_round_trip(nbytes: int) -> None:
    blob = Blob(nbytes)
    serialized = serialize({"blob": blob})
    assert serialized.nbytes >= nbytes
    again = deserialize(serialized.to_bytes())["blob"]
    assert type(again) is Blob
    assert again.nbytes == nbytes
    assert again == blob
    assert hash(again) == hash(blob)
    assert again != Blob(nbytes + 1)


def test_its_memory_is_real() -> None:
    before = psutil.Process().memory_info().rss
    blob = Blob(64 * MB)
    assert psutil.Process().memory_info().rss - before >= 60 * MB
    assert blob.nbytes == 64 * MB


def test_reading_one_copies_nothing() -> None:
    data = serialize(Blob(MB)).to_bytes()
    blob = deserialize(data)
    assert np.shares_memory(blob._bytes, np.frombuffer(data, np.uint8))


def test_a_read_blob_holds_the_data_until_it_is_gone() -> None:
    released: list[int] = []
    blob = deserialize(serialize(Blob(MB)).to_bytes(), lambda: released.append(1))
    assert released == []
    del blob
    assert released == [1]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol_carries_it(protocol: int) -> None:
    assert pickle.loads(pickle.dumps(Blob(1000), protocol)) == Blob(1000)


def test_a_blob_can_be_copied() -> None:
    assert copy.copy(Blob(10)) == copy.deepcopy(Blob(10)) == Blob(10)


def test_the_repr_of_a_blob_has_its_size() -> None:
    assert repr(Blob(7)) == "Blob(7)"
    assert Blob(7) != 7


def test_a_size_is_not_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        Blob(-1)
