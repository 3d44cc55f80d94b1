"""A node's reference counting: references inside of values that the node keeps.

The owner of an array counts a node as a borrower once for every value on the node that contains
a reference to it. The node is registered in one of two ways:

* a worker or driver of the node made the value, and registered the node before it reported the
  result. Until the report the node remembers this (`_promised`): a worker may die in between;
* another node sent the value. It has registered the value as *on its way*; when the value arrives,
  the receiver registers itself and deregisters the value on its way, in one message.

The node deregisters itself when it drops the value. So the owner counts the value at every
moment from its maker to its last node, in any order of arrival of different nodes' messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import WORKERS_PER_INCARNATION, incarnation_of, node_of
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.messages import RangeResult, RefUpdates, ResultRefs
from raytwin.runtime.control.ownership.reference_counter import (
    DEREGISTER,
    GONE,
    PINNED,
    REGISTER,
    REGISTER_AND_CONFIRM,
    Returns,
    Update,
    keeper_of,
    on_its_way,
)


class ContainedReferences:
    """The references inside of one node's values, and the owners that count them."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        incarnation: int,
        members: Membership,
        lent: Callable[[bytes], None],
        lives: Callable[[str], bool],
    ) -> None:
        """`lent` is called with each array of an owner on this node that a borrower, or a value,
        refers to; `lives` returns whether a client of this node is alive."""
        self._ctx = ctx
        self._node = node
        self._keeper = f"node:{node}.{(incarnation - 1) * WORKERS_PER_INCARNATION}"
        self._members = members
        self._lent = lent
        self._lives = lives
        self._returns = Returns(ctx, self._send)
        self.contained: dict[bytes, list[tuple[bytes, str]]] = {}
        """By array of a value on this node: the arrays inside of it, with their owners."""
        self._promised: dict[str, Counter[tuple[bytes, str]]] = {}
        """By worker: arrays, with owners, for which it has registered this node before its
        report."""
        self._known_to: dict[str, dict[str, None]] = {}
        """By worker of this node: the owners that count it as a borrower."""

    def __len__(self) -> int:
        """Return how many arrays have values with references inside, made or promised."""
        return len(self.contained) + len(self._promised)

    def is_of_here(self, client: str) -> bool:
        """Whether a client belongs to this incarnation of this node."""
        return keeper_of(client) == self._keeper

    # -- workers ---------------------------------------------------------------

    def on_updates(self, source: str, message: RefUpdates) -> None:
        """Pass updates on to an owner, and note those that clients of this node have sent."""
        owner = message.owner
        if node_of(owner) == self._node:
            for array, _, _, code in message.updates:
                if code in (REGISTER, REGISTER_AND_CONFIRM):
                    self._lent(array)
        if not source.startswith("node:"):
            # Updates about other borrowers come from results, whose nodes know these borrowers.
            for array, borrower, _, code in message.updates:
                if borrower in (source, PINNED):
                    self._known_to.setdefault(source, {})[owner] = None
                elif borrower == self._keeper and code == REGISTER:
                    self._promised.setdefault(source, Counter())[array, owner] += 1
        self._send(owner, message.updates)

    def reported(self, source: str, result: RangeResult) -> None:
        """A client of this node has reported a value: end its promises for the value."""
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
        """A worker has died: the owners deregister it, and this node for values not yet
        reported."""
        for (array, owner), count in self._promised.pop(worker, Counter()).items():
            for _ in range(count):
                self._deregister(array, owner)
        for owner in self._known_to.pop(worker, ()):
            self._send(owner, [(b"", worker, 0, GONE)])

    # -- values ----------------------------------------------------------------

    def keep(self, result: RangeResult) -> None:
        """Keep a value for which this node is registered."""
        if result.refs is not None and result.refs.contained:
            self.contained.setdefault(result.array, []).extend(result.refs.contained)

    def drop(self, result: RangeResult) -> None:
        """Deregister this node for a value that it does not keep."""
        if result.refs is not None:
            for array, owner in result.refs.contained:
                self._deregister(array, owner)

    def release(self, array: bytes) -> None:
        """Deregister this node for the values of an array, which it drops."""
        for contained, owner in self.contained.pop(array, ()):
            self._deregister(contained, owner)

    def again(self, result: RangeResult) -> RangeResult:
        """Register this node for a value from an actor's log; return the value as this node's
        own."""
        if result.refs is None:
            return result
        for array, owner in result.refs.contained:
            self._send(owner, [(array, self._keeper, 0, REGISTER)])
        return replace(result, refs=ResultRefs((), result.refs.contained, self._keeper))

    def pass_on(self, result: RangeResult, to: str) -> None:
        """Register a value as on its way to a client's node, if that is another; see `receive`."""
        node = node_of(to)
        if result.refs is None or node == self._node:
            return
        if self._members.refusal(node, incarnation_of(to)):
            return  # the receiver is fenced or dead
        way = on_its_way(self._keeper, keeper_of(to))
        for array, owner in result.refs.contained:
            self._send(owner, [(array, way, 0, REGISTER)])

    def receive(self, result: RangeResult, to: str, wanted: bool) -> RangeResult:
        """Register this node for a value from another node, if its client still wants the value;
        return the value as this node's own."""
        refs = result.refs
        assert refs is not None
        if not self.is_of_here(to):
            return result  # sent to this node's former incarnation
        way = on_its_way(refs.keeper, self._keeper)
        for array, owner in refs.contained:
            if wanted:
                self._returns.add(owner, (array, self._keeper, 0, REGISTER))
            self._returns.add(owner, (array, way, 0, DEREGISTER))
        if wanted:
            self.keep(result)
        return replace(result, refs=ResultRefs(refs.borrowed, refs.contained, self._keeper))

    def _deregister(self, array: bytes, owner: str) -> None:
        self._returns.add(owner, (array, self._keeper, 0, DEREGISTER))

    def _send(self, owner: str, updates: list[Update]) -> None:
        message = RefUpdates(owner, updates)
        if node_of(owner) != self._node:
            self._ctx.send(f"node:{node_of(owner)}", message)
        elif self._lives(owner):  # else its arrays have died with it
            self._ctx.send(owner, message)
