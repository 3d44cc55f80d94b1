"""The local scheduler and its workers, alone and in the small world."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.core.resources import ResourcePool
from raytwin.runtime.control.core.worker_record import State
from raytwin.runtime.control.local_scheduler.worker_pool import WORKERS_WITHOUT_CPU_MAX
from raytwin.runtime.control.messages import (
    OK,
    SYSTEM_ERROR,
    USER_ERROR,
    ActorInfo,
    AssignTasks,
    Blocked,
    ClaimTasks,
    ForwardResults,
    FreeObjects,
    Location,
    NodeChanged,
    NodeInfo,
    ObjectLocations,
    ObjectsMissing,
    PlaceTasks,
    PutObjects,
    Release,
    Resume,
    StartWorker,
    SubmitTasks,
    TakeBack,
    TakenBack,
    TaskExtra,
    TaskResults,
    TasksClaimed,
    TasksDone,
    TaskUpdates,
    Unblocked,
    WorkerDied,
    WorkerReady,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause, unpack
from raytwin.runtime.control.node.node_manager import NodeManager
from tests.control.alone import Alone, array, result, spec
from tests.control.bodies import run_program, sequential
from tests.control.leftovers import leftovers
from tests.control.one_node import DRIVER, W1, W2, Node, ready
from tests.control.values import FUNCTION, Code, TaskFailed, units
from tests.control.world import World

# -- leases and dispatch -------------------------------------------------------


def test_an_untimed_function_gets_one_task_a_worker_a_timed_one_more() -> None:
    node = Node()
    del node.scheduler.leases.times.means[b"f"]
    node.turn(DRIVER, SubmitTasks([spec(1, 0, 1000)]))
    assert node.given(W1) == [(array(1), 0, 1, 3)]
    node.done(W1, (1, 0, 1))
    [(_, start, count, _)] = node.given(W1)
    # 5 ms of 0.1 ms each.
    assert (start, count) == (1, 50)
    node.done(W1, (1, 1, 24))
    assert not node.given(W1)  # more than half of that is left
    node.done(W1, (1, 25, 2))
    assert sum(row[2] for row in node.given(W1)) == 26


def test_workers_leased_in_one_turn_get_equal_shares() -> None:
    node = Node(4)
    node.turn(DRIVER, SubmitTasks([spec(1, 0, 101)]))
    assert sorted(count for _, _, count, _ in node.given()) == [25, 25, 25, 26]


def test_assignments_to_a_former_incarnation_are_placed_again() -> None:
    node = Node()
    node.scheduler.submission.incarnation = 2
    node.turn("gcs.1", AssignTasks([spec(1)], 1))
    assert node.given() == [] and node.scheduler.submission.assigned == 0
    node.turn("gcs.1", AssignTasks([spec(1)], 2))
    assert node.given() == [(array(1), 0, 1, 3)]


def test_submissions_of_a_former_incarnations_client_wait_for_their_next_owner() -> None:
    """Its parent runs again elsewhere, and claims it from where it was placed."""
    node = Node()
    node.scheduler.submission.incarnation = 2
    node.turn("gcs.1", AssignTasks([spec(1, owner="worker:0.7")], 2))
    [(number, *_)] = node.given()
    assert number == array(1)
    node.ctx.sent.clear()
    node.done(W1, (1, 0, 1))
    [news] = node.ctx.take(TaskUpdates)
    assert news.done == [(array(1), 0, 1, ())]
    node.turn("gcs.1", ForwardResults(array(1), 0, 1, "worker:1.1"))
    [told] = node.ctx.take(TaskResults, "node:1")
    assert [result.array for result in told.results] == [array(1)]


def test_a_task_that_lacked_an_input_runs_for_a_new_local_owner() -> None:
    """The error of a run for a dead parent is no input of what the parent submits again."""
    node = Node(2)
    put, first = object_id(array(9), 0, 0), object_id(array(1), 0, 0)
    node.turn("gcs.1", AssignTasks([spec(1, owner="worker:1.1", deps=(put,))]))
    node.turn("gcs.2", ObjectLocations([Location(put, (), 0, lost=Loss(LossCause.NODE_DIED, 1))]))
    [news] = node.ctx.take(TaskUpdates)
    assert [lost for lost, _ in news.unreconstructable] == [array(1)]
    parent = replace(spec(3, owner="worker:1.1"), extra=TaskExtra(attempt=1))
    node.turn("gcs.1", AssignTasks([parent]))
    # It runs on the other worker.
    assert [number for number, *_ in node.given(W2)] == [array(3)]
    again = [spec(1, owner=W2, deps=(put,)), spec(2, owner=W2, deps=(first,))]
    node.turn(W2, PutObjects([result(9)]), SubmitTasks(again))
    # The GCS does not count on that error any more when it decides about the claim.
    asked = [m for _, m in node.ctx.sent if isinstance(m, ObjectsMissing | ClaimTasks)]
    assert [type(message) for message in asked] == [ObjectsMissing, ClaimTasks]
    # What needs it may be told first: another shard has it.
    node.turn("gcs.2", TasksClaimed(again[1:]))
    node.turn("gcs.1", FreeObjects([array(1)]), TasksClaimed(again[:1]))
    assert node.ctx.take(TaskResults, W2) == []
    assert [number for number, *_ in node.given(W1)] == [array(1)]
    node.done(W1, (1, 0, 1))
    assert [number for number, *_ in node.given(W1)] == [array(2)]


def test_a_lost_input_of_a_dead_local_owners_task_is_not_reported() -> None:
    """It was let go of: what was remembered of it nobody would take back."""
    node = Node()
    put = object_id(array(9), 0, 0)
    node.turn("gcs.1", AssignTasks([spec(1, owner="worker:0.7", deps=(put,))]))
    node.turn("gcs.2", ObjectLocations([Location(put, (), 0, lost=Loss(LossCause.OWNER_DIED))]))
    node.ctx.pass_time(1.0)
    assert node.ctx.take(TaskUpdates) == []
    assert not node.scheduler.log.knows(array(1))


def test_a_new_owner_is_notified_of_an_error_despite_a_local_copy() -> None:
    """Another task here had read the value; the owner's task runs again, and claims it."""
    for status in (OK, USER_ERROR):
        node = Node()
        node.scheduler.objects.add(result(1, status=status, node=1))
        node.scheduler.objects.owners.own(array(1), W1)
        again = result(1, status=USER_ERROR, payload=b"oh", node=1)
        node.turn("node:1", TaskResults(W1, [again]))
        [told] = node.ctx.take(TaskResults, W1)
        assert [each.status for each in told.results] == [status]


