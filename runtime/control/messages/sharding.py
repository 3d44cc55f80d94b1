"""Between the shards of the GCS, and to them; see `shards`."""

from __future__ import annotations

from typing import Union

from msgspec import Struct

from raytwin.runtime.control.messages.common import TaskSpec


class LineageChanges(Struct, array_like=True, tag=155):
    """What arrays of other shards have to do with arrays here; see `shard_lineage`.

    Each is (change, array, its inputs here).
    """

    changes: list[tuple[int, bytes, tuple[bytes, ...]]]


class TasksPlaced(Struct, array_like=True, tag=156):
    """The global scheduler has chosen a node: log it, then assign it there.

    ``way``: the shards that are to have it next, the one that has its row last.
    """

    node: int
    incarnation: int
    tasks: list[TaskSpec]
    way: tuple[int, ...] = ()
    left: int = -1
    """As in `TaskUpdates`."""


class NodesSeen(Struct, array_like=True, tag=157):
    """A shard has heard of so many changes of nodes."""

    count: int


ShardMessage = Union[LineageChanges, TasksPlaced, NodesSeen]
