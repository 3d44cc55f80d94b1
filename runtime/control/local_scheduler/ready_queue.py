"""Ranges that could run now, one queue per job and demand, a *lane*; oldest first.

Within a lane, the tasks of one function that are nested equally deep are a *class*. A class may be
closed for a while (see `blocked_tasks`): its ranges wait, and younger ones of other classes pass.

Splitting is lazy: a range stays whole until a worker takes a part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice

from raytwin.runtime.control.core.ids import JOB_BYTES
from raytwin.runtime.control.core.task_ranges import part_of, without
from raytwin.runtime.control.messages import TaskSpec

Lane = tuple[bytes, str]
"""A job and a demand."""
TaskClass = tuple[Lane, bytes, int]
"""A lane, a function, and a depth of nesting."""
_Key = tuple[bytes, int]
"""A function and a depth of nesting tell the classes of one lane apart."""


def class_of(spec: TaskSpec) -> TaskClass:
    """Return the class of a range."""
    return (spec.array[:JOB_BYTES], spec.demand), spec.function, spec.depth


class _Class:
    """The ranges of one class, each with its age, which is less for an older one."""

    __slots__ = ("aged", "count", "name")

    def __init__(self, name: TaskClass) -> None:
        self.name = name
        self.aged: deque[tuple[int, TaskSpec]] = deque()
        self.count = 0
        """The number of elements."""


class ReadyQueue:
    """The ranges that wait for a worker; `size` counts elements, not ranges."""

    def __init__(self) -> None:
        self.size = 0
        self.closed: set[TaskClass] = set()
        """Classes of which no range may start."""
        self._lanes: dict[Lane, dict[_Key, _Class]] = {}
        self._arrivals = 0
        self._returns = 0

    def push(self, spec: TaskSpec) -> None:
        """Queue a range behind all others."""
        self._arrivals += 1
        self._with(spec).append((self._arrivals, spec))

    def push_front(self, spec: TaskSpec) -> None:
        """Queue a range again, before all others, that was taken before."""
        self._returns -= 1
        self._with(spec).appendleft((self._returns, spec))

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
        lane, function, depth = task_class
        return (function, depth) in self._lanes.get(lane, ())

    def count(self, lane: Lane) -> int:
        """Return the number of elements in this lane that may start."""
        classes = self._lanes.get(lane)
        if classes is None:
            return 0
        if self.closed:
            return sum([each.count for each in classes.values() if each.name not in self.closed])
        found = 0
        for each in classes.values():  # mostly one
            found += each.count
        return found

    def peek(self, lane: Lane) -> TaskSpec | None:
        """Return the oldest range of a lane that may start, without taking it."""
        first = self._first(lane)
        return None if first is None else first.aged[0][1]

    def head(self, lane: Lane) -> tuple[int, int]:
        """Return an identifier of the first element of a lane, whether it may start or not."""
        age, spec = self._oldest(lane)
        return age, spec.start

    def first(self, lane: Lane, most: int) -> list[TaskSpec]:
        """Return up to `most` ranges of a lane, the oldest first, without taking them."""
        return [spec for _, spec in islice(self._by_age(lane), most)]

    def take(self, lane: Lane, most: int) -> TaskSpec:
        """Take up to `most` elements from the oldest range of a lane that may start."""
        first = self._first(lane)
        assert first is not None, "no range of the lane may start"
        age, spec = first.aged[0]
        if spec.count <= most:
            first.aged.popleft()
            if not first.aged:
                classes = self._lanes[lane]
                del classes[first.name[1:]]
                if not classes:
                    del self._lanes[lane]
        else:
            rest = part_of(spec, spec.start + most, spec.count - most)
            spec = part_of(spec, spec.start, most)
            first.aged[0] = (age, rest)
        first.count -= spec.count
        self.size -= spec.count
        return spec

    def take_out(
        self, taken: Callable[[TaskSpec], TaskSpec | None], most: int | None = None
    ) -> list[TaskSpec]:
        """Take the part of each range that `taken` returns, None for nothing.

        It looks at the `most` oldest ranges of each lane, by default at all.
        """
        found: list[TaskSpec] = []
        for lane, classes in list(self._lanes.items()):
            looked_at = list(islice(self._by_age(lane), most))
            left: list[tuple[_Class, int, TaskSpec]] = []
            for age, spec in looked_at:
                its = classes[spec.function, spec.depth]
                its.aged.popleft()
                part = taken(spec)
                if part is None:
                    left.append((its, age, spec))
                    continue
                found.append(part)
                its.count -= part.count
                self.size -= part.count
                left += [(its, age, rest) for rest in without(spec, part)]
            for its, age, rest in reversed(left):
                its.aged.appendleft((age, rest))
            for key in [key for key, its in classes.items() if not its.aged]:
                del classes[key]
            if not classes:
                del self._lanes[lane]
        return found

    def _with(self, spec: TaskSpec) -> deque[tuple[int, TaskSpec]]:
        """Count a range, and return the ranges of its class, for the caller to add it to."""
        self.size += spec.count
        lane = (spec.array[:JOB_BYTES], spec.demand)
        classes = self._lanes.get(lane)
        if classes is None:
            classes = self._lanes[lane] = {}
        key = (spec.function, spec.depth)
        its = classes.get(key)
        if its is None:
            its = classes[key] = _Class((lane, *key))
        its.count += spec.count
        return its.aged

    def _first(self, lane: Lane) -> _Class | None:
        """Return the class with the oldest range of a lane that may start."""
        classes = self._lanes.get(lane)
        if classes is None:
            return None
        if len(classes) == 1 and not self.closed:
            (only,) = classes.values()  # the common case
            return only
        open_ones = [each for each in classes.values() if each.name not in self.closed]
        return min(open_ones, key=_age_of_first, default=None)

    def _oldest(self, lane: Lane) -> tuple[int, TaskSpec]:
        """Return the oldest range of a lane with its age."""
        return min(self._lanes[lane].values(), key=_age_of_first).aged[0]

    def _by_age(self, lane: Lane) -> Iterator[tuple[int, TaskSpec]]:
        """Return the ranges of a lane with their ages, the oldest first."""
        return merge(*[each.aged for each in self._lanes[lane].values()], key=_age)


def _age(aged: tuple[int, TaskSpec]) -> int:
    return aged[0]


def _age_of_first(its: _Class) -> int:
    return its.aged[0][0]
