"""Values to bytes and back: what comes back, who may write, when it is let go."""

from __future__ import annotations

import collections
import gc
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from raytwin.runtime.serialization.pickling import SHARED_BYTES_MIN
from raytwin.runtime.serialization.serialization import (
    BARE,
    BYTES_OUT_OF_BAND_MIN,
    MAGIC,
    SerializationError,
    deserialize,
    dumps_function,
    loads_function,
    serialize,
)
from raytwin.runtime.store.arena_writer import GIL_FREE_COPY_MIN

ROOT = Path(__file__).parents[2]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
)
dtypes = (
    hnp.scalar_dtypes()
    | hnp.array_dtypes(max_size=3)
    | hnp.nested_dtypes(max_leaves=4, max_itemsize=200)
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))


@pytest.fixture(autouse=True, scope="module")
def only_young_garbage() -> Iterator[None]:
    """Collections look at what these tests make, not at all that a long session has left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@st.composite
def laid_out_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays in C and Fortran order, permuted, with steps, reversed; in the pickle or not."""
    array = draw(arrays)
    if array.ndim and array.nbytes and draw(st.booleans()):
        array = np.concatenate([array] * (2 * SHARED_BYTES_MIN // array.nbytes + 1))
    how = draw(st.sampled_from(["c", "f", "permuted", "sliced"]))
    if how == "f":
        return np.asfortranarray(array)
    if how == "permuted":
        return array.transpose(draw(st.permutations(range(array.ndim))))
    if how == "sliced" and array.ndim:
        return array[::-1, ..., ::2] if array.ndim > 1 else array[::-2]
    return array


values = st.recursive(
    scalars | laid_out_arrays(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=8,
)


def assert_same(one: Any, other: Any) -> None:
    """Assert that two values are equal, to the types, dtypes and bits."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    else:
        assert one == other


def arrays_in(value: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [a for item in value for a in arrays_in(item)] if isinstance(value, list | tuple) else []


class Counter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1


# -- round trips ---------------------------------------------------------------


@given(values)
@example([])
@example({"": [{"": [{"": [{"": [1]}]}]}]})
@example([np.zeros((3, 0)), np.array(5.0), np.zeros(2, "M8[ns]"), np.zeros(3, [])])
@example(
    [np.zeros((0, 3)), np.zeros(3, ">f8"), np.zeros(2, "S3"), np.zeros(2, "U3"), np.zeros(1, "?")]
)
@example([np.zeros(SHARED_BYTES_MIN, code) for code in np.typecodes["All"] if code not in "OM"])
@example([str(number) for number in range(1000)])
@example(["x"] * 1000)
@example([*map(str, range(1000)), *"abcabc"])
@example([*map(str, range(1000)), 1])
@example(b"x" * BYTES_OUT_OF_BAND_MIN)
@example([b"x" * BYTES_OUT_OF_BAND_MIN])
@example(np.arange(GIL_FREE_COPY_MIN // 8 + 1))
@example("x" * (GIL_FREE_COPY_MIN + 1))
@example(list(range(1000)))
@example(np.float64(0.5))
def test_round_trip(value: Any) -> None:
    serialized = serialize(value)
    data = serialized.to_bytes()
    assert len(data) == serialized.nbytes
    memory = bytearray(b"\xff" * (len(data) + 3))
    serialized.write_into(memoryview(memory))
    assert memory[: len(data)] == data
    assert memory[len(data) :] == b"\xff" * 3
    assert_same(value, deserialize(data))
    assert_same(value, deserialize(memoryview(memory)[: len(data)]))


@given(values)
def test_arrays_are_read_only_and_large_ones_views_at_64_bytes(value: Any) -> None:
    memory = np.zeros(serialize(value).nbytes + 64, np.uint8)
    skip = -memory.ctypes.data % 64
    view = memory.data[skip : skip + serialize(value).nbytes]
    serialize(value).write_into(view)
    for array in arrays_in(deserialize(view)):
        if array.dtype.itemsize == 0:
            continue  # there is nothing in it to share, or to write
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        assert np.shares_memory(array, memory) == (array.nbytes >= SHARED_BYTES_MIN)
        if array.nbytes >= SHARED_BYTES_MIN:
            assert array.ctypes.data % 64 == 0


def test_the_form_follows_from_the_value() -> None:
    assert serialize([1, "a", None]).to_bytes()[:2] == BARE
    assert serialize(lambda: 0).to_bytes()[:2] == BARE
    assert serialize([np.zeros(SHARED_BYTES_MIN - 1, np.uint8)]).to_bytes()[:2] == BARE
    assert serialize(np.zeros(SHARED_BYTES_MIN, np.uint8)).to_bytes()[:4] == MAGIC
    assert serialize([np.zeros(SHARED_BYTES_MIN, np.uint8)]).to_bytes()[:4] == MAGIC
    assert serialize(b"x" * BYTES_OUT_OF_BAND_MIN).to_bytes()[:4] == MAGIC


def test_fortran_order_is_kept() -> None:
    array = deserialize(serialize(np.asfortranarray(np.arange(6).reshape(2, 3))).to_bytes())
    assert array.flags.f_contiguous
    assert not array.flags.c_contiguous


def test_arrays_of_objects_and_subclasses() -> None:
    objects = np.array([1, "two", lambda: 3], dtype=object)
    again = deserialize(serialize(objects).to_bytes())
    assert again[:2].tolist() == [1, "two"]
    assert again[2]() == 3
    masked = np.ma.masked_array([1, 2, 3], [False, True, False])
    again = deserialize(serialize(masked).to_bytes())
    assert type(again) is np.ma.MaskedArray
    assert again.tolist() == [1, None, 3]


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy 2 has brought it")
def test_arrays_of_strings_of_any_length() -> None:
    text = np.array(["a", "b" * 100], dtype=np.dtypes.StringDType())
    assert deserialize(serialize(text).to_bytes()).tolist() == text.tolist()


def test_a_value_that_contains_itself() -> None:
    value: list[Any] = [1]
    value.append(value)
    again = deserialize(serialize(value).to_bytes())
    assert again[1] is again


def test_a_value_that_is_nested_too_deeply_is_an_error() -> None:
    value: Any = 0
    for _ in range(sys.getrecursionlimit()):
        value = [value]
    with pytest.raises((RecursionError, pickle.PicklingError)):
        serialize(value)


def test_a_string_that_is_in_a_list_often_is_written_once() -> None:
    long = "x" * 10_000
    for value in [long] * 1_000, [*map(str, range(1_000)), *[long] * 100]:
        data = serialize(value).to_bytes()
        assert len(data) < 30_000
        assert deserialize(data) == value


def test_an_array_that_occurs_twice_is_written_once() -> None:
    array = np.zeros(100_000)
    serialized = serialize([array, array])
    assert serialized.nbytes < 1.5 * array.nbytes
    one, other = deserialize(serialized.to_bytes())
    assert one is other


def test_objects_of_main_travel_by_value() -> None:
    program = (
        "import sys\n"
        "from raytwin.runtime.serialization.serialization import serialize, dumps_function\n"
        "class Point:\n"
        "    def __init__(self, x): self.x = x\n"
        "    def double(self): return 2 * self.x\n"
        "class Number(int):\n"
        "    def half(self): return self // 2\n"
        "def triple(x): return 3 * x\n"
        "for value in Point(21), Number(8), [Number(8)], {1: (Number(8),)}, {Number(8): 1}:\n"
        "    print(serialize(value).to_bytes().hex())\n"
        "print(dumps_function(triple).hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    *data, function = map(bytes.fromhex, done.stdout.split())
    point, *numbers = map(deserialize, data)
    assert point.double() == 42
    for number in numbers[0], numbers[1][0], numbers[2][1][0], *numbers[3]:
        assert number.half() == 4
    assert loads_function(function)(5) == 15


def test_importable_objects_travel_by_name() -> None:
    assert loads_function(dumps_function(collections.OrderedDict)) is collections.OrderedDict
    assert len(dumps_function(struct.pack)) < 100


def test_an_unpicklable_value_raises() -> None:
    with pytest.raises((TypeError, pickle.PicklingError)):
        serialize(threading.Lock())
    with pytest.raises((TypeError, pickle.PicklingError)):
        lock = threading.Lock()
        dumps_function(lambda: lock)


# -- letting go ----------------------------------------------------------------


@given(values, st.randoms())
def test_on_release_runs_once_when_the_last_array_is_gone(value: Any, random: Any) -> None:
    released = Counter()
    again = deserialize(serialize(value).to_bytes(), released)
    held = [array for array in arrays_in(again) if array.nbytes >= SHARED_BYTES_MIN]
    del again
    gc.collect()
    random.shuffle(held)
    while held:
        assert released.calls == 0
        held.pop()
        gc.collect()
    assert released.calls == 1


class RawNdarray:
    """Takes its buffer through ``numpy.ndarray``, which unpacks memoryviews."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __reduce__(self) -> Any:
        return _raw_ndarray, (pickle.PickleBuffer(self.array),)


def _raw_ndarray(buffer: Any) -> RawNdarray:
    return RawNdarray(np.ndarray((len(buffer),), np.uint8, buffer=buffer))


@pytest.mark.parametrize(
    "derive",
    [
        lambda a: a[1:],
        lambda a: a.view(np.int8)[::2],
        lambda a: memoryview(a)[3:],
        lambda a: np.frombuffer(a, np.uint8),
        lambda a: np.asarray(a).reshape(2, -1).T,
        pickle.PickleBuffer,
    ],
)
@pytest.mark.parametrize("holder", [lambda a: a, RawNdarray])
def test_whatever_is_derived_from_an_array_holds_the_data(derive: Any, holder: Any) -> None:
    released = Counter()
    value = deserialize(
        serialize(holder(np.zeros(SHARED_BYTES_MIN, np.uint8))).to_bytes(), released
    )
    derived = derive(value.array if isinstance(value, RawNdarray) else value)
    del value
    gc.collect()
    assert released.calls == 0
    del derived
    gc.collect()
    assert released.calls == 1


def test_what_was_not_written_may_be_in_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the frames of an error are, in which a value found no room."""
    ignored: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: ignored.append(str(error.exc_value)))
    cycle: list[Any] = [serialize(np.zeros(SHARED_BYTES_MIN, np.uint8))]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert ignored == []


def test_on_release_waits_for_a_cycle_to_be_collected() -> None:
    released = Counter()
    value = deserialize(serialize([np.zeros(SHARED_BYTES_MIN)]).to_bytes(), released)
    value.append(value)
    del value
    gc.collect()
    assert released.calls == 1


@pytest.mark.parametrize("value", [5, None, "x", [1, 2], b"x" * BYTES_OUT_OF_BAND_MIN])
def test_on_release_runs_at_once_where_all_was_copied(value: Any) -> None:
    released = Counter()
    again = deserialize(serialize(value).to_bytes(), released)
    assert released.calls == 1
    assert again == value


def _fails(*_: Any) -> None:
    raise RuntimeError("no such luck")


class Unloadable:
    def __reduce__(self) -> Any:
        return _fails, ()


class UnloadableArray:
    def __reduce__(self) -> Any:
        return _fails, (0, [np.zeros(SHARED_BYTES_MIN)])


@pytest.mark.parametrize("value", [Unloadable(), [np.zeros(SHARED_BYTES_MIN), Unloadable()]])
def test_failed_loading_names_the_error_and_releases_the_data(value: Any) -> None:
    released = Counter()
    with pytest.raises(RuntimeError, match="no such luck") as caught:
        deserialize(serialize(value).to_bytes(), released)
    assert released.calls == 1, "even while the traceback is alive"
    assert caught.value.__traceback__ is not None


def test_a_frame_that_failed_with_an_array_holds_the_data() -> None:
    released = Counter()
    with pytest.raises(RuntimeError) as caught:
        deserialize(serialize(UnloadableArray()).to_bytes(), released)
    assert released.calls == 0
    del caught
    gc.collect()
    assert released.calls == 1


# -- malformed data ------------------------------------------------------------


@given(st.binary(max_size=200))
@example(b"")
@example(MAGIC)
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    if data[:2] == BARE:
        return  # unpickling what a stranger sent is what never happens
    released = Counter()
    with pytest.raises(SerializationError):
        deserialize(MAGIC + data, released)
    assert released.calls == 1
    with pytest.raises(SerializationError):
        deserialize(data)


lengths = st.integers(0, 300) | st.integers(0, 2**64 - 1)


@given(
    count=st.integers(0, 6) | st.integers(0, 2**32 - 1),
    pickled=lengths,
    table=st.lists(lengths, max_size=6),
    size=st.integers(0, 2000),
    exact=st.booleans(),
)
def test_no_header_leads_out_of_bounds(
    count: int, pickled: int, table: list[int], size: int, exact: bool
) -> None:
    # Lengths beyond those that are counted would be the pickle, and no pickle is a stranger's.
    table = table[:count]
    header = struct.pack("<4sIQ", MAGIC, count, pickled) + struct.pack(f"<{len(table)}Q", *table)
    if exact:  # make the total right where that can be, so that parsing gets further
        end = 16 + 8 * count + pickled
        for length in table:
            end = -(-end // 64) * 64 + length
        size = end if end < 100_000 else size
    data = memoryview(header.ljust(size, b"\xff")[:size])
    with pytest.raises(SerializationError):
        deserialize(data)


@given(values, st.data())
def test_truncated_or_extended_layouts_are_refused(value: Any, draw: st.DataObject) -> None:
    data = serialize([np.zeros(SHARED_BYTES_MIN), value]).to_bytes()
    cut = draw.draw(st.integers(0, len(data) - 1))
    with pytest.raises(SerializationError):
        deserialize(data[:cut])
    with pytest.raises(SerializationError):
        deserialize(data + b"\0")


@pytest.mark.parametrize("value", [7, "text", [1, 2, 3], {"a": 1}])
def test_truncated_pickles_are_refused(value: Any) -> None:
    data = serialize(value).to_bytes()
    for cut in range(len(data)):
        with pytest.raises(SerializationError):
            deserialize(data[:cut])
    with pytest.raises(SerializationError):
        loads_function(dumps_function(len)[:-1])


def test_a_pickle_without_its_buffers_is_refused() -> None:
    serialized = serialize([np.zeros(SHARED_BYTES_MIN), np.ones(SHARED_BYTES_MIN)])
    data = serialized.to_bytes()
    _, count, pickled = struct.unpack_from("<4sIQ", data)
    start, end = 16 + 8 * count, 16 + 8 * count + pickled
    with pytest.raises(SerializationError):
        deserialize(data[start:end])
    with pytest.raises(SerializationError):
        deserialize(struct.pack("<4sIQ", MAGIC, 0, end - start) + data[start:end])
