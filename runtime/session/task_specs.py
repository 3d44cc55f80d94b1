"""From checked options to what a `TaskSpec` says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from raytwin.runtime.api.exceptions import PendingCallsLimitExceeded
from raytwin.runtime.api.options.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from raytwin.runtime.api.options.task_options import TaskOptions, exception_classes
from raytwin.runtime.control.core.group_resources import demand_in
from raytwin.runtime.control.core.resources import UNIT, parse_demand
from raytwin.runtime.control.messages import TaskExtra
from raytwin.runtime.control.scheduling.strategies import SPREAD, affinity

if TYPE_CHECKING:
    from raytwin.runtime.api.actor_call import ActorCall
    from raytwin.runtime.session.submitting import Submitting

CAPTURE = "/capture"
ANY = b"*"
"""`TaskExtra.retry_on` for ``retry_exceptions=True``."""


def specify(session: Submitting, options: TaskOptions, stream: int) -> tuple[str, TaskExtra | None]:
    """Return the demand and the extra of a task that is submitted now.

    What the submitting task was given for its children comes from
    `Numbering.inherited`. Raises ValueError for a node or a placement group that
    cannot be.
    """
    inherited = session.inherited()
    if options.plain and not stream and inherited is None:
        return options.demand, None
    extra = TaskExtra(stream=stream)
    demand = options.demand
    env = dict(options.env_vars)
    if inherited is not None:
        env = {**dict(inherited.env), **env}
    extra.env = tuple(sorted(env.items()))
    extra.retry_on = _retry_on(session, options.retry_exceptions)
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


def pending_calls(session: Submitting, call: ActorCall) -> list[bytes]:
    """Return where a call that is made now is to be noted, if its actor limits them.

    Also completes what the call says of the errors that it is tried again for. Raises
    PendingCallsLimitExceeded.
    """
    if call.retry_exceptions and not call.extra.retry_on:
        call.extra = replace(
            call.extra, retry_on=_retry_on(session, exception_classes(call.retry_exceptions))
        )
    if not call.pending_max:
        return []
    entries = session.client.entries
    noted = session.calls_pending.setdefault(call.actor, [])
    noted[:] = [a for a in noted if (entry := entries.get(a)) is not None and entry.missing]
    if len(noted) >= call.pending_max:
        raise PendingCallsLimitExceeded(
            f"{call.name}: {len(noted)} calls of this actor are pending, and max_pending_calls"
            f" is {call.pending_max}"
        )
    return noted


def _retry_on(session: Submitting, classes: Any) -> bytes:
    if classes is True:
        return ANY
    if not classes:
        return b""
    return session.dumps(classes)
