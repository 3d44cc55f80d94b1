"""Calling functions as tasks: arguments, results, nesting, arrays, waiting."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import GetTimeoutError
from tests.processes import helpers

pytestmark = pytest.mark.usefixtures("cluster")

LIMIT_S = helpers.LIMIT_S


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=LIMIT_S)


@ray.remote
def identity(x: Any) -> Any:
    return x


@ray.remote
def call(a: Any, b: Any = 2, *rest: Any, c: Any = 3, **named: Any) -> Any:
    return a, b, rest, c, named


@ray.remote
def square(x: int) -> int:
    return x * x


@ray.remote
def after(seconds: float, value: Any = None) -> Any:
    time.sleep(seconds)
    return value


@ray.remote
def fib(n: int) -> int:
    if n < 2:
        return n
    return sum(ray.get([fib.remote(n - 1), fib.remote(n - 2)]))


@pytest.mark.parametrize(
    "value",
    [None, 0, -1.5, 2**100, "text", b"bytes", (1, (2,)), [1, [2]], {"a": {1: 2}}, {1, 2}, 1j, ...],
    ids=str,
)
def test_values_round_trip(value: Any) -> None:
    assert get(identity.remote(value)) == value


def test_arguments_arrive_as_in_a_call() -> None:
    assert get(call.remote(1)) == (1, 2, (), 3, {})
    assert get(call.remote(1, 5, 6, 7, c=8, d=9)) == (1, 5, (6, 7), 8, {"d": 9})
    assert get(call.remote(a=1, c=None)) == (1, 2, (), None, {})


def test_wrong_arguments_are_refused_at_the_call() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        call.remote()
    with pytest.raises(TypeError, match="too many positional arguments"):
        square.remote(1, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        square.remote(1, y=2)


def test_references_are_replaced_by_their_values_at_the_top_level_only() -> None:
    one, two = ray.put(1), identity.remote(2)
    a, b, rest, c, named = get(call.remote(one, two, one, [one], c=two, d=one, e={"k": two}))
    assert (a, b, rest[0], c, named["d"]) == (1, 2, 1, 2, 1)
    assert isinstance(rest[1][0], ray.ObjectRef)
    assert get(rest[1]) == [1]
    assert get(named["e"]["k"]) == 2


def test_a_chain_of_dependent_tasks() -> None:
    @ray.remote
    def increment(x: int) -> int:
        return x + 1

    ref = ray.put(0)
    for _ in range(200):
        ref = increment.remote(ref)
    assert get(ref) == 200


def test_several_return_values() -> None:
    @ray.remote(num_returns=3)
    def three() -> Any:
        return 1, "b", [3]

    a, b, c = three.remote()
    assert get([c, b, a]) == [[3], "b", 1]
    assert get(call.remote(a, b)) == (1, "b", (), 3, {})


def test_no_return_value() -> None:
    @ray.remote(num_returns=0)
    def none() -> str:
        return "ignored"

    assert none.remote() is None


@pytest.mark.parametrize(
    ("returned", "error"),
    [((1,), ValueError), ((1, 2, 3), ValueError), (5, TypeError), (None, TypeError)],
)
def test_the_wrong_number_of_return_values_is_an_error(
    returned: Any, error: type[Exception]
) -> None:
    @ray.remote(num_returns=2)
    def wrong() -> Any:
        return returned

    for ref in wrong.remote():
        with pytest.raises(error, match="num_returns=2"):
            get(ref)


def test_functions_of_every_kind() -> None:
    offset = 10
    assert get(ray.remote(lambda x: x + offset).remote(1)) == 11
    assert get(ray.remote(helpers.double).remote(4)) == 8
    assert get(ray.remote(max).remote([1, 3, 2])) == 3

    class Adder:
        def __init__(self, n: int) -> None:
            self.n = n

        def __call__(self, x: int) -> int:
            return self.n + x

    assert get(ray.remote(Adder(5)).remote(1)) == 6


def test_classes_of_the_program_travel_both_ways() -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    moved = get(ray.remote(lambda p: Point(p.x + 1)).remote(Point(1)))
    assert (type(moved), moved.x) == (Point, 2)


def test_options_make_another_remote_function() -> None:
    renamed = square.options(name="renamed", num_returns=1)
    assert get([renamed.remote(3), square.remote(4)]) == [9, 16]
    with pytest.raises(TypeError, match=r"square\.remote\(\)"):
        square(3)


def test_nested_tasks() -> None:
    assert get(fib.remote(10)) == 55


def test_references_can_be_returned() -> None:
    @ray.remote
    def spawn(n: int) -> Any:
        return [square.remote(i) for i in range(n)]

    assert get(get(spawn.remote(5))) == [0, 1, 4, 9, 16]


def test_a_put_within_a_task() -> None:
    @ray.remote
    def store() -> Any:
        return ray.put("stored"), ray.put(np.arange(100_000))

    small, large = get(store.remote())
    assert get(small) == "stored"
    assert get(large).sum() == sum(range(100_000))


def test_threads_of_one_task_can_wait_at_once() -> None:
    @ray.remote
    def threaded() -> Any:
        found: list[Any] = []
        threads = [
            threading.Thread(target=lambda i=i: found.append(ray.get(after.remote(0.01 * i, i))))
            for i in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(found), ray.get(square.remote(3))

    for _ in range(3):
        assert get(threaded.remote()) == ([0, 1, 2, 3, 4, 5], 9)


# -- arrays --------------------------------------------------------------------


@pytest.mark.parametrize(
    "items",
    [range(0), [], range(1), range(5, 3000, 7), [3, 1, 2], (4,), {1: "a", 2: "b"}, "abc"],
    ids=str,
)
def test_map_over_one_iterable(items: Any) -> None:
    refs = identity.map(items)
    assert len(refs) == len(items)
    assert get(refs) == list(items)


def test_map_over_a_generator_and_several_iterables() -> None:
    assert get(square.map(i for i in range(10))) == [i * i for i in range(10)]
    pairs = ray.remote(lambda a, b: (a, b)).map("abc", itertools.count())
    assert get(pairs) == [("a", 0), ("b", 1), ("c", 2)]


def test_map_over_tuples_calls_with_one_argument() -> None:
    assert get(identity.map([(1, 2), (3, 4)])) == [(1, 2), (3, 4)]


def test_map_over_references() -> None:
    refs = [square.remote(i) for i in range(20)]
    assert get(square.map(refs)) == [i**4 for i in range(20)]
    mixed = ray.remote(lambda a, b: a + b).map(refs, range(20))
    assert get(mixed) == [i * i + i for i in range(20)]


def test_map_over_large_items() -> None:
    arrays = [np.full(30_000, i) for i in range(12)]  # 240 KB each
    assert get(ray.remote(lambda a: int(a[0])).map(arrays)) == list(range(12))
    medium = [np.full(5_000, i) for i in range(60)]  # 40 KB: together over the boundary
    assert get(ray.remote(lambda a: int(a[-1])).map(medium)) == list(range(60))


def test_map_with_large_results() -> None:
    values = get(ray.remote(lambda i: np.full(20_000 * (i % 2) + 1, i)).map(range(10)))
    assert [(len(v), int(v[-1])) for v in values] == [(20_000 * (i % 2) + 1, i) for i in range(10)]


def test_an_array_of_references_is_a_sequence() -> None:
    refs = square.map(range(100))
    assert get(refs[7]) == 49
    assert get(refs[-1]) == 99 * 99
    assert get(refs[10:20:5]) == [100, 225]
    assert get(list(refs)) == get(refs)
    with pytest.raises(IndexError):
        refs[100]
    assert get(call.remote(refs[3]))[0] == 9


def test_an_array_can_be_passed_as_a_value() -> None:
    refs = square.map(range(5))
    assert get(ray.remote(lambda held: sum(ray.get(held))).remote(refs)) == 30


def test_one_element_of_a_map_can_raise() -> None:
    @ray.remote
    def picky(x: int) -> int:
        if x == 57:
            raise KeyError(x)
        return x

    refs = picky.map(range(100))
    with pytest.raises(KeyError):
        get(refs)
    with pytest.raises(KeyError):
        get(refs[57])
    others = [i for i in range(100) if i != 57]
    assert get([refs[i] for i in others]) == others


def test_map_elements_have_children_of_their_own() -> None:
    nested = ray.remote(lambda i: ray.get([square.remote(i), square.remote(i + 1)]))
    assert get(nested.map(range(20))) == [[i * i, (i + 1) ** 2] for i in range(20)]


def test_map_of_long_tasks_is_spread_over_the_workers() -> None:
    @ray.remote
    def meet(i: int) -> int:
        time.sleep(0.2)
        return helpers.pid()

    assert len(set(get(meet.map(range(4))))) >= 2


def test_map_has_one_return_value_a_task() -> None:
    with pytest.raises(ValueError, match="one return value"):
        square.options(num_returns=2).map([1])
    with pytest.raises(TypeError):
        square.map()


# -- get and wait --------------------------------------------------------------


def test_get_takes_references_only() -> None:
    for wrong in (1, "ref", None, {square.remote(1)}):
        with pytest.raises(ValueError):
            ray.get(wrong)
    with pytest.raises(TypeError, match="get takes ObjectRefs, not int"):
        ray.get([1])
    assert ray.get([]) == []
    ref = square.remote(3)
    assert get([ref, ref]) == [9, 9]


def test_get_gives_up_when_asked_to() -> None:
    ref = after.remote(1.0, "late")
    with pytest.raises(GetTimeoutError, match="1 of 1"):
        ray.get(ref, timeout=0.01)
    with pytest.raises(TimeoutError):
        ray.get([ref, square.remote(1)], timeout=0)
    array = after.map([1.0])
    with pytest.raises(GetTimeoutError):
        ray.get(array, timeout=0.01)
    assert get(ref) == "late"
    assert get(array) == [None]


def test_put_refuses_a_reference() -> None:
    with pytest.raises(TypeError):
        ray.put(ray.put(1))


def test_wait_keeps_the_order_given() -> None:
    slow = after.remote(1.0)
    quick = [square.remote(i) for i in range(3)]
    get(quick)
    refs = [quick[2], slow, quick[0], quick[1]]
    assert ray.wait(refs) == ([quick[2]], [slow, quick[0], quick[1]])
    assert ray.wait(refs, num_returns=3) == ([quick[2], quick[0], quick[1]], [slow])
    assert ray.wait(refs, num_returns=4, timeout=0) == ([quick[2], quick[0], quick[1]], [slow])
    ready, pending = ray.wait(refs, num_returns=4, timeout=LIMIT_S)
    assert (ready, pending) == (refs, [])


def test_wait_returns_as_tasks_end() -> None:
    pending = [after.remote(0.02 * i, i) for i in range(6)]
    seen = []
    while pending:
        ready, pending = ray.wait(pending, timeout=LIMIT_S)
        assert len(ready) == 1
        seen += get(ready)
    assert sorted(seen) == list(range(6))


def test_wait_for_large_and_for_failed_values() -> None:
    @ray.remote
    def fail() -> None:
        raise OSError

    refs = [ray.remote(lambda: np.zeros(50_000)).remote(), fail.remote()]
    ready, pending = ray.wait(refs, num_returns=2, timeout=LIMIT_S)
    assert (ready, pending) == (refs, [])
    ready, _ = ray.wait(refs, num_returns=2, timeout=LIMIT_S, fetch_local=False)
    assert ready == refs


def test_wait_refuses_wrong_arguments() -> None:
    ref = ray.put(1)
    assert ray.wait([]) == ([], [])
    with pytest.raises(ValueError):
        ray.wait([ref, ref])
    with pytest.raises(ValueError):
        ray.wait([ref], timeout=-1)
    for count in (0, 2):
        with pytest.raises(ValueError):
            ray.wait([ref], num_returns=count)
    for wrong in (ref, [1], 1):
        with pytest.raises(TypeError):
            ray.wait(wrong)


def test_many_threads_of_the_driver() -> None:
    errors: list[BaseException] = []

    def use(thread: int) -> None:
        try:
            for i in range(50):
                assert get(square.remote(thread * 1000 + i)) == (thread * 1000 + i) ** 2
                assert get(square.map(range(i))) == [x * x for x in range(i)]
                assert get(ray.put(i)) == i
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert not errors


def test_now_sleep_and_compute() -> None:
    @ray.remote
    def busy() -> tuple[float, float]:
        began, used = ray.now(), time.process_time()
        ray.compute(0.05)
        ray.sleep(0.05)
        return ray.now() - began, time.process_time() - used

    elapsed_s, cpu_s = get(busy.remote())
    assert elapsed_s >= 0.1
    assert cpu_s >= 0.05
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError):
            ray.sleep(wrong)


def test_many_inputs_of_medium_size_reach_many_tasks() -> None:
    # 90 KB rides in messages; a thousand of them in one would be no frame any more.
    first = ray.put(np.zeros(11_000))
    length = ray.remote(len)
    get([length.remote(first) for _ in range(50)])
    assert get([length.remote(first) for _ in range(1500)]) == [11_000] * 1500


def test_one_task_with_many_inputs_of_medium_size() -> None:
    refs = [ray.put(np.zeros(11_000)) for _ in range(800)]
    assert get(ray.remote(lambda *arrays: sum(map(len, arrays))).remote(*refs)) == 8_800_000


def test_many_arguments_of_medium_size() -> None:
    items = [np.full(11_000, i) for i in range(900)]
    assert get(ray.remote(lambda a: int(a[0])).map(items)) == list(range(900))
