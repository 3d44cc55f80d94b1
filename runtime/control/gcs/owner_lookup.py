"""Arrays that somebody waits for and of which the object table has not heard that they are made.

Most are on their way: their owner's node has not told of them yet, or a call of an
actor is to make them, of which the table hears only when it has ended. Others will
never come, as their owner died before its node told of them. So, of each::

    watch ──> wait ──> ask every living node: is its owner yours? ──> all have answered
               ↑                                                        │         │
               └───── one says yes: wait, twice as long as before ──────┘     nobody: lost

A row that comes meanwhile ends it at the next step. Of what was put and has been let go
of the first wait is left out (`OwnerLookup.ask`): nobody but a new owner can put it again.

The item of a call that has ended may lack in a row that has come: its owner's node tells of
the end, and of a large item the node that has it, or nobody, as that died before it did. Then
a wait is no use (`OwnerLookup.ask_all`). Every node tells what it knows before it answers; so when
all living ones have answered, whosever it is, nobody has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import OwnersFound, SeekOwners


class OwnerLookup:
    """The arrays without a row that are awaited, and who was asked for their owners."""

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
        """Whether an array is awaited and has no row, or one that lacks what is awaited."""
        self._lost = lost
        """Called with an array that nobody owns, or nobody has told of."""
        self._waits_s: dict[bytes, float] = {}
        """How long the next wait of an array is."""
        self._asked: dict[bytes, dict[int, None]] = {}
        """Of those that are asked for: which nodes have not answered."""

    def __len__(self) -> int:
        return len(self._waits_s)

    def watch(self, arrays: Iterable[bytes]) -> None:
        """Somebody begins to wait for arrays that have no row."""
        new = [array for array in arrays if array not in self._waits_s]
        for array in new:
            self._waits_s[array] = 2 * self._wait_s
        if new:
            self._ctx.after(self._wait_s, partial(self._ask, new))

    def ask(self, array: bytes) -> None:
        """The same, of one that only a new owner could bring back: the nodes are asked at once."""
        if array not in self._waits_s:
            self._waits_s[array] = self._wait_s
            self._ask([array])

    def ask_all(self, array: bytes) -> None:
        """The same, of one whose row lacks what is awaited; it may have been watched before."""
        if array not in self._asked:
            self._waits_s.setdefault(array, self._wait_s)
            self._ask([array])

    def _ask(self, arrays: list[bytes]) -> None:
        left = []
        for array in arrays:
            if array not in self._waits_s or array in self._asked:
                continue  # all were asked before its wait was over
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
        """A node says which of the arrays its clients own."""
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
        """It will not answer, and what it owned has no owner."""
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
