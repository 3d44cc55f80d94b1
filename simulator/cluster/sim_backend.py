"""The ``sim`` backend's ``init``: makes a cluster in virtual time from a program's options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from greenlet import getcurrent

from raytwin.runtime.api.backend import Backend, set_current
from raytwin.runtime.api.options.checks import amount, integer
from raytwin.runtime.api.options.init_options import check_file, check_names
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import NodeInfo
from raytwin.runtime.session.cluster_config import cluster_config
from raytwin.runtime.session.node_resources import node_resources
from raytwin.runtime.session.recording import load
from raytwin.runtime.session.session import Session
from raytwin.simulator.cluster.simulated_cluster import SimCluster
from raytwin.simulator.machine.costs import load_profile
from raytwin.simulator.machine.network import Racks
from raytwin.simulator.programs.body_costs import BodyCost
from raytwin.simulator.programs.virtual_world import check_thread

STORE_BYTES = 64 << 30
"""The default size of a node's object store."""
MEMORY_BYTES = 192 << 30
"""A node's ``memory``: that of the paper's m4.16xlarge without such a store."""


def _lookup() -> Backend | None:
    return getattr(getcurrent(), "session", None)


def connect(*, address: str | None = None, **options: Any) -> Session:
    """Start a simulated cluster; there is none to join."""
    if address is not None:
        raise ValueError(
            f"a simulated cluster lives in the program that started it: {address!r} cannot be"
            " joined (address 'local' starts one), and session.cluster.run_driver() runs a second"
            " driver"
        )
    check_names("sim", options, start, cluster_config)
    return start(**options)


def start(
    *,
    nodes: int | Sequence[Mapping[str, float]] = 1,
    cpus_per_node: float | None = None,
    more_resources: Mapping[str, float] | None = None,
    profile: str | os.PathLike[str] = "paper",
    nodes_per_host: int = 1,
    cores_per_host: int | None = None,
    host_speeds: Sequence[float] | None = None,
    hosts_per_rack: int | None = None,
    oversubscription: float | None = None,
    object_store_memory: int = STORE_BYTES,
    journal: str | os.PathLike[str] | None = None,
    direct_after: int = Config().direct_after,
    cost: str = BodyCost.DECLARED.value,
    recording: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Session:
    """Start a simulated cluster and become its driver.

    Every `hosts_per_rack` hosts are in a rack, whose uplink has, each way, the bandwidth of so many
    hosts over `oversubscription` (1 or more, by default 1); without it there are no racks.
    `host_speeds` has the speed of each host's cores, over that of the profile's.
    `settings` are those of `cluster_config`. Any `gcs_storage` makes the GCS durable; no
    file is written. `cost`: see `body_costs`; `recording`: the file that ``cost="recorded"`` reads.
    """
    if cost not in [each.value for each in BodyCost]:
        there = ", ".join(each.value for each in BodyCost)
        raise ValueError(f"no cost {cost!r} of bodies; there are {there}")
    if (recording is not None) != (cost == BodyCost.RECORDED.value):
        raise ValueError(
            "cost='recorded' and recording=FILE go together: 'raytwin record' writes the file"
        )
    config = cluster_config(Config(direct_after=direct_after), **settings)
    if nodes_per_host < 1:
        raise ValueError(f"{nodes_per_host} nodes per host")
    racks = _racks(hosts_per_rack, oversubscription)
    cores = load_profile(profile).cores
    resources = node_resources(nodes, cpus_per_node, cores, more_resources)
    speeds = _speeds(host_speeds, -(-len(resources) // nodes_per_host))
    if journal is not None:
        check_file("journal", journal)
    cluster = SimCluster(
        resources,
        config,
        profile,
        nodes_per_host,
        cores_per_host,
        MEMORY_BYTES,
        object_store_memory,
        journal,
        BodyCost(cost),
        None if recording is None else load(recording),
        racks,
        speeds,
    )
    session = cluster.start_driver()
    set_current(session, _lookup, partial(check_thread, cluster.thread))
    count = len(resources)

    def complete() -> bool:
        known = _known_nodes(cluster)
        return all(node in known and known[node].alive for node in range(count))

    session.world.block(complete, None)
    watcher = session.world.watcher
    if watcher is not None:
        watcher.begin()
        # What the driver has computed since its last API call belongs to the makespan.
        session.before_shutdown.append(watcher.end)
    return session


def _racks(hosts_per_rack: int | None, oversubscription: float | None) -> Racks | None:
    """Return the racks of the hosts, None for none. Raises TypeError or ValueError for bad ones."""
    if hosts_per_rack is None:
        if oversubscription is not None:
            raise ValueError("oversubscription is that of racks: give hosts_per_rack with it")
        return None
    hosts = integer("hosts_per_rack", hosts_per_rack, 1)
    ratio = amount("oversubscription", 1.0 if oversubscription is None else oversubscription)
    if ratio < 1:
        raise ValueError(f"oversubscription is 1 or more, not {oversubscription}")
    return Racks(hosts, float(ratio))


def _speeds(given: Any, hosts: int) -> list[float]:
    """Return the speeds of hosts. Raises TypeError or ValueError if not each of them has one."""
    if given is None:
        return []
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"host_speeds is a list of numbers, one for each host, not {given!r}")
    speeds = [float(amount(f"host_speeds[{at}]", each)) for at, each in enumerate(given)]
    if len(speeds) != hosts:
        raise ValueError(f"host_speeds has {len(speeds)} numbers for {hosts} hosts")
    if 0 in speeds:
        raise ValueError(f"host_speeds[{speeds.index(0)}] is above 0, not 0")
    return speeds


def _known_nodes(cluster: SimCluster) -> Mapping[int, NodeInfo]:
    return cluster.node_managers[0].members.nodes