def test_objects_of_a_former_incarnations_store_are_lost() -> None:
    """An actor that was rebuilt elsewhere remembers a call that it had answered here before
    the node was started again: its value was taken for what is at that offset now."""
    node = Node()
    node.scheduler.objects.owners.own(array(1), W1)
    before = result(1, node=0, size=100_113, offset=4)
    node.turn("node:1", TaskResults(W1, [before]))
    [told] = node.ctx.take(TaskResults, W1)
    assert [each.status for each in told.results] == [SYSTEM_ERROR]
    assert isinstance(unpack(told.results[0].payload), Loss)


def test_a_lease_holds_what_one_task_needs_and_ends_with_the_last() -> None:
    node = Node(2, GPU=1)
    node.turn(DRIVER, SubmitTasks([spec(1, 0, 4, demand="CPU:1,GPU:1")]))
    assert node.free() == {"CPU": 1, "GPU": 0}
    [worker] = [w for w in node.scheduler.dispatcher.workers.values() if w.state is State.LEASED]
    node.done(worker.address, (1, 0, 3))
    assert node.free() == {"CPU": 1, "GPU": 0}
    node.done(worker.address, (1, 3, 1))
    assert node.free() == {"CPU": 2, "GPU": 1}


def test_a_blocked_worker_gives_up_its_cpu_and_takes_it_back_at_once() -> None:
    node = Node(1, GPU=1)
    node.turn(DRIVER, SubmitTasks([spec(1, demand="CPU:1,GPU:1"), spec(2)]))
    assert node.given(W1) == [(array(1), 0, 1, 3)]
    node.turn(W1, Blocked())
    assert node.free() == {"CPU": 1, "GPU": 0}
    assert len(node.ctx.take(StartWorker)) == 1
    node.turn(W2, WorkerReady(2))
    assert node.given(W2) == [(array(2), 0, 1, 3)]
    node.turn(W1, Unblocked())
    assert len(node.ctx.take(Resume, W1)) == 1
    assert node.free() == {"CPU": 0, "GPU": 0}  # what it says of itself, with two in use
    node.done(W2, (2, 0, 1))
    assert node.free()["CPU"] == 0
    node.done(W1, (1, 0, 1))
    assert node.free() == {"CPU": 1, "GPU": 1}


