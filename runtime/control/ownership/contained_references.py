"""The node's part in counting references: values that it keeps, and who passes what on.

A node is in an owner's book for every value here that has a reference inside. It gets
there in one of two ways:

* a worker or driver of this node made the value and has entered the node before it
  reported. Until the report comes the node remembers that (`promised`): a worker may
  die in between;
* another node sent it. That has entered the value as *on its way* here; when it comes,
  this node enters itself and strikes that off, with one message.

It strikes itself off when it drops the value. So a value is in the book at every moment
from the maker's to the last node's, whatever order the messages of different nodes
arrive in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import WORKERS_PER_LIFE, incarnation_of, node_of
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.messages import RangeResult, RefUpdates, ResultRefs
from raytwin.runtime.control.ownership.borrowers import (
    ENTER,
    GONE,
    PINNED,
    STRIKE,
    Update,
    keeper_of,
    on_its_way,
)
from raytwin.runtime.control.ownership.reference_counter import Returns


class Custody:
    """What one node answers for at owners everywhere."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        incarnation: int,
        members: Membership,
        lent: Callable[[bytes], None],
        lives: Callable[[str], bool],
    ) -> None:
        """`lent` is told of arrays that are inside values, if their owner is on this node."""
        self._ctx = ctx
        self._node = node
        self._keeper = f"node:{node}.{(incarnation - 1) * WORKERS_PER_LIFE}"
        self._members = members
        self._lent = lent
        self._lives = lives
        self._returns = Returns(ctx, self._send)
        self.contained: dict[bytes, list[tuple[bytes, str]]] = {}
        """By the array of the value that is here: arrays inside of it, and their owners."""
        self._promised: dict[str, Counter[tuple[bytes, str]]] = {}
        """By worker: arrays and owners it has entered this node for, and not reported."""
        self._told: dict[str, dict[str, None]] = {}
        """By worker of this node: owners that have heard of it."""

    def __len__(self) -> int:
        """How many arrays of values there are with references inside, or promised."""
        return len(self.contained) + len(self._promised)

    def is_of_here(self, client: str) -> bool:
        """Whether a client is of this node, in the life that it has now."""
        return keeper_of(client) == self._keeper

    # -- workers ---------------------------------------------------------------

    def on_updates(self, source: str, message: RefUpdates) -> None:
        """Updates on their way from a client to an owner."""
        owner = message.owner
        if not source.startswith("node:"):
            # What a client says of others it says of results: theirs know.
            for array, borrower, _, what in message.updates:
                if borrower in (source, PINNED):
                    self._told.setdefault(source, {})[owner] = None
                elif borrower == self._keeper and what == ENTER:
                    self._promised.setdefault(source, Counter())[array, owner] += 1
        self._send(owner, message.updates)

    def reported(self, source: str, result: RangeResult) -> None:
        """A client of this node has reported a value: what it promised is kept."""
        assert result.refs is not None
        for array, owner in result.refs.contained:
            if node_of(owner) == self._node:
                self._lent(array)
        promised = self._promised.get(source)
        if promised is None:
            return
        for pair in result.refs.contained:
            if pair in promised:
                promised[pair] -= 1
                if not promised[pair]:
                    del promised[pair]
        if not promised:
            del self._promised[source]

    def worker_gone(self, worker: str) -> None:
        """A worker is gone: owners strike it off, and what it had promised."""
        for (array, owner), count in self._promised.pop(worker, Counter()).items():
            for _ in range(count):
                self._strike(array, owner)
        for owner in self._told.pop(worker, ()):
            self._send(owner, [(b"", worker, 0, GONE)])

    # -- values ----------------------------------------------------------------

    def keep(self, result: RangeResult) -> None:
        """This node, which is entered for it, keeps a value."""
        if result.refs is not None and result.refs.contained:
            self.contained.setdefault(result.array, []).extend(result.refs.contained)

    def drop(self, result: RangeResult) -> None:
        """This node, which is entered for it, does not keep a value."""
        if result.refs is not None:
            for array, owner in result.refs.contained:
                self._strike(array, owner)

    def release(self, array: bytes) -> None:
        """The node drops the values of an array."""
        for contained, owner in self.contained.pop(array, ()):
            self._strike(contained, owner)

    def again(self, result: RangeResult) -> RangeResult:
        """Return a logged value as this node's own, which is entered for it from now on."""
        if result.refs is None:
            return result
        for array, owner in result.refs.contained:
            self._send(owner, [(array, self._keeper, 0, ENTER)])
        return replace(result, refs=ResultRefs((), result.refs.contained, self._keeper))

    def pass_on(self, result: RangeResult, to: str) -> None:
        """A value goes to the node of a client, if that is another one: see `receive`."""
        node = node_of(to)
        if result.refs is None or node == self._node:
            return
        if self._members.refusal(node, incarnation_of(to)):
            return  # it will not be received
        way = on_its_way(self._keeper, keeper_of(to))
        for array, owner in result.refs.contained:
            self._send(owner, [(array, way, 0, ENTER)])

    def receive(self, result: RangeResult, to: str, wanted: bool) -> RangeResult:
        """A value comes from another node for a client of this one, which may not want it
        any more; return it as one of here."""
        refs = result.refs
        assert refs is not None
        if not self.is_of_here(to):
            return result  # it was sent to this node's former life
        way = on_its_way(refs.keeper, self._keeper)
        for array, owner in refs.contained:
            if wanted:
                self._returns.add(owner, (array, self._keeper, 0, ENTER))
            self._returns.add(owner, (array, way, 0, STRIKE))
        if wanted:
            self.keep(result)
        return replace(result, refs=ResultRefs(refs.borrowed, refs.contained, self._keeper))

    def _strike(self, array: bytes, owner: str) -> None:
        self._returns.add(owner, (array, self._keeper, 0, STRIKE))

    def _send(self, owner: str, updates: list[Update]) -> None:
        message = RefUpdates(owner, updates)
        if node_of(owner) != self._node:
            self._ctx.send(f"node:{node_of(owner)}", message)
        elif self._lives(owner):  # else its arrays have died with it
            self._ctx.send(owner, message)
