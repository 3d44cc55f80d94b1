"""A worker dies, in every state, with all of its work, once."""

from __future__ import annotations

from raytwin.runtime.control.messages import (
    SYSTEM_ERROR,
    Blocked,
    Resume,
    StartWorker,
    SubmitTasks,
    TakenBack,
    TaskResults,
    TasksDone,
    Unblocked,
    WorkerDied,
    WorkerReady,
)
from raytwin.runtime.control.messages.errors import WorkerCrash, unpack
from tests.control.alone import array, spec
from tests.control.bodies import run_program, sequential
from tests.control.leftovers import leftovers
from tests.control.one_node import DRIVER, W1, Node, ready
from tests.control.world import World


def test_the_running_range_is_retried_one_by_one_the_others_lose_nothing() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, 0, 3), spec(2, 0, 2), spec(3, retries=0)]))
    node.turn("pool:0", WorkerDied(W1, "killed"))
    assert node.free() == {"CPU": 1} and node.scheduler.leases.assigned == 0
    assert len(node.ctx.take(StartWorker)) == 1
    assert [(s.array, s.start, s.count, s.retries) for s in ready(node)] == [
        (array(1), 0, 1, 2), (array(1), 1, 1, 2), (array(1), 2, 1, 2),
        (array(2), 0, 2, 3), (array(3), 0, 1, 0),
    ]  # fmt: skip


def test_infinite_retries_stay_so_and_none_is_an_error() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, retries=-1)]))
    node.turn("pool:0", WorkerDied(W1, "killed"))
    assert [s.retries for s in ready(node)] == [-1]
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1, retries=0)]))
    node.turn("pool:0", WorkerDied(W1, "out of memory"))
    [message] = node.ctx.take(TaskResults, DRIVER)
    [failed] = message.results
    assert failed.status == SYSTEM_ERROR
    assert unpack(failed.payload) == WorkerCrash("task1", W1, "out of memory")
    assert node.scheduler.queue == 0


def test_a_worker_dies_in_every_state() -> None:
    for steps in ([], [Blocked()], [Blocked(), Unblocked()]):
        node = Node(1, GPU=1)
        node.turn(DRIVER, SubmitTasks([spec(1, demand="CPU:1,GPU:1")]))
        node.turn(W1, *steps)
        if len(steps) == 2:  # back in its CPU already: take it from another
            assert len(node.ctx.take(Resume, W1)) == 1
        node.turn("pool:0", WorkerDied(W1, "killed"))
        assert node.free() == {"CPU": 1, "GPU": 1}, steps
        assert W1 not in node.scheduler.dispatcher.workers
    node = Node()
    node.turn("pool:0", WorkerDied(W1, "killed"))
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    assert node.given(W1) == []


def test_messages_of_a_worker_after_its_death_are_ignored() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    node.turn("pool:0", WorkerDied(W1, "killed"))
    late = [WorkerReady(1), Blocked(), Unblocked(), TakenBack([(array(1), 0, 1)])]
    node.turn(W1, *late, SubmitTasks([spec(7, owner=W1)]))
    node.done(W1, (1, 0, 1))
    assert array(7) not in node.scheduler.objects.owners
    assert W1 not in node.scheduler.dispatcher.workers
    assert node.ctx.take(TaskResults) == []
    assert node.scheduler.queue == 1  # array 1 waits for its second run


def test_the_children_of_a_retried_parent_run_once() -> None:
    world = World(3, seed=5)
    driver = world.driver()
    world.run(for_s=0.1)
    inner = [{"do": "map", "bodies": [{"salt": n, "s": 0.3} for n in range(6)], "chunk": 2}]
    steps = [{"do": "call", "body": {"salt": 1, "steps": inner}}]

    def kill() -> None:
        [parent] = [a for a, shell in world.shells.items() if shell.waits]
        world.kill_worker(parent)

    world.at(0.15, kill)
    assert driver.call(run_program(driver, steps)) == sequential(steps)
    world.run(for_s=2.0)
    assert not leftovers(world)
    ran = [r.array for *_, m in world.trace if isinstance(m, TasksDone)
           for r in m.results for _ in range(r.count)]  # fmt: skip
    assert len(ran) == 7
