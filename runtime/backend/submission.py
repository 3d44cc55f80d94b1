"""From checked options to what a `TaskSpec` says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.api.options import TaskOptions
from runtime.api.strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from runtime.control.messages import TaskExtra
from runtime.control.strategies import SPREAD, affinity

if TYPE_CHECKING:
    from runtime.backend.session import Session

ANY = b"*"
"""`TaskExtra.retry_on` for ``retry_exceptions=True``."""


def specify(session: Session, options: TaskOptions, stream: int) -> tuple[str, TaskExtra | None]:
    """Return the demand and the extra of a task that is submitted now.

    What the submitting task was given for its children comes from
    `Session.inherited`. Raises ValueError for a node or a placement group that
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
    extra.retry_on = _retry_on(session, options)
    strategy = options.scheduling_strategy
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        if not strategy.node_id.isdigit():
            raise ValueError(
                f"{strategy.node_id!r} is no node's ID; nodes() and"
                " get_runtime_context().get_node_id() tell them"
            )
        extra.strategy = affinity(int(strategy.node_id), strategy.soft)
    elif isinstance(strategy, PlacementGroupSchedulingStrategy):
        raise ValueError("raytwin has no placement groups yet")
    elif strategy == SPREAD:
        extra.strategy = SPREAD
    return demand, extra


def _retry_on(session: Session, options: TaskOptions) -> bytes:
    classes = options.retry_exceptions
    if classes is True:
        return ANY
    if not classes:
        return b""
    return session.world.serialize(classes).to_bytes()
