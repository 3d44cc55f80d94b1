"""The books of owners, and the protocol that keeps them; see `owners_net`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.ownership.contained_references import ContainedReferences
from raytwin.runtime.control.ownership.reference_counter import (
    DEREGISTER,
    REGISTER,
    Borrowers,
    ReferenceCounter,
)
from tests.control.owners_net import Net, run

# -- the borrowers of one array -------------------------------------------------------


@given(st.data())
def test_borrowers_are_the_same_whatever_the_order(data: st.DataObject) -> None:
    """Registrations come late, twice and from several; a deregistration ends all loans before
    it."""
    updates: list[tuple[str, int, int]] = []
    has: dict[str, int] = {}
    for client in ("worker:0.1", "worker:1.1"):
        last = data.draw(st.integers(0, 4))
        for loan in range(1, last + 1):
            updates += [(client, loan, REGISTER)] * data.draw(st.integers(1, 3))
            if loan < last or data.draw(st.booleans()):
                updates.append((client, loan, DEREGISTER))
                has.pop(client, None)
            else:
                has[client] = loan
    for node in ("node:0.0", "node:1.0>node:0.0"):
        begun = data.draw(st.integers(0, 3))
        ended = data.draw(st.integers(0, begun))
        updates += [(node, 0, REGISTER)] * begun + [(node, 0, DEREGISTER)] * ended
        if begun > ended:
            has[node] = begun - ended
    borrowers = Borrowers()
    for borrower, loan, delta in data.draw(st.permutations(updates)):
        borrowers.update(borrower, loan, delta)
    assert borrowers.has == has
    assert bool(borrowers) == bool(has)


@given(st.permutations([(1, REGISTER), (1, REGISTER), (1, DEREGISTER), (2, REGISTER)]))
def test_a_client_that_borrows_again_is_registered_from_its_first_message_on(
    updates: list[tuple[int, int]],
) -> None:
    borrowers = Borrowers()
    for loan, delta in updates:
        borrowers.update("worker:0.1", loan, delta)
        if (loan, delta) == (2, REGISTER):
            break
    assert borrowers


# -- the protocol --------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["", "worker", "node"])
@pytest.mark.parametrize("start", range(0, 300, 100))
def test_borrowers_can_read_and_nothing_is_left(start: int, fault: str) -> None:
    for seed in range(start, start + 100):
        run(seed, fault)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_value_lives_until_owners_have_registered_its_contained_references(guarded: bool) -> None:
    """The reader's word to the inner owner is stuck; all others' returns are not."""
    net = Net(0)
    inner_owner, outer_owner, reader = "worker:0.1", "worker:1.1", "worker:2.1"

    def quiet() -> None:
        while net.deliver():
            pass

    def pick(address: str, *oids: bytes) -> None:
        owner_of = net.clients[address].references.counter.owner_of
        picked = [(oid, owner_of(oid[:ARRAY_BYTES])) for oid in oids]
        net._refs = lambda address, into=b"": picked  # type: ignore[method-assign]

    def give(giver: str, taker: str, oid: bytes) -> None:
        pick(giver, oid)
        net.submit(giver, taker)
        quiet()
        net.running[taker][0][1].clear()  # it keeps what it was given
        pick(taker)
        net.end(taker)
        quiet()
        net.drop(giver, oid)

    pick(inner_owner)
    net.put(inner_owner)
    [inner] = net.held[inner_owner]
    give(inner_owner, outer_owner, inner)
    pick(outer_owner, inner)
    net.put(outer_owner)
    [outer] = [oid for oid in net.held[outer_owner] if net.owners[oid[:ARRAY_BYTES]] == outer_owner
               and net.values.get(oid[:ARRAY_BYTES])]  # fmt: skip
    net.drop(outer_owner, inner)
    give(outer_owner, reader, outer)
    quiet()
    net.stuck = {("node:2", "node:0")}
    arrays = net._unpickle(reader, net.values[outer[:ARRAY_BYTES]])
    net.clients[reader].references.counter.contained_in_value(outer[:ARRAY_BYTES], arrays)
    if not guarded:
        for loan in list(net.clients[reader].references.counter.loans.values()):
            loan.guards = ()
            net.clients[reader].references.end_hold(outer)
    net.drop(reader, outer)
    if not guarded:
        with pytest.raises(AssertionError, match="released"):
            quiet()
        return
    quiet()
    assert outer[:ARRAY_BYTES] in net.clients[outer_owner].entries
    net.stuck = set()
    quiet()
    assert outer[:ARRAY_BYTES] not in net.clients[outer_owner].entries
    net.finish()


# -- what is broken is seen ----------------------------------------------------------


def never_kept(patch: pytest.MonkeyPatch) -> None:
    """Nobody says what a task has kept of its arguments."""
    patch.setattr(ReferenceCounter, "kept_by", lambda self, task: ())


def not_on_its_way(patch: pytest.MonkeyPatch) -> None:
    """A node sends a value on and says nothing to the owners of what is inside."""
    patch.setattr(ContainedReferences, "pass_on", lambda self, result, to: None)


def never_struck(patch: pytest.MonkeyPatch) -> None:
    """A node drops a value and tells nobody."""
    patch.setattr(ContainedReferences, "release", lambda self, array: None)


def promises_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What a dead worker has lent and borrowed stays in the books."""
    patch.setattr(ContainedReferences, "worker_gone", lambda self, worker: None)


@pytest.mark.parametrize("break_it", [never_kept, not_on_its_way, never_struck, promises_forgotten])
def test_a_defect_is_caught(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(400):
            run(seed, "worker")
