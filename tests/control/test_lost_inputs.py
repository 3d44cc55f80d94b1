"""Values that cannot be reconstructed for a lost input fail at once, with the cause.

Others can: a released value costs no retry, and the objects that it contains live as long
as it does.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import STREAM_BASE, object_id
from raytwin.runtime.control.gcs.array_store import LOST_S
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.gcs.lineage import refusal, resubmission
from raytwin.runtime.control.messages import (
    ClaimTasks,
    ForwardResults,
    FreeObjects,
    LocateObjects,
    Location,
    Missing,
    NodeInfo,
    NodeUnreachable,
    ObjectLocations,
    ObjectsMissing,
    OwnersFound,
    PlaceTasks,
    RegisterNode,
    ResultsMissing,
    SeekOwners,
    TaskExtra,
    TasksClaimed,
    TaskSpec,
    TaskUpdates,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause, Refusal
from tests.control.alone import Alone, array, spec

LOST = Loss(LossCause.FREED, refusal=Refusal.PUT, object=bytes(18))


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
        self.gcs.handle("links", NodeUnreachable(node, "it burnt", 1))

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


def test_a_request_for_a_released_put_fails_at_once() -> None:
    table = used_and_let_go_of()
    table.ask(oid(1))
    assert table.told() == []
    assert table.ctx.take(SeekOwners, "node:1")[0].arrays == [array(1)]
    for node in (0, 1, 3):
        table.gcs.handle(f"node:{node}", OwnersFound(node, [], [array(1)]))
    [location] = table.told()
    assert location.lost == Loss(LossCause.RELEASED, refusal=Refusal.PUT)


def test_a_put_that_has_an_owner_again_is_awaited() -> None:
    table = used_and_let_go_of()
    table.ask(oid(1))
    table.gcs.handle("node:1", OwnersFound(1, [array(1)], []))
    for node in (0, 3):
        table.gcs.handle(f"node:{node}", OwnersFound(node, [], [array(1)]))
    assert table.told() == []
    table.news(1, puts=[(array(1), 500)])
    assert [location.nodes for location in table.told()] == [(1,)]


def test_a_run_that_lacks_an_input_is_the_last_and_reports_the_cause() -> None:
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
            table.news(3, unreconstructable=[(array(2), LOST)], done=[(array(2), 0, 1, ())])
            assert [location.nodes for location in table.told()] == [(3,)]
            table.news(3, done=[(array(3), 0, 1, ())])
            assert table.freed() == [array(2)]
    assert table.placed() == []
    [location] = table.told()
    lost = location.lost
    assert (lost.refusal, lost.task, lost.root) == (Refusal.INPUT_LOST, "task2", LOST)
    # In a long chain of such errors each says where it began, and no more.
    table.gcs.arrays[array(4)].unreconstructable = replace(lost, object=oid(2))
    burnt = Loss(LossCause.NODE_DIED, 1, "it burnt")
    why = refusal(table.gcs.arrays[array(4)], spec(4), burnt)
    assert why == replace(burnt, refusal=Refusal.INPUT_LOST, task="task4", root=LOST)


def test_a_task_that_lacked_an_input_runs_after_its_owners_task_ran_again() -> None:
    table = used_and_let_go_of()
    table.gcs.arrays[array(3)].unreconstructable = LOST
    table.news(1, added=[spec(3, deps=(oid(2),), owner="worker:1.1")])
    assert table.gcs.arrays[array(3)].unreconstructable is None


def test_pending_inputs_of_a_repeated_task_are_awaited() -> None:
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


def test_a_released_small_value_of_an_unknown_actor_is_lost() -> None:
    table = Table()
    table.news(0, calls=[(array(1), "driver:0.0", b"")], done=[(array(1), 0, 1, ())])
    table.made(spec(2, deps=(oid(1),)), 1)
    table.news(0, released=[array(1)])
    table.kill(1)
    table.ask(oid(2))
    table.news(2, added=table.placed())
    table.ask(oid(1), node=2)
    [location] = table.told()
    assert location.lost == Loss(LossCause.RELEASED, refusal=Refusal.ACTOR_WENT_ON)


def test_a_restarted_owner_learns_that_an_actor_made_a_released_value() -> None:
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
    assert location.lost == Loss(LossCause.RELEASED, refusal=Refusal.ACTOR_WENT_ON)


def test_a_small_result_of_a_call_shares_the_fate_of_its_owner() -> None:
    """The owner's node had the only copy: what the actor does since does not matter."""
    table = Table()
    table.news(1, calls=[(array(1), "worker:1.1", b"a")], done=[(array(1), 0, 1, ())])
    table.kill(1)
    table.ask(oid(1), node=2)
    [location] = table.told()
    assert location.lost == Loss(LossCause.OWNER_DIED, refusal=Refusal.ACTOR_WENT_ON)


