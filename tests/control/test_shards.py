"""Shards of the GCS: which shard has a key, in which order they learn, lineage across them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.chaos.fuzz.generate.cases import draw_case
from raytwin.chaos.fuzz.run.case_run import run_case
from raytwin.runtime.control.assembly import make_machine
from raytwin.runtime.control.core.addresses import shard_address
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import ARRAY_BYTES, object_id
from raytwin.runtime.control.gcs.actor_table import ALIVE, PENDING
from raytwin.runtime.control.gcs.array_store import LOST_S, ORPHANED_S
from raytwin.runtime.control.gcs.sharding.router import (
    HINT,
    NEEDED,
    UNNEEDED,
    UNUSED,
    USED,
    RoutedNode,
    Router,
    shard_of,
)
from raytwin.runtime.control.gcs.sharding.shard import Shard, ShardedGcs
from raytwin.runtime.control.gcs.sharding.shard_lineage import HINT_S
from raytwin.runtime.control.messages import (
    ActorChanged,
    AssignTasks,
    CancelTask,
    ClaimTasks,
    ForwardResults,
    FreeObjects,
    KvPut,
    LineageChanges,
    LocateObjects,
    NodeChanged,
    NodeInfo,
    NodesJoined,
    NodesSeen,
    NodeUnreachable,
    ObjectLocations,
    OwnersFound,
    PeerUnreachable,
    PlaceTasks,
    Registered,
    RegisterNode,
    TaskExtra,
    TasksClaimed,
    TasksPlaced,
    TaskUpdates,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause
from raytwin.runtime.control.replication.state_machine import Machine
from tests.control.alone import Alone, array, spec

SHARDS = 2
CONFIG = Config(gcs_shards=SHARDS)
HERE = [n for n in range(1, 200) if shard_of(array(n), SHARDS) == 1]
"""Numbers of arrays that shard 1 has."""
THERE = [n for n in range(1, 200) if shard_of(array(n), SHARDS) == 2]


def node_info(node: int, alive: bool = True, incarnation: int = 1) -> NodeInfo:
    return NodeInfo(node, "host", 1, {"CPU": 1.0}, alive, incarnation, "" if alive else "it died")


def updates(node: int, **rows: Any) -> TaskUpdates:
    message = TaskUpdates(node, [], [], [], [], [], 1, [])
    for name, row in rows.items():
        setattr(message, name, row)
    return message


# -- splitting -------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=40), st.integers(2, 9))
def test_every_row_of_an_update_goes_to_its_shard_once(rows: Any, shards: int) -> None:
    ctx = Alone()
    whole = updates(
        3,
        added=[spec(n, deps=(object_id(array(n + 1), 0, 0),) if dep else ()) for n, dep in rows],
        done=[(array(n), 0, 1, ()) for n, _ in rows],
        copies=[(object_id(array(n), 0, 0), 5) for n, _ in rows],
        released=[array(n) for n, _ in rows],
        puts=[(array(n), 0) for n, _ in rows],
        calls=[(array(n), "driver:0.0", b"") for n, _ in rows],
        owner_died=[array(n) for n, _ in rows],
        with_references=[array(n) for n, _ in rows],
        unreconstructable=[(array(n), Loss(LossCause.RELEASED)) for n, _ in rows],
    )
    Router(ctx, shards).send("gcs", whole)
    for name in whole.__struct_fields__:
        if name in ("node", "incarnation", "left"):
            continue
        found = []
        for to, part in ctx.sent:
            if type(part) is TaskUpdates:
                assert (part.node, part.incarnation, part.left) == (3, 1, whole.left)
                for row in getattr(part, name):
                    key = getattr(row, "array", None) or (row if type(row) is bytes else row[0])
                    assert to == shard_address(shard_of(key[:ARRAY_BYTES], shards))
                    found.append(row)
        key_of = repr
        assert sorted(found, key=key_of) == sorted(getattr(whole, name), key=key_of)


def test_owners_are_sent_to_the_shards_that_asked() -> None:
    ctx = Alone()
    lists: list[list[bytes]] = [[array(n) for n in range(at, 40, 3)] for at in range(3)]
    kept = [(each, "driver:3.0", (500, 0)) for each in lists[1][::4]]
    whole = OwnersFound(3, *lists, lists[1][::2], kept)
    Router(ctx, SHARDS).send("gcs", whole)
    for name in ("owned", "others", "unowned", "gone", "kept"):
        for to, part in ctx.sent:
            assert part.node == 3
            for row in getattr(part, name):
                each = row if type(row) is bytes else row[0]
                assert to == shard_address(shard_of(each, SHARDS))
        found = [each for _, part in ctx.sent for each in getattr(part, name)]
        assert sorted(found) == sorted(getattr(whole, name))


def test_inputs_are_named_before_they_can_be_released() -> None:
    ctx = Alone()
    user, used = HERE[0], THERE[0]
    task = spec(user, deps=(object_id(array(used), 0, 0),))
    Router(ctx, SHARDS).send("gcs", updates(0, added=[task], released=[array(used)]))
    of_used = [message for to, message in ctx.sent if to == "gcs.2"]
    assert of_used[0] == LineageChanges([(HINT, array(user), (array(used),))])
    assert of_used[1].released == [array(used)]


def test_other_messages_are_not_routed_to_shards() -> None:
    ctx = Alone()
    router = Router(ctx, SHARDS)
    report = PeerUnreachable(0, 1, 2, 1, "silent")
    router.send("gcs", report)
    router.send("node:1", KvPut(b"key", b"", 1))
    assert ctx.sent == [("gcs", report), ("node:1", KvPut(b"key", b"", 1))]


def test_a_node_registers_once_shards_know_it_and_sends_once_it_lives() -> None:
    ctx = Alone()
    heard: list[Any] = []

    class Scheduler:
        incarnation = 2

        def __init__(self, ctx: Any) -> None:
            self.ctx = ctx

        def handle(self, source: str, message: Any) -> None:
            heard.append(message)

        def end_turn(self) -> None:
            return None

    node = RoutedNode(ctx, SHARDS, Scheduler)
    known = [False]
    node.await_shards(lambda: known[0])
    register = RegisterNode(node_info(0))
    node.inner.ctx.send("gcs", register)
    node.inner.ctx.send("gcs", KvPut(b"key", b"value", 1))
    node.end_turn()
    assert ctx.sent == []
    known[0] = True
    node.end_turn()
    assert ctx.sent == [("gcs", register)]
    node.handle("gcs", Registered(1, {}))
    node.end_turn()
    early = AssignTasks([spec(1)], 2)
    node.handle(shard_address(1), early)
    assert ctx.sent[1:] == [] and heard == [], "that was for its former life"
    node.handle("gcs", Registered(2, {}))
    node.end_turn()
    assert ctx.sent[1:] == [(shard_address(shard_of(b"key", SHARDS)), KvPut(b"key", b"value", 1))]
    assert heard == [Registered(2, {}), early], "it knows the other nodes first"
    node.handle(shard_address(1), early)
    assert heard[2:] == [early]


# -- nodes -----------------------------------------------------------------------


def test_nodes_learn_of_a_node_after_all_shards() -> None:
    ctx = Alone()
    gcs = ShardedGcs(ctx, CONFIG)

    def turn(source: str, message: Any) -> None:
        gcs.handle(source, message)
        gcs.end_turn()

    turn("node:0", RegisterNode(node_info(0)))
    assert [to for to, message in ctx.sent if isinstance(message, NodeChanged)] == [
        "global", "links", "gcs.1", "gcs.2",
    ]  # fmt: skip
    assert not ctx.take(Registered)
    turn("gcs.1", NodesSeen(1))
    assert not ctx.take(Registered)
    turn("gcs.2", NodesSeen(1))
    assert ctx.take(Registered, "node:0")
    turn("node:1", RegisterNode(node_info(1)))
    turn("gcs", NodeUnreachable(1, "gone", 1))
    ctx.take(NodeChanged, "gcs")
    turn("gcs.1", NodesSeen(3))
    turn("gcs.2", NodesSeen(2))
    assert [[n.node for n in m.nodes] for m in ctx.take(NodesJoined, "node:0")] == [[1]]
    assert not ctx.take(NodeChanged, "node:0")
    turn("gcs.2", NodesSeen(3))
    assert [m.info.alive for m in ctx.take(NodeChanged, "node:0")] == [False]


# -- one shard -------------------------------------------------------------------


class OneShard(Shard):
    """Shard 1 of two, with nodes 0 and 1."""

    def __init__(self) -> None:
        self.alone = Alone()
        super().__init__(self.alone, CONFIG, 1)
        for node in (0, 1):
            self.turn("gcs", NodeChanged(node_info(node)))
        self.alone.sent.clear()

    def turn(self, source: str, message: Any) -> None:
        self.handle(source, message)
        self.end_turn()

    def changes(self) -> list[tuple[int, bytes, tuple[bytes, ...]]]:
        return [each for m in self.alone.take(LineageChanges, "gcs.2") for each in m.changes]


USER, INPUT = THERE[0], HERE[0]
"""A task in the other shard, and what it has as an input."""


def with_input() -> OneShard:
    """Return a shard with an array that is done and has an owner."""
    shard = OneShard()
    rows = {"added": [spec(INPUT)], "done": [(array(INPUT), 0, 1, ())]}
    shard.turn("node:0", updates(0, **rows))
    return shard


def change(kind: int) -> LineageChanges:
    return LineageChanges([(kind, array(USER), (array(INPUT),))])


def test_an_array_used_by_another_shards_lineage_is_kept() -> None:
    shard = with_input()
    shard.turn("node:0", change(HINT))
    shard.turn("node:0", updates(0, released=[array(INPUT)]))
    assert shard.arrays[array(INPUT)].released
    shard.turn("gcs.2", change(USED))
    shard.alone.pass_time(3 * HINT_S)
    assert array(INPUT) in shard.arrays
    shard.turn("gcs.2", change(UNUSED))
    assert not shard.arrays and not shard.lineage.uses and not shard.lineage.users


def test_an_unconfirmed_hint_is_dropped() -> None:
    shard = with_input()
    shard.turn("node:0", change(HINT))
    shard.turn("node:0", updates(0, released=[array(INPUT)]))
    shard.alone.pass_time(HINT_S / 2)
    assert array(INPUT) in shard.arrays
    shard.alone.pass_time(2 * HINT_S)
    assert not shard.arrays and not shard.lineage.uses and not shard.lineage.hints


def test_a_late_hint_is_dropped() -> None:
    shard = with_input()
    for kind in (USED, UNUSED, HINT):
        shard.turn("gcs.2", change(kind))
    shard.turn("node:0", updates(0, released=[array(INPUT)]))
    shard.alone.pass_time(2 * HINT_S)
    assert not shard.arrays


def placed(number: int, dep: int, attempt: int, way: tuple[int, ...]) -> TasksPlaced:
    task = spec(number, deps=(object_id(array(dep), 0, 0),))
    if attempt:
        task.extra = TaskExtra(attempt=attempt)
    return TasksPlaced(1, 1, [task], way)


def test_a_range_that_is_placed_comes_by_its_inputs() -> None:
    ctx = Alone()
    Router(ctx, SHARDS).send("gcs", placed(USER, INPUT, 0, ()))
    ((to, first),) = ctx.sent
    assert to == "gcs.1" and first.way == (2,)
    shard = with_input()
    shard.turn("global", first)
    (on,) = shard.alone.take(TasksPlaced, "gcs.2")
    assert on.way == () and on.tasks == first.tasks
    shard.turn("node:0", updates(0, released=[array(INPUT)]))
    assert shard.arrays[array(INPUT)].released


def test_values_that_a_repeated_range_needs_are_there_until_it_has_ended() -> None:
    shard = with_input()
    shard.turn("gcs.2", change(USED))
    shard.turn("node:0", updates(0, released=[array(INPUT)]))
    shard.turn("global", placed(USER, INPUT, 1, (2,)))
    shard.alone.sent.clear()
    oid = object_id(array(INPUT), 0, 0)
    shard.turn("node:1", LocateObjects([oid]))
    (again,) = shard.alone.take(PlaceTasks, "global")
    assert again.tasks[0].array == array(INPUT)
    shard.turn("global", TasksPlaced(1, 1, again.tasks, ()))
    shard.turn("node:1", updates(1, done=[(array(INPUT), 0, 1, ())]))
    assert not shard.alone.take(FreeObjects)
    shard.turn("gcs.2", change(UNNEEDED))
    assert shard.alone.take(FreeObjects, "node:1")[0].arrays == [array(INPUT)]


def test_objects_contained_in_a_needed_value_of_another_shard_are_kept() -> None:
    """Here the value, which was let go of, there what is inside, and the other way round."""
    shard = OneShard()
    value, inner, user = HERE[0], THERE[0], THERE[1]
    lends = spec(value)
    lends.extra = TaskExtra(inside=(array(inner),))
    shard.turn("node:0", updates(0, added=[lends]))
    shard.turn(
        "node:0", updates(0, done=[(array(value), 0, 1, ())], with_references=[array(value)])
    )
    shard.turn("gcs.2", LineageChanges([(USED, array(user), (array(value),))]))
    shard.turn("global", placed(user, value, 1, (2,)))
    shard.changes()
    shard.turn("node:0", updates(0, released=[array(value)]))
    assert shard.changes() == [(NEEDED, array(value), (array(inner),))]
    shard.turn("gcs.2", LineageChanges([(UNNEEDED, array(user), (array(value),))]))
    assert shard.changes() == [(UNNEEDED, array(value), (array(inner),))]

    shard = with_input()
    shard.turn("gcs.2", change(USED))
    shard.turn("gcs.2", change(NEEDED))
    shard.turn("node:0", updates(0, released=[array(INPUT)]))
    shard.turn("node:1", LocateObjects([object_id(array(INPUT), 0, 0)]))
    assert shard.alone.take(PlaceTasks, "global"), "its values may exist"
    shard.turn("gcs.2", change(UNNEEDED))
    assert not shard.lineage.needed


def test_a_shard_reports_the_lineage_of_its_arrays() -> None:
    shard = OneShard()
    task = spec(HERE[1], deps=(object_id(array(THERE[1]), 0, 0),))
    shard.turn("node:0", updates(0, added=[task]))
    assert shard.changes() == [(USED, array(HERE[1]), (array(THERE[1]),))]
    shard.turn("node:0", updates(0, done=[(array(HERE[1]), 0, 1, ())], released=[array(HERE[1])]))
    assert shard.changes() == [(UNUSED, array(HERE[1]), (array(THERE[1]),))]


def test_a_placed_range_is_logged_assigned_then_cancelled() -> None:
    shard = OneShard()
    shard.turn("global", TasksPlaced(1, 1, [spec(INPUT)], ()))
    shard.turn("global", CancelTask(array(INPUT), 0, 1, False, False))
    to_node = [type(m) for to, m in shard.alone.sent if to == "node:1"]
    assert to_node == [AssignTasks, CancelTask]
    assert [node for _, node in shard.arrays[array(INPUT)].accepted] == [1]


def test_a_range_that_was_cancelled_on_its_way_is_cancelled_where_it_arrives() -> None:
    shard = OneShard()
    cancel = CancelTask(array(INPUT), 0, 1, False, False)
    shard.turn("global", cancel)
    shard.turn("global", TasksPlaced(1, 1, [spec(INPUT)], ()))
    to_node = [m for to, m in shard.alone.sent if to == "node:1"]
    assert [type(m) for m in to_node] == [AssignTasks, CancelTask] and to_node[1] == cancel
    shard.turn("global", CancelTask(array(HERE[5]), 0, 1, False, False))
    shard.alone.pass_time(2.0)
    shard.turn("global", TasksPlaced(1, 1, [spec(HERE[5])], ()))
    assert shard.alone.take(CancelTask) == [cancel], "the other one was for an earlier run"


def test_a_range_for_a_dead_node_is_placed_again_and_not_assigned() -> None:
    shard = OneShard()
    shard.turn("gcs", NodeChanged(node_info(1, alive=False)))
    shard.turn("global", TasksPlaced(1, 1, [spec(INPUT)], ()))
    assert not shard.alone.take(AssignTasks)
    assert len(shard.alone.take(PlaceTasks, "global")) == 1


def test_a_release_may_overtake_the_placement() -> None:
    """The range runs for nobody: what it makes is freed when it has ended, and no row is left."""
    shard = OneShard()
    shard.turn("node:0", updates(0, released=[array(INPUT)]))
    shard.turn("global", TasksPlaced(1, 1, [spec(INPUT)], ()))
    shard.turn("node:1", updates(1, done=[(array(INPUT), 0, 1, ())]))
    assert shard.alone.take(FreeObjects, "node:1")
    assert not shard.arrays and not shard.table.store.tombstones


@pytest.mark.parametrize("first_is_placed", ["before the release", "after it", "never"])
def test_a_release_may_overtake_the_placement_of_a_claimed_range(first_is_placed: str) -> None:
    """The first owner has died; the second has claimed the range and released it."""
    shard = OneShard()
    first, second = (spec(INPUT, owner=owner) for owner in ("worker:1.1", "worker:0.2"))
    shard.turn("gcs", NodeChanged(node_info(1, incarnation=2)))
    shard.turn("node:0", ClaimTasks([second]))
    [claimed] = shard.alone.take(TasksClaimed, "node:0")
    assert claimed.tasks == [second]
    for moment in ("before the release", "after it"):
        if first_is_placed == moment:
            shard.turn("global", TasksPlaced(0, 1, [first]))
        if moment == "before the release":
            shard.turn("node:0", updates(0, released=[array(INPUT)]))
    shard.turn("global", TasksPlaced(0, 1, [second]))
    for _ in shard.alone.take(AssignTasks, "node:0"):
        shard.turn("node:0", updates(0, done=[(array(INPUT), 0, 1, ())]))
    shard.alone.pass_time(ORPHANED_S)
    assert not shard.arrays and not shard.table.store.tombstones


def test_a_release_beside_another_owner_may_overtake_the_placement() -> None:
    """The shard does not know yet that the other owner has died."""
    shard = OneShard()
    first, second = (spec(INPUT, owner=owner) for owner in ("worker:1.1", "worker:0.2"))
    shard.turn("node:0", ClaimTasks([second]))
    shard.turn("global", TasksPlaced(0, 1, [first]))
    shard.turn("node:0", updates(0, done=[(array(INPUT), 0, 1, ())], released=[array(INPUT)]))
    shard.turn("gcs", NodeChanged(node_info(1, alive=False)))
    shard.turn("global", TasksPlaced(0, 1, [second]))
    assert not shard.arrays[array(INPUT)].owners
    shard.alone.pass_time(ORPHANED_S)
    assert not shard.arrays


def test_a_former_owner_s_range_serves_the_one_that_claimed_it_before_the_placement() -> None:
    shard = OneShard()
    shard.turn("gcs", NodeChanged(node_info(1, incarnation=2)))
    shard.turn("node:0", ClaimTasks([spec(INPUT, owner="worker:0.2")]))
    shard.turn("global", TasksPlaced(1, 2, [spec(INPUT, owner="worker:1.1")]))
    forwarded = ForwardResults(array(INPUT), 0, 1, "worker:0.2")
    assert shard.alone.take(ForwardResults, "node:1") == [forwarded]


def test_a_range_released_by_one_owner_runs_for_the_other() -> None:
    """Two runs of a parent own an array: the first one's node says no more of its runs."""
    shard = OneShard()
    shard.turn("node:0", updates(0, added=[spec(INPUT, owner="worker:0.1")]))
    shard.turn("node:1", updates(1, added=[spec(INPUT, 1, owner="worker:1.1")]))
    shard.turn("node:0", updates(0, released=[array(INPUT)]))
    (again,) = shard.alone.take(PlaceTasks, "global")
    assert [(t.array, t.start, t.owner) for t in again.tasks] == [(array(INPUT), 0, "worker:1.1")]


