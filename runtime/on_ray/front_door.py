"""The names of `raytwin` in a process that runs on Ray; all that is not here is Ray's own.

Ray is imported when a name is first looked up.
"""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raytwin.runtime.on_ray import NotOnRay, ray_session
from raytwin.runtime.on_ray.ray_session import RaySession
from raytwin.runtime.serialization.real_blob import Blob as Blob

ObjectRefArray = list
"""``f.map`` returns a list here: on Ray each call has a reference of its own."""

_ELSEWHERE = {
    "ActorClass": "ray.actor",
    "ActorHandle": "ray.actor",
    "exit_actor": "ray.actor",
    "RemoteFunction": "ray.remote_function",
    "RuntimeContext": "ray.runtime_context",
}
"""Names that are attributes of `raytwin` and not of `ray`: the modules of Ray's that have them."""
_NO_EQUIVALENT = {
    "checkpoint_interval": "Ray keeps no checkpoints of actors, and restarts them without their"
    " state",
}
"""Options of raytwin's tasks and actors that Ray cannot have, and why."""
_PLACE = "node:"


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module(_ELSEWHERE.get(name, "ray")), name)


# -- the cluster -------------------------------------------------------------------


def init(address: str | None = None, **options: Any) -> RaySession:
    """Start a Ray cluster on this machine, or join the one at an address; see `ray_session`."""
    return ray_session.connect(address, **options)


def shutdown() -> None:
    """End the cluster that `init` has started, or leave the one that it has joined."""
    ray_session.disconnect()


# -- time and bytes ------------------------------------------------------------------


def now() -> float:
    """Return the time in seconds: the wall clock, which is all that hosts of Ray's share."""
    return time.time()


def sleep(seconds: float) -> None:
    """Let time pass without using a CPU."""
    time.sleep(seconds)


def compute(seconds: float) -> None:
    """Use one CPU for ``seconds`` of CPU time."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        for _ in range(100):
            continue


# -- remote functions and classes ---------------------------------------------------------


class Remote:
    """A remote function or actor class of Ray's, which is made of its target when it is first used.

    Modules make theirs when they are imported, where nobody may call all of them: only a use raises
    `NotOnRay` for an option that Ray does not have. With a `base` it is that one with other
    options, as Ray has it: the function is not exported again.
    """

    def __init__(self, target: Any, options: Mapping[str, Any], base: Remote | None = None) -> None:
        self._target = target
        self._options = dict(options)
        self._base = base

    @functools.cached_property
    def _made(self) -> Any:
        import ray

        options = ray_options(self._options)
        if self._base is not None:
            return self._base._made.options(**options)
        return ray.remote(**options)(self._target) if options else ray.remote(self._target)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function or create an actor, as Ray does."""
        return self._made.remote(*args, **kwargs)

    def options(self, **options: Any) -> Any:
        """Return the same with other options."""
        if self._base is not None:
            return Remote(self._target, {**self._options, **options}, self._base)
        return Remote(self._target, options, self)

    def map(self, *iterables: Iterable[Any]) -> list[Any]:
        """Call the function once per item, each a call of its own; return the references."""
        return [self._made.remote(*items) for items in zip(*iterables, strict=False)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._made, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._made(*args, **kwargs)

    def __reduce__(self) -> Any:
        return Remote, (self._target, self._options, self._base)


def remote(*args: Any, **options: Any) -> Any:
    """Make a function remote, or a class an actor class: ``@remote``, ``@remote(num_cpus=2)``."""
    if args:
        return Remote(args[0], {})
    make: Callable[[Any], Remote] = lambda target: Remote(target, options)  # noqa: E731
    return make


def ray_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of raytwin's tasks and actors as Ray has them. Raises NotOnRay."""
    for name, why in _NO_EQUIVALENT.items():
        if options.get(name):
            raise NotOnRay(f"{name} is not possible on Ray: {why}")
    found = dict(options)
    if os.environ.get(ray_session.JOINED) and found.get("resources"):
        found["resources"] = {
            _node_resource(name): amount for name, amount in found["resources"].items()
        }
    return found


@functools.cache
def _node_resource(name: str) -> str:
    """Return the resource by which Ray names the node of a resource such as ``node:3``."""
    number = name.removeprefix(_PLACE)
    import ray

    if not name.startswith(_PLACE) or not number.isdecimal() or name in ray.cluster_resources():
        return name
    alive = [row["NodeManagerAddress"] for row in ray.nodes() if row["Alive"]]
    if len(set(alive)) < len(alive) or int(number) >= len(alive):
        raise NotOnRay(f"no node {number} in this Ray cluster: it has {len(set(alive))} hosts")
    return f"{_PLACE}{sorted(alive)[int(number)]}"