def test_nothing_begins_until_all_that_runs_fits_again() -> None:
    node = Node(1)
    node.turn(DRIVER, SubmitTasks([spec(1), spec(2, depth=1)]))
    assert node.given(W1) == [(array(1), 0, 1, 3), (array(2), 0, 1, 3)]
    node.turn(W1, TakenBack([(array(2), 0, 1)]), Blocked())
    node.turn(W2, WorkerReady(2))
    assert node.given(W2) == [(array(2), 0, 1, 3)]
    node.turn(W1, Unblocked())
    node.turn(DRIVER, SubmitTasks([spec(3), spec(4)]))
    assert node.given() == []  # nor is it given to those that run, ahead
    node.done(W1, (1, 0, 1))
    assert node.given() == [(array(3), 0, 1, 3), (array(4), 0, 1, 3)]
    assert node.scheduler.pool.free == {"CPU": 0}
    # As soon as it waits again others may have its CPU.
    node = Node(1)
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    node.turn(W1, Blocked(), Unblocked(), Blocked())
    node.turn(DRIVER, SubmitTasks([spec(2, depth=1)]))
    assert len(node.ctx.take(StartWorker)) == 1


def test_fractions_of_a_cpu_run_side_by_side() -> None:
    world = World(1, seed=1)
    driver = world.driver()
    steps = [{"do": "call", "body": {"s": 1.0}, "demand": "CPU:0.25"} for _ in range(4)]
    start_s = world.time_s
    driver.call(run_program(driver, steps))
    assert world.time_s - start_s < 2.0


def test_a_task_without_a_cpu_does_not_take_a_cpu_s_worker() -> None:
    world = World(1, seed=1)
    driver = world.driver()

    def program() -> Code:
        [long] = driver.submit({"s": 9.0}, demand="")
        yield 0.1
        [short] = driver.submit({"s": 0.1})
        start_s = world.time_s
        yield from driver.get([short.oid])
        took_s = world.time_s - start_s
        long.drop()
        short.drop()
        return took_s

    assert driver.call(program()) < 5.0, "the short task waited for the long one"


def test_tasks_without_a_cpu_do_not_start_a_worker_each_for_ever() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, 0, 1_000_000, demand="")]))
    node.turn(DRIVER, SubmitTasks([spec(2, demand="")]))
    assert len(node.ctx.take(StartWorker)) <= WORKERS_WITHOUT_CPU_MAX


