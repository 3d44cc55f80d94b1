"""The GCS's parts: pub-sub, a row of the task and object tables."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.client.owned_arrays import Waiter
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.core.task_ranges import attempt_of
from raytwin.runtime.control.gcs.array_row import ArrayRow, Done
from raytwin.runtime.control.gcs.array_store import LOST_S
from raytwin.runtime.control.gcs.event_log import EVENTS_MAX
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.gcs.lineage import (
    SPEC_BYTES,
    Lineage,
    last_spec,
    refusal,
    resubmission,
)
from raytwin.runtime.control.gcs.pubsub import PubSub
from raytwin.runtime.control.messages import (
    ClaimTasks,
    Event,
    FreeObjects,
    LocateObjects,
    Missing,
    NodeInfo,
    NodeUnreachable,
    ObjectLocations,
    ObjectsMissing,
    RegisterNode,
    TaskUpdates,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause, Refusal
from tests.control.alone import Alone, array, spec
from tests.control.world import World

NO_NEWS: dict[str, list[Any]] = {
    "added": [], "done": [], "copies": [], "released": [], "puts": [],
}  # fmt: skip

BURNT = Loss(LossCause.NODE_DIED, 1, "it burnt")


def test_subscribers_are_notified_once_and_in_order() -> None:
    ctx = Alone()
    pubsub = PubSub(ctx)
    for address in ("b", "a", "b"):
        pubsub.subscribe("x", address)
    pubsub.subscribe("y", "a")
    pubsub.publish("x", 1)
    pubsub.publish("nobody", 3)
    assert ctx.sent == [("b", 1), ("a", 1)]
    pubsub.drop("a")
    ctx.sent.clear()
    pubsub.publish("y", 4)
    assert pubsub.close("x") == ["b"]
    pubsub.publish("x", 5)
    assert ctx.sent == []
    assert pubsub._channels == {}


def done(row: ArrayRow, start: int, count: int, node: int, *sizes: int) -> None:
    row.finish(Done(start, count, node, sizes))


def test_where_an_object_is() -> None:
    row = ArrayRow()
    row.owners[0] = "driver:0.0"
    small, large, never = (object_id(array(1), index, 0) for index in (3, 5, 9))
    assert row.locate(small, {0, 1, 2}) is None
    done(row, 0, 5, 1)
    done(row, 5, 1, 2, 5000)
    alive = {0, 1, 2}
    found = row.locate(small, alive)
    assert found is not None and set(found.nodes) == {0, 1} and found.size == 0
    found = row.locate(large, alive)
    assert found is not None and (found.nodes, found.size, found.lost) == ((2,), 5000, None)
    assert row.locate(never, alive) is None
    row.copied(large, 1, 5000)
    found = row.locate(large, alive)
    assert found is not None and set(found.nodes) == {1, 2}


def test_only_objects_that_the_owner_lacks_are_lost() -> None:
    row = ArrayRow()
    row.owners[0] = "driver:0.0"
    done(row, 0, 2, 1)
    done(row, 2, 1, 1, 5000)
    row.lose_node(1, BURNT)
    small = row.locate(object_id(array(1), 1, 0), {0, 2})
    assert small is not None and small.nodes == (0,) and not small.lost
    oid = object_id(array(1), 2, 0)
    large = row.locate(oid, {0, 2})
    assert large is not None and large.nodes == () and large.lost == BURNT
    row.copied(oid, 2, 5000)
    large = row.locate(oid, {0, 2})
    assert large is not None and large.nodes == (2,) and not large.lost


def test_a_small_value_that_its_owner_did_not_get_is_lost_with_its_node() -> None:
    row = ArrayRow()
    row.owners[0] = "driver:0.0"
    oid = object_id(array(1), 0, 0)
    row.accept(spec(1, 0, 1), 1)
    done(row, 0, 1, 1)
    row.lose_node(1, BURNT)
    found = row.locate(oid, {0, 2})
    assert found is not None and found.nodes == (0,), "it was sent there"
    row.lose_object(oid, 0, Loss(LossCause.COPY_MISSING, 0))
    found = row.locate(oid, {0, 2})
    assert found is not None and found.nodes == () and found.lost == BURNT


def test_ranges_that_ran_twice_hide_nothing(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        row, oracle = ArrayRow(), {}
        row.owners[9] = "driver:9.0"  # dead
        for _ in range(rng.randint(1, 8)):
            start, count, node = rng.randrange(20), rng.randint(1, 12), rng.randrange(4)
            done(row, start, count, node)
            for index in range(start, start + count):
                oracle.setdefault(index, set()).add(node)
        for index in range(35):
            found = row.locate(object_id(array(1), index, 0), {0, 1, 2, 3})
            assert (set(found.nodes) if found else None) == oracle.get(index)


def test_unfinished_ranges_of_a_dead_node_are_placed_again() -> None:
    row = ArrayRow()
    row.accepted = [(spec(1, 0, 10), 1), (spec(1, 10, 10), 2)]
    done(row, 2, 3, 1)
    done(row, 12, 2, 2)
    [(left, gaps)] = row.unfinished_at(1)
    assert left.start == 0 and gaps == [(0, 2), (5, 5)]
    assert row.outstanding() == {1: 7, 2: 8}
    assert row.holders() == {1, 2}
    # Another run of the same elements elsewhere, for another owner, does not count.
    done(row, 0, 10, 3)
    assert row.unfinished_at(1)[0][1] == [(0, 2), (5, 5)]
    assert row.outstanding() == {1: 7, 2: 8}
    done(row, 0, 2, 1)
    done(row, 5, 5, 1)
    assert row.unfinished_at(1) == [] and row.outstanding() == {2: 8}


def test_an_element_that_was_twice_on_a_dead_node_runs_again() -> None:
    row = ArrayRow()
    row.accepted = [(spec(1, 0, 1, owner="driver:0.0"), 1), (spec(1, 0, 1, owner="worker:2.1"), 1)]
    done(row, 0, 1, 1)
    assert [gaps for _, gaps in row.unfinished_at(1)] == [[(0, 1)], [(0, 1)]]


def test_outstanding_ranges_of_a_freed_array_that_runs_twice() -> None:
    """Each run that ends is counted, and the last one frees the values there."""
    row = ArrayRow()
    twice = [spec(1, 0, 2), spec(1, 4, 1), spec(1, 0, 1), spec(1, 4, 1)]
    row.accepted = [(each, 1) for each in twice]
    for index in (0, 1):
        done(row, index, 1, 1)
    before = row.outstanding()
    row.forget_values({0, 1}, 0)
    assert row.outstanding() == before == {1: 3}
    assert sorted((each.start, each.count) for each, _ in row.accepted) == [(0, 1), (4, 1), (4, 1)]


def test_a_lost_value_is_found_where_it_was_made_again() -> None:
    row = ArrayRow()
    again = resubmission(spec(1, 0, 10), 3, 2, "driver:0.0")
    assert (again.start, again.count, again.retries, attempt_of(again)) == (3, 2, 2, 1)
    row.accept(spec(1, 0, 10), 1)
    for index in range(10):
        done(row, index, 1, 1, 500)
    row.lose_node(1, BURNT)
    assert last_spec(row, 3) is last_spec(row, 9) is not None
    assert not row.pending(3, {2})
    row.accept(again, 2)
    assert last_spec(row, 3) is again and last_spec(row, 5) is not again
    assert row.pending(3, {2}) and not row.pending(5, {2})
    done(row, 3, 2, 2)
    assert not row.overlaps and not row.pending(3, {2})
    for index, nodes in ((3, (2,)), (4, (2,)), (5, ())):
        found = row.locate(object_id(array(1), index, 0), {2})
        assert found is not None and found.nodes == nodes
    # A living node that does not have it after all.
    row.lose_object(object_id(array(1), 3, 0), 2, Loss(LossCause.COPY_MISSING, 2))
    assert not row.pending(3, {2}) and last_spec(row, 3) is not None
    assert row.outstanding() == {}


def test_two_owners_release_an_array_independently() -> None:
    world = World(3)
    table = world.gcs.table
    world.run(for_s=0.1)

    def updates(node: int, *, put: bool) -> None:
        released = [] if put else [array(1)]
        puts = [(array(1), 500)] if put else []
        message = TaskUpdates(node, [], [], [], released, puts)
        world.turn("gcs", lambda: table.on_updates(f"node:{node}", message))

    updates(0, put=True)
    updates(1, put=True)
    updates(0, put=False)
    found = table.store.rows[array(1)].locate(object_id(array(1), 0, 0), {0, 1, 2})
    assert found is not None and found.nodes == (1,)
    world.run(for_s=0.1)
    assert not any(isinstance(m, FreeObjects) for *_, m in world.trace)
    updates(1, put=False)
    assert not table.store.rows


def test_a_second_release_does_not_free_later_values() -> None:
    """It comes of results that found no owner there; another owner's value is freed in time."""
    world = World(3)
    table = world.gcs.table
    world.run(for_s=0.1)

    def updates(node: int, **news: Any) -> None:
        message = TaskUpdates(**{**NO_NEWS, "node": node, **news})
        world.turn("gcs", lambda: table.on_updates(f"node:{node}", message))

    for node in (0, 1):
        updates(node, added=[spec(1, owner=f"driver:{node}.0")])
    updates(0, released=[array(1)])
    updates(0, done=[(array(1), 0, 1, (500,))])
    updates(0, released=[array(1)])
    updates(1, released=[array(1)])
    world.run(for_s=0.1)
    assert [m.arrays for *_, m in world.trace if isinstance(m, FreeObjects)] == [[array(1)]]


