"""References that leave the process that owns the object: who still has one.

An array has one **owner**. Others that may read it are in the owner's book (`Book`),
and the array is released only when that is empty, too:

* a **client** that has an `ObjectRef` which it got in a value. It counts what it has
  (`Loan`); each time it begins to borrow an array it does so under a new, higher
  number, the *epoch*. Additions say (client, epoch) and may come twice, late, or from
  several who know of it; a return says "all up to this epoch" and stays in the book,
  so that it may overtake the addition that it belongs to.
* a **node** that keeps a value with references inside (`Custody`). It is counted once
  per value, and the count may be below zero for a moment: then it is not zero.

Nobody lets go before the next one is in the book. How a reference goes its way:

============== =====================================================================
argument       the submitter holds it until the task's result is there; with that the
               worker says what it has kept (`ResultRefs.borrowed`), and the submitter
               enters it before it lets go. The worker enters itself as well, in case
               the submitter dies
returned value the worker enters its own node; that enters the owner's node before it
               sends the result there (`ResultRefs.contained`). Each is struck off
               when it drops the value. Whoever reads the value enters itself
put value      the same, with one node only
own pickle     the array is pinned for good: nobody knows where the bytes are
============== =====================================================================

A value that a client has only borrowed it also keeps as long as it has a reference out
of it. Additions leave at once, returns after `LINGER_S`, many together: links keep
their order, so additions are ahead of what is returned later on the same way. Who dies
is struck off by the owners that are told of it (`BorrowersGone`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from runtime.control.context import WORKERS_PER_LIFE, Context, Timer, incarnation_of, node_of
from runtime.control.messages import BorrowersGone, RangeResult, RefUpdates, ResultRefs

if TYPE_CHECKING:
    from runtime.control.client import Client

PINNED = ""
"""Stands in a book for whoever may have the bytes of a reference."""
LINGER_S = 0.1
RETURN_BATCH_MAX = 1024

Update = tuple[bytes, str, int, int]
"""(array, borrower, epoch or 0 for a node, +1 or -1)."""


@lru_cache(maxsize=4096)
def keeper_of(client: str) -> str:
    """Return by which name the node of a client, in this incarnation, borrows.

    >>> keeper_of("worker:3.7"), keeper_of("worker:3.1000007")
    ('node:3.0', 'node:3.1000000')
    """
    return f"node:{node_of(client)}.{(incarnation_of(client) - 1) * WORKERS_PER_LIFE}"


class Book:
    """Who else has references to one array."""

    __slots__ = ("has", "returned")

    def __init__(self) -> None:
        self.has: dict[str, int] = {}
        """Clients by their epoch, nodes by how many values of theirs it is in."""
        self.returned: dict[str, int] = {}
        """Clients by the epoch up to which they have returned it."""

    def __bool__(self) -> bool:
        return bool(self.has)

    def enter(self, borrower: str, epoch: int, delta: int) -> None:
        """Add or strike off a borrower."""
        has = self.has
        if not epoch:
            count = has.get(borrower, 0) + delta
            if count:
                has[borrower] = count
            else:
                del has[borrower]
        elif delta > 0:
            if epoch > self.returned.get(borrower, 0):
                has[borrower] = max(epoch, has.get(borrower, 0))
        else:
            self.returned[borrower] = max(epoch, self.returned.get(borrower, 0))
            if has.get(borrower, epoch + 1) <= epoch:
                del has[borrower]


class Loan:
    """An array of somebody else's that this client has references to."""

    __slots__ = ("count", "epoch", "guards", "owner", "told")

    def __init__(self, epoch: int) -> None:
        self.owner = ""
        """Empty: not known, as of an actor that was found by its name."""
        self.epoch = epoch
        self.count = 0
        """References, unfinished tasks that have it, values that it came out of."""
        self.told = False
        """Somebody was told of it, so the owner is to hear when it ends."""
        self.guards: tuple[bytes, ...] = ()
        """Borrowed values that it came out of, held as long as it is."""


