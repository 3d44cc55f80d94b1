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
from typing import Any

from raytwin.runtime.api import modules

modules.install(__name__)

from raytwin.runtime.api import (  # noqa: E402  (submodules have to be importable first)
    ActorClass,
    ActorHandle,
    ActorID,
    Blob,
    DynamicObjectRefGenerator,
    JobID,
    NodeID,
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

__all__ = [
    "ActorClass", "ActorHandle", "ActorID", "Blob", "DynamicObjectRefGenerator", "JobID", "NodeID",
    "ObjectRef",
    "ObjectRefArray", "ObjectRefGenerator", "RemoteFunction", "RuntimeContext", "TaskID",
    "available_resources", "cancel", "cluster_resources", "compute", "exceptions", "exit_actor",
    "get", "get_actor", "get_gpu_ids", "get_runtime_context", "init", "is_initialized", "kill",
    "method", "nodes", "now", "put", "remote", "shutdown", "sleep", "timeline", "util",
    "wait",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a submodule, or ``__version__``: the installed package's, "source" if there is none.

    Only for those who ask: looking it up loads more than the rest of this module.
    """
    if name in modules.AT_ASKING:
        return importlib.import_module(modules.PUBLIC[name])
    if name != "__version__":
        raise AttributeError(modules.missing(name))
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("raytwin")
    except PackageNotFoundError:
        return "source"


def _lazily(module: str) -> Any:
    """Return a backend's ``connect`` that loads its package when it is called."""

    def connect(**options: Any) -> Any:
        return importlib.import_module(module).connect(**options)

    return connect


register_backend("local", _lazily("raytwin.runtime.processes.spawn.local_backend"))
register_backend("sim", _lazily("raytwin.simulator.cluster.sim_backend"))
