"""Items of streams of actors' calls in the object table: awaited ones and lost ones."""

from __future__ import annotations

import pytest

from raytwin.runtime.control.core.ids import STREAM_BASE
from raytwin.runtime.control.gcs.array_store import LOST_S
from raytwin.runtime.control.messages import (
    OwnersFound,
    SeekOwners,
    SubmitTasks,
    TaskResults,
    TaskUpdates,
)
from raytwin.runtime.control.messages.errors import LossCause
from tests.control.alone import array, result
from tests.control.one_node import DRIVER, W1, W2, Node
from tests.control.test_lost_inputs import Table, oid
from tests.control.test_stream_replies import call

ACTOR = array(7)
ITEM = oid(1, STREAM_BASE)
OWNER = "worker:3.1"


def yielded(table: Table, node: int, actor: bytes = ACTOR, size: int = 500) -> None:
    """A node tells of an item of a call."""
    sizes = (size,) if size else ()
    table.news(node, calls=[(array(1), OWNER, actor)], done=[(array(1), STREAM_BASE, 1, sizes)])


def ended(table: Table) -> None:
    """The node of the call's owner has its end, and does not know who made it."""
    table.news(3, calls=[(array(1), OWNER, b"")], done=[(array(1), 0, 1, ())])


def test_the_maker_of_items_is_kept_while_their_owner_has_them() -> None:
    """An actor that is rebuilt is asked only for what it is known to have made."""
    table = Table()
    yielded(table, 1)
    yielded(table, 3, b"", size=0)
    ended(table)
    assert table.gcs.arrays[array(1)].actor == ACTOR


def test_an_item_of_a_call_that_has_not_ended_comes_again() -> None:
    """It is not in the actor's log yet, and is sent once more by its caller's node."""
    table = Table()
    yielded(table, 1)
    table.kill(1)
    table.ask(ITEM, node=0)
    assert table.told() == []
    yielded(table, 2)
    assert [location.nodes for location in table.told()] == [(2,)]


def test_an_item_is_lost_when_its_call_has_ended_without_it() -> None:
    table = Table()
    yielded(table, 1)
    table.kill(1)
    table.ask(ITEM, node=0)
    ended(table)
    [location] = table.told()
    assert (location.lost.cause, location.lost.node) == (LossCause.NODE_DIED, 1)
    assert location.ended == 3, "who has its end knows whether that is an error, and why"
    table.ask(ITEM, node=0)
    assert [(each.lost, each.ended) for each in table.told()] == [(location.lost, 3)]
    table.kill(3)
    table.ask(ITEM, node=0)
    assert [each.ended for each in table.told()] == [-1]


def answered(table: Table, *nodes: int, owned: int = -1) -> None:
    """Nodes say whose the array is; node 3 that the item was made on a node that died."""
    for node in nodes:
        gone = [array(1)] if node == 3 and owned != 3 else []
        mine, others = ([array(1)], []) if node == owned else ([], [array(1)])
        table.gcs.handle(f"node:{node}", OwnersFound(node, mine, others, gone=gone))


@pytest.mark.parametrize("asked_first", [True, False])
def test_an_item_is_lost_when_its_node_died_before_reporting_it(asked_first: bool) -> None:
    """Its owner knows of it, and tells the table of the end of its call alone."""
    table = Table()
    table.kill(1)
    if asked_first:
        table.ask(ITEM, node=0)
        ended(table)
    else:
        ended(table)
        table.ask(ITEM, node=0)
    assert [m.arrays for m in table.ctx.take(SeekOwners)] == [[array(1)]] * 3
    table.ask(ITEM, node=2)
    answered(table, 0, 2)
    assert table.told() == [] and table.ctx.take(SeekOwners) == []
    answered(table, 3)
    locations = table.told()
    assert [(each.nodes, each.ended) for each in locations] == [((), 3)] * 2
    assert all(each.lost.cause is LossCause.UNREPORTED for each in locations)
    table.ask(ITEM, node=0)
    assert [each.lost for each in table.told()] == [locations[0].lost]
    table.ctx.pass_time(100.0)
    assert table.ctx.take(SeekOwners) == [] and len(table.gcs.table.reconstruction.lookup) == 0


