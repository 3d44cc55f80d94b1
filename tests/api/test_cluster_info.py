"""The runtime context, the cluster's resources, and init's arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import raytwin as ray

BACKENDS = pytest.mark.parametrize("name", ["sim", "local"])


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    ray.shutdown()


@ray.remote
def context() -> dict[str, Any]:
    here = ray.get_runtime_context()
    return {
        "job": here.get_job_id(),
        "node": here.get_node_id(),
        "task": here.get_task_id(),
        "worker": here.get_worker_id(),
        "actor": here.get_actor_id(),
        "name": here.get_task_name(),
        "resources": here.get_assigned_resources(),
        "group": here.get_placement_group_id(),
        "env": here.get_runtime_env_string(),
        "reconstructed": here.was_current_actor_reconstructed,
        "free": ray.available_resources().get("CPU", 0.0),
        "gpus": ray.get_gpu_ids(),
        "all": here.get(),
    }


@BACKENDS
def test_the_runtime_context(name: str) -> None:
    ray.init(backend=name, nodes=2, cpus_per_node=2, namespace="mine")
    here = ray.get_runtime_context()
    assert here.namespace == "mine"
    assert here.get_task_id() is None
    assert here.get_actor_id() is None
    assert here.get_task_name() is None
    with pytest.raises(RuntimeError, match="driver"):
        here.get_assigned_resources()
    ids = {"job_id": here.get_job_id(), "node_id": here.get_node_id(), "namespace": "mine"}
    assert here.get() == ids
    ref = context.options(num_cpus=2, name="it", runtime_env={"env_vars": {"A": "1"}}).remote()
    there = ray.get(ref)
    assert there["task"] == ref.task_id().hex()
    assert there["node"] in [row["NodeID"] for row in ray.nodes()]
    assert there["worker"] != here.get_worker_id()
    assert there["job"] == here.get_job_id()
    assert (there["name"], there["actor"], there["group"]) == ("it", None, None)
    assert there["resources"] == {"CPU": 2.0}
    assert there["env"] == '{"env_vars": {"A": "1"}}'
    assert there["free"] == 2.0
    assert there["gpus"] == []
    assert not there["reconstructed"]
    assert there["all"] == {**ids, "node_id": there["node"], "task_id": there["task"]}


@ray.remote
class Here:
    def ids(self) -> Any:
        here = ray.get_runtime_context()
        return here.get_actor_id(), here.get_actor_name(), here.was_current_actor_reconstructed

    def all(self) -> Any:
        return ray.get_runtime_context().get()

    async def task(self) -> Any:
        return ray.get_runtime_context().get_task_id()


@BACKENDS
def test_the_runtime_context_of_an_actor(name: str) -> None:
    ray.init(backend=name, nodes=1, cpus_per_node=2)
    one, two = Here.options(name="one").remote(), Here.remote()
    first, second = ray.get([one.ids.remote(), two.ids.remote()])
    assert first[1:] == ("one", False)
    assert second[1:] == ("", False)
    assert ray.get(one.all.remote())["actor_id"] == first[0]
    assert first[0] != second[0]
    assert ray.get(one.ids.remote()) == first
    ref = two.task.remote()
    assert ray.get(ref) == ref.task_id().hex()


@BACKENDS
def test_available_resources(name: str) -> None:
    ray.init(backend=name, nodes=2, cpus_per_node=2, resources={"thing": 1})
    free = ray.available_resources()
    assert free["CPU"] == 4.0
    assert free["thing"] == 2.0
    assert free == ray.cluster_resources()


@BACKENDS
def test_init_returns_a_context(name: str) -> None:
    with ray.init(backend=name, nodes=1, cpus_per_node=1) as context:
        assert ray.is_initialized()
        row = ray.nodes()[0]
        assert context.address_info["node_id"] == row["NodeID"]
        assert context["node_ip_address"] == row["NodeManagerAddress"]
        assert ray.util.get_node_ip_address() == row["NodeManagerAddress"]
        for key in ("Alive", "NodeManagerHostname", "NodeName", "Labels", "Resources"):
            assert key in row
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    "ask", [ray.nodes, ray.cluster_resources, ray.available_resources, ray.timeline]
)
def test_queries_start_no_cluster(ask: Any) -> None:
    for _ in range(2):
        with pytest.raises(ray.exceptions.RaySystemError, match=r"call init\(\) first"):
            ask()
        assert not ray.is_initialized()
        with ray.init(backend="sim", cpus_per_node=1):
            assert ask()


@BACKENDS
def test_variables_of_every_task(name: str) -> None:
    @ray.remote
    def variable() -> Any:
        import os

        return os.environ.get("RAYTWIN_TEST_JOB")

    ray.init(backend=name, cpus_per_node=1, runtime_env={"env_vars": {"RAYTWIN_TEST_JOB": "x"}})
    assert ray.get(variable.remote()) == "x"
    override = variable.options(runtime_env={"env_vars": {"RAYTWIN_TEST_JOB": "y"}})
    assert ray.get(override.remote()) == "y"


def test_rays_arguments_without_effect_here() -> None:
    ray.init(
        "local", backend="sim", num_cpus=1, include_dashboard=False, dashboard_host="0.0.0.0",
        logging_level="error", log_to_driver=False, configure_logging=True, namespace="n",
    )  # fmt: skip
    assert ray.init(ignore_reinit_error=True)["node_id"] == "0"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"address": "ray://host:10001"}, "cannot connect"),
        ({"address": "auto", "num_cpus": 2}, "cpus_per_node cannot be chosen"),
        ({"address": "auto", "backend": "sim"}, "lives in the program"),
        ({"local_mode": True}, "local_mode"),
        ({"labels": {"a": "b"}}, "labels"),
        ({"_system_config": {}}, "Ray's own use"),
        ({"runtime_env": {"working_dir": "."}}, "env_vars only"),
        ({"backend": "dask"}, "no backend"),
    ],
    ids=str,
)
def test_impossible_arguments_raise(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ray.init(**arguments)
    assert not ray.is_initialized()


@BACKENDS
def test_values_as_they_are_completed(name: str) -> None:
    @ray.remote
    def later(x: float) -> float:
        ray.sleep(x)
        return x

    ray.init(backend=name, nodes=1, cpus_per_node=4)
    refs = [later.remote(x) for x in (0.6, 0.05, 0.3)]
    assert list(ray.util.as_completed(refs)) == [0.05, 0.3, 0.6]
    found = list(ray.util.map_unordered(later, [0.01] * 25, backpressure_size=2))
    assert found == [0.01] * 25
