"""Ranges that could run now, one first-in-first-out queue per job and demand: a *lane*.

Splitting is lazy: a range stays whole until a worker takes a part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from raytwin.runtime.control.core.ids import JOB_BYTES
from raytwin.runtime.control.core.task_ranges import cut, part_of
from raytwin.runtime.control.messages import CancelTask, TaskSpec

Lane = tuple[bytes, str]
"""A job and a demand."""


class ReadyQueue:
    """What waits for a worker; `size` counts elements, not ranges."""

    def __init__(self) -> None:
        self.size = 0
        self._queues: dict[Lane, deque[tuple[int, TaskSpec]]] = {}
        self._counts: dict[Lane, int] = {}
        self.begun: set[tuple[bytes, int]] = set()
        """Elements, as (array, index), that have begun on this node and are to run again."""
        self._arrivals = 0
        self._returns = 0

    def push(self, spec: TaskSpec) -> None:
        """Queue a range behind all others."""
        self._arrivals += 1
        self._queue(spec).append((self._arrivals, spec))

    def push_front(self, spec: TaskSpec) -> None:
        """Queue a range again that had left the queue already."""
        self._returns -= 1
        self._queue(spec).appendleft((self._returns, spec))

    def lanes(self) -> list[Lane]:
        """Return the lanes that wait, the one that waits longest first."""
        if len(self._queues) == 1:
            return list(self._queues)
        return sorted(self._queues, key=lambda lane: self._queues[lane][0][0])

    def has(self, lane: Lane) -> bool:
        """Whether anything of this lane waits."""
        return lane in self._queues

    def count(self, lane: Lane) -> int:
        """Return how many elements of this lane wait."""
        return self._counts.get(lane, 0)

    def peek(self, lane: Lane) -> TaskSpec | None:
        """Return the oldest range of a lane without taking it."""
        queue = self._queues.get(lane)
        return queue[0][1] if queue else None

    def head(self, lane: Lane) -> object:
        """Return what stands for the first of a lane; another object once something is taken."""
        return self._queues[lane][0]

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

    def take_some(
        self, lane: Lane, chosen: Callable[[TaskSpec], bool], most: int
    ) -> list[TaskSpec]:
        """Take up to `most` elements of the chosen ranges of a lane; looks at every range."""
        found: list[TaskSpec] = []
        left: deque[tuple[int, TaskSpec]] = deque()
        for age, spec in self._queues[lane]:
            count = min(spec.count, most) if chosen(spec) else 0
            if count:
                most -= count
                found.append(part_of(spec, spec.start, count))
            if count < spec.count:
                rest = part_of(spec, spec.start + count, spec.count - count) if count else spec
                left.append((age, rest))
        gone = sum(spec.count for spec in found)
        self.size -= gone
        self._counts[lane] -= gone
        self._queues[lane] = left
        if not left:
            del self._queues[lane], self._counts[lane]
        return found

    def withdraw(self, chosen: Callable[[TaskSpec], bool]) -> list[TaskSpec]:
        """Take out every range that is chosen, and return them."""
        found: list[TaskSpec] = []
        for lane, queue in list(self._queues.items()):
            left = [(age, spec) for age, spec in queue if not chosen(spec)]
            if len(left) == len(queue):
                continue
            gone = [spec for _, spec in queue if chosen(spec)]
            found += gone
            count = sum(spec.count for spec in gone)
            self.size -= count
            self._counts[lane] -= count
            self._queues[lane] = deque(left)
            if not left:
                del self._queues[lane], self._counts[lane]
        return found

    def cancel(self, message: CancelTask) -> list[TaskSpec]:
        """Take out what a message cancels and return it; looks at every range."""
        found: list[TaskSpec] = []
        for lane, queue in list(self._queues.items()):
            kept: deque[tuple[int, TaskSpec]] = deque()
            for age, spec in queue:
                left, cancelled = cut(spec, message)
                kept.extend((age, part) for part in left)
                if cancelled is not None:
                    found.append(cancelled)
                    self.size -= cancelled.count
                    self._counts[lane] -= cancelled.count
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
