"""Names, parameters and defaults that programs rely on are Ray's."""

from __future__ import annotations

import importlib.util
import inspect

import pytest

import raytwin
from tests.requirements import require

pytestmark = pytest.mark.ray


def test_parameters_are_rays() -> None:
    """Whatever raytwin's functions take by name, Ray's take by the same name."""
    require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    import ray

    own = {"init": {"backend", "options"}}
    for name in ("init", "get", "put", "wait", "nodes", "cluster_resources", "timeline"):
        ours = inspect.signature(getattr(raytwin, name)).parameters
        theirs = inspect.signature(getattr(ray, name)).parameters
        for parameter in ours.values():
            if parameter.name in own.get(name, ()):
                continue
            assert parameter.name in theirs, f"{name}({parameter.name}) is not Ray's"
            if parameter.default is not parameter.empty:
                assert parameter.default == theirs[parameter.name].default, (name, parameter.name)


def test_exceptions_are_rays() -> None:
    require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    import ray.exceptions

    for name, ours in vars(raytwin.exceptions).items():
        if inspect.isclass(ours) and issubclass(ours, raytwin.exceptions.RayError):
            theirs = getattr(ray.exceptions, name)
            bases = {base.__name__ for base in theirs.__mro__ if base.__module__ != "builtins"}
            assert "RayError" in bases
            assert issubclass(ours, TimeoutError) == issubclass(theirs, TimeoutError)
