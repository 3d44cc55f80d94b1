"""References that leave the process that owns the object: who still has one.

An array has one **owner**, and is released only when nobody else is in the owner's
`Book` (see `ref_book`). A client that gets an `ObjectRef` in a value borrows the array:
it counts its references (`Loan`) and, once it has heard of the owner, is entered under
an epoch of its own. Nobody lets go before the next one is in the book:

============== =====================================================================
argument       the submitter holds it until the task's result is there; with that the
               worker says what it has kept (`ResultRefs.borrowed`), and the submitter
               enters it before it lets go. The worker enters itself as well, in case
               the submitter dies
returned value the worker enters its own node before it reports; from then on nodes
               answer for the value, here and at its owner (see `custody`). Whoever
               reads the value enters itself
put value      the same, on one node
own pickle     the array is pinned for good: nobody knows where the bytes are
============== =====================================================================

Out of a value that a client has borrowed it takes references whose owner may be slower
to hear of it than the value's own: it holds the value until the owner has answered
(`ENTER_AND_SAY_SO`). Of its own values that is needless, as additions leave at once and
returns after `LINGER_S`, many together: on one link they keep their order.

When a worker dies its node tells the owners that have heard of it (`GONE`); when a node
dies every node tells its own owners (`BorrowersGone`). They strike off whoever it was,
and for good: what is said of it later is not entered. What a client has borrowed from an
owner that dies is lost (`owner_failure`); it is told so when it asks for the value. A task
whose submitter has died may find that what was inside its arguments is lost; nobody waits
for its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from raytwin.runtime.control.core.addresses import incarnation_of, node_of
from raytwin.runtime.control.core.context import Context, Timer
from raytwin.runtime.control.messages import BorrowersGone, RefUpdates, ResultRefs
from raytwin.runtime.control.ownership.borrowers import (
    ENTER,
    ENTER_AND_SAY_SO,
    ENTERED,
    GONE,
    PINNED,
    STRIKE,
    Book,
    Update,
    ends_of,
    keeper_of,
)

LINGER_S = 0.1
RETURN_BATCH_MAX = 1024
ON_ITS_WAY_S = 5.0
"""How long a value may be on its way whose sender has died: longer than any link is slow."""


class OwnedArray(Protocol):
    """An array of this client, as far as its borrowers go."""

    book: Book | None


class Loan:
    """An array of somebody else's that this client has references to."""

    __slots__ = ("asked", "count", "entered", "epoch", "guards", "owner", "told")

    def __init__(self, epoch: int) -> None:
        self.owner = ""
        """Empty: not known, as of an actor that was found by its name."""
        self.epoch = epoch
        self.count = 0
        """References, unfinished tasks that have it, values that it came out of."""
        self.told = False
        """Somebody was told of it, so the owner is to hear when it ends."""
        self.asked = False
        """The owner was asked to say when it has heard."""
        self.entered = False
        """It has said so."""
        self.guards: tuple[bytes, ...] = ()
        """Borrowed values that it came out of, held until then."""


