"""Options, resources, and the cluster's description of itself."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually

MAPS = Path("/proc/self/maps")
assert np.__version__, "loaded before a cluster starts, and so in its workers"


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=LIMIT_S)


@ray.remote
def plain(x: Any = None) -> Any:
    return x


def threads_of_openblas() -> set[int]:
    """Return how many threads the copies of OpenBLAS that this process has loaded use."""
    paths = {line.split()[-1] for line in MAPS.read_text().splitlines() if "openblas" in line}
    names = ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads")
    libraries = [ctypes.CDLL(path) for path in paths]
    return {getattr(each, name)() for each in libraries for name in names if hasattr(each, name)}


def test_linear_algebra_that_was_loaded_before_a_worker_uses_the_cpus_of_its_tasks(
    start: Start,
) -> None:
    here = threads_of_openblas()
    if not here:
        pytest.skip("numpy has no OpenBLAS here")
    start(nodes=1, cpus_per_node=2)
    threads = ray.remote(threads_of_openblas)
    for cpus in (1, 2, 1, 0.5):
        assert get(threads.options(num_cpus=cpus).remote()) == {max(1, int(cpus))}
    assert threads_of_openblas() == here


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_cpu": 1}, ValueError),
        ({"nonsense": 1}, ValueError),
        ({"num_cpus": -1}, ValueError),
        ({"num_cpus": 0.00001}, ValueError),
        ({"num_cpus": "2"}, TypeError),
        ({"num_cpus": float("nan")}, ValueError),
        ({"num_gpus": -1}, ValueError),
        ({"resources": {"CPU": 1}}, ValueError),
        ({"resources": {"a,b": 1}}, ValueError),
        ({"resources": {"": 1}}, ValueError),
        ({"resources": {"a": -1}}, ValueError),
        ({"resources": ["a"]}, TypeError),
        ({"num_returns": -1}, ValueError),
        ({"num_returns": 2.0}, TypeError),
        ({"num_returns": 70_000}, ValueError),
        ({"max_retries": -2}, ValueError),
        ({"max_retries": 1.5}, TypeError),
    ],
    ids=str,
)
def test_impossible_options_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        plain.options(**options)
    with pytest.raises(error):
        ray.remote(**options)


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'num_returns'"):
        plain.options(num_return=2)


def test_other_objects_than_functions_are_refused() -> None:
    for wrong in (1, "f", plain):
        with pytest.raises(TypeError):
            ray.remote(wrong)


def test_none_means_the_default() -> None:
    options = plain.options(num_cpus=None, num_returns=None, max_retries=None, resources=None)
    assert options.task_options == plain.task_options


class Gauge:
    """Counts how many tasks run at once, through files: workers share nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hold(self, name: str, seconds: float) -> int:
        mine = self.folder / name
        mine.touch()
        time.sleep(seconds)
        count = len(list(self.folder.iterdir()))
        mine.unlink()
        return count


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"num_cpus": 1}, 2),
        ({"num_cpus": 2}, 1),
        ({"num_cpus": 0.5}, 4),
        ({"num_cpus": 0, "resources": {"slot": 1}}, 3),
        ({"num_cpus": 0, "num_gpus": 0.5}, 2),
    ],
    ids=str,
)
def test_resources_bound_what_runs_at_once(
    start: Start, tmp_path: Path, options: dict[str, Any], most: int
) -> None:
    start(nodes=[{"CPU": 2, "GPU": 1, "slot": 3}])
    gauge = Gauge(tmp_path)
    hold = ray.remote(**options)(gauge.hold)
    # Long enough that every worker that may run has started by the end, also on a busy machine.
    counts = get([hold.remote(str(i), 0.2) for i in range(6 * most)])
    assert max(counts) <= most
    assert most == 1 or max(counts) > 1


def test_tasks_without_a_cpu_run_beside_those_with_one(start: Start) -> None:
    start(nodes=1, cpus_per_node=1)
    busy = ray.remote(time.sleep).remote(1.0)
    assert get(plain.options(num_cpus=0).remote("free")) == "free"
    ready, _ = ray.wait([busy], timeout=0)
    assert not ready
    get(busy)


def test_an_infeasible_task_waits_and_the_others_go_on(start: Start) -> None:
    start(nodes=2, cpus_per_node=1)
    for impossible in ({"num_cpus": 3}, {"resources": {"none": 1}}, {"num_gpus": 1}):
        ref = plain.options(**impossible).remote()
        assert ray.wait([ref], timeout=0.1) == ([], [ref])
    assert get(plain.map(range(50))) == list(range(50))


