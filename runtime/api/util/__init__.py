"""``raytwin.util``: the part of ``ray.util`` that raytwin has.

These are libraries on top of tasks and actors, which use only the API itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from raytwin.runtime.api.backend import ObjectRef, current
from raytwin.runtime.api.lifecycle import nodes
from raytwin.runtime.api.modules import PUBLIC, missing
from raytwin.runtime.api.options import scheduling_strategies
from raytwin.runtime.api.runtime_context import get_runtime_context
from raytwin.runtime.api.tasks import RemoteFunction, get, wait
from raytwin.runtime.api.util.actor_pool import ActorPool
from raytwin.runtime.api.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

__all__ = [
    "ActorPool", "PlacementGroup", "as_completed", "get_current_placement_group",
    "get_node_ip_address",
    "get_placement_group", "list_named_actors", "map_unordered",
    "placement_group", "placement_group_table",
    "remove_placement_group", "scheduling_strategies",
]  # fmt: skip


def get_node_ip_address() -> str:
    """Return the address of the calling code's node."""
    node = current().node
    address: str = nodes()[node]["NodeManagerAddress"]
    return address


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """Return the names of this namespace's actors, or ``{"namespace", "name"}`` of all actors."""
    rows = current().query("names")
    if all_namespaces:
        return [{"name": name, "namespace": namespace} for namespace, name in rows]
    here = get_runtime_context().namespace
    return [name for namespace, name in rows if namespace == here]


def as_completed(
    refs: Sequence[ObjectRef], *, chunk_size: int = 10, yield_obj_refs: bool = False
) -> Iterator[Any]:
    """Yield values, or references to them, as they become ready.

    Fetches at most ``chunk_size`` values at once.
    """
    if chunk_size < 1:
        raise ValueError(f"a chunk of {chunk_size} values")
    left = list(refs)
    while left:
        wait(left, num_returns=1)
        # All references that are ready now, but at most a chunk.
        ready, left = wait(left, num_returns=min(chunk_size, len(left)), timeout=0)
        yield from ready if yield_obj_refs else get(ready)


def map_unordered(
    fn: RemoteFunction,
    items: Sequence[Any],
    *,
    backpressure_size: int | None = 100,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
) -> Iterator[Any]:
    """Yield ``fn``'s value for each item, or the reference to it, as it becomes ready.

    At most ``backpressure_size`` tasks run or wait at a time; None: all.
    """
    if backpressure_size is not None and backpressure_size < 1:
        raise ValueError(f"backpressure_size is at least 1, or None, not {backpressure_size}")
    coming = iter(items)
    left: list[ObjectRef] = []
    while True:
        for item in coming:
            left.append(fn.remote(item))
            if backpressure_size is not None and len(left) >= backpressure_size:
                break
        if not left:
            return
        wait(left, num_returns=1)
        ready, left = wait(left, num_returns=min(chunk_size, len(left)), timeout=0)
        yield from ready if yield_obj_refs else get(ready)


def __getattr__(name: str) -> Any:
    if f"util.{name}" in PUBLIC:
        raise AttributeError(f"module 'raytwin.util' has no {name!r} yet: import it first")
    raise AttributeError(missing(f"util.{name}"))