def test_tombstones_of_dropped_rows_are_small() -> None:
    """There are tens of thousands, and nearly all tell the same."""
    world = World(1)
    table = world.gcs.table
    world.run(for_s=0.1)

    def drop(numbers: range) -> None:
        arrays = [array(number) for number in numbers]
        puts = TaskUpdates(**{**NO_NEWS, "node": 0, "puts": [(one, 500) for one in arrays]})
        table.on_updates("node:0", puts)
        table.on_updates("node:0", TaskUpdates(**{**NO_NEWS, "node": 0, "released": arrays}))

    drop(range(10_000))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    drop(range(10_000, 20_000))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not table.store.rows
    per_row = (after - before) / 10_000
    assert per_row < 220, f"{per_row:.0f} bytes are left of a row"


def test_a_release_by_another_client_is_ignored() -> None:
    """A node that came back got a result for its earlier life, and said that nobody is there."""
    world = World(3)
    table = world.gcs.table
    world.run(for_s=0.1)
    made = [(array(1), 0, 1, (500,))]
    calls = [(array(1), "driver:0.0", b"")]
    world.turn(
        "gcs", lambda: table.on_updates("node:1", TaskUpdates(1, [], made, [], [], calls=calls))
    )
    for node in (1, 2):
        message = TaskUpdates(node, [], [], [], [array(1)])
        table.on_updates(f"node:{node}", message)
    found = table.store.rows[array(1)].locate(object_id(array(1), 0, 0), {0, 1, 2})
    assert found is not None and found.nodes == (1,)
    # Nor of what waits for its owner's task to run again, as the owner's node died.
    table.store.rows[array(2)] = row = ArrayRow()
    row.former = "worker:1.1"
    world.gcs.nodes.rows[1].incarnation = 2
    table.on_updates("node:1", TaskUpdates(1, [], [], [], [array(2)], incarnation=2))
    assert array(2) in table.store.rows and not table.store.rows[array(2)].released


