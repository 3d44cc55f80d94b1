"""The ``sim`` backend's ``init``: from what a program asks for to a cluster in virtual time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from greenlet import getcurrent

from runtime.api.state import set_current
from runtime.backend.init_options import check_names
from runtime.backend.nodes import (
    check_replicas,
    check_shards,
    check_storage,
    node_resources,
    store_config,
)
from runtime.backend.protocol import Backend
from runtime.backend.session import Session
from runtime.control.config import Config
from runtime.control.policies import make_policy
from simulator import one_thread
from simulator.cluster import SimCluster
from simulator.costs import load_profile
from simulator.operations import OperableCluster


def _lookup() -> Backend | None:
    return getattr(getcurrent(), "session", None)


def connect(*, address: str | None = None, **options: Any) -> Session:
    """Start a simulated cluster; there is none to join."""
    if address is not None:
        raise ValueError(
            f"a simulated cluster lives in the program that started it: {address!r} cannot be"
            " joined, and session.cluster.run_driver() runs a second driver"
        )
    check_names("sim", start, options)
    return start(**options)


def start(
    *,
    nodes: int | Sequence[Mapping[str, float]] = 1,
    cpus_per_node: float | None = None,
    more_resources: Mapping[str, float] | None = None,
    profile: str | os.PathLike[str] = "paper",
    policy: str = "bottom-up",
    seed: int = 0,
    nodes_per_host: int = 1,
    cores_per_host: int | None = None,
    object_store_memory: int = 64 << 30,
    journal: str | os.PathLike[str] | None = None,
    heartbeat_timeout_s: float = 5.0,
    store_copy_threads: int = 0,
    fetch_streams: int = Config().fetch_streams,
    gcs_replicas: int = 1,
    gcs_shards: int = 1,
    gcs_storage: str | os.PathLike[str] | None = None,
    gcs_memory_max: int = 0,
    task_history: bool = False,
    actor_log_bytes_max: int = Config().actor_log_bytes_max,
    direct_after: int = Config().direct_after,
) -> Session:
    """Start a simulated cluster and become its driver.

    Any `gcs_storage` makes the GCS durable; no file is written.
    """
    config = store_config(
        Config(
            policy=policy,
            seed=seed,
            heartbeat_timeout_s=heartbeat_timeout_s,
            gcs_replicas=check_replicas(gcs_replicas),
            gcs_shards=check_shards(gcs_shards),
            gcs_durable=check_storage(gcs_storage, gcs_memory_max),
            gcs_memory_max=gcs_memory_max,
            task_history=task_history,
            actor_log_bytes_max=actor_log_bytes_max,
            direct_after=direct_after,
        ),
        store_copy_threads,
        fetch_streams,
    )
    make_policy(config)
    if nodes_per_host < 1:
        raise ValueError(f"{nodes_per_host} nodes per host")
    cores = load_profile(profile).cores
    resources = node_resources(nodes, cpus_per_node, cores, more_resources)
    cluster = OperableCluster(
        resources, config, profile, nodes_per_host, cores_per_host, object_store_memory, journal
    )
    session = cluster.start_driver()
    set_current(session, _lookup, partial(one_thread.check, cluster.thread))
    count = len(resources)
    session.world.block(lambda: sum(i.alive for i in _known_nodes(cluster).values()) == count, None)
    return session


def _known_nodes(cluster: SimCluster) -> dict[int, Any]:
    return cluster.schedulers[0].members.nodes
