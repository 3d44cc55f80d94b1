"""The queries of clients: the cluster's nodes, its timeline, its stores.

A client asks its own node. The node answers ``nodes`` from its copy of the node table,
and forwards these to the GCS:

``events``        [time_s, kind, subject, detail, number of such events in this row] of
                  the last events, by time
``jobs``          [number, driver, its PID, namespace, entrypoint, alive, why it ended] of the
                  jobs, by number
``event_counts``  {kind: number of events} since the cluster started
``tables``        {table: number of rows}
``names``         [namespace, name] of the actors that have a name

It forwards these to the global scheduler:

``placements`` [time_s, name, array ID, first element, count, node, owner] of ranges it placed
``groups``     [id, name, bundles, {bundle: node}, strategy, state, detached, stats] of the
               placement groups: removed ones, too; see `GroupTable.rows`
``groups_there`` the same, without removed groups, of which there may be 2,000

It gathers the others from every living node, as flat rows:

``timeline``  [name, node, worker number, start_s, elapsed_s, count, array ID, first
              element, attempt, kind, status, start of its wait there (-1: not
              known), IDs of its inputs] of the last ranges that ran on each, by
              start; see `timeline`
``transfers`` [node, source node, start_s, elapsed_s, bytes, object ID] of the last
              large objects that each has fetched
``actors``    [name, node, incarnation, state, calls that took effect, calls replayed, its
              worker's address or "", its PID or 0], of those that live
``available`` [node, {resource: amount that is free}], by node
``stores``    [node, large objects, their bytes, places not sealed yet], by node
``loads``     [node, tasks that wait or run, {resource: amount}, the amounts
              that are free], by node
``disks``     [node, objects that were evicted to its disk, their bytes], by node

If the GCS is a chain, the chain's client answers ``chain``: one row with the epoch,
the names of the members and of the joining replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.messages import NodeInfo, Query, QueryReply

_ORDER: dict[str, Callable[[list[Any]], Any]] = {
    "timeline": lambda row: (row[3], row[1], row[2]),
    # This node's rows are tuples, those of others lists.
    "actors": lambda row: tuple(row[:2]),
    "transfers": lambda row: tuple(row[:2]),
}
"""How the rows of several nodes are sorted, if not by node."""
_ASKED = {
    **dict.fromkeys(("events", "event_counts", "jobs", "tables", "names"), "gcs"),
    **dict.fromkeys(("groups", "groups_there", "placements"), "global"),
}
"""The component that answers a query which the nodes do not answer."""


class _Gathering(Struct):
    """Rows on their way to one client."""

    kind: str
    client: str
    key: int
    missing: set[str]
    """Addresses of nodes that have not answered."""
    rows: list[Any] = []


class Queries:
    """Answers the queries that reach a node."""

    def __init__(
        self, ctx: Context, node: int, members: Membership, rows: dict[str, Callable[[], list[Any]]]
    ) -> None:
        """`rows` returns this node's rows of each kind that is gathered from every node."""
        self._ctx = ctx
        self._address = f"node:{node}"
        self._members = members
        self._rows = rows
        self._gathering: dict[int, _Gathering] = {}
        self._passed_on: dict[int, tuple[str, int]] = {}
        """Queries that the GCS or the global scheduler has: the client, and its key."""
        self._keys = 0

    def handlers(self) -> Handlers:
        return {
            Query: self.on_query,
            QueryReply: self.on_reply,
        }

    def on_query(self, source: str, message: Query) -> None:
        """Answer a query, or forward it."""
        kind = message.kind
        self._keys += 1
        if source.startswith("node:"):
            self._ctx.send(source, QueryReply(message.key, message.client, self._rows[kind]()))
        elif kind == "nodes":
            fields = ("node", "host", "port", "resources", "alive", "reason")
            table = [
                {field: getattr(info, field) for field in fields}
                for _, info in sorted(self._members.nodes.items())
            ]
            self._ctx.send(source, QueryReply(message.key, source, table))
        elif kind in _ASKED:
            self._passed_on[self._keys] = (source, message.key)
            self._ctx.send(_ASKED[kind], Query(kind, self._keys, source))
        elif kind in self._rows:
            others = {f"node:{info.node}" for info in self._members.alive()} - {self._address}
            gathering = _Gathering(kind, source, message.key, others | {self._address})
            self._gathering[self._keys] = gathering
            for address in sorted(others, key=node_of):
                self._ctx.send(address, Query(kind, self._keys, source))
            self._answered(self._keys, self._address, self._rows[kind]())
        else:
            raise ValueError(f"unknown query {kind!r}")

    def on_reply(self, source: str, message: QueryReply) -> None:
        """A node has sent its part of the rows, or the GCS or global scheduler all rows."""
        if message.key in self._passed_on:
            client, key = self._passed_on.pop(message.key)
            self._ctx.send(client, QueryReply(key, client, message.value))
        else:
            self._answered(message.key, source, message.value)

    def on_node_changed(self, info: NodeInfo) -> None:
        """Stop waiting for a node that died."""
        if not info.alive:
            for key in list(self._gathering):
                self._answered(key, f"node:{info.node}", [])

    def _answered(self, key: int, address: str, rows: list[Any]) -> None:
        gathering = self._gathering.get(key)
        if gathering is None:
            return
        gathering.rows += rows
        gathering.missing.discard(address)
        if not gathering.missing:
            del self._gathering[key]
            rows = sorted(gathering.rows, key=_ORDER.get(gathering.kind, lambda row: row[0]))
            self._ctx.send(gathering.client, QueryReply(gathering.key, gathering.client, rows))