class Returns:
    """What goes back to owners: held back for a moment, then sent together."""

    def __init__(self, ctx: Context, node: str = "") -> None:
        self._ctx = ctx
        self._node = node
        """Where all of it goes; empty: to each owner's own."""
        self._updates: dict[str, list[Update]] = {}
        self._timer: Timer | None = None

    def add(self, owner: str, update: Update) -> None:
        """Send an update to an owner, soon."""
        updates = self._updates.setdefault(owner, [])
        updates.append(update)
        if len(updates) >= RETURN_BATCH_MAX:
            self.send_now(owner, self._updates.pop(owner))
        elif self._timer is None:
            self._timer = self._ctx.after(LINGER_S, self._flush)

    def send_now(self, owner: str, updates: list[Update]) -> None:
        """Send updates to an owner, at once."""
        self._ctx.send(self._node or f"node:{node_of(owner)}", RefUpdates(owner, updates))

    def _flush(self) -> None:
        self._timer = None
        updates, self._updates = self._updates, {}
        for owner, of_owner in updates.items():
            self.send_now(owner, of_owner)


class Borrowing:
    """A client's side: what it has lent, and what it has borrowed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._keeper = keeper_of(client.address)
        self._returns = Returns(client.ctx, client.node)
        self.loans: dict[bytes, Loan] = {}
        self.guarded: dict[bytes, dict[bytes, None]] = {}
        """What came in the arguments of the tasks that run here, by task array."""
        self._epochs = 0
        self._gone: set[str] = set()
        self._gone_lives: set[tuple[int, int]] = set()

    def owner_of(self, array: bytes) -> str:
        """Return the owner's address; empty if it is not known."""
        if array in self._client.entries:
            return self._client.address
        loan = self.loans.get(array)
        return "" if loan is None else loan.owner

    # -- what is borrowed ------------------------------------------------------

    def receive(self, array: bytes, owner: str) -> None:
        """A reference came in a value; `add` follows."""
        if array not in self._client.entries:
            loan = self._loan(array)
            if owner != self._client.address:
                loan.owner = loan.owner or owner

    def _loan(self, array: bytes) -> Loan:
        loan = self.loans.get(array)
        if loan is None:
            self._epochs += 1
            loan = self.loans[array] = Loan(self._epochs)
        return loan

    def add(self, array: bytes) -> None:
        """One more reference, or task, or value has it."""
        self._loan(array).count += 1

    def drop(self, array: bytes) -> None:
        """One less; without effect on what was not borrowed."""
        loan = self.loans.get(array)
        if loan is None:
            return
        loan.count -= 1
        if loan.count > 0:
            return
        del self.loans[array]
        self._end(array, loan)

    def _end(self, array: bytes, loan: Loan) -> None:
        if loan.told:
            self._returns.add(loan.owner, (array, self._client.address, loan.epoch, -1))
        for value in loan.guards:
            self._client.let_go_of(value)

    def own(self, array: bytes) -> int:
        """The array is this client's own from here on; return how many had it."""
        loan = self.loans.pop(array)
        self._end(array, loan)
        return loan.count

    def _tell(self, array: bytes, loan: Loan) -> None:
        """Have the owner enter this client."""
        if loan.owner:
            loan.told = True
            update = (array, self._client.address, loan.epoch, 1)
            self._returns.send_now(loan.owner, [update])

    def came_in_value(self, value: bytes, arrays: Iterable[bytes]) -> None:
        """References came out of an array's value."""
        for array in arrays:
            loan = self.loans.get(array)
            if loan is None or array == value or not loan.count:
                continue
            if not loan.told:
                self._tell(array, loan)
            if value in self.loans and value not in loan.guards:
                loan.guards += (value,)
                self.add(value)

    def came_in_arguments(self, task: bytes, arrays: Iterable[bytes]) -> None:
        """References came in a task's arguments: its submitter holds them so long."""
        borrowed = [array for array in arrays if array in self.loans]
        if borrowed:
            self.guarded.setdefault(task, {}).update(dict.fromkeys(borrowed))

    def kept_by(self, task: bytes) -> tuple[tuple[bytes, str, str, int], ...]:
        """A task ends: return what this client still has of what came with it."""
        kept = []
        for array in self.guarded.pop(task, ()):
            loan = self.loans.get(array)
            if loan is not None and loan.owner:
                self._tell(array, loan)
                kept.append((array, loan.owner, self._client.address, loan.epoch))
        return tuple(kept)

    # -- what is lent ----------------------------------------------------------

    def hand_over(self, arrays: Iterable[bytes]) -> tuple[tuple[bytes, str], ...]:
        """A value with these inside goes to this client's node; return them with owners."""
        contained = []
        for array in arrays:
            owner = self.owner_of(array)
            if owner:
                self._enter(array, owner, self._keeper, 0)
                contained.append((array, owner))
        return tuple(contained)

    def pin(self, array: bytes) -> None:
        """Nobody knows where a reference went."""
        owner = self.owner_of(array)
        if not owner:
            return
        self._enter(array, owner, PINNED, 0)
        if array in self.loans:
            self.add(array)  # whoever guards it may be quicker with the owner

    def _enter(self, array: bytes, owner: str, borrower: str, epoch: int) -> None:
        if owner == self._client.address:
            self._on_update((array, borrower, epoch, 1))
        else:
            self._returns.send_now(owner, [(array, borrower, epoch, 1)])

    def on_result(self, refs: ResultRefs) -> list[bytes]:
        """Enter who has kept arguments; return the borrowed arrays among the values'."""
        for array, owner, borrower, epoch in refs.borrowed:
            if borrower != self._client.address:
                self._enter(array, owner, borrower, epoch)
        return [array for array, _ in refs.contained if array in self.loans]

    def on_updates(self, message: RefUpdates) -> None:
        """Others have references to arrays of this client, or have no more."""
        for update in message.updates:
            self._on_update(update)

    def _on_update(self, update: Update) -> None:
        array, borrower, epoch, delta = update
        entry = self._client.entries.get(array)
        if entry is None or self._is_gone(borrower):
            return
        if entry.book is None:
            entry.book = Book()
        entry.book.enter(borrower, epoch, delta)
        if not entry.book:
            self._client.release_if_free(entry)

    def _is_gone(self, borrower: str) -> bool:
        if borrower in self._gone:
            return True
        lives = self._gone_lives
        return bool(lives and borrower) and (node_of(borrower), incarnation_of(borrower)) in lives

    def on_gone(self, message: BorrowersGone) -> None:
        """Strike off who has died."""
        self._gone.update(message.clients)
        if message.node >= 0:
            self._gone_lives.add((message.node, message.incarnation))
        for entry in list(self._client.entries.values()):
            if entry.book:
                for borrower in [b for b in entry.book.has if self._is_gone(b)]:
                    del entry.book.has[borrower]
                if not entry.book:
                    self._client.release_if_free(entry)


