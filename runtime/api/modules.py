"""The modules that programs import: ``raytwin.exceptions``, ``raytwin.util``, ...

`raytwin` is a package of folders (`FOLDERS`). The modules that programs import are modules of
`raytwin.runtime.api` under a second, shorter name, which a finder on ``sys.meta_path`` gives
them: both names stand for the same module object, so classes are the same whichever way a
program imports them, and pickles refer to the one real name.

``install("ray")`` makes `ray` and its submodules stand for raytwin's in the same
way: how a script with ``import ray`` in it runs unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar, cast

T = TypeVar("T")
FRONT = "raytwin"
FOLDERS = frozenset(("__main__", "chaos", "reports", "runtime", "scenarios", "simulator"))
"""The folders of the package `raytwin`, besides the modules named as Ray's."""
AS_RAY = "RAYTWIN_AS_RAY"
"""Environment variable: workers install the name ``ray``, too."""

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
"""Where each module really is, by its name behind ``raytwin.``."""

AT_ASKING = ("actor", "cloudpickle", "remote_function", "runtime_context", "runtime_env")
"""Modules that are attributes of the front, as in Ray, before a program imports them."""

_AT_ONCE = {"util": ("util.placement_group",)}
"""Submodules that exist with their parent: the first import of a submodule sets
the parent's attribute, and ``util.placement_group`` is a function's name too."""

LIBRARIES = {
    "air", "autoscaler", "dag", "dashboard", "data", "experimental", "job_submission", "llm",
    "rllib", "serve", "train", "tune", "widgets", "workflow",
}  # fmt: skip


def missing(name: str) -> str:
    """Return what to say of a name of Ray's that raytwin does not have."""
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


def refuser(module: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module that has no other."""

    def refuse(name: str) -> Any:
        raise AttributeError(missing(f"{module}.{name}"))

    return refuse


def not_there(kind: str, obj: Any, name: str) -> AttributeError:
    """Return what to raise for an attribute that Ray may have and a raytwin object has not."""
    why = "docs/api.md lists what there is"
    if name == "bind":
        why = "raytwin has Ray's core, not its libraries"
    return AttributeError(f"raytwin has no {kind}.{name}: {why}", name=name, obj=obj)


def says_what_is_missing(kind: str) -> Callable[[type[T]], type[T]]:
    """Make a class's objects say of attributes that Ray may have and they have not."""

    def refuse(self: Any, name: str) -> Any:
        raise not_there(kind, self, name)

    def dress(cls: type[T]) -> type[T]:
        cls.__getattr__ = refuse  # type: ignore[attr-defined]
        return cls

    return dress


class _Alias:
    """Gives a module a second name.

    A loader without that base class: `importlib.abc` would bring `tempfile` and more,
    2 MB, into every process.
    """

    def __init__(self, prefix: str, name: str) -> None:
        self._prefix = prefix
        self._name = name

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes what stands in sys.modules afterwards.
        sys.modules[module.__name__] = import_module(PUBLIC[self._name])
        for name in _AT_ONCE.get(self._name, ()):
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
        if name not in PUBLIC:
            # With `name`, Python would put words of its own in its place for `from ray import x`.
            raise ModuleNotFoundError(missing(name))
        package = any(other.startswith(f"{name}.") for other in PUBLIC) or not name
        return ModuleSpec(fullname, cast(Any, _Alias(self.prefix, name)), is_package=package)


def install(prefix: str) -> None:
    """Make ``prefix`` and its submodules importable as raytwin's."""
    if not any(isinstance(f, _Finder) and f.prefix == prefix for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder(prefix))
