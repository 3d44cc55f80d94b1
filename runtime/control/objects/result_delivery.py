"""When the owners of results hear of them, and which clients those are by now.

While a worker's report is read, results are gathered and every owner is told in one
message. A plain result that ends alone its worker sends to a driver of this node directly,
too (`Executor.direct_to`). The node hears of it first, and tells the driver after all if
that has not let go of it a while later: so nothing depends on what a worker has sent.
"""

from __future__ import annotations

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import RangeResult, TaskResults
from raytwin.runtime.control.objects.object_directory import ObjectDirectory
from raytwin.runtime.control.ownership.owner_table import NOBODY

TELL_LATER_S = 0.05
"""A result that its owner should have from the worker is told after one to two of these."""


class OwnerNews:
    """Results of one node on their way to their owners."""

    def __init__(self, ctx: Context, node: int, objects: ObjectDirectory) -> None:
        self._ctx = ctx
        self._node = node
        self._objects = objects
        self._later: list[RangeResult] = []
        """Results that workers have sent to their owners themselves."""
        self._later_due: list[RangeResult] = []
        """Those that came before the last tick: what is left of them is told at the next."""
        self._later_set = False
        self._told: list[RangeResult] | None = None
        """Results that a worker has just reported, on their way to their owners."""

    def gather(self) -> None:
        """From here to `tell`, results are kept back: owners are told in one message."""
        self._told = []

    def tell(self, told_directly: bool) -> None:
        """Tell the owners what was gathered; later, if their worker has done so."""
        told, self._told = self._told, None
        if told:
            if told_directly:
                self._tell_later(told)
            else:
                self.tell_owner(told)

    def _tell_later(self, results: list[RangeResult]) -> None:
        """Tell the owners of what they have not let go of by then.

        A worker may die before it has told them, or its way to them may be full.
        """
        self._later += results
        if not self._later_set:
            self._later_set = True
            self._ctx.after(TELL_LATER_S, self._on_later)

    def _on_later(self) -> None:
        due, self._later_due, self._later = self._later_due, self._later, []
        self._later_set = bool(self._later_due)
        if due:
            self.tell_owner(due)
        if self._later_set:
            self._ctx.after(TELL_LATER_S, self._on_later)

    def ended(self, results: list[RangeResult]) -> None:
        """Tell the owners of results at once, or with those that are gathered."""
        if self._told is None:
            self.tell_owner(results)
        else:
            self._told += results

    def run_ended(self, run: RangeResult, owner: str) -> None:
        """Tell the owner of a run of results at once, or with those that are gathered."""
        if self._told is None:
            self._ctx.send(owner, TaskResults(owner, [run]))
        else:
            self._told.append(run)

    def tell_owner(self, results: list[RangeResult]) -> None:
        """Pass results on to who owns them by now."""
        told: dict[str, list[RangeResult]] = {}
        owners, others = self._objects.owners, self._objects.owners.others
        for result in results:
            array = result.array
            if not others or array not in others:
                owner = owners.get(array, NOBODY)
                if owner != NOBODY:
                    of_owner = told.get(owner)
                    if of_owner is None:
                        told[owner] = [result]
                    else:
                        of_owner.append(result)
                continue
            for owner in self._objects.owners.owners_of(array):
                told.setdefault(owner, []).append(result)
        for owner, results in told.items():
            self._ctx.send(owner, TaskResults(owner, results))

    def send(self, owner: str, results: list[RangeResult]) -> None:
        to = owner if node_of(owner) == self._node else f"node:{node_of(owner)}"
        self._ctx.send(to, TaskResults(owner, results))
