"""The ``local`` backend's ``init``: makes a cluster of processes from a program's options."""

from __future__ import annotations

import os
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from raytwin.runtime.api.backend import connected, set_current
from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.runtime.api.options.init_options import check_directory, check_names
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import root_task_id
from raytwin.runtime.processes.client import joining
from raytwin.runtime.processes.client.driver_sessions import DriverSession, make_driver
from raytwin.runtime.processes.client.local_world import LocalWorld
from raytwin.runtime.processes.net.heap_trim import trim
from raytwin.runtime.processes.spawn.local_cluster import (
    LOOPBACK,
    NODES_MAX,
    LocalCluster,
    new_links,
)
from raytwin.runtime.session.cluster_config import cluster_config
from raytwin.runtime.session.node_resources import FIRST_DRIVER, node_resources
from raytwin.runtime.session.session import Session
from raytwin.runtime.store.arena import Arena

START_TIMEOUT_S = 60.0
STORE_SHARE = 0.3
"""The default size of all object stores together, as a share of the machine's memory."""
MEMORY_SHARE = 0.7
"""All nodes' ``memory`` together, as a share of the machine's: the default stores have the rest."""
STORE_BYTES_MAX = 1 << 44
"""A process maps its node's store twice, in an address space of 47 bits."""


def connect(*, address: str | None = None, **options: Any) -> Session:
    """Start a cluster on this machine, or join the one at ``address``."""
    if address is not None:
        return joining.connect(address, **options)
    check_names("local", options, start, cluster_config)
    return start(**options)


def start(
    *,
    nodes: int | Sequence[Mapping[str, float]] = 1,
    cpus_per_node: float | None = None,
    more_resources: Mapping[str, float] | None = None,
    object_store_memory: int | None = None,
    object_spilling_dir: str | os.PathLike[str] | None = None,
    journal: str | os.PathLike[str] | None = None,
    gcs_storage: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Session:
    """Start a cluster on this machine and become its driver.

    `settings` are those of `cluster_config`.
    """
    resources = node_resources(nodes, cpus_per_node, os.cpu_count() or 1, more_resources)
    if len(resources) > NODES_MAX:
        raise ValueError(f"{len(resources)} nodes on one machine; at most {NODES_MAX} may be")
    config = cluster_config(gcs_storage=gcs_storage, **settings)
    default = int(memory_bytes() * STORE_SHARE / len(resources))
    check_files(journal, gcs_storage)
    cluster = LocalCluster(
        resources,
        config,
        int(memory_bytes() * MEMORY_SHARE / len(resources)),
        store_size(object_store_memory, default),
        "" if journal is None else str(journal),
        spill_directory(object_spilling_dir),
        "" if gcs_storage is None else str(Path(gcs_storage).resolve()),
        links=new_links("local", len(resources), LOOPBACK),
    )
    return drive(cluster, len(resources))


class StartedCluster(Protocol):
    """The part of a cluster that its driver's session needs."""

    backend: str
    config: Config

    @property
    def address(self) -> str: ...
    @property
    def driver_socket(self) -> socket.socket: ...
    @property
    def from_workers(self) -> socket.socket: ...
    @property
    def arena(self) -> Arena: ...
    @property
    def exited(self) -> Mapping[str, str]: ...
    @property
    def query(self) -> Callable[[str], Any]: ...
    @query.setter
    def query(self, query: Callable[[str], Any]) -> None: ...
    def poll(self) -> None: ...
    def await_pids(self) -> None: ...
    def end(self) -> None: ...


def drive(cluster: StartedCluster, nodes: int) -> Session:
    """Become the driver of a cluster whose nodes are starting; return when all have joined."""
    try:
        session = _connect_driver(cluster)
        _await_nodes(session, cluster, nodes)
        cluster.await_pids()
    except BaseException:
        started = connected()
        if isinstance(started, OwnerSession):
            set_current(None)
            started.shutdown()
        else:
            cluster.end()
        raise
    trim()
    return session


def store_size(given: int | None, default: int) -> int:
    """Return the size of an object store. Raises ValueError for one out of range."""
    nbytes = default if given is None else given
    if nbytes < 1 << 20:
        raise ValueError(f"an object store of {nbytes} bytes; 1 MiB is the least")
    if nbytes > STORE_BYTES_MAX:
        raise ValueError(f"an object store of {nbytes} bytes; 16 TiB is the most")
    return nbytes


def check_files(
    journal: str | os.PathLike[str] | None, gcs_storage: str | os.PathLike[str] | None
) -> None:
    """Raise ValueError unless the journal's directory and the GCS's file can be written."""
    if gcs_storage is not None:
        from raytwin.runtime.processes.head import gcs_storage as storage  # loads sqlite3

        storage.check_storage(Path(gcs_storage))
    if journal is not None:
        check_directory("journal", journal, make=True)


def memory_bytes() -> int:
    """Return the size of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def spill_directory(given: str | os.PathLike[str] | None) -> str:
    """Return the directory for spilled objects; by default the system's for temporary files."""
    directory = tempfile.gettempdir() if given is None else os.path.abspath(given)
    check_directory("object_spilling_dir", directory)
    return directory


def _connect_driver(cluster: StartedCluster) -> Session:
    return make_driver(
        FIRST_DRIVER,
        0,
        cluster.config,
        root_task_id(uuid.uuid4().hex),
        cluster.driver_socket,
        cluster.arena,
        cluster.address,
        lambda world: OwnerSession(world, cluster),
        cluster.from_workers,
    )


class OwnerSession(DriverSession):
    """The session of the driver that started the cluster; the cluster ends with it."""

    def __init__(self, world: LocalWorld, cluster: StartedCluster) -> None:
        world.name = cluster.backend
        super().__init__(world, cluster.address, cluster.end)
        self.cluster = cluster
        cluster.query = self.query


def _await_nodes(session: Session, cluster: StartedCluster, count: int) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    pause_s = 0.001
    while True:
        cluster.poll()
        if cluster.exited:
            process, reason = next(iter(cluster.exited.items()))
            raise RuntimeError(f"the cluster did not start: {process} ended ({reason})")
        try:
            if sum(row["alive"] for row in session.query("nodes")) == count:
                return
        except RaySystemError:
            # The driver's node has ended: wait for the zygote's report of why.
            time.sleep(0.1)
            cluster.poll()
            if not cluster.exited:
                raise
            continue
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the cluster of {count} nodes did not start in {START_TIMEOUT_S} s")
        time.sleep(pause_s)
        pause_s = min(0.05, pause_s * 1.5)
