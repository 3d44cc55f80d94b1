"""The engines that are measured: how each is found, imported and started.

All have Ray's API, or a module that lends it to them, so a case is written once
and takes the module. They are started alike: one node with `CPUS` CPUs and an
object store of `STORE_BYTES`, where there is such a thing.

The module imports nothing of raytwin's: see `side`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CPUS = 2
STORE_BYTES = 2 << 30
"""Room for two objects of `put_800mb`, since the one before is freed meanwhile."""

OURS = "ours"
SIMULATED = "simulated"
"""Ours in virtual time: the control plane of both worlds, in one process."""


@dataclass(frozen=True)
class Engine:
    """One implementation of Ray's API, or of what the cases use of it."""

    module: str
    """The name of the module to import."""
    options: Callable[[Path], dict[str, Any]]
    """Takes a directory for the engine's files; returns the arguments of `init`."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Variables to set, or with None to remove, before its process starts."""
    store: Path | None = None
    """The file system that its objects are in, if it is one."""
    package: str = ""
    """The package that has to be installed for it."""
    extra: str = ""
    """The extra of raytwin that installs the package."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Cases that it has no equivalent for, and why."""


def _ours(directory: Path) -> dict[str, Any]:
    return {"cpus_per_node": CPUS, "object_store_memory": STORE_BYTES}


def _simulated(directory: Path) -> dict[str, Any]:
    return {"backend": "sim", "nodes": 1, **_ours(directory)}


def _ray(directory: Path) -> dict[str, Any]:
    # A cluster of its own, on the loopback device, with nothing fetched or reported.
    return {
        "address": "local",
        "num_cpus": CPUS,
        "object_store_memory": STORE_BYTES,
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": "ERROR",
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": str(directory),
    }


def _dask(directory: Path) -> dict[str, Any]:
    return {"workers": CPUS, "directory": str(directory)}


ENGINES = {
    OURS: Engine("raytwin", _ours),
    SIMULATED: Engine("raytwin", _simulated),
    "ray": Engine(
        "ray",
        _ray,
        {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_ADDRESS": None,
        },
        store=Path("/dev/shm"),
        package="ray",
        extra="ray",
    ),
    "dask": Engine(
        "raytwin_bench.dask_engine",
        _dask,
        package="distributed",
        extra="peers",
        lacks={
            "create_100_actors": "an actor of Dask is an object in a worker, not a process",
        },
    ),
}
