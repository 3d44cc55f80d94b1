"""What a dead worker's running task owned, until the task has run again.

Run again, a task submits the same arrays, as IDs are made from the parent's. What it
claims is its own once more, with what was computed meanwhile; the rest is released
when the last element of the range that died has ended.
"""

from __future__ import annotations

from collections.abc import Callable

from runtime.control.ids import job_of
from runtime.control.messages import RangeResult, TaskSpec
from runtime.control.objects import ObjectDirectory
from runtime.control.owners import NOBODY


class _Family:
    """Arrays whose owner died, and how many elements that may claim them have to end."""

    __slots__ = ("arrays", "parents")

    def __init__(self, arrays: list[bytes], parents: int) -> None:
        self.arrays = arrays
        self.parents = parents


class Orphans:
    """The orphans of one node."""

    def __init__(self, objects: ObjectDirectory, release: Callable[[bytes], None]) -> None:
        self._objects = objects
        self._release = release
        self._families: dict[tuple[bytes, int], list[_Family]] = {}
        """By the element that runs again."""

    def __bool__(self) -> bool:
        return bool(self._families)

    def keep(self, arrays: list[bytes], parent: TaskSpec) -> None:
        """Keep what a dead worker's running range owned: run again, it submits the same."""
        family = _Family(arrays, parent.count)
        for array in arrays:
            self._objects.orphan(array)
        for index in range(parent.start, parent.start + parent.count):
            self._families.setdefault((parent.array, index), []).append(family)

    def end_job(self, job: bytes) -> None:
        """None of a job's tasks runs again."""
        for element in [element for element in self._families if job_of(element[0]) == job]:
            del self._families[element]

    def ended(self, result: RangeResult) -> None:
        """A range ended that may have run twice: what it did not claim is released."""
        for index in range(result.start, result.start + result.count):
            for family in self._families.pop((result.array, index), ()):
                family.parents -= 1
                if not family.parents:
                    for array in family.arrays:
                        if self._objects.owners.get(array) == NOBODY:
                            self._release(array)
