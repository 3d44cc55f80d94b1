"""What a node does when it hears that another one has come or gone.

::

    NodeChanged ──> the node table, this node's links, and all here that deal with other
         │          nodes: questions under way, pulls, actors and calls on their way to them
         └─ it is dead: owners that live here are told that neither the node nor its clients
            borrow from them any more (`BorrowersGone`), and the GCS is told which results have
            not come of all that it knows of and clients here own (`ResultsMissing`): one may
            have been on its way
"""

from __future__ import annotations

from raytwin.runtime.control.actors.call_submitter import CallSubmitter
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.handlers import Handlers
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.messages import BorrowersGone, NodeChanged, ResultsMissing
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from raytwin.runtime.control.objects.object_directory import ObjectDirectory
from raytwin.runtime.control.observability.queries import QueryDesk

MISSING_MAX = 4096
"""Ranges in one message about results that have not come."""


class MembershipChanges:
    """Passes news of other nodes on to the parts of one."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        members: Membership,
        objects: ObjectDirectory,
        submitter: CallSubmitter,
        queries: QueryDesk,
        log: GcsWriteLog,
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._members = members
        self._objects = objects
        self._submitter = submitter
        self._queries = queries
        self._log = log

    def handlers(self) -> Handlers:
        return {NodeChanged: self.on_node_changed}

    def on_node_changed(self, source: str, message: NodeChanged) -> None:
        """The GCS has published a row of the node table."""
        info = message.info
        self._members.update(info)
        self._ctx.send(f"links:{self._node}", message)
        self._queries.on_node_changed(info)
        self._objects.on_node_changed(info.node, info.alive)
        self._submitter.on_node_changed(info.node, info.alive)
        if not info.alive:
            self._report_missing()
            for client in self._objects.owners.clients():
                self._ctx.send(client, BorrowersGone(info.node, info.incarnation))

    def _report_missing(self) -> None:
        """Say which results have not come: one may have been on its way from a dead node."""
        ranges: list[tuple[bytes, int, int]] = []
        for array in self._objects.owners:
            if self._log.knows(array):
                ranges += [(array, *gap) for gap in self._objects.missing(array)]
        for at in range(0, len(ranges), MISSING_MAX):
            missing = ResultsMissing(self._node, ranges[at : at + MISSING_MAX])
            self._ctx.send("gcs", missing)
