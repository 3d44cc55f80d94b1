"""What cannot be made again because of what it needs: said at once, with the cause, and once.

And what can: a value that was let go of costs no retry, and what its values refer to is
there as long as they are.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from runtime.control.array_rows import LOST_S
from runtime.control.config import Config
from runtime.control.gcs import Gcs
from runtime.control.ids import STREAM_BASE, job_of, object_id
from runtime.control.lineage import placed_again, refusal
from runtime.control.lost import GONE_ON, LET_GO, RELEASED
from runtime.control.messages import (
    FreeObjects,
    LocateObjects,
    Location,
    NodeChanged,
    NodeInfo,
    NodeUnreachable,
    ObjectLocations,
    ObjectPayload,
    ObjectsMissing,
    OwnersFound,
    PlaceTasks,
    PullObject,
    RegisterNode,
    Release,
    SeekOwners,
    SubmitTasks,
    TaskExtra,
    TaskResults,
    TaskSpec,
    TaskUpdates,
)
from tests.control.alone import Alone, array, result, spec
from tests.control.one_node import DRIVER, Node
from tests.control.test_call_items import call

LARGE, SMALL = object_id(array(1), 0, 0), object_id(array(1), 0, 1)
LOST = "ObjectLostError: object 09 is lost: it was put, and its owner has let go of it"


def oid(number: int, index: int = 0) -> bytes:
    return object_id(array(number), index, 0)


class Table:
    """A GCS with nodes 0, which has the driver, to 3."""

    def __init__(self) -> None:
        self.ctx = Alone()
        self.gcs = Gcs(self.ctx, Config())
        for node in range(4):
            info = NodeInfo(node, "host", node, {"CPU": 1.0}, incarnation=1)
            self.gcs.handle(f"node:{node}", RegisterNode(info))
        self.ctx.sent.clear()

    def news(self, node: int, **rows: Any) -> None:
        empty: dict[str, Any] = {"added": [], "done": [], "copies": [], "released": []}
        message = TaskUpdates(node, **{**empty, **rows}, incarnation=1)
        self.gcs.handle(f"node:{node}", message)

    def made(self, made: TaskSpec, node: int, **rows: Any) -> None:
        """A node accepts a task and has ended it."""
        self.gcs.handle("global", TaskUpdates(node, [made], [], [], [], incarnation=1))
        self.news(node, done=[(made.array, 0, 1, (500,))], **rows)

    def kill(self, node: int) -> None:
        self.gcs.handle("links", NodeUnreachable(node, "it burnt"))

    def ask(self, *oids: bytes, node: int = 3) -> None:
        self.gcs.handle(f"node:{node}", LocateObjects(list(oids)))

    def placed(self) -> list[TaskSpec]:
        return [task for m in self.ctx.take(PlaceTasks) for task in m.tasks]

    def told(self) -> list[Location]:
        return [each for m in self.ctx.take(ObjectLocations) for each in m.locations]

    def freed(self) -> list[bytes]:
        return [each for m in self.ctx.take(FreeObjects) for each in m.arrays]


def lends(number: int, *inner: int) -> TaskSpec:
    """Return a task whose arguments have references inside."""
    return replace(spec(number), extra=TaskExtra(inside=tuple(map(array, inner))))


# -- an input that is lost for good ------------------------------------------------


def used_and_let_go_of() -> Table:
    """Return a table in which 2 is made of 1, which was put, and both were let go of."""
    table = Table()
    table.news(0, puts=[(array(1), 500)])
    table.made(spec(2, deps=(oid(1),)), 1)
    table.made(spec(3, deps=(oid(2),)), 2)
    table.news(0, released=[array(1), array(2)])
    table.kill(2)
    table.ctx.sent.clear()
    return table


def test_who_asks_for_a_put_that_was_let_go_of_does_not_wait_for_time_to_pass() -> None:
    table = used_and_let_go_of()
    table.ask(oid(1))
    assert table.told() == []
    assert table.ctx.take(SeekOwners, "node:1")[0].arrays == [array(1)]
    for node in (0, 1, 3):
        table.gcs.handle(f"node:{node}", OwnersFound(node, [], [array(1)]))
    [location] = table.told()
    assert location.lost == "it was put, and its owner has died or released it"


def test_a_put_that_has_an_owner_again_is_awaited() -> None:
    table = used_and_let_go_of()
    table.ask(oid(1))
    table.gcs.handle("node:1", OwnersFound(1, [array(1)], []))
    for node in (0, 3):
        table.gcs.handle(f"node:{node}", OwnersFound(node, [], [array(1)]))
    assert table.told() == []
    table.news(1, puts=[(array(1), 500)])
    assert [location.nodes for location in table.told()] == [(1,)]


def test_a_run_that_lacked_an_input_is_the_last_and_its_cause_is_what_is_said() -> None:
    table = used_and_let_go_of()
    table.made(spec(4, deps=(oid(2),)), 1)
    for number in (3, 4):
        if number == 4:
            table.kill(1)
        table.ask(oid(number))
        [again] = table.placed()
        table.news(3, added=[again])
        table.ctx.sent.clear()
        table.ask(oid(2))
        if number == 3:
            [needed] = table.placed()
            table.news(3, added=[needed])
            table.news(3, barren=[(array(2), LOST)], done=[(array(2), 0, 1, ())])
            assert [location.nodes for location in table.told()] == [(3,)]
            table.news(3, done=[(array(3), 0, 1, ())])
            assert table.freed() == [array(2)]
    assert table.placed() == []
    [location] = table.told()
    assert location.lost.endswith(f", and task2 needs an input that is lost: {LOST}")
    # In a long chain of such errors each says where it began, and no more.
    table.gcs.arrays[array(4)].barren = f"ObjectLostError: object 02 is lost: {location.lost}"
    why = refusal(table.gcs.arrays[array(4)], spec(4), "it burnt")
    assert why == f"it burnt, and task4 needs an input that is lost: {LOST}"


def test_what_lacked_an_input_is_made_when_its_owners_task_has_run_again() -> None:
    table = used_and_let_go_of()
    table.gcs.arrays[array(3)].barren = LOST
    table.news(1, added=[spec(3, deps=(oid(2),), owner="worker:1.1")])
    assert table.gcs.arrays[array(3)].barren == ""


def test_what_a_repeated_task_needs_and_is_still_to_come_is_awaited() -> None:
    """A call of an actor, of which the table hears when it has ended."""
    table = Table()
    table.gcs.handle("global", TaskUpdates(1, [spec(2, deps=(oid(1),))], [], [], [], incarnation=1))
    table.kill(1)
    [again] = table.placed()
    table.news(2, added=[again])
    table.ask(oid(1), node=2)
    for _ in range(3):
        table.ctx.sent.clear()
        while not table.ctx.take(SeekOwners, "node:0"):
            table.ctx.pass_time(1.0)
        for node in (0, 2, 3):
            owned, others = ([array(1)], []) if node == 0 else ([], [array(1)])
            table.gcs.handle(f"node:{node}", OwnersFound(node, owned, others))
        assert table.told() == []
    table.news(0, calls=[(array(1), "driver:0.0", b"")], done=[(array(1), 0, 1, ())])
    assert [location.nodes for location in table.told()] == [(0,)]


def test_a_small_value_of_an_unknown_actor_that_was_let_go_of_is_lost() -> None:
    table = Table()
    table.news(0, calls=[(array(1), "driver:0.0", b"")], done=[(array(1), 0, 1, ())])
    table.made(spec(2, deps=(oid(1),)), 1)
    table.news(0, released=[array(1)])
    table.kill(1)
    table.ask(oid(2))
    table.news(2, added=table.placed())
    table.ask(oid(1), node=2)
    [location] = table.told()
    assert location.lost.startswith("an actor made it, and ")


def test_who_runs_again_hears_that_an_actor_had_made_what_its_earlier_run_let_go_of() -> None:
    """A checkpoint of the actor contains the call, so it is answered and does not run again."""
    table = Table()
    table.news(1, calls=[(array(1), "worker:1.1", b"a")], done=[(array(1), 0, 1, (500,))])
    table.news(1, released=[array(1)])
    table.kill(1)
    table.ask(oid(1), node=0)
    table.ctx.pass_time(1.0)
    for node in (0, 2, 3):
        table.gcs.handle(f"node:{node}", OwnersFound(node, [], [array(1)]))
    [location] = table.told()
    assert location.lost == f"{RELEASED}{GONE_ON}"


def test_who_fetches_in_vain_hears_that_an_actor_had_made_what_nobody_has_told_of() -> None:
    """A checkpoint contains the call; its node has died between the log and the table."""
    table = Table()
    table.gcs.handle("node:0", ObjectsMissing(1, [oid(1)]))
    rebuilt = False
    table.gcs.table.remakes = lambda array: not rebuilt
    table.ask(oid(1), node=0)
    table.ctx.pass_time(LOST_S)
    for node in range(4):
        table.gcs.handle(f"node:{node}", OwnersFound(node, [], [array(1)]))
    table.ctx.pass_time(3 * LOST_S)
    assert table.told() == []  # it may be made again
    rebuilt = True
    table.ctx.pass_time(LOST_S)
    [location] = table.told()
    where = "the only copy was on node 1, which does not have it any more"
    assert location.lost == f"{where}{GONE_ON}"


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
def test_whose_call_was_answered_hears_that_an_actor_had_made_what_nobody_has_told_of(
    first: str,
) -> None:
    """As above, and there is nothing to fetch from a node that is known to be dead."""
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
    assert location.lost == f"the only copy was on a node that died{GONE_ON}"


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


def test_a_small_value_beside_a_large_one_that_has_gone_is_where_its_owner_is() -> None:
    """Its owner's node has it with the result, and nobody but it knows of the call's end."""
    table, node = half_gone()
    answers(table, node)
    found = {each.object: (each.nodes, each.size, each.lost) for each in table.told()}
    assert found == {
        SMALL: ((0,), 0, ""),
        LARGE: ((), 0, f"the only copy was on a node that died{GONE_ON}"),
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
    assert array(1) not in table.gcs.arrays and len(table.gcs.table.unheard) == 0


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


def test_of_a_job_that_is_over_no_row_is_made() -> None:
    table, node = half_gone()
    table.gcs.table.end_job(job_of(array(1)))
    table.told()
    answers(table, node)
    assert array(1) not in table.gcs.arrays and table.told() == []


def test_the_large_one_is_awaited_while_an_actor_makes_it_again() -> None:
    table, node = half_gone()
    rebuilt = [array(1)]
    table.gcs.table.remakes = rebuilt.__contains__
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


def test_it_is_lost_when_the_actor_does_not_make_it_again() -> None:
    table, node = half_gone()
    rebuilt = [array(1)]
    table.gcs.table.remakes = rebuilt.__contains__
    answers(table, node)
    assert [each.object for each in table.told()] == [SMALL]
    rebuilt.clear()
    table.ctx.pass_time(LOST_S)
    assert [(each.object, each.nodes) for each in table.told()] == [(LARGE, ())]


def test_what_an_actor_has_made_again_meanwhile_is_not_lost() -> None:
    table = Table()
    table.ask(oid(1), node=0)
    while not table.ctx.take(SeekOwners, "node:0"):
        table.ctx.pass_time(LOST_S)
    for _ in range(2):
        table.news(2, calls=[(array(1), DRIVER, b"a")], done=[(array(1), 0, 1, (500,))])
        assert [location.nodes for location in table.told()] == [(2,)]
        table.gcs.handle("node:0", OwnersFound(0, [], [array(1)], [], [array(1)]))
        table.ask(oid(1), node=0)


def test_a_node_says_which_results_of_calls_have_gone_with_others() -> None:
    node = answered()
    gone, elsewhere, awaited, unknown = arrays = [array(number) for number in (1, 2, 3, 4)]
    node.turn("gcs", SeekOwners(arrays))
    [answer] = node.ctx.take(OwnersFound)
    assert answer == OwnersFound(0, [awaited], [gone, elsewhere, unknown], [], [gone])


def test_who_waits_hears_of_a_copy_that_was_on_its_way() -> None:
    """Its node is dead for the table, and has sent it on before."""
    table = Table()
    table.made(spec(1, retries=0), 1)
    table.gcs.table.replays = lambda actor, array: True  # nobody knows yet whether it comes again
    table.gcs.arrays[array(1)].actor = b"actor"
    table.kill(1)
    table.ask(oid(1), node=3)
    assert table.told() == []
    table.news(2, copies=[(oid(1), 500)])
    assert [location.nodes for location in table.told()] == [(2,)]
    assert not table.gcs.table.waited


# -- items of streams --------------------------------------------------------------


def test_who_asks_for_an_item_that_was_not_yielded_again_learns_who_knows_why() -> None:
    table = Table()
    item = oid(1, STREAM_BASE + 1)
    table.gcs.handle("global", TaskUpdates(1, [spec(1)], [], [], [], incarnation=1))
    table.news(1, done=[(array(1), STREAM_BASE + 1, 1, (500,)), (array(1), 0, 1, ())])
    table.kill(1)
    table.ask(item)
    [again] = table.placed()
    table.news(2, added=[again], done=[(array(1), 0, 1, ())])
    [location] = table.told()
    assert location.lost.endswith("and task1 has not yielded it again")
    assert location.ended == 2


def test_items_that_are_told_of_with_the_end_of_their_task_are_not_taken_for_lost() -> None:
    table = Table()
    items = [oid(1, STREAM_BASE), oid(1, STREAM_BASE + 1)]
    table.gcs.handle("global", TaskUpdates(1, [spec(1)], [], [], [], incarnation=1))
    table.ask(*items)
    large = [(array(1), STREAM_BASE, 1, (500,)), (array(1), STREAM_BASE + 1, 1, (500,))]
    table.news(1, done=[(array(1), 0, 1, ()), *large])
    assert [(each.nodes, each.lost) for each in table.told()] == [((1,), "")] * 2
    assert not table.placed()


# -- what was let go of ------------------------------------------------------------


def test_what_was_let_go_of_costs_no_retry() -> None:
    table = Table()
    table.made(spec(1, retries=1), 1)
    table.made(spec(2, deps=(oid(1),)), 2)
    table.made(spec(3, deps=(oid(1),)), 3)
    table.kill(1)
    table.ask(oid(1), node=0)
    [again] = table.placed()
    assert again.retries == 0, "a fault took it"
    table.news(0, added=[again], done=[(array(1), 0, 1, (500,))])
    table.news(0, released=[array(1)])
    for node, needs in ((2, 2), (3, 3)):
        table.kill(node)
        table.ask(oid(needs), node=0)
        [dependent] = table.placed()
        table.news(0, added=[dependent])
        table.ask(oid(1), node=0)
        [again] = table.placed()
        assert (again.array, again.retries) == (array(1), 0)
        table.news(0, added=[again], done=[(array(1), 0, 1, (500,))])
        table.news(0, done=[(array(needs), 0, 1, (500,))])
    assert table.told() and all(not location.lost for location in table.told())


def test_each_fault_while_it_is_made_for_others_costs_one() -> None:
    table = Table()
    table.made(spec(1, retries=1), 1)
    table.made(spec(2, deps=(oid(1),)), 1)
    table.news(0, released=[array(1)])
    table.kill(1)
    table.ask(oid(2), node=0)
    table.news(0, added=table.placed())
    table.ask(oid(1), node=0)
    for node in (2, 3):
        [again] = table.placed()
        assert again.retries == 3 - node, "the first run is for others, the second for a fault"
        table.news(node, added=[again])
        table.kill(node)
    assert table.placed() == []
    [location] = table.told()
    why = "the node that made it again died: it burnt, and task1 has no retries left"
    assert location.lost == why


def test_its_owners_node_has_let_go_of_what_it_does_not_have() -> None:
    table = Table()
    table.made(spec(1, retries=1), 0)
    table.made(spec(2, deps=(oid(1),)), 1)
    table.gcs.handle("node:0", ObjectsMissing(0, [oid(1)]))
    table.ask(oid(1))
    assert [task.retries for task in table.placed()] == [1]


@pytest.mark.parametrize(("retries", "attempt", "may"), [(1, 0, True), (0, 0, False), (0, 1, True)])
def test_who_may_run_once_more_for_others(retries: int, attempt: int, may: bool) -> None:
    table = Table()
    table.made(replace(spec(1, retries=retries), extra=TaskExtra(attempt=attempt)), 0)
    task = replace(spec(1, retries=retries), extra=TaskExtra(attempt=attempt))
    row = table.gcs.table._row(array(1))
    assert (refusal(row, task, LET_GO, let_go=True) == "") == may
    if may:
        assert placed_again(task, 0, 1, "", let_go=True).retries == retries


# -- what is inside of values ------------------------------------------------------


def nested(holding: bool) -> Table:
    """Return a table in which 3, which is lost, was made of 2, which was lent 1."""
    table = Table()
    table.made(spec(1), 1)
    kept = {"holding": [array(2)]} if holding else {}
    table.made(lends(2, 1), 1, **kept)
    table.made(spec(3, deps=(oid(2),)), 1)
    table.news(0, released=[array(2), array(1)])
    table.kill(1)
    table.ask(oid(3))
    table.news(2, added=table.placed())
    table.ask(oid(2))
    table.news(2, added=table.placed())
    table.ask(oid(1))
    table.news(2, added=table.placed())
    table.news(2, done=[(array(1), 0, 1, (500,))])
    table.ctx.sent.clear()
    table.news(2, done=[(array(2), 0, 1, (500,))], **kept)
    return table


def test_what_a_value_made_again_refers_to_is_there_until_that_is_not_needed() -> None:
    table = nested(holding=True)
    assert table.freed() == []
    table.ask(oid(1))
    assert [location.lost for location in table.told() if location.object == oid(1)] == [""]
    table.news(2, done=[(array(3), 0, 1, (500,))])
    assert sorted(table.freed()) == [array(1), array(2)]
    assert not table.gcs.table.lineage.needed


def test_what_a_value_does_not_refer_to_is_freed_when_it_is_made() -> None:
    table = nested(holding=False)
    assert table.freed() == [array(1)]


def test_what_is_let_go_of_while_a_value_that_refers_to_it_is_needed_stays() -> None:
    table = Table()
    table.made(spec(1), 2)
    table.made(lends(2, 1), 2, holding=[array(2)])
    table.made(spec(3, deps=(oid(2),)), 1)
    table.kill(1)
    table.ask(oid(3))
    table.news(3, added=table.placed())
    table.news(0, released=[array(2), array(1)])
    assert table.freed() == []
    table.ask(oid(1))
    assert [location.nodes for location in table.told() if location.object == oid(1)] == [(2,)]
    table.news(3, done=[(array(3), 0, 1, (500,))])
    assert sorted(table.freed()) == [array(1), array(2)]
