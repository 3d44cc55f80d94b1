"""From checked options to the demand and the extra of a `TaskSpec`."""

from __future__ import annotations

from typing import Any

from raytwin.runtime.api.options.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from raytwin.runtime.api.options.task_options import TaskOptions
from raytwin.runtime.control.core.group_resources import demand_in
from raytwin.runtime.control.core.resources import UNIT, parse_demand
from raytwin.runtime.control.messages import TaskExtra
from raytwin.runtime.control.scheduling.strategies import SPREAD, affinity
from raytwin.runtime.session.session_references import SessionReferences
from raytwin.runtime.session.task_context import TaskContext

CAPTURE = "/capture"
ANY = b"*"
"""`TaskExtra.retry_on` for ``retry_exceptions=True``."""


def specify(
    references: SessionReferences, context: TaskContext, options: TaskOptions, stream: int
) -> tuple[str, TaskExtra | None]:
    """Return the demand and the extra of a task that is submitted now.

    The task inherits environment variables and a capturing placement group from the task that
    submits it. Raises ValueError for a node's ID that is none and for a placement group that
    cannot hold the task.
    """
    inherited = context.inherited()
    if options.plain and not stream and inherited is None:
        return options.demand, None
    extra = TaskExtra(stream=stream)
    demand = options.demand
    env = dict(options.env_vars)
    if inherited is not None:
        env = {**dict(inherited.env), **env}
    extra.env = tuple(sorted(env.items()))
    extra.retry_on = retry_on(references, options.retry_exceptions)
    strategy = options.scheduling_strategy
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        if not strategy.node_id.isdecimal():
            raise ValueError(
                f"{strategy.node_id!r} is no node's ID; nodes() and"
                " get_runtime_context().get_node_id() tell them"
            )
        extra.strategy = affinity(int(strategy.node_id), strategy.soft)
    elif isinstance(strategy, PlacementGroupSchedulingStrategy):
        if not strategy.is_empty:
            _into_group(strategy, options.demand, extra)
            demand = demand_in(
                demand, extra.group.partition("/")[0], strategy.placement_group_bundle_index
            )
    elif strategy == SPREAD:
        extra.strategy = SPREAD
    elif inherited is not None and inherited.group.endswith(CAPTURE):
        extra.group = inherited.group
        demand = demand_in(demand, extra.group.removesuffix(CAPTURE), -1)
    return demand, extra


def _into_group(strategy: PlacementGroupSchedulingStrategy, demand: str, extra: TaskExtra) -> None:
    """Check a task's place in a group. Raises ValueError if it can never run there."""
    group, index = strategy.placement_group, strategy.placement_group_bundle_index
    assert group is not None, "it is in no group"
    bundles = group.bundle_specs
    if not -1 <= index < len(bundles):
        raise ValueError(f"the placement group has bundles 0 to {len(bundles) - 1}, not {index}")
    candidates = bundles if index < 0 else bundles[index : index + 1]
    needed = parse_demand(demand)
    if not any(all(b.get(n, 0.0) * UNIT >= units for n, units in needed) for b in candidates):
        raise ValueError(f"no bundle of the placement group has what the task needs ({demand})")
    extra.group = group.id.hex()
    if strategy.placement_group_capture_child_tasks:
        extra.group += CAPTURE


def retry_on(references: SessionReferences, classes: Any) -> bytes:
    """Return the exception classes that a task is retried for, serialized; empty for none."""
    if classes is True:
        return ANY
    if not classes:
        return b""
    return references.dumps(classes)
