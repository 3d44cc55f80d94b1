"""Applying a plan to a session, whatever its backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raytwin.chaos.faults.injector import Injection
from raytwin.chaos.faults.local_injector import LocalInjector
from raytwin.chaos.faults.plan import Plan, PlanError
from raytwin.chaos.faults.sim_injector import SimInjector
from raytwin.runtime.api.current import on_connect


def attach(session: Any, plan: Plan) -> SimInjector | LocalInjector:
    """Apply a plan to a session's cluster from now on; returns the injector.

    Raises PlanError for a plan that the session's backend cannot follow.
    """
    if session.name == "sim":
        return SimInjector(session.cluster, plan)
    if session.name == "local":
        return LocalInjector(session.cluster, plan, lambda: _nodes(session))
    raise PlanError(f"no faults on backend {session.name!r}: possible: sim, local")


def _nodes(session: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = session.query("nodes")
    return rows


@contextmanager
def every_cluster(plan: Plan) -> Iterator[list[list[Injection]]]:
    """Apply the plan to each cluster that is started within, from its start on.

    Yields a list that grows by one list of injections for each cluster.
    """
    found: list[list[Injection]] = []

    def begin(session: Any) -> None:
        injector = attach(session, plan)
        found.append(injector.injections)
        session.before_shutdown.append(injector.stop)

    on_connect.append(begin)
    try:
        yield found
    finally:
        on_connect.remove(begin)
