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

from runtime.control.ids import split_object_id
from runtime.control.messages import Location, TaskSpec
from runtime.control.ranges import Ranges


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

    __slots__ = ("accepted", "copies", "covered", "done", "lost", "owner_node")

    def __init__(self) -> None:
        self.owner_node = -1
        """Holds a copy of every small value until the array is released."""
        self.accepted: list[tuple[TaskSpec, int]] = []
        self.covered = Ranges()
        self.done: list[Done] = []
        self.copies: dict[bytes, dict[int, int]] = {}
        """Object -> {node: size} of copies beyond the first."""
        self.lost: dict[int, str] = {}
        """Why: by the number of the node that took the values along."""

    def finish(self, done: Done) -> None:
        """Note a range that has ended."""
        self.covered.add(done.start, done.count)
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
        # A range that ran again may overlap: look at all that cover the index.
        for done in reversed(self.done[: at + 1]):
            if not done.start <= index < done.start + done.count:
                if made or done.start + done.count <= index:
                    break
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

    def unfinished_at(self, node: int) -> list[tuple[TaskSpec, list[tuple[int, int]]]]:
        """Return what a node had accepted and not done: (spec, gaps)."""
        found = []
        for spec, at in self.accepted:
            if at == node:
                gaps = self.covered.missing(spec.start, spec.count)
                if gaps:
                    found.append((spec, gaps))
        return found

    def holders(self) -> set[int]:
        """Return every node that may hold something of the array."""
        nodes = {done.node for done in self.done} | {node for _, node in self.accepted}
        for copies in self.copies.values():
            nodes.update(copies)
        return nodes

    def outstanding(self) -> dict[int, int]:
        """Return {node: elements} of what was accepted and is not done."""
        found: dict[int, int] = {}
        for spec, node in self.accepted:
            left = sum(count for _, count in self.covered.missing(spec.start, spec.count))
            if left:
                found[node] = found.get(node, 0) + left
        return found


def _start(done: Done) -> int:
    return done.start