def test_an_item_is_not_lost_while_its_node_may_report_it() -> None:
    """What a node has told comes before its answer, and it may not know of it before."""
    table = Table()
    table.ask(ITEM, node=0)
    ended(table)
    answered(table, 0, 2, 3)
    assert table.told() == []
    yielded(table, 1)
    assert [location.nodes for location in table.told()] == [(1,)]
    answered(table, 1)
    assert table.told() == [] and len(table.gcs.table.reconstruction.lookup) == 0


def test_an_item_is_lost_when_no_node_knows_of_it() -> None:
    """The owner's node, of which it knows, died; whoever owns it now has its end alone."""
    table = Table()
    ended(table)
    table.ask(ITEM, node=0)
    answered(table, 0, 3, owned=3)
    table.kill(1)
    assert table.told() == []
    answered(table, 2)
    assert [each.ended for each in table.told()] == [3]


def test_an_item_is_not_lost_while_its_actor_is_reconstructed() -> None:
    table = Table()
    rebuilt = [array(1)]
    table.gcs.actors.may_replay = rebuilt.__contains__
    table.kill(1)
    ended(table)
    table.ask(ITEM, node=0)
    table.ctx.pass_time(10 * LOST_S)
    assert table.told() == [] and table.ctx.take(SeekOwners) == []
    rebuilt.clear()
    table.ctx.pass_time(LOST_S)
    answered(table, 0, 2, 3)
    assert [each.ended for each in table.told()] == [3]


def test_a_node_reports_its_items_before_their_owner() -> None:
    """Its answer is taken for its last word on what was made."""
    node = Node()
    node.turn(DRIVER, SubmitTasks([call(2, DRIVER)]))
    node.turn("node:1", TaskResults(DRIVER, [result(2, STREAM_BASE, node=1)]))
    assert node.ctx.take(TaskUpdates) == []
    node.turn("gcs", SeekOwners([array(2)]))
    said = [type(m) for _, m in node.ctx.sent if isinstance(m, (TaskUpdates, OwnersFound))]
    assert said == [TaskUpdates, OwnersFound]


def test_items_released_before_they_were_made_again_are_dropped() -> None:
    """The node that has made it dies before it has told the owner's, which would have said so."""
    table = Table()
    yielded(table, 1)
    yielded(table, 2)
    table.kill(1)
    assert [m.lost for m in table.ctx.take(SeekOwners, "node:3")] == [[array(1)]]
    table.gcs.handle("node:3", OwnersFound(3, [], [], [array(1)]))
    assert array(1) in table.gcs.arrays, "there is a copy, of which the owner's node will hear"
    table.kill(2)
    table.gcs.handle("node:3", OwnersFound(3, [], [], [array(1)]))
    assert array(1) not in table.gcs.arrays


def test_a_node_reports_its_released_items() -> None:
    node = Node()
    node.scheduler.objects.owners.own(array(1), DRIVER)
    node.turn("gcs", SeekOwners([], [array(1), array(2)]))
    assert node.ctx.take(OwnersFound) == [OwnersFound(0, [], [], [array(2)])]
    node.turn("gcs", SeekOwners([], [array(1)]))
    assert node.ctx.take(OwnersFound) == []


def test_a_node_does_not_report_large_items_of_other_nodes() -> None:
    """Small ones are: the only copy is where their owner is."""
    node = Node()
    node.turn(DRIVER, SubmitTasks([call(2, DRIVER)]))
    items = [result(2, STREAM_BASE, node=1), result(2, STREAM_BASE + 1, node=1, size=500_000)]
    node.turn("node:1", TaskResults(DRIVER, items))
    node.ctx.pass_time(1.0)
    [news] = node.ctx.take(TaskUpdates)
    assert news.done == [(array(2), STREAM_BASE, 1, ())]
    assert [(a, owner) for a, owner, _ in news.calls] == [(array(2), DRIVER)]


def test_reconstructed_items_belong_to_the_present_owner() -> None:
    """Not of one who has let go of it: the GCS would take it for late, and free it."""
    node = Node(2)
    node.scheduler.objects.owners.own(array(2), W2)
    results = node.scheduler.results
    results.finish_item(result(2, STREAM_BASE), W1, ACTOR)
    results.replayed(result(2, size=500_000, offset=64), W1, ACTOR)
    node.ctx.pass_time(1.0)
    owners = {owner for m in node.ctx.take(TaskUpdates) for _, owner, _ in m.calls}
    assert owners == {W2}
