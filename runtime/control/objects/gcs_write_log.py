"""The node's rows for the GCS's task and object tables, buffered and sent in batches.

The node collects the changes of its tasks and objects, one row for each array, and sends the rows
to the GCS in batches. A task that is accepted, ends and is released within one batch leaves no row:
no client can ask for it any more. This makes short tasks cheap. Rows may wait as follows:

* rows of tasks that a client of this node submitted, and that stay on this node, wait for
  ``log_linger_s``, and at most twice as long: a burst that is over by then leaves no rows even
  if a timer fires in its midst. If the node dies before, the owner of the task dies with it;
* an array is **exposed** once another node may look for it: its owner is on another node, or it is
  an input of a task that left the node. Rows of exposed arrays leave at the end of the turn.

The global scheduler logs the ranges that it assigns; the node adds only their results.

Lineage: the node sends the row of a released task, too, if an array that is not released depends
on it. So after every batch the GCS has the specs of all tasks from which an
unreleased array of this node descends, and can reconstruct a lost value from them.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from msgspec import Struct

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.core.task_ranges import needs_of, without
from raytwin.runtime.control.messages import RangeResult, TaskSpec, TaskUpdates
from raytwin.runtime.control.messages.errors import Failure

ADDED_MAX = 256
"""Ranges in one message; each may carry arguments of up to ``inline_bytes_max``."""


class _Row(Struct, gc=False):
    """The changes of an array since the last batch."""

    added: list[TaskSpec] = []
    """Ranges that this node has accepted."""
    done: list[tuple[int, int]] = []
    """Ranges that ended here with small values, in the order of their ends."""
    large: list[tuple[int, int, tuple[int, ...]]] = []
    """Ranges that ended here with large values, and these values' sizes."""
    copies: list[tuple[bytes, int]] = []
    put: int = -1
    """The size of the value that a client put, 0 for a small one."""
    call: tuple[str, bytes] | None = None
    """The owner of an actor call's result, and the actor."""
    contains: bool = False
    """Whether the values contain references."""
    failure: Failure | None = None
    """The error of a lost input that prevents reconstruction."""
    released: bool = False
    """Whether the array was released: the row is sent only if another array depends on it."""
    waited: bool = False
    """Whether the row was waiting already when the timer last ran."""


