"""The node's write-behind log of the GCS's task and object tables.

The node buffers what happens to tasks and objects here, and sends the rows to the GCS in
batches. A task that is accepted, ends and is released within one batch leaves no row: no client
can ask for it any more. That makes a short task cheap, so the rules for when rows may wait are
the heart of it:

* rows of tasks that a client of this node submitted, and that stay on this node, wait for
  ``log_linger_s``, and at most twice as long: a burst that is over by then leaves no rows even
  if a timer fires in its midst. If the node dies before, the owner of the task dies with it;
* an array is **exposed** once another node may look for it: its owner is elsewhere, or it is
  an input of a task that left the node. Rows of exposed arrays leave at the end of the turn.

The global scheduler logs the ranges that it assigns; the node adds only how they ended.

Lineage: the record of a released task goes to the GCS all the same if an array that outlives
the batch depends on it. So after every batch the GCS has the specs of all tasks from which an
unreleased array of this node descends, and can reconstruct a lost value from them.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.core.task_ranges import needs_of, without
from raytwin.runtime.control.messages import OK, RangeResult, TaskSpec, TaskUpdates
from raytwin.runtime.control.messages.errors import Failure

ADDED_MAX = 256
"""Ranges in one message; each may carry arguments of up to ``inline_bytes_max``."""


class GcsWriteLog:
    """Buffers the rows that one node sends to the GCS."""

    def __init__(self, ctx: Context, node: int, config: Config, incarnation: int = 1) -> None:
        self._ctx = ctx
        self._node = node
        self._incarnation = incarnation
        self._linger_s = config.log_linger_s
        self._history = config.task_history
        """The GCS keeps the history of every task: no row is dropped."""
        self._added: dict[bytes, list[TaskSpec]] = {}
        self._done: dict[bytes, Ranges | tuple[tuple[int, int]]] = {}
        self._large: dict[bytes, list[tuple[int, int, tuple[int, ...]]]] = {}
        self._copies: dict[bytes, list[tuple[bytes, int]]] = {}
        self._released: dict[bytes, None] = {}
        self._bereaved: dict[bytes, None] = {}
        """Arrays whose owner has died, and that are released for that."""
        self._handed: dict[bytes, None] = {}
        """Arrays of dead owners that clients of other nodes have claimed."""
        self._puts: dict[bytes, int] = {}
        self._calls: dict[bytes, tuple[str, bytes]] = {}
        self._holding: dict[bytes, None] = {}
        self._barren: dict[bytes, Failure] = {}
        self._deps: dict[bytes, tuple[bytes, ...]] = {}
        """By array accepted in this batch: the arrays that are its inputs."""
        self._uses: dict[bytes, int] = {}
        """By array: how many of these have it as an input."""
        self._kept: dict[bytes, list[TaskSpec]] = {}
        """Accepted and released in this batch, and an input of others of it."""
        self._known: set[bytes] = set()
        self._exposed: set[bytes] = set()
        self._old: set[bytes] = set()
        """Arrays whose rows were waiting at the last tick already."""
        self._timer_set = False
        self._urgent = False

    def accept(self, spec: TaskSpec) -> None:
        """This node keeps a range that its own client submitted."""
        self._begin_again(spec.array)
        self._added.setdefault(spec.array, []).append(spec)
        if spec.deps or spec.extra is not None:
            self._use(spec, needs_of(spec))
        self._touch(spec.array)

    def finish(self, result: RangeResult) -> None:
        """A range has ended, and its values are here."""
        array = result.array
        self._begin_again(array)
        if result.refs is not None and result.refs.contained:
            self._holding[array] = None
        if result.sizes:
            sizes = self._large.setdefault(array, [])
            sizes.append((result.start, result.count, result.sizes))
        else:
            done = self._done.get(array)
            if isinstance(done, tuple):
                (first,) = done
                done = self._done[array] = Ranges()
                done.add(*first)
            if done is not None and done.overlaps(result.start, result.count):
                self.flush()  # ran twice: each run counts
                done = None
            if done is None:
                # Most arrays end in one piece: no set is made for these.
                self._done[array] = ((result.start, result.count),)
            else:
                done.add(result.start, result.count)
        self._touch(array)

    def unreconstructable(self, array: bytes, why: Failure) -> None:
        """A range cannot run here, since an input is lost."""
        self._begin_again(array)
        self._barren[array] = why
        self._touch(array)

    def put(self, array: bytes, size: int) -> None:
        """A client here has put a value; `size` is 0 for a small one."""
        self._begin_again(array)
        self._puts[array] = size
        self._touch(array)

    def called(self, array: bytes, owner: str, actor: bytes) -> None:
        """The result that `finish` logs is that of an actor's call, with this owner."""
        if self._calls.get(array, (owner, actor))[0] != owner:
            self.flush()  # its caller ran twice: both runs are owners
        self._calls[array] = (owner, actor)
        self._touch(array)

    def finish_all(self, arrays: Sequence[bytes]) -> None:
        """`finish` each of these, with small values."""
        if (
            self._done.keys().isdisjoint(arrays)
            and (not self._released or self._released.keys().isdisjoint(arrays))
            and (not self._kept or self._kept.keys().isdisjoint(arrays))
        ):
            self._done.update(dict.fromkeys(arrays, ((0, 1),)))
            if self._exposed and not self._exposed.isdisjoint(arrays):
                self._urgent = True
            self._start_timer()
            return
        for array in arrays:
            self.finish(RangeResult(array, 0, 1, OK, b"", self._node))

    def called_all(self, arrays: Sequence[bytes], owner: str, actor: bytes) -> None:
        """`called` and `finish` each of these, with small values."""
        self._calls.update(dict.fromkeys(arrays, (owner, actor)))
        self.finish_all(arrays)

    def made_elsewhere(self, array: bytes) -> None:
        """Another node made and logs an array; its owner is here, and will release it."""
        self._known.add(array)

    def copied(self, array: bytes, oid: bytes, size: int) -> None:
        """A copy of another node's object is here now."""
        self._begin_again(array)
        self._copies.setdefault(array, []).append((oid, size))
        self._touch(array)

    def spilled(self, spec: TaskSpec, own: Container[bytes]) -> None:
        """A range spills to the global scheduler, which logs it.

        Its inputs in `own`, the arrays of clients here, are exposed.
        """
        self._begin_again(spec.array)
        self._known.add(spec.array)
        for oid in needs_of(spec):
            if oid[: len(spec.array)] in own:
                self.expose(oid[: len(spec.array)])

    def moved(self, spec: TaskSpec, own: Container[bytes]) -> None:
        """A range that was accepted here moves to another node, which logs it."""
        if spec.array in self._added:
            left = [part for known in self._added.pop(spec.array) for part in without(known, spec)]
            if left:
                self._added[spec.array] = left
        self.spilled(spec, own)

    def expose(self, array: bytes) -> None:
        """Another node may look for this array's objects from now on."""
        if array not in self._exposed:
            self._exposed.add(array)
            if any(array in rows for rows in self._rows()):
                self._urgent = True

    def owner_died(self, array: bytes) -> None:
        """The array's owner has died, and the array is about to be released for that."""
        self.expose(array)
        self._bereaved[array] = None

    def hand_over(self, array: bytes) -> None:
        """The array's owner here has died, and one on another node has claimed it."""
        self._handed[array] = None
        self._start_timer()

    def release(self, array: bytes) -> None:
        """The owner has released an array: drop its rows, or release it in the GCS, too."""
        if self._history:
            if self.knows(array) or any(array in rows for rows in self._rows()):
                self._released[array] = None
                self._start_timer()
            return
        specs = self._added.pop(array, None)
        if self._deps:
            if specs is not None and array in self._uses:
                self._kept[array] = specs
            else:
                self._unuse(array)
        for rows in self._rows()[1:]:
            if rows:
                rows.pop(array, None)
        exposed = array in self._exposed
        self._exposed.discard(array)
        if exposed or array in self._known:
            self._known.discard(array)
            self._released[array] = None
            self._start_timer()

    def release_all(self, arrays: Sequence[bytes]) -> None:
        """`release` each of these."""
        if (
            self._history
            or self._deps
            or not self._exposed.isdisjoint(arrays)
            or not self._known.isdisjoint(arrays)
        ):
            for array in arrays:
                self.release(array)
            return
        for rows in self._rows():
            if rows:
                for array in arrays:
                    rows.pop(array, None)

    def disown(self, array: bytes) -> None:
        """Release in the GCS an array that another node made for an owner that is gone."""
        self._released[array] = None
        self._start_timer()

    def forget(self, array: bytes) -> None:
        """The GCS has freed the array: drop its rows."""
        for rows in self._rows():
            rows.pop(array, None)
        self._exposed.discard(array)
        self._known.discard(array)

    def knows(self, array: bytes) -> bool:
        """Whether the GCS has heard of the array, or soon will."""
        return array in self._known or array in self._exposed

    def _rows(self) -> tuple[dict[bytes, Any], ...]:
        return (
            self._added, self._done, self._large, self._copies, self._puts, self._calls,
            self._holding, self._barren,
        )  # fmt: skip

    def _use(self, spec: TaskSpec, needs: tuple[bytes, ...]) -> None:
        if not needs:
            return
        past = self._deps.get(spec.array, ())
        arrays = dict.fromkeys(oid[: len(spec.array)] for oid in needs)
        new = tuple(array for array in arrays if array not in past)
        self._deps[spec.array] = past + new
        for array in new:
            self._uses[array] = self._uses.get(array, 0) + 1

    def _unuse(self, array: bytes) -> None:
        """Drop an array, and the rows that were kept as its inputs alone."""
        pending = [array]
        while pending:
            for used in self._deps.pop(pending.pop(), ()):
                self._uses[used] -= 1
                if not self._uses[used]:
                    del self._uses[used]
                    if self._kept.pop(used, None) is not None:
                        pending.append(used)

    def end_turn(self) -> None:
        """Send the rows if any must not wait."""
        if self._urgent:
            self.flush()

    def flush(self) -> None:
        """Send all rows."""
        self._urgent = False
        if self._kept:
            self._added.update(self._kept)
            self._released.update(dict.fromkeys(self._kept))
        if not (any(self._rows()) or self._released or self._handed):
            return
        done: list[tuple[bytes, int, int, tuple[int, ...]]] = [
            (array, start, count, ())
            for array, ranges in self._done.items()
            for start, count in ranges
        ]
        done += [(array, *row) for array, rows in self._large.items() for row in rows]
        for rows in self._rows():
            self._known.update(rows)
        self._known.difference_update(self._kept)
        added = [spec for specs in self._added.values() for spec in specs]
        copies = [row for rows in self._copies.values() for row in rows]
        released = list(self._released)
        # In pieces: the specs contain arguments, and a burst would outgrow a frame.
        while len(added) > ADDED_MAX:
            part = TaskUpdates(
                self._node, added[:ADDED_MAX], [], [], [], incarnation=self._incarnation
            )
            self._ctx.send("gcs", part)
            added = added[ADDED_MAX:]
        puts = list(self._puts.items())
        calls = [(array, owner, actor) for array, (owner, actor) in self._calls.items()]
        news = TaskUpdates(
            self._node, added, done, copies, released, puts, self._incarnation, calls,
            [array for array in self._bereaved if array in self._released],
            list(self._handed), list(self._holding), list(self._barren.items()),
        )  # fmt: skip
        self._ctx.send("gcs", news)
        if self._history:
            self._known.difference_update(released)
            self._exposed.difference_update(released)
        self._added, self._done, self._large, self._copies = {}, {}, {}, {}
        self._puts, self._deps, self._uses, self._kept = {}, {}, {}, {}
        self._released, self._calls, self._bereaved, self._handed = {}, {}, {}, {}
        self._holding, self._barren = {}, {}

    def _begin_again(self, array: bytes) -> None:
        """Flush before a parent that runs again makes an array that this batch releases."""
        if not self._released and not self._kept:
            return
        if array in self._released or array in self._kept:
            self.flush()

    def _touch(self, array: bytes) -> None:
        if self._exposed and array in self._exposed:
            self._urgent = True
        elif not self._timer_set:
            self._start_timer()

    def _start_timer(self) -> None:
        if not self._timer_set:
            self._timer_set = True
            self._ctx.after(self._linger_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_set = False
        if self._history or self._deps or self._kept:
            # Tasks go together with their inputs.
            self.flush()
            return
        old, self._old = self._old, set()
        young = [
            {array: row for array, row in rows.items() if array not in old} for rows in self._rows()
        ]
        for rows, staying in zip(self._rows(), young, strict=True):
            for array in staying:
                del rows[array]
        self.flush()
        self._added, self._done, self._large, self._copies, self._puts, self._calls = young[:6]
        self._holding, self._barren = young[6:]
        if any(young):
            self._old.update(*young)
            self._start_timer()
