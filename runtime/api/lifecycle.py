"""Starts, queries and ends a cluster."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from raytwin.runtime.api.backend import (
    Backend,
    backends,
    check,
    connected,
    on_connect,
    present,
    register_start,
    set_current,
)
from raytwin.runtime.api.modules import ON_RAY
from raytwin.runtime.api.options import checks
from raytwin.runtime.api.options.init_options import check_values
from raytwin.runtime.api.options.task_options import env_vars
from raytwin.runtime.control.core.group_resources import group_resources

_starting = threading.RLock()
"""Locked while a cluster starts, so that only one of several threads starts one."""


ADDRESS = "RAYTWIN_ADDRESS"
"""The environment variable with the default address of ``init()``."""

OVERRIDES: dict[str, Any] = {}
"""Options of the command line of `raytwin exec`, which override the script's own."""

started_by = 0
"""The process that has started a cluster with `OVERRIDES`; its children may join that cluster."""

_UNSUPPORTED = {
    "labels": "nodes have no labels",
    "job_config": "namespace and runtime_env say what a job has of its own",
    "enable_resource_isolation": "workers share the machine",
    "cgroup_path": "workers share the machine",
    "system_reserved_cpu": "workers share the machine",
    "system_reserved_memory": "workers share the machine",
    "proxy_server_url": "there is no dashboard",
    "storage": "nothing is kept",
}


def init(
    address: str | None = None,
    *,
    backend: str | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: dict[str, float] | None = None,
    object_store_memory: int | None = None,
    local_mode: bool = False,
    ignore_reinit_error: bool = False,
    include_dashboard: bool | None = None,
    dashboard_host: str = "127.0.0.1",
    dashboard_port: int | None = None,
    configure_logging: bool = True,
    logging_level: int | str = "info",
    logging_format: str | None = None,
    logging_config: Any = None,
    log_to_driver: bool | None = None,
    namespace: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    **options: Any,
) -> Backend:
    """Start a cluster, or join one, and connect this program to it as a driver.

    With ``address``, or `ADDRESS` in the environment, the program joins a cluster of
    this user that is running on this machine, as a further job: ``"auto"`` means the
    one that was started last, ``host:port`` the one that `raytwin start` has printed
    (``context.address_info["address"]`` in the program that started it). docs/api.md
    lists what jobs share. Otherwise, and with ``"local"``, `init` starts a cluster,
    which ends with this program.

    To start one, every backend takes, besides the options in docs/api.md:

    - ``backend``: ``local`` (the default), ``sim``, ...;
    - ``nodes``: their number (default 1), or a list with one ``{resource: amount}``
      per node; the driver lives on node 0;
    - ``cpus_per_node`` (or ``num_cpus``, Ray's name): default this machine's
      cores; ``num_gpus``, ``resources``: further resources of every node;
    - ``object_store_memory``: bytes per node; further objects are spilled to disk;
    - ``policy``: the scheduling policy's name (default ``bottom-up``) or import
      path; ``seed``: of the control plane's random choices (default 0);
    - ``heartbeat_timeout_s``: a node without heartbeats for so long is declared
      dead (default 5);
    - ``gcs_replicas``, ``gcs_shards``: processes in each chain of the GCS, and chains
      among which its tables are divided (default 1: the head process has all);
    - ``gcs_storage``: the file in which the GCS keeps its state, from which a new head
      restores it when the head was killed; for one cluster, without replicas or shards;
    - ``runtime_env``: ``{"env_vars": {...}}`` for every task; ``namespace``: in which this
      job names actors and looks them up (default: one that no other job has).

    Of these a joining program may give ``namespace`` and ``runtime_env``. Ray's options
    for its dashboard and its logs are accepted and have no effect: there is no dashboard,
    and workers write to the standard output and error of the program that started the
    cluster.

    The result is a context manager that ends the cluster, or leaves a joined one.
    Raises RuntimeError if a cluster is connected already, ConnectionError if
    there is none to join, ValueError or TypeError for bad options.
    """
    with _starting:
        there = connected()
        if there is not None:
            if ignore_reinit_error:
                return there
            raise RuntimeError("a cluster is connected already: call shutdown() first")
        if local_mode:
            raise ValueError("raytwin has no local_mode: backend='sim' runs in one process")
        for name in options:
            if name in _UNSUPPORTED or name.startswith("_"):
                why = _UNSUPPORTED.get(name, "it is for Ray's own use")
                raise ValueError(f"raytwin's init() does not have Ray's {name}: {why}")
        named = {
            "address": address, "num_cpus": num_cpus, "num_gpus": num_gpus,
            "resources": resources, "object_store_memory": object_store_memory,
            "namespace": namespace,
        }  # fmt: skip
        check_values({**options, **named})
        env = env_vars(runtime_env) if runtime_env is not None else ()
        namespace = checks.namespace(namespace)
        overrides = {} if _joins_started(address) else OVERRIDES
        timers = {**(options.get("timers") or {}), **overrides.get("timers", {})}
        options.update(overrides, **({"timers": timers} if timers else {}))
        options.pop("address", None)
        address = _address_to_join(address, overrides)
        backend = options.pop("backend", None) or backend or "local"
        known = backends()
        if backend == "ray":
            raise ValueError(
                f"a driver on Ray is a process of its own: start it with {ON_RAY}=1 in its"
                " environment"
            )
        if backend not in known:
            raise ValueError(f"no backend {backend!r}; there are {', '.join(sorted(known))}")
        if num_cpus is not None:
            options.setdefault("cpus_per_node", num_cpus)
        if object_store_memory is not None:
            options["object_store_memory"] = int(
                checks.amount("object_store_memory", object_store_memory)
            )
        more = checks.amounts("resources", resources or {})
        if num_gpus is not None:
            more["GPU"] = checks.amount("num_gpus", num_gpus)
        if more:
            options["more_resources"] = more
        if address not in (None, "", "local"):
            options["address"] = checks.text("address", address)
        made = known[backend](**options)
        if overrides and backend != "sim" and "address" not in options:
            global started_by
            started_by = os.getpid()
        made.describe_job(namespace, env)
        atexit.register(_at_exit, made, os.getpid())
        try:
            for called in on_connect:
                called(made)
        except BaseException:
            # Such as a fault plan that is not for this backend: nobody has the session to end it.
            shutdown()
            raise
        return made


