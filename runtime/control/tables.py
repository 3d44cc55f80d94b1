"""The GCS's task and object tables: one row per array.

A row holds what the paper keeps in two tables, because one is computed from
the other: the ranges that were accepted, with the node that has each (task
table, lineage), and the ranges that are done, with the nodes that hold their
values (object table).

An element is *covered* when it is done and a copy of its values exists, or
when its values are lost; the elements of accepted ranges that are not covered
are the ones that still run somewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from operator import attrgetter

from runtime.control.ids import STREAM_BASE, split_object_id
from runtime.control.messages import Location, TaskSpec
from runtime.control.ranges import Ranges

_start = attrgetter("start")


def ghost_of(node: int, incarnation: int) -> int:
    """Return the number under which a dead incarnation of a node is remembered.

    It is below -1, and no other's: a node that comes back under its old number
    has nothing of what it had.
    """
    return -2 - (incarnation << 32 | node)


class Done:
    """A range that has ended on a node."""

    __slots__ = ("count", "node", "sizes", "start")

    def __init__(self, start: int, count: int, node: int, sizes: tuple[int, ...]) -> None:
        self.start = start
        self.count = count
        self.node = node
        self.sizes = sizes
        """Per return value, 0 for small ones; empty: all are small."""


class ArrayRow:
    """All that the GCS knows of one array."""

    __slots__ = (
        "accepted", "copies", "covered", "done", "lost", "overlaps", "owner", "owner_node",
    )  # fmt: skip

    def __init__(self) -> None:
        self.owner = ""
        """Its address, where a range was logged; puts and short tasks need none."""
        self.owner_node = -1
        """Holds a copy of every small value until the array is released; -1: not known."""
        self.accepted: list[tuple[TaskSpec, int]] = []
        self.covered = Ranges()
        self.done: list[Done] = []
        """By start."""
        self.overlaps = False
        """Some elements ran twice, so ranges in `done` may overlap."""
        self.copies: dict[bytes, dict[int, int]] = {}
        """Object -> {node: size} of copies beyond the first."""
        self.lost: dict[int, str] = {}
        """Why: by the ghost of the node that took the values along."""

    def finish(self, done: Done) -> None:
        """Note a range that has ended."""
        if self.covered.add(done.start, done.count) < done.count:
            self.overlaps = True
        at = bisect_right(self.done, done.start, key=_start)
        self.done.insert(at, done)

    def copied(self, oid: bytes, node: int, size: int) -> None:
        """Note a further copy of an object."""
        self.copies.setdefault(oid, {})[node] = size

    def locate(self, oid: bytes, alive: set[int]) -> Location | None:
        """Return where the object is, None while it has not been made."""
        _, index, ret = split_object_id(oid)
        nodes = dict.fromkeys(n for n in self.copies.get(oid, ()) if n in alive)
        size = max(self.copies.get(oid, {}).values(), default=0)
        made = False
        gone = ""
        at = bisect_right(self.done, index, key=_start) - 1
        for done in reversed(self.done[0 if self.overlaps else max(at, 0) : at + 1]):
            if index >= done.start + done.count:
                continue
            made = True
            size = max(size, done.sizes[ret] if done.sizes else 0)
            if done.node in alive:
                nodes[done.node] = None
            else:
                gone = self.lost.get(done.node, "its node died")
        if made and size == 0 and self.owner_node in alive:
            nodes[self.owner_node] = None
        if nodes:
            return Location(oid, tuple(nodes), size)
        return Location(oid, (), size, lost=gone) if made else None

    def bury(self, node: int, ghost: int, reason: str) -> None:
        """The node is dead: what it held is nowhere, whoever gets its number next."""
        for done in self.done:
            if done.node == node:
                done.node = ghost
        for nodes in self.copies.values():
            nodes.pop(node, None)
        self.accepted = [(spec, at) for spec, at in self.accepted if at != node]
        self.lost[ghost] = reason
        if self.owner_node == node:
            self.owner_node = ghost

    def unfinished_at(self, node: int) -> list[tuple[TaskSpec, list[tuple[int, int]]]]:
        """Return what a node had accepted and not done: (spec, gaps).

        What has ended elsewhere does not count: that run had another owner.
        """
        specs = [spec for spec, at in self.accepted if at == node]
        if not specs:
            return []
        ended = Ranges()
        for done in self.done:
            if done.node == node:
                ended.add(done.start, done.count)
        found = [(spec, ended.missing(spec.start, spec.count)) for spec in specs]
        left = sum(count for _, gaps in found for _, count in gaps)
        if left < self.outstanding().get(node, 0):
            # Some element was there twice and ended once: nobody knows for whom.
            return [(spec, [(spec.start, spec.count)]) for spec in specs]
        return [(spec, gaps) for spec, gaps in found if gaps]

    def holders(self) -> set[int]:
        """Return every node that may hold something of the array."""
        nodes = {done.node for done in self.done} | {node for _, node in self.accepted}
        for copies in self.copies.values():
            nodes.update(copies)
        return nodes

    def outstanding(self) -> dict[int, int]:
        """Return {node: elements} of what was accepted there and has not ended there.

        Ended elsewhere does not count: an element whose owner's task ran again is
        accepted twice, and each run ends where it is.
        """
        found: Counter[int] = Counter()
        for spec, node in self.accepted:
            found[node] += spec.count
        for done in self.done:
            # The items of a stream are results, but their task goes on.
            if done.start < STREAM_BASE:
                found[done.node] -= done.count
        return {node: left for node, left in found.items() if left > 0}
