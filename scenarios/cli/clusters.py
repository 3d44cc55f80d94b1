"""``raytwin start`` and ``raytwin status``: a cluster for several programs.

``start`` is the cluster's first driver and does nothing but wait; programs join as
further jobs. What their tasks print appears in its terminal.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from raytwin.runtime.api import lifecycle
from raytwin.runtime.api.backend import current
from raytwin.runtime.api.exceptions import RaySystemError
from raytwin.scenarios.core.scenario import UsageError


def keep(options: dict[str, Any], say: Callable[[str], None]) -> int:
    """Start a cluster, say where it is, and keep it until SIGINT or SIGTERM; return 0.

    Returns 1 if the cluster ends before that.
    """
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    session: Any
    try:
        session = lifecycle.init("local", backend="local", namespace="raytwin-start", **options)
    except (ValueError, TypeError, PermissionError) as error:
        raise UsageError(str(error)) from error
    with session:
        address = session.cluster_address
        say(
            f"a cluster is running at {address}: programs join it with "
            f"{lifecycle.ADDRESS}={address}"
            ' or init(address="auto"); Ctrl-C ends it'
        )
        while not ended.wait(0.5):
            session.cluster.poll()
            exited = session.cluster.exited
            # Without the first node no driver can join: it admits drivers, and is this driver's.
            if {"zygote", "head", f"node:{session.node}"} & exited.keys():
                how = ", ".join(f"{key}: {reason}" for key, reason in sorted(exited.items()))
                say(f"the cluster has ended ({how})")
                return 1
    return 0


def check_joinable(address: str, options: Mapping[str, Any]) -> None:
    """Raise UsageError if no program can join the cluster at an address with these options."""
    from raytwin.runtime.processes.client import joining

    chosen = [n for n, value in options.items() if (n, value) != ("backend", "local")]
    if chosen:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in chosen)
        raise UsageError(
            f"the cluster at {address!r} is there already: {names} cannot be chosen when joining"
            " it (--address local starts one)"
        )
    try:
        joining.check(address)
    except (ValueError, ConnectionError, PermissionError) as error:
        raise UsageError(str(error)) from error


def _share(name: str, free: float, total: float) -> str:
    """Return what is free of a resource, as a person reads it."""
    if name in ("memory", "object_store_memory"):
        return f"{free / 1e9:.3g}/{total / 1e9:.3g} GB {name}"
    return f"{free:g}/{total:g} {name}"


def status(address: str) -> tuple[str, list[list[str]], list[list[str]]]:
    """Return the address of a running cluster, rows of its nodes, and rows of its jobs.

    A node's row: number, state, then per resource what is free of what there is; then
    queued or running tasks. A job's: number, state, PID, namespace, what runs.
    Raises UsageError if there is no such cluster.
    """
    session: Any
    try:
        session = lifecycle.init(address)
    except (ValueError, ConnectionError, PermissionError, RaySystemError) as error:
        raise UsageError(str(error)) from error
    with session:
        loads = {row[0]: row[1:] for row in session.query("loads")}
        nodes = []
        for row in session.query("nodes"):
            queue, total, free = loads.get(row["node"], (0, row["resources"], {}))
            shares = [
                _share(name, free.get(name, 0), amount)
                for name, amount in sorted(total.items())
                if not name.startswith("node:")
            ]
            alive = "alive" if row["alive"] else f"dead: {row['reason']}"
            nodes.append([str(row["node"]), alive, ", ".join(shares), str(queue)])
        mine = current().job_number
        jobs = [
            [str(number), "runs" if alive else reason, str(pid), namespace, entrypoint]
            for number, _, pid, namespace, entrypoint, alive, reason in session.query("jobs")
            if number != mine
        ]
        return session.cluster_address, nodes, jobs