def _joins_started(given: str | None) -> bool:
    """Whether an address may be of the cluster that a parent process started with `OVERRIDES`."""
    return given not in (None, "", "local") and started_by not in (0, os.getpid())


def _address_to_join(given: str | None, overrides: Mapping[str, Any]) -> str | None:
    """Return the address that `init` joins, given the program's; None: it starts a cluster.

    The command line of `raytwin exec` overrides the program's address, and prints so. With options
    for a new cluster, ``"auto"`` means that cluster.
    """
    if not overrides:
        return given or os.environ.get(ADDRESS)
    address: str | None = overrides.get("address", "local" if given == "auto" else given)
    if given and given != address:
        print(
            f"raytwin: the script's address {given!r} is {address!r} for the options"
            " of the command line",
            file=sys.stderr,
        )
    return address


def _at_exit(made: Backend, pid: int) -> None:
    # A forked child must not end its parent's cluster.
    if connected() is made and os.getpid() == pid:
        _shutdown(made)


def shutdown() -> None:
    """End the cluster that this driver started, or leave the one that it joined.

    Does nothing if no cluster is connected. Raises RuntimeError on a thread that a simulated
    program has started.
    """
    backend = connected()
    if backend is not None:
        check()
        # The registration refers to the backend, and would keep it until the program ends.
        atexit.unregister(_at_exit)
        _shutdown(backend)


def _shutdown(backend: Backend) -> None:
    set_current(None)
    backend.shutdown()


def is_initialized() -> bool:
    """Whether a cluster is connected."""
    return connected() is not None


def nodes() -> list[dict[str, Any]]:
    """Return a row per node that ever joined.

    Keys as in Ray: ``NodeID``, ``Alive``, ``NodeManagerAddress``,
    ``NodeManagerHostname``, ``NodeManagerPort``, ``NodeName``, ``Resources``,
    ``Labels`` (always empty) and ``DeathReason`` (a text).
    Like `cluster_resources`, `available_resources` and `timeline` it starts no cluster,
    and raises RaySystemError if there is none.
    """
    return [
        {
            "NodeID": str(row["node"]),
            "Alive": row["alive"],
            "alive": row["alive"],
            "NodeManagerAddress": row["host"],
            "NodeManagerHostname": row["host"],
            "NodeName": row["host"],
            "Labels": {},
            "NodeManagerPort": row["port"],
            "Resources": row["resources"],
            "DeathReason": row["reason"],
        }
        for row in present().query("nodes")
    ]


def cluster_resources() -> dict[str, float]:
    """Return the total resources of all living nodes.

    Resources that placement groups have reserved count twice: under their own names, and under
    their names in the group (``CPU_group_<id>``), whose free amounts `available_resources` has.
    """
    backend = present()
    rows = [row["resources"] for row in backend.query("nodes") if row["alive"]]
    for group, _, bundles, nodes, *_ in backend.query("groups_there"):
        rows += [group_resources(bundles[index], group, index) for index in map(int, nodes)]
    return _sum(rows)


def _sum(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for row in rows:
        for name, amount in row.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def available_resources() -> dict[str, float]:
    """Return the total free resources of all living nodes, without used-up ones."""
    total = _sum(free for _, free in present().query("available"))
    return {name: amount for name, amount in total.items() if amount}


def timeline(filename: str | None = None) -> list[dict[str, Any]] | None:
    """Return the run as Chrome trace events, or write them to a file.

    The module `trace` describes them: executed ranges (a process per
    node, a thread per worker), transfers, placements, failures; ``ts`` and ``dur`` in
    microseconds.
    When a node dies, the trace loses the ranges that ran there and the transfers to it,
    but not its placements and failures.
    With a file name it writes the events as JSON, which opens in Perfetto, and
    returns None.
    """
    import json

    from raytwin.runtime.api.trace import Recording

    events = Recording.of(present().query).events()
    if filename is None:
        return events
    with open(filename, "w", encoding="utf-8") as file:
        json.dump(events, file)
    return None


# Another thread may have started a cluster meanwhile, which `init` then returns.
register_start(functools.partial(init, ignore_reinit_error=True))
