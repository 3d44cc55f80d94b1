"""Calls that a driver sends to an actor's worker itself: each runs once, and in order."""

from __future__ import annotations

import random
from itertools import permutations
from typing import Any

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.direct_calls import (
    ARGS_BYTES_MAX,
    OPEN_MAX,
    DirectCalls,
    DirectWays,
)
from raytwin.runtime.control.messages import (
    NOT_BEGUN,
    OK,
    Assignment,
    CancelTask,
    DirectCall,
    DirectOpen,
    KillActor,
    Release,
    RunTasks,
    SubmitTasks,
    TaskExtra,
    TaskResults,
    TasksDone,
    TaskSpec,
)
from raytwin.runtime.control.worker.executor import Executor
from tests.control.alone import Alone, array, spec
from tests.control.programs import random_world
from tests.control.shell import Shell
from tests.control.test_actors import DIED, Told, check, kill_processes, outcome_of
from tests.control.test_system import SETTLE_S, settle
from tests.control.values import Code
from tests.control.worker import Worker
from tests.control.world import World

DRIVER, NODE, WORKER = "driver:0.0", "node:0", "worker:0.1"
ACTOR = array(99)


def call(number: int, args: bytes = b"", ahead: bool = True) -> TaskSpec:
    extra = TaskExtra(call=ACTOR, method="add", ahead=ahead)
    return replace(spec(number, owner=DRIVER), args=args, extra=extra)


# -- who runs it -----------------------------------------------------------------


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("order", [*permutations(["driver", "node"])])
def test_of_two_messages_one_counts_and_nothing_is_remembered(
    free: bool, order: tuple[str, ...]
) -> None:
    calls = DirectCalls()
    runs = [calls.directly(b"c", free) if who == "driver" else calls.by_node(b"c") for who in order]
    assert sum(runs) == 1
    assert runs[0] == (free or order[0] == "node")
    assert not calls


def made() -> tuple[Alone, Executor]:
    ctx = Alone()
    executor = Executor(ctx, 0, Config(linger_s=1.0, direct_after=2))
    executor.direct_to, executor.actor = DRIVER, True
    executor.pack = lambda values: repr(values).encode()
    return ctx, executor


def answer(executor: Executor) -> None:
    assignment = executor.next()
    assert assignment is not None
    executor.report_plain(assignment.spec, 1, 16, 0.0, 0.0)


def test_it_is_offered_after_a_number_of_answers_and_once() -> None:
    ctx, executor = made()
    opened = []
    executor.open_way = lambda: opened.append(len(ctx.sent))
    for number in range(1, 6):
        executor.handle(NODE, RunTasks([Assignment(call(number, ahead=False))]))
        answer(executor)
    assert [m.actor for m in ctx.take(DirectOpen, DRIVER)] == [ACTOR]
    assert len(opened) == 1


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize("after", [0, 2])
def test_it_is_not_offered_where_it_cannot_be(concurrent: bool, after: int) -> None:
    ctx, executor = made()
    executor.config = replace(executor.config, direct_after=after)
    for number in range(1, 6):
        executor.handle(NODE, RunTasks([Assignment(call(number, ahead=False))]))
        answer(executor)
        executor.concurrent = concurrent
    assert bool(ctx.take(DirectOpen, DRIVER)) == (not concurrent and after > 0)


def test_a_busy_actor_leaves_it_to_the_node() -> None:
    _, executor = made()
    executor.handle(NODE, RunTasks([Assignment(replace(call(1), owner="worker:0.9"))]))
    assert executor.next() is not None
    executor.handle(DRIVER, DirectCall(call(2)))
    assert not executor.queue
    executor.handle(NODE, RunTasks([Assignment(call(2))]))
    assert [assignment.spec.array for assignment in executor.queue] == [array(2)]


def test_both_hear_of_the_result_the_node_first() -> None:
    ctx, executor = made()
    executor.handle(DRIVER, DirectCall(call(1)))
    answer(executor)
    assert [(to, type(m)) for to, m in ctx.sent] == [(NODE, TasksDone), (DRIVER, TaskResults)]
    executor.handle(NODE, RunTasks([Assignment(call(1))]))
    assert executor.next() is None and not executor.direct