class GcsWriteLog:
    """Buffers the rows that one node sends to the GCS."""

    def __init__(self, ctx: Context, node: int, config: Config, incarnation: int = 1) -> None:
        self._ctx = ctx
        self._node = node
        self._incarnation = incarnation
        self._linger_s = config.log_linger_s
        self._history = config.task_history
        """Whether the GCS keeps the history of every task, so that the log drops no row."""
        self._rows: dict[bytes, _Row] = {}
        self._inputs: set[bytes] = set()
        """Arrays that are inputs of ranges accepted in this batch."""
        self._released: dict[bytes, None] = {}
        self._owner_died: dict[bytes, None] = {}
        """Arrays that are released because their owner has died."""
        self._known: set[bytes] = set()
        """Arrays with a row in the GCS, or on its way there."""
        self._exposed: set[bytes] = set()
        self._timer_set = False
        self._urgent = False

    def _begin(self, array: bytes) -> _Row | None:
        """Return the array's row, if it has one.

        A parent that runs again may make an array that this batch releases: flush the batch first.
        """
        row = self._rows.get(array)
        if array in self._released or (row is not None and row.released):
            self.flush()
            return None
        return row

    def _row(self, array: bytes) -> _Row:
        """Return the array's row, a new one if it has none; start the timer that sends it."""
        row = self._begin(array)
        if row is None:
            row = self._rows[array] = _Row()
        if array in self._exposed:
            self._urgent = True
        elif not self._timer_set:
            self._start_timer()
        return row

    def accept(self, spec: TaskSpec) -> None:
        """This node keeps a range that its own client submitted."""
        self._row(spec.array).added.append(spec)
        if spec.deps or spec.extra is not None:
            self._inputs.update(oid[: len(spec.array)] for oid in needs_of(spec))

    def finish(self, result: RangeResult) -> None:
        """A range has ended, and its values are here."""
        row = self._row(result.array)
        if result.refs is not None and result.refs.contained:
            row.contains = True
        if result.sizes:
            row.large.append((result.start, result.count, result.sizes))
        else:
            row.done.append((result.start, result.count))

    def finish_all(self, arrays: Sequence[bytes], call: tuple[str, bytes] | None = None) -> None:
        """Single tasks have ended with small values, or calls of one owner (owner, actor)."""
        for array in arrays:
            row = self._row(array)
            row.done.append((0, 1))
            if call is not None:
                row.call = call

    def unreconstructable(self, array: bytes, why: Failure) -> None:
        """A range cannot run here, since an input is lost."""
        self._row(array).failure = why

    def put(self, array: bytes, size: int) -> None:
        """A client here has put a value; `size` is 0 for a small one."""
        self._row(array).put = size

    def called(self, array: bytes, owner: str, actor: bytes) -> None:
        """The result that `finish` logs is an actor call's, with this owner."""
        row = self._row(array)
        if row.call is not None and row.call[0] != owner:
            self.flush()  # the call's caller ran twice: both runs are owners
            row = self._row(array)
        row.call = (owner, actor)

    def made_elsewhere(self, array: bytes) -> None:
        """Another node made and logs an array; its owner is here, and will release it."""
        self._known.add(array)

    def copied(self, array: bytes, oid: bytes, size: int) -> None:
        """A copy of another node's object, or of one that was released here, is here now."""
        self._row(array).copies.append((oid, size))

    def spilled(self, spec: TaskSpec, own: Container[bytes]) -> None:
        """A range spills to the global scheduler, which logs it.

        Its inputs in `own`, the arrays of clients here, are exposed.
        """
        self._begin(spec.array)
        self._known.add(spec.array)
        for oid in needs_of(spec):
            if oid[: len(spec.array)] in own:
                self.expose(oid[: len(spec.array)])

    def moved(self, spec: TaskSpec, own: Container[bytes]) -> None:
        """A range that was accepted here moves to another node, which logs it."""
        row = self._rows.get(spec.array)
        if row is not None:
            row.added = [part for known in row.added for part in without(known, spec)]
            if not (row.added or row.done or row.large or row.copies):
                del self._rows[spec.array]
        self.spilled(spec, own)

    def expose(self, array: bytes) -> None:
        """Another node may look for this array's objects from now on."""
        if array not in self._exposed:
            self._exposed.add(array)
            if array in self._rows:
                self._urgent = True

    def owner_died(self, array: bytes) -> None:
        """The array's owner has died, and the node is about to release the array."""
        self.expose(array)
        self._owner_died[array] = None

    def release(self, arrays: Sequence[bytes]) -> None:
        """The owners have released arrays: drop their rows, or release them in the GCS, too."""
        rows = self._rows
        for array in arrays:
            row = rows.get(array)
            if row is not None and not self._history:
                if row.added and array in self._inputs:
                    row.released = True
                else:
                    del rows[array]
            if self.knows(array) or (self._history and row is not None):
                self._released[array] = None
                self._start_timer()
                if not self._history:
                    self._known.discard(array)
                    self._exposed.discard(array)

    def disown(self, array: bytes) -> None:
        """Release in the GCS an array that another node made for a dead owner."""
        self._released[array] = None
        self._start_timer()

    def forget(self, array: bytes) -> None:
        """The GCS has freed the array: drop its rows."""
        self._rows.pop(array, None)
        self._exposed.discard(array)
        self._known.discard(array)

    def knows(self, array: bytes) -> bool:
        """Whether the GCS has a row of the array, or soon will."""
        return array in self._known or array in self._exposed

    def end_turn(self) -> None:
        """Send the rows if any must not wait."""
        if self._urgent:
            self.flush()

    def flush(self) -> None:
        """Send all rows."""
        self._urgent = False
        rows, self._rows = self._rows, {}
        if self._inputs:
            self._inputs = set()
            rows = self._outlived(rows)
        if not (rows or self._released):
            return
        news = TaskUpdates(
            self._node, [], [], [], [], incarnation=self._incarnation,
            owner_died=[array for array in self._owner_died if array in self._released],
        )  # fmt: skip
        for array, row in rows.items():
            news.added += row.added
            if row.released:
                self._released[array] = None
                continue
            self._known.add(array)
            if row.done:
                news.done += [(array, start, count, ()) for start, count in _merged(row.done)]
            if row.large:
                news.done += [(array, *large) for large in row.large]
            if row.copies:
                news.copies += row.copies
            if row.put >= 0:
                news.puts.append((array, row.put))
            if row.call is not None:
                news.calls.append((array, *row.call))
            if row.contains:
                news.with_references.append(array)
            if row.failure is not None:
                news.unreconstructable.append((array, row.failure))
        news.released = list(self._released)
        # In pieces: the specs contain arguments, and a burst could exceed a frame.
        while len(news.added) > ADDED_MAX:
            part = news.added[:ADDED_MAX]
            self._ctx.send(
                "gcs", TaskUpdates(self._node, part, [], [], [], incarnation=self._incarnation)
            )
            del news.added[:ADDED_MAX]
        self._ctx.send("gcs", news)
        if self._history:
            self._known.difference_update(self._released)
            self._exposed.difference_update(self._released)
        self._released, self._owner_died = {}, {}

    @staticmethod
    def _outlived(rows: dict[bytes, _Row]) -> dict[bytes, _Row]:
        """Return the rows without the released ones from which no other one descends."""
        kept = {array for array, row in rows.items() if not row.released}
        pending = list(kept)
        while pending:
            for spec in rows[pending.pop()].added:
                for oid in needs_of(spec):
                    array = oid[: len(spec.array)]
                    if array in rows and array not in kept:
                        kept.add(array)
                        pending.append(array)
        return {array: row for array, row in rows.items() if array in kept}

    def _start_timer(self) -> None:
        if not self._timer_set:
            self._timer_set = True
            self._ctx.after(self._linger_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_set = False
        young: dict[bytes, _Row] = {}
        if self._inputs:
            self._rows = self._outlived(self._rows)
            if not any(needs_of(spec) for row in self._rows.values() for spec in row.added):
                self._inputs = set()
        if not (self._history or self._inputs):  # else tasks leave together with their inputs
            young = {array: row for array, row in self._rows.items() if not row.waited}
            self._rows = {array: row for array, row in self._rows.items() if row.waited}
        self.flush()
        if young:
            self._rows = young
            for row in young.values():
                row.waited = True
            self._start_timer()


def _merged(pieces: list[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return ranges with neighbours as one; a range that ran twice counts each time."""
    if len(pieces) < 2:
        return pieces
    whole = Ranges()
    again = []
    for start, count in pieces:
        if whole.overlaps(start, count):
            again.append((start, count))
        else:
            whole.add(start, count)
    return [*whole, *again]
