"""Ranges that could run now, one queue per job and demand, a *lane*; oldest first.

Within a lane, the tasks of one function that are nested equally deep are a *class*. A class may be
closed for a while (see `blocked_tasks`): its ranges wait, and younger ones of other classes pass.

Splitting is lazy: a range stays whole until a worker takes a part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import merge
from itertools import islice

from raytwin.runtime.control.core.ids import JOB_BYTES
from raytwin.runtime.control.core.task_ranges import part_of, without
from raytwin.runtime.control.messages import TaskSpec

Lane = tuple[bytes, str]
"""A job and a demand."""
TaskClass = tuple[Lane, bytes, int]
"""A lane, a function, and a depth of nesting."""
_Queue = deque[tuple[int, TaskSpec]]
"""Ranges of one class, each with its age, which is less for an older one."""


def class_of(spec: TaskSpec) -> TaskClass:
    """Return the class of a range."""
    return (spec.array[:JOB_BYTES], spec.demand), spec.function, spec.depth


class ReadyQueue:
    """The ranges that wait for a worker; `size` counts elements, not ranges."""

    def __init__(self) -> None:
        self.size = 0
        self.closed: set[TaskClass] = set()
        """Classes of which no range may start."""
        self._lanes: dict[Lane, dict[TaskClass, _Queue]] = {}
        self._counts: dict[TaskClass, int] = {}
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
        if len(self._lanes) == 1:
            return list(self._lanes)
        return sorted(self._lanes, key=lambda lane: self._oldest(lane)[0])

    def has(self, lane: Lane) -> bool:
        """Whether this lane has ranges that may start."""
        return lane in self._lanes and (not self.closed or self._first(lane) is not None)

    def waits(self, task_class: TaskClass) -> bool:
        """Whether there are ranges of a class."""
        return task_class in self._counts

    def count(self, lane: Lane) -> int:
        """Return the number of elements in this lane that may start."""
        count = 0
        for each in self._lanes.get(lane, ()):
            if each not in self.closed:
                count += self._counts[each]
        return count

    def peek(self, lane: Lane) -> TaskSpec | None:
        """Return the oldest range of a lane that may start, without taking it."""
        first = self._first(lane)
        return None if first is None else self._lanes[lane][first][0][1]

    def head(self, lane: Lane) -> tuple[int, int]:
        """Return an identifier of the first element of a lane, whether it may start or not."""
        age, spec = self._oldest(lane)
        return age, spec.start

    def first(self, lane: Lane, most: int) -> list[TaskSpec]:
        """Return up to `most` ranges of a lane, the oldest first, without taking them."""
        ranges = merge(*self._lanes[lane].values(), key=_age)
        return [spec for _, spec in islice(ranges, most)]

    def take(self, lane: Lane, most: int) -> TaskSpec:
        """Take up to `most` elements from the oldest range of a lane that may start."""
        first = self._first(lane)
        assert first is not None, "no range of the lane may start"
        queue = self._lanes[lane][first]
        age, spec = queue[0]
        if spec.count <= most:
            queue.popleft()
            if not queue:
                del self._lanes[lane][first]
                if not self._lanes[lane]:
                    del self._lanes[lane]
        else:
            rest = part_of(spec, spec.start + most, spec.count - most)
            spec = part_of(spec, spec.start, most)
            queue[0] = (age, rest)
        self.size -= spec.count
        left = self._counts[first] - spec.count
        if left:
            self._counts[first] = left
        else:
            del self._counts[first]
        return spec

    def take_out(self, taken: Callable[[TaskSpec], TaskSpec | None]) -> list[TaskSpec]:
        """Take the part of each range that `taken` returns, None for nothing; looks at all."""
        found: list[TaskSpec] = []
        for lane, queues in list(self._lanes.items()):
            ranges = list(merge(*queues.values(), key=_age))
            for task_class in queues:
                self.size -= self._counts.pop(task_class)
            del self._lanes[lane]
            for age, spec in ranges:
                part = taken(spec)
                if part is not None:
                    found.append(part)
                for rest in (spec,) if part is None else without(spec, part):
                    self._queue(rest).append((age, rest))
        return found

    def _queue(self, spec: TaskSpec) -> _Queue:
        """Return the queue for a range, which is about to be in it."""
        task_class = class_of(spec)
        self.size += spec.count
        self._counts[task_class] = self._counts.get(task_class, 0) + spec.count
        queues = self._lanes.get(task_class[0])
        if queues is None:
            queues = self._lanes[task_class[0]] = {}
        queue = queues.get(task_class)
        if queue is None:
            queue = queues[task_class] = deque()
        return queue

    def _first(self, lane: Lane) -> TaskClass | None:
        """Return the class with the oldest range of a lane that may start."""
        queues = self._lanes.get(lane)
        if queues is None:
            return None
        if len(queues) == 1 and not self.closed:
            return next(iter(queues))  # the common case
        open_ones = [each for each in queues if each not in self.closed]
        if len(open_ones) > 1:
            return min(open_ones, key=lambda each: queues[each][0][0])
        return open_ones[0] if open_ones else None

    def _oldest(self, lane: Lane) -> tuple[int, TaskSpec]:
        """Return the oldest range of a lane with its age."""
        queues = self._lanes[lane].values()
        if len(queues) == 1:
            return next(iter(queues))[0]  # the common case
        return min((queue[0] for queue in queues), key=_age)


def _age(aged: tuple[int, TaskSpec]) -> int:
    return aged[0]
