"""Lineage across shards: an array in one, its inputs in others.

The shard with an array's row knows the array's inputs. The shard with the row of an input must
know which arrays use it, or it would drop the row when the input is released. So the first shard
sends the second a `LineageChanges`. The second shard sees an array of another shard as::

    unknown ──HINT──> hinted ──USED──> a user of the input ──UNUSED──> unknown
                         └──not confirmed for `HINT_S`, or longer──────↗

A **hint** arrives before the input can be released. A node sends the shards of a task's inputs a
hint when it has accepted the task, and a placed range passes through the shards of its inputs (see
`shard`). Later the shard of the array itself confirms the hint (``USED``) or withdraws it
(``UNUSED``).

An array that is reconstructed **needs** the values of its released inputs. The shard of an input
notes the need when the range passes through it, and the array's own shard reports the end of the
need. If a released array is needed and its values contain references to other arrays, these are
needed too: its shard reports this as ``NEEDED``, and the end as ``UNNEEDED``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raytwin.runtime.control.core.addresses import shard_address
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.task_ranges import attempt_of, needs_of
from raytwin.runtime.control.gcs.array_row import ArrayRow
from raytwin.runtime.control.gcs.lineage import Lineage
from raytwin.runtime.control.gcs.sharding.router import (
    HINT,
    NEEDED,
    UNNEEDED,
    UNUSED,
    USED,
    shard_of,
)
from raytwin.runtime.control.messages import LineageChanges, TaskSpec

HINT_S = 60.0
"""How long a hint is kept without confirmation."""

_Change = tuple[int, bytes, tuple[bytes, ...]]


class ShardLineage(Lineage):
    """`Lineage` of the arrays of one shard."""

    def __init__(
        self, ctx: Context, bytes_max: int, shard: int, shards: int,
        unused: Callable[[bytes], None], unneeded: Callable[[bytes], None],
    ) -> None:  # fmt: skip
        super().__init__(bytes_max)
        self.users: dict[bytes, set[bytes]] = {}
        """By array of this shard: arrays of other shards with it as an input, hints included."""
        self.hints: dict[tuple[bytes, bytes], None] = {}
        """Unconfirmed (array, input) since the timer last ran; `_old_hints` has earlier ones."""
        self._old_hints: dict[tuple[bytes, bytes], None] = {}
        self._ctx = ctx
        self._shard = shard
        self._shards = shards
        self._unused = unused
        self._unneeded = unneeded
        self._ticking = False
        self._again: set[bytes] = set()
        """Arrays of this shard that are being reconstructed and have inputs in other shards."""
        self._out: dict[int, list[_Change]] = {}

    # -- arrays of this shard with inputs in others ---------------------------------

    def use(self, array: bytes, row: ArrayRow, oids: Iterable[bytes], array_bytes: int) -> None:
        past = len(row.deps)
        super().use(array, row, oids, array_bytes)
        self._report(USED, array, row.deps[past:])

    def _count(self, dep: bytes) -> None:
        if self._is_here(dep):
            super()._count(dep)

    def end_use(self, array: bytes, dep: bytes) -> bool:
        if self._is_here(dep):
            return super().end_use(array, dep)
        self._report(UNUSED, array, (dep,))
        return False

    def refuse(self, spec: TaskSpec, array_bytes: int) -> None:
        deps = dict.fromkeys(oid[:array_bytes] for oid in needs_of(spec))
        self._report(UNUSED, spec.array, tuple(deps))

    def need(self, array: bytes, row: ArrayRow) -> None:
        for dep in row.deps:
            if self._is_here(dep):
                self.needed.setdefault(dep, set()).add(array)
            else:
                self._again.add(array)

    def hold(self, array: bytes, inner: Iterable[bytes]) -> None:
        super().hold(array, [dep for dep in inner if self._is_here(dep)])
        elsewhere = [dep for dep in inner if not self._is_here(dep)]
        if elsewhere:
            self._again.add(array)
            self._report(NEEDED, array, elsewhere)

    def end_need(self, array: bytes, row: ArrayRow, but: tuple[bytes, ...] = ()) -> list[bytes]:
        if array in self._again:
            if all(map(self._is_here, but)):
                self._again.remove(array)
            self._report(UNNEEDED, array, [dep for dep in row.deps if dep not in but])
        return super().end_need(array, row, but)

    def placed(self, spec: TaskSpec) -> None:
        """A placed range has come to its own shard, after the shards of its inputs."""
        if attempt_of(spec) and spec.array not in self._again:
            # The task has made its results meanwhile.
            deps = dict.fromkeys(oid[: len(spec.array)] for oid in needs_of(spec))
            self._report(UNNEEDED, spec.array, deps)

    def _is_here(self, array: bytes) -> bool:
        return shard_of(array, self._shards) == self._shard

    def _report(self, change: int, array: bytes, deps: Iterable[bytes]) -> None:
        for dep in deps:
            shard = shard_of(dep, self._shards)
            if shard != self._shard:
                self._out.setdefault(shard, []).append((change, array, (dep,)))

    def end_turn(self) -> None:
        """Send the other shards the changes of this turn."""
        out, self._out = self._out, {}
        for shard, changes in out.items():
            self._ctx.send(shard_address(shard), LineageChanges(changes))

    # -- arrays of other shards with inputs in this one -----------------------------

    def on_changes(self, source: str, message: LineageChanges) -> None:
        """Note changes in how arrays of other shards use arrays of this one."""
        for change, array, deps in message.changes:
            for dep in deps:
                self._change(change, array, dep)

    def visited(self, spec: TaskSpec) -> None:
        """A range with inputs here has been placed; its own shard gets it later."""
        for dep in dict.fromkeys(oid[: len(spec.array)] for oid in needs_of(spec)):
            if not self._is_here(dep):
                continue
            self._change(HINT, spec.array, dep)
            if attempt_of(spec):
                self.needed.setdefault(dep, set()).add(spec.array)

    def _change(self, change: int, array: bytes, dep: bytes) -> None:
        users = self.users.get(dep)
        if change in (HINT, USED):
            new = users is None or array not in users
            if new:
                self.users.setdefault(dep, set()).add(array)
                super()._count(dep)
            if change == USED:
                self._forget_hint(array, dep)
            elif new:
                self.hints[array, dep] = None
                self._start_timer()
            return
        if change == NEEDED:
            self.needed.setdefault(dep, set()).add(array)
            return
        needing = self.needed.get(dep)
        if needing is not None and array in needing:
            needing.remove(array)
            if not needing:
                del self.needed[dep]
                self._unneeded(dep)
        if change == UNUSED and users is not None and array in users:
            self._forget_hint(array, dep)
            users.remove(array)
            if not users:
                del self.users[dep]
            if super().end_use(array, dep):
                self._unused(dep)

    def _forget_hint(self, array: bytes, dep: bytes) -> None:
        self.hints.pop((array, dep), None)
        self._old_hints.pop((array, dep), None)

    def _start_timer(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._ctx.after(HINT_S, self._drop_old_hints)

    def _drop_old_hints(self) -> None:
        """Drop the hints that are older than `HINT_S`."""
        old, self._old_hints, self.hints = self._old_hints, self.hints, {}
        for array, dep in old:
            self._change(UNUSED, array, dep)
        self._ticking = False
        if self._old_hints:
            self._start_timer()