def test_a_call_that_came_ahead_is_reported_by_itself() -> None:
    """Its node may have heard of the call behind it alone."""
    ctx, executor = made()
    executor.flush()
    for number in range(2, 5):
        ahead = number == 3
        executor.handle(NODE, RunTasks([Assignment(call(number, ahead=ahead))]))
    executor.handle(NODE, RunTasks([Assignment(call(5, ahead=False))]))
    for _ in range(4):
        answer(executor)
    found = [r for done in ctx.take(TasksDone) for r in done.results]
    assert [r.array for r in found if not r.calls] == [array(n) for n in (2, 3, 4, 5)]


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("begins", [1, 2, 3])
def test_cancelled_it_runs_or_has_not_begun_and_nothing_is_remembered(at: int, begins: int) -> None:
    """Its driver's message comes at any time, its node's one after the other."""
    ctx, executor = made()
    messages: list[tuple[str, Any]] = [
        (NODE, RunTasks([Assignment(call(1))])),
        (NODE, CancelTask(array(1), 0, 1, False, False)),
    ]
    messages.insert(at, (DRIVER, DirectCall(call(1))))
    ran = 0
    for number, (source, message) in enumerate(messages, 1):
        executor.handle(source, message)
        if number >= begins and executor.queue:
            answer(executor)
            ran += 1
    [report] = [r for done in ctx.take(TasksDone) for r in done.results]
    assert report.status == (OK if ran else NOT_BEGUN)
    assert not executor.direct and executor.next() is None


# -- which calls go ahead --------------------------------------------------------


def test_ways_are_bounded_and_end_with_their_workers() -> None:
    ways = DirectWays()
    assert not ways
    for number in range(OPEN_MAX + 1):
        ways.opened(array(number), f"worker:0.{number}")
    spec_of = [replace(call(1), extra=TaskExtra(call=array(n))) for n in range(OPEN_MAX + 1)]
    assert [ways.worker_for(each) for each in spec_of] == [
        *(f"worker:0.{number}" for number in range(OPEN_MAX)),
        "",
    ]
    assert not ways.worker_for(replace(spec_of[0], args=bytes(ARGS_BYTES_MAX + 1)))
    ways.closed("worker:0.3")
    ways.forget(array(4))
    assert not ways.worker_for(spec_of[3]) and not ways.worker_for(spec_of[4])
    assert ways.worker_for(spec_of[5])


def conversation(shell: Shell) -> Code:
    """Generator: create an actor and call it until it takes calls directly."""
    actor = shell.create_actor()
    for tag in range(3):
        ref = shell.tell(actor.oid, {"tag": tag})
        yield from outcome_of(shell, ref)
        ref.drop()
    return actor


def quiet(**settings: object) -> tuple[World, Shell]:
    world = World(1, config=Config(direct_after=1), direct_to=DRIVER, jitter=0.0)
    return world, world.driver(0)


def sent_ahead(world: World) -> list[bytes]:
    return [m.spec.array for _, _, _, m in world.trace if type(m) is DirectCall]


def test_a_lone_call_goes_ahead_and_its_node_is_told_so() -> None:
    world, driver = quiet()
    actor = driver.call(conversation(driver))
    before = len(sent_ahead(world))
    ref = driver.tell(actor.oid, {"tag": 7})
    driver.call(outcome_of(driver, ref))
    ahead = sent_ahead(world)
    assert len(ahead) == before + 1
    submitted = [t for _, _, _, m in world.trace if type(m) is SubmitTasks for t in m.tasks]
    of_it = [t.extra for t in submitted if t.array == ahead[-1]]
    assert [extra is not None and extra.ahead for extra in of_it] == [True]


def test_what_could_overtake_another_call_does_not_go_ahead() -> None:
    world, driver = quiet()
    actor = driver.call(conversation(driver))
    before = len(sent_ahead(world))
    slow = driver.tell(actor.oid, {"tag": 7, "s": 0.5})
    world.run(for_s=0.1)
    refs = [driver.tell(actor.oid, {"tag": tag}) for tag in (8, 9)]
    for ref in (slow, *refs):
        driver.call(outcome_of(driver, ref))
    assert len(sent_ahead(world)) == before + 1, "the slow one, and none behind it"
    read, _ = driver.call(outcome_of(driver, driver.tell(actor.oid, {"read": 1})))
    assert read["history"] == [0, 1, 2, 7, 8, 9]


def test_nothing_goes_ahead_of_a_kill() -> None:
    world, driver = quiet()
    actor = driver.call(conversation(driver))
    before = len(sent_ahead(world))
    driver.client.submitter.kill_actor(actor.oid[: len(ACTOR)], False)
    _, error = driver.call(outcome_of(driver, driver.tell(actor.oid, {"tag": 7})))
    assert error == DIED
    assert len(sent_ahead(world)) == before
    assert [m for _, _, to, m in world.trace if type(m) is KillActor and to == "gcs"]


def test_what_goes_ahead_can_be_cancelled() -> None:
    world, driver = quiet()
    actor = driver.call(conversation(driver))
    for tag in (7, 8, 9):
        before = len(sent_ahead(world))
        ref = driver.tell(actor.oid, {"tag": tag})
        driver.client.submitter.cancel(ref.oid, False, False)
        _, error = driver.call(outcome_of(driver, ref))
        assert len(sent_ahead(world)) == before + 1
        assert error in ("", CANCELLED)
    assert [m for _, _, to, m in world.trace if type(m) is CancelTask and to.startswith("worker")]
    world.run(for_s=SETTLE_S)
    assert not left_of_ways(world)
    assert world.nodes[0].actors.actors, "it lives"