def test_a_task_without_a_cpu_gets_a_worker_despite_many_such_actors() -> None:
    """These keep their workers for as long as they live, and are no tasks."""
    node = Node()
    actors = [
        replace(spec(9 + n, demand=""), extra=TaskExtra(actor=ActorInfo())) for n in range(64)
    ]
    assert len(actors) >= WORKERS_WITHOUT_CPU_MAX
    node.turn("global", AssignTasks(actors, 1))
    started = node.ctx.take(StartWorker)
    for message in started:
        node.turn(message.worker, WorkerReady(1))
    assert len(node.given()) == len(actors)
    node.turn(DRIVER, SubmitTasks([spec(1, demand="")]))
    assert len(node.ctx.take(StartWorker)) == 1


def test_an_assignment_that_crosses_with_blocked_is_given_back() -> None:
    # A parent submits a child, which is dispatched to its own worker at the
    # moment at which it begins to wait for the child.
    world = World(1, seed=1, delay_s=1e-3, jitter=0.0)
    driver = world.driver()
    world.run(for_s=0.1)
    world.nodes[0].leases.times.means[FUNCTION] = 1e-5
    inner = [
        {"do": "call", "body": {"salt": 1}},
        {"do": "sleep", "s": 1.5e-3},
        {"do": "get", "step": 0},
    ]
    steps = [{"do": "call", "body": {"salt": 2, "steps": inner}}]
    assert driver.call(run_program(driver, steps)) == sequential(steps)
    returned = [(t, m) for t, s, _, m in world.trace if isinstance(m, TakenBack)]
    assert returned, "the messages did not cross"


def test_short_tasks_behind_a_long_one_are_taken_back() -> None:
    world = World([{"CPU": 2.0}], seed=1)
    driver = world.driver()
    world.run(for_s=0.1)
    world.nodes[0].leases.times.means[FUNCTION] = 1e-5
    steps = [{"do": "call", "body": {"s": 2.0}}] + [
        {"do": "call", "body": {"salt": n}} for n in range(20)
    ]
    driver.call(run_program(driver, steps))
    assert any(isinstance(m, TakeBack) for *_, m in world.trace)
    times = sorted(t for t, s, _, m in world.trace if isinstance(m, TasksDone) for _ in m.results)
    assert times[-2] < times[-1] - 1.0, "a short task waited for the long one"


def test_work_given_back_twice_is_removed_once() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1), spec(2, 0, 4)]))
    # A task that runs twice may bring the same range here twice.
    worker = node.scheduler.dispatcher.workers[W1]
    worker.assigned.append(spec(2, 0, 4))
    node.scheduler.leases.assigned += 4
    node.turn(W1, Blocked(), TakenBack([(array(2), 0, 4), (array(2), 0, 4)]))
    assert [s.array for s in worker.assigned] == [array(1)]
    assert node.scheduler.leases.assigned == 1
    assert sorted((s.array, s.start, s.count) for s in ready(node)) == [(array(2), 0, 4)] * 2


def test_an_actor_keeps_its_worker_when_that_answers_for_its_lease_before() -> None:
    """The worker was lent out once more: what it was given ended, unseen, with the actor."""
    node = Node()
    worker = node.scheduler.dispatcher.workers[W1]
    creation = replace(spec(1), extra=TaskExtra(actor=ActorInfo(0)))
    node.turn("global", AssignTasks([creation]))
    assert worker.actor == array(1)
    node.turn(W1, TakenBack([]))
    node.turn(DRIVER, SubmitTasks([spec(2)]))
    assert worker.state is State.LEASED
    assert node.free() == {"CPU": 0.0}
    assert not worker.assigned


def test_the_tail_of_the_running_range_comes_back() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, 0, 10), spec(2)]))
    node.done(W1, (1, 0, 2))
    node.turn(W1, TakenBack([(array(1), 5, 5), (array(2), 0, 1)]), Blocked())
    [kept] = node.scheduler.dispatcher.workers[W1].assigned
    assert (kept.start, kept.count) == (2, 3)
    assert [(s.array, s.start, s.count) for s in ready(node)] == [
        (array(1), 5, 5), (array(2), 0, 1),
    ]  # fmt: skip


