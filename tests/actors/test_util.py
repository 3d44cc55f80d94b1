"""`ActorPool` and `Queue`, on real processes, in virtual time, and beside Ray's own."""

from __future__ import annotations

import importlib.util
import queue
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import raytwin
from raytwin.runtime.api.exceptions import RayActorError
from raytwin.runtime.api.util.actor_pool import ActorPool
from raytwin.runtime.api.util.queue import Empty, Full, Queue
from tests.own_ray import own_ray, ray_folder
from tests.requirements import require

# -- the same program for raytwin and for Ray ----------------------------------


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the name of the error that it raises."""
    try:
        return call()
    except Exception as error:
        bases = [cls.__name__ for cls in type(error).__mro__]
        known = ("StopIteration", "ValueError", "TimeoutError", "TypeError", "Empty", "Full")
        return next(name for name in known if name in bases)


def use_pool(ray: Any, pool_class: Any) -> list[Any]:
    """Return all that a program sees of a pool."""

    class Worker:
        def double(self, x: int) -> int:
            if x < 0:
                raise ValueError("negative")
            return 2 * x

        def slow(self, gate: Any, x: int) -> int:
            return int(ray.get(gate[0].wait.remote())) + x

    class Gate:
        """Lets calls through once it is open."""

        def __init__(self) -> None:
            import asyncio

            self.opened = asyncio.Event()

        async def open(self) -> None:
            self.opened.set()

        async def wait(self) -> int:
            await self.opened.wait()
            return 100

    workers = [ray.remote(num_cpus=0)(Worker).remote() for _ in range(2)]
    pool = pool_class(workers)

    def double(actor: Any, x: int) -> Any:
        return actor.double.remote(x)

    seen: list[Any] = [list(pool.map(double, range(7)))]
    seen.append(sorted(pool.map_unordered(double, range(7))))
    seen.append([pool.has_next(), pool.has_free(), outcome(pool.get_next)])
    seen.append(outcome(pool.get_next_unordered))
    for x in (1, 2, 3):
        pool.submit(double, x)
    seen.append([pool.has_next(), pool.has_free(), pool.pop_idle()])
    seen.append([pool.get_next() for _ in range(3)])
    seen.append([pool.has_next(), pool.has_free()])
    # An error is raised where the result would be, and the pool goes on.
    errors = pool.map(double, [1, -1, 3])
    seen.append([outcome(lambda: next(errors)) for _ in range(2)])
    seen.append(outcome(pool.get_next))
    # Actors come and go.
    taken = pool.pop_idle()
    seen.append([taken in workers, pool.has_free()])
    seen.append(outcome(lambda: pool.push(next(w for w in workers if w != taken))))
    seen.append([outcome(lambda: pool.push(taken)), outcome(lambda: pool.push(taken))])
    # Nothing comes until the gate is opened.
    gate = ray.remote(num_cpus=0)(Gate).remote()

    def slow(actor: Any, x: int) -> Any:
        return actor.slow.remote([gate], x)

    for x in (1, 2, 3):
        pool.submit(slow, x)
    seen.append(outcome(lambda: pool.get_next(timeout=0.01)))
    seen.append(outcome(lambda: pool.get_next_unordered(timeout=0.01)))
    seen.append(outcome(lambda: pool.get_next(timeout=0.01, ignore_if_timedout=True)))
    ray.get(gate.open.remote())
    seen.append([pool.get_next(timeout=60), pool.get_next(timeout=60), pool.has_next()])
    # What was not collected is dropped by the next map.
    pool.submit(double, 50)
    pool.submit(double, 60)
    pool.submit(double, 70)
    seen.append(list(pool.map(double, [5])))
    # After one out of order there is no order any more.
    pool.submit(double, 4)
    pool.submit(double, 4)
    seen.append(pool.get_next_unordered())
    seen.append(pool.has_next())
    return seen


def use_queue(ray: Any, queue_class: Any) -> list[Any]:
    """Return all that a program sees of a queue."""
    items = queue_class(maxsize=3)
    seen: list[Any] = [[items.empty(), items.full(), len(items), items.maxsize]]
    seen.append(outcome(items.get_nowait))
    seen.append(outcome(lambda: items.get(timeout=0.01)))
    seen.append(outcome(lambda: items.get(timeout=-1)))
    seen.append(outcome(lambda: items.put(1, timeout=-1)))
    for x in ("a", None, {"b": [1]}):
        items.put(x)
    seen.append([items.qsize(), items.size(), items.full()])
    seen.append(outcome(lambda: items.put_nowait(4)))
    seen.append(outcome(lambda: items.put(4, block=False)))
    seen.append(outcome(lambda: items.put(4, timeout=0.01)))
    seen.append([items.get(), items.get(block=False), items.get(timeout=5)])
    seen.append(outcome(lambda: items.put_nowait_batch([1, 2, 3, 4])))
    seen.append(outcome(lambda: items.put_nowait_batch(1)))
    seen.append([items.put_nowait_batch([1, 2, 3]), items.qsize()])
    seen.append(outcome(lambda: items.get_nowait_batch(4)))
    seen.append(outcome(lambda: items.get_nowait_batch(-1)))
    seen.append(outcome(lambda: items.get_nowait_batch("2")))
    seen.append([items.get_nowait_batch(2), items.get_nowait_batch(0), items.get_nowait_batch(1)])

    @ray.remote(num_cpus=0)
    def produce(to: Any, count: int) -> None:
        for x in range(count):
            to.put(x)

    @ray.remote(num_cpus=0)
    def consume(source: Any, count: int) -> list[int]:
        return [source.get() for _ in range(count)]

    # Three items fit: producer and consumer wait for one another.
    got = consume.remote(items, 20)
    ray.get(produce.remote(items, 20))
    seen.append(ray.get(got))
    unbounded = queue_class(actor_options={"num_cpus": 0, "max_concurrency": 4})
    unbounded.put_nowait_batch(range(100))
    seen.append([unbounded.qsize(), unbounded.full(), sum(unbounded.get_nowait_batch(100))])
    items.shutdown()
    unbounded.shutdown(force=True)
    return seen


@pytest.fixture(scope="module")
def peer() -> Iterator[Any]:
    """Ray itself, started for this module."""
    require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    with ray_folder() as folder, own_ray(4, folder) as ray:
        yield ray


EXPECTED_POOL = [
    [0, 2, 4, 6, 8, 10, 12], [0, 2, 4, 6, 8, 10, 12],
    [False, True, "StopIteration"], "StopIteration",
    [True, False, None], [2, 4, 6], [False, True],
    [2, "ValueError"], 6,
    [True, True], "ValueError", [None, "ValueError"],
    "TimeoutError", "TimeoutError", "TimeoutError", [102, 103, False],
    [10], 8, True,
]  # fmt: skip

EXPECTED_QUEUE = [
    [True, False, 0, 3], "Empty", "Empty", "ValueError", "ValueError",
    [3, 3, True], "Full", "Full", "Full", ["a", None, {"b": [1]}],
    "Full", "TypeError", [None, 3], "Empty", "ValueError", "TypeError", [[1, 2], [], [3]],
    list(range(20)), [100, False, 4950],
]  # fmt: skip


def test_pool(cluster: Any) -> None:
    assert use_pool(raytwin, ActorPool) == EXPECTED_POOL


def test_queue(cluster: Any) -> None:
    assert use_queue(raytwin, Queue) == EXPECTED_QUEUE


@pytest.mark.ray
def test_pool_behaves_like_rays(peer: Any) -> None:
    assert use_pool(peer, peer.util.ActorPool) == EXPECTED_POOL


@pytest.mark.ray
def test_queue_behaves_like_rays(peer: Any) -> None:
    import ray.util.queue

    assert use_queue(peer, ray.util.queue.Queue) == EXPECTED_QUEUE


# -- raytwin alone -------------------------------------------------------------


@raytwin.remote(num_cpus=0)
class Worker:
    def double(self, x: int) -> int:
        return 2 * x

    @raytwin.method(num_returns=2)
    def both(self, x: int) -> tuple[int, int]:
        return x, -x


def double(actor: Any, x: int) -> Any:
    return actor.double.remote(x)


def test_order_lost_by_an_unordered_get_is_an_error(cluster: Any) -> None:
    pool = ActorPool([Worker.remote()])
    pool.submit(double, 1)
    pool.submit(double, 2)
    assert pool.get_next_unordered() == 2
    assert pool.get_next() == 4
    slow, fast = Worker.remote(), Worker.remote()
    pool = ActorPool([fast, slow])  # the last one is the first to work
    held = raytwin.remote(num_cpus=0)(lambda: raytwin.sleep(0.2)).remote()
    pool.submit(lambda actor, _: actor.__ray_call__.remote(lambda _, gate: 0, held), None)
    pool.submit(double, 3)
    assert pool.get_next_unordered() == 6
    with pytest.raises(ValueError, match="get_next_unordered"):
        pool.get_next()
    assert pool.get_next_unordered() == 0


def test_ignore_if_timedout_drops_the_oldest_result(cluster: Any) -> None:
    pool = ActorPool([Worker.remote()])
    held = raytwin.remote(num_cpus=0)(lambda: raytwin.sleep(0.2)).remote()
    pool.submit(lambda actor, _: actor.__ray_call__.remote(lambda _, gate: 0, held), None)
    pool.submit(double, 3)
    with pytest.raises(TimeoutError, match="dropped"):
        pool.get_next_unordered(timeout=0.0, ignore_if_timedout=True)
    assert pool.get_next_unordered() == 6
    assert not pool.has_next()


def test_calls_with_several_values(cluster: Any) -> None:
    pool = ActorPool([Worker.remote(), Worker.remote()])
    assert list(pool.map(lambda a, x: a.both.remote(x), [1, 2, 3])) == [[1, -1], [2, -2], [3, -3]]
    got = pool.map_unordered(lambda a, x: a.both.remote(x), [1, 2])
    assert sorted(got) == [[1, -1], [2, -2]]


def test_queue_errors_are_the_standard_librarys(cluster: Any) -> None:
    assert issubclass(Empty, queue.Empty) and issubclass(Full, queue.Full)
    items = Queue(1)
    with pytest.raises(Empty):
        items.get(timeout=0)
    items.put("only")
    with pytest.raises(Full):
        items.put("more", timeout=0)
    assert items.get(timeout=0) == "only"
    items.put("room", timeout=0)
    with pytest.raises(Full, match="1 of 1"):
        items.put_nowait_batch(["x"])
    with pytest.raises(Empty, match="but 1"):
        items.get_nowait_batch(2)
    items.shutdown()


def test_many_wait_at_a_time(cluster: Any) -> None:
    items = Queue()

    @raytwin.remote(num_cpus=0)
    def take(source: Queue) -> int:
        return int(source.get())

    takers = [take.remote(items) for _ in range(20)]
    items.put_nowait_batch(range(20))
    assert sorted(raytwin.get(takers)) == list(range(20))
    assert items.empty()
    items.shutdown()


def test_large_items(cluster: Any) -> None:
    items = Queue()
    big = np.arange(200_000)
    items.put(big)
    assert np.array_equal(items.get(), big)
    items.shutdown()


@pytest.mark.parametrize("force", [False, True])
def test_shutdown_ends_the_actor(cluster: Any, force: bool) -> None:
    items = Queue(actor_options={"name": f"items-{force}", "num_cpus": 1})
    other = raytwin.get_actor(f"items-{force}")
    items.put(1)
    items.shutdown(force=force)
    items.shutdown()
    with pytest.raises(RayActorError):
        items.get()
    with pytest.raises(RayActorError):
        raytwin.get(other.size.remote())
    with pytest.raises(ValueError):
        raytwin.get_actor(f"items-{force}")
