"""Makes the settings of a cluster's control plane from the options of `init`, on any backend."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import fields

from raytwin.runtime.api.options.checks import INTEGER_MAX, amount, integer, text
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.scheduling.policies import make_policy

_CHECKS: dict[Any, Callable[[str, Any], Any]] = {
    int: lambda name, given: integer(name, given, -INTEGER_MAX),
    float: amount,
    str: text,
    bool: lambda name, given: bool(given),
}
"""The check of each type of setting."""
_RANGES = {
    "store_copy_threads": (0, 256, " (as many as pay)"),
    "fetch_streams": (1, 64, ""),
    "gcs_replicas": (1, 9, ""),  # the answers of a chain take as many steps
    "gcs_shards": (1, 16, ""),  # each is `gcs_replicas` processes
    "gcs_memory_max": (0, INTEGER_MAX, " (no limit)"),
}
"""For integer settings: the least value, the greatest, and the meaning of the least."""


def cluster_config(
    base: Config | None = None,
    /,
    *,
    policy: str = "bottom-up",
    seed: int = 0,
    heartbeat_timeout_s: float = 5.0,
    scheduling_delay_s: float = 0.0,
    store_copy_threads: int = 0,
    fetch_streams: int = Config().fetch_streams,
    gcs_replicas: int = 1,
    gcs_shards: int = 1,
    gcs_storage: str | os.PathLike[str] | None = None,
    gcs_memory_max: int = 0,
    task_history: bool = False,
    actor_log_bytes_max: int = Config().actor_log_bytes_max,
    actor_end_s: float = Config().actor_end_s,
    timers: Mapping[str, float] | None = None,
) -> Config:
    """Return the settings from the options of `init`, and from `base` for the others.

    `timers`: values of any settings, which count more than the options.

    Raises TypeError for a setting of a wrong type, ValueError for one that is out of range or
    contradicts another, so that a wrong setting fails here and not in every process. Values are
    converted to the setting's exact type.
    """
    config = msgspec.structs.replace(
        Config() if base is None else base,
        policy=policy,
        seed=seed,
        heartbeat_timeout_s=heartbeat_timeout_s,
        scheduling_delay_s=scheduling_delay_s,
        store_copy_threads=store_copy_threads,
        fetch_streams=fetch_streams,
        gcs_replicas=gcs_replicas,
        gcs_shards=gcs_shards,
        gcs_durable=gcs_storage is not None,
        gcs_memory_max=gcs_memory_max,
        task_history=task_history,
        actor_log_bytes_max=actor_log_bytes_max,
        actor_end_s=actor_end_s,
    )
    config = _checked(msgspec.structs.replace(config, **(timers or {})))
    if gcs_storage is None and config.gcs_memory_max:
        raise ValueError("gcs_memory_max needs gcs_storage: the rest has to go somewhere")
    if config.gcs_durable and (config.gcs_replicas > 1 or config.gcs_shards > 1):
        raise ValueError("gcs_storage is for a GCS without gcs_replicas and gcs_shards")
    for name in ("actor_end_s", "scheduling_delay_s"):
        if not 0 <= (given := getattr(config, name)) < math.inf:
            raise ValueError(f"{name} is {given}; give a number of seconds")
    make_policy(config)
    if not config.heartbeat_timeout_s > 0:
        raise ValueError(f"a heartbeat timeout of {config.heartbeat_timeout_s} s")
    return config


def _checked(config: Config) -> Config:
    """Return `config` with each setting checked, and converted to its exact type."""
    exact = {}
    for field in fields(config):
        name, given = field.name, getattr(config, field.name)
        if name in _RANGES:
            least, most, note = _RANGES[name]
            exact[name] = integer(name, given, least, most, note)
        else:
            exact[name] = _CHECKS[field.type](name, given)
    return msgspec.structs.replace(config, **exact)
