"""raytwin: Ray-style distributed execution, real and in virtual time.

import raytwin as ray

ray.init(nodes=4, cpus_per_node=2)              # real processes
ray.init(backend="sim", nodes=100, seed=1)      # the same program, simulated

@ray.remote
def square(x):
    return x * x

print(ray.get([square.remote(i) for i in range(10)]))
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from runtime.api import modules

__path__: list[str] = []
modules.install(__name__ if __name__ != "__main__" else modules.FRONT)

from runtime.api import (  # noqa: E402  (submodules have to be importable first)
    ActorClass,
    ActorHandle,
    Blob,
    DynamicObjectRefGenerator,
    ObjectRef,
    ObjectRefArray,
    ObjectRefGenerator,
    RemoteFunction,
    RuntimeContext,
    TaskID,
    available_resources,
    cancel,
    cluster_resources,
    compute,
    exceptions,
    exit_actor,
    get,
    get_actor,
    get_gpu_ids,
    get_runtime_context,
    init,
    is_initialized,
    kill,
    method,
    nodes,
    now,
    put,
    register_backend,
    remote,
    shutdown,
    sleep,
    timeline,
    util,
    wait,
)


def _version() -> str:
    """Return the installed version; run from a source tree there may be none."""
    try:
        return version("raytwin")
    except PackageNotFoundError:
        return "source"


__version__ = _version()

__all__ = [
    "ActorClass", "ActorHandle", "Blob", "DynamicObjectRefGenerator", "ObjectRef",
    "ObjectRefArray", "ObjectRefGenerator", "RemoteFunction", "RuntimeContext", "TaskID",
    "available_resources", "cancel", "cluster_resources", "compute", "exceptions", "exit_actor",
    "get", "get_actor", "get_gpu_ids", "get_runtime_context", "init", "is_initialized", "kill",
    "main", "method", "nodes", "now", "put", "remote", "shutdown", "sleep", "timeline", "util",
    "wait",
]  # fmt: skip


def _lazily(module: str) -> Any:
    """Return a backend's ``connect`` that loads its package when it is called."""

    def connect(**options: Any) -> Any:
        return importlib.import_module(module).connect(**options)

    return connect


register_backend("local", _lazily("runtime.processes.cluster"))
register_backend("sim", _lazily("simulator.cluster"))


def __getattr__(name: str) -> Any:
    raise AttributeError(modules.missing(name))


def main() -> None:
    """Run the command line."""
    from scenarios.cli import main as run

    run()


if __name__ == "__main__":
    main()
