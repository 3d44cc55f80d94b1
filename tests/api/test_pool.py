"""multiprocessing.Pool and joblib on a cluster."""

from __future__ import annotations

import importlib.util
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.exceptions import ActorDiedError
from raytwin.util.multiprocessing import Pool, PoolTaskError
from tests.requirements import require

pytestmark = pytest.mark.usefixtures("backend")

LIMIT_S = 30.0


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(4) as made:
        yield made


def square(x: int) -> int:
    return x * x


def power(x: int, y: int = 2) -> int:
    return int(x**y)


def fail(x: int) -> int:
    if x == 3:
        raise KeyError("three")
    return x


def nap(seconds: float) -> float:
    ray.sleep(seconds)
    return seconds


def test_maps(pool: Pool) -> None:
    assert pool.map(square, range(100)) == [x * x for x in range(100)]
    assert pool.map(square, [], chunksize=3) == []
    assert pool.map(square, iter(range(7)), chunksize=3) == [x * x for x in range(7)]
    assert pool.starmap(power, [(2, 3), (3, 2)]) == [8, 9]
    assert pool.map_async(square, range(10)).get(LIMIT_S) == [x * x for x in range(10)]
    assert pool.starmap_async(power, [(2, 3)]).get(LIMIT_S) == [8]


def test_single_calls(pool: Pool) -> None:
    assert pool.apply(power, (2,), {"y": 5}) == 32
    result = pool.apply_async(nap, (0.3,))
    assert not result.ready()
    with pytest.raises(ValueError):
        result.successful()
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(timeout=0.01)
    result.wait(LIMIT_S)
    assert result.ready()
    assert result.successful()
    assert result.get() == 0.3


def test_iterators(pool: Pool) -> None:
    assert list(pool.imap(square, range(20))) == [x * x for x in range(20)]
    assert list(pool.imap(square, range(20), chunksize=6)) == [x * x for x in range(20)]
    assert sorted(pool.imap_unordered(square, range(20))) == [x * x for x in range(20)]
    first = pool.imap(square, itertools.count())
    assert [next(first) for _ in range(30)] == [x * x for x in range(30)]


def test_unordered_values_come_as_they_are_ready(pool: Pool) -> None:
    assert next(pool.imap_unordered(nap, [3.0, 0.05, 0.05])) == 0.05
    slow = pool.imap(nap, [0.5, 0.05])
    with pytest.raises(multiprocessing.TimeoutError):
        slow.next(timeout=0.1)
    assert slow.next(timeout=LIMIT_S) == 0.5


def test_the_first_exception_is_raised_but_by_imap(pool: Pool) -> None:
    with pytest.raises(KeyError, match="three"):
        pool.map(fail, range(6))
    result = pool.map_async(fail, range(6))
    result.wait(LIMIT_S)
    assert not result.successful()
    values = pool.imap(fail, range(5))
    assert [next(values) for _ in range(3)] == [0, 1, 2]
    error = next(values)
    assert isinstance(error, PoolTaskError)
    assert isinstance(error.underlying, KeyError)
    assert next(values) == 4


def lock(x: int) -> Any:
    return threading.Lock() if x == 3 else x


def test_a_pickling_error_fails_only_its_chunk_and_imap_yields_it(pool: Pool) -> None:
    for _ in range(4):
        with pytest.raises(TypeError, match="pickle"):
            pool.apply(lock, (3,))
    values = pool.imap(lock, range(20), chunksize=2)
    assert [next(values), next(values)] == [0, 1]
    error = next(values)
    assert isinstance(error, ray.exceptions.RayTaskError)
    assert isinstance(error, TypeError)
    assert list(values) == [*range(4, 20)]


