"""A cluster in virtual time, and how long something takes there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import raytwin as ray

LATENCY_S = 0.001
BANDWIDTH = 1e9


def start(**options: Any) -> Any:
    """Start a cluster whose control plane is as that of the profile `paper`."""
    return ray.init(backend="sim", **options)


def elapsed_s(action: Callable[[], Any]) -> float:
    began_s = ray.now()
    action()
    return ray.now() - began_s
