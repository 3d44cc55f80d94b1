"""Ranges that could run now, one first-in-first-out queue per job and demand: a *lane*.

Splitting is lazy: a range stays whole until a worker takes a part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from raytwin.runtime.control.core.ids import JOB_BYTES
from raytwin.runtime.control.core.task_ranges import part_of, without
from raytwin.runtime.control.messages import TaskSpec

Lane = tuple[bytes, str]
"""A job and a demand."""


class ReadyQueue:
    """The ranges that wait for a worker; `size` counts elements, not ranges."""

    def __init__(self) -> None:
        self.size = 0
        self._queues: dict[Lane, deque[tuple[int, TaskSpec]]] = {}
        self._counts: dict[Lane, int] = {}
        self._arrivals = 0
        self._returns = 0

    def push(self, spec: TaskSpec) -> None:
        """Queue a range behind all others."""
        self._arrivals += 1
        self._queue(spec).append((self._arrivals, spec))

    def push_front(self, spec: TaskSpec) -> None:
        """Queue a range again, before all others, that was taken before."""
        self._returns -= 1
        self._queue(spec).appendleft((self._returns, spec))

    def lanes(self) -> list[Lane]:
        """Return the lanes with ranges, in the order of their waiting time, longest first."""
        if len(self._queues) == 1:
            return list(self._queues)
        return sorted(self._queues, key=lambda lane: self._queues[lane][0][0])

    def has(self, lane: Lane) -> bool:
        """Whether this lane has ranges."""
        return lane in self._queues

    def count(self, lane: Lane) -> int:
        """Return the number of elements in this lane."""
        return self._counts.get(lane, 0)

    def peek(self, lane: Lane) -> TaskSpec | None:
        """Return the oldest range of a lane without taking it."""
        queue = self._queues.get(lane)
        return queue[0][1] if queue else None

    def head(self, lane: Lane) -> tuple[int, int]:
        """Return an identifier of the first element of a lane."""
        age, spec = self._queues[lane][0]
        return age, spec.start

    def first(self, lane: Lane, most: int) -> list[TaskSpec]:
        """Return up to `most` ranges of a lane, the oldest first, without taking them."""
        return [spec for _, spec in islice(self._queues[lane], most)]

    def take(self, lane: Lane, most: int) -> TaskSpec:
        """Take up to `most` elements from the oldest range of a lane."""
        queue = self._queues[lane]
        age, spec = queue[0]
        if spec.count <= most:
            queue.popleft()
            if not queue:
                del self._queues[lane]
        else:
            rest = part_of(spec, spec.start + most, spec.count - most)
            spec = part_of(spec, spec.start, most)
            queue[0] = (age, rest)
        self.size -= spec.count
        left = self._counts[lane] - spec.count
        if left:
            self._counts[lane] = left
        else:
            del self._counts[lane]
        return spec

    def take_out(self, taken: Callable[[TaskSpec], TaskSpec | None]) -> list[TaskSpec]:
        """Take the part of each range that `taken` returns, None for nothing; looks at all."""
        found: list[TaskSpec] = []
        for lane, queue in list(self._queues.items()):
            kept: deque[tuple[int, TaskSpec]] = deque()
            before = len(found)
            for age, spec in queue:
                part = taken(spec)
                if part is None:
                    kept.append((age, spec))
                else:
                    found.append(part)
                    kept.extend((age, rest) for rest in without(spec, part))
            gone = sum(part.count for part in found[before:])
            self.size -= gone
            self._counts[lane] -= gone
            self._queues[lane] = kept
            if not kept:
                del self._queues[lane], self._counts[lane]
        return found

    def _queue(self, spec: TaskSpec) -> deque[tuple[int, TaskSpec]]:
        self.size += spec.count
        lane = (spec.array[:JOB_BYTES], spec.demand)
        self._counts[lane] = self._counts.get(lane, 0) + spec.count
        queue = self._queues.get(lane)
        if queue is None:
            queue = self._queues[lane] = deque()
        return queue
