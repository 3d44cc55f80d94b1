"""Generator tasks: references arrive as the items are made."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import TaskCancelledError, WorkerCrashedError

pytestmark = pytest.mark.usefixtures("backend")

LIMIT_S = 30.0


@ray.remote
def count(n: int, fail_at: int = -1, pause_s: float = 0.0, nbytes: int = 0) -> Iterator[Any]:
    for i in range(n):
        if i == fail_at:
            raise ValueError("half-way")
        ray.sleep(pause_s)
        yield ray.Blob(nbytes) if nbytes else i


@ray.remote
def identity(x: Any) -> Any:
    return x


@ray.remote
def read(refs: Any) -> list[Any]:
    return ray.get(list(refs))


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=LIMIT_S)


def test_items_come_in_order_and_then_the_end() -> None:
    stream = count.remote(5)
    assert isinstance(stream, ray.ObjectRefGenerator)
    assert [get(ref) for ref in stream] == list(range(5))
    with pytest.raises(StopIteration):
        next(stream)
    assert [get(ref) for ref in count.remote(0)] == []


def test_an_item_is_there_before_the_task_ends() -> None:
    stream = count.remote(3, pause_s=0.5)
    began_s = ray.now()
    assert get(next(stream)) == 0
    assert ray.wait([stream.completed()], timeout=0)[0] == []
    rest = [get(ref) for ref in stream]
    assert rest == [1, 2]
    assert ray.now() - began_s >= 1.0


def test_large_items_and_items_as_inputs() -> None:
    refs = list(count.remote(3, nbytes=300_000))
    assert [get(ref).nbytes for ref in refs] == [300_000] * 3
    assert [value.nbytes for value in get([identity.remote(ref) for ref in refs])] == [300_000] * 3
    assert get([identity.remote(ref) for ref in count.remote(4)]) == [0, 1, 2, 3]


def test_an_error_is_the_last_item() -> None:
    stream = count.remote(5, fail_at=2)
    assert [get(next(stream)), get(next(stream))] == [0, 1]
    with pytest.raises(ValueError, match="half-way"):
        get(next(stream))
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("returns", ["streaming", "dynamic"])
def test_only_generator_functions_make_streams(returns: str) -> None:
    with pytest.raises(ValueError, match="identity is none: it has to yield its items"):
        identity.options(num_returns=returns).remote([1, 2])

    class Counts:
        def __call__(self, n: int) -> Iterator[int]:
            yield from range(n)

    (ref,) = ray.remote(Counts()).options(num_returns="streaming").remote(1)
    assert get(ref) == 0


def test_only_generator_methods_make_streams() -> None:
    @ray.remote(num_cpus=0)
    class Lists:
        def items(self) -> list[int]:
            return [1, 2]

    with pytest.raises(ValueError, match=r"Lists\.items is none: it has to yield its items"):
        Lists.remote().items.options(num_returns="streaming").remote()


def test_dynamic_returns_come_together() -> None:
    ref = count.options(num_returns="dynamic").remote(4)
    assert isinstance(ref, ray.ObjectRef)
    refs = get(ref)
    assert len(refs) == 4
    assert [get(one) for one in refs] == [0, 1, 2, 3]
    assert get(read.remote(ref)) == [0, 1, 2, 3]


def test_a_fixed_number_of_yields() -> None:
    first, second = count.options(num_returns=2).remote(2)
    assert get([first, second]) == [0, 1]


def test_one_return_value_of_a_generator_is_its_first_item() -> None:
    first = count.options(num_returns=1)
    # As in Ray what comes after it is in the log alone, be it an error.
    assert get([first.remote(n) for n in (1, 3)]) == [0, 0]
    assert get(first.remote(3, fail_at=1)) == 0
    with pytest.raises(ValueError, match="half-way"):
        get(first.remote(3, fail_at=0))
    with pytest.raises(ValueError, match="yielded 0 values"):
        get(first.remote(0))


def test_one_return_value_of_each_generator_of_an_array() -> None:
    first = count.options(num_returns=1)
    assert get(first.map([1, 3, 2])) == [0, 0, 0]
    assert get(first.map(range(1, 5))) == [0, 0, 0, 0]
    # With an input the element is a range of its own.
    assert get(first.map([ray.put(2), 1])) == [0, 0]
    # The second argument is where it fails: before the first item or after it.
    refs = first.map([3, 3, 0, 2], [1, 0, -1, -1])
    assert get([refs[0], refs[3]]) == [0, 0]
    with pytest.raises(ValueError, match="half-way"):
        get(refs[1])
    with pytest.raises(ValueError, match="yielded 0 values"):
        get(refs[2])


def test_one_return_value_of_a_function_that_returns_a_generator() -> None:
    @ray.remote
    def squares(n: int) -> Any:
        return n if n < 0 else (i * i for i in range(n, n + 2))

    assert get([squares.remote(n) for n in (2, 3, -1)]) == [4, 9, -1]
    assert get(squares.map([2, 3, -1])) == [4, 9, -1]


def test_a_generator_that_raises_typeerror_is_iterable() -> None:
    @ray.remote(num_returns=2)
    def add() -> Iterator[Any]:
        yield 1
        yield 1 + "1"  # type: ignore[operator]

    for ref in add.remote():
        with pytest.raises(TypeError, match="unsupported operand"):
            get(ref)


def test_streams_within_tasks() -> None:
    @ray.remote
    def total(n: int) -> int:
        return sum(ray.get(ref) for ref in count.remote(n))

    assert get([total.remote(n) for n in range(8)]) == [n * (n - 1) // 2 for n in range(8)]


def test_readiness_without_waiting() -> None:
    stream = count.remote(1, pause_s=0.3)
    assert not stream.next_ready()
    assert not stream.is_finished()
    assert get(next(stream)) == 0
    get(stream.completed())
    assert not stream.next_ready()
    assert stream.is_finished()


def test_a_retried_stream_is_one_stream(tmp_path: Path) -> None:
    @ray.remote(retry_exceptions=True)
    def twice(mark: Path) -> Iterator[int]:
        for i in range(6):
            if i == 3 and not mark.exists():
                mark.touch()
                raise ValueError
            yield i

    assert [get(ref) for ref in twice.remote(tmp_path / "mark")] == list(range(6))


def test_a_cancelled_stream_ends_with_the_error() -> None:
    stream = count.remote(100, pause_s=0.2)
    assert get(next(stream)) == 0
    ray.cancel(stream)
    refs = list(stream)
    with pytest.raises(TaskCancelledError):
        get(refs[-1])


def test_a_dead_worker_ends_the_stream(backend: str) -> None:
    @ray.remote(max_retries=0)
    def dies() -> Iterator[int]:
        import os

        yield 1
        ray.sleep(0.2)  # what was sent leaves first
        os._exit(1)

    stream = dies.remote()
    assert get(next(stream)) == 1
    with pytest.raises(WorkerCrashedError):
        get(next(stream))
    assert list(stream) == []


def test_a_generator_cannot_be_sent_to_a_task() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(count.remote(1))
    with pytest.raises(ValueError, match="stream"):
        count.map(range(3))


def test_items_are_freed_with_their_references(backend: str) -> None:
    refs = list(count.remote(3, nbytes=500_000))
    get(refs)

    def stored() -> int:
        from raytwin.runtime.api.backend import current

        return sum(row[1] for row in current().query("stores"))

    before = stored()
    assert before >= 3
    del refs
    end_s = ray.now() + LIMIT_S
    while stored() > before - 3 and ray.now() < end_s:
        ray.sleep(0.05)
        ray.put(0)  # the next call counts what the garbage collector has dropped
    assert stored() <= before - 3
