"""Batches of calls: which operations take whole batches, and which single calls."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from raytwin.runtime.control.actors.pending_calls import PendingCalls
from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.core.call_batches import (
    BATCH_MAX,
    args_bytes,
    arrays_of,
    batch_of,
    batch_of_results,
    is_batch,
    results_of,
    singles,
    split,
)
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.gcs.actor_table import ALIVE, DEAD, PENDING
from raytwin.runtime.control.messages import (
    NOT_BEGUN,
    OK,
    ActorCalls,
    ActorChanged,
    Assignment,
    CancelCall,
    CancelTask,
    RangeResult,
    Release,
    RunTasks,
    SubmitTasks,
    TaskExtra,
    TaskResults,
    TasksDone,
    TaskSpec,
    Timing,
)
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause
from raytwin.runtime.control.objects.node_objects import NodeObjects
from raytwin.runtime.control.worker.executor import Executor
from tests.control.alone import Alone, array, result
from tests.control.alone import spec as task
from tests.control.programs import random_world
from tests.control.shell import Shell
from tests.control.test_actors import (
    DIED,
    FOREVER,
    SETTLE_S,
    WORKERS_DIED,
    Told,
    check,
    conclude,
    kill_processes,
    settle,
)
from tests.control.values import Code

NODE, OWNER = "node:0", "driver:0.0"
ACTOR = array(999)
FIRST = bytes(6)
EXTRA = TaskExtra(call=ACTOR, method="add")


def call(number: int, args: bytes = b"args", extra: TaskExtra = EXTRA) -> TaskSpec:
    return TaskSpec(array(number), 0, 1, b"", args, OWNER, "", (), 1, 3, -1, "A.add", extra)


def run(*numbers: int) -> TaskSpec:
    args = [b"%d" % number for number in numbers]
    return batch_of(call(0), EXTRA, [array(number) for number in numbers], args)


def answers(*numbers: int) -> RangeResult:
    payload = msgspec.msgpack.encode(list(numbers))
    return batch_of_results([array(number) for number in numbers], payload, 0)


# -- the parts ------------------------------------------------------------------


def test_a_batch_contains_its_calls() -> None:
    made = run(3, 4, 5)
    assert is_batch(made) and made.count == 3
    assert arrays_of(made) == (array(3), array(4), array(5))
    apart = singles([call(1), made, call(9)])
    assert [one.array for one in apart] == [array(n) for n in (1, 3, 4, 5, 9)]
    assert apart[1:4] == [call(n, b"%d" % n) for n in (3, 4, 5)]
    assert args_bytes(made) > args_bytes(apart[1])


def test_one_call_is_no_batch() -> None:
    assert run(7) == call(7, b"7")
    bare = batch_of(call(0), EXTRA, [array(1), array(2)], [b"", b""])
    assert bare.extra is not None and bare.extra.batch is not None and bare.extra.batch.args == ()
    assert [one.args for one in singles([bare])] == [b"", b""]


def test_results_one_by_one_say_where_their_value_is() -> None:
    found = results_of(answers(5, 6, 7))
    assert [(one.array, one.position, one.calls) for one in found] == [
        (array(5), 0, b""), (array(6), 1, b""), (array(7), 2, b""),
    ]  # fmt: skip
    assert answers(5).calls == b""


# -- the client -----------------------------------------------------------------


def made_client() -> tuple[Alone, Client]:
    ctx = Alone()
    client = Client(ctx, OWNER, 0, Config())
    client.submitter.submit(array(0), [task(0)], 1, 1)  # this one leaves at once
    ctx.take(SubmitTasks)
    return ctx, client


def make_call(client: Client, number: int, extra: TaskExtra = EXTRA) -> None:
    client.submitter.call(array(number), extra, extra.method, 3, b"%d" % number, ACTOR + FIRST)
    client.references.add_ref(array(number) + FIRST)


def test_other_submissions_keep_their_order_between_calls() -> None:
    ctx, client = made_client()
    other = TaskExtra(call=ACTOR, method="other")
    for number in (1, 2):
        make_call(client, number)
    client.submitter.submit(array(3), [task(3)], 1, 1)
    make_call(client, 4)
    make_call(client, 5, other)
    make_call(client, 6)
    make_call(client, 7)
    client.buffer.flush()
    [message] = ctx.take(SubmitTasks)
    assert [is_batch(spec) for spec in message.tasks] == [True, False, False, False, True]
    assert [s.array for s in singles(message.tasks)] == [array(n) for n in range(1, 8)]
    assert singles(message.tasks)[4].name == "other"


def test_a_batch_has_a_limit() -> None:
    ctx, client = made_client()
    for number in range(1, BATCH_MAX + 3):
        make_call(client, number)
    [message] = ctx.take(SubmitTasks)
    assert [spec.count for spec in message.tasks] == [BATCH_MAX]
    ctx.pass_time(client.config.linger_s)
    [message] = ctx.take(SubmitTasks)
    assert [spec.count for spec in message.tasks] == [2]


def test_each_call_is_released_on_its_own_and_the_actor_after_the_last() -> None:
    ctx, client = made_client()
    client.submitter.submit(ACTOR, [task(999)], 1, 1)
    client.references.add_ref(ACTOR + FIRST)
    client.handle(NODE, TaskResults(OWNER, [result(999)]))
    for number in (1, 2, 3):
        make_call(client, number)
    client.references.drop_ref(ACTOR + FIRST)
    waiter = client.waits.watch([array(2) + FIRST, array(3) + FIRST])
    client.references.drop_ref(array(1) + FIRST)
    client.buffer.flush()
    assert ctx.take(Release) == [], "they are not done, and hold their actor"
    client.handle(NODE, TaskResults(OWNER, [answers(1, 2)]))
    assert waiter.missing == 1
    value = client.waits.value(array(2) + FIRST)
    assert value is not None and msgspec.msgpack.decode(value.payload)[value.position] == 2
    ctx.pass_time(client.config.linger_s)
    assert [m.arrays for m in ctx.take(Release)] == [[array(1)]]
    client.handle(NODE, TaskResults(OWNER, [result(3)]))
    ctx.pass_time(client.config.linger_s)
    assert [m.arrays for m in ctx.take(Release)] == [[ACTOR]]
    client.handle(NODE, TaskResults(OWNER, [answers(1, 2, 3)]))  # once more: nothing changes
    value = client.waits.value(array(2) + FIRST)
    assert value is not None and value.position == 1


# -- the submitter -----------------------------------------------------------------


def made_submitter() -> tuple[Alone, PendingCalls, list[RangeResult]]:
    ctx = Alone()
    failed: list[RangeResult] = []
    submitter = PendingCalls(
        ctx, 0, lambda calls: ctx.send("here", calls),
        lambda error, owner: failed.append(error), lambda actor, reason: None,
        lambda message: ctx.send("here", message),
    )  # fmt: skip
    submitter.watch(ACTOR)
    submitter.on_changed(ActorChanged(ACTOR, ALIVE, 0, 0))
    return ctx, submitter, failed


def submit(submitter: PendingCalls, made: TaskSpec) -> None:
    submitter.submit_batch(made, arrays_of(made))


def test_a_batch_is_sent_whole_and_resent_call_by_call() -> None:
    ctx, submitter, failed = made_submitter()
    submit(submitter, run(1, 2, 3, 4))
    submitter.end_turn()
    [sent] = ctx.take(ActorCalls)
    assert [is_batch(spec) for spec in sent.tasks] == [True]
    assert submitter.all_received([array(1), array(3)])
    assert not submitter.all_received([array(2), array(3)]), "one has come before"
    submitter.on_changed(ActorChanged(ACTOR, ALIVE, 0, 1))
    submitter.end_turn()
    [sent] = ctx.take(ActorCalls)
    assert [(s.array, s.args, s.retries) for s in sent.tasks] == [
        (array(2), b"2", 2), (array(4), b"4", 2),
    ]  # fmt: skip
    assert failed == []


def test_calls_of_a_batch_fail_after_the_actors_death() -> None:
    _, submitter, failed = made_submitter()
    submit(submitter, run(1, 2, 3))
    submitter.end_turn()
    assert submitter.received(array(2))
    submitter.on_changed(ActorChanged(ACTOR, DEAD, 0, 0, ActorDeath(DeathCause.KILLED)))
    submit(submitter, run(4, 5))
    assert [error.array for error in failed] == [array(n) for n in (1, 3, 4, 5)]


def test_one_call_of_a_batch_is_cancelled_before_and_after_sending() -> None:
    ctx, submitter, failed = made_submitter()
    submit(submitter, run(1, 2, 3))
    assert submitter.cancel(array(2))
    submitter.end_turn()
    assert [s.array for m in ctx.take(ActorCalls) for s in m.tasks] == [
        array(1),
        array(2),
        array(3),
    ]
    assert submitter.cancel(array(3))
    assert ctx.take(CancelCall) == [CancelCall(ACTOR, array(2)), CancelCall(ACTOR, array(3))]
    assert failed == [], "the actor's worker alone knows whether they have begun"


def test_a_call_that_may_have_begun_is_cancelled_by_its_actor_as_soon_as_that_lives() -> None:
    """The actor starts anew, and has the call logged, maybe."""
    ctx, submitter, failed = made_submitter()
    submit(submitter, run(1, 2))
    submitter.end_turn()
    submitter.on_changed(ActorChanged(ACTOR, PENDING, -1, 1))
    submit(submitter, run(3))
    assert submitter.cancel(array(2)) and submitter.cancel(array(3))
    assert [error.array for error in failed] == [array(3)], "it has never left"
    ctx.sent.clear()
    submitter.on_changed(ActorChanged(ACTOR, ALIVE, 0, 1))
    submitter.end_turn()
    [calls, cancel] = [message for _, message in ctx.sent]
    assert [s.array for s in calls.tasks] == [array(1), array(2)]
    assert cancel == CancelCall(ACTOR, array(2)) and len(failed) == 1


# -- the worker -----------------------------------------------------------------


def made_executor() -> tuple[Alone, Executor]:
    ctx = Alone()
    executor = Executor(ctx, 0, Config(inline_bytes_max=1000))
    executor.actor = True
    executor.pack = msgspec.msgpack.encode
    executor.flush()
    return ctx, executor


def answer(executor: Executor, value: Any, nbytes: int = 16) -> None:
    assert executor.running is not None
    executor.report_plain(executor.running, value, nbytes, 0.0, 0.0)
    executor.next()


def test_plain_results_travel_together_and_others_stay_in_their_place() -> None:
    ctx, executor = made_executor()
    executor.handle(NODE, RunTasks([Assignment(run(1, 2, 3, 4, 5))]))
    executor.next()
    answer(executor, "a")
    answer(executor, "b")
    executor.report(result(3), Timing("A.add", 0.0, 0.1, 1))
    executor.next()
    answer(executor, "c")
    answer(executor, "d")
    [done] = ctx.take(TasksDone)
    assert [split(r.calls) or r.array for r in done.results] == [
        (array(1), array(2)), array(3), (array(4), array(5)),
    ]  # fmt: skip
    assert msgspec.msgpack.decode(done.results[2].payload) == ["c", "d"]
    assert [timing.count for timing in done.timings] == [2, 1, 2]


def test_batched_results_fit_into_a_message() -> None:
    ctx, executor = made_executor()
    executor.handle(NODE, RunTasks([Assignment(run(*range(1, 6)))]))
    executor.next()
    for number in range(5):
        answer(executor, number, nbytes=400)
    [done] = ctx.take(TasksDone)
    assert [timing.count for timing in done.timings] == [2, 2, 1]


def test_a_call_in_the_middle_that_has_not_begun_is_taken_back() -> None:
    ctx, executor = made_executor()
    executor.handle(NODE, RunTasks([Assignment(run(1, 2, 3))]))
    executor.next()
    executor.handle(NODE, CancelTask(array(2), 0, 1, False, False))
    answer(executor, "a")
    assert executor.running is not None and executor.running.array == array(3)
    answer(executor, "c")
    found = [r for done in ctx.take(TasksDone) for r in done.results]
    assert [(split(r.calls) or r.array, r.status) for r in found] == [
        (array(2), NOT_BEGUN), ((array(1), array(3)), OK),
    ]  # fmt: skip


def test_tasks_that_are_reported_together_keep_their_times() -> None:
    ctx, executor = made_executor()
    executor.actor = False
    tasks = [replace(task(number), name="t") for number in (1, 2, 3)]
    executor.handle(NODE, RunTasks(list(map(Assignment, tasks))))
    executor.next()
    for number in (1, 2, 3):
        assert executor.running is not None
        executor.report_plain(executor.running, number, 16, float(number), number + 0.25)
        executor.next()
    [done] = ctx.take(TasksDone)
    assert [split(r.calls) for r in done.results] == [(array(1), array(2), array(3))]
    assert [(t.start_s, t.elapsed_s, t.count) for t in done.timings] == [
        (1.0, 0.25, 1), (2.0, 0.25, 1), (3.0, 0.25, 1),
    ]  # fmt: skip


# -- the node's objects ---------------------------------------------------------


def made_objects() -> NodeObjects:
    return NodeObjects(Alone(), 0, Config(), lambda array, oid, size: None, lambda client: True)


def test_batched_results_are_looked_up_and_released_call_by_call() -> None:
    objects = made_objects()
    arrays = [array(n) for n in (1, 2, 3)]
    assert objects.owners.own_all(arrays, OWNER) and not objects.owners.own_all(arrays[:1], OWNER)
    assert objects.may_add_batch(arrays, OWNER) and not objects.may_add_batch(arrays, "driver:0.1")
    objects.results.add_batch(answers(1, 2, 3), arrays)
    assert not objects.may_add_batch(arrays[2:], OWNER)
    value = objects.memory.lookup(array(2) + FIRST)
    assert value is not None and msgspec.msgpack.decode(value.payload)[value.position] == 2
    assert objects.results.find(array(3), 0) and objects.has_array(array(1))
    objects.release(arrays[:2])
    assert objects.memory.lookup(array(2) + FIRST) is None and objects.owners.owns(OWNER)
    objects.release(arrays[2:])
    assert not objects.owners.owns(OWNER) and objects.of_job(arrays[0][:4]) == []


def test_a_batch_with_an_awaited_result_is_not_added_as_a_whole() -> None:
    objects = made_objects()
    objects.owners.own_all([array(1), array(2)], OWNER)
    objects.pulls.want(array(2) + FIRST, lambda value: None)
    assert not objects.may_add_batch([array(1), array(2)], OWNER)


# -- bursts, and faults in them --------------------------------------------------


def burst(shell: Shell, rng: random.Random) -> Code:
    """Generator: call actors in bursts with something else in between now and then."""
    told = []
    for _ in range(2):
        restarts = rng.choice([0, 0, 1, FOREVER])
        ref = shell.create_actor(restarts=restarts)
        told.append(Told(ref, restarts, rng.choice([0, FOREVER]) if restarts else 0))
    tag = 0
    for _ in range(rng.randint(2, 6)):
        actor = rng.choice(told)
        for _ in range(rng.randint(1, 150)):
            if rng.random() < 0.02:
                actor = rng.choice(told)
            deps = []
            if rng.random() < 0.02:
                deps.append((yield from shell.put(7, 0)))
            body = {"tag": tag, "s": rng.choice([0.0, 0.0, 0.0, 0.002])}
            ref = shell.tell(
                actor.ref.oid, body, deps=[dep.oid for dep in deps], retries=actor.retries,
                restarts=actor.restarts,
            )  # fmt: skip
            for dep in deps:
                dep.drop()
            actor.calls.append((tag, ref))
            tag += 1
        yield rng.choice([0.0, 0.001, 0.1])
    for actor in told:
        yield from conclude(shell, actor)
    return told


@pytest.mark.parametrize("seed", range(20))
def test_bursts(seed: int) -> None:
    world, rng = random_world(seed)
    driver = world.driver(rng.randrange(len(world.nodes)))
    for actor in driver.call(burst(driver, rng)):
        check(actor, set())
        assert actor.history == [tag for tag, _ in actor.calls]
    assert not settle(world, SETTLE_S)


def test_bursts_are_answered_together() -> None:
    together = 0
    for seed in range(5):
        world, rng = random_world(seed)
        driver = world.driver(0)
        driver.call(burst(driver, rng))
        together += world.answered_together
    assert together > 100


@pytest.mark.parametrize("seed", range(60))
def test_bursts_while_actors_die(seed: int) -> None:
    world, rng = random_world(seed)
    driver = world.driver(rng.randrange(len(world.nodes)))
    kill_processes(world, rng, 8)
    for actor in driver.call(burst(driver, rng)):
        check(actor, WORKERS_DIED)
        if actor.restarts == FOREVER and actor.retries == FOREVER:
            assert DIED not in actor.outcome.values()
            assert actor.history == [tag for tag, _ in actor.calls]
    assert not settle(world, SETTLE_S)
