"""The node table as the GCS has published it to one node or to the global scheduler."""

from __future__ import annotations

from collections import ChainMap

from raytwin.runtime.control.messages import NodeInfo


class Membership:
    """A copy of the node table, which the GCS keeps up to date.

    It is the table as it was when this node registered, which is never changed, and the changes
    since: where many nodes are in one process, as in the simulator, they share the former.
    """

    def __init__(self, me: int = -1, incarnation: int = 0) -> None:
        self.me = me
        self.incarnation = incarnation
        """The incarnation of this node itself."""
        self._changes: dict[int, NodeInfo] = {}
        self.nodes = ChainMap(self._changes, {})
        """The rows by number. To go through them all makes a dictionary of them."""
        self.alone = True
        """Whether no other node is alive."""
        self.fenced = ""
        """Why the cluster has declared this node dead; empty: it has not."""
        self._others: list[int] | None = None

    def begin(self, rows: dict[int, NodeInfo]) -> list[NodeInfo]:
        """Take the table as it was when this node registered; nobody may change it.

        Returns the rows of the living nodes of which there was news before.
        """
        earlier = list(self._changes.values())
        self._changes.clear()
        self.nodes.maps[1] = rows
        self._look(rows.get(self.me))
        for info in earlier:
            self.update(info)
        return [row for row in (self.nodes[info.node] for info in earlier) if row.alive]

    def update(self, info: NodeInfo) -> None:
        """Take a published row, unless a newer incarnation is known."""
        known = self.nodes.get(info.node)
        if known is None or info.incarnation >= known.incarnation:
            self._changes[info.node] = info
            self._look(info)

    def _look(self, changed: NodeInfo | None) -> None:
        nodes, me = self.nodes, self.me
        self._others = None
        self.alone = not any(
            info.alive and node != me and nodes[node] is info
            for rows in nodes.maps for node, info in rows.items()
        )  # fmt: skip
        if changed is not None and changed.node == me:
            self.fenced = self._fence(changed)

    def alive(self) -> list[NodeInfo]:
        """Return the rows of living nodes, by number."""
        return [info for _, info in sorted(self.nodes.items()) if info.alive]

    def others(self) -> list[int]:
        """Return the numbers of the other living nodes, in order; nobody may change the list."""
        if self._others is None:
            self._others = [info.node for info in self.alive() if info.node != self.me]
        return self._others

    def _fence(self, mine: NodeInfo) -> str:
        if mine.incarnation < self.incarnation:
            return ""  # the news of an earlier process's death, which came too late for it
        if mine.incarnation > self.incarnation:
            return "another process took its place"
        return "" if mine.alive else (mine.reason or "declared dead")

    def refusal(self, node: int, incarnation: int) -> str:
        """Return why messages of that incarnation of a node are refused; "" if they are not."""
        return refusal(self.nodes.get(node), node, incarnation)


def refusal(info: NodeInfo | None, node: int, incarnation: int) -> str:
    """Return why messages of an incarnation are refused, given the node's row; "" if not.

    An unknown incarnation is not refused: the change of the node may be on its way.
    """
    if info is None or incarnation > info.incarnation:
        return ""
    if incarnation < info.incarnation:
        return f"incarnation {incarnation} of node {node} is over"
    return "" if info.alive else f"node {node} was declared dead: {info.reason}"