def test_a_claim_overrides_an_earlier_owners_release() -> None:
    """It had let go of what the GCS never heard of; the next owner's run was taken for that."""
    ctx = Alone()
    gcs = Gcs(ctx, Config())
    for node in (0, 1):
        gcs.handle(f"node:{node}", RegisterNode(NodeInfo(node, "", 0, {"CPU": 1.0})))
    gcs.handle("node:0", TaskUpdates(0, [], [], [], [array(1)]))
    again = spec(1, owner="worker:0.2")
    gcs.handle("node:0", ClaimTasks([again]))
    gcs.handle("global", TaskUpdates(1, [again], [], [], []))
    gcs.handle("node:1", TaskUpdates(1, [], [(array(1), 0, 1, (500,))], [], []))
    assert not [m for _, m in ctx.sent if isinstance(m, FreeObjects)]
    assert gcs.table.store.rows[array(1)].owners == {0: "worker:0.2"}


def test_a_release_ends_the_row_of_a_placement_that_it_has_overtaken() -> None:
    """The GCS drops the row, also if the release waits for the head in the same turn."""
    gcs = Gcs(Alone(), Config())
    for node in (0, 1):
        gcs.handle(f"node:{node}", RegisterNode(NodeInfo(node, "", 0, {"CPU": 1.0})))
    gcs.handle("node:0", TaskUpdates(0, [], [], [], [array(1)]))
    gcs.handle("global", TaskUpdates(1, [spec(1, owner="worker:0.1")], [], [], []))
    assert array(1) not in gcs.table.store.rows


