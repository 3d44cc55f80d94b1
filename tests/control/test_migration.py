"""Starving tasks move to nodes with room: the parts alone, and all in a random world."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.local_scheduler import starvation
from raytwin.runtime.control.messages import (
    ActorInfo,
    AssignTasks,
    BundlePrepared,
    CommitBundle,
    CreateGroup,
    FunctionBlob,
    Load,
    LoadChanged,
    MoveTasks,
    NodeChanged,
    NodeInfo,
    PlaceTasks,
    PrepareBundle,
    RegisterNode,
    RemoveGroup,
    ReturnBundle,
    StopActor,
    TaskExtra,
    TaskResults,
    TasksMoved,
    TaskUpdates,
)
from raytwin.runtime.control.node.node_manager import NodeManager
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from tests.control import test_system as system
from tests.control.alone import Alone, array, result, spec
from tests.control.world import World

DEMAND = "CPU:1"


def load(free: float, assigned: int = 0, tasks: int = 0) -> Load:
    starves = {DEMAND: tasks} if tasks else {}
    return Load(0, 0.0, 0.0, assigned, {"CPU": free}, starves)


@pytest.fixture
def scheduler() -> GlobalScheduler:
    """Three nodes: 0 is full, 1 has room for two, 2 for one."""
    made = GlobalScheduler(Alone(), Config())
    for node, free in enumerate((0.0, 2.0, 1.0)):
        made.handle("gcs", NodeChanged(NodeInfo(node, "", 0, {"CPU": 2.0}, incarnation=1)))
        made.handle("gcs", LoadChanged(node, load(free)))
    return made


def test_a_node_is_asked_for_what_others_have_room_for(scheduler: GlobalScheduler) -> None:
    ctx: Any = scheduler.ctx
    scheduler.handle("gcs", LoadChanged(0, load(0.0, tasks=5)))
    assert ctx.take(MoveTasks, "node:0") == [MoveTasks(DEMAND, 5)]
    scheduler.handle("gcs", LoadChanged(2, replace(load(1.0), mean_task_s=0.01)))
    scheduler.handle("gcs", LoadChanged(0, load(0.0, tasks=99)))
    assert ctx.take(MoveTasks, "node:0") == [MoveTasks(DEMAND, 30)], "ten times until they report"
    scheduler.handle("gcs", LoadChanged(1, load(0.0)))
    scheduler.handle("gcs", LoadChanged(2, load(0.0)))
    scheduler.handle("gcs", LoadChanged(0, load(0.0, tasks=5)))
    assert not ctx.take(MoveTasks), "there is no room"


def test_tasks_in_transit_reserve_room_on_their_node(scheduler: GlobalScheduler) -> None:
    ctx: Any = scheduler.ctx
    scheduler.handle("node:0", TasksMoved(0, 1, [spec(1, 0, 4)]))
    given = [(to, m.tasks[0].start, m.tasks[0].count) for to, m in ctx.sent
             if isinstance(m, AssignTasks)]  # fmt: skip
    assert given == [("node:1", 0, 2), ("node:2", 2, 2)]
    assert [m.left for m in ctx.take(TaskUpdates)] == [0, 0]
    scheduler.handle("gcs", LoadChanged(0, load(0.0, 1, tasks=1)))
    assert not ctx.take(MoveTasks)
    scheduler.handle("gcs", LoadChanged(1, load(1.0, 2)))
    scheduler.handle("gcs", LoadChanged(0, load(0.0, 1, tasks=1)))
    assert ctx.take(MoveTasks) == [MoveTasks(DEMAND, 1)]


def holding(free: float = 2.0, tasks: int = 0) -> Load:
    """All of a node's CPUs are actors', which may wait for something."""
    starves = {DEMAND: tasks} if tasks else {}
    return Load(0, 0.0, 0.0, 0, {"CPU": free}, starves, {"CPU": 20_000})


def given(ctx: Any) -> list[str]:
    """Return where what was assigned has gone, element by element."""
    found = [
        to
        for to, message in ctx.sent
        if isinstance(message, AssignTasks)
        for part in message.tasks
        for _ in range(part.count)
    ]
    ctx.take(AssignTasks)
    return found


def test_nothing_goes_where_actors_hold_all_while_it_could_run_elsewhere(
    scheduler: GlobalScheduler,
) -> None:
    ctx: Any = scheduler.ctx
    scheduler.handle("gcs", LoadChanged(1, holding()))
    for node in (0, 2):
        scheduler.handle("gcs", LoadChanged(node, replace(load(0.0), queue=50)))
    scheduler.handle("node:1", PlaceTasks([spec(1, 0, 40, owner="driver:1.0")]))
    assert set(given(ctx)) == {"node:0", "node:2"}
    scheduler.handle("node:1", PlaceTasks([spec(2, demand="", owner="driver:1.0")]))
    assert given(ctx) == ["node:1"], "it needs nothing that they hold"
    for node in (0, 2):
        scheduler.handle("gcs", LoadChanged(node, holding()))
    scheduler.handle("node:1", PlaceTasks([spec(3, 0, 40, owner="driver:1.0")]))
    assert set(given(ctx)) == {"node:1"}, "its owner's node is the first to know of more"


def test_an_actor_on_its_way_to_a_node_holds_what_it_needs_there(
    scheduler: GlobalScheduler,
) -> None:
    ctx: Any = scheduler.ctx
    for node in (0, 1):
        scheduler.handle("gcs", LoadChanged(node, load(2.0)))
    for number in (7, 8):
        creation = spec(number, demand="CPU:2")
        creation.extra = TaskExtra(actor=ActorInfo("A"))
        scheduler.handle("gcs", PlaceTasks([creation]))
    assert given(ctx) == ["node:0", "node:1"]
    for node in (0, 1):
        scheduler.handle("gcs", LoadChanged(node, load(2.0)))  # it left before they arrived
    scheduler.handle("node:0", PlaceTasks([spec(1, 0, 9)]))
    assert set(given(ctx)) == {"node:2"}
    scheduler.handle("gcs", LoadChanged(0, load(2.0, assigned=1)))  # and that one has ended
    scheduler.handle("node:0", PlaceTasks([spec(2, 0, 90)]))
    assert set(given(ctx)) == {"node:0", "node:2"}


def test_tasks_starved_by_actors_move_although_all_nodes_are_busy(
    scheduler: GlobalScheduler,
) -> None:
    ctx: Any = scheduler.ctx
    for node in (1, 2):
        scheduler.handle("gcs", LoadChanged(node, load(0.0)))
    scheduler.handle("gcs", LoadChanged(0, load(0.0, tasks=5)))
    assert not ctx.take(MoveTasks), "it is as busy as they are"
    scheduler.handle("gcs", LoadChanged(0, holding(0.0, tasks=5)))
    assert ctx.take(MoveTasks, "node:0") == [MoveTasks(DEMAND, 5)]
    scheduler.handle("node:0", TasksMoved(0, 1, [spec(1, 0, 5)]))
    assert sorted(given(ctx)) == ["node:1"] * 3 + ["node:2"] * 2
    assert [m.left for m in ctx.take(TaskUpdates)] == [0, 0]


def test_an_actor_that_actors_keep_from_starting_waits_for_tasks_elsewhere(
    scheduler: GlobalScheduler,
) -> None:
    ctx: Any = scheduler.ctx
    scheduler.handle("gcs", LoadChanged(0, holding(0.0, tasks=3)))
    scheduler.handle("gcs", LoadChanged(1, load(1.0)))
    scheduler.handle("gcs", LoadChanged(2, holding(0.0)))
    ctx.take(MoveTasks)
    creations = [spec(number) for number in (7, 8)]
    for creation in creations:
        creation.extra = TaskExtra(actor=ActorInfo("A"))
    scheduler.handle("node:0", TasksMoved(0, 1, [*creations, spec(1)]))
    assert given(ctx)[:2] == ["node:1", "node:1"], "one begins there, the other is the next"


def test_a_node_reports_at_once_tasks_that_its_actors_starve() -> None:
    ctx: Any = Alone()
    node = NodeManager(ctx, 1, {"CPU": 1}, Config())
    node.pool.take(DEMAND)
    node.handle("gcs", FunctionBlob(b"f", b"code"))
    node.handle("global", AssignTasks([spec(1, 0, 3)], 1))
    assert node.starvation.look() == {}
    creation = spec(7)
    creation.extra = TaskExtra(actor=ActorInfo("A"))
    node.handle("global", AssignTasks([creation], 1))
    assert node.starvation.look() == {DEMAND: 3}
    node.handle("gcs", StopActor(creation.array, 0))
    assert node.starvation.look() == {}


def test_a_task_starved_by_a_group_moves_and_always_has_one_node() -> None:
    """It was placed anew, and its node's death placed it once more."""
    ctx: Any = Alone()
    node = NodeManager(ctx, 1, {"CPU": 1}, Config())
    node.handle("gcs", FunctionBlob(b"f", b"code"))
    node.handle("global", PrepareBundle("ab", 0, {"CPU": 1.0}, 1, 1))
    soft, bound, late = spec(2), spec(3), spec(4, deps=(object_id(array(9), 0, 0),))
    soft.extra, bound.extra = TaskExtra(strategy="soft:1"), TaskExtra(strategy="node:1")
    again = spec(1, 0, 3)
    again.extra = TaskExtra(begun=1)
    node.handle("global", AssignTasks([again, soft, bound, late], 1))
    assert node.starvation.look() == {}, "it may come back yet"
    node.handle("global", CommitBundle("ab", 0, 1))
    node.objects.add(result(9, node=1))
    node.end_turn()
    assert not ctx.take(PlaceTasks)
    assert node.starvation.look() == {DEMAND: 5}
    node.handle("global", MoveTasks(DEMAND, 9))
    (moved,) = ctx.take(TasksMoved)
    assert [(s.array, s.start, s.count) for s in moved.tasks] == [
        (array(1), 0, 3), (array(2), 0, 1), (array(4), 0, 1)
    ]  # fmt: skip
    begun = [-1 if s.extra is None else s.extra.begun for s in moved.tasks]
    assert begun == [1, -1, -1], "its children are here"
    node.handle("global", ReturnBundle("ab", 0, 1))
    node.end_turn()
    assert node.pool.fits(DEMAND), "and what has to run here does"


