"""A client's reference counting: the arrays that it has lent and borrowed.

An array has one **owner**, which releases it only when its `Borrowers` are empty. A client
that gets an `ObjectRef` in a value borrows the array: it counts its references (`Loan`) and
registers with the owner under a loan number. A client that passes a reference on keeps its own
until the receiver is registered with the owner:

============== =====================================================================
argument       the submitter keeps the reference until the task's result arrives. The
               result names the references that the worker has kept
               (`ResultRefs.borrowed`), and the submitter registers the worker before it
               drops its own. The worker registers itself as well, in case the
               submitter dies
returned value the worker registers its own node before it reports; from then on the
               nodes that keep the value are its borrowers (`contained_references`). A
               client that reads the value registers itself
put value      the same, on one node
pickle         if the program itself pickles a reference, the owner keeps the array until
               the job ends, since the bytes may be anywhere
============== =====================================================================

A reference inside a *borrowed* value needs more care: the client may be deregistered with the
value's owner before it is registered with the reference's owner. So the client keeps the value
until the reference's owner has answered (`REGISTER_AND_CONFIRM`). Values of its own do not need
this: a registration leaves at once and a deregistration after `LINGER_S`, in order on one link.

When a worker dies, its node notifies the owners that know of it (`GONE`); when a node dies, every
other node notifies its own owners (`BorrowersGone`). They deregister the dead borrowers and ignore
later registrations. An object whose owner dies is lost (`release_manager`); a borrower learns of
the loss when it asks for the value. A task whose submitter has died may lose the references inside
of its arguments; no client waits for its result.

`Borrowers` has each **client** with its loan number: each time that a client begins to borrow an
array it takes a new, higher one. A registration names (client, loan number) and may be repeated,
late, or sent by several processes. A deregistration ends all loans up to a number, and the owner
remembers it, so that it may overtake its registration.

A **node** that keeps values with references inside is registered once per value. Its count may be
below zero for a moment, when a deregistration has overtaken a registration: as it is not zero, the
owner keeps the array. A value **on its way** from one node to another is registered in the same
way.

Names of nodes contain the incarnation, as clients' addresses do: the owner deregisters a former
incarnation without touching the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Protocol

from msgspec import Struct

from raytwin.runtime.control.core.addresses import WORKERS_PER_INCARNATION, incarnation_of, node_of
from raytwin.runtime.control.core.context import Context, Timer
from raytwin.runtime.control.messages import BorrowersGone, RefUpdates, ResultRefs

LINGER_S = 0.1
RETURN_BATCH_MAX = 1024
ON_ITS_WAY_S = 5.0
"""Seconds that a value may still travel after its sender has died: more than any link takes."""


PINNED = ""
"""The borrower of an array whose reference the program has pickled, to an unknown place."""
_WAY = ">"

Update = tuple[bytes, str, int, int]
"""(array, borrower, loan number or 0 for a node, `REGISTER` or another of the codes below)."""
REGISTER = 1
DEREGISTER = -1
REGISTER_AND_CONFIRM = 2
"""Only for clients: the owner answers with `REGISTERED`."""
REGISTERED = 0
GONE = 3
"""About a client and no array: it has died, and all its loans have ended."""


@lru_cache(maxsize=4096)
def keeper_of(client: str) -> str:
    """Return the name under which a client's node borrows, in its incarnation.

    >>> keeper_of("worker:3.7"), keeper_of("worker:3.1000007")
    ('node:3.0', 'node:3.1000000')
    """
    return f"node:{node_of(client)}.{(incarnation_of(client) - 1) * WORKERS_PER_INCARNATION}"


def on_its_way(giver: str, receiver: str) -> str:
    """Return the name of a value that one node sends to another.

    >>> ends_of(on_its_way("node:3.0", "node:0.0"))
    ['node:3.0', 'node:0.0']
    """
    return giver + _WAY + receiver


def ends_of(borrower: str) -> list[str]:
    """Return the processes of a borrower: itself, or giver and receiver; none for `PINNED`."""
    return borrower.split(_WAY) if borrower else []


class Borrowers:
    """The borrowers of one array; false if there are none."""

    __slots__ = ("has", "returned")

    def __init__(self) -> None:
        self.has: dict[str, int] = {}
        """Each client with its loan number, each node with the number of its values that contain a
        reference."""
        self.returned: dict[str, int] = {}
        """Each client with the loan number up to which its loans have ended."""

    def __bool__(self) -> bool:
        return bool(self.has)

    def update(self, borrower: str, number: int, delta: int) -> None:
        """Register or deregister a borrower; `delta` is `REGISTER` or `DEREGISTER`."""
        has = self.has
        if not number:
            count = has.get(borrower, 0) + delta
            if count:
                has[borrower] = count
            else:
                del has[borrower]
        elif delta > 0:
            if number > self.returned.get(borrower, 0):
                has[borrower] = max(number, has.get(borrower, 0))
        else:
            self.returned[borrower] = max(number, self.returned.get(borrower, 0))
            if has.get(borrower, number + 1) <= number:
                del has[borrower]


class OwnedArray(Protocol):
    """An array that this client owns, with its borrowers."""

    borrowers: Borrowers | None


class Loan(Struct):
    """A borrowed array."""

    number: int
    """Higher for each array that the client begins to borrow."""
    owner: str = ""
    """Empty if not known, as for an actor that was found by its name."""
    count: int = 0
    """References, unfinished tasks that have it as an input, and values that contained it."""
    announced: bool = False
    """Whether the owner was notified of the loan, and so must be notified of its end."""
    asked: bool = False
    """Whether the owner was asked to confirm (`REGISTER_AND_CONFIRM`)."""
    confirmed: bool = False
    """Whether the owner has confirmed."""
    guards: tuple[bytes, ...] = ()
    """Borrowed values that contained the reference, kept until the owner confirms."""


class Returns:
    """Updates for owners, in batches: each waits for `LINGER_S` at most."""

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
    """The arrays that one client has lent to others, and has borrowed."""

    def __init__(
        self,
        ctx: Context,
        address: str,
        node: str,
        entries: Mapping[bytes, OwnedArray],
        drop_hold: Callable[[bytes], None],
        release_if_free: Callable[[bytes], None],
    ) -> None:
        """`entries` are the arrays that the client owns, `node` is its node's address;
        `drop_hold` ends one hold of an array, `release_if_free` releases an own array that
        nothing keeps."""
        self._ctx = ctx
        self._address = address
        self._node = node
        self._entries = entries
        self._drop_hold = drop_hold
        self._release_if_free = release_if_free
        self.keeper = keeper_of(address)
        self._returns = Returns(ctx, self._send)
        self.loans: dict[bytes, Loan] = {}
        self.guarded: dict[bytes, dict[bytes, None]] = {}
        """Borrowed arrays in the arguments of tasks that run here, by the task's array."""
        self._last_loan = 0
        self._gone: set[str] = set()
        self._gone_lives: set[tuple[int, int]] = set()

    def owner_of(self, array: bytes) -> str:
        """Return the owner's address; empty if it is not known."""
        if array in self._entries:
            return self._address
        loan = self.loans.get(array)
        return "" if loan is None else loan.owner

    # -- borrowed arrays ------------------------------------------------------

    def receive(self, array: bytes, owner: str) -> None:
        """Note the owner of a reference that came in a value; `add` follows."""
        if array not in self._entries:
            loan = self._loan(array)
            if owner != self._address:
                loan.owner = loan.owner or owner

    def _loan(self, array: bytes) -> Loan:
        loan = self.loans.get(array)
        if loan is None:
            self._last_loan += 1
            loan = self.loans[array] = Loan(self._last_loan)
        return loan

    def add(self, array: bytes) -> None:
        """Count one more reference, task or value that keeps a borrowed array."""
        self._loan(array).count += 1

    def drop(self, array: bytes) -> None:
        """Count one less; does nothing if the array is not borrowed."""
        loan = self.loans.get(array)
        if loan is None:
            return
        loan.count -= 1
        if loan.count > 0:
            return
        del self.loans[array]
        self._end(array, loan)

    def _end(self, array: bytes, loan: Loan) -> None:
        if loan.announced:
            self._returns.add(loan.owner, (array, self._address, loan.number, DEREGISTER))
        self._unguard(loan)

    def _unguard(self, loan: Loan) -> None:
        guards, loan.guards = loan.guards, ()
        for value in guards:
            self._drop_hold(value)

    def own(self, array: bytes) -> int:
        """End the loan of an array that this client owns from here on; return its count."""
        loan = self.loans.pop(array)
        self._end(array, loan)
        return loan.count

    def _notify_owner(self, array: bytes, loan: Loan, code: int) -> None:
        """Register this client with the owner."""
        if loan.owner:
            loan.announced = True
            self._send(loan.owner, [(array, self._address, loan.number, code)])

    def _send(self, owner: str, updates: list[Update]) -> None:
        self._ctx.send(self._node, RefUpdates(owner, updates))

    def contained_in_value(self, value: bytes, arrays: Iterable[bytes]) -> None:
        """Borrow the references that an array's value contains."""
        for array in arrays:
            loan = self.loans.get(array)
            if loan is None or array == value or not loan.count:
                continue
            if loan.confirmed:
                continue
            borrowed = value in self.loans
            if not loan.announced or (borrowed and not loan.asked):
                self._notify_owner(array, loan, REGISTER_AND_CONFIRM if borrowed else REGISTER)
                loan.asked = borrowed
            if borrowed and value not in loan.guards:
                loan.guards += (value,)
                self.add(value)

    def contained_in_arguments(self, task: bytes, arrays: Iterable[bytes]) -> None:
        """Borrow the references in a task's arguments; the submitter keeps them meanwhile."""
        borrowed = [array for array in arrays if array in self.loans]
        if borrowed:
            self.guarded.setdefault(task, {}).update(dict.fromkeys(borrowed))

    def kept_by(self, task: bytes) -> tuple[tuple[bytes, str, str, int], ...]:
        """A task has ended: return the borrowed arrays of its arguments that this client keeps."""
        kept = []
        for array in self.guarded.pop(task, ()):
            loan = self.loans.get(array)
            if loan is not None and loan.owner:
                self._notify_owner(array, loan, REGISTER)
                kept.append((array, loan.owner, self._address, loan.number))
        return tuple(kept)

    # -- lent arrays ----------------------------------------------------------

    def pin_contained(self, arrays: Iterable[bytes]) -> tuple[tuple[bytes, str], ...]:
        """Register this client's node for references inside a value; return these with their
        owners."""
        contained = []
        for array in arrays:
            owner = self.owner_of(array)
            if owner:
                self._register(array, owner, self.keeper, 0)
                contained.append((array, owner))
        return tuple(contained)

    def pin(self, array: bytes) -> None:
        """Keep an array for good: a reference to it may be anywhere."""
        owner = self.owner_of(array)
        if not owner:
            return
        self._register(array, owner, PINNED, 0)
        if array in self.loans:
            self.add(array)  # The release of the value that contains it may reach the owner first.

    def _register(self, array: bytes, owner: str, borrower: str, number: int) -> None:
        if owner == self._address:
            self._on_update((array, borrower, number, REGISTER))
        else:
            self._send(owner, [(array, borrower, number, REGISTER)])

    def on_result(self, refs: ResultRefs) -> list[bytes]:
        """Register workers that have kept arguments; return the arrays to keep with the values.

        These are borrowed arrays, because a value may arrive before its node is registered, and own
        ones: if the node that keeps the values dies, reconstruction makes them with the same
        references inside.
        """
        for array, owner, borrower, number in refs.borrowed:
            if borrower != self._address:
                self._register(array, owner, borrower, number)
        entries = self._entries
        return [array for array, _ in refs.contained if array in self.loans or array in entries]

    def on_updates(self, message: RefUpdates) -> None:
        """Register and deregister borrowers of this client's arrays."""
        for update in message.updates:
            self._on_update(update)

    def _on_update(self, update: Update) -> None:
        array, borrower, number, code = update
        if code == GONE:
            self._gone.add(borrower)
            self._deregister_gone()
            return
        if code == REGISTERED:
            loan = self.loans.get(array)
            if loan is not None and loan.number == number:
                loan.confirmed = True
                self._unguard(loan)
            return
        if code == REGISTER_AND_CONFIRM:
            self._send(borrower, [(array, borrower, number, REGISTERED)])
            code = REGISTER
        entry = self._entries.get(array)
        if entry is None:
            return
        gone = [end for end in ends_of(borrower) if self._is_gone(end)]
        if gone:
            if borrower in gone:
                return
            # The value is on its way from or to a node that has died.
            self._deregister_later([array], borrower)
        if entry.borrowers is None:
            entry.borrowers = Borrowers()
        entry.borrowers.update(borrower, number, code)
        if not entry.borrowers:
            self._release_if_free(array)

    def _is_gone(self, client: str) -> bool:
        lives = self._gone_lives
        return client in self._gone or (
            bool(lives) and (node_of(client), incarnation_of(client)) in lives
        )

    def on_gone(self, message: BorrowersGone) -> None:
        """A node has died, and all its clients with it."""
        self._gone_lives.add((message.node, message.incarnation))
        self._deregister_gone()

    def _deregister_gone(self) -> None:
        under_way: dict[str, list[bytes]] = {}
        for array, entry in list(self._entries.items()):
            if entry.borrowers is None:
                continue
            for borrower in list(entry.borrowers.has):
                if any(self._is_gone(end) for end in ends_of(borrower)):
                    if len(ends_of(borrower)) > 1:
                        under_way.setdefault(borrower, []).append(array)
                    else:
                        self._deregister([array], borrower)
        for borrower, arrays in under_way.items():
            self._deregister_later(arrays, borrower)

    def _deregister_later(self, arrays: list[bytes], borrower: str) -> None:
        """Deregister after a delay: a value from a dead node may still arrive, and its receiver
        then registers itself."""
        self._ctx.after(ON_ITS_WAY_S, partial(self._deregister, arrays, borrower))

    def _deregister(self, arrays: list[bytes], borrower: str) -> None:
        for array in arrays:
            entry = self._entries.get(array)
            if entry is not None and entry.borrowers:
                entry.borrowers.has.pop(borrower, None)
                self._release_if_free(array)
