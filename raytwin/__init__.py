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

# Submodules have to be importable first.
if not modules.on_ray():
    from raytwin.runtime.api import *  # noqa: F403
from raytwin.runtime.api import __all__ as __all__  # noqa: E402
from raytwin.runtime.api.backend import register_backend  # noqa: E402

SCENARIOS = {
    "run": "raytwin.scenarios.interactive.runs",
    "load": "raytwin.scenarios.interactive.runs",
}
"""The modules of the functions that run scenarios and load results, which Ray does not have."""


def __dir__() -> list[str]:
    return sorted({*globals(), *SCENARIOS})


def __getattr__(name: str) -> Any:
    """Return a submodule, `run`, `load`, or ``__version__``: the installed package's, or "source".

    Only for those who ask: looking it up loads more than the rest of this module.
    """
    if name in SCENARIOS:
        return getattr(importlib.import_module(SCENARIOS[name]), name)
    if name != "__version__" and modules.on_ray():
        # In programs that run on Ray itself; names that Python looks up by itself are not Ray's.
        if name.startswith("__"):
            raise AttributeError(name)
        from raytwin.runtime.on_ray import front_door

        return getattr(front_door, name)
    if name in modules.LAZY_MODULES:
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
register_backend("docker", _lazily("raytwin.runtime.containers.docker_backend"))
register_backend("sim", _lazily("raytwin.simulator.cluster.sim_backend"))
