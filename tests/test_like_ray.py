"""Names, parameters, defaults and options that programs rely on are Ray's.

What programs do with them is in `test_behaves_like_ray`.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import raytwin
from tests.requirements import require

pytestmark = pytest.mark.ray


def test_parameters_are_rays() -> None:
    """Whatever raytwin's functions take by name, Ray's take by the same name."""
    require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    import ray

    own = {"init": {"backend", "options"}}
    names = (
        "init", "get", "put", "wait", "nodes", "cluster_resources", "timeline", "cancel",
        "available_resources", "get_runtime_context", "get_gpu_ids",
    )  # fmt: skip
    for name in names:
        ours = inspect.signature(getattr(raytwin, name)).parameters
        theirs = inspect.signature(getattr(ray, name)).parameters
        for parameter in ours.values():
            if parameter.name in own.get(name, ()):
                continue
            assert parameter.name in theirs, f"{name}({parameter.name}) is not Ray's"
            if parameter.default is not parameter.empty:
                assert parameter.default == theirs[parameter.name].default, (name, parameter.name)


def test_names_of_its_own_are_none_of_rays() -> None:
    require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    import ray

    assert not [name for name in raytwin.SCENARIOS if hasattr(ray, name)]


def test_exceptions_are_rays() -> None:
    require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    import ray.exceptions

    for name, ours in vars(raytwin.exceptions).items():
        if inspect.isclass(ours) and issubclass(ours, raytwin.exceptions.RayError):
            theirs = getattr(ray.exceptions, name)
            # The dual classes of RayTaskError come and go.
            bases = {base.__name__ for base in theirs.__mro__}
            assert {base.__name__ for base in ours.__mro__} == bases, name


def test_no_exception_is_missing() -> None:
    require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    import ray.exceptions

    # Of parts of Ray that raytwin does not have, and misspelt ones.
    elsewhere = {
        "OufOfBandObjectRefSerializationException", "RayCgraphCapacityExceeded", "RayChannelError",
        "RayChannelTimeoutError", "RayDirectTransportError",
        "StreamingGeneratorReplayInconsistentError",
    }  # fmt: skip
    theirs = {
        name
        for name, found in vars(ray.exceptions).items()
        if inspect.isclass(found) and issubclass(found, ray.exceptions.RayError)
    }
    assert theirs - elsewhere <= set(vars(raytwin.exceptions))


def test_no_option_goes_unmentioned() -> None:
    """Whatever option Ray's tasks have, raytwin has it or says that it has not."""
    require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    from ray._common.ray_option_utils import task_options

    from raytwin.runtime.api.options.task_options import NAMES, UNSUPPORTED

    assert set(NAMES) <= set(task_options) <= set(NAMES) | set(UNSUPPORTED)


def test_no_option_of_actors_and_methods_goes_unmentioned() -> None:
    require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    import ray
    from ray._common.ray_option_utils import actor_options

    from raytwin.runtime.api.options import actor_options as ours
    from raytwin.runtime.api.options import method_options
    from raytwin.runtime.api.options.task_options import UNSUPPORTED

    own = {"checkpoint_interval"}
    assert set(ours.NAMES) - own <= set(actor_options) <= set(ours.NAMES) | set(UNSUPPORTED)
    with pytest.raises(AssertionError) as refused:
        ray.method(bogus=1)
    theirs = str(refused.value).rpartition("[")[2]
    names = {*method_options.NAMES, *UNSUPPORTED}
    assert set(re.findall(r"'(\w+)'", theirs)) <= names


def test_options_of_actors_are_documented() -> None:
    from raytwin.runtime.api.options import actor_options, method_options

    text = (Path(__file__).parent.parent / "docs" / "api.md").read_text(encoding="utf-8")
    for name in (*actor_options.NAMES, *method_options.NAMES, "concurrency_groups"):
        assert f"`{name}`" in text, name


def test_classes_are_rays() -> None:
    require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    import ray
    import ray.util.multiprocessing
    import ray.util.scheduling_strategies

    import raytwin.util.multiprocessing
    import raytwin.util.scheduling_strategies

    for path in (
        "util.multiprocessing.Pool",
        "util.scheduling_strategies.NodeAffinitySchedulingStrategy",
        "util.scheduling_strategies.PlacementGroupSchedulingStrategy",
        "util.placement_group",
    ):
        ours, theirs = raytwin, ray
        for part in path.split("."):
            ours, theirs = getattr(ours, part), getattr(theirs, part)
        given = list(inspect.signature(ours).parameters)
        wanted = [n for n in inspect.signature(theirs).parameters if not n.startswith("_")]
        assert given == wanted[: len(given)], path
    for method in ("map", "starmap", "imap", "imap_unordered", "apply", "apply_async"):
        ours = getattr(raytwin.util.multiprocessing.Pool, method)
        theirs = getattr(ray.util.multiprocessing.Pool, method)
        assert list(inspect.signature(ours).parameters) == list(
            inspect.signature(theirs).parameters
        ), method