def test_a_failed_fetch_learns_that_an_actor_made_an_unreported_value() -> None:
    """A checkpoint contains the call; its node has died between the log and the table."""
    table = Table()
    table.gcs.handle("node:0", ObjectsMissing(1, [oid(1)]))
    rebuilt = False
    table.gcs.actors.may_replay = lambda array: not rebuilt
    table.ask(oid(1), node=0)
    table.ctx.pass_time(LOST_S)
    for node in range(4):
        table.gcs.handle(f"node:{node}", OwnersFound(node, [], [array(1)]))
    table.ctx.pass_time(3 * LOST_S)
    assert table.told() == []  # it may be made again
    rebuilt = True
    table.ctx.pass_time(LOST_S)
    [location] = table.told()
    assert location.lost == Loss(LossCause.COPY_MISSING, 1, refusal=Refusal.ACTOR_WENT_ON)


# -- items of streams --------------------------------------------------------------


def test_a_request_for_an_item_not_yielded_again_is_sent_to_the_streams_node() -> None:
    table = Table()
    item = oid(1, STREAM_BASE + 1)
    table.gcs.handle("global", TaskUpdates(1, [spec(1)], [], [], [], incarnation=1))
    table.news(1, done=[(array(1), STREAM_BASE + 1, 1, (500,)), (array(1), 0, 1, ())])
    table.kill(1)
    table.ask(item)
    [again] = table.placed()
    table.news(2, added=[again], done=[(array(1), 0, 1, ())])
    [location] = table.told()
    assert (location.lost.refusal, location.lost.task) == (Refusal.NOT_YIELDED, "task1")
    assert location.ended == 2


def test_items_reported_with_the_end_of_their_task_are_not_lost() -> None:
    table = Table()
    items = [oid(1, STREAM_BASE), oid(1, STREAM_BASE + 1)]
    table.gcs.handle("global", TaskUpdates(1, [spec(1)], [], [], [], incarnation=1))
    table.ask(*items)
    large = [(array(1), STREAM_BASE, 1, (500,)), (array(1), STREAM_BASE + 1, 1, (500,))]
    table.news(1, done=[(array(1), 0, 1, ()), *large])
    assert [(each.nodes, each.lost) for each in table.told()] == [((1,), None)] * 2
    assert not table.placed()


# -- what was let go of ------------------------------------------------------------


def test_a_released_value_costs_no_retry() -> None:
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


def test_each_fault_during_reconstruction_costs_a_retry() -> None:
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
    assert (location.lost.cause, location.lost.detail) == (LossCause.MAKER_DIED, "it burnt")
    assert (location.lost.refusal, location.lost.task) == (Refusal.NO_RETRIES, "task1")


def test_values_that_the_owners_node_lacks_count_as_released() -> None:
    table = Table()
    table.made(spec(1, retries=1), 0)
    table.made(spec(2, deps=(oid(1),)), 1)
    table.gcs.handle("node:0", ObjectsMissing(0, [oid(1)]))
    table.ask(oid(1))
    assert [task.retries for task in table.placed()] == [1]


@pytest.mark.parametrize(("retries", "attempt", "may"), [(1, 0, True), (0, 0, False), (0, 1, True)])
def test_tasks_that_may_run_again_for_other_tasks(retries: int, attempt: int, may: bool) -> None:
    table = Table()
    table.made(replace(spec(1, retries=retries), extra=TaskExtra(attempt=attempt)), 0)
    task = replace(spec(1, retries=retries), extra=TaskExtra(attempt=attempt))
    row = table.gcs.table.store.row(array(1))
    freed = Loss(LossCause.FREED)
    assert (refusal(row, task, freed, freed=True) is None) == may
    if may:
        assert resubmission(task, 0, 1, "", freed=True).retries == retries


# -- what is inside of values ------------------------------------------------------


def nested(holding: bool) -> Table:
    """Return a table in which 3, which is lost, was made of 2, which was lent 1."""
    table = Table()
    table.made(spec(1), 1)
    kept = {"with_references": [array(2)]} if holding else {}
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


def test_objects_contained_in_a_reconstructed_value_live_while_it_is_needed() -> None:
    table = nested(holding=True)
    assert table.freed() == []
    table.ask(oid(1))
    assert [location.lost for location in table.told() if location.object == oid(1)] == [None]
    table.news(2, done=[(array(3), 0, 1, (500,))])
    assert sorted(table.freed()) == [array(1), array(2)]
    assert not table.gcs.table.store.lineage.needed


def test_objects_not_contained_in_a_value_are_freed_when_it_is_made() -> None:
    table = nested(holding=False)
    assert table.freed() == [array(1)]