def test_the_cluster_describes_itself(start: Start, tmp_path: Path) -> None:
    session = start(nodes=[{"CPU": 2}, {"CPU": 1, "special": 4}])
    assert ray.is_initialized()
    rows = ray.nodes()
    memory = rows[0]["Resources"]["memory"]
    store = rows[0]["Resources"]["object_store_memory"]
    assert ray.cluster_resources() == {
        "CPU": 3, "special": 4, "node:0": 1, "node:1": 1, "node:__internal_head__": 1,
        "memory": 2 * memory, "object_store_memory": 2 * store,
    }  # fmt: skip
    assert [row["NodeID"] for row in rows] == ["0", "1"]
    assert all(row["Alive"] for row in rows)
    assert rows[1]["Resources"] == {
        "CPU": 1, "special": 4, "node:1": 1, "memory": memory, "object_store_memory": store,
    }  # fmt: skip
    assert len({row["NodeManagerPort"] for row in rows}) == 2
    assert session.name == "local"

    get(plain.options(name="first").remote())
    get(plain.options(name="second", resources={"special": 1}).map(range(7)))
    events = ray.timeline()
    assert sum(e["args"]["tasks"] for e in events if e["name"] == "second") == 7
    assert {e["pid"] for e in events if e["name"] == "second"} == {"node 1"}
    assert {e["ph"] for e in events} >= {"X", "i"}
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    assert ray.timeline(str(tmp_path / "timeline.json")) is None
    assert json.loads((tmp_path / "timeline.json").read_text()) == events


def test_a_second_init_is_refused_and_shutdown_allows_another(start: Start) -> None:
    first = start(nodes=1, cpus_per_node=1)
    with pytest.raises(RuntimeError, match="connected already"):
        start(nodes=2)
    assert start(nodes=2, ignore_reinit_error=True) is first
    old = plain.remote("old")
    get(old)
    ray.shutdown()
    ray.shutdown()
    assert not ray.is_initialized()
    start(nodes=2, cpus_per_node=1)
    assert get(plain.remote("new")) == "new"
    assert len(ray.nodes()) == 2


def test_references_of_a_cluster_that_is_gone(start: Start) -> None:
    start(nodes=1, cpus_per_node=1)
    ref, array, large = plain.remote(1), plain.map(range(3)), ray.put(bytes(1_000_000))
    value = get(large)
    ray.shutdown()
    uses: list[Callable[[], Any]] = [
        lambda: ray.get(ref),
        lambda: ray.get([ref]),
        lambda: ray.get(array),
        lambda: ray.wait([ref]),
        lambda: ray.wait(list(array)),
    ]
    for use in uses:
        with pytest.raises(ray.exceptions.RaySystemError, match="gone"):
            use()
    assert not ray.is_initialized()
    assert value == bytes(1_000_000)
    start(nodes=1, cpus_per_node=1)
    for use in (*uses, lambda: plain.remote(ref), lambda: plain.remote([ref])):
        with pytest.raises(ray.exceptions.RaySystemError, match="gone"):
            use()
    assert get(plain.remote(2)) == 2


def test_references_that_outlive_their_cluster_go_quietly(start: Start) -> None:
    start(nodes=1, cpus_per_node=1)
    held = [plain.remote(1), plain.map(range(3)), ray.put(bytes(1_000_000))]
    values = [get(ref) for ref in held]
    ray.shutdown()
    held.clear()
    start(nodes=1, cpus_per_node=1)
    values.clear()
    assert get(plain.remote(2)) == 2


def test_the_first_call_starts_a_cluster(start: Start) -> None:
    assert not ray.is_initialized()
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda i=i: found.append(get(plain.remote(i)))) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(found) == [0, 1, 2, 3]
    assert len(ray.nodes()) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "nonsense"},
        {"policy": "os:path"},
        {"policy": "no_such_module:Policy"},
        {"nodes": 0},
        {"nodes": []},
        {"cpus_per_node": -1},
        {"nodes": [{"CPU": -1}]},
        {"nodes": [{"a,b": 1}]},
        {"object_store_memory": 10},
        {"heartbeat_timeout_s": 0},
        {"backend": "nonsense"},
    ],
    ids=str,
)
def test_impossible_clusters_are_refused(start: Start, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        start(**options)
    assert not ray.is_initialized()


def test_an_unknown_setting_is_refused(start: Start) -> None:
    with pytest.raises(TypeError):
        start(node=3)
    assert not ray.is_initialized()


def test_a_submission_leaves_while_the_driver_computes(start: Start, tmp_path: Path) -> None:
    start(nodes=1, cpus_per_node=2)
    touch = ray.remote(lambda path: Path(path).touch())
    get(touch.remote(tmp_path / "warm"))
    for round_ in range(10):
        paths = [tmp_path / f"{round_}-{i}" for i in range(3)]
        refs = [touch.remote(path) for path in paths]
        # Pure Python, and not a call into raytwin: the background thread's turn.
        eventually(lambda paths=paths: all(path.exists() for path in paths))
        get(refs)
