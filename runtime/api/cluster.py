"""Starting, asking and ending a cluster."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

from runtime.api import state
from runtime.backend.protocol import Backend

_starting = threading.RLock()
"""Held while a cluster starts: of several threads' first calls, one starts it."""


def init(
    *,
    backend: str = "local",
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: dict[str, float] | None = None,
    ignore_reinit_error: bool = False,
    **options: Any,
) -> Backend:
    """Start a cluster and connect this program to it as its driver.

    Every backend takes:

    - ``nodes``: how many (default 1), or a list with one ``{resource: amount}``
      per node; the driver lives on node 0;
    - ``cpus_per_node`` (or ``num_cpus``, Ray's name): default this machine's
      cores;
    - ``num_gpus``, ``resources``: further resources of every node;
    - ``policy``: the scheduling policy's name (default ``bottom-up``) or import
      path;
    - ``seed``: of the control plane's random choices (default 0);
    - ``gcs_replicas``: processes that hold the GCS's state as a chain (default
      1: the head process does);
    - ``gcs_storage``: a file in which the GCS keeps its state, so that a head
      that is killed comes back with it (not together with several replicas);
    - ``task_history``: whether the GCS keeps a row of every task that finished,
      of which it holds ``gcs_memory_max`` bytes in memory (default 0: all) and
      the rest in ``gcs_storage``.

    ``local`` also takes ``object_store_memory`` (bytes per node) and
    ``journal`` (a directory for logs of every control-plane turn); ``sim``
    takes ``profile`` (a name or a path), ``cores_per_host`` and
    ``nodes_per_host``.

    Raises RuntimeError if a cluster is connected already, ValueError or
    TypeError for bad options.
    """
    with _starting:
        connected = state.connected()
        if connected is not None:
            if ignore_reinit_error:
                return connected
            raise RuntimeError("a cluster is connected already: call shutdown() first")
        backends = state.backends()
        if backend not in backends:
            raise ValueError(f"no backend {backend!r}; there are {', '.join(sorted(backends))}")
        if num_cpus is not None:
            options.setdefault("cpus_per_node", num_cpus)
        more = {**(resources or {}), **({} if num_gpus is None else {"GPU": num_gpus})}
        if more:
            options["more_resources"] = more
        made = backends[backend](**options)
        atexit.register(_at_exit, made, os.getpid())
        for told in state.on_connect:
            told(made)
        return made


def _at_exit(made: Backend, pid: int) -> None:
    # A forked child must not end its parent's cluster.
    if state.connected() is made and os.getpid() == pid:
        shutdown()


def shutdown() -> None:
    """End the cluster of this driver; does nothing if there is none."""
    connected = state.connected()
    if connected is not None:
        state.set_current(None)
        connected.shutdown()


def is_initialized() -> bool:
    """Whether a cluster is connected."""
    return state.connected() is not None


def nodes() -> list[dict[str, Any]]:
    """Return a row per node that ever joined.

    Keys as in Ray: ``NodeID``, ``Alive``, ``NodeManagerAddress``,
    ``NodeManagerPort``, ``Resources``; and ``DeathReason``.
    """
    return [
        {
            "NodeID": str(row["node"]),
            "Alive": row["alive"],
            "NodeManagerAddress": row["host"],
            "NodeManagerPort": row["port"],
            "Resources": row["resources"],
            "DeathReason": row["reason"],
        }
        for row in state.current().query("nodes")
    ]


def cluster_resources() -> dict[str, float]:
    """Return what all living nodes have together."""
    total: dict[str, float] = {}
    for row in state.current().query("nodes"):
        if row["alive"]:
            for name, amount in row["resources"].items():
                total[name] = total.get(name, 0.0) + amount
    return total


def timeline(filename: str | None = None) -> list[dict[str, Any]] | None:
    """Return what ran where and when as Chrome trace events, or write them.

    One complete event per executed range: ``ts`` and ``dur`` in microseconds,
    a process per node, a thread per worker. With a file name the events are
    written as JSON (it opens in Perfetto) and None is returned.
    """
    import json

    events: list[dict[str, Any]] = [
        {
            "name": name,
            "cat": "task",
            "ph": "X",
            "ts": start_s * 1e6,
            "dur": elapsed_s * 1e6,
            "pid": f"node {node}",
            "tid": f"worker {worker}",
            "args": {"tasks": count},
        }
        for name, node, worker, start_s, elapsed_s, count in state.current().query("timeline")
    ]
    if filename is None:
        return events
    with open(filename, "w", encoding="utf-8") as file:
        json.dump(events, file)
    return None
