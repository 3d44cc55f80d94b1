"""Actions and probes for Chaos Toolkit experiments, which name them by import path.

An experiment (https://chaostoolkit.org) calls a function with plain arguments::

    {"type": "action", "name": "lose a node",
     "provider": {"type": "python", "module": "raytwin.chaos.chaostoolkit",
                  "func": "kill_node", "arguments": {"node": 1}}}

They work on the cluster of the process in which they run, which `start_cluster` starts in that of
`chaos run`. Probes return a number or a truth value, for the tolerance of the steady-state
hypothesis. What is wrong raises an exception, which fails the experiment's activity: ValueError or
PlanError for what cannot be done, RaySystemError without a cluster. The steps of a plan come later
than `apply_plan`: what was wrong with them raises in the probe `plan_carried_out`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import raytwin
from raytwin.chaos.faults.cluster_operations import CLUSTERS, PROXIED
from raytwin.chaos.faults.injector import LocalInjector, SimInjector, attach
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.plan_files import read
from raytwin.chaos.faults.proxied_links import proxied
from raytwin.chaos.faults.targets import Link
from raytwin.runtime.api.backend import present
from raytwin.runtime.containers.default_disk import limited_disks

__all__ = [
    "add_node", "apply_plan", "end_cluster", "event_count", "inject", "kill_actor", "kill_head",
    "kill_node", "kill_worker", "nodes_alive", "pause_node", "plan_carried_out", "remove_node",
    "restart_node", "resume_node", "start_cluster", "tasks_are_right",
]  # fmt: skip
"""The names that Chaos Toolkit discovers."""

_injectors: list[SimInjector | LocalInjector] = []
"""Of the plans that were applied to the cluster."""
_broken: dict[Link, None] = {}
"""The links that `inject` has broken."""


# -- actions -----------------------------------------------------------------------


def start_cluster(
    backend: str = "local",
    nodes: int = 3,
    cpus_per_node: int = 2,
    options: Mapping[str, Any] | None = None,
) -> bool:
    """Start a cluster with options of `init`, unless one is connected; return True.

    As the first probe of the hypothesis, with the tolerance true, it starts the cluster before the
    others look at it. The links of a cluster of processes or containers lead by way of Toxiproxy,
    so that the experiment can break them.
    """
    if not raytwin.is_initialized():
        _forget()
    given = {"nodes": nodes, "cpus_per_node": cpus_per_node, **(options or {})}
    with proxied(*PROXIED), limited_disks():
        raytwin.init(backend=backend, ignore_reinit_error=True, **given)
    return True


def end_cluster() -> None:
    """End the cluster; do nothing if there is none."""
    raytwin.shutdown()
    _forget()


def _forget() -> None:
    """Forget what was done to a cluster that has ended."""
    _injectors.clear()
    _broken.clear()


def inject(action: str, target: str, parameters: Mapping[str, Any] | None = None) -> str:
    """Carry out a step of a fault plan at once; return it in words.

    Raises ValueError for a step that takes time, which a plan can have: see `apply_plan`.
    """
    step = Step(action, target, 0.0, parameters=parameters or {})
    cluster = _cluster()
    broken = {**_broken, **{link: None for each in _injectors for link in each.broken}}
    parts = step.target.expand(step.action, step.parameters, tuple(broken))
    if any(delay_s for delay_s, *_ in parts):
        raise ValueError(f"{step} is more than one moment: give it to apply_plan, as a plan's step")
    Plan([step]).check_backend(present().name)
    for _, part, on, given in parts:
        on.apply(cluster, part, given)
        if isinstance(on, Link):
            for record in (_broken, *(each.broken for each in _injectors)):
                record.pop(on, None)
            if part != "heal":
                _broken[on] = None
    return step.sentence().partition(", ")[2]


def apply_plan(plan: str | dict[str, Any]) -> list[str]:
    """Begin to apply a plan, which goes on meanwhile; return its sentences.

    The plan is a file, a name (`raytwin plan` lists them), or data. `plan_carried_out` says whether
    all of it could be done. Raises ValueError if the plan breaks links and the cluster, which
    `start_cluster` has not started, has no proxies on them.
    """
    cluster = _cluster()
    found = read(plan)
    session: Any = present()
    if session.name in found.proxied_on and not cluster.proxied:
        raise ValueError(
            "the plan breaks links, and this cluster was started without proxies on them: let the"
            " experiment begin with start_cluster"
        )
    injector = attach(session, found)
    session.before_shutdown.append(injector.stop)
    _injectors.append(injector)
    return found.sentences()


def kill_node(node: int) -> str:
    """End a node and its workers at once."""
    return inject("kill", f"node:{node}")


def restart_node(node: int) -> str:
    """Start a node again, empty; kill it first if it lives."""
    return inject("restart", f"node:{node}")


def pause_node(node: int) -> str:
    """Suspend a node and its workers."""
    return inject("pause", f"node:{node}")


def resume_node(node: int) -> str:
    """Resume a node and its workers."""
    return inject("resume", f"node:{node}")


def add_node(resources: Mapping[str, float] | None = None) -> str:
    """Start one more node, by default with the resources of node 0."""
    return inject("add_node", "cluster", {"resources": dict(resources)} if resources else {})


def remove_node(node: int) -> str:
    """End a node for good."""
    return inject("remove_node", f"node:{node}")


def kill_worker(node: int, which: int = 0) -> str:
    """End the `which`-th oldest worker of a node, modulo their number."""
    return inject("kill", f"worker:{node}.{which}")


def kill_actor(which: int = 0) -> str:
    """End the process of the `which`-th actor, by node and age, modulo their number."""
    return inject("kill", f"actor:{which}")


def kill_head() -> str:
    """End the head's process; a new one starts where the cluster has `gcs_storage`."""
    return inject("kill", "head")


# -- probes ------------------------------------------------------------------------


def nodes_alive() -> int:
    """Return the number of living nodes."""
    return sum(row["Alive"] for row in raytwin.nodes())


def plan_carried_out() -> bool:
    """Return whether every step of the plans so far was carried out.

    Raises ValueError for a step that was impossible.
    """
    for injector in _injectors:
        for each in injector.injections:
            if each.error:
                raise ValueError(f"{each.step} was not possible: {each.error}")
    return all(injector.finished for injector in _injectors)


def event_count(kind: str) -> int:
    """Return how many events of a kind the GCS has logged, such as ``node_died``."""
    count: int = present().query("event_counts").get(kind, 0)
    return count


def tasks_are_right(count: int = 100, timeout_s: float = 60.0) -> bool:
    """Return whether `count` tasks come back in time, each with its value.

    A task that is lost counts as wrong, one that runs again does not.
    """
    present()
    square = raytwin.remote(max_retries=-1)(_square)
    try:
        values = raytwin.get(square.map(range(count)), timeout=timeout_s)
    except raytwin.exceptions.RayError:
        return False
    return bool(values == [n * n for n in range(count)])


def _square(n: int) -> int:
    return n * n


def _cluster() -> Any:
    """Return the calling process's cluster. Raises ValueError if another program started it."""
    session = present()
    cluster = getattr(session, "cluster", None)
    if cluster is None or session.name not in CLUSTERS:
        raise ValueError(
            "this program has joined its cluster, and only the one that started it can break it:"
            " let the experiment begin with start_cluster"
        )
    return cluster
