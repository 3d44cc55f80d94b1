"""Lost values whose inputs an actor made, which may have been released: it replays them once."""

from __future__ import annotations

import pytest

from raytwin.runtime.control.core.ids import STREAM_BASE
from raytwin.runtime.control.messages import (
    ActorLineage,
    AssignTasks,
    CallRecord,
    FreeObjects,
    StreamItems,
    TaskUpdates,
)
from raytwin.runtime.control.messages.errors import LossCause, Refusal
from tests.control.alone import array, result, spec
from tests.control.one_node import DRIVER, W2, Node
from tests.control.test_lost_inputs import Table, oid
from tests.control.test_stream_replies import ACTOR, call, creation

MAKER = array(7)
ITEM = oid(1, STREAM_BASE)
OWNER = "driver:0.0"


def yields(table: Table, node: int, owner: str = OWNER) -> None:
    done = [(array(1), STREAM_BASE, 1, (500,)), (array(1), 0, 1, ())]
    table.news(node, calls=[(array(1), owner, MAKER)], done=done)


@pytest.fixture
def table() -> Table:
    """2 is made of an item of the call 1, and 3 of 2; only 3 has an owner, all were on node 1."""
    table = Table()
    yields(table, 1)
    table.made(spec(2, deps=(ITEM,), owner=OWNER, retries=-1), 1)
    table.made(spec(3, deps=(oid(2),), owner=OWNER, retries=-1), 1)
    table.news(0, released=[array(1), array(2)])
    table.ctx.sent.clear()
    return table


def rebuild(table: Table, *calls: bytes) -> None:
    """Have the actor replay calls, as long as this list has them."""
    table.gcs.actors.may_replay = calls.__contains__
    table.gcs.actors.replays = lambda actor, call: actor == MAKER and call in calls


def test_a_released_item_that_nobody_replays_is_lost_at_once(table: Table) -> None:
    table.kill(1)
    assert table.placed() == []
    table.ask(oid(3))
    assert [task.array for task in table.placed()] == [array(3)]
    table.ask(oid(2))
    assert [task.array for task in table.placed()] == [array(2)]
    table.ask(ITEM)
    [location] = table.told()
    assert location.lost.cause is LossCause.RELEASED
    assert location.lost.refusal is Refusal.ACTOR_WENT_ON


@pytest.mark.parametrize("owner", [OWNER, ""])
def test_what_descends_from_a_replay_is_made_with_it(table: Table, owner: str) -> None:
    """Nobody waits for it yet; the owner's node has let go of the item, and may say so."""
    rebuild(table, array(1))
    table.kill(1)
    assert [task.array for task in table.placed()] == [array(3)]
    table.ask(oid(2))
    [again] = table.placed()
    assert again.array == array(2)
    table.ask(ITEM)
    assert table.told() == []
    yields(table, 2, owner)
    assert [(each.object, each.nodes) for each in table.told()] == [(ITEM, (2,))]
    assert table.freed() == []
    table.made(again, 3)
    assert table.freed() == [array(1)]


@pytest.mark.parametrize("owner", [OWNER, ""])
def test_what_a_replay_makes_in_vain_is_freed(table: Table, owner: str) -> None:
    table.kill(1)
    yields(table, 2, owner)
    assert table.ctx.take(FreeObjects, "node:2") == [FreeObjects([array(1)])]


def test_what_does_not_descend_from_a_replay_waits_for_a_client(table: Table) -> None:
    rebuild(table, array(9))
    table.kill(1)
    assert table.placed() == []


def test_a_node_lets_the_gcs_decide_about_a_replay_that_its_client_released() -> None:
    node = Node(2)
    node.turn("gcs", AssignTasks([creation(1, -1)]))
    record = CallRecord(call(2, DRIVER), result(2, node=1, size=500_000))
    node.turn("gcs", ActorLineage(ACTOR, 1, 0, b"", [record], []))
    node.done(W2, (1, 0, 1))
    node.ctx.sent.clear()
    node.turn(W2, StreamItems([result(2, STREAM_BASE, size=500_000, offset=64)]))
    [news] = node.ctx.take(TaskUpdates)
    assert news.calls == [(array(2), "", ACTOR)]
    assert news.done == [(array(2), STREAM_BASE, 1, (500_000,))]
    node.turn("gcs", FreeObjects([array(2)]))
    assert not node.scheduler.objects.has_array(array(2))