def test_a_released_object_stays_while_a_value_that_contains_it_is_needed() -> None:
    table = Table()
    table.made(spec(1), 2)
    table.made(lends(2, 1), 2, with_references=[array(2)])
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


def test_a_task_whose_new_owner_makes_its_input_again_runs_again() -> None:
    """The report that its first run failed comes after the new owner's claim."""
    table = Table()
    table.news(1, added=[spec(9)])
    table.news(2, added=[spec(1, owner="worker:1.1")])
    table.kill(1)
    assert [task.array for task in table.placed()] == [array(9)]
    table.gcs.handle("node:0", ClaimTasks([spec(1, owner="worker:0.1")]))
    assert len(table.ctx.take(ForwardResults, "node:2")) == 1
    table.news(2, done=[(array(1), 0, 1, ())], unreconstructable=[(array(1), LOST)])
    missing = ObjectsMissing(2, [oid(1)], Missing.INPUTS_MADE_AGAIN)
    table.gcs.handle("node:2", missing)
    table.gcs.handle("node:2", ResultsMissing(0, [(array(1), 0, 1)]))
    assert [(task.array, task.owner) for task in table.placed()] == [(array(1), "worker:0.1")]


# -- results that were made twice --------------------------------------------------


def test_an_owner_that_lost_its_copy_gets_the_one_that_was_made_for_a_former_owner() -> None:
    table = Table()
    table.made(spec(1), 1)
    table.made(spec(1), 2)
    table.kill(2)
    table.ctx.sent.clear()
    table.gcs.handle("node:0", ResultsMissing(0, [(array(1), 0, 1)]))
    (asked,) = table.ctx.take(ForwardResults, to="node:1")
    assert (asked.array, asked.start, asked.count) == (array(1), 0, 1)
    assert table.placed() == []


# -- runs whose end a dead node has told nobody but the owner ------------------------


def unfinished() -> tuple[Table, TaskSpec]:
    """Return a table after the death of the node that had a task with an input, and the task."""
    table = Table()
    task = spec(2, deps=(oid(1),))
    table.gcs.handle("global", TaskUpdates(1, [task], [], [], [], incarnation=1))
    table.kill(1)
    [message] = table.ctx.take(PlaceTasks, "node:0")
    assert not table.ctx.take(PlaceTasks)
    [again] = message.tasks
    return table, again


def test_the_owner_s_node_has_an_unfinished_task_with_inputs_placed() -> None:
    table, again = unfinished()
    assert (again.array, again.retries) == (array(2), 2)
    table.ask(oid(2))
    assert table.placed() == [], "it is under way"
    table.gcs.handle("global", TaskUpdates(2, [again], [], [], [], incarnation=1))
    table.kill(2)
    [third] = table.placed()
    assert (third.array, third.retries) == (array(2), 1)


def test_a_task_that_was_placed_on_a_dead_node_is_not_under_way_at_its_owner_s_node() -> None:
    """The global scheduler had not heard of the death; the value of the next run is lost, too."""
    table, again = unfinished()
    table.kill(2)
    table.gcs.handle("global", TaskUpdates(2, [again], [], [], [], incarnation=1))
    [third] = table.placed()
    table.made(third, 3)
    table.kill(3)
    table.ask(oid(2), node=0)
    [fourth] = table.placed()
    assert (fourth.array, fourth.retries) == (array(2), 0)


def test_an_unfinished_task_without_inputs_is_placed_at_once() -> None:
    table = Table()
    table.gcs.handle("global", TaskUpdates(1, [spec(2)], [], [], [], incarnation=1))
    table.kill(1)
    assert len(table.ctx.take(PlaceTasks, "global")) == 1


def test_a_borrower_gets_the_value_that_only_the_owner_s_node_has() -> None:
    table, _ = unfinished()
    table.ask(oid(2))
    table.news(0, done=[(array(2), 0, 1, ())])
    assert [(location.nodes, location.lost) for location in table.told()] == [((0,), None)]
    assert table.placed() == []
    table.news(0, released=[array(2)])
    assert not table.gcs.arrays and not table.gcs.table.store.tombstones


def test_a_task_that_its_owner_s_node_should_have_placed_runs_for_its_next_owner() -> None:
    """The node dies with the owner, whose task runs again on another node."""
    table = Table()
    task = spec(2, deps=(oid(1),), owner="worker:3.1")
    table.gcs.handle("global", TaskUpdates(1, [task], [], [], [], incarnation=1))
    table.kill(1)
    assert len(table.ctx.take(PlaceTasks, "node:3")) == 1
    table.kill(3)
    assert table.placed() == []
    claimed = replace(task, owner="worker:2.1")
    table.gcs.handle("node:2", ClaimTasks([claimed]))
    assert [m.tasks for m in table.ctx.take(TasksClaimed, "node:2")] == [[claimed]]