# -- actors ----------------------------------------------------------------------


def test_a_lost_value_of_an_actor_under_reconstruction_is_awaited() -> None:
    shard = OneShard()
    rows = {
        "calls": [(array(INPUT), "driver:0.0", b"actor")],
        "done": [(array(INPUT), 0, 1, (1000,))],
    }
    shard.turn("node:1", updates(1, **rows))
    shard.turn("gcs", NodeChanged(node_info(1, alive=False)))
    shard.turn("gcs", ActorChanged(b"actor", PENDING, -1, 1, None, True))
    oid = object_id(array(INPUT), 0, 0)
    shard.alone.sent.clear()
    shard.turn("node:0", LocateObjects([oid]))
    assert not shard.alone.sent, "it may be replayed"
    shard.turn("gcs", ActorChanged(b"actor", ALIVE, 0, 1, None, True))
    shard.alone.pass_time(LOST_S)
    (told,) = shard.alone.take(ObjectLocations, "node:0")
    assert told.locations[0].object == oid and told.locations[0].lost.cause is LossCause.NODE_DIED


@pytest.mark.parametrize("chain", range(SHARDS + 1))
def test_machines_of_a_running_cluster_are_what_their_snapshots_are(chain: int) -> None:
    sizes: list[int] = []

    def look(session: Any) -> None:
        def once(event: Any) -> None:
            machine: Machine = session.cluster.replicas.tail_machine(chain)
            copy = make_machine(session.cluster.config, chain)
            data = machine.snapshot()
            copy.restore(data)
            assert copy.snapshot() == data
            sizes.append(len(data))

        for tenth in range(1, 10):
            session.cluster.env.timeout(0.05 * tenth).callbacks.append(once)

    for seed in (5, 14, 23):
        options = {"gcs_shards": SHARDS, "gcs_replicas": 1, "gcs_storage": None}
        case = draw_case(seed)
        assert run_case(case, look, **options, gcs_memory_max=0).failures == []
    assert len(sizes) > 9 and max(sizes) > 1000
