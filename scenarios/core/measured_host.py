"""A result records its machine, the speed of the processor and the versions, and no names.

Neither the host's name nor the user's is recorded, so results can be shared.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

PROBE_LOOPS = 100_000
PROBES = 5
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


def speed() -> float:
    """Return how many rounds of a loop of Python the processor does in a second of CPU time.

    The median of `PROBES`, a few hundredths of a second in all. What shares the processor's caches
    or its cores' threads slows a process down within its CPU time, too.
    """
    return statistics.median(_probe() for _ in range(PROBES))


def _probe() -> float:
    began_s, number = time.thread_time(), 0
    while number < PROBE_LOOPS:
        number += 1
    return PROBE_LOOPS / (time.thread_time() - began_s)


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
