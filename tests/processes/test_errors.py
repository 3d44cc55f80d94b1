"""A program's errors when a task raises, or a value cannot be sent."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import RayTaskError
from tests.processes.helpers import LIMIT_S

pytestmark = pytest.mark.usefixtures("cluster")


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=LIMIT_S)


class Odd(Exception):
    """Its constructor is not what pickle expects."""

    def __init__(self, first: int, *, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.first = first
        self.second = second


class NeedsTwo(Exception):
    def __new__(cls, first: int, second: int) -> NeedsTwo:
        return super().__new__(cls, first, second)

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("has a lock")
        self.lock = threading.Lock()


class BreaksOnLoad(Exception):
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise RuntimeError("cannot be made again")


@ray.remote
def fail(error: Any) -> None:
    raise error  # the line that the traceback shows


@ray.remote
def use(*values: Any) -> Any:
    return values


def raised_by(ref: Any) -> RayTaskError:
    with pytest.raises(RayTaskError) as caught:
        get(ref)
    return caught.value


@pytest.mark.parametrize(
    "error",
    [ValueError("bad", 1), KeyError("k"), OSError(2, "none"), StopIteration(), AssertionError(),
     UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), KeyError(),
     ExceptionGroup("group", [ValueError()])],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_an_error_is_of_its_own_class_and_a_task_error(error: Exception) -> None:
    caught = raised_by(fail.remote(error))
    assert isinstance(caught, type(error)) or type(error) is ExceptionGroup
    assert type(caught.cause) is type(error)
    assert caught.cause.args == error.args or type(error) is ExceptionGroup
    assert "raise error  # the line that the traceback shows" in caught.traceback_str
    assert "execution.py" not in caught.traceback_str
    assert type(error).__name__ in str(caught)


def test_the_attributes_of_an_error_survive() -> None:
    error = ValueError("x")
    error.code = 42  # type: ignore[attr-defined]
    assert raised_by(fail.remote(error)).code == 42  # type: ignore[attr-defined]


def test_attributes_of_built_in_errors_survive() -> None:
    assert raised_by(fail.remote(OSError(2, "none", "file"))).errno == 2  # type: ignore[attr-defined]
    bad = raised_by(fail.remote(UnicodeDecodeError("utf-8", b"xyz", 1, 2, "why")))
    assert (bad.object, bad.start, bad.reason) == (b"xyz", 1, "why")  # type: ignore[attr-defined]
    assert raised_by(fail.remote(StopIteration(5))).value == 5  # type: ignore[attr-defined]
    assert isinstance(raised_by(fail.remote(SystemError())).args[0], SystemError)


def test_errors_with_odd_constructors() -> None:
    @ray.remote
    def odd() -> None:
        raise Odd(1, second="two")

    caught = raised_by(odd.remote())
    assert "1 and two" in str(caught)
    assert "raise Odd(1, second=" in caught.traceback_str
    caught = raised_by(ray.remote(lambda: fail.function(NeedsTwo(1, 2))).remote())
    assert "NeedsTwo" in str(caught)


def test_errors_that_cannot_be_pickled_keep_their_traceback() -> None:
    caught = raised_by(ray.remote(lambda: fail.function(Unpicklable())).remote())
    assert "has a lock" in str(caught)
    assert "isn't serializable" in str(caught)
    caught = raised_by(ray.remote(lambda: fail.function(BreaksOnLoad("broken"))).remote())
    assert "broken" in str(caught)


def test_an_error_goes_through_dependent_tasks() -> None:
    first = fail.remote(LookupError("the first"))
    last = use.remote(use.remote(1, first), 2)
    caught = raised_by(last)
    assert isinstance(caught, LookupError)
    assert "the first" in str(caught)
    with pytest.raises(LookupError):
        get(use.map([1, first])[1])


def test_an_error_in_a_nested_task_is_raised_where_it_is_awaited() -> None:
    @ray.remote
    def outer() -> str:
        try:
            ray.get(fail.remote(ZeroDivisionError("inner")))
        except ZeroDivisionError:
            return "caught"
        return "nothing raised"

    @ray.remote
    def passes_on() -> None:
        ray.get(fail.remote(ZeroDivisionError("inner")))

    assert get(outer.remote()) == "caught"
    caught = raised_by(passes_on.remote())
    assert isinstance(caught, ZeroDivisionError)
    assert "ray.get(fail.remote" in caught.traceback_str
    assert "inner" in caught.traceback_str


def test_a_task_error_can_be_pickled() -> None:
    caught = raised_by(fail.remote(ValueError("x")))
    again = pickle.loads(pickle.dumps(caught))
    assert isinstance(again, ValueError) and isinstance(again, RayTaskError)
    assert again.traceback_str == caught.traceback_str


def test_every_return_value_of_a_failed_task_is_the_error() -> None:
    for ref in fail.options(num_returns=2).remote(ValueError("both")):
        with pytest.raises(ValueError, match="both"):
            get(ref)


def test_a_result_that_cannot_be_pickled_is_the_tasks_error() -> None:
    with pytest.raises(TypeError, match="pickle"):
        get(ray.remote(threading.Lock).remote())
    mapped = ray.remote(lambda i: threading.Lock() if i == 3 else i).map(range(6))
    assert get([mapped[i] for i in (0, 1, 2, 4, 5)]) == [0, 1, 2, 4, 5]
    with pytest.raises(TypeError, match="pickle"):
        get(mapped[3])


def test_a_result_that_cannot_be_loaded_is_an_error_at_get() -> None:
    def broken() -> Any:
        return BreaksOnLoad()

    with pytest.raises(RuntimeError, match="cannot be made again"):
        get(ray.remote(broken).remote())


def test_unpicklable_arguments_raise_at_the_call() -> None:
    lock = threading.Lock()
    for wrong in (
        lambda: use.remote(lock),
        lambda: use.remote(1, [lock]),
        lambda: use.map([1, lock]),
        lambda: ray.put(lock),
        lambda: ray.remote(lambda: lock).remote(),
    ):
        with pytest.raises(TypeError, match="pickle"):
            wrong()
    assert get(use.remote(1)) == (1,)


def test_an_argument_that_cannot_be_loaded_is_the_tasks_error() -> None:
    with pytest.raises(RuntimeError, match="cannot be made again"):
        get(use.remote(BreaksOnLoad()))
    with pytest.raises(RuntimeError, match="cannot be made again"):
        get(use.map([BreaksOnLoad()]))
    assert get(use.remote(2)) == (2,)


def test_a_function_that_cannot_be_loaded_is_the_tasks_error() -> None:
    class Callable:
        def __reduce__(self) -> Any:
            return _refuse, ()

        def __call__(self) -> None: ...

    with pytest.raises(RuntimeError, match="cannot be made again"):
        get(ray.remote(Callable()).remote())
    with pytest.raises(RuntimeError, match="cannot be made again"):
        get(ray.remote(Callable()).map(range(3)))


def test_a_function_that_is_too_long_is_an_error_at_the_call() -> None:
    large = bytes(40 << 20)
    with pytest.raises(ValueError, match="pass large values as arguments"):
        ray.remote(lambda: len(large)).remote()
    assert get(ray.remote(len).remote(large)) == len(large)


def test_recursion_without_end_is_the_tasks_error() -> None:
    @ray.remote
    def endless() -> None:
        def again() -> None:
            again()

        again()

    with pytest.raises(RecursionError):
        get(endless.remote())


def test_errors_among_many_tasks_do_not_stop_the_others() -> None:
    refs = [fail.remote(ValueError(i)) if i % 3 == 0 else use.remote(i) for i in range(300)]
    for i, ref in enumerate(refs):
        if i % 3:
            assert get(ref) == (i,)
        else:
            with pytest.raises(ValueError):
                get(ref)
