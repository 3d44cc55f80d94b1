"""The connection of a driver to Ray: a cluster of its own on this machine, or one that it joins.

`connect` takes the options of raytwin's `init` that mean something on Ray, and refuses the others
in one line. A cluster that is joined has the nodes and CPUs that it has: there `nodes` is only how
many it must have at least, and raytwin has to be installed on each.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raytwin.runtime.api import modules
from raytwin.runtime.api.backend import connected, on_connect, set_current
from raytwin.runtime.on_ray import NotOnRay
from raytwin.runtime.on_ray.ray_cluster import RayCluster
from raytwin.runtime.processes.net.knock import knock

ADDRESS = "RAYTWIN_RAY_ADDRESS"
"""The environment variable with the Ray cluster that `init` joins by default."""
JOINED = "RAYTWIN_RAY_JOINED"
"""The environment variable that workers of a joined cluster have: Ray has named its nodes."""
INSTALL = "Ray is not installed: pip install 'raytwin[ray]'"
POLICIES: dict[str, dict[str, Any]] = {
    "bottom-up": {},
    "locality-blind": {"locality_aware_leasing_enabled": False},
}
"""By raytwin's name of a policy: the configuration with which Ray does the like. Ray leases workers
where most bytes of a task's arguments are; without that, where its submitter is."""
HEARTBEAT_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5.0
LEFT_OUT = "left out"


class RaySession:
    """The driver's connection, with as much of a session as fault plans and timelines use."""

    name = "ray"

    def __init__(self, cluster: RayCluster | None) -> None:
        self.cluster = cluster
        """None if the driver has joined a cluster that is not its own."""
        self.before_shutdown: list[Callable[[], None]] = []

    def __enter__(self) -> RaySession:
        return self

    def __exit__(self, *exc: object) -> None:
        disconnect()

    def query(self, kind: str) -> Any:
        """Return the ``nodes`` of a cluster that was started here. Raises NotOnRay for the rest."""
        if kind != "nodes" or self.cluster is None:
            raise NotOnRay(f"Ray does not answer raytwin's query {kind!r}")
        return self.cluster.rows()

    def trace(self, most: int) -> list[dict[str, Any]]:
        """Return the first events of Ray's own timeline, at most so many, in Chrome's format."""
        import ray

        events = sorted(ray.timeline(), key=lambda event: event.get("ts", 0.0))
        # Results tell no addresses: hosts have numbers, in the order of their events.
        hosts = {host: n for n, host in enumerate(dict.fromkeys(each["pid"] for each in events))}
        kept = [{**each, "pid": f"host {hosts[each['pid']]}"} for each in events[:most]]
        if len(kept) < len(events):
            what = f"left out: {len(events) - len(kept):,} of {len(events):,} events of Ray's"
            notice = {"name": what, "cat": LEFT_OUT, "ph": "i", "s": "g", "ts": kept[0]["ts"]}
            kept.insert(0, {**notice, "pid": "trace", "tid": LEFT_OUT})
        return kept

    def shutdown(self) -> None:
        """Leave the cluster; end it if it was started here."""
        import ray

        for called in self.before_shutdown:
            called()
        ray.shutdown()
        os.environ.pop(JOINED, None)
        if self.cluster is not None:
            self.cluster.shutdown()


