"""What several clients wait for, as the task that submitted it has run more than once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.messages import (
    AssignTasks,
    ClaimTasks,
    ForwardResults,
    Release,
    SubmitTasks,
    TaskResults,
    TaskUpdates,
)
from tests.control.alone import array, result, spec
from tests.control.test_local_scheduler import DRIVER, W1, Node
from tests.control.test_lost_inputs import Table


def test_a_range_placed_again_for_one_owner_serves_all() -> None:
    """The one that it is placed for may die before its node can tell the others."""
    table = Table()
    first = replace(spec(1), owner="worker:0.1")
    table.gcs.handle("global", TaskUpdates(1, [first], [], [], [], incarnation=1))
    claim = ClaimTasks([replace(first, owner="worker:3.1")])
    table.gcs.handle("node:3", claim)
    table.ctx.take(ForwardResults)
    table.kill(1)
    (again,) = table.placed()
    assert again.owner == "worker:3.1"
    table.gcs.handle("global", TaskUpdates(2, [again], [], [], [], incarnation=1))
    heir = ForwardResults(array(1), 0, 1, "worker:0.1")
    assert table.ctx.take(ForwardResults, "node:2") == [heir]


def test_an_owner_that_has_released_an_array_does_not_claim_it_again() -> None:
    """The GCS asks for it when another owner lets go, and has not heard that this one has."""
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    heir = ForwardResults(array(1), 0, 1, DRIVER)
    node.turn("gcs", heir)
    assert node.scheduler.results.claims
    node.done(W1, (1, 0, 1))
    node.turn(DRIVER, Release([array(1)]))
    node.turn("gcs", heir)
    assert not node.scheduler.results.claims


def test_a_range_that_runs_here_for_a_dead_owner_serves_the_owner_here() -> None:
    """The GCS has placed it for the first owner after the second one asked for it in vain."""
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, demand="CPU:5")]))
    node.turn("gcs", AssignTasks([spec(1, owner="worker:1.1")]))
    node.done(W1, (1, 0, 1))
    assert [each.owner for each in node.ctx.take(TaskResults)] == ["worker:1.1", DRIVER]


@pytest.mark.parametrize("of_owner", [False, True])
def test_a_new_owner_gets_no_stale_places_of_large_values_on_its_own_node(of_owner: bool) -> None:
    """Its node has freed these for an earlier owner there, and the GCS places them again."""
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, count=2)]))
    small, large = result(1, node=1), result(1, start=1, node=1, size=1_000_000, offset=7)
    node.turn("node:1", TaskResults(DRIVER, [small, large]))
    node.ctx.take(TaskResults)
    owner = "worker:1.3" if of_owner else "worker:2.3"
    node.turn("gcs", ForwardResults(array(1), 0, 2, owner))
    [forwarded] = node.ctx.take(TaskResults, f"node:{1 if of_owner else 2}")
    assert forwarded.owner == owner
    assert forwarded.results == ([small] if of_owner else [small, large])


@pytest.mark.parametrize("placed_first", [False, True])
def test_the_owner_of_a_placed_range_may_be_on_a_yet_unknown_node(
    placed_first: bool,
) -> None:
    """Its submissions go to the global scheduler, and may be faster than its registration."""
    table = Table()
    first = spec(1, owner="driver:4.0")
    news = TaskUpdates(1, [first], [], [], [], incarnation=1)
    if placed_first:
        table.gcs.handle("global", news)
    table.kill(1)
    if not placed_first:
        table.gcs.handle("global", news)
    (again,) = table.placed()
    assert again.owner == first.owner
