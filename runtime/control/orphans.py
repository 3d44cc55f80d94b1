"""What dead workers of this node owned, until their tasks and calls have run again.

Run again, a task submits the same arrays, as IDs are made from the parent's; so does a
call of an actor that starts again. What they claim is their own once more, with what was
computed meanwhile::

    a worker dies ──it ran a task──────────> kept until the elements that died have ended
                  ├─its actor may restart──> kept for `ORPHANED_S`, as a dead node's are
                  └─otherwise──────────────> lost at once

What nobody has claimed by then is released. What a parent has claimed that runs again on
another node is handed over to it: its values stay here, and it is not this node's any more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from runtime.control.array_rows import ORPHANED_S
from runtime.control.context import Context
from runtime.control.ids import job_of
from runtime.control.messages import RangeResult, TaskSpec
from runtime.control.objects import ObjectDirectory
from runtime.control.owners import NOBODY


class _Family:
    """Arrays of one dead owner, and for how many elements or clocks they are kept."""

    __slots__ = ("arrays", "owner", "reasons")

    def __init__(self, owner: str, arrays: list[bytes], reasons: int) -> None:
        self.owner = owner
        self.arrays = arrays
        self.reasons = reasons


class Orphans:
    """The orphans of one node."""

    def __init__(
        self, ctx: Context, objects: ObjectDirectory, release: Callable[[bytes], None]
    ) -> None:
        self._ctx = ctx
        self._objects = objects
        self._release = release
        self._families: dict[tuple[bytes, int], list[_Family]] = {}
        """By the element that runs again."""
        self._former: dict[bytes, str] = {}
        """Who owned an array."""

    def __bool__(self) -> bool:
        return bool(self._families)

    def __len__(self) -> int:
        return len(self._former)

    def keep(self, owner: str, arrays: list[bytes], parent: TaskSpec | None = None) -> None:
        """Keep what a dead worker owned for the range that it ran, or else for an actor."""
        family = _Family(owner, arrays, parent.count if parent is not None else 1)
        for array in arrays:
            self._objects.orphan(array)
            self._former[array] = owner
        if parent is None:
            self._ctx.after(ORPHANED_S, partial(self._less, family))
            return
        for index in range(parent.start, parent.start + parent.count):
            self._families.setdefault((parent.array, index), []).append(family)

    def arrays(self) -> list[bytes]:
        """Return what is kept here of dead owners."""
        return list(self._former)

    def former_owner(self, array: bytes) -> str:
        """Return which dead worker owned an orphan, an empty string of any other array."""
        return self._former.get(array, "")

    def end_job(self, job: bytes) -> None:
        """None of a job's tasks runs again."""
        for element in [element for element in self._families if job_of(element[0]) == job]:
            del self._families[element]
        for array in [array for array in self._former if job_of(array) == job]:
            del self._former[array]

    def ended(self, result: RangeResult) -> None:
        """A range ended that may have run twice: what it did not claim is released."""
        for index in range(result.start, result.start + result.count):
            for family in self._families.pop((result.array, index), ()):
                self._less(family)

    def _less(self, family: _Family) -> None:
        family.reasons -= 1
        if family.reasons:
            return
        for array in family.arrays:
            if self._former.get(array) != family.owner:
                continue  # its next owner has died as well, and it is kept for another reason
            if self._objects.owners.get(array) == NOBODY:
                self._release(array)
            self._former.pop(array, None)
