"""GCS and global scheduler with whole nodes: placement, death, release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.messages import (
    AssignTasks,
    Event,
    LocateObjects,
    ObjectLocations,
    TasksDone,
)
from tests.control.alone import array
from tests.control.bodies import run_program, sequential
from tests.control.leftovers import leftovers
from tests.control.shell import Ref
from tests.control.values import INLINE_BYTES_MAX, Code, TaskFailed
from tests.control.world import World


def cluster(nodes: Any, policy: str = "bottom-up", seed: int = 1, **settings: Any) -> World:
    config = Config(
        policy=policy, inline_bytes_max=INLINE_BYTES_MAX, heartbeat_timeout_s=0.5, **settings
    )
    world = World(nodes, seed=seed, config=config)
    world.run(for_s=0.2)
    return world


def ran_on(world: World) -> Counter[int]:
    """Return how many elements each node ran."""
    return Counter(
        r.node for *_, m in world.trace if isinstance(m, TasksDone)
        for r in m.results for _ in range(r.count)
    )  # fmt: skip


def clean(world: World, for_s: float = 2.0) -> None:
    world.run(for_s=for_s)
    assert not leftovers(world)


# -- placement -----------------------------------------------------------------


def test_a_node_that_is_full_shares_and_one_that_is_not_does_not() -> None:
    world = cluster(4)
    driver = world.driver()
    driver.call(run_program(driver, [{"do": "call", "body": {"s": 0.1}}]))
    assert set(ran_on(world)) == {0}
    driver.call(run_program(driver, [{"do": "map", "bodies": [{"s": 0.1}] * 40}]))
    assert min(ran_on(world)[n] for n in range(4)) >= 5
    clean(world)


def test_a_task_goes_where_its_demand_can_be_met() -> None:
    world = cluster([{"CPU": 1.0}, {"CPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}])
    driver = world.driver()
    driver.call(run_program(driver, [
        {"do": "call", "body": {}, "demand": "CPU:2"},
        {"do": "call", "body": {}, "demand": "GPU:1"},
    ]))  # fmt: skip
    assert ran_on(world) == {1: 1, 2: 1}


def test_an_infeasible_task_waits_for_a_feasible_node() -> None:
    world = cluster(2)
    driver = world.driver()
    world.at(1.0, lambda: world.add_node(2, {"CPU": 1.0, "GPU": 1.0}))
    driver.call(run_program(driver, [{"do": "call", "body": {}, "demand": "GPU:1"}]))
    assert ran_on(world) == {2: 1}
    assert any(isinstance(m, Event) and m.kind == "infeasible" for *_, m in world.trace)


@pytest.mark.parametrize(("policy", "there"), [("centralized", 1.0), ("locality-blind", 0.0)])
def test_locality_counts_only_for_policies_that_use_it(policy: str, there: float) -> None:
    world = cluster(4, policy, spill_tasks_per_slot=0, spill_wait_s=0.0)
    driver = world.driver()
    large = 500_000_000

    def program() -> Code:
        made = driver.submit({"size": large, "s": 0.001})
        yield from driver.get([made[0].oid])
        [node] = ran_on(world)
        yield 0.2
        used = []
        for _ in range(20):
            before = ran_on(world)
            [ref] = driver.submit({"s": 0.001}, deps=[made[0].oid])
            yield from driver.get([ref.oid])
            ref.drop()
            [(at, _)] = (ran_on(world) - before).items()
            used.append(at in (node, 0))  # the driver's node has fetched it
            yield 0.2
        made[0].drop()
        return used

    used = driver.call(program())
    assert used.count(True) == 20 if there else used.count(True) < 19
    clean(world)


# -- death ---------------------------------------------------------------------


def kill_two(world: World, noticed: bool) -> Callable[[], None]:
    def kill() -> None:
        for node in (1, 2):
            world.kill_node(node, noticed)

    return kill


@pytest.mark.parametrize("noticed", [True, False])
def test_tasks_of_dead_nodes_run_elsewhere(noticed: bool) -> None:
    world = cluster(4)
    driver = world.driver()
    steps = [{"do": "map", "bodies": [{"salt": n, "s": 0.1} for n in range(60)]}]
    world.at(0.25, kill_two(world, noticed))
    assert driver.call(run_program(driver, steps)) == sequential(steps)
    clean(world, 70.0)


@pytest.mark.parametrize("noticed", [True, False])
def test_without_retries_a_dead_node_is_an_error(noticed: bool) -> None:
    world = cluster(4)
    driver = world.driver()
    world.at(0.25, kill_two(world, noticed))
    steps = [{"do": "map", "bodies": [{"s": 0.1}] * 60, "retries": 0}]
    with pytest.raises(TaskFailed, match=r"WorkerCrashedError.*(connection lost|no heartbeat)"):
        driver.call(run_program(driver, steps))
    clean(world, 70.0)


def test_waiters_on_other_nodes_get_the_error_too() -> None:
    world = cluster([{"CPU": 1.0}, {"CPU": 1.0, "A": 1.0}, {"CPU": 1.0, "B": 1.0}])
    driver = world.driver()
    world.at(0.3, lambda: world.kill_node(1))
    steps = [
        {"do": "call", "body": {"s": 9.0}, "demand": "A:1", "retries": 0},
        {"do": "call", "body": {}, "demand": "B:1", "deps": [[0, 0]]},
        {"do": "get", "step": 1},
    ]
    with pytest.raises(TaskFailed, match="WorkerCrashedError"):
        driver.call(run_program(driver, steps))
    clean(world, 70.0)


def test_late_messages_of_a_dead_node_are_ignored() -> None:
    world = cluster(3)
    driver = world.driver()
    steps = [{"do": "map", "bodies": [{"salt": n, "s": 0.1} for n in range(30)]}]
    world.at(0.25, lambda: world.cut_node(1))
    world.at(2.0, world.cut.clear)
    assert driver.call(run_program(driver, steps)) == sequential(steps)
    world.run(for_s=3.0)
    assert not world.gcs.nodes.rows[1].alive
    assert "no heartbeat" in world.nodes[1].members.fenced


@pytest.mark.parametrize("child_s", [0.02, 100.0])
def test_objects_owned_by_tasks_of_a_dead_node_are_dropped(child_s: float) -> None:
    """At once if they are being made, for no task that runs again can want them."""
    world = cluster([{"CPU": 1.0}, {"CPU": 1.0, "A": 1.0}, {"CPU": 1.0, "B": 1.0}])
    driver = world.driver()
    inner: list[dict[str, Any]] = [
        {"do": "call", "body": {"s": child_s, "size": 1000}, "demand": "B:1"},
        {"do": "call", "body": {"s": 100.0}, "demand": "A:0.1"},
        {"do": "get", "step": 1},
    ]
    steps = [{"do": "call", "body": {"steps": inner}, "demand": "A:1", "retries": 0}]
    world.at(0.1, lambda: world.kill_node(1))
    with pytest.raises(TaskFailed, match="WorkerCrashedError"):
        driver.call(run_program(driver, steps))
    world.run(for_s=2.0)
    assert bool(world.gcs.arrays) == (child_s < 1)
    clean(world, 70.0)


# -- release -------------------------------------------------------------------


def test_a_long_task_leaves_no_trace_at_the_gcs() -> None:
    # Its row reached the GCS before it ended, its end after its release.
    world = cluster(1)
    driver = world.driver()
    driver.call(run_program(driver, [{"do": "call", "body": {"s": 0.05}}]))
    clean(world)


def test_copies_are_freed_wherever_they_are() -> None:
    world = cluster([{"CPU": 1.0}] + [{"CPU": 1.0, f"R{n}": 1.0} for n in range(3)])
    driver = world.driver()
    steps: list[dict[str, Any]] = [{"do": "put", "salt": 5, "size": 1000}]
    steps += [
        {"do": "call", "body": {"size": 500}, "demand": f"R{n}:1", "deps": [[0, 0]]}
        for n in range(3)
    ]
    steps += [{"do": "get", "step": n} for n in (1, 2, 3)]
    assert driver.call(run_program(driver, steps)) == sequential(steps)
    fetched = [n for n in range(4) if world.stores[n]._next]
    assert fetched == [0, 1, 2, 3]
    clean(world)


def test_a_request_for_a_released_object_is_a_loss() -> None:
    world = cluster(2)
    driver, late = world.driver(0), world.driver(1)

    def program(ref_of: list[bytes]) -> Code:
        # Long enough to be logged: what comes and goes within one batch leaves no trace.
        [ref] = driver.submit({"s": 0.05 + 2 * Config().log_linger_s})
        ref_of.append(ref.oid)
        yield from driver.get([ref.oid])
        ref.drop()

    oids: list[bytes] = []
    driver.call(program(oids))
    world.run(for_s=1.0)

    def borrow() -> Code:
        ref = Ref(late, oids[0])
        try:
            yield from late.get([ref.oid])
        finally:
            ref.drop()

    with pytest.raises(TaskFailed, match="ObjectLostError"):
        late.call(borrow())
    clean(world)


def test_waiters_for_an_object_get_a_loss_when_it_is_released() -> None:
    world = cluster(2)
    driver, other = world.driver(0), world.driver(1)

    def program() -> Code:
        [ref] = driver.submit({"s": 0.5})
        borrower.append(ref.oid)
        yield from driver.get([ref.oid])
        ref.drop()

    borrower: list[bytes] = []
    driver.start(program())
    world.run(for_s=0.2)
    ref = Ref(other, borrower[0])

    def borrow() -> Code:
        value = yield from other.get([ref.oid])
        ref.drop()
        return value

    # It is made while it is awaited: the value or the release comes first, but one does.
    try:
        assert other.call(borrow()) == [0]
    except TaskFailed as error:
        assert error.text.startswith("ObjectLostError")
        ref.drop()
    clean(world)


def test_waiters_are_notified_when_an_object_is_made() -> None:
    world = cluster(1)
    gcs = world.gcs
    oid = object_id(array(5), 0, 0)
    world.turn("gcs", lambda: gcs.handle("node:0", LocateObjects([oid], subscribe=False)))
    world.run(for_s=0.1)
    told = [m for *_, m in world.trace if isinstance(m, ObjectLocations)]
    assert [(loc.nodes, loc.lost) for m in told for loc in m.locations] == [((), None)]
    assert not gcs.table.waiters.arrays


def test_assignments_are_logged_before_they_are_sent() -> None:
    world = cluster(3, "random")
    driver = world.driver()
    driver.call(run_program(driver, [{"do": "map", "bodies": [{}] * 50}]))
    assigned = [m for *_, m in world.trace if isinstance(m, AssignTasks)]
    assert sum(s.count for m in assigned for s in m.tasks) == 50
    assert world.globals.placed == 50
    clean(world)
