"""Large values: shared memory, without copies, and free again when unused."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.runtime.api.backend import current
from raytwin.runtime.api.exceptions import GetTimeoutError
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually

MB = 1 << 20


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=LIMIT_S)


@ray.remote
def make(nbytes: int, fill: int = 1) -> Any:
    return np.full(nbytes, fill, np.uint8)


@ray.remote
def total(array: Any) -> int:
    return int(array.sum(dtype=np.int64))


def used() -> int:
    """Return the bytes that objects take in all stores, and places not sealed yet."""
    # The driver says what it has dropped with its next call.
    gc.collect()
    get(ray.put(None))
    rows = current().query("stores")
    return sum(nbytes + unsealed for _, _, nbytes, unsealed in rows)


@pytest.fixture
def empty(start: Start) -> None:
    start(nodes=1, cpus_per_node=2, object_store_memory=256 * MB)
    assert used() == 0


def is_freed() -> None:
    eventually(lambda: used() == 0)


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("nbytes", [99_000, 100_000, 101_000, MB, 50 * MB])
def test_put_get_argument_and_result_of_any_size(nbytes: int) -> None:
    array = np.arange(nbytes, dtype=np.uint8)
    expected = int(array.sum(dtype=np.int64))
    ref = ray.put(array)
    assert np.array_equal(get(ref), array)
    assert get(total.remote(ref)) == expected
    assert get(total.remote(array)) == expected
    assert get(total.remote(make.remote(nbytes))) == nbytes
    assert len(get(make.remote(nbytes))) == nbytes
    del ref
    is_freed()


@pytest.mark.usefixtures("empty")
def test_large_values_share_memory_and_cannot_be_written() -> None:
    ref = make.remote(4 * MB)
    first, second = get([ref, ref])
    assert np.shares_memory(first, second)
    assert np.shares_memory(first, get(ref))
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1
    with pytest.raises(ValueError):
        first.flags.writeable = True

    @ray.remote
    def write(array: Any) -> None:
        array[0] = 7

    with pytest.raises(ValueError, match="read-only"):
        get(write.remote(ref))
    assert first[0] == 1


@pytest.mark.usefixtures("empty")
def test_a_value_outlives_its_reference() -> None:
    ref = make.remote(2 * MB, 3)
    array = get(ref)
    part = array[10:20]
    del ref, array
    # Room for others is taken from anywhere but there.
    for fill in range(200):
        get(make.remote(2 * MB, fill))
    assert part.tolist() == [3] * 10
    assert used() > 0
    del part
    is_freed()


@pytest.mark.usefixtures("empty")
def test_inputs_are_freed_when_nothing_needs_them() -> None:
    for _ in range(20):
        ref = ray.put(np.zeros(8 * MB, np.uint8))
        assert get(total.map([ref] * 4)) == [0] * 4
        del ref
    is_freed()


def test_an_input_that_the_task_keeps_stays_valid(start: Start) -> None:
    start(nodes=1, cpus_per_node=1, object_store_memory=64 * MB)

    @ray.remote
    def keep(array: Any) -> int:
        kept = globals().setdefault("_kept", [])
        kept.append(array[:10])
        return sum(int(a.sum()) for a in kept)

    ref = ray.put(np.full(MB, 1, np.uint8))
    assert get(keep.remote(ref)) == 10
    del ref
    for fill in range(100):
        get(make.remote(MB, fill))
    assert get(keep.remote(ray.put(np.full(MB, 2, np.uint8)))) == 30


@pytest.mark.usefixtures("empty")
def test_several_return_values_large_and_small() -> None:
    @ray.remote(num_returns=4)
    def mixed() -> Any:
        return np.zeros(MB, np.uint8), "small", np.ones(2 * MB, np.uint8), None

    refs = mixed.remote()
    values = get(refs)
    assert [len(values[0]), values[1], len(values[2]), values[3]] == [MB, "small", 2 * MB, None]
    assert get(total.remote(refs[2])) == 2 * MB
    del refs, values
    is_freed()


@pytest.mark.usefixtures("empty")
def test_results_without_references_are_freed() -> None:
    for _ in range(50):
        make.remote(2 * MB)
    get(total.remote(make.remote(MB)))
    is_freed()


@pytest.mark.usefixtures("empty")
def test_objects_of_a_failed_task_are_freed() -> None:
    @ray.remote(num_returns=2)
    def half() -> Any:
        return np.zeros(MB, np.uint8), threading.Lock()

    @ray.remote
    def dropped() -> None:
        ray.put(np.zeros(MB, np.uint8))
        raise ValueError

    for ref in [*half.remote(), dropped.remote(), total.remote(ray.put(b"x" * MB))]:
        with pytest.raises((TypeError, ValueError, AttributeError)):
            get(ref)
    del ref
    is_freed()


@pytest.mark.usefixtures("empty")
def test_a_full_store_is_not_the_end() -> None:
    held = [ray.put(np.zeros(100 * MB, np.uint8)) for _ in range(2)]
    views = get(held)
    third = get(ray.put(np.full(100 * MB, 3, np.uint8)))
    made = get(make.remote(100 * MB))
    assert get(total.remote(np.ones(100 * MB, np.uint8))) == 100 * MB
    assert get(total.remote(held[0])) == 0
    assert (third == 3).all() and len(made) == 100 * MB
    del held, views, third, made
    eventually(lambda: used() == 0)
    assert get(total.remote(np.ones(100 * MB, np.uint8))) == 100 * MB
    is_freed()


@pytest.mark.usefixtures("empty")
def test_dropped_objects_make_room_at_once() -> None:
    for fill in range(12):
        ref = ray.put(np.full(200 * MB, fill, np.uint8))
        assert get(ref)[-1] == fill
        assert get(ray.remote(lambda a: int(a[-1])).remote(ref)) == fill
        del ref


@pytest.mark.usefixtures("empty")
def test_large_objects_of_every_kind() -> None:
    values = [
        bytes(MB), bytearray(MB), "x" * MB, list(range(200_000)),
        {i: str(i) for i in range(50_000)}, np.arange(300_000).reshape(3, -1).T,
        np.array(["a" * 100] * 5_000), ray.Blob(MB),
        {"a": np.zeros(MB, np.uint8), "b": [np.ones(10)]},
    ]  # fmt: skip
    echo = ray.remote(lambda value: value)
    for value in values:
        back = get(echo.remote(value))
        if isinstance(value, np.ndarray):
            assert np.array_equal(back, value)
        elif isinstance(value, dict) and "a" in value:
            assert len(back["a"]) == MB and back["b"][0].sum() == 10
        else:
            assert back == value
        del back
    is_freed()


@pytest.mark.usefixtures("empty")
def test_a_blob_has_its_size() -> None:
    @ray.remote
    def blob_of(n: int) -> Any:
        return ray.Blob(n)

    for nbytes in (0, 1, 3 * MB):
        blob = get(blob_of.remote(nbytes))
        assert blob.nbytes == nbytes
    with pytest.raises(ValueError):
        ray.Blob(-1)


@pytest.mark.usefixtures("empty")
def test_a_timeout_holds_for_large_values_too() -> None:
    late = ray.remote(lambda i: (time.sleep(1), np.zeros(MB, np.uint8))[1])
    refs = late.map(range(2))
    with pytest.raises(GetTimeoutError):
        ray.get(refs, timeout=0.05)
    assert [len(v) for v in get(refs)] == [MB, MB]
    del refs
    is_freed()


@pytest.mark.usefixtures("empty")
def test_threads_share_large_values() -> None:
    refs = [make.remote(4 * MB, 2)]
    errors: list[BaseException] = []

    def look() -> None:
        try:
            for _ in range(100):
                (array,) = get(refs)
                assert array[0] == 2 and array[-1] == 2
                del array
                assert len(get(ray.put(np.zeros(200_000, np.uint8)))) == 200_000
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert not errors
    refs.clear()
    is_freed()


class Counted:
    """A value that says how large it is, rightly or not, and counts its pickling."""

    pickled = 0

    def __init__(self, claimed: int, really: int) -> None:
        self.nbytes = claimed
        self.really = really

    def __reduce__(self) -> Any:
        Counted.pickled += 1
        return bytes, (b"x" * self.really,)


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize(
    ("claimed", "really", "times"), [(MB, MB, 1), (10, 10, 1), (MB, 10, 2), (10, MB, 2)]
)
def test_a_value_is_serialized_once_if_its_size_can_be_seen(
    claimed: int, really: int, times: int
) -> None:
    Counted.pickled = 0
    assert get(ray.put(Counted(claimed, really))) == b"x" * really
    assert Counted.pickled == times
    for value in (
        [0] * 30_000,
        list(range(70_000)),
        "x" * 99_999,
        dict.fromkeys(range(26000)),
    ):
        assert get(ray.put(value)) == value
        assert get(ray.remote(lambda v: v).remote(value)) == value
        assert get(ray.remote(num_returns=2)(lambda v: (v, 1)).remote(value)) == [value, 1]


@pytest.mark.usefixtures("empty")
def test_a_property_that_raises_does_not_stop_a_put() -> None:
    class Odd:
        @property
        def nbytes(self) -> int:
            raise RuntimeError

    assert type(get(ray.put(Odd()))).__name__ == "Odd"
