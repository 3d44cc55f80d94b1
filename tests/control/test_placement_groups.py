"""The nodes of bundles, and the two phases of their reservation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.group_resources import demand_in
from raytwin.runtime.control.messages import (
    AssignTasks,
    Blocked,
    BundlePrepared,
    CommitBundle,
    CreateGroup,
    ExportFunction,
    GroupCreated,
    PlaceTasks,
    PrepareBundle,
    Query,
    QueryReply,
    RemoveGroup,
    ReturnBundle,
    RunTasks,
    SubmitTasks,
    TaskExtra,
    TaskResults,
    TaskUpdates,
    WorkerDied,
    WorkerReady,
)
from raytwin.runtime.control.messages.errors import GroupRemoved, unpack
from raytwin.runtime.control.node.node_manager import NodeManager
from raytwin.runtime.control.scheduling.placement_groups import RETRY_S, STRATEGIES, place
from tests.control.alone import Alone, spec
from tests.control.group_tables import Table, named, with_nodes


def test_a_bundle_goes_to_the_node_with_the_most_of_what_it_takes() -> None:
    nodes = {0: {"CPU": 2.0, "memory": 9e9}, 1: {"CPU": 4.0, "memory": 1e9}}
    for bundle, node in (({"CPU": 1.0}, 1), ({"memory": 1e6}, 0)):
        assert place({0: bundle}, nodes, "PACK", set()) == {0: node}


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.lists(st.integers(0, 8), min_size=1, max_size=5),
    st.sampled_from(STRATEGIES),
)
def test_placed_bundles_fit(sizes: list[int], free: list[int], strategy: str) -> None:
    bundles = {i: {"CPU": float(size)} for i, size in enumerate(sizes)}
    nodes = {n: {"CPU": float(cpus)} for n, cpus in enumerate(free)}
    chosen = place(bundles, nodes, strategy, set())
    if chosen is None:
        if strategy == "STRICT_PACK":
            assert sum(sizes) > max(free)
        if strategy == "STRICT_SPREAD":
            most = sorted(free, reverse=True)
            wanted = sorted(sizes, reverse=True)
            assert len(wanted) > len(most) or any(w > m for w, m in zip(wanted, most, strict=False))
        return
    assert set(chosen) == set(bundles)
    for node, cpus in enumerate(free):
        assert sum(sizes[i] for i, at in chosen.items() if at == node) <= cpus
    distinct = len(set(chosen.values()))
    if strategy == "STRICT_PACK":
        assert distinct == 1
    if strategy == "STRICT_SPREAD":
        assert distinct == len(sizes)


def test_demands_are_rewritten() -> None:
    assert demand_in("CPU:1,GPU:0.5", "ab", -1) == (
        "CPU_group_ab:1,GPU_group_ab:0.5,bundle_group_ab:0.001"
    )
    assert demand_in("", "ab", 2) == "bundle_group_2_ab:0.001,bundle_group_ab:0.001"


@pytest.fixture
def made() -> Any:
    made = Table()
    made.table.create(CreateGroup("g", "", [{"CPU": 2.0}, {"CPU": 2.0}], "SPREAD"))
    return made


def test_a_group_is_committed_when_all_have_agreed(made: Table) -> None:
    assert sorted(node for node, _ in made.asked()) == [0, 1]
    made.answer(0, 0, True)
    assert made.state == "PENDING"
    assert not made.ctx.take(CommitBundle)
    made.answer(1, 1, True)
    assert made.state == "CREATED"
    assert len(made.ctx.take(CommitBundle)) == 2
    assert made.has == [(0, True), (1, True)]


def test_if_one_refuses_nothing_is_kept(made: Table) -> None:
    made.asked()
    made.answer(0, 0, True)
    made.answer(1, 1, False)
    assert made.state == "PENDING"
    assert len(made.ctx.take(ReturnBundle)) == 2
    assert not made.ctx.take(CommitBundle)
    made.ctx.pass_time(RETRY_S)
    assert len(made.asked()) == 2


def test_a_node_that_dies_meanwhile(made: Table) -> None:
    made.asked()
    made.answer(0, 0, True)
    del made.free[1]
    made.table.on_node_died(1)
    assert [to for to, m in made.ctx.sent if isinstance(m, ReturnBundle)] == ["node:0"]
    made.answer(1, 1, True)
    assert made.state == "PENDING"
    assert made.has == []


def test_a_node_that_dies_later(made: Table) -> None:
    made.asked()
    made.answer(0, 0, True)
    made.answer(1, 1, True)
    made.free = {0: {"CPU": 0.0}, 2: {"CPU": 2.0}}
    made.table.on_node_died(1)
    assert made.state == "RESCHEDULING"
    assert made.asked() == [(2, 1)]
    made.answer(2, 1, True)
    assert made.state == "CREATED"


def test_removal_while_it_is_prepared(made: Table) -> None:
    made.asked()
    made.answer(0, 0, True)
    made.table.remove(RemoveGroup("g"))
    made.answer(1, 1, True)
    assert made.state == "REMOVED"
    assert len(made.ctx.take(ReturnBundle)) == 2
    assert made.has == []


def test_creating_twice_is_creating_once(made: Table) -> None:
    made.asked()
    made.table.create(CreateGroup("g", "", [{"CPU": 2.0}, {"CPU": 2.0}], "SPREAD"))
    assert made.asked() == []


def test_a_node_dies_while_anothers_bundles_are_placed_again(made: Table) -> None:
    """It was CREATED with one bundle, and the other one nobody looked for any more."""
    made.asked()
    made.answer(0, 0, True)
    made.answer(1, 1, True)
    made.free = {2: {"CPU": 2.0}}
    made.table.on_node_died(1)
    assert made.asked() == [(2, 1)]
    made.free = {2: {"CPU": 0.0}, 3: {"CPU": 2.0}}
    made.table.on_node_died(0)
    made.answer(2, 1, True)
    assert made.state == "RESCHEDULING"
    made.ctx.pass_time(RETRY_S)
    assert made.asked() == [(3, 0)]
    made.answer(3, 0, True)
    assert made.state == "CREATED"


def test_groups_that_are_placed_again_precede_later_ones(made: Table) -> None:
    made.asked()
    made.answer(0, 0, True)
    made.answer(1, 1, True)
    made.free = {0: {"CPU": 0.0}}
    made.table.create(CreateGroup("later", "", [{"CPU": 2.0}], "PACK"))
    made.table.on_node_died(1)
    made.free[2] = {"CPU": 2.0}
    made.ctx.pass_time(RETRY_S)
    assert made.asked() == [(2, 1)]


def test_the_query_for_existing_groups_returns_no_removed_ones() -> None:
    scheduler, ctx = with_nodes({"CPU": 2.0})
    gone, there = named(1, 1), named(1, 2, "other")
    for each in (gone, there):
        scheduler.handle("node:0", each)
    scheduler.handle("node:0", RemoveGroup(gone.group))
    for key, kind in enumerate(("groups", "groups_there")):
        scheduler.handle("node:0", Query(kind, key, "driver:0.0"))
    replies = ctx.take(QueryReply)
    assert [[(row[0], row[5]) for row in reply.value] for reply in replies] == [
        [(gone.group, "REMOVED"), (there.group, "PENDING")],
        [(there.group, "PENDING")],
    ]


# -- names -----------------------------------------------------------------------


def test_a_name_is_one_groups(made: Table) -> None:
    made.asked()
    first, second = named(1, 1), named(1, 2)
    made.free = {0: {"CPU": 4.0}}
    assert made.table.create(first) == first.group
    assert made.table.create(second) == first.group
    assert made.asked() == [(0, 0)], "what is not created reserves nothing"
    assert [row[0] for row in made.table.rows()] == ["g", first.group]
    assert made.table.create(first) == first.group, "its creator may run again"
    assert made.asked() == []
    made.table.remove(RemoveGroup(first.group))
    assert made.table.create(second) == second.group
    assert made.table.create(first) == first.group, "it is removed, and its creator runs again"
    assert made.table.create(named(1, 3)) == second.group


def test_a_name_is_known_to_its_job_and_that_of_a_detached_group_to_all() -> None:
    made = Table()
    for message in (named(1, 1), named(2, 1), named(3, 1, detached=True)):
        assert made.table.create(message) == message.group
    assert made.table.create(named(4, 1)) == named(3, 1).group
    assert made.table.create(named(4, 1, detached=True)) == named(3, 1).group
    assert made.table.create(named(4, 1, "other")) == named(4, 1).group
    assert made.table.create(named(4, 2, "other", detached=True)) == named(4, 1).group
    assert made.table.create(named(5, 1, "other", detached=True)) == named(5, 1).group


def test_a_name_comes_free_with_the_end_of_its_job() -> None:
    made = Table()
    made.table.create(named(1, 1))
    made.table.create(named(1, 2, "stays", detached=True))
    made.table.end_job(bytes.fromhex("00010000"))
    assert made.table.create(named(1, 3)) == "", "it comes late"
    of_a_detached_actor = CreateGroup(f"00010001{7:016x}", "mine", [{"CPU": 1.0}], "PACK")
    assert made.table.create(of_a_detached_actor) == of_a_detached_actor.group
    assert made.table.create(named(2, 1, "stays")) == named(1, 2).group


def test_the_creator_of_a_group_learns_who_has_its_name() -> None:
    scheduler, ctx = with_nodes({"CPU": 4.0})
    first, second, nameless = named(1, 1), named(1, 2), named(1, 3, "")
    for request, message in ((7, first), (3, second), (9, nameless)):
        message.request, message.client = request, f"worker:0.{request}"
        scheduler.handle("node:0", message)
    assert ctx.take(GroupCreated, "node:0") == [
        GroupCreated(7, "worker:0.7", first.group),
        GroupCreated(3, "worker:0.3", first.group),
        GroupCreated(9, "worker:0.9", nameless.group),
    ]


def test_a_node_asks_in_its_clients_name_and_passes_the_answer_on() -> None:
    ctx = Alone()
    node = NodeManager(ctx, 0, {"CPU": 1}, Config())
    message = named(1, 1)
    message.request = 5
    node.handle("driver:0.0", message)
    [sent] = ctx.take(CreateGroup, "global")
    assert (sent.request, sent.client) == (5, "driver:0.0")
    node.handle("global", GroupCreated(5, "driver:0.0", message.group))
    assert ctx.take(GroupCreated, "driver:0.0") == [GroupCreated(5, "driver:0.0", message.group)]


def test_the_late_answer_of_a_node_to_an_attempt_that_was_given_up(made: Table) -> None:
    made.asked()
    first = made.table.groups["g"].attempt
    del made.free[1]
    made.table.on_node_died(1)
    made.free[1] = {"CPU": 2.0}
    made.ctx.pass_time(RETRY_S)
    assert len(made.asked()) == 2
    made.answer(1, 1, True)
    made.table.on_prepared(BundlePrepared(0, "g", 0, True, first))
    assert made.state == "PENDING", "node 0 may refuse yet"
    made.answer(0, 0, False)
    assert not made.ctx.take(CommitBundle)


def test_a_node_ignores_bundles_for_its_former_incarnation() -> None:
    ctx = Alone()
    scheduler = NodeManager(ctx, 0, {"CPU": 2}, Config(), 2)
    scheduler.handle("global", PrepareBundle("g", 0, {"CPU": 2.0}, 1, 1))
    scheduler.handle("global", CommitBundle("g", 0, 1))
    assert scheduler.pool.available() == {"CPU": 2.0}
    assert not ctx.take(BundlePrepared)
    scheduler.handle("global", PrepareBundle("g", 0, {"CPU": 2.0}, 2, 2))
    scheduler.handle("global", ReturnBundle("g", 0, 1))
    assert scheduler.pool.available() == {"CPU": 0.0}
    assert ctx.take(BundlePrepared) == [BundlePrepared(0, "g", 0, True, 2)]
    scheduler.handle("global", ReturnBundle("g", 0, 2))
    assert scheduler.pool.available() == {"CPU": 2.0}


def test_a_worker_dies_whose_task_in_a_bundle_waits() -> None:
    """It has given up the CPU of its bundle and of its group, and nothing else."""
    ctx = Alone()
    scheduler = NodeManager(ctx, 0, {"CPU": 1, "GPU": 1}, Config())
    scheduler.start("localhost", 1)
    scheduler.handle("driver:0.0", ExportFunction(b"f", b"blob"))
    scheduler.handle("worker:0.1", WorkerReady(1))
    scheduler.handle("global", PrepareBundle("ab", 0, {"CPU": 1.0, "GPU": 1.0}, 1, 1))
    scheduler.handle("global", CommitBundle("ab", 0, 1))
    free = scheduler.pool.available()
    task = spec(1, demand=demand_in("CPU:1,GPU:1", "ab", 0))
    scheduler.handle("driver:0.0", SubmitTasks([task]))
    scheduler.end_turn()
    assert scheduler.pool.available()["CPU_group_0_ab"] == 0.0
    scheduler.handle("worker:0.1", Blocked())
    scheduler.handle("pool:0", WorkerDied("worker:0.1", "killed"))
    assert scheduler.pool.available() == free


GROUP = "00" * 12


class OnNode:
    """A node with one CPU, which a group has; array 1 of four elements is in it."""

    def __init__(self, committed: bool = True) -> None:
        self.ctx = Alone()
        self.scheduler = NodeManager(self.ctx, 0, {"CPU": 1}, Config())
        self.scheduler.start("localhost", 1)
        self.turn("driver:0.0", ExportFunction(b"f", b"blob"))
        self.turn("global", PrepareBundle(GROUP, 0, {"CPU": 1.0}, 1, 1))
        if committed:
            self.turn("global", CommitBundle(GROUP, 0, 1))
        self.task = spec(1, 0, 4, demand=demand_in("CPU:1", GROUP, 0))
        self.task.extra = TaskExtra(group=f"{GROUP}/0")

    def turn(self, source: str, message: Any) -> None:
        self.scheduler.handle(source, message)
        self.scheduler.end_turn()

    def ended(self) -> list[tuple[int, int]]:
        """Return (start, count) of what the node says has ended with the group."""
        results = [each for m in self.ctx.take(TaskResults) for each in m.results]
        assert all(isinstance(unpack(each.payload), GroupRemoved) for each in results)
        return [(each.start, each.count) for each in results]


def test_queued_tasks_of_a_removed_group_end_where_they_were_accepted() -> None:
    """The table heard of no end, and never let go of what the others had made there."""
    node = OnNode()
    node.task.owner = "driver:1.0"
    node.turn("global", AssignTasks([node.task]))
    node.turn("global", ReturnBundle(GROUP, 0, 1))
    assert node.ended() == [(0, 4)]
    assert not node.ctx.take(PlaceTasks)
    node.ctx.pass_time(1.0)
    assert [m.done for m in node.ctx.take(TaskUpdates) if m.done] == [[(node.task.array, 0, 4, ())]]


def test_a_task_waits_for_the_bundle_that_its_assignment_has_overtaken() -> None:
    """It was told that its group is gone, by a node that had only prepared the bundle: a shard
    assigns tasks, and the global scheduler commits bundles."""
    node = OnNode(committed=False)
    node.turn("worker:0.1", WorkerReady(1))
    node.turn("gcs.1", AssignTasks([node.task]))
    assert not node.ended() and not node.ctx.take(RunTasks)
    node.turn("global", CommitBundle(GROUP, 0, 1))
    assert node.ctx.take(RunTasks, "worker:0.1")


def test_a_task_submitted_after_its_groups_removal_does_not_stay() -> None:
    """It ran, as its node had not been told yet to return the bundle."""
    node = OnNode()
    node.turn("driver:0.0", RemoveGroup(GROUP))
    node.turn("driver:0.0", SubmitTasks([node.task]))
    [sent] = node.ctx.take(PlaceTasks)
    assert [each.count for each in sent.tasks] == [4]
