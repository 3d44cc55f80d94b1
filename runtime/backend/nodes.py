"""From what `init` is asked for to the resources and settings of each node."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import fields

from runtime.api.checks import INTEGER_MAX, amount, amounts, integer, text
from runtime.control.config import Config
from runtime.control.resources import format_demand

FIRST_DRIVER = "driver:0.0"
"""The one that starts the cluster; workers of its node reach it without the node."""
_EXACT: dict[Any, Callable[[str, Any], Any]] = {
    int: lambda name, given: integer(name, given, -INTEGER_MAX),
    float: amount,
    str: text,
    bool: lambda name, given: bool(given),
}
"""How a setting of a type is checked."""
THREADS_MAX = 256
STREAMS_MAX = 64


def node_resources(
    nodes: int | Sequence[Mapping[str, float]],
    cpus_per_node: float | None,
    cpus_default: float,
    more: Mapping[str, float] | None = None,
) -> list[dict[str, float]]:
    """Return {resource: amount} for each node.

    `nodes` is how many, or what each has; `more` is added to every node.
    Raises ValueError for no nodes or an amount that is negative or too fine, TypeError
    for what is no number.
    """
    given: Any = nodes
    if isinstance(given, str) or not isinstance(given, Sequence):
        count = integer("nodes", given, -INTEGER_MAX)
        if count < 1:
            raise ValueError(f"a cluster of {count} nodes")
        cpus = cpus_default if cpus_per_node is None else amount("num_cpus", cpus_per_node)
        each: list[dict[str, float]] = [{"CPU": float(cpus)} for _ in range(count)]
    else:
        each = [_floats(amounts(f"nodes[{at}]", node)) for at, node in enumerate(given)]
    if not each:
        raise ValueError("a cluster of no nodes")
    further = _floats(amounts("resources", more or {}))
    for node in each:
        for name, number in further.items():
            node.setdefault(name, number)
        format_demand(node)
    return each


def _floats(given: dict[str, float]) -> dict[str, float]:
    return {name: float(number) for name, number in given.items()}


REPLICAS_MAX = 9
"""Of the GCS; a chain's answers take as many steps."""


def check_replicas(count: int) -> int:
    """Return the number of replicas of the GCS; raises ValueError for one that is none."""
    if not isinstance(count, int) or not 1 <= count <= REPLICAS_MAX:
        raise ValueError(f"gcs_replicas={count!r}: give a whole number from 1 to {REPLICAS_MAX}")
    return count


SHARDS_MAX = 16
"""Of the GCS; each is ``gcs_replicas`` processes."""


def check_shards(count: int) -> int:
    """Return the number of shards of the GCS; raises ValueError for one that is none."""
    if not isinstance(count, int) or not 1 <= count <= SHARDS_MAX:
        raise ValueError(f"gcs_shards={count!r}: give a whole number from 1 to {SHARDS_MAX}")
    return count


def check_storage(storage: object, memory_max: int) -> bool:
    """Return whether the GCS is durable; raises ValueError for options that do not fit."""
    if memory_max < 0:
        raise ValueError(f"gcs_memory_max={memory_max}: give a number of bytes, 0 for no limit")
    if storage is None and memory_max:
        raise ValueError("gcs_memory_max needs gcs_storage: the rest has to go somewhere")
    return storage is not None


def check_node(
    node: int, known: Container[int], removed: Container[int], spare_driver: bool
) -> None:
    """Raise ValueError unless something can be done to that node.

    With `spare_driver` not to node 0: the driver is a part of it.
    """
    if node not in known:
        raise ValueError(f"there is no node {node}")
    if node in removed:
        raise ValueError(f"node {node} was removed")
    if spare_driver and node == 0:
        raise ValueError("node 0 is the driver's own: it ends with the driver")


NO_ACTOR = "no actor is alive"
"""Why nothing can be done to one."""

NO_HEAD_AGAIN = (
    "without gcs_replicas, gcs_shards or gcs_storage the head does not start again, and the"
    " cluster ends with it"
)
"""Why it is not killed."""


def no_worker(node: int) -> str:
    """Return why nothing can be done to a worker of a node that has none."""
    return f"node {node} has no worker now"


def store_config(config: Config, store_copy_threads: int, fetch_streams: int) -> Config:
    """Return `config` with what `init` was told about the object store.

    Each setting is exactly of its type then. Raises TypeError for one that is not a
    number or string where it should be, ValueError for a number that makes no sense.
    """
    config = msgspec.structs.replace(
        config, store_copy_threads=store_copy_threads, fetch_streams=fetch_streams
    )
    exact = {f.name: _EXACT[f.type](f.name, getattr(config, f.name)) for f in fields(config)}
    config = msgspec.structs.replace(config, **exact)
    store_copy_threads, fetch_streams = config.store_copy_threads, config.fetch_streams
    if not 0 <= store_copy_threads <= THREADS_MAX:
        raise ValueError(
            f"store_copy_threads is {store_copy_threads}; give 1 to {THREADS_MAX},"
            " or 0 for as many as pay"
        )
    if not 1 <= fetch_streams <= STREAMS_MAX:
        raise ValueError(f"fetch_streams is {fetch_streams}; give 1 to {STREAMS_MAX}")
    return config
