"""From what `init` is asked for to the settings of a cluster's control plane, on any backend."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import fields

from raytwin.runtime.api.options.checks import INTEGER_MAX, amount, integer, text
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.gcs.node_table import FailureDetector
from raytwin.runtime.control.scheduling.policies import make_policy

_EXACT: dict[Any, Callable[[str, Any], Any]] = {
    int: lambda name, given: integer(name, given, -INTEGER_MAX),
    float: amount,
    str: text,
    bool: lambda name, given: bool(given),
}
"""How a setting of a type is checked."""
THREADS_MAX = 256
STREAMS_MAX = 64
REPLICAS_MAX = 9
"""Of the GCS; a chain's answers take as many steps."""
SHARDS_MAX = 16
"""Of the GCS; each is ``gcs_replicas`` processes."""


def cluster_config(
    base: Config | None = None,
    /,
    *,
    policy: str = "bottom-up",
    seed: int = 0,
    heartbeat_timeout_s: float = 5.0,
    store_copy_threads: int = 0,
    fetch_streams: int = Config().fetch_streams,
    gcs_replicas: int = 1,
    gcs_shards: int = 1,
    gcs_storage: str | os.PathLike[str] | None = None,
    gcs_memory_max: int = 0,
    task_history: bool = False,
    actor_log_bytes_max: int = Config().actor_log_bytes_max,
    actor_end_s: float = Config().actor_end_s,
) -> Config:
    """Return the settings that `init` was given, with those of `base` that it has no word for.

    Each is exactly of its type then. Raises TypeError for one that is not a number or string
    where it should be, ValueError for one that makes no sense or does not fit another: a
    wrong one fails here, and not in every process.
    """
    config = msgspec.structs.replace(
        Config() if base is None else base,
        policy=policy,
        seed=seed,
        heartbeat_timeout_s=heartbeat_timeout_s,
        store_copy_threads=store_copy_threads,
        fetch_streams=fetch_streams,
        gcs_replicas=_check_replicas(gcs_replicas),
        gcs_shards=_check_shards(gcs_shards),
        gcs_durable=_check_storage(gcs_storage, gcs_memory_max),
        gcs_memory_max=gcs_memory_max,
        task_history=task_history,
        actor_log_bytes_max=actor_log_bytes_max,
        actor_end_s=actor_end_s,
    )
    config = _exactly(config)
    _check_store(config.store_copy_threads, config.fetch_streams)
    if not 0 <= config.actor_end_s < math.inf:
        raise ValueError(f"actor_end_s is {actor_end_s}; give a number of seconds")
    make_policy(config)
    FailureDetector(config.heartbeat_timeout_s)
    return config


def _exactly(config: Config) -> Config:
    """Return `config` with each setting exactly of its type."""
    exact = {f.name: _EXACT[f.type](f.name, getattr(config, f.name)) for f in fields(config)}
    return msgspec.structs.replace(config, **exact)


def _check_replicas(count: int) -> int:
    """Return the number of replicas of the GCS; raises ValueError for one that is none."""
    if not isinstance(count, int) or not 1 <= count <= REPLICAS_MAX:
        raise ValueError(f"gcs_replicas={count!r}: give a whole number from 1 to {REPLICAS_MAX}")
    return count


def _check_shards(count: int) -> int:
    """Return the number of shards of the GCS; raises ValueError for one that is none."""
    if not isinstance(count, int) or not 1 <= count <= SHARDS_MAX:
        raise ValueError(f"gcs_shards={count!r}: give a whole number from 1 to {SHARDS_MAX}")
    return count


def _check_storage(storage: object, memory_max: int) -> bool:
    """Return whether the GCS is durable; raises ValueError for options that do not fit."""
    if memory_max < 0:
        raise ValueError(f"gcs_memory_max={memory_max}: give a number of bytes, 0 for no limit")
    if storage is None and memory_max:
        raise ValueError("gcs_memory_max needs gcs_storage: the rest has to go somewhere")
    return storage is not None


def _check_store(store_copy_threads: int, fetch_streams: int) -> None:
    if not 0 <= store_copy_threads <= THREADS_MAX:
        raise ValueError(
            f"store_copy_threads is {store_copy_threads}; give 1 to {THREADS_MAX},"
            " or 0 for as many as pay"
        )
    if not 1 <= fetch_streams <= STREAMS_MAX:
        raise ValueError(f"fetch_streams is {fetch_streams}; give 1 to {STREAMS_MAX}")
