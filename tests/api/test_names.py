"""Ray's names that programs use: IDs, modules, attributes; and errors for missing ones."""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
from typing import Any

import pytest

import raytwin as ray
from raytwin import util
from raytwin.runtime.api.modules import PUBLIC

pytestmark = pytest.mark.usefixtures("backend")


@ray.remote
class Self:
    def add(self, x: int) -> int:
        return x + 1

    def through_itself(self) -> Any:
        me = ray.get_runtime_context().current_actor
        return me, me._actor_id, ray.get_runtime_context().actor_id

    def leave(self) -> None:
        ray.actor.exit_actor()


@ray.remote
def ids() -> Any:
    here = ray.get_runtime_context()
    return here.job_id, here.node_id, here.task_id, here.get_task_id()


def get(ref: Any) -> Any:
    return ray.get(ref, timeout=60)


def test_ids_are_objects() -> None:
    ref = ids.remote()
    job, node, task, digits = get(ref)
    here = ray.get_runtime_context()
    assert job == here.job_id == ref.job_id() and job.hex() == here.get_job_id()
    assert node.hex() in [row["NodeID"] for row in ray.nodes()]
    assert task == ref.task_id() and task.hex() == digits
    assert here.task_id is None and here.actor_id is None
    assert not ref.is_nil() and ray.TaskID.nil().is_nil() and not task.is_nil()
    for one in (job, node, task):
        assert pickle.loads(pickle.dumps(one)) == one == type(one).from_hex(one.hex())
    assert ray.ActorID(task.binary()) != task


def test_an_actor_calls_itself_by_its_own_handle() -> None:
    actor = Self.remote()
    me, by_handle, by_context = get(actor.through_itself.remote())
    assert actor._actor_id == me._actor_id == by_handle == by_context
    assert get(me.add.remote(1)) == 2
    assert {"add", "leave"} <= set(dir(actor))
    get(actor.__ray_ready__.remote())
    with pytest.raises(ray.exceptions.ActorDiedError):
        get(actor.leave.remote())
    with pytest.raises(RuntimeError, match="in an actor"):
        _ = ray.get_runtime_context().current_actor


def test_named_actors_are_listed() -> None:
    kept = [Self.options(name=name).remote() for name in ("b", "a")]
    for actor in kept:
        get(actor.__ray_ready__.remote())
    assert {"a", "b"} <= set(util.list_named_actors())
    everywhere = util.list_named_actors(all_namespaces=True)
    assert {"a", "b"} <= {row["name"] for row in everywhere if set(row) == {"name", "namespace"}}


def test_modules_are_where_rays_are() -> None:
    assert importlib.import_module("raytwin.actor").ActorClass is ray.ActorClass
    assert ray.remote_function.RemoteFunction is ray.RemoteFunction
    assert ray.cloudpickle.loads(ray.cloudpickle.dumps(lambda: 5))() == 5
    env = ray.runtime_env.RuntimeEnv(env_vars={"A": "b"})
    assert env == {"env_vars": {"A": "b"}} and env.env_vars() == {"A": "b"}
    with pytest.raises(ValueError, match="pip"):
        ray.runtime_env.RuntimeEnv(pip=["x"])
    assert repr(ray.ObjectRef[int]).endswith("ObjectRef[int]")


@pytest.mark.parametrize("module", [name for name in PUBLIC if name != "cloudpickle"])
def test_each_module_explains_missing_names(module: str) -> None:
    found = importlib.import_module(f"raytwin.{module}".rstrip("."))
    with pytest.raises(AttributeError, match=r"raytwin has no ray\..*bogus: "):
        _ = found.bogus


def test_a_pools_errors_are_where_rays_are() -> None:
    pool = importlib.import_module("raytwin.util.multiprocessing")
    assert pool.TimeoutError is multiprocessing.TimeoutError
    assert callable(pool.JoinableQueue)


@pytest.mark.parametrize(
    "line",
    ["from raytwin import data, get", "import raytwin.dag", "import raytwin.util.iter"],
)
def test_importing_a_missing_name_explains_it(line: str) -> None:
    with pytest.raises(ImportError, match="raytwin has no ray"):
        exec(line, {})


@pytest.mark.parametrize("name", sorted({*PUBLIC} - {"", "cloudpickle"}))
def test_missing_names_cannot_be_imported_or_accessed(name: str) -> None:
    module = importlib.import_module(f"raytwin.{name}")
    with pytest.raises(ImportError, match="bogus"):
        exec(f"from raytwin.{name} import bogus", {})
    assert not hasattr(module, "bogus") and getattr(module, "bogus", 1) == 1
    with pytest.raises(AttributeError, match="raytwin has no ray"):
        _ = module.bogus


def test_missing_attributes_are_explained() -> None:
    actor, ref = Self.remote(), ids.remote()
    objects = (ids, Self, actor.add, ref, ref.task_id(), ray.get_runtime_context(), ray, util)
    for thing in objects:
        assert not hasattr(thing, "bogus")
        with pytest.raises(AttributeError, match=r"raytwin has no .*bogus"):
            _ = thing.bogus  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="not its libraries"):
        ids.bind()  # type: ignore[attr-defined]


def test_other_objects_than_references_are_refused_as_in_ray() -> None:
    ref, stream = ids.remote(), yields.remote()
    for wrong in (3, None, "x", (ref,), {ref}, iter([ref])):
        with pytest.raises(ValueError, match="get takes"):
            ray.get(wrong)
    for listed in ([3], [ref, 3], [[ref]], [stream]):
        with pytest.raises(TypeError, match="get takes ObjectRefs, not"):
            ray.get(listed)
    assert ray.get(stream) is stream
    for wrong in (3, (ref,), ref, None, [3], [[ref]]):
        with pytest.raises(TypeError):
            ray.wait(wrong)
    with pytest.raises(TypeError, match="not int"):
        ray.wait([stream, 3])


def test_a_negative_timeout_of_get(backend: str) -> None:
    assert ray.get(ids.remote(), timeout=-1)[0] == ray.get_runtime_context().job_id
    with pytest.raises(ValueError, match="not negative"):
        ray.get(ids.remote(), timeout=-2)


@ray.remote
def yields() -> Any:
    yield 1


def test_objects_explain_missing_attributes() -> None:
    group = util.placement_group([{"CPU": 1}])
    queue = importlib.import_module("raytwin.util.queue").Queue()
    pool = importlib.import_module("raytwin.util.multiprocessing").Pool(1)
    for thing, name in (
        (group, "PlacementGroup"), (yields.remote(), "ObjectRefGenerator"), (queue, "Queue"),
        (util.ActorPool([]), "ActorPool"), (pool, "Pool"), (pool.map_async(abs, []), "AsyncResult"),
    ):  # fmt: skip
        assert not hasattr(thing, "asend")
        with pytest.raises(AttributeError, match=rf"raytwin has no {name}\.asend: docs/api\.md"):
            _ = thing.asend
    assert pickle.loads(pickle.dumps(group)) == group
    assert group.empty().is_empty and not group.is_empty
    queue.shutdown()
    util.remove_placement_group(group)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("OufOfBandObjectRefSerializationException", "RayError"),
        ("StreamingGeneratorReplayInconsistentError", "RaySystemError"),
        ("RayDirectTransportError", "RaySystemError"),
        ("RayChannelTimeoutError", "RayChannelError"),
        ("RayCgraphCapacityExceeded", "RaySystemError"),
    ],
)
def test_exceptions_that_are_never_raised_may_be_caught(name: str, base: str) -> None:
    assert issubclass(getattr(ray.exceptions, name), getattr(ray.exceptions, base))
