"""The ranges that a node remembers for the timeline: flat rows, bounded.

The columns are in `queries`. A row holds IDs and numbers alone, no arguments and no values; the
node makes it when the range has run, and it costs one tuple.

A range's inputs count like ranges, since a range may have any number of them: together
the last ``timeline_ranges_max`` are kept. The rows of a node that dies are lost with it; the global
scheduler's rows about its placements there, and the events at the GCS, remain.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import RangeResult, TaskSpec, Timing

TASK, ACTOR, CALL, REPLAY = "task", "actor", "call", "replay"
"""Kinds of ranges: an actor's creation is ``ACTOR``, a call repeated to rebuild it
``REPLAY``."""
UNKNOWN_S = -1.0
AGAIN_MAX = 10_000


class RangeLog:
    """The ranges that ran on one node."""

    def __init__(self, ctx: Context, node: int, ranges_max: int) -> None:
        self._ctx = ctx
        self._node = node
        self._max = ranges_max
        self.rows: deque[tuple[Any, ...]] = deque()
        """The rows of ``timeline``, oldest first."""
        self._size = 0
        """Rows and their inputs."""
        self._accepted: BoundedMap[bytes, float] = BoundedMap(2 * ranges_max)
        """By array that may still run: the time at which the node accepted its first range."""
        self._again: BoundedMap[tuple[bytes, int], int] = BoundedMap(AGAIN_MAX)
        """How often this node has queued an element again."""

    def accepted(self, spec: TaskSpec) -> None:
        """Note that the node has accepted a range, which waits from now on."""
        if spec.array not in self._accepted:
            self._accepted[spec.array] = self._ctx.now()

    def again(self, array: bytes, index: int) -> None:
        """Note that the node queues an element again, which has run or begun to."""
        key = (array, index)
        self._again[key] = self._again.get(key, 0) + 1

    def ran(
        self, worker: int, timing: Timing, spec: TaskSpec, result: RangeResult, kind: str = TASK
    ) -> None:
        """Add a row for a range that ran on a worker; `result` names the part of `spec`."""
        array, start = (spec if result.calls and kind is TASK else result).array, result.start
        since_s = UNKNOWN_S
        if kind is TASK:
            accepted = self._accepted
            if array in accepted:
                since_s = accepted[array]
                if spec.first < 0:  # else more of the array may follow
                    del accepted[array]
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
        self.rows.append(row)
        self._size += 1 + len(deps)
        while self._size > self._max:
            self._size -= 1 + len(self.rows.popleft()[-1])