def test_children_that_come_back_are_kept_or_passed_on_as_it_is_now() -> None:
    """What the node was like when others of them came back is no longer true."""
    node = Node()
    for number in (1, 2):
        node.scheduler.objects.owners.own(array(number), DRIVER)
    node.turn("gcs", TasksClaimed([spec(1)]))
    assert node.given(W1) == [(array(1), 0, 1, 3)]
    node.turn("gcs", NodeChanged(NodeInfo(1, "host", 1, {"CPU": 1})))
    node.turn("gcs", TasksClaimed([spec(2, 0, 1_000_000)]))
    [passed_on] = node.ctx.take(PlaceTasks)
    assert passed_on.tasks[0].array == array(2), "this node was alone before"


# -- inputs and errors ---------------------------------------------------------


def test_an_input_that_its_owner_released_fails_the_task_and_not_the_node() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    node.done(W1, (1, 0, 1))
    needed = (object_id(array(1), 0, 0),)
    node.turn(DRIVER, SubmitTasks([spec(2, 0, 2), spec(3, depth=1, deps=needed)]))
    node.turn(W1, Blocked(), TakenBack([(array(3), 0, 1)]))
    node.ctx.sent.clear()
    node.turn(DRIVER, Release([array(1)]))
    node.turn(W2, WorkerReady(2))
    results = [r for m in node.ctx.take(TaskResults, DRIVER) for r in m.results]
    assert [(r.array, r.status) for r in results] == [(array(3), SYSTEM_ERROR)]
    assert isinstance(unpack(results[0].payload), Loss)
    assert node.free() == {"CPU": 1}


def test_an_error_goes_down_a_long_chain() -> None:
    world = World(1, seed=1)
    driver = world.driver()
    steps: list[dict[str, Any]] = [{"do": "call", "body": {"s": 0.1, "fail": "the first"}}]
    steps += [{"do": "call", "body": {}, "deps": [[n, 0]]} for n in range(1500)]
    try:
        driver.call(run_program(driver, steps))
    except TaskFailed as error:
        assert error.text == "the first"
    else:
        raise AssertionError("the error was lost")
    world.run(for_s=2.0)
    assert not leftovers(world)


def test_the_gcs_does_not_free_an_array_that_a_local_client_made_again() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    node.turn("gcs", FreeObjects([array(1)]))
    node.done(W1, (1, 0, 1))
    assert len(node.ctx.take(TaskResults, DRIVER)) == 1


def test_units_are_the_pool_s_own() -> None:
    assert NodeManager(Alone(), 0, {"CPU": 1.5}, Config()).pool.total == {"CPU": units(1.5)}


# -- many actors ---------------------------------------------------------------


def test_a_ready_worker_does_not_make_the_node_look_at_all_queued_actors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actors = 300
    looked = 0
    fits = ResourcePool.fits

    def counted(pool: ResourcePool, demand: str) -> bool:
        nonlocal looked
        looked += 1
        return fits(pool, demand)

    monkeypatch.setattr(ResourcePool, "fits", counted)
    node = Node(1)
    creations = [spec(number, demand="") for number in range(actors)]
    for creation in creations:
        creation.extra = TaskExtra(actor=ActorInfo())
    node.turn("global", AssignTasks(creations))
    started = [message.worker for message in node.ctx.take(StartWorker)]
    assert len(started) == actors - 1  # one worker was idle
    # One that dies before it was ready is replaced, and counted once.
    node.turn("pool:0", WorkerDied(started.pop(), "killed"))
    started += [message.worker for message in node.ctx.take(StartWorker)]
    assert len(started) == actors - 1
    for worker in started:
        node.turn(worker, WorkerReady(1))
    given = {assignment[0] for assignment in node.given()}
    assert given == {array(number) for number in range(actors)}
    assert not node.ctx.take(StartWorker)
    assert looked < 10 * actors
