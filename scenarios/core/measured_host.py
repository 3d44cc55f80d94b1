"""What a measurement was made on and with: machine and versions, no names.

Neither the host's name nor the user's is recorded, so results can be shared.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("simpy", "greenlet", "msgspec", "cloudpickle", "numpy", "pandas", "matplotlib")


def describe() -> dict[str, Any]:
    """Return cpu, cores (that this process may use), memory_bytes, system."""
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions(*peers: str) -> dict[str, str]:
    """Return the versions of raytwin, Python, what results depend on, and packages of peers."""
    found = {"raytwin": raytwin_version(), "python": platform.python_version()}
    if sys.implementation.name != "cpython":
        found["python"] += f" ({sys.implementation.name})"
    for name in (*PACKAGES, *peers):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def raytwin_version() -> str:
    """Return the version that is installed, or "source" for a bare source tree."""
    try:
        return metadata.version("raytwin")
    except metadata.PackageNotFoundError:
        return "source"


def _cpu() -> str:
    """Return the processor's name as the kernel or, elsewhere, Python gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "Hardware"):
            return " ".join(value.split())
    return platform.processor() or platform.machine()
