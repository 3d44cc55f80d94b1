"""What a node keeps of a dead worker's: for those who claim it, and for those who borrow it."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.control.array_rows import ORPHANED_S
from runtime.control.borrowing import ON_ITS_WAY_S
from runtime.control.config import Config
from runtime.control.membership import Membership
from runtime.control.messages import OK, NodeInfo, RangeResult, RefUpdates
from runtime.control.objects import ObjectDirectory
from runtime.control.orphans import Orphans
from runtime.control.owners import NOBODY
from runtime.control.ref_book import (
    ENTER,
    ENTER_AND_SAY_SO,
    ENTERED,
    GONE,
    PINNED,
    RESTATE,
    STRIKE,
    on_its_way,
)
from tests.control.alone import Alone, array, spec

DEAD = "worker:0.1"
SETTLE_S = 7.0
BORROWER, KEEPER, OTHER = "worker:1.3", "node:1.0", "node:2.0"


class Node:
    """Orphans alone, of arrays 1 to 3; 3 is not made yet, unless `made` has it."""

    def __init__(self, *owned: int) -> None:
        self.ctx = Alone()
        members = Membership(0, 1)
        for node in range(3):
            members.update(NodeInfo(node, "", 0, {}, incarnation=1))
        self.members = members
        self.objects = ObjectDirectory(self.ctx, 0, lambda *_: None, Config().store_wait_s)
        self.released: list[int] = []
        self.made = {array(1), array(2)}
        self.orphans = Orphans(
            self.ctx, self.objects, members, SETTLE_S, (), self.made.__contains__, self._release
        )
        self.arrays = [array(number) for number in owned or (1, 2)]
        for each in self.arrays:
            self.objects.own(each, DEAD)

    def _release(self, each: bytes) -> None:
        self.objects.release(each)
        self.released.append(int.from_bytes(each[-2:], "big"))

    def died(self, parent: Any = None, restarts: bool = False, lent: bool = True) -> None:
        self.orphans.keep(DEAD, self.arrays, parent, restarts, lent)

    def say(self, what: int, borrower: str = BORROWER, epoch: int = 1, of: int = 1) -> None:
        update = (array(of) if of else b"", borrower, epoch, what)
        self.orphans.on_updates(RefUpdates(DEAD, [update]))


def test_what_nobody_has_borrowed_goes_when_all_have_had_the_time_to_say_so() -> None:
    node = Node()
    node.died()
    node.say(ENTER)
    node.ctx.pass_time(SETTLE_S - 0.1)
    assert node.released == []
    node.ctx.pass_time(0.2)
    assert node.released == [2] and node.objects.owners == {array(1): NOBODY}
    node.say(STRIKE)
    assert node.released == [2, 1] and not len(node.orphans)


@pytest.mark.parametrize("late", [ENTER, STRIKE])
def test_what_a_node_states_outdates_what_it_said_to_the_owner(late: int) -> None:
    node = Node()
    node.died()
    node.say(late, KEEPER, 0)  # on its way when the owner died
    node.say(RESTATE, KEEPER, 2)
    node.ctx.pass_time(SETTLE_S + 0.1)
    node.say(STRIKE, KEEPER, 0)
    assert node.released == [2]
    node.say(STRIKE, KEEPER, 0)
    assert node.released == [2, 1]


def test_a_client_that_has_returned_it_is_not_entered_by_what_comes_late() -> None:
    node = Node()
    node.died()
    node.say(STRIKE, epoch=2)
    node.say(ENTER, epoch=1)
    node.ctx.pass_time(SETTLE_S + 0.1)
    assert sorted(node.released) == [1, 2]


def test_a_value_on_its_way_holds_as_long_as_it_may_take() -> None:
    node = Node()
    node.died()
    node.ctx.pass_time(SETTLE_S - 1.0)
    node.say(ENTER, on_its_way(KEEPER, OTHER), 0)
    node.say(STRIKE, on_its_way(KEEPER, OTHER), 0)  # of another that went the same way
    node.ctx.pass_time(2.0)
    assert node.released == [2]
    node.ctx.pass_time(ON_ITS_WAY_S)
    assert node.released == [2, 1]


@pytest.mark.parametrize("how", ["client", "node"])
def test_who_dies_has_nothing_any_more(how: str) -> None:
    node = Node()
    node.died()
    node.say(ENTER)
    node.ctx.pass_time(SETTLE_S + 0.1)
    if how == "client":
        node.say(GONE, of=0)
    else:
        node.say(ENTER, KEEPER, 0)
        node.members.update(NodeInfo(1, "", 0, {}, alive=False, incarnation=1))
        node.orphans.on_node_died(1, 1)
    assert node.released == [2, 1]
    # What it said before, and what comes now, of another array.
    again = Node()
    again.died()
    again.say(GONE, of=0)
    again.say(ENTER)
    again.ctx.pass_time(SETTLE_S + 0.1)
    assert sorted(again.released) == [1, 2]


def test_who_asks_for_it_is_answered_in_the_owners_place() -> None:
    node = Node()
    node.died()
    node.say(ENTER_AND_SAY_SO, epoch=4)
    answer = RefUpdates(BORROWER, [(array(1), BORROWER, 4, ENTERED)])
    assert node.ctx.sent == [("node:1", answer)]
    node.say(ENTER_AND_SAY_SO, "worker:0.9", epoch=1)
    assert node.ctx.sent[1][0] == "worker:0.9"


def test_pins_end_with_the_owner() -> None:
    node = Node()
    node.died()
    node.say(ENTER, PINNED, 0)
    node.ctx.pass_time(SETTLE_S + 0.1)
    assert sorted(node.released) == [1, 2]


def test_what_is_borrowed_and_not_made_keeps_what_it_may_need() -> None:
    node = Node(1, 3)
    node.died()
    node.say(ENTER, of=3)
    node.ctx.pass_time(3 * SETTLE_S)
    assert node.released == []
    node.made.add(array(3))
    node.ctx.pass_time(SETTLE_S + 0.1)
    assert node.released == [1]


def test_a_parent_claims_what_it_makes_again_and_its_end_frees_the_rest() -> None:
    node = Node()
    parent = spec(9, retries=1)
    node.died(parent, lent=False)
    node.ctx.pass_time(10 * ORPHANED_S)
    assert node.released == []
    node.objects.own(array(1), "worker:0.2")
    node.orphans.ended(RangeResult(parent.array, 0, 1, OK, b"", 0))
    assert node.released == [2] and node.objects.owners == {array(1): "worker:0.2"}
    assert node.orphans.let_go([array(1)]) == [array(1)]


def test_an_actor_that_starts_again_has_a_minute_to_claim_it() -> None:
    node = Node()
    node.died(restarts=True, lent=False)
    node.objects.own(array(1), "worker:0.2")
    node.ctx.pass_time(ORPHANED_S + 0.1)
    assert node.released == [2] and not len(node.orphans)


def test_what_was_claimed_and_let_go_of_stays_for_who_has_borrowed_it() -> None:
    node = Node()
    node.died()
    node.say(ENTER)
    node.objects.own(array(1), "worker:0.2")
    node.ctx.pass_time(SETTLE_S + 0.1)
    assert node.orphans.let_go([array(1), array(7)]) == [array(7)]
    assert node.objects.owners[array(1)] == NOBODY
    node.say(STRIKE)
    assert node.released == [2, 1]


def test_the_next_owner_dies_too_and_the_book_is_kept() -> None:
    node = Node()
    node.died()
    node.say(ENTER)
    node.ctx.pass_time(SETTLE_S + 0.1)
    node.objects.own(array(1), "worker:0.2")
    node.orphans.keep("worker:0.2", [array(1)], None, restarts=False, lent=False)
    assert node.orphans.former_owner(array(1)) == "worker:0.2"
    node.say(STRIKE)
    assert node.released == [2, 1] and not len(node.orphans)
