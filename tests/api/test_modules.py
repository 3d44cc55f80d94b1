"""raytwin's submodules, and the errors for names that it does not have."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys

import pytest

import raytwin as ray
from raytwin.runtime.api import modules

NAMES = [name for name in modules.PUBLIC if name]


@pytest.mark.parametrize("name", NAMES)
def test_submodules_are_the_real_modules(name: str) -> None:
    found = importlib.import_module(f"raytwin.{name}")
    assert found is importlib.import_module(modules.PUBLIC[name])


def test_import_statements() -> None:
    import raytwin.exceptions
    import raytwin.util.placement_group
    from raytwin.exceptions import GetTimeoutError
    from raytwin.util import placement_group
    from raytwin.util.placement_group import PlacementGroup

    assert raytwin.exceptions.GetTimeoutError is GetTimeoutError
    assert callable(placement_group)
    assert raytwin.util.placement_group is placement_group
    assert isinstance(PlacementGroup, type)


def test_pickles_refer_to_one_name() -> None:
    for value in (ray.exceptions.RayError, ray.util.placement_group, ray.ObjectRef):
        assert pickle.loads(pickle.dumps(value)) is value


@pytest.mark.parametrize("name", ["data", "tune", "serve", "java_function", "client", "nonsense"])
def test_missing_names(name: str) -> None:
    with pytest.raises(AttributeError, match=f"raytwin has no ray.{name}: "):
        getattr(ray, name)
    with pytest.raises(ModuleNotFoundError, match=f"raytwin has no ray.{name}: "):
        importlib.import_module(f"raytwin.{name}")


def test_missing_names_of_submodules() -> None:
    with pytest.raises(AttributeError, match=r"raytwin has no ray\.util\.iter: "):
        ray.util.iter  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"raytwin has no ray\.util\.iter: "):
        importlib.import_module("raytwin.util.iter")


def test_ray_itself_is_left_alone() -> None:
    """Only `raytwin exec` puts raytwin in Ray's place."""
    code = (
        "import sys, raytwin; print(any(getattr(f, 'prefix', '') == 'ray' for f in sys.meta_path))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