class Returns:
    """What goes back to owners: held back for a moment, then sent together."""

    def __init__(self, ctx: Context, send: Callable[[str, list[Update]], None]) -> None:
        self._ctx = ctx
        self._send = send
        self._updates: dict[str, list[Update]] = {}
        self._timer: Timer | None = None

    def add(self, owner: str, update: Update) -> None:
        """Send an update to an owner, soon."""
        updates = self._updates.setdefault(owner, [])
        updates.append(update)
        if len(updates) >= RETURN_BATCH_MAX:
            self._send(owner, self._updates.pop(owner))
        elif self._timer is None:
            self._timer = self._ctx.after(LINGER_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        updates, self._updates = self._updates, {}
        for owner, of_owner in updates.items():
            self._send(owner, of_owner)


class ReferenceCounter:
    """What one client has lent to others, and what it has borrowed."""

    def __init__(
        self,
        ctx: Context,
        address: str,
        node: str,
        entries: Mapping[bytes, OwnedArray],
        let_go_of: Callable[[bytes], None],
        release_if_free: Callable[[bytes], None],
    ) -> None:
        """`entries` are the arrays that the client owns, `node` is its node's address;
        `let_go_of` ends one hold of an array, `release_if_free` releases an own array that
        nothing keeps."""
        self._ctx = ctx
        self._address = address
        self._node = node
        self._entries = entries
        self._let_go_of = let_go_of
        self._release_if_free = release_if_free
        self.keeper = keeper_of(address)
        self._returns = Returns(ctx, self._send)
        self.loans: dict[bytes, Loan] = {}
        self.guarded: dict[bytes, dict[bytes, None]] = {}
        """What came in the arguments of the tasks that run here, by task array."""
        self._epochs = 0
        self._gone: set[str] = set()
        self._gone_lives: set[tuple[int, int]] = set()

    def owner_of(self, array: bytes) -> str:
        """Return the owner's address; empty if it is not known."""
        if array in self._entries:
            return self._address
        loan = self.loans.get(array)
        return "" if loan is None else loan.owner

    # -- what is borrowed ------------------------------------------------------

    def receive(self, array: bytes, owner: str) -> None:
        """A reference came in a value; `add` follows."""
        if array not in self._entries:
            loan = self._loan(array)
            if owner != self._address:
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
            self._returns.add(loan.owner, (array, self._address, loan.epoch, STRIKE))
        self._unguard(loan)

    def _unguard(self, loan: Loan) -> None:
        guards, loan.guards = loan.guards, ()
        for value in guards:
            self._let_go_of(value)

    def own(self, array: bytes) -> int:
        """The array is this client's own from here on; return how many had it."""
        loan = self.loans.pop(array)
        self._end(array, loan)
        return loan.count

    def _tell(self, array: bytes, loan: Loan, what: int) -> None:
        """Have the owner enter this client."""
        if loan.owner:
            loan.told = True
            self._send(loan.owner, [(array, self._address, loan.epoch, what)])

    def _send(self, owner: str, updates: list[Update]) -> None:
        self._ctx.send(self._node, RefUpdates(owner, updates))

    def came_in_value(self, value: bytes, arrays: Iterable[bytes]) -> None:
        """References came out of an array's value."""
        for array in arrays:
            loan = self.loans.get(array)
            if loan is None or array == value or not loan.count:
                continue
            if loan.entered:
                continue
            borrowed = value in self.loans
            if not loan.told or (borrowed and not loan.asked):
                self._tell(array, loan, ENTER_AND_SAY_SO if borrowed else ENTER)
                loan.asked = borrowed
            if borrowed and value not in loan.guards:
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
                self._tell(array, loan, ENTER)
                kept.append((array, loan.owner, self._address, loan.epoch))
        return tuple(kept)

    # -- what is lent ----------------------------------------------------------

    def hand_over(self, arrays: Iterable[bytes]) -> tuple[tuple[bytes, str], ...]:
        """A value with these inside goes to this client's node; return them with owners."""
        contained = []
        for array in arrays:
            owner = self.owner_of(array)
            if owner:
                self._enter(array, owner, self.keeper, 0)
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
        if owner == self._address:
            self._on_update((array, borrower, epoch, ENTER))
        else:
            self._send(owner, [(array, borrower, epoch, ENTER)])

    def on_result(self, refs: ResultRefs) -> list[bytes]:
        """Enter who has kept arguments; return what is to be held as long as the values.

        That is what this client has borrowed, for the values may be here before the
        owner knows of that, and what it owns itself: the node that keeps the values may
        die, and they are made again with the same references inside.
        """
        for array, owner, borrower, epoch in refs.borrowed:
            if borrower != self._address:
                self._enter(array, owner, borrower, epoch)
        entries = self._entries
        return [array for array, _ in refs.contained if array in self.loans or array in entries]

    def on_updates(self, message: RefUpdates) -> None:
        """Others have references to arrays of this client, or have no more."""
        for update in message.updates:
            self._on_update(update)

    def _on_update(self, update: Update) -> None:
        array, borrower, epoch, what = update
        if what == GONE:
            self._gone.add(borrower)
            self._strike_gone()
            return
        if what == ENTERED:
            loan = self.loans.get(array)
            if loan is not None and loan.epoch == epoch:
                loan.entered = True
                self._unguard(loan)
            return
        if what == ENTER_AND_SAY_SO:
            self._send(borrower, [(array, borrower, epoch, ENTERED)])
            what = ENTER
        entry = self._entries.get(array)
        if entry is None:
            return
        gone = [end for end in ends_of(borrower) if self._is_gone(end)]
        if gone:
            if borrower in gone:
                return
            # A value that is on its way from or to a node that has died.
            self._strike_later([array], borrower)
        if entry.book is None:
            entry.book = Book()
        entry.book.enter(borrower, epoch, what)
        if not entry.book:
            self._release_if_free(array)

    def _is_gone(self, client: str) -> bool:
        lives = self._gone_lives
        return client in self._gone or (
            bool(lives) and (node_of(client), incarnation_of(client)) in lives
        )

    def on_gone(self, message: BorrowersGone) -> None:
        """A node has died, and all its clients with it."""
        self._gone_lives.add((message.node, message.incarnation))
        self._strike_gone()

    def _strike_gone(self) -> None:
        under_way: dict[str, list[bytes]] = {}
        for array, entry in list(self._entries.items()):
            if entry.book is None:
                continue
            for borrower in list(entry.book.has):
                if any(self._is_gone(end) for end in ends_of(borrower)):
                    if len(ends_of(borrower)) > 1:
                        under_way.setdefault(borrower, []).append(array)
                    else:
                        self._strike([array], borrower)
        for borrower, arrays in under_way.items():
            self._strike_later(arrays, borrower)

    def _strike_later(self, arrays: list[bytes], borrower: str) -> None:
        """What a dead node has sent may still arrive, and is entered under another name then."""
        self._ctx.after(ON_ITS_WAY_S, partial(self._strike, arrays, borrower))

    def _strike(self, arrays: list[bytes], borrower: str) -> None:
        for array in arrays:
            entry = self._entries.get(array)
            if entry is not None and entry.book:
                entry.book.has.pop(borrower, None)
                self._release_if_free(array)
