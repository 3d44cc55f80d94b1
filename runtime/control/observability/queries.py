"""What a client may ask of the cluster: its nodes, its timeline, its stores.

The client asks its own node. ``nodes`` is answered from the node table there, and
the GCS is asked for

``events``        [time_s, kind, subject, detail, how many of the kind it stands for] of
                  the last events, by time
``jobs``          [number, driver, its PID, namespace, entrypoint, alive, why it ended] of the
                  jobs, by number
``event_counts``  how many there were of each kind, since the cluster started
``tables``        how many rows it has: {table: rows}
``names``         [namespace, name] of the actors that have a name

The others are gathered from every living node, as flat rows:

``timeline``  [name, node, worker number, start_s, elapsed_s, count, array ID, first
              element, attempt, kind, status, since when it waited there (-1: not
              known), IDs of its inputs] of the last ranges that ran on each, by
              start; see `timeline`
``transfers`` [node, from which node, start_s, elapsed_s, bytes, object ID] of the last
              large objects that came to each
``placements`` [time_s, name, array ID, first element, count, node, owner] of what the
              global scheduler placed, which alone knows it
``actors``    [name, node, incarnation, state, calls that took effect, calls replayed, its
              worker's address or ""], of those that live
``groups``    [id, name, bundles, {bundle: node}, strategy, state, detached] of the
              placement groups, as the global scheduler knows them: removed ones, too
``groups_there`` the same of those that were not removed, so that asking costs nothing for
              up to 2,000 that were
``available`` [node, {resource: amount that is free}], by node
``stores``    [node, large objects, their bytes, places not sealed yet], by node
``loads``     [node, tasks that wait or run, {resource: amount}, the same of what is
              free], by node
``disks``     [node, objects that were evicted to its disk, their bytes], by node

Where the GCS is a chain, ``chain`` is answered by its client (`chain_client`):
one row with the epoch, the names of the members and who is joining.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.handlers import Handlers
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.messages import NodeInfo, Query, QueryReply

_ORDER: dict[str, Callable[[list[Any]], Any]] = {
    "timeline": lambda row: (row[3], row[1], row[2]),
    "stores": lambda row: row[0],
    "loads": lambda row: row[0],
    "available": lambda row: row[0],
    "groups": lambda row: 0,
    "groups_there": lambda row: 0,
    "placements": lambda row: 0,
    "disks": lambda row: row[0],
}
_AT_GCS = frozenset({"events", "event_counts", "jobs", "tables", "names"})
_AT_GLOBAL = frozenset({"groups", "groups_there", "placements"})


GLOBAL = -1
"""Stands for the global scheduler among the nodes that have to answer."""


class _Gathering:
    """Rows on their way from several nodes to one client."""

    __slots__ = ("client", "key", "kind", "missing", "rows")

    def __init__(self, kind: str, client: str, key: int, missing: set[int]) -> None:
        self.kind = kind
        self.client = client
        self.key = key
        self.missing = missing
        self.rows: list[Any] = []


class QueryDesk:
    """Answers the queries that reach a node."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        members: Membership,
        store: Callable[[], tuple[int, int, int]],
        load: Callable[[], tuple[int, dict[str, float], dict[str, float]]],
        disk: Callable[[], tuple[int, int]],
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._members = members
        self._gathering: dict[int, _Gathering] = {}
        self._asked: dict[int, tuple[str, int]] = {}
        """Questions that the GCS was asked, for whom and by which key."""
        self._keys = 0
        self._rows: dict[str, Callable[[], list[list[Any]]]] = {
            "stores": lambda: [[node, *store()]],
            "loads": lambda: [[node, *load()]],
            "available": lambda: [[node, load()[2]]],
            "disks": lambda: [[node, *disk()]],
        }

    def handlers(self) -> Handlers:
        return {
            Query: self.on_query,
            QueryReply: self.on_reply,
        }

    def add(self, kind: str, rows: Callable[[], list[list[Any]]]) -> None:
        """Answer another kind of query, sorted by its first two columns."""
        self._rows[kind] = rows

    def on_query(self, source: str, message: Query) -> None:
        """Answer, or ask those who know."""
        if source.startswith("node:"):
            rows = self._rows[message.kind]()
            self._ctx.send(source, QueryReply(message.key, message.client, rows))
        elif message.kind == "nodes":
            table = [
                {
                    "node": info.node,
                    "host": info.host,
                    "port": info.port,
                    "resources": info.resources,
                    "alive": info.alive,
                    "reason": info.reason,
                }
                for _, info in sorted(self._members.nodes.items())
            ]
            self._ctx.send(source, QueryReply(message.key, source, table))
        elif message.kind in _AT_GCS:
            self._keys += 1
            self._asked[self._keys] = (source, message.key)
            self._ctx.send("gcs", Query(message.kind, self._keys, source))
        elif message.kind in _AT_GLOBAL:
            self._keys += 1
            self._gathering[self._keys] = _Gathering(message.kind, source, message.key, {GLOBAL})
            self._ctx.send("global", Query(message.kind, self._keys, source))
        elif message.kind in self._rows:
            self._gather(message.kind, source, message.key)
        else:
            raise ValueError(f"unknown query {message.kind!r}")

    def on_reply(self, source: str, message: QueryReply) -> None:
        """A node sent its part of the rows, or the GCS all there is."""
        if source == "gcs":
            client, key = self._asked.pop(message.key)
            self._ctx.send(client, QueryReply(key, client, message.value))
            return
        gathering = self._gathering.get(message.key)
        if gathering is not None:
            gathering.rows += message.value
            self._heard(message.key, GLOBAL if source == "global" else node_of(source))

    def on_node_changed(self, info: NodeInfo) -> None:
        """Wait no more for a node that died."""
        if not info.alive:
            for key in list(self._gathering):
                self._heard(key, info.node)

    def _gather(self, kind: str, client: str, key: int) -> None:
        self._keys += 1
        others = {i.node for i in self._members.alive()} - {self._node}
        gathering = _Gathering(kind, client, key, others | {self._node})
        gathering.rows += self._rows[kind]()
        self._gathering[self._keys] = gathering
        for node in sorted(others):
            self._ctx.send(f"node:{node}", Query(kind, self._keys, client))
        self._heard(self._keys, self._node)

    def _heard(self, key: int, node: int) -> None:
        gathering = self._gathering[key]
        gathering.missing.discard(node)
        if not gathering.missing:
            del self._gathering[key]
            rows = sorted(gathering.rows, key=_ORDER.get(gathering.kind, lambda row: row[:2]))
            self._ctx.send(gathering.client, QueryReply(gathering.key, gathering.client, rows))