@pytest.mark.parametrize("how", ["death", "group"])
def test_a_moving_task_that_no_other_node_can_run_goes_back(how: str) -> None:
    """The global scheduler had nobody to give it to, and ended."""
    ctx: Any = Alone()
    made = GlobalScheduler(ctx, Config())
    for node in (0, 1):
        made.handle("gcs", NodeChanged(NodeInfo(node, "", 0, {"CPU": 1.0}, incarnation=1)))
        made.handle("gcs", LoadChanged(node, load(1.0)))

    def reserve(group: str) -> None:
        made.handle("node:0", CreateGroup(group, "", [{"CPU": 1.0}], "PACK"))
        (asked,) = ctx.take(PrepareBundle)
        at = int(group[-1])
        made.handle(f"node:{at}", BundlePrepared(at, group, 0, True, asked.attempt))

    reserve("a0")
    made.handle("gcs", LoadChanged(0, load(0.0, tasks=5)))
    assert ctx.take(MoveTasks, "node:0") == [MoveTasks(DEMAND, 5)]
    if how == "group":
        reserve("a1")
    else:
        made.handle("gcs", NodeChanged(NodeInfo(1, "", 0, {"CPU": 1.0}, False, 1)))
    made.handle("node:0", TasksMoved(0, 1, [spec(1, 0, 5)]))
    [back] = ctx.take(AssignTasks, "node:0")
    assert [(s.array, s.start, s.count) for s in back.tasks] == [(array(1), 0, 5)]
    assert not ctx.take(TaskUpdates)


