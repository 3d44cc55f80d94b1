"""What a node and the global scheduler remember for the timeline: flat rows, bounded.

`RangeLog`, of the ranges that ran on a node; `TransferLog`, of large objects that came
to it; `PlacementLog`, of what the global scheduler gave to which node. The columns are
in `queries`. A row holds IDs and numbers alone, no arguments and no values; rows are
made when the work they tell of is over, and cost one tuple each.

A range's inputs count like ranges, since a range may have any number of them: together
the last ``timeline_ranges_max`` are kept. The rows of a node that dies are gone with it; what
the global scheduler placed there, and its events at the GCS, are not.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import RangeResult, TaskSpec, Timing

TASK, ACTOR, CALL, REPLAY = "task", "actor", "call", "replay"
"""What a range was: an actor's creation is ``ACTOR``, a call repeated to rebuild it
``REPLAY``."""
UNKNOWN_S = -1.0
TRANSFERS_MAX = 10_000
AGAIN_MAX = 10_000


class RangeLog:
    """The ranges that ran on one node."""

    def __init__(self, ctx: Context, node: int, ranges_max: int) -> None:
        self._ctx = ctx
        self._node = node
        self._max = ranges_max
        self._rows: deque[tuple[Any, ...]] = deque()
        self._size = 0
        """Rows and their inputs."""
        self._accepted: BoundedMap[bytes, float] = BoundedMap(2 * ranges_max)
        """When the node took an array's first range, of those that may still run."""
        self._again: BoundedMap[tuple[bytes, int], int] = BoundedMap(AGAIN_MAX)
        """How often this node has queued an element again."""

    def accepted(self, spec: TaskSpec) -> None:
        """The node has taken a range: from now on it waits."""
        if spec.array not in self._accepted:
            self._accepted[spec.array] = self._ctx.now()

    def again(self, array: bytes, index: int) -> None:
        """An element has run, or begun to, and is queued once more on this node."""
        key = (array, index)
        self._again[key] = self._again.get(key, 0) + 1

    def ran(
        self, worker: int, timing: Timing, spec: TaskSpec, result: RangeResult, kind: str = TASK
    ) -> None:
        """Remember a range that ran on a worker; `result` says which part of `spec`."""
        array, start = (spec if result.calls and kind is TASK else result).array, result.start
        since_s = UNKNOWN_S
        if kind is TASK:
            single = spec.first < 0  # else more of the array may follow
            since_s = (self._accepted.pop if single else self._accepted.get)(array, UNKNOWN_S)
        extra = spec.extra
        attempt = 0
        if extra is not None:
            attempt = extra.attempt if extra.actor is None else extra.actor.incarnation
        if self._again:
            attempt += self._again.get((array, start), 0)
        deps = spec.deps if len(spec.deps) < self._max else ()
        row = (
            timing.name, self._node, worker, timing.start_s, timing.elapsed_s, timing.count,
            array, start, attempt, kind, result.status, since_s, deps,
        )  # fmt: skip
        self._rows.append(row)
        self._size += 1 + len(deps)
        while self._size > self._max:
            self._size -= 1 + len(self._rows.popleft()[-1])

    def rows(self) -> list[list[Any]]:
        """Return the rows of ``timeline``, oldest first."""
        return [list(row) for row in self._rows]


class TransferLog:
    """The large objects that were copied to one node's memory."""

    def __init__(self, ctx: Context, node: int) -> None:
        self._ctx = ctx
        self._node = node
        self._rows: deque[tuple[Any, ...]] = deque(maxlen=TRANSFERS_MAX)

    def arrived(self, source: int, elapsed_s: float, size: int, oid: bytes) -> None:
        """An object is here; `source` is this node if it came from its disk."""
        self._rows.append((self._node, source, self._ctx.now() - elapsed_s, elapsed_s, size, oid))

    def rows(self) -> list[list[Any]]:
        """Return the rows of ``transfers``, oldest first."""
        return [list(row) for row in self._rows]


class PlacementLog:
    """What the global scheduler has placed."""

    def __init__(self, ctx: Context, ranges_max: int) -> None:
        self._ctx = ctx
        self._rows: deque[tuple[float, str, bytes, int, int, int, str]] = deque(maxlen=ranges_max)

    def placed(self, spec: TaskSpec, node: int) -> None:
        """A range, or an actor's creation, goes to a node."""
        now_s = self._ctx.now()
        self._rows.append((now_s, spec.name, spec.array, spec.start, spec.count, node, spec.owner))

    def rows(self) -> list[list[Any]]:
        """Return the rows of ``placements``, oldest first."""
        return [list(row) for row in self._rows]
