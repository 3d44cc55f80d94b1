"""The rules of lineage: which lost values the GCS reconstructs, and which specs it keeps to do so.

If all copies of a value are lost, and a node asks for it, its task runs again. The run takes one of
the task's retries, except if the owner had freed the value and other arrays need it. The run
requests its inputs as any task does, and the GCS reconstructs lost inputs in the same way; so the
recursion needs no plan and no stack.

The GCS keeps three tables, all by array:

``uses``    the number of rows with the array as an input. A row that its owner has
            released stays, without values, while this is not 0
``kept``    these released rows, oldest first, with their size. Beyond
            ``lineage_bytes_max`` the GCS drops the oldest: memory is bounded, and
            arrays that depend on it cannot be reconstructed
``needed``  the arrays under reconstruction with the array as an input, and needed
            released arrays whose values contain references to it. Values of a
            released array may exist only while this is not empty

A value cannot be reconstructed (`refusal`) if it was put, if its task has no retries or no spec
left, or if one of its inputs cannot be reconstructed. The node of the run reports such an input,
and the GCS does not try again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from raytwin.runtime.control.core.task_ranges import attempt_of, part_of, task_of
from raytwin.runtime.control.gcs.array_row import ArrayRow
from raytwin.runtime.control.messages import TaskExtra, TaskSpec
from raytwin.runtime.control.messages.errors import Loss, Refusal, root_of

SPARE = 64
"""The GCS frees at least a 64th of the limit at once."""
SPEC_BYTES = 500
"""The size of a row in memory, without its arguments."""


class Lineage:
    """Records which rows need the specs, and which need the values, of other rows."""

    def __init__(self, bytes_max: int) -> None:
        self.uses: dict[bytes, int] = {}
        self.kept: dict[bytes, int] = {}
        self.needed: dict[bytes, set[bytes]] = {}
        self._bytes = 0
        self._bytes_max = bytes_max

    def use(self, array: bytes, row: ArrayRow, oids: Iterable[bytes], array_bytes: int) -> None:
        """A row's tasks have these objects as inputs."""
        known = set(row.deps)
        new = tuple(dict.fromkeys(o[:array_bytes] for o in oids if o[:array_bytes] not in known))
        row.deps += new
        for dep in new:
            self._count(dep)

    def _count(self, dep: bytes) -> None:
        self.uses[dep] = self.uses.get(dep, 0) + 1

    def refuse(self, spec: TaskSpec, array_bytes: int) -> None:
        """Note that the GCS adds no row for a range, because no owner waits for it."""

    def end_use(self, array: bytes, dep: bytes) -> bool:
        """A row with the array as an input was dropped; return whether it was the last one."""
        self.uses[dep] -= 1
        if self.uses[dep]:
            return False
        del self.uses[dep]
        return True

    def keep(self, array: bytes, row: ArrayRow) -> None:
        """Keep the specs of a row whose values are released."""
        weight = SPEC_BYTES + sum(len(spec.args) for spec in row.lineage)
        self.kept[array] = weight
        self._bytes += weight

    def end_keep(self, array: bytes) -> None:
        """A kept row was dropped, or has an owner again."""
        self._bytes -= self.kept.pop(array, 0)

    def over_limit(self) -> Iterator[bytes]:
        """Yield the oldest kept arrays until the others are below the limit.

        It frees more than necessary, so that it runs seldom: a search for the oldest one each
        time would be slow, see `bounded_map`.
        """
        if self._bytes <= self._bytes_max:
            return
        over = self._bytes - (self._bytes_max - self._bytes_max // SPARE)
        oldest = []
        for array, weight in self.kept.items():
            if over <= 0:
                break
            oldest.append(array)
            over -= weight
        for array in oldest:
            if array in self.kept:
                yield array

    def need(self, array: bytes, row: ArrayRow) -> None:
        """An array is being reconstructed: its inputs are needed until then."""
        for dep in row.deps:
            self.needed.setdefault(dep, set()).add(array)

    def hold(self, array: bytes, inner: Iterable[bytes]) -> None:
        """Values of a released array are still needed, and refer to these."""
        for dep in inner:
            self.needed.setdefault(dep, set()).add(array)

    def end_need(self, array: bytes, row: ArrayRow, but: tuple[bytes, ...] = ()) -> list[bytes]:
        """An array was reconstructed; return the inputs that nothing else needs.

        `but` are the arrays that its values refer to, which are still needed.
        """
        free = []
        for dep in row.deps:
            by = self.needed.get(dep) if dep not in but else None
            if by is not None and array in by:
                by.remove(array)
                if not by:
                    del self.needed[dep]
                    free.append(dep)
        return free


def resubmission(
    spec: TaskSpec, start: int, count: int, owner: str, freed: bool = False
) -> TaskSpec:
    """Return elements of a range to place again, with one retry less unless they were freed."""
    assert spec.retries or (freed and attempt_of(spec)), "it has no retries left"
    part = part_of(spec, start, count)
    if spec.retries > 0 and not freed:
        part.retries = spec.retries - 1
    extra = spec.extra if spec.extra is not None else TaskExtra()
    part.extra = replace(extra, attempt=extra.attempt + 1)
    part.owner = owner or spec.owner
    return part


def refusal(row: ArrayRow, spec: TaskSpec | None, lost: Loss, freed: bool = False) -> Loss | None:
    """Return why a lost value cannot be reconstructed; None: it can.

    A freed value can be made again if its task has run again before.
    """
    if row.put:
        return replace(lost, refusal=Refusal.PUT)
    if row.actor is not None:
        return replace(lost, refusal=Refusal.ACTOR_WENT_ON)
    if spec is None:
        return replace(lost, refusal=Refusal.NO_RECORD)
    if row.unreconstructable is not None:
        root = root_of(row.unreconstructable)
        return replace(lost, refusal=Refusal.INPUT_LOST, task=spec.name, root=root)
    if not spec.retries and not (freed and attempt_of(spec)):
        return replace(lost, refusal=Refusal.NO_RETRIES, task=spec.name)
    return None


def last_spec(row: ArrayRow, index: int) -> TaskSpec | None:
    """Return the last spec by which the element was to be made, if any is known."""
    found: TaskSpec | None = None
    index = task_of(index)
    for spec in [*row.lineage, *(spec for spec, _ in row.accepted)]:
        newer = found is None or attempt_of(spec) >= attempt_of(found)
        if newer and spec.start <= index < spec.start + spec.count:
            found = spec
    return found


def by_spec(row: ArrayRow, indices: list[int]) -> Iterator[tuple[TaskSpec | None, int, int]]:
    """Yield (spec, start, count): elements side by side that one spec can make."""
    last: tuple[TaskSpec | None, int, int] | None = None
    for index in sorted(indices):
        spec = last_spec(row, index)
        if last is not None and last[0] is spec and last[1] + last[2] == index:
            last = (spec, last[1], last[2] + 1)
            continue
        if last is not None:
            yield last
        last = (spec, index, 1)
    if last is not None:
        yield last
