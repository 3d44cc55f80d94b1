"""The node table as the GCS has published it to one node or to the global scheduler."""

from __future__ import annotations

from raytwin.runtime.control.messages import NodeInfo


class Membership:
    """A copy of the node table, which the GCS keeps up to date by `NodeChanged`."""

    def __init__(self, me: int = -1, incarnation: int = 0) -> None:
        self.me = me
        self.incarnation = incarnation
        """The incarnation of this node itself."""
        self.nodes: dict[int, NodeInfo] = {}
        self.alone = True
        """Whether no other node is alive."""
        self.fenced = ""
        """Why the cluster has declared this node dead; empty: it has not."""

    def update(self, info: NodeInfo) -> None:
        """Take a published row, unless a newer incarnation is known."""
        known = self.nodes.get(info.node)
        if known is None or info.incarnation >= known.incarnation:
            self.nodes[info.node] = info
            self.alone = not any(i.alive and n != self.me for n, i in self.nodes.items())
            if info.node == self.me:
                self.fenced = self._fence(info)

    def alive(self) -> list[NodeInfo]:
        """Return the rows of living nodes, by number."""
        return [info for _, info in sorted(self.nodes.items()) if info.alive]

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
