"""Which nodes there are, as one node or the global scheduler has heard it."""

from __future__ import annotations

from runtime.control.messages import NodeInfo


class Membership:
    """The node table, kept up to date by what the GCS publishes."""

    def __init__(self, me: int = -1) -> None:
        self.me = me
        self.nodes: dict[int, NodeInfo] = {}
        self.alone = True
        """Whether no other node is alive."""

    def update(self, info: NodeInfo) -> None:
        """Take a published row, unless a newer incarnation is known."""
        known = self.nodes.get(info.node)
        if known is None or info.incarnation >= known.incarnation:
            self.nodes[info.node] = info
            self.alone = not any(i.alive and n != self.me for n, i in self.nodes.items())

    def alive(self) -> list[NodeInfo]:
        """Return the rows of living nodes, by number."""
        return [info for _, info in sorted(self.nodes.items()) if info.alive]

    @property
    def fenced(self) -> str:
        """Why the cluster has declared this node dead, or an empty string."""
        mine = self.nodes.get(self.me)
        return "" if mine is None or mine.alive else (mine.reason or "declared dead")