def test_a_task_waits_for_its_node_whose_cpus_a_group_has(scheduler: GlobalScheduler) -> None:
    ctx: Any = scheduler.ctx
    scheduler.handle("node:0", CreateGroup("ab", "", [{"CPU": 2.0}], "STRICT_PACK"))
    (asked,) = ctx.take(PrepareBundle)
    scheduler.handle("node:1", BundlePrepared(1, "ab", 0, True, asked.attempt))
    bound, wants_more = spec(1), spec(2, demand="CPU:3")
    for each in (bound, wants_more):
        each.extra = TaskExtra(strategy="node:1")
        scheduler.handle("node:0", PlaceTasks([each]))
    [refused] = ctx.take(TaskResults)
    assert [r.array for r in refused.results] == [array(2)]
    assert given(ctx) == []
    scheduler.handle("node:0", RemoveGroup("ab"))
    assert given(ctx) == ["node:1"]


def test_a_task_does_not_wait_for_a_dead_node_whose_cpus_a_group_had(
    scheduler: GlobalScheduler,
) -> None:
    ctx: Any = scheduler.ctx
    scheduler.handle("node:0", CreateGroup("ab", "", [{"CPU": 2.0}], "STRICT_PACK"))
    (asked,) = ctx.take(PrepareBundle)
    scheduler.handle("node:1", BundlePrepared(1, "ab", 0, True, asked.attempt))
    bound = spec(1)
    bound.extra = TaskExtra(strategy="node:1")
    scheduler.handle("node:0", PlaceTasks([bound]))
    assert not ctx.take(TaskResults)
    scheduler.handle("gcs", NodeChanged(NodeInfo(1, "", 0, {"CPU": 2.0}, False, 1)))
    [refused] = ctx.take(TaskResults)
    assert [r.array for r in refused.results] == [array(1)]


