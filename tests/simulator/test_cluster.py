"""The ``sim`` backend: errors, and a cluster's life from `init` to `shutdown`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import (
    GetTimeoutError,
    ObjectLostError,
    RaySystemError,
    RayTaskError,
)
from raytwin.simulator.machine.costs import load_profile
from tests.simulator.programs import increment, nested, sleep
from tests.simulator.virtual_cluster import start

# -- the first workers -----------------------------------------------------------


def test_the_first_worker_of_a_host_waits_until_its_zygote_has_loaded_modules(
    tmp_path: Path,
) -> None:
    known = load_profile("paper")
    path = tmp_path / "slow.json"
    # numpy is loaded here, so it is loaded there.
    assert np.__name__ == "numpy"
    slow = msgspec.structs.replace(known, warm_up_s=2.0, warm_up_numpy_s=1.0)
    path.write_bytes(msgspec.json.encode(slow))
    start(nodes=2, nodes_per_host=2, cpus_per_node=1, profile=path)
    began_s = ray.now()
    on_each = [increment.options(resources={f"node:{node}": 0.1}) for node in (0, 1)]
    assert ray.get([task.remote(1) for task in on_each]) == [2, 2]
    assert 2.9 < ray.now() - began_s < 3.1, "both nodes have one zygote"
    began_s = ray.now()
    ray.get(ray.remote(Holder).remote().get.remote())
    assert ray.now() - began_s < 0.1, "it forks another worker at once"


class Holder:
    """An actor, which has a worker of its own."""

    def get(self) -> None:
        """Return nothing."""


# -- errors ----------------------------------------------------------------------


@ray.remote
def divide(a: int, b: int) -> float:
    return a / b


def test_an_error_comes_with_the_remote_traceback() -> None:
    start()
    with pytest.raises(ZeroDivisionError) as caught:
        ray.get(divide.remote(1, 0))
    assert isinstance(caught.value, RayTaskError)
    assert "divide" in str(caught.value)
    assert "return a / b" in str(caught.value)
    assert "runtime/execution/task_execution.py" not in str(caught.value)


def test_an_error_in_an_array_leaves_the_rest_alone() -> None:
    start()
    refs = divide.map([1, 1, 1], [1, 0, 2])
    assert ray.get(refs[0]) == 1
    assert ray.get(refs[2]) == 0.5
    with pytest.raises(ZeroDivisionError):
        ray.get(refs[1])


def test_an_input_that_is_an_error_is_the_result() -> None:
    start(nodes=2)
    with pytest.raises(ZeroDivisionError):
        ray.get(increment.remote(divide.remote(1, 0)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"policy": "no-such"}, "no policy 'no-such'"),
        ({"policy": "no_such_module:Policy"}, "no_such_module"),
        ({"profile": "no-such"}, "no profile 'no-such'"),
        ({"profile": "/no/such/profile.json"}, "cannot read the profile"),
        ({"nodes": 0}, "0 nodes"),
        ({"nodes": -3}, "-3 nodes"),
        ({"nodes_per_host": 0}, "0 nodes per host"),
    ],
    ids=str,
)
def test_a_bad_option_is_one_clear_error(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        start(**options)
    assert "\n" not in str(caught.value)
    # Nothing is left of it.
    assert not ray.is_initialized()
    start()
    assert ray.get(increment.remote(1)) == 2


def test_a_broken_profile_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('{"name": "broken"}')
    with pytest.raises(ValueError, match="is not a profile"):
        start(profile=str(path))


# -- the cluster's life ------------------------------------------------------------


def test_the_cluster_describes_itself() -> None:
    start(nodes=3, cpus_per_node=4)
    assert [row["NodeID"] for row in ray.nodes()] == ["0", "1", "2"]
    assert all(row["Alive"] for row in ray.nodes())
    assert ray.cluster_resources()["CPU"] == 12
    assert ray.get(increment.map(range(10))) == list(range(1, 11))
    events = ray.timeline()
    assert events is not None
    assert sum(e["args"]["tasks"] for e in events if e["name"].endswith("increment")) == 10


@pytest.mark.parametrize("retries", [3, 0])
def test_values_of_a_dead_node_are_reconstructed(retries: int) -> None:
    session = start(
        nodes=[{"CPU": 1}, *({"CPU": 1, "A": 1} for _ in range(3))], heartbeat_timeout_s=1.0
    )

    @ray.remote(resources={"A": 0.1}, max_retries=retries)
    def longer(last: Any) -> Any:
        ray.sleep(0.01)
        return np.append(last, len(last))

    value = ray.remote(max_retries=retries)(np.zeros).remote(50_000)
    for _ in range(4):
        value = longer.remote(value)
    ray.wait([value], fetch_local=False)
    for node, store in list(session.cluster.stores.items()):
        if store.value_of(value.binary()) is not None:
            session.cluster.remove_node(node)
    if not retries:
        with pytest.raises(ObjectLostError, match="no retries left"):
            ray.get(value)
        return
    assert list(ray.get(value)[-4:]) == [50_000, 50_001, 50_002, 50_003]
    counts = session.query("event_counts")
    assert counts["node_died"] == 1 and counts["task_reconstructed"] >= 1
    events = session.query("events")
    named = {row[2] for row in events if row[1] == "task_reconstructed"}
    assert named == {"longer"}
    assert [row[0] for row in events] == sorted(row[0] for row in events)


def test_nodes_may_differ() -> None:
    start(nodes=[{"CPU": 1}, {"CPU": 2, "GPU": 1}])
    assert ray.cluster_resources()["GPU"] == 1

    @ray.remote(num_gpus=1)
    def with_gpu() -> str:
        return "done"

    assert ray.get([with_gpu.remote() for _ in range(3)]) == ["done"] * 3


def test_paper_hosts_have_the_cores_of_the_profile() -> None:
    start(nodes=2)
    assert ray.cluster_resources()["CPU"] == 2 * load_profile("paper").cores


def test_clusters_one_after_the_other_are_alike(tmp_path: Path) -> None:
    found = []
    for _ in range(3):
        start(nodes=2, cpus_per_node=1)
        assert ray.get(increment.map(range(100))) == list(range(1, 101))
        found.append(ray.now())
        ray.shutdown()
        assert not ray.is_initialized()
    assert found[0] == found[1] == found[2]


def test_shutdown_unwinds_programs_wherever_they_wait(tmp_path: Path) -> None:
    def blocking(how: str, path: str) -> Any:
        try:
            if how == "sleep":
                ray.sleep(1e6)
            elif how == "compute":
                ray.compute(1e6)
            elif how == "get":
                ray.get(sleep.remote(1e6))
            elif how == "get with a timeout":
                ray.get(sleep.remote(1e6), timeout=1e5)
            else:
                ray.wait([sleep.remote(1e6)])
            return "it ended"
        finally:
            Path(path).write_text(how)

    ways = ["sleep", "compute", "get", "get with a timeout", "wait"]
    start(nodes=2, cpus_per_node=4)
    blocked = ray.remote(blocking)
    refs = [blocked.remote(how, str(tmp_path / how)) for how in ways]
    with pytest.raises(GetTimeoutError):
        ray.get(refs, timeout=1.0)
    assert not list(tmp_path.iterdir())
    ray.shutdown()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(ways)
    with pytest.raises(RaySystemError):
        ray.get(refs[0])
    start(nodes=2, cpus_per_node=4)
    assert ray.get(nested.remote(4)) == 20


def test_a_second_init_needs_a_shutdown() -> None:
    start()
    with pytest.raises(RuntimeError, match="shutdown"):
        start()