def test_pending_values_are_kept_for_a_task_that_is_placed_again() -> None:
    """A call's result, of which the GCS hears when it is there, was lost after a second."""
    ctx = Alone()
    gcs = Gcs(ctx, Config())
    for node in (0, 1):
        gcs.handle(f"node:{node}", RegisterNode(NodeInfo(node, "", 0, {"CPU": 1.0})))
    oid = object_id(array(1), 0, 0)
    waiting = spec(2, owner="driver:0.0", retries=1)
    waiting.deps = (oid,)
    gcs.handle("global", TaskUpdates(1, [waiting], [], [], []))
    gcs.handle("node:1", NodeUnreachable(1, "it died", 0))
    assert array(1) in gcs.table.store.lineage.needed
    gcs.handle("node:0", LocateObjects([oid]))
    ctx.pass_time(LOST_S + 0.1)
    assert not [m for _, m in ctx.sent if isinstance(m, ObjectLocations)]


def test_lineage_counts() -> None:
    lineage = Lineage(3 * SPEC_BYTES)
    rows = {number: ArrayRow() for number in range(1, 7)}
    for number in range(2, 7):
        lineage.use(array(number), rows[number], [object_id(array(number - 1), 0, 0)] * 2, 12)
    assert lineage.uses == {array(n): 1 for n in range(1, 6)}
    for number in range(1, 6):
        lineage.keep(array(number), rows[number])
    dropped = []
    for oldest in lineage.over_limit():
        dropped.append(oldest)
        lineage.end_keep(oldest)
    # Two are over the limit, and some room is made besides.
    assert dropped == [array(1), array(2), array(3)]
    lineage.need(array(3), rows[3])
    assert lineage.needed == {array(2): {array(3)}}
    assert lineage.end_need(array(3), rows[3]) == [array(2)] and not lineage.needed
    assert lineage.end_use(array(0), array(5)) and array(5) not in lineage.uses


def test_reasons_why_a_value_cannot_be_reconstructed() -> None:
    row = ArrayRow()
    assert refusal(row, None, BURNT) == replace(BURNT, refusal=Refusal.NO_RECORD)
    used_up = replace(BURNT, refusal=Refusal.NO_RETRIES, task="task1")
    assert refusal(row, spec(1, retries=0), BURNT) == used_up
    assert refusal(row, spec(1, retries=-1), BURNT) is None
    assert resubmission(spec(1, retries=-1), 0, 1, "").retries == -1
    row.put = True
    assert refusal(row, None, BURNT) == replace(BURNT, refusal=Refusal.PUT)


@pytest.mark.parametrize("how", ["its node died", "released first", "made again"])
def test_a_request_for_an_unknown_object_is_a_loss(how: str) -> None:
    """A call's large result, whose node died, or whose owner let go, before its log was here."""
    ctx = Alone()
    gcs = Gcs(ctx, Config())
    oid = object_id(array(1), 0, 0)
    if how == "released first":
        gcs.handle("global", TaskUpdates(0, [], [], [], [array(1)]))
    else:
        gcs.handle("node:0", ObjectsMissing(1, [oid], Missing.NODE_DIED))
    # An actor that replays the call for ever, since it waits for what was released, must not be
    # waited for.
    until_s = {"made again": 5.0, "released first": float("inf")}.get(how, 0.0)
    gcs.actors.may_replay = lambda call: ctx.time_s < until_s
    gcs.handle("node:0", LocateObjects([oid]))
    ctx.pass_time(4.5)
    told = [location for m in ctx.take(ObjectLocations) for location in m.locations]
    if how == "made again":
        assert not told, "an actor that is being rebuilt makes it"
        ctx.pass_time(2.0)
        told = [location for m in ctx.take(ObjectLocations) for location in m.locations]
    assert [(location.object, bool(location.lost)) for location in told] == [(oid, True)]


def test_events_are_counted_though_their_rows_are_dropped() -> None:
    world = World(1)
    world.run(for_s=0.1)
    driver = world.driver()
    many = EVENTS_MAX + 5
    for _ in range(many):
        world.turn("gcs", lambda: world.gcs.handle("node:0", Event("boom", "x", "", 2)))
    replies = []
    for kind in ("events", "event_counts"):
        asked: list[tuple[int, Waiter]] = []
        ask = lambda kind=kind, asked=asked: asked.append(driver.client.requests.query(kind))  # noqa: E731
        world.turn(driver.address, ask)
        world.run(for_s=0.1)
        replies.append(driver.client.requests.replies.pop(asked[0][0]))
    rows, counts = replies
    assert counts == {"boom": 2 * many, "node_added": 1}
    assert len(rows) == EVENTS_MAX and rows[-1][1:] == ["boom", "x", "", 2]
