"""Removed and unknown placement groups: what the GCS keeps of them, and which tasks end."""

from __future__ import annotations

import pytest

from raytwin.runtime.control.core.group_resources import demand_in
from raytwin.runtime.control.core.ids import job_of, object_id
from raytwin.runtime.control.messages import (
    ActorChanged,
    ActorFailed,
    ActorInfo,
    AssignTasks,
    BundlePrepared,
    JobEnded,
    Location,
    ObjectLocations,
    PlaceTasks,
    RemoveGroup,
    TaskExtra,
    TaskResults,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause, GroupRemoved, unpack
from raytwin.runtime.control.scheduling.placement_groups import REMOVED_MAX
from tests.control.alone import Alone, spec
from tests.control.group_tables import Table, named, with_nodes


def use_up(table: Table, count: int, first: int = 1) -> list[str]:
    """Create and remove groups; return their IDs."""
    groups = [
        named(1, number, "", detached=number % 2 == 0) for number in range(first, first + count)
    ]
    for message in groups:
        table.table.create(message)
        attempt = table.table.groups[message.group].attempt
        table.table.on_prepared(BundlePrepared(0, message.group, 0, True, attempt))
        table.table.remove(RemoveGroup(message.group))
    return [message.group for message in groups]


def in_group(group: str, number: int = 1) -> TaskSpec:
    task = spec(number, demand=demand_in("CPU:1", group, 0))
    task.array = bytes.fromhex(group)[:4] + task.array[4:]
    task.extra = TaskExtra(group=f"{group}/0")
    return task


def test_removed_groups_are_forgotten_in_the_end() -> None:
    made = Table()
    removed = use_up(made, 2 * REMOVED_MAX)
    rows = made.table.rows()
    assert REMOVED_MAX // 2 <= len(rows) <= REMOVED_MAX
    assert [row[0] for row in rows] == removed[-len(rows) :]
    assert {row[5] for row in rows} == {"REMOVED"}
    assert not made.table.groups
    for group in (removed[-1], removed[0]):
        gone = in_group(group)
        assert made.table.refusal(gone) == GroupRemoved(gone.name, group)
    made.table.end_job(bytes.fromhex("00010000"))
    assert all(row[6] for row in made.table.rows()), "what the job had removed goes with it"
    assert len(made.table.rows()) == len(rows) // 2


def test_freed_resources_do_not_scan_created_or_removed_groups() -> None:
    made = Table()
    use_up(made, 10)
    here = named(1, 100)
    made.table.create(here)
    made.table.on_prepared(
        BundlePrepared(0, here.group, 0, True, made.table.groups[here.group].attempt)
    )
    made.looks = 0
    made.table.place_soon()
    assert not made.ctx.timers
    made.table.on_node_died(7)
    assert made.looks == 0


def test_an_answer_to_a_group_that_was_forgotten_and_is_created_again() -> None:
    """Its creator ran again. The bundle that the node had agreed to was returned long ago."""
    made = Table()
    made.table.create(named(1, 1))
    first = made.table.groups[named(1, 1).group].attempt
    made.table.remove(RemoveGroup(named(1, 1).group))
    use_up(made, 2 * REMOVED_MAX, 2)
    made.table.create(named(1, 1))
    made.table.on_prepared(BundlePrepared(0, named(1, 1).group, 0, True, first))
    assert made.table.rows()[-1][5] == "PENDING"


def ended(ctx: Alone) -> list[bytes]:
    """Return the arrays that have ended since last time as in a removed group."""
    results = [each for message in ctx.take(TaskResults) for each in message.results]
    assert all(isinstance(unpack(each.payload), GroupRemoved) for each in results)
    return [each.array for each in results]


GONE = named(1, 1).group


def test_tasks_in_an_unknown_group_end_as_in_a_removed_one() -> None:
    scheduler, ctx = with_nodes({"CPU": 4.0})
    task, actor = in_group(GONE), in_group(GONE, 2)
    assert actor.extra is not None
    actor.extra.actor = ActorInfo()
    scheduler.handle("node:0", PlaceTasks([task, actor]))
    assert ended(ctx) == [task.array]
    [failed] = ctx.take(ActorFailed, "gcs")
    assert failed.actor == actor.array
    assert isinstance(failed.reason, GroupRemoved) and failed.reason.actor
    assert not scheduler.infeasible


def test_another_jobs_task_in_a_forgotten_group_fails() -> None:
    """It was told that the group, which had been detached, was not."""
    scheduler, ctx = with_nodes({"CPU": 4.0})
    task = in_group(GONE)
    task.array = bytes.fromhex("00020000") + task.array[4:]
    scheduler.handle("node:0", PlaceTasks([task]))
    assert ended(ctx) == [task.array]


@pytest.mark.parametrize("detached", [False, True])
def test_tasks_in_another_jobs_group_end_with_that_job(detached: bool) -> None:
    """An actor that outlives its job may have submitted it."""
    scheduler, ctx = with_nodes({"CPU": 4.0})
    group = named(1, 1, detached=detached)
    group.bundles = [{"CPU": 8.0}]
    scheduler.handle("node:0", group)
    task = in_group(group.group)
    task.array = bytes.fromhex("00010001") + task.array[4:]
    scheduler.handle("node:0", PlaceTasks([task]))
    assert not ended(ctx)
    scheduler.handle("gcs", JobEnded(job_of(bytes.fromhex(group.group)), "it ended"))
    assert ended(ctx) == ([] if detached else [task.array])


def test_a_group_is_removed_while_the_inputs_of_a_task_in_it_are_located() -> None:
    scheduler, ctx = with_nodes({"CPU": 4.0})
    task = in_group(GONE)
    task.deps = (object_id(task.array, 9, 0),)
    scheduler.handle("node:0", named(1, 1))
    scheduler.handle("node:0", PlaceTasks([task]))
    scheduler.handle("node:0", RemoveGroup(GONE))
    assert not ended(ctx)
    scheduler.handle("gcs", ObjectLocations([Location(task.deps[0], (0,), 8)]))
    assert ended(ctx) == [task.array]


def test_removed_groups_leave_no_resources() -> None:
    """Each left four names of resources there, for the life of its node."""
    scheduler, ctx = with_nodes({"CPU": 4.0})
    pool = scheduler.nodes[0].pool
    before = dict(pool.total)
    for number in range(5):
        message = named(1, number)
        scheduler.handle("node:0", message)
        attempt = scheduler.groups.groups[message.group].attempt
        scheduler.handle("node:0", BundlePrepared(0, message.group, 0, True, attempt))
        actor = in_group(message.group, number)
        assert actor.extra is not None
        actor.extra.actor = ActorInfo()
        scheduler.handle("gcs", PlaceTasks([actor]))
        scheduler.handle("node:0", RemoveGroup(message.group))
        change = ActorChanged(actor.array, "DEAD", -1, 0, ActorDeath(DeathCause.KILLED))
        scheduler.handle("gcs", change)
    assert len(ctx.take(AssignTasks)) == 5
    assert pool.total == pool.free == before