def check_address(address: str) -> None:
    """Raise NotOnRay unless something listens at ``HOST:PORT``. Ray itself tries for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise NotOnRay(f"{address!r} is no address of a Ray cluster: give HOST:PORT")
    try:
        knock(host, int(port), CONNECT_TIMEOUT_S)
    except OSError as error:
        raise NotOnRay(
            f"no Ray cluster answers at {address}: {error.strerror or error}; 'ray start --head'"
            " prints the address of one"
        ) from error


def connect(
    address: str | None = None,
    *,
    backend: str = "ray",
    nodes: int | Sequence[Mapping[str, float]] = 1,
    cpus_per_node: float | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    object_store_memory: int | None = None,
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    policy: str = "bottom-up",
    seed: int = 0,
    namespace: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    **options: Any,
) -> RaySession:
    """Start a cluster, or join one; ``seed`` is accepted, and Ray has nothing to do with it.

    ``heartbeat_timeout_s`` is for how long health checks of a node fail until it is dead. Raises
    NotOnRay for an option that Ray does not have, RuntimeError if a cluster is connected already.
    """
    if importlib.util.find_spec("ray") is None:
        raise NotOnRay(INSTALL)
    if connected() is not None:
        raise RuntimeError("a cluster is connected already: call shutdown() first")
    if backend != "ray":
        raise NotOnRay(f"this program runs on Ray: init() has no backend {backend!r} here")
    for name, value in options.items():
        if value:
            raise NotOnRay(f"Ray has no option {name!r} for a cluster")
    if policy not in POLICIES:
        raise NotOnRay(f"Ray has no policy {policy!r}: possible: {', '.join(POLICIES)}")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    found = address or os.environ.get(ADDRESS)
    if found:
        session = _join(found, nodes, policy, namespace, runtime_env)
    else:
        os.environ.pop("RAY_ADDRESS", None)
        cpus = cpus_per_node if cpus_per_node is not None else num_cpus
        each = {"CPU": float(cpus if cpus is not None else os.cpu_count() or 1)}
        each |= {"GPU": float(num_gpus)} if num_gpus else {}
        each |= resources or {}
        wanted = [each] * nodes if isinstance(nodes, int) else list(nodes)
        cluster = RayCluster(wanted, object_store_memory, heartbeat_timeout_s, POLICIES[policy])
        session = RaySession(cluster)
        try:
            _init(cluster.address, namespace, runtime_env, {})
        except BaseException:
            session.shutdown()
            raise
    set_current(session)  # type: ignore[arg-type]
    for called in on_connect:
        called(session)
    return session


def disconnect() -> None:
    """End the connection, if there is one."""
    session = connected()
    if session is not None:
        set_current(None)
        session.shutdown()


def _join(
    address: str,
    nodes: int | Sequence[Mapping[str, float]],
    policy: str,
    namespace: str | None,
    runtime_env: Mapping[str, Any] | None,
) -> RaySession:
    """Join the cluster at an address, if it can have what the program wants."""
    if not isinstance(nodes, int):
        raise NotOnRay(
            f"the nodes of the Ray cluster at {address} are as they are, and this program wants"
            " others: leave --address out, and a cluster is started for it"
        )
    if POLICIES[policy]:
        raise NotOnRay(f"policy {policy!r} is set where a Ray cluster starts: leave --address out")
    check_address(address)
    import ray

    os.environ[JOINED] = "1"
    _init(address, namespace, runtime_env, {modules.ON_RAY: "1", JOINED: "1"})
    session = RaySession(None)
    alive = sum(row["Alive"] for row in ray.nodes())
    if alive < nodes:
        session.shutdown()
        raise NotOnRay(
            f"the Ray cluster at {address} has {alive} nodes, not {nodes}: give --nodes"
            f" {alive} or less"
        )
    return session


def _init(
    address: str,
    namespace: str | None,
    runtime_env: Mapping[str, Any] | None,
    variables: Mapping[str, str],
) -> None:
    """Connect this process to a cluster as a driver; its workers have the variables."""
    import ray

    wanted = dict(runtime_env or {})
    if variables:
        wanted["env_vars"] = {**variables, **wanted.get("env_vars", {})}
    ray.init(
        address=address,
        namespace=namespace,
        runtime_env=wanted or None,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def environment() -> dict[str, str]:
    """Return the environment of a process whose `raytwin` is Ray's, and its workers'."""
    # This package is found there where it was found here.
    root = str(Path(__file__).absolute().parents[3])
    path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), modules.ON_RAY: "1"}
