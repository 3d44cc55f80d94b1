"""Owner lookup: the GCS asks every node for the owner of an awaited array without a row.

Most such arrays are about to be reported: the owner's node has not sent its updates yet, or the
actor's call that makes them has not ended. Others are never reported, because the owner's node
died first. So, for each array::

    watch ──> wait ──> ask every living node: do you have its owner? ──> all have answered
               ↑                                                          │         │
               └────── one says yes: wait, twice as long as before ───────┘      none: lost

A row that arrives meanwhile ends the lookup at its next step. `OwnerLookup.ask` omits the first
wait, for an array that was put and released: only a new owner can put it again.

A row may lack an item of a call that has ended: the owner's node reports the end, but the node
with the large item died before it reported the item. A wait does not help then
(`OwnerLookup.ask_all`). Each node sends its updates before it answers; so when all living nodes
have answered and the row still lacks the item, no node has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import OwnersFound, SeekOwners


class OwnerLookup:
    """The awaited arrays without a row, and the nodes that were asked for their owners."""

    def __init__(
        self,
        ctx: Context,
        alive: set[int],
        wait_s: float,
        missing: Callable[[bytes], bool],
        lost: Callable[[bytes], None],
    ) -> None:
        self._ctx = ctx
        self._alive = alive
        self._wait_s = wait_s
        self._missing = missing
        """Whether an array is awaited and has no row, or a row without the awaited item."""
        self._lost = lost
        """Called with an array that no node owns, or whose item no node has."""
        self._waits_s: dict[bytes, float] = {}
        """By array: its next wait, in seconds."""
        self._asked: dict[bytes, dict[int, None]] = {}
        """By array: the nodes that have not answered yet."""

    def __len__(self) -> int:
        return len(self._waits_s)

    def watch(self, arrays: Iterable[bytes]) -> None:
        """Look up arrays without a row, after a wait."""
        new = [array for array in arrays if array not in self._waits_s]
        for array in new:
            self._waits_s[array] = 2 * self._wait_s
        if new:
            self._ctx.after(self._wait_s, partial(self._ask, new))

    def ask(self, array: bytes) -> None:
        """Look up an array that only a new owner can put again: ask the nodes at once."""
        if array not in self._waits_s:
            self._waits_s[array] = self._wait_s
            self._ask([array])

    def ask_all(self, array: bytes) -> None:
        """Look up an array whose row lacks an awaited item; it may be watched already."""
        if array not in self._asked:
            self._waits_s.setdefault(array, self._wait_s)
            self._ask([array])

    def _ask(self, arrays: list[bytes]) -> None:
        left = []
        for array in arrays:
            if array not in self._waits_s or array in self._asked:
                continue  # `ask_all` came before the end of its wait
            if self._missing(array):
                left.append(array)
                self._asked[array] = dict.fromkeys(sorted(self._alive))
            else:
                del self._waits_s[array]
        if left:
            for node in sorted(self._alive):
                self._ctx.send(f"node:{node}", SeekOwners(left))
        for array in left:
            self._judge(array)

    def on_found(self, source: str, message: OwnersFound) -> None:
        """Take a node's answer: which of the arrays its clients own."""
        again: dict[float, list[bytes]] = {}
        for array in message.owned:
            if self._asked.pop(array, None) is not None:
                wait_s = self._waits_s[array]
                self._waits_s[array] = 2 * wait_s
                again.setdefault(wait_s, []).append(array)
        for wait_s, arrays in again.items():
            self._ctx.after(wait_s, partial(self._ask, arrays))
        for array in message.others:
            self._answered(array, message.node)

    def on_node_died(self, node: int) -> None:
        """Count a dead node as one that owns none of the arrays."""
        for array in list(self._asked):
            self._answered(array, node)

    def _answered(self, array: bytes, node: int) -> None:
        asked = self._asked.get(array)
        if asked is not None and node in asked:
            del asked[node]
            self._judge(array)

    def _judge(self, array: bytes) -> None:
        if self._asked[array]:
            return
        del self._asked[array], self._waits_s[array]
        if self._missing(array):
            self._lost(array)
