"""What dead workers of this node owned: the node owns it as long as somebody may want it.

Two kinds may. Who **runs again** claims it: a task submits the same arrays, as IDs are made
from the parent's, and so does a call of an actor that starts again. What they claim is their
own once more, with what was computed meanwhile. And who has **borrowed** it: the node stands
in for the owner, under whose address it is sent what owners are (`RefUpdates`)::

    a worker dies ──nobody can have it, nobody claims it──> lost at once
          │
          └─> kept: for the elements it ran, until they have ended
                    for its actor, if that may restart: for `ORPHANED_S`, as a dead node's are
                    if any was lent: until all borrowers have had the time to say so
                       └─> then each as long as it is borrowed ──> lost

The dead owner's books were in its memory. So its node tells all others (`OwnerDied`), whose
clients enter themselves once more, and who state how many values with it inside they keep;
what they had sent to the owner before is outdated by that. A value on its way counts for as
long as one can be.

What somebody has borrowed and is not made yet may need what else its owner had: all of that
is kept as long. What a parent has claimed that runs again on another node is handed over to
it in the end: its values stay here, and it is not this node's any more.

Actors end with their owner, unless that runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial

from runtime.control.array_rows import ORPHANED_S
from runtime.control.borrowing import ON_ITS_WAY_S
from runtime.control.context import Context, incarnation_of, node_of
from runtime.control.ids import job_of
from runtime.control.membership import Membership
from runtime.control.messages import RangeResult, RefUpdates, TaskSpec
from runtime.control.objects import ObjectDirectory
from runtime.control.owners import NOBODY
from runtime.control.ref_book import (
    ENTER_AND_SAY_SO,
    ENTERED,
    GONE,
    PINNED,
    RESTATE,
    STRIKE,
    Book,
    Update,
    ends_of,
)


class _Family:
    """What one dead worker owned."""

    __slots__ = ("arrays", "owner", "reasons")

    def __init__(self, owner: str, arrays: Iterable[bytes]) -> None:
        self.owner = owner
        self.arrays = {array: Book() for array in arrays}
        self.reasons = 0
        """Elements and clocks for which all of it is kept."""


class Orphans:
    """The orphans of one node."""

    def __init__(
        self,
        ctx: Context,
        objects: ObjectDirectory,
        members: Membership,
        settle_s: float,
        actors: Container[bytes],
        is_made: Callable[[bytes], bool],
        release: Callable[[bytes], None],
    ) -> None:
        """`settle_s`: how long borrowers may take to say so; `actors` are those that
        clients of this node own; `is_made` says whether all of an array has ended."""
        self._ctx = ctx
        self._objects = objects
        self._members = members
        self._settle_s = max(settle_s, ON_ITS_WAY_S)
        self._actors = actors
        self._is_made = is_made
        self._release = release
        self._of: dict[bytes, _Family] = {}
        self._parents: dict[tuple[bytes, int], list[_Family]] = {}
        """By the element that runs again."""
        self._ways: dict[bytes, float] = {}
        """Until when a value with the array inside may be on its way."""
        self._gone: set[str] = set()

    def __bool__(self) -> bool:
        """Whether the end of a range may be of interest."""
        return bool(self._parents)

    def __len__(self) -> int:
        return len(self._of)

    def arrays(self) -> list[bytes]:
        """Return what is kept here of dead owners."""
        return list(self._of)

    def former_owner(self, array: bytes) -> str:
        """Return which dead worker owned an orphan, an empty string of any other array."""
        family = self._of.get(array)
        return "" if family is None else family.owner

    # -- who may claim it --------------------------------------------------------

    def keep(
        self, owner: str, arrays: list[bytes], parent: TaskSpec | None, restarts: bool, lent: bool
    ) -> None:
        """Keep what a dead worker owned: for the range that it ran, for the actor that it
        was and that starts again, for those who have borrowed some of it."""
        family = _Family(owner, arrays)
        for array in arrays:
            before = self._of.get(array)
            if before is not None:
                family.arrays[array] = before.arrays.pop(array)
            self._of[array] = family
            self._objects.orphan(array)
        if parent is not None:
            family.reasons += parent.count
            for index in range(parent.start, parent.start + parent.count):
                self._parents.setdefault((parent.array, index), []).append(family)
        if restarts:
            self._hold(family, ORPHANED_S)
        if lent:
            self._hold(family, self._settle_s)

    def _hold(self, family: _Family, delay_s: float) -> None:
        family.reasons += 1
        self._ctx.after(delay_s, partial(self._less, family))

    def ended(self, result: RangeResult) -> None:
        """A range ended that may have run twice: what it did not claim is released."""
        for index in range(result.start, result.start + result.count):
            for family in self._parents.pop((result.array, index), ()):
                self._less(family)

    def end_job(self, job: bytes) -> None:
        """None of a job's tasks runs again."""
        for element in [element for element in self._parents if job_of(element[0]) == job]:
            del self._parents[element]
        for array in [array for array in self._of if job_of(array) == job]:
            self._forget(array)

    def let_go(self, arrays: Sequence[bytes]) -> Sequence[bytes]:
        """Those who had claimed them need them no more; return which are to be released."""
        free = []
        for array in arrays:
            family = self._of.get(array)
            if family is None or array in self._actors:
                free.append(array)
            elif family.reasons or self._is_borrowed(array, family):
                self._objects.orphan(array)
                continue
            else:
                free.append(array)
            if family is not None:
                self._forget(array)
        return free

    # -- who has borrowed it -----------------------------------------------------

    def on_updates(self, message: RefUpdates) -> None:
        """What was sent to a dead owner of this node."""
        for update in message.updates:
            self._on_update(update, message.owner)

    def _on_update(self, update: Update, owner: str) -> None:
        array, borrower, epoch, what = update
        if what == GONE:
            self._strike_all(lambda each: each == borrower)
            self._gone.add(borrower)
            return
        family = self._of.get(array)
        if family is None or what == ENTERED or borrower == PINNED:
            return
        if what == ENTER_AND_SAY_SO:
            node = node_of(borrower)
            to = borrower if node == node_of(owner) else f"node:{node}"
            self._ctx.send(to, RefUpdates(borrower, [(array, borrower, epoch, ENTERED)]))
        book = family.arrays[array]
        if len(ends_of(borrower)) > 1:
            if what != STRIKE:
                self._ways[array] = self._ctx.now() + ON_ITS_WAY_S
                self._ctx.after(ON_ITS_WAY_S, partial(self._free, array))
        elif what == RESTATE:
            book.has[borrower] = epoch
        elif what == STRIKE and not epoch and borrower not in book.has:
            pass  # it was entered with the dead owner
        elif what == STRIKE or not self._is_gone(borrower):
            book.enter(borrower, epoch, STRIKE if what == STRIKE else 1)
        if not book:
            self._free(array)

    def _is_gone(self, borrower: str) -> bool:
        node, life = node_of(borrower), incarnation_of(borrower)
        return borrower in self._gone or bool(self._members.refusal(node, life))

    def on_node_died(self, node: int, incarnation: int) -> None:
        """Neither it nor its clients have references any more."""
        self._strike_all(lambda b: node_of(b) == node and incarnation_of(b) == incarnation)

    def _strike_all(self, gone: Callable[[str], bool]) -> None:
        for array, family in list(self._of.items()):
            book = family.arrays[array]
            for borrower in [each for each in book.has if gone(each)]:
                del book.has[borrower]
                if not book:
                    self._free(array)

    def _is_borrowed(self, array: bytes, family: _Family) -> bool:
        return bool(family.arrays[array]) or self._ways.get(array, 0.0) > self._ctx.now()

    # -- how it ends -------------------------------------------------------------

    def _less(self, family: _Family) -> None:
        family.reasons -= 1
        if family.reasons:
            return
        borrowed = [a for a in family.arrays if self._is_borrowed(a, family)]
        if any(array not in self._actors and not self._is_made(array) for array in borrowed):
            # It may need what else there is.
            self._hold(family, self._settle_s)
            return
        for array in list(family.arrays):
            self._free(array)

    def _free(self, array: bytes) -> None:
        """Let go of an orphan if there is no reason to keep it."""
        family = self._of.get(array)
        if family is None or family.reasons:
            return
        if self._is_borrowed(array, family) and array not in self._actors:
            return
        if self._objects.owners.get(array) == NOBODY:
            self._release(array)
        self._forget(array)

    def _forget(self, array: bytes) -> None:
        family = self._of.pop(array, None)
        if family is not None:
            del family.arrays[array]
            self._ways.pop(array, None)
            if not self._of:
                self._gone.clear()