class Custody:
    """A node's side: it keeps values with references inside, and passes updates on."""

    def __init__(self, ctx: Context, node: int, incarnation: int) -> None:
        self._ctx = ctx
        self._node = node
        self._keeper = f"node:{node}.{(incarnation - 1) * WORKERS_PER_LIFE}"
        self._returns = Returns(ctx)
        self._contained: dict[bytes, list[tuple[bytes, str]]] = {}
        """By the array of the value."""
        self.borrowers: set[str] = set()
        """Workers of this node of which owners have heard."""

    def on_updates(self, source: str, message: RefUpdates) -> None:
        """Updates on their way from a client to an owner."""
        if not source.startswith("node:"):
            # What a client says of others it says of results: theirs know.
            self.borrowers.update(u[1] for u in message.updates if u[1] == source)
        if node_of(message.owner) == self._node:
            self._ctx.send(message.owner, message)
        else:
            self._ctx.send(f"node:{node_of(message.owner)}", message)

    def reported(self, refs: ResultRefs) -> None:
        """A worker of this node has reported a result."""
        self.borrowers.update(borrower for _, _, borrower, _ in refs.borrowed)

    def keep(self, result: RangeResult) -> None:
        """This node, which is entered for it, keeps a value."""
        assert result.refs is not None
        if result.refs.contained:
            self._contained.setdefault(result.array, []).extend(result.refs.contained)

    def drop(self, refs: ResultRefs) -> None:
        """This node, which is entered for it, does not keep a value."""
        for array, owner in refs.contained:
            self._strike(array, owner)

    def pass_on(self, refs: ResultRefs, to: str) -> None:
        """A value goes to the node of a client, which is entered for it first."""
        for array, owner in refs.contained:
            self._send(owner, [(array, keeper_of(to), 0, 1)])

    def release(self, array: bytes) -> None:
        """The node drops the values of an array."""
        for contained, owner in self._contained.pop(array, ()):
            self._strike(contained, owner)

    def _strike(self, array: bytes, owner: str) -> None:
        self._returns.add(owner, (array, self._keeper, 0, -1))

    def _send(self, owner: str, updates: list[Update]) -> None:
        local = node_of(owner) == self._node
        self._ctx.send(owner if local else f"node:{node_of(owner)}", RefUpdates(owner, updates))
