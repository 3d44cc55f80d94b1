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

from msgspec.structs import replace

from runtime.control.borrowing import Returns
from runtime.control.context import WORKERS_PER_LIFE, Context, node_of
from runtime.control.messages import RangeResult, RefUpdates, ResultRefs
from runtime.control.ref_book import ENTER, STRIKE, Update, keeper_of, on_its_way


class Custody:
    """What one node answers for at owners everywhere."""

    def __init__(self, ctx: Context, node: int, incarnation: int) -> None:
        self._ctx = ctx
        self._node = node
        self._keeper = f"node:{node}.{(incarnation - 1) * WORKERS_PER_LIFE}"
        self._returns = Returns(ctx, self._send)
        self._contained: dict[bytes, list[tuple[bytes, str]]] = {}
        """By the array of the value."""
        self._promised: dict[str, Counter[tuple[bytes, str]]] = {}
        """By worker: arrays and owners it has entered this node for, and not reported."""
        self.borrowers: set[str] = set()
        """Workers of this node of which owners have heard."""

    # -- workers ---------------------------------------------------------------

    def on_updates(self, source: str, message: RefUpdates, alive: bool) -> None:
        """Updates on their way from a client to an owner.

        Of a worker that has died (not `alive`) nothing is entered any more.
        """
        updates = message.updates
        if not source.startswith("node:"):
            # What a client says of others it says of results: theirs know.
            if alive:
                for array, borrower, _, delta in updates:
                    if borrower == source:
                        self.borrowers.add(source)
                    elif borrower == self._keeper and delta == ENTER:
                        promised = self._promised.setdefault(source, Counter())
                        promised[array, message.owner] += 1
            else:
                updates = [u for u in updates if u[1] != source and u[1] != self._keeper]
        if updates:
            self._send(message.owner, updates)

    def reported(self, source: str, results: list[RangeResult]) -> None:
        """A client of this node has reported values: what it promised is kept."""
        promised = self._promised.get(source)
        for result in results:
            if result.refs is None:
                continue
            self.borrowers.update(borrower for _, _, borrower, _ in result.refs.borrowed)
            for pair in result.refs.contained:
                if promised is not None and pair in promised:
                    promised[pair] -= 1
                    if not promised[pair]:
                        del promised[pair]
        if promised is not None and not promised:
            del self._promised[source]

    def worker_gone(self, worker: str) -> bool:
        """Strike off what it had promised; return whether owners have heard of it."""
        for (array, owner), count in self._promised.pop(worker, Counter()).items():
            for _ in range(count):
                self._strike(array, owner)
        heard = worker in self.borrowers
        self.borrowers.discard(worker)
        return heard

    # -- values ----------------------------------------------------------------

    def keep(self, result: RangeResult) -> None:
        """This node, which is entered for it, keeps a value."""
        assert result.refs is not None
        if result.refs.contained:
            self._contained.setdefault(result.array, []).extend(result.refs.contained)

    def drop(self, refs: ResultRefs) -> None:
        """This node, which is entered for it, does not keep a value."""
        for array, owner in refs.contained:
            self._strike(array, owner)

    def release(self, array: bytes) -> None:
        """The node drops the values of an array."""
        for contained, owner in self._contained.pop(array, ()):
            self._strike(contained, owner)

    def again(self, result: RangeResult) -> RangeResult:
        """Return a logged value as this node's own, which is entered for it from now on."""
        if result.refs is None:
            return result
        for array, owner in result.refs.contained:
            self._send(owner, [(array, self._keeper, 0, ENTER)])
        refs = ResultRefs((), result.refs.contained, self._keeper)
        return replace(result, refs=refs)

    def pass_on(self, refs: ResultRefs, to: str) -> None:
        """A value goes to the node of a client: see `receive`."""
        way = on_its_way(self._keeper, keeper_of(to))
        for array, owner in refs.contained:
            self._send(owner, [(array, way, 0, ENTER)])

    def receive(self, result: RangeResult, wanted: bool) -> RangeResult:
        """A value comes from another node; keep it if it is wanted. Return it as one of here."""
        refs = result.refs
        assert refs is not None
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
        local = node_of(owner) == self._node
        self._ctx.send(owner if local else f"node:{node_of(owner)}", RefUpdates(owner, updates))
