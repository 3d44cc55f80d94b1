"""The ``docker`` backend's ``init``: makes a cluster of containers from a program's options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raytwin.runtime.api.options import checks
from raytwin.runtime.api.options.init_options import check_directory, check_names
from raytwin.runtime.containers.container_cluster import NODES_MAX, ContainerCluster
from raytwin.runtime.containers.default_disk import disk_bytes
from raytwin.runtime.containers.node_container import Limits
from raytwin.runtime.processes.client import joining
from raytwin.runtime.processes.spawn.local_backend import (
    MEMORY_SHARE,
    STORE_SHARE,
    check_files,
    drive,
    memory_bytes,
    spill_directory,
    store_size,
)
from raytwin.runtime.processes.spawn.local_cluster import LocalCluster, ProxiedLinks
from raytwin.runtime.session.cluster_config import cluster_config
from raytwin.runtime.session.node_resources import node_resources
from raytwin.runtime.session.session import Session

CONTAINER_MEMORY_MIN = 128 << 20
"""The least memory of a container: the processes of an idle node take about half of it."""


def connect(*, address: str | None = None, **options: Any) -> Session:
    """Start a cluster of containers, or join the one at ``address``."""
    if address is not None:
        return joining.connect(address, **options)
    check_names("docker", options, start, cluster_config)
    return start(**options)


def start(
    *,
    nodes: int | Sequence[Mapping[str, float]] = 1,
    cpus_per_node: float | None = None,
    more_resources: Mapping[str, float] | None = None,
    object_store_memory: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    gcs_storage: str | os.PathLike[str] | None = None,
    image: str | None = None,
    shared_directories: Sequence[str | os.PathLike[str]] = (),
    container_cpus: float | None = None,
    container_memory_bytes: int | None = None,
    container_disk_bytes: int | None = None,
    **settings: Any,
) -> Session:
    """Start a cluster of containers and become its driver, which lives on node 0.

    `settings` are those of `cluster_config`. Raises NoEngine if no Docker engine answers.
    """
    resources = node_resources(nodes, cpus_per_node, os.cpu_count() or 1, more_resources)
    if len(resources) > NODES_MAX:
        raise ValueError(f"{len(resources)} nodes in containers; at most {NODES_MAX} may be")
    config = cluster_config(gcs_storage=gcs_storage, **settings)
    limits = _limits(container_cpus, container_memory_bytes, container_disk_bytes)
    shared = [str(Path(each).absolute()) for each in shared_directories]
    for each in shared:
        check_directory("shared_directories", each)
    check_files(journal, gcs_storage)
    if journal is not None:
        shared.append(str(Path(journal).absolute()))
    each_bytes = memory_bytes() / len(resources)
    if limits.memory_bytes is not None:
        each_bytes = min(each_bytes, limits.memory_bytes)
    store_bytes = store_size(object_store_memory, int(each_bytes * STORE_SHARE))

    def start_here(host: str, links: ProxiedLinks | None) -> LocalCluster:
        return LocalCluster(
            resources[:1],
            config,
            int(memory_bytes() * MEMORY_SHARE / len(resources)),
            store_bytes,
            "" if journal is None else str(Path(journal).absolute()),
            spill_directory(None),
            "" if gcs_storage is None else str(Path(gcs_storage).resolve()),
            host,
            links,
        )

    cluster = ContainerCluster(resources, start_here, store_bytes, image, limits, shared)
    return drive(cluster, len(resources))


def _limits(cpus: Any, memory: Any, disk: Any) -> Limits:
    """Return the limits of each container. Raises ValueError or TypeError for bad ones."""
    if cpus is not None:
        cpus = checks.amount("container_cpus", cpus)
        if cpus < 0.01:
            raise ValueError(f"container_cpus is {cpus:g}; 0.01 is the least")
    if memory is not None:
        memory = checks.integer("container_memory_bytes", memory, CONTAINER_MEMORY_MIN)
    if disk is not None:
        disk = checks.integer("container_disk_bytes", disk, 1 << 16)
    return Limits(cpus, memory, disk_bytes(memory) if disk is None else disk)
