"""The GCS's task and object tables: one row per array.

A row combines the paper's two tables, because one is computed from the other: the
ranges that nodes have accepted, with the node of each (task table, lineage), and
the ranges that are done, with the nodes that have their values (object table).

The states of an element, as the GCS knows them::

    UNKNOWN ──accepted──> PENDING ──done──> MADE ──its last copy's node dies──> LOST
                 ↑                                                               │
                 └────────────── placed again, if a node asks ───────────────────┘

The life of a row::

    OWNED ──its last owner releases it──> RELEASED ──nothing needs its lineage──> gone
      └───────────────nothing needs its lineage, or it was put───────────────↗

A released row has no values, only the specs that could reconstruct them; `lineage`
defines which rows need these specs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.ids import STREAM_BASE, split_object_id
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.core.task_ranges import attempt_of, part_of, task_of, without
from raytwin.runtime.control.messages import DROPPED, Location, TaskSpec
from raytwin.runtime.control.messages.errors import Failure, Loss, LossCause

_start = attrgetter("start")


class Done:
    """A range that has ended on a node."""

    __slots__ = ("count", "lost", "node", "sizes", "start")

    def __init__(
        self,
        start: int,
        count: int,
        node: int,
        sizes: tuple[int, ...],
        lost: Loss | None = None,
    ) -> None:
        self.start = start
        self.count = count
        self.node = node
        self.sizes = sizes
        """The size of each return value, 0 for a small one; empty: all are small."""
        self.lost = lost
        """Why `node` has lost the values; None while it has them."""


class ArrayRow:
    """A row of the task and object tables."""

    __slots__ = (
        "accepted",
        "actor",
        "asked",
        "copies",
        "deps",
        "done",
        "former",
        "inner",
        "lineage",
        "overlaps",
        "owners",
        "put",
        "released",
        "resubmitted",
        "unreconstructable",
    )  # fmt: skip

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        """By node: the client there that waits for the results; several if a parent ran again
        on another node. Each of these nodes has a copy of every small value."""
        self.asked: tuple[int, ...] = ()
        """Nodes that the GCS has asked to forward their results to a later owner."""
        self.former = ""
        """The last owner of a released row."""
        self.released = False
        self.put = False
        """Whether a client put the value, so that no task can reconstruct it."""
        self.actor: bytes | None = None
        """The actor whose call made the array; empty if the GCS does not know the actor."""
        self.accepted: list[tuple[TaskSpec, int]] = []
        self.lineage: list[TaskSpec] = []
        """The specs of accepted ranges that no node runs any more."""
        self.deps: tuple[bytes, ...] = ()
        """The arrays that its tasks have as inputs."""
        self.resubmitted: Ranges | None = None
        """Elements that were placed again and have not ended."""
        self.done: list[Done] = []
        """By start."""
        self.overlaps = False
        """Whether some elements ran twice, so that ranges in `done` may overlap."""
        self.inner: tuple[bytes, ...] = ()
        """If values contain references: the arrays with references inside the arguments."""
        self.unreconstructable: Failure | None = None
        """The error of a lost input that prevents reconstruction; None: no input is lost."""
        self.copies: dict[bytes, dict[int, int]] = {}
        """By object: {node: size} of copies beyond the first."""

    # -- changes -----------------------------------------------------------------

    def accept(self, spec: TaskSpec, node: int) -> None:
        """Note that a node has a range to run, or its owner's node one to place."""
        self.accepted.append((spec, node))
        self.outdated(spec)

    def placed(self, again: TaskSpec) -> None:
        """A range that runs again is not at its owner's node any more, which has had it placed."""
        home, attempt = node_of(again.owner), attempt_of(again)
        staying: list[tuple[TaskSpec, int]] = []
        for known, at in self.accepted:
            placed = at == home and attempt_of(known) == attempt
            staying += [(part, at) for part in (without(known, again) if placed else (known,))]
        self.accepted = staying

    def outdated(self, newer: TaskSpec) -> None:
        """Forget the specs that `newer` replaces, a later placement of the same range."""
        if attempt_of(newer):
            end = newer.start + newer.count
            self.lineage = [
                s for s in self.lineage if s.start < newer.start or s.start + s.count > end
            ]

    def finish(self, done: Done) -> None:
        """Note a range that has ended; it replaces lost ranges that it covers."""
        end = done.start + done.count
        at = bisect_right(self.done, done.start, key=_start)
        while at < len(self.done) and self.done[at].lost and _end(self.done[at]) <= end:
            del self.done[at]
        while at and self.done[at - 1].lost and self.done[at - 1].start == done.start:
            if _end(self.done[at - 1]) > end:
                break
            at -= 1
            del self.done[at]
        if at and _end(self.done[at - 1]) > done.start:
            self.overlaps = True
        if at < len(self.done) and self.done[at].start < end:
            self.overlaps = True
        self.done.insert(at, done)

    def copied(self, oid: bytes, node: int, size: int) -> None:
        """Note a further copy of an object, or that it was dropped."""
        self.copies.setdefault(oid, {})[node] = size

    def lose_node(self, node: int, why: Loss) -> list[tuple[TaskSpec, list[tuple[int, int]]]]:
        """A node has died; return the ranges that it had not finished: (spec, gaps)."""
        unfinished = self.unfinished_at(node)
        self.lineage += [spec for spec, at in self.accepted if at == node]
        self.accepted = [(spec, at) for spec, at in self.accepted if at != node]
        for done in self.done:
            if done.node == node and not done.lost:
                done.lost = why
        for oid in [oid for oid, nodes in self.copies.items() if node in nodes]:
            self.drop_copy(oid, node)
        return unfinished

    def lose_object(self, oid: bytes, node: int, why: Loss) -> None:
        """A living node lacks a value that the table has as its own."""
        # It may have other parts of the array, and has to free these later.
        self.copied(oid, node, DROPPED)
        _, index, _ = split_object_id(oid)
        for done in self.ended(index):
            if done.node == node and not done.lost:
                done.lost = why
                self._retire(node, done.start, _end(done))

    def forget_node(self, node: int) -> list[tuple[TaskSpec, list[tuple[int, int]]]]:
        """An owner's node has freed all its values; return the runs whose end it will not report:
        (spec, gaps) of the owner's own runs.
        """
        unfinished = [
            (spec, gaps)
            for spec, gaps in self.unfinished_at(node)
            if node_of(spec.owner) == node and not attempt_of(spec)
        ]
        over = [spec for spec, _ in unfinished]
        self.accepted = [
            entry for entry in self.accepted if not any(entry[0] is spec for spec in over)
        ]
        self.lineage += over
        for done in self.done:
            if done.node == node and not done.lost:
                done.lost = Loss(LossCause.FREED)
                self._retire(node, done.start, _end(done))
        for oid in [oid for oid, nodes in self.copies.items() if node in nodes]:
            self.drop_copy(oid, node)
        return unfinished

    def _retire(self, node: int, start: int, end: int) -> None:
        """Keep a run that has ended on a node as lineage only."""
        accepted: list[tuple[TaskSpec, int]] = []
        for spec, at in self.accepted:
            low, high = max(start, spec.start), min(end, spec.start + spec.count)
            if at != node or low >= high:
                accepted.append((spec, at))
                continue
            self.lineage.append(part_of(spec, low, high - low))
            if spec.start < low:
                accepted.append((part_of(spec, spec.start, low - spec.start), at))
            if high < spec.start + spec.count:
                accepted.append((part_of(spec, high, spec.start + spec.count - high), at))
        self.accepted = accepted

    def leave(self, spec: TaskSpec, node: int) -> bool:
        """Remove a range that has moved away from a node; return whether it was there.

        If a parent ran twice, its children may be on the node twice: only one run moves.
        """
        end = spec.start + spec.count
        staying: list[tuple[TaskSpec, int]] = []
        gone = 0
        for known, at in self.accepted:
            low, high = max(spec.start, known.start), min(end, known.start + known.count)
            if at != node or known.owner != spec.owner or low >= high or gone >= spec.count:
                staying.append((known, at))
                continue
            gone += high - low
            staying += [(part, at) for part in without(known, spec)]
        self.accepted = staying
        return gone > 0

    def drop_copy(self, oid: bytes, node: int) -> None:
        """Note that a node has dropped its copy of an object."""
        nodes = self.copies.get(oid, {})
        nodes.pop(node, None)
        if not nodes:
            self.copies.pop(oid, None)

    def forget_values(self, alive: set[int], owner_node: int) -> None:
        """Every value is freed: keep the specs, and the runs that have not ended.

        The last owner's node has ended the owner's own runs.
        """
        left: list[tuple[TaskSpec, int]] = []
        for node in dict.fromkeys(node for _, node in self.accepted if node in alive):
            for spec, gaps in self._still_at(node):
                if node != owner_node or node_of(spec.owner) != node:
                    left += [(part_of(spec, start, count), node) for start, count in gaps]
        self.lineage += [spec for spec, _ in self.accepted]
        self.accepted = left
        self.done = []
        self.overlaps = False
        self.copies = {}

    # -- queries -----------------------------------------------------------------

    def locate(self, oid: bytes, alive: set[int]) -> Location | None:
        """Return where the object is, None while it has not been made."""
        _, index, ret = split_object_id(oid)
        copies = self.copies.get(oid, {})
        nodes = dict.fromkeys(n for n, s in copies.items() if n in alive and s != DROPPED)
        size = max(0, max(copies.values(), default=0))
        made = False
        gone: Loss | None = None
        for done in self.ended(index):
            made = True
            size = max(size, done.sizes[ret] if done.sizes else 0)
            if done.node in alive and not done.lost:
                nodes[done.node] = None
            else:
                gone = done.lost or Loss(LossCause.NODE_DIED, done.node)
        if made and size == 0 and (self.resubmitted is None or index not in self.resubmitted):
            # The owners got the value, except for those that reported that they did not.
            at_owners = [n for n in self.owners if n in alive and copies.get(n) != DROPPED]
            nodes.update(dict.fromkeys(at_owners))
        if nodes:
            return Location(oid, tuple(nodes), size)
        return Location(oid, (), size, lost=gone) if made else None

    def ended(self, index: int) -> Iterator[Done]:
        """Yield the runs of an element that have ended, the last by start first."""
        at = bisect_right(self.done, index, key=_start) - 1
        for done in reversed(self.done[0 if self.overlaps else max(at, 0) : at + 1]):
            if index < _end(done):
                yield done

    def pending(self, index: int, alive: set[int]) -> bool:
        """Whether the element is under way: placed again, or accepted and not ended."""
        index = task_of(index)
        if self.resubmitted is not None and index in self.resubmitted:
            return True
        at = {n for s, n in self.accepted if s.start <= index < s.start + s.count and n in alive}
        return bool(at) and not at <= {done.node for done in self.ended(index) if not done.lost}

    def not_yielded(self, index: int) -> bool:
        """Whether a stream's task has ended on its node without yielding this item."""
        if index < STREAM_BASE:
            return False
        ended = {done.node for done in self.ended(task_of(index)) if not done.lost}
        return bool(ended) and ended.isdisjoint(done.node for done in self.ended(index))

    def was_freed(self, index: int) -> bool:
        """Whether an element was freed by its owner, and not lost by a fault."""
        ended = list(self.ended(index))
        if not ended:
            return self.released
        return all(d.lost is not None and d.lost.cause is LossCause.FREED for d in ended)

    def is_unreported(self, oid: bytes, alive: set[int]) -> bool:
        """Whether a call has ended, and no node has reported this item.

        The owner's node reports the end; the node that has a large item reports that, and may
        have died before it did.
        """
        _, index, _ = split_object_id(oid)
        if index < STREAM_BASE or self.actor is None or self.released:
            return False
        has_ended = self.end_of_task(index, alive) >= 0
        return has_ended and self.locate(oid, alive) is None

    def end_of_task(self, index: int, alive: set[int]) -> int:
        """Return a living node where the task of an element has ended; -1 if there is none."""
        ended = (done.node for done in self.ended(task_of(index)) if not done.lost)
        return next((node for node in ended if node in alive), -1)

    def live_owner(self, alive: set[int]) -> str:
        """Return the last client on a living node that waits for the results, if there is one."""
        return next((o for n, o in reversed(self.owners.items()) if n in alive), "")

    def unfinished_at(self, node: int) -> list[tuple[TaskSpec, list[tuple[int, int]]]]:
        """Return the ranges that a node has accepted and not finished: (spec, gaps).

        A run that has ended on another node does not count: it had another owner.
        """
        specs = [spec for spec, at in self.accepted if at == node]
        if not specs:
            return []
        ended = Ranges()
        for done in self.done:
            if done.node == node and not done.lost:
                ended.add(done.start, done.count)
        found = [(spec, ended.missing(spec.start, spec.count)) for spec in specs]
        left = sum(count for _, gaps in found for _, count in gaps)
        if left < self._outstanding_at(node):
            # An element was there twice and ended once; the GCS cannot know for which owner.
            return [(spec, [(spec.start, spec.count)]) for spec in specs]
        return [(spec, gaps) for spec, gaps in found if gaps]

    def _still_at(self, node: int) -> list[tuple[TaskSpec, list[tuple[int, int]]]]:
        """Return the outstanding parts of ranges at a node: (spec, gaps).

        If an element is there twice, its first run is assumed to have ended first.
        """
        unfinished = self.unfinished_at(node)
        count = sum(count for _, gaps in unfinished for _, count in gaps)
        if count == self._outstanding_at(node):
            return unfinished
        runs = [(spec, Ranges()) for spec, at in self.accepted if at == node]
        for spec, left in runs:
            left.add(spec.start, spec.count)
        for done in self.done:
            ended = [(done.start, done.count)] if done.node == node and not done.lost else []
            for _, left in runs:
                others = [gap for start, count in ended for gap in left.missing(start, count)]
                for start, count in ended:
                    left.remove(start, count)
                ended = others
        return [(spec, list(left)) for spec, left in runs if left.size]

    def _outstanding_at(self, node: int) -> int:
        """Return how many elements a node has accepted and not finished; see `outstanding`."""
        accepted = sum(spec.count for spec, at in self.accepted if at == node)
        ended = sum(
            done.count
            for done in self.done
            if done.node == node and not done.lost and done.start < STREAM_BASE
        )
        return max(0, accepted - ended)

    def holders(self) -> set[int]:
        """Return every node that may have values of the array."""
        nodes = {done.node for done in self.done if not done.lost}
        nodes.update(node for _, node in self.accepted)
        for copies in self.copies.values():
            nodes.update(copies)
        return nodes

    def outstanding(self) -> dict[int, int]:
        """Return {node: number of elements} that the node has accepted and not finished.

        An element whose owner's task ran again is accepted twice, by two nodes; each
        run ends on its own node.
        """
        found: Counter[int] = Counter()
        for spec, node in self.accepted:
            found[node] += spec.count
        for done in self.done:
            # The items of a stream are results, but their task goes on.
            if not done.lost and done.start < STREAM_BASE:
                found[done.node] -= done.count
        return {node: left for node, left in found.items() if left > 0}


def inside_of(row: ArrayRow) -> tuple[bytes, ...]:
    """Return the arrays with references inside a row's arguments; its values may refer to them."""
    specs = [*row.lineage, *(spec for spec, _ in row.accepted)]
    extras = [spec.extra for spec in specs if spec.extra is not None]
    return tuple(dict.fromkeys(array for extra in extras for array in extra.inside))


def _end(done: Done) -> int:
    return done.start + done.count