def test_a_value_can_be_let_go_of_before_the_node_has_heard_of_the_call() -> None:
    world, driver = quiet()
    actor = driver.call(conversation(driver))
    for tag in range(10, 30):
        ref = driver.tell(actor.oid, {"tag": tag})
        driver.call(outcome_of(driver, ref))
        ref.drop()
    actor.drop()
    assert not settle(world, SETTLE_S)
    assert [m for _, _, _, m in world.trace if type(m) is Release]


# -- random delays and faults ------------------------------------------------------


CANCELLED = "TaskCancelledError"


def left_of_ways(world: World) -> list[object]:
    """Return what is remembered of calls of which half was heard."""
    nodes = world.nodes.values()
    actors = [actor for node in nodes for actor in node.actors.actors.values()]
    workers = [shell for shell in world.shells.values() if isinstance(shell, Worker)]
    return [
        *(reports for actor in actors if (reports := actor.unclaimed)),
        *(halves for worker in workers if (halves := worker.executor.direct._halves)),
    ]


def chat(shell: Shell, rng: random.Random, restarts: list[int]) -> Code:
    """Generator: call actors, wait for many of the calls one at a time, cancel some of them;
    return `Told`s."""
    told = []
    for _ in range(rng.randint(1, 3)):
        allowed = rng.choice(restarts)
        told.append(Told(shell.create_actor(restarts=allowed), allowed, 0))
    for tag in range(rng.randint(20, 60)):
        actor = rng.choice(told)
        if rng.random() < 0.15:
            (ref,) = shell.submit({"tell": [[actor.ref.oid, tag, 0, actor.restarts, 0]]})
            actor.tasks.append(([tag], ref))
            continue
        body = {"tag": tag, **({"s": 0.01} if rng.random() < 0.1 else {})}
        ref = shell.tell(actor.ref.oid, body, restarts=actor.restarts)
        actor.calls.append((tag, ref))
        if rng.random() < 0.2:
            if rng.random() < 0.3:
                yield rng.choice([0.0, 0.001, 0.01])
            _, unwanted = rng.choice(actor.calls[-2:])
            shell.client.submitter.cancel(unwanted.oid, False, False)
        if rng.random() < 0.8:
            _, actor.outcome[tag] = yield from outcome_of(shell, ref)
        elif rng.random() < 0.3:
            yield rng.choice([0.0, 0.001, 0.02])
    for actor in told:
        for tag, ref in actor.calls:
            if tag not in actor.outcome:
                _, actor.outcome[tag] = yield from outcome_of(shell, ref)
            ref.drop()
        for tags, ref in actor.tasks:
            _, error = yield from outcome_of(shell, ref)
            ref.drop()
            actor.outcome[tags[0]] = error and f"task:{error}"
        last = shell.tell(actor.ref.oid, {"read": 1}, restarts=actor.restarts)
        read, _ = yield from outcome_of(shell, last)
        actor.history = read and read["history"]
        last.drop()
    # Of every call both messages have come, and nothing is left of it but the actor.
    yield SETTLE_S
    assert not left_of_ways(shell.world)
    for actor in told:
        actor.ref.drop()
    return told


@pytest.mark.parametrize("die", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_each_call_takes_effect_once_and_in_order(seed: int, die: bool) -> None:
    world, rng = random_world(seed, direct_to=DRIVER, direct_after=1)
    driver = world.driver(0)
    if die:
        kill_processes(world, rng, 5)
    told: list[Told] = driver.call(chat(driver, rng, [0, 0, 0, -1]))
    errors = {DIED, "ActorUnavailableError"}
    allowed = errors | {f"task:{name}" for name in errors} | {"task:WorkerCrashedError"}
    for actor in told:
        # What was cancelled is no part of the actor's state.
        check(actor, {CANCELLED} | (allowed if die else set()))
    assert not settle(world, SETTLE_S)


def test_the_random_runs_do_send_calls_ahead_and_cancel_some() -> None:
    ahead = cancelled = ended = 0
    for seed in range(20):
        world, rng = random_world(seed, direct_to=DRIVER, direct_after=1)
        driver = world.driver(0)
        told = driver.call(chat(driver, rng, [0]))
        sent = set(sent_ahead(world))
        ahead += len(sent)
        cancels = [m for _, _, _, m in world.trace if type(m) is CancelTask]
        cancelled += len({m.array for m in cancels} & sent)
        ended += sum(CANCELLED in actor.outcome.values() for actor in told)
    assert ahead > 20 and cancelled > 20 and ended > 5
