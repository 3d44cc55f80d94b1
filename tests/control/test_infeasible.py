"""Which infeasible ranges the global scheduler warns of."""

from __future__ import annotations

from raytwin.runtime.control.core.group_resources import demand_in
from raytwin.runtime.control.core.task_ranges import is_crash_loop
from raytwin.runtime.control.messages import (
    AssignTasks,
    BundlePrepared,
    CreateGroup,
    Event,
    NodeChanged,
    NodeInfo,
    PlaceTasks,
    PrepareBundle,
    RemoveGroup,
    TaskExtra,
    TaskSpec,
)
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from tests.control.alone import Alone, spec
from tests.control.group_tables import named, with_nodes

GROUP = named(1, 1).group


def warnings(ctx: Alone) -> list[str]:
    return [event.detail for event in ctx.take(Event) if event.job]


def in_group(number: int, demand: str, index: int) -> TaskSpec:
    task = spec(number, demand=demand_in(demand, GROUP, index))
    task.extra = TaskExtra(group=GROUP)
    return task


def read(number: int) -> TaskSpec:
    """Return a task of a function that needs a tape."""
    task = spec(number, demand="tape:1")
    task.name = "read"
    return task


def create(scheduler: GlobalScheduler, *bundles: dict[str, float]) -> None:
    scheduler.handle("node:0", CreateGroup(GROUP, "mine", list(bundles), "SPREAD"))


def prepare(scheduler: GlobalScheduler, ctx: Alone) -> None:
    """Have the nodes prepare the bundles of the group."""
    for to, message in list(ctx.sent):
        if isinstance(message, PrepareBundle):
            node = int(to.partition(":")[2])
            answer = BundlePrepared(node, GROUP, message.index, True, message.attempt)
            scheduler.handle(to, answer)


def test_what_groups_hold_is_there() -> None:
    scheduler, ctx = with_nodes({"CPU": 2.0})
    create(scheduler, {"CPU": 1.0})
    prepare(scheduler, ctx)
    scheduler.handle("node:0", PlaceTasks([spec(1, demand="CPU:2")]))
    assert not warnings(ctx) and not ctx.take(AssignTasks)
    scheduler.handle("node:0", RemoveGroup(GROUP))
    assert ctx.take(AssignTasks) and not warnings(ctx)


def test_a_fraction_that_a_node_has_is_there() -> None:
    scheduler, _ = with_nodes({"CPU": 1.0, "disk": 0.0029})
    assert scheduler.nodes[0].owns("disk:0.0029")
    assert not scheduler.nodes[0].owns("disk:0.003")


def test_a_task_that_waits_for_the_last_bundle() -> None:
    """The bundles become usable together: of the others' resources it can make no use."""
    scheduler, ctx = with_nodes({"CPU": 1.0}, {"CPU": 1.0})
    create(scheduler, {"CPU": 1.0}, {"CPU": 1.0})
    scheduler.handle("node:0", PlaceTasks([in_group(1, "CPU:1", 1)]))
    prepare(scheduler, ctx)
    assert ctx.take(AssignTasks) and not warnings(ctx)


def test_a_warning_names_the_group_and_what_its_bundles_have() -> None:
    scheduler, ctx = with_nodes({"CPU": 4.0, "GPU": 1.0})
    create(scheduler, {"CPU": 1.5}, {"GPU": 1.0})
    prepare(scheduler, ctx)
    scheduler.handle("node:0", PlaceTasks([in_group(1, "CPU:2,GPU:1", -1)]))
    [warning] = warnings(ctx)
    assert warning == (
        "waits, since it needs CPU:2,GPU:1, and no node has all of that in placement group mine:"
        " the most on one node is CPU:1.5, GPU:1"
    )


def test_a_demand_that_was_met_meanwhile_is_warned_of_again() -> None:
    scheduler, ctx = with_nodes({"CPU": 1.0})
    scheduler.handle("node:0", PlaceTasks([read(1)]))
    assert len(warnings(ctx)) == 1
    scheduler.handle("node:0", PlaceTasks([read(2)]))
    scheduler.handle("gcs", NodeChanged(NodeInfo(1, "host", 0, {"CPU": 1.0})))
    assert not warnings(ctx)
    scheduler.handle("gcs", NodeChanged(NodeInfo(2, "host", 0, {"CPU": 1.0, "tape": 1.0})))
    assert ctx.take(AssignTasks) and not warnings(ctx)
    scheduler.handle("gcs", NodeChanged(NodeInfo(2, "host", 0, {}, alive=False)))
    for number in (3, 4):
        scheduler.handle("node:0", PlaceTasks([read(number)]))
    assert len(warnings(ctx)) == 1


def test_a_group_that_was_placed_meanwhile_is_warned_of_again() -> None:
    scheduler, ctx = with_nodes({"CPU": 1.0})
    create(scheduler, {"tape": 1.0})
    assert len(warnings(ctx)) == 1
    scheduler.handle("gcs", NodeChanged(NodeInfo(1, "host", 0, {"CPU": 1.0, "tape": 1.0})))
    scheduler.handle("gcs", NodeChanged(NodeInfo(2, "host", 0, {"CPU": 1.0})))
    scheduler.handle("gcs", NodeChanged(NodeInfo(2, "host", 0, {}, alive=False)))
    assert not warnings(ctx)
    scheduler.handle("gcs", NodeChanged(NodeInfo(1, "host", 0, {}, alive=False)))
    assert len(warnings(ctx)) == 1
    scheduler.handle("gcs", NodeChanged(NodeInfo(3, "host", 0, {"CPU": 1.0})))
    scheduler.handle("gcs", NodeChanged(NodeInfo(3, "host", 0, {}, alive=False)))
    assert not warnings(ctx), "nothing has changed for it"


def test_warnings_of_a_crash_loop_become_rare() -> None:
    assert [n for n in range(100) if is_crash_loop(n)] == [3, 6, 12, 24, 48, 96]
