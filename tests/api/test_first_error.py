"""`get` of several values raises at the first error, as others may wait for that one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.exceptions import ActorDiedError, GetTimeoutError, TaskCancelledError
from raytwin.runtime.api.backend import current
from raytwin.runtime.session.session import Session

LIMIT_S = 20.0


@ray.remote
def fail(kind: type[Exception] = ValueError) -> None:
    raise kind("no")


@ray.remote
def large(x: int) -> Any:
    return np.full(50_000, x)


@ray.remote
def yields() -> Iterator[int]:
    yield 1
    raise ValueError("no")


@ray.remote(num_cpus=0)
class Barrier:
    def __init__(self) -> None:
        self.here = 0

    def come(self) -> int:
        self.here += 1
        return self.here

    def count(self) -> int:
        return self.here

    def fail(self) -> None:
        raise ValueError("no")

    def stay(self) -> None:
        ray.sleep(1000.0)


@ray.remote
def meet(rank: int, barrier: Any, of: int) -> int:
    """Fail, or wait for all others."""
    if rank == 1:
        raise ValueError("out of memory on rank 1")
    ray.get(barrier.come.remote())
    while ray.get(barrier.count.remote()) < of:
        ray.sleep(0.02)
    return rank


@pytest.fixture
def never(backend: str) -> Iterator[Any]:
    """A reference that has no value while the test runs."""
    ref = large.options(resources={"none": 1}).remote(0)
    yield ref
    ray.cancel(ref)


def failed_before() -> Any:
    ref = fail.remote()
    ray.wait([ref])
    return ref


def called() -> Any:
    return Barrier.remote().fail.remote()


def died() -> Any:
    actor = Barrier.remote()
    ray.get(actor.come.remote())
    ref = actor.stay.remote()
    ray.kill(actor)
    return ref


def cancelled() -> Any:
    ref = large.options(resources={"none": 1}).remote(0)
    ray.cancel(ref)
    return ref


ERRORS: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "a task": (fail.remote, ValueError),
    "a task that was done before": (failed_before, ValueError),
    "a call": (called, ValueError),
    "a call of an actor that is killed": (died, ActorDiedError),
    "what is cancelled": (cancelled, TaskCancelledError),
    "an element of an array": (lambda: fail.map([KeyError, KeyError])[1], KeyError),
    "the last item of a stream": (lambda: list(yields.remote())[-1], ValueError),
}


@pytest.mark.parametrize("what", ERRORS)
def test_the_first_error_ends_the_wait(never: Any, what: str) -> None:
    make, kind = ERRORS[what]
    for others in ([never], [never, ray.put(1), large.remote(5)]):
        with pytest.raises(kind):
            ray.get([*others, make()], timeout=LIMIT_S)
        with pytest.raises(kind):
            ray.get([make(), *others], timeout=LIMIT_S)


def test_without_an_error_all_are_waited_for(never: Any) -> None:
    elsewhere = failed_before()
    with pytest.raises(GetTimeoutError, match=r"1 of 3 values were not there after 0\.05 s"):
        ray.get([ray.put(1), never, large.remote(1)], timeout=0.05)
    with pytest.raises(ValueError):
        ray.get(elsewhere)


def test_the_first_in_the_list_is_raised_of_those_that_failed(never: Any) -> None:
    one, two = fail.remote(KeyError), fail.remote(ValueError)
    ray.wait([one, two], num_returns=2)
    with pytest.raises(KeyError):
        ray.get([never, one, two], timeout=LIMIT_S)
    with pytest.raises(ValueError):
        ray.get([never, two, one], timeout=LIMIT_S)


@pytest.mark.parametrize("as_array", [False, True])
def test_workers_that_meet(backend: str, as_array: bool) -> None:
    barrier = Barrier.remote()
    ray.get(barrier.count.remote())
    if as_array:
        refs = meet.map(range(3), [barrier] * 3, [3] * 3)
    else:
        refs = [meet.remote(rank, barrier, 3) for rank in range(3)]
    with pytest.raises(ValueError, match="out of memory on rank 1"):
        ray.get(refs, timeout=LIMIT_S)
    # The tasks that wait at the barrier may end.
    ray.get([barrier.come.remote() for _ in range(3)])
    assert ray.get([refs[0], refs[2]], timeout=LIMIT_S) == [0, 2]


@ray.remote
def gathers(borrowed: list[Any]) -> tuple[str, list[int]]:
    barrier = Barrier.remote()
    refs = borrowed or [meet.remote(rank, barrier, 2) for rank in range(2)]
    try:
        ray.get(refs, timeout=LIMIT_S)
    except Exception as error:
        text = str(error).strip().splitlines()[-1]
    ray.get([barrier.come.remote() for _ in range(2)])
    return text, ray.get([meet.remote(0, barrier, 2) for _ in range(4)])


@pytest.mark.parametrize("lends", [False, True])
def test_a_task_goes_on_and_has_its_cpu_again(never: Any, lends: bool) -> None:
    refs = [never, fail.remote()] if lends else []
    found = ray.get([gathers.remote(refs) for _ in range(4)], timeout=2 * LIMIT_S)
    text = "ValueError: no" if lends else "ValueError: out of memory on rank 1"
    assert found == [(text, [0] * 4)] * 4
    until_s = ray.now() + LIMIT_S
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        assert ray.now() < until_s, ray.available_resources()
        ray.sleep(0.02)


def test_get_releases_the_other_values_after_an_error(never: Any) -> None:
    session = current()
    assert isinstance(session, Session)
    client = session.client
    array = large.options(resources={"none": 1}).map(range(4))
    for refs in ([large.remote(1), never, array[2], fail.remote()], [never, failed_before()]):
        with pytest.raises(ValueError):
            ray.get(refs, timeout=LIMIT_S)
        del refs
    assert not client.pins._awaited
    for ref in (never, array[2]):
        entry = client.entries[ref.binary()[:12]]
        assert not entry.waiters and not entry.all_waiters
    ray.cancel(array[2])
    until_s = ray.now() + LIMIT_S
    while any(row[1:] != [0, 0, 0] for row in session.query("stores")):
        assert ray.now() < until_s, session.query("stores")
        ray.sleep(0.02)
    assert not client.pins._views and not client.pins._unpin_later


def test_wait_counts_errors_as_before(never: Any) -> None:
    failed = fail.remote()
    assert ray.wait([never, failed], num_returns=2, timeout=0.3) == ([failed], [never])
    assert ray.wait([never, failed], num_returns=1) == ([failed], [never])