def test_the_gcs_places_tasks_that_a_dead_node_had_passed_on(scheduler: GlobalScheduler) -> None:
    ctx: Any = scheduler.ctx
    scheduler.handle("gcs", NodeChanged(NodeInfo(0, "", 0, {"CPU": 2.0}, False, 1)))
    scheduler.handle("node:0", TasksMoved(0, 1, [spec(1)]))
    assert not ctx.take(AssignTasks)


def gcs_with_nodes() -> tuple[Any, Gcs]:
    ctx = Alone()
    gcs = Gcs(ctx, Config())
    for node in range(3):
        info = NodeInfo(node, "", 0, {"CPU": 2.0}, incarnation=1)
        gcs.handle(f"node:{node}", RegisterNode(info))
    return ctx, gcs


def test_a_range_has_one_node_whichever_node_dies() -> None:
    ctx, gcs = gcs_with_nodes()
    gcs.handle("node:1", TaskUpdates(1, [spec(1, 0, 4)], [], [], [], incarnation=1))
    part = spec(1, 2, 2)
    gcs.handle("global", TaskUpdates(2, [part], [], [], [], incarnation=1, left=1))
    row = gcs.arrays[array(1)]
    assert [(s.start, s.count, node) for s, node in row.accepted] == [(0, 2, 1), (2, 2, 2)]
    gcs.nodes.declare_dead(1, "killed")
    assert [(s.start, s.count) for m in ctx.take(PlaceTasks) for s in m.tasks] == [(0, 2)]
    gcs.nodes.declare_dead(2, "killed")
    assert [(s.start, s.count) for m in ctx.take(PlaceTasks) for s in m.tasks] == [(2, 2)]


def test_an_unlogged_task_has_an_owner_when_it_moves() -> None:
    ctx, gcs = gcs_with_nodes()
    gcs.handle("global", TaskUpdates(2, [spec(1)], [], [], [], incarnation=1, left=0))
    gcs.nodes.declare_dead(2, "killed")
    assert len(ctx.take(PlaceTasks)) == 1
    assert gcs.arrays[array(1)].locate(object_id(array(1), 0, 0), {0, 1}) is None


class Restless(World):
    """A world in which whatever waits is at once taken to starve."""

    made: Restless

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings["config"] = replace(settings["config"], heartbeat_s=0.01)
        super().__init__(*args, **settings)
        Restless.made = self

    @property
    def moves(self) -> int:
        """Ranges that have moved."""
        return sum(len(m.tasks) for _, _, _, m in self.trace if isinstance(m, TasksMoved))


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STARVING_S", "STARVING_TASKS"):
        monkeypatch.setattr(starvation, name, 0.0)
    monkeypatch.setattr("tests.control.programs.World", Restless)


RUNS = {"healthy": system.healthy, "workers": system.worker_kills, "nodes": system.node_kills}


@pytest.mark.slow
@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("kind", RUNS)
def test_programs_end_and_leave_nothing_if_all_waiting_tasks_move(kind: str) -> None:
    moves = 0
    for seed in range(8):
        RUNS[kind](seed)
        moves += Restless.made.moves
    assert moves > 20