def test_calls_whose_worker_died_fail(tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    def die(x: int) -> None:
        with runs.open("a") as file:
            file.write("x")
        os._exit(1)

    with Pool(2) as two:
        with pytest.raises(ActorDiedError):
            two.apply(die, (1,))
        assert runs.read_text() == "x"


def test_references_and_arrays_in_results_are_what_they_are_elsewhere(pool: Pool) -> None:
    def references(x: int) -> Any:
        return [ray.put([x])]

    found = pool.map(references, range(6))
    assert [ray.get(ref) for (ref,) in found] == [[x] for x in range(6)]
    np = pytest.importorskip("numpy")
    for size in (10, 100_000):
        arrays = pool.map(np.ones, [size] * 6)
        arrays += [one for (one,) in pool.map(lambda n: [np.ones(n)], [size] * 6)]
        assert [array.sum() for array in arrays] == [size] * 12
        assert not any(array.flags.writeable for array in arrays)


def test_callbacks_have_returned_when_get_does(pool: Pool) -> None:
    called: list[Any] = []

    def call(value: Any) -> None:
        time.sleep(0.05)
        called.append(value)

    for x in range(3):
        assert pool.apply_async(square, (x,), callback=call).get(LIMIT_S) == x * x == called[-1]
    pool.map_async(square, range(9), callback=call).wait(LIMIT_S)
    assert called[-1] == [x * x for x in range(9)]
    failed = pool.apply_async(fail, (3,), error_callback=call)
    with pytest.raises(KeyError):
        failed.get(LIMIT_S)
    assert isinstance(called[-1], KeyError)
    assert failed.ready() and not failed.successful()
    assert len(called) == 5


def test_at_most_so_many_at_once() -> None:
    with Pool(2) as two:
        began_s = ray.now()
        two.map(nap, [0.2] * 4, chunksize=1)
        assert ray.now() - began_s >= 0.4


def test_the_initializer_runs_once_per_process(tmp_path: Any) -> None:
    def initialize(folder: Any) -> None:
        (folder / ray.get_runtime_context().get_worker_id()).open("x").close()

    with Pool(4, initialize, [tmp_path]) as made:
        assert made.map(square, range(50), chunksize=2) == [x * x for x in range(50)]
    assert len(list(tmp_path.iterdir())) == 4


def test_closing(pool: Pool) -> None:
    result = pool.map_async(nap, [0.1] * 3)
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    pool.close()
    pool.join()
    assert result.ready()
    with pytest.raises(ValueError, match="not running"):
        pool.map(square, [1])


def test_leaving_the_context_ends_running_calls() -> None:
    with Pool(4) as made:
        result = made.map_async(nap, [1000.0] * 6, chunksize=1)
    with pytest.raises(ActorDiedError):
        result.get(LIMIT_S)


@pytest.mark.parametrize(
    "arguments", [{"processes": 0}, {"processes": 99}, {"maxtasksperchild": 1}, {"context": "fork"}]
)
def test_impossible_pools(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Pool(**arguments)


def test_joblib() -> None:
    from raytwin.util.joblib import register_ray

    if importlib.util.find_spec("joblib") is None:
        with pytest.raises(ImportError, match=r"raytwin\[joblib\]"):
            register_ray()
        require("joblib", False, "joblib is not installed")
    import joblib

    register_ray()
    with joblib.parallel_backend("ray", n_jobs=4):
        found = joblib.Parallel()(joblib.delayed(power)(i, y=3) for i in range(30))
    assert found == [i**3 for i in range(30)]
    with joblib.parallel_backend("ray"), pytest.raises(KeyError):
        joblib.Parallel(n_jobs=2)(joblib.delayed(fail)(i) for i in range(6))


def assigned(x: int) -> dict[str, float]:
    resources: dict[str, float] = ray.get_runtime_context().get_assigned_resources()
    return resources


def test_joblib_passes_options_of_the_pool_on() -> None:
    from raytwin.util.joblib import register_ray

    require("joblib", importlib.util.find_spec("joblib") is not None, "joblib is not installed")
    import joblib

    register_ray()
    calls = [joblib.delayed(assigned)(x) for x in range(2)]
    with joblib.parallel_backend("ray", n_jobs=2, ray_remote_args={"num_cpus": 2}):
        assert joblib.Parallel()(calls) == [{"CPU": 2.0}] * 2
    with joblib.parallel_backend("ray", n_jobs=2):
        assert joblib.Parallel(ray_remote_args={"num_cpus": 1.5})(calls) == [{"CPU": 1.5}] * 2
        with pytest.raises(TypeError, match="no option 'remote_args'"):
            joblib.Parallel(remote_args={"num_cpus": 1.5})(calls)
    with pytest.raises(TypeError, match="remote_args"):
        joblib.parallel_backend("ray", remote_args={"num_cpus": 2})
    with (
        joblib.parallel_backend("ray", ray_remote_args={"num_cpu": 2}),
        pytest.raises(ValueError, match="num_cpu"),
    ):
        joblib.Parallel(n_jobs=2)(calls)
