"""The owner lookup of the GCS for results of calls that the maker never logged."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.core.ids import job_of, object_id
from raytwin.runtime.control.gcs.array_store import LOST_S
from raytwin.runtime.control.messages import (
    JobEnded,
    NodeChanged,
    NodeInfo,
    ObjectPayload,
    OwnersFound,
    PullObject,
    Release,
    SeekOwners,
    SubmitTasks,
    TaskExtra,
    TaskResults,
    TaskUpdates,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause, Refusal
from tests.control.alone import array, result, spec
from tests.control.one_node import DRIVER, Node
from tests.control.test_lost_inputs import Table, oid
from tests.control.test_stream_replies import call

UNREPORTED = Loss(LossCause.UNREPORTED, refusal=Refusal.ACTOR_WENT_ON)
LARGE, SMALL = object_id(array(1), 0, 0), object_id(array(1), 0, 1)


def there(number: int, alive: bool = True) -> NodeInfo:
    return NodeInfo(number, "host", 1, {"CPU": 1.0}, alive, incarnation=1)


def answered(first: str = "result") -> Node:
    """A node whose calls 1 and 2 have made large values on nodes 1, which is dead, and 2."""
    node = Node()
    node.turn("gcs", *(NodeChanged(there(number)) for number in (0, 1, 2)))
    node.turn(DRIVER, SubmitTasks([call(number, DRIVER) for number in (1, 2, 3)]))
    node.turn("node:2", TaskResults(DRIVER, [result(2, node=2, size=500_000)]))
    turns = [
        ("node:1", TaskResults(DRIVER, [result(1, node=1, size=500_000)])),
        ("gcs", NodeChanged(there(1, alive=False))),
    ]
    for source, message in turns if first == "result" else reversed(turns):
        node.turn(source, message)
    return node


@pytest.mark.parametrize("first", ["result", "death"])
def test_the_caller_learns_that_an_actor_made_an_unreported_result(
    first: str,
) -> None:
    """There is nothing to fetch from a node that is known to be dead."""
    table, node = Table(), answered(first)
    table.ask(oid(1), node=0)
    while not table.ctx.take(SeekOwners, "node:0"):
        table.ctx.pass_time(LOST_S)
    node.turn("gcs", SeekOwners([array(1)]))
    for answer in node.ctx.take(OwnersFound):
        table.gcs.handle("node:0", answer)
    for number in (1, 2, 3):
        table.gcs.handle(f"node:{number}", OwnersFound(number, [], [array(1)]))
    [location] = table.told()
    assert location.lost == UNREPORTED


def half_gone() -> tuple[Table, Node]:
    """Node 0, whose call has made a large and a small value on node 1, which told nobody else.

    Node 3 wants both, and the table, without a row, has asked node 0.
    """
    table, node = Table(), Node()
    node.turn("gcs", *(NodeChanged(there(number)) for number in (0, 1)))
    plain = TaskExtra(call=array(7), method="m")
    node.turn(DRIVER, SubmitTasks([replace(call(1, DRIVER), returns=2, extra=plain)]))
    both = replace(result(1, node=1, returns=2), sizes=(500_000, 0), offsets=(64, -1))
    node.turn("node:1", TaskResults(DRIVER, [both]))
    node.turn("gcs", NodeChanged(there(1, alive=False)))
    table.kill(1)
    table.ask(LARGE, SMALL)
    while not table.ctx.take(SeekOwners, "node:0"):
        table.ctx.pass_time(LOST_S)
    return table, node


def answers(table: Table, node: Node) -> None:
    """All nodes are asked whose the array is; of node 0 what it says is passed on."""
    node.turn("gcs", SeekOwners([array(1)]))
    for _, message in node.ctx.sent:
        if isinstance(message, TaskUpdates | OwnersFound):
            table.gcs.handle("node:0", message)
    node.ctx.sent.clear()
    for number in (2, 3):
        table.gcs.handle(f"node:{number}", OwnersFound(number, [], [array(1)]))


def test_a_small_value_of_a_lost_large_one_is_at_its_owner() -> None:
    """Its owner's node has it with the result, and nobody but it knows of the call's end."""
    table, node = half_gone()
    answers(table, node)
    found = {each.object: (each.nodes, each.size, each.lost) for each in table.told()}
    assert found == {
        SMALL: ((0,), 0, None),
        LARGE: ((), 0, UNREPORTED),
    }
    node.turn("node:3", PullObject(SMALL))
    [payload] = node.ctx.take(ObjectPayload, "node:3")
    assert payload.result is not None and payload.result.payload == b"value"


def test_the_row_of_such_a_call_ends_with_its_owner() -> None:
    table, node = half_gone()
    answers(table, node)
    assert table.gcs.arrays[array(1)].owners == {0: DRIVER}
    node.turn(DRIVER, Release([array(1)]))
    node.ctx.pass_time(1.0)
    for news in node.ctx.take(TaskUpdates):
        table.gcs.handle("node:0", news)
    assert array(1) not in table.gcs.arrays
    answers(table, node)
    assert array(1) not in table.gcs.arrays and len(table.gcs.table.reconstruction.lookup) == 0


def test_each_owner_of_such_a_call_is_entered() -> None:
    """Its caller has run again on another node, while its first one had what it owned."""
    table, node = half_gone()
    answers(table, node)
    other = "driver:2.0"
    kept = [(array(1), other, (500_000, 0))]
    table.gcs.handle("node:2", OwnersFound(2, [], [array(1)], [], [array(1)], kept))
    assert table.gcs.arrays[array(1)].owners == {0: DRIVER, 2: other}
    table.told()
    table.news(0, released=[array(1)])
    table.ask(SMALL)
    assert [(each.object, each.nodes) for each in table.told()] == [(SMALL, (2,))]
    table.news(2, released=[array(1)])
    assert array(1) not in table.gcs.arrays


def test_no_row_is_made_for_an_ended_job() -> None:
    table, node = half_gone()
    table.gcs.handle("links", JobEnded(job_of(array(1)), "its driver is gone"))
    table.told()
    answers(table, node)
    assert array(1) not in table.gcs.arrays and table.told() == []


def test_the_large_one_is_awaited_while_an_actor_makes_it_again() -> None:
    table, node = half_gone()
    rebuilt = [array(1)]
    table.gcs.actors.may_replay = rebuilt.__contains__
    answers(table, node)
    assert [each.object for each in table.told()] == [SMALL]
    table.ctx.pass_time(10 * LOST_S)
    table.ask(LARGE)
    assert table.told() == []
    made = [(array(1), 0, 1, (500_000, 0))]
    table.news(2, calls=[(array(1), DRIVER, b"a")], done=made)
    assert [(each.object, each.nodes) for each in table.told()] == [(LARGE, (2,))]
    table.kill(2)
    rebuilt.clear()
    table.ask(LARGE, SMALL)
    found = {each.object: each.nodes for each in table.told()}
    assert found == {LARGE: (), SMALL: (0,)}


def test_a_result_is_lost_when_its_actor_does_not_make_it_again() -> None:
    table, node = half_gone()
    rebuilt = [array(1)]
    table.gcs.actors.may_replay = rebuilt.__contains__
    answers(table, node)
    assert [each.object for each in table.told()] == [SMALL]
    rebuilt.clear()
    table.ctx.pass_time(LOST_S)
    assert [(each.object, each.nodes) for each in table.told()] == [(LARGE, ())]


def test_a_result_that_its_actor_made_again_is_not_lost() -> None:
    table = Table()
    table.ask(oid(1), node=0)
    while not table.ctx.take(SeekOwners, "node:0"):
        table.ctx.pass_time(LOST_S)
    for _ in range(2):
        table.news(2, calls=[(array(1), DRIVER, b"a")], done=[(array(1), 0, 1, (500,))])
        assert [location.nodes for location in table.told()] == [(2,)]
        table.gcs.handle("node:0", OwnersFound(0, [], [array(1)], [], [array(1)]))
        table.ask(oid(1), node=0)


def test_a_node_reports_results_of_calls_that_were_lost_with_others() -> None:
    node = answered()
    gone, elsewhere, awaited, unknown = arrays = [array(number) for number in (1, 2, 3, 4)]
    node.turn("gcs", SeekOwners(arrays))
    [answer] = node.ctx.take(OwnersFound)
    assert answer == OwnersFound(0, [awaited], [gone, elsewhere, unknown], [], [gone])


def test_the_node_releases_results_that_the_table_has_lost() -> None:
    """Its maker told the table and died; the owner's node heard only of what was made again."""
    node = Node()
    node.turn(DRIVER, SubmitTasks([call(number, DRIVER) for number in (1, 2)]))
    node.turn("gcs", SeekOwners([], [array(1)]))
    node.ctx.sent.clear()
    node.turn(DRIVER, Release([array(1), array(2)]))
    node.ctx.pass_time(1.0)
    assert [each for m in node.ctx.take(TaskUpdates) for each in m.released] == [array(1)]


def test_waiters_are_notified_of_a_copy_in_transit() -> None:
    """Its node is dead for the table, and has sent it on before."""
    table = Table()
    table.made(spec(1, retries=0), 1)
    table.gcs.actors.replays = lambda actor, array: True  # nobody knows yet whether it comes again
    table.gcs.arrays[array(1)].actor = b"actor"
    table.kill(1)
    table.ask(oid(1), node=3)
    assert table.told() == []
    table.news(2, copies=[(oid(1), 500)])
    assert [location.nodes for location in table.told()] == [(2,)]
    assert not table.gcs.table.waiters.arrays
