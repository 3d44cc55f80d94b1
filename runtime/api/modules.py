"""The modules that programs import: ``raytwin.exceptions``, ``raytwin.util``, ...

`raytwin` is a package of folders (`FOLDERS`). The modules that programs import are modules of
`raytwin.runtime.api` under a second, shorter name. A finder on ``sys.meta_path`` maps the short
name to the same module object, so classes are the same under both names, and pickles refer to the
one real name.

``install("ray")`` maps `ray` and its submodules to raytwin's in the same way, so that a script
with ``import ray`` runs unchanged. In a process that is `on_ray` it is the other way round: the
short names of `raytwin` are those of Ray's own modules, see `raytwin.runtime.on_ray`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar, cast

T = TypeVar("T")
FRONT = "raytwin"
FOLDERS = frozenset(("__main__", "chaos", "reports", "runtime", "scenarios", "simulator"))
"""The folders of the package `raytwin`, besides the modules with Ray's names."""
AS_RAY = "RAYTWIN_AS_RAY"
"""The environment variable that makes workers install the name ``ray``, too."""
ON_RAY = "RAYTWIN_ON_RAY"
"""The environment variable that makes `raytwin` a name of Ray, in a driver and in its workers."""

PUBLIC = {
    "": FRONT,
    "_raylet": "raytwin.runtime.api.raylet",
    "actor": "raytwin.runtime.api.actors",
    "cloudpickle": "cloudpickle",
    "exceptions": "raytwin.runtime.api.exceptions",
    "remote_function": "raytwin.runtime.api.tasks",
    "runtime_context": "raytwin.runtime.api.runtime_context",
    "runtime_env": "raytwin.runtime.api.options.runtime_env",
    "util": "raytwin.runtime.api.util",
    "util.actor_pool": "raytwin.runtime.api.util.actor_pool",
    "util.joblib": "raytwin.runtime.api.util.joblib",
    "util.multiprocessing": "raytwin.runtime.api.util.pool",
    "util.multiprocessing.pool": "raytwin.runtime.api.util.pool",
    "util.placement_group": "raytwin.runtime.api.util.placement_group",
    "util.queue": "raytwin.runtime.api.util.queue",
    "util.scheduling_strategies": "raytwin.runtime.api.options.scheduling_strategies",
}
"""The real name of each module, by its name after ``raytwin.``."""

LAZY_MODULES = (
    "_raylet", "actor", "cloudpickle", "remote_function", "runtime_context", "runtime_env",
)  # fmt: skip
"""Modules that are attributes of `raytwin`, as in Ray, before a program imports them."""

_EAGER_SUBMODULES = {"util": ("util.placement_group",)}
"""Submodules that are imported with their parent: importing one later would overwrite the parent's
attribute, and ``util.placement_group`` is also a function's name."""

LIBRARIES = {
    "air", "autoscaler", "dag", "dashboard", "data", "experimental", "job_submission", "llm",
    "rllib", "serve", "train", "tune", "widgets", "workflow",
}  # fmt: skip


def on_ray() -> bool:
    """Whether the API that this process imports as `raytwin` is Ray's own."""
    return bool(os.environ.get(ON_RAY))


def missing(name: str) -> str:
    """Return the error text for a name of Ray's that raytwin does not have."""
    first = name.partition(".")[0]
    if first in LIBRARIES:
        why = "raytwin has Ray's core, not its libraries"
    elif first in ("java_function", "java_actor_class", "cross_language", "Language"):
        why = "its tasks are Python's"
    elif first in ("client", "ClientBuilder"):
        why = "a program starts its own cluster or joins one of its machine: call init()"
    else:
        why = "docs/api.md lists what there is"
    return f"raytwin has no ray.{name}: {why}"


def missing_names(module: str) -> Callable[[str], Any]:
    """Return a module's ``__getattr__``, which explains names that raytwin does not have."""

    def refuse(name: str) -> Any:
        raise AttributeError(missing(f"{module}.{name}"))

    return refuse


def missing_attribute(kind: str, obj: Any, name: str) -> AttributeError:
    """Return the error for an attribute of an object that raytwin does not have."""
    why = "docs/api.md lists what there is"
    if name == "bind":
        why = "raytwin has Ray's core, not its libraries"
    return AttributeError(f"raytwin has no {kind}.{name}: {why}", name=name, obj=obj)


def explains_missing_attributes(kind: str) -> Callable[[type[T]], type[T]]:
    """Give a class a ``__getattr__`` that explains attributes which raytwin does not have."""

    def refuse(self: Any, name: str) -> Any:
        raise missing_attribute(kind, self, name)

    def add(cls: type[T]) -> type[T]:
        cls.__getattr__ = refuse  # type: ignore[attr-defined]
        return cls

    return add


class _Alias:
    """Gives a module a second name.

    A loader without the base class of `importlib.abc`, which would import `tempfile`
    and more, 2 MB, into every process.
    """

    def __init__(self, prefix: str, name: str, real: str) -> None:
        self._prefix = prefix
        self._name = name
        self._real = real

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns the module that is in sys.modules afterwards.
        sys.modules[module.__name__] = import_module(self._real)
        if self._real == PUBLIC.get(self._name):
            for name in _EAGER_SUBMODULES.get(self._name, ()):
                sys.modules[f"{self._prefix}.{name}"] = import_module(PUBLIC[name])


class _Finder:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        first, _, name = fullname.partition(".")
        if first != self.prefix or fullname == FRONT:
            return None
        if first == FRONT and name.partition(".")[0] in FOLDERS:
            return None
        if first == FRONT and on_ray():
            return ModuleSpec(
                fullname, cast(Any, _Alias(FRONT, name, f"ray.{name}")), is_package=True
            )
        if name not in PUBLIC:
            # Without the argument `name`, or Python would replace the text for `from ray import x`.
            raise ModuleNotFoundError(missing(name))
        package = any(other.startswith(f"{name}.") for other in PUBLIC) or not name
        return ModuleSpec(
            fullname, cast(Any, _Alias(self.prefix, name, PUBLIC[name])), is_package=package
        )


def install(prefix: str) -> None:
    """Make ``prefix`` and its submodules importable as names of raytwin's modules."""
    if not any(isinstance(f, _Finder) and f.prefix == prefix for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder(prefix))
