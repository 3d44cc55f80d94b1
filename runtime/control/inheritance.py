"""What becomes of the arrays that a dead worker owned: inherited by its node, or lost.

::

    WorkerDied ──task or actor runs again──> `orphans`: the next one claims them
         │     ──some are lent─────────────> `orphans`, for as long as they are borrowed; all
         │                                   nodes and clients that know of them say so anew
         ↓
        LOST   ──a client elsewhere has claimed it──> handed over: its values stay here
               ──else──> the GCS is told, then it is released: who asks for it hears that
                         its owner has died

Actors that it had made are lost with it, unless it runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.control.call_submitter import CallSubmitter
from runtime.control.context import Context
from runtime.control.custody import Custody
from runtime.control.membership import Membership
from runtime.control.messages import OwnerDied, TaskSpec
from runtime.control.objects import ObjectDirectory
from runtime.control.orphans import Orphans
from runtime.control.owned import Owned
from runtime.control.results import Results
from runtime.control.task_log import TaskLog


class Inheritance:
    """Arrays of one node whose owners die."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        members: Membership,
        objects: ObjectDirectory,
        owned: Owned,
        orphans: Orphans,
        results: Results,
        submitter: CallSubmitter,
        log: TaskLog,
        custody: Custody,
        release_all: Callable[[Sequence[bytes]], None],
    ) -> None:
        """`release_all` forgets arrays, see `LettingGo`."""
        self._ctx = ctx
        self._node = node
        self._members = members
        self._objects = objects
        self._owned = owned
        self._orphans = orphans
        self._results = results
        self._submitter = submitter
        self._log = log
        self._custody = custody
        self._release_all = release_all

    def inherit(
        self, worker: str, arrays: list[bytes], parent: TaskSpec | None, restarts: bool
    ) -> None:
        """A worker is gone that owned arrays: keep what somebody may want.

        `parent` is the range that it ran, if that runs again; `restarts`: so does its actor.
        """
        if parent is None and not restarts:
            # Actors end with their owner.
            for actor in [array for array in arrays if array in self._owned.actors]:
                self.lose(actor)
            arrays = [array for array in arrays if array in self._objects.owners]
        lent = not self._owned.lent.isdisjoint(arrays)
        if parent is None and not restarts and not lent:
            for array in arrays:
                self.lose(array)
            return
        self._orphans.keep(worker, arrays, parent, restarts, lent)
        if lent or restarts:
            for array in arrays:
                self._log.expose(array)
        if lent:
            died = OwnerDied(worker)
            for info in self._members.alive():
                if info.node != self._node:
                    self._ctx.send(f"node:{info.node}", died)
            self._custody.on_owner_died(died)

    def lose(self, array: bytes) -> None:
        """Its owner is dead: whoever has borrowed it asks the GCS, which has to know.

        If somebody on another node has claimed it, that is its owner.
        """
        if self._results.has_heir_elsewhere(array):
            self._log.hand_over(array)
            self._objects.disown(array)
            self._results.keep_for_others(array)
            self._submitter.forget_all((array,))
            self._owned.ends.pop(array, None)
            self._owned.lent.discard(array)
            return
        self._log.bereave(array)
        self._release_all((array,))
