"""`Client`: reference counts, waiting, duplicates, pins."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.client.submitter import CHILDREN_MAX
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import ARRAY_BYTES, STREAM_BASE, object_id, task_id
from raytwin.runtime.control.messages import (
    OK,
    USER_ERROR,
    ActorEnded,
    ActorInfo,
    CancelTask,
    ExportFunction,
    ObjectAllocated,
    ObjectsReady,
    ObjectValue,
    PutObjects,
    QueryReply,
    RangeResult,
    Release,
    ResultRefs,
    SubmitTasks,
    TaskExtra,
    TaskResults,
    TaskSpec,
    Unpin,
    WantObjects,
)
from tests.control.alone import Alone, array, result, spec

ME, NODE = "driver:0.0", "node:0"


def made() -> tuple[Alone, Client]:
    ctx = Alone()
    return ctx, Client(ctx, ME, 0, Config())


def oid(number: int, index: int = 0) -> bytes:
    return object_id(array(number), index, 0)


def submit(client: Client, number: int, count: int = 1, *deps: bytes) -> bytes:
    """Submit an array and hold one reference to it."""
    client.submitter.submit(array(number), [spec(number, 0, count, deps=deps)], count, 1)
    client.references.add_ref(oid(number))
    return oid(number)


def creation(number: int, *deps: bytes, detached: bool = False) -> TaskSpec:
    """Return the creation of an actor."""
    extra = TaskExtra(actor=ActorInfo(-1, 1, 0, detached=detached))
    return replace(spec(number, deps=deps), extra=extra)


def tell(client: Client, *results: RangeResult) -> None:
    client.handle(NODE, TaskResults(ME, list(results)))


def released(ctx: Alone, client: Client) -> list[bytes]:
    client.buffer.flush()
    return [a for message in ctx.take(Release, NODE) for a in message.arrays]


def is_empty(client: Client) -> bool:
    client.buffer.flush()
    return not any(value for value in vars(client).values() if isinstance(value, dict | set | list))


def test_an_array_lives_while_it_is_referenced() -> None:
    ctx, client = made()
    ref = submit(client, 1)
    client.references.add_ref(ref)
    tell(client, result(1))
    client.references.drop_ref(ref)
    assert released(ctx, client) == []
    client.references.drop_ref(ref)
    assert released(ctx, client) == [array(1)]
    assert is_empty(client)


def test_an_unfinished_array_is_released_when_it_is_done() -> None:
    ctx, client = made()
    client.references.drop_ref(submit(client, 1, 10))
    tell(client, result(1, 0, 9))
    assert released(ctx, client) == []
    tell(client, result(1, 9, 1))
    assert released(ctx, client) == [array(1)]


def test_synchronous_submissions_are_sent_at_once() -> None:
    ctx, client = made()
    for number in range(1, 5):
        # Within the same moment: no time passes in which a batch could be over.
        submit(client, number)
        assert [[s.array for s in m.tasks] for m in ctx.take(SubmitTasks)] == [[array(number)]]
        tell(client, result(number))
    submit(client, 5)
    ctx.take(SubmitTasks)
    for number in (6, 7, 8):
        submit(client, number)
    assert ctx.take(SubmitTasks) == [], "the one before is not answered: they go together"
    tell(client, result(5))
    submit(client, 9)
    assert ctx.take(SubmitTasks) == [], "nor do they part company for an answer"
    client.buffer.flush()
    [message] = ctx.take(SubmitTasks)
    assert [s.array for s in message.tasks] == [array(number) for number in (6, 7, 8, 9)]


def test_releases_that_wait_do_not_keep_the_first_task_of_a_batch_back() -> None:
    ctx, client = made()
    refs = [submit(client, number) for number in (1, 2)]
    client.buffer.flush()
    for number in (1, 2):
        tell(client, result(number))
    for ref in refs:
        client.references.drop_ref(ref)
    assert ctx.take(Release) == [], "they wait for company"
    ctx.take(SubmitTasks)
    submit(client, 3)
    [message] = ctx.take(SubmitTasks)
    assert [s.array for s in message.tasks] == [array(3)]
    [release] = ctx.take(Release)
    assert release.arrays == [array(1), array(2)]


def test_slow_submissions_need_no_timer() -> None:
    ctx, client = made()
    submit(client, 1)
    ctx.take(SubmitTasks)
    submit(client, 2)
    ctx.time_s += client.config.linger_s  # and nobody has looked for timers
    for number in range(3, 10):
        submit(client, number)
    [message] = ctx.take(SubmitTasks)
    assert [s.array for s in message.tasks] == [array(number) for number in range(2, 10)]


def test_inputs_are_held_by_unfinished_tasks() -> None:
    ctx, client = made()
    ref = submit(client, 1)
    tell(client, result(1))
    client.references.add_ref(submit(client, 2, 1, ref, ref))
    submit(client, 3, 1, ref)
    client.references.drop_ref(ref)
    tell(client, result(2))
    assert released(ctx, client) == []
    tell(client, result(3))
    assert released(ctx, client) == [array(1)]


def test_contained_references_are_released_after_their_value() -> None:
    """The node that keeps the value may die: it is made again, with the same inside."""
    ctx, client = made()
    inner, value = submit(client, 1), submit(client, 2)
    holding = result(2)
    refs = ((array(1), ME), (array(2), ME))
    holding.refs = ResultRefs((), refs, "node:1.0")
    tell(client, result(1), holding)
    client.references.drop_ref(inner)
    assert released(ctx, client) == []
    client.references.drop_ref(value)
    assert released(ctx, client) == [array(2), array(1)]
    assert is_empty(client)


@pytest.mark.parametrize(
    ("count", "index", "results", "kept"),
    [
        (1, 0, [result(1)], False),
        (1, 0, [result(1, size=500)], True),
        (1, 0, [replace(result(1), refs=ResultRefs((), ((array(8), ME),), NODE))], True),
        (1, STREAM_BASE, [result(1, STREAM_BASE), result(1)], False),
        (1, STREAM_BASE, [result(1, STREAM_BASE, size=500), result(1)], True),
        (2, 0, [result(1, 0), result(1, 1, size=500)], False),
        (2, 1, [result(1, 0), result(1, 1, size=500)], True),
    ],
    ids=["small", "large", "reference", "small item", "item", "small element", "element"],
)
def test_inputs_that_no_message_has_whole_are_kept_while_their_actor_may_be_rebuilt(
    count: int, index: int, results: list[RangeResult], kept: bool
) -> None:
    ctx, client = made()
    actor, held = oid(9), submit(client, 1, count)
    client.submitter.create(creation(9), (), array(9))
    client.references.add_ref(actor)
    if index >= STREAM_BASE:
        client.entries[array(1)].items = {}
    tell(client, *results)
    call = spec(2, deps=(oid(1, index),))
    client.submitter.submit(array(2), [call], 1, 1, (actor,), keeper=array(9))
    tell(client, result(9), result(2))
    released(ctx, client)
    client.references.drop_ref(held)
    assert (array(1) not in released(ctx, client)) == kept
    client.references.drop_ref(actor)
    assert (array(1) in released(ctx, client)) == kept


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("created", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_inputs_of_a_constructor_are_kept_while_their_actor_may_restart(
    restarts: bool, created: bool, detached: bool
) -> None:
    ctx, client = made()
    held = submit(client, 1)
    tell(client, result(1))
    create = creation(9, held, detached=detached)
    client.submitter.create(create, (), array(9) if restarts else b"")
    client.references.add_ref(oid(9))
    client.references.drop_ref(held)
    assert released(ctx, client) == []
    if created:
        tell(client, result(9))
        assert released(ctx, client) == ([] if restarts else [array(1)])
    client.handle(NODE, ActorEnded(array(9)))
    assert released(ctx, client) == ([] if created and not restarts else [array(1)])
    client.references.drop_ref(oid(9))
    assert released(ctx, client) == [array(9)] and is_empty(client)


def test_an_actor_that_its_own_input_contains_is_released_once() -> None:
    """A handle of the actor is inside of a value, which is an input of one of its calls."""
    ctx, client = made()
    client.submitter.create(creation(9), (), array(9))
    client.references.add_ref(oid(9))
    tell(client, result(9))
    client.submitter.submit(array(1), [spec(1)], 1, 1, (array(9),))
    client.references.add_ref(oid(1))
    inside = ResultRefs((), ((array(9), ME),), NODE)
    tell(client, replace(result(1), refs=inside))
    call = spec(2, deps=(oid(1),))
    client.submitter.submit(array(2), [call], 1, 1, (oid(9),), array(9))
    client.references.add_ref(oid(2))
    tell(client, result(2))
    for number in (2, 1, 9):
        client.references.drop_ref(oid(number))
    client.handle(NODE, ActorEnded(array(9)))
    assert sorted(released(ctx, client)) == [array(1), array(2), array(9)] and is_empty(client)


def test_a_detached_actor_keeps_its_inputs_without_a_handle() -> None:
    ctx, client = made()
    for restarts, after in ((True, []), (False, [array(1), array(9)])):
        held = submit(client, 1)
        tell(client, result(1))
        create = creation(9, held, detached=True)
        client.submitter.create(create, (), array(9) if restarts else b"")
        for ref in (held, oid(9)):
            client.references.add_ref(ref)
            client.references.drop_ref(ref)
        client.references.drop_ref(held)
        assert released(ctx, client) == [], "the constructor has not ended"
        tell(client, result(9))
        assert sorted(released(ctx, client)) == after
        client.handle(NODE, ActorEnded(array(9)))
        assert sorted(released(ctx, client)) == ([] if after else [array(1), array(9)])
        assert is_empty(client)


def test_a_pickled_reference_pins_its_object_for_good() -> None:
    ctx, client = made()
    ref = submit(client, 1)
    client.references.counter.pin(ref[:ARRAY_BYTES])
    tell(client, result(1))
    client.references.drop_ref(ref)
    assert released(ctx, client) == []


def test_a_put_is_sent_and_released() -> None:
    ctx, client = made()
    client.submitter.put(result(1))
    client.references.add_ref(oid(1))
    assert client.waits.value(oid(1)) is not None
    client.references.drop_ref(oid(1))
    client.buffer.flush()
    kinds = [type(m) for _, m in ctx.sent]
    assert kinds.index(PutObjects) < kinds.index(Release)
    assert is_empty(client)


def test_submissions_travel_together() -> None:
    ctx, client = made()
    submit(client, 1)  # the first one at once
    assert len(ctx.take(SubmitTasks)) == 1
    for number in range(2, 10):
        submit(client, number)
    assert ctx.take(SubmitTasks) == []
    ctx.pass_time(client.config.linger_s)
    [message] = ctx.take(SubmitTasks, NODE)
    assert [s.array for s in message.tasks] == [array(n) for n in range(2, 10)]
    for number in range(10, 10 + client.config.submit_batch_max):
        submit(client, number)
    assert len(ctx.take(SubmitTasks)) == 1


def test_a_function_is_exported_once() -> None:
    ctx, client = made()
    client.submitter.export(b"f", b"blob")
    client.submitter.export(b"f", b"blob")
    assert ctx.take(ExportFunction, NODE) == [ExportFunction(b"f", b"blob")]


def test_waiting_for_some_and_for_all() -> None:
    _, client = made()
    submit(client, 1, 10)
    some = client.waits.watch([oid(1, 2), oid(1, 7), oid(1, 7)])
    whole = client.waits.watch_array(client.entries[array(1)])
    assert some.missing == 3
    tell(client, result(1, 0, 5))
    assert some.missing == 2
    tell(client, result(1, 5, 4))
    assert (some.missing, whole.missing) == (0, 1)
    tell(client, result(1, 9, 1))
    assert whole.missing == 0
    assert client.waits.watch([oid(1, 2)]).missing == 0
    assert client.waits.watch_array(client.entries[array(1)]).missing == 0


def test_results_that_come_twice_or_overlap_count_once(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        _, client = made()
        count = rng.randint(2, 30)
        submit(client, 1, count)
        waiters = [client.waits.watch([oid(1, i)]) for i in range(count)]
        have: set[int] = set()
        while len(have) < count:
            start = rng.randrange(count)
            some = rng.randint(1, count - start)
            tell(client, result(1, start, some, payload=str(start).encode()))
            have |= set(range(start, start + some))
            assert client.entries[array(1)].missing == count - len(have)
            for index in range(count):
                value = client.waits.value(oid(1, index))
                assert (value is not None) == (index in have)
                assert (waiters[index].missing == 0) == (index in have)
                if value is not None:
                    assert int(value.payload) + value.position == index


def test_a_result_after_the_release_is_ignored() -> None:
    ctx, client = made()
    client.references.drop_ref(submit(client, 1))
    tell(client, result(1))
    released(ctx, client)
    tell(client, result(1))
    assert is_empty(client)


def test_a_large_value_is_fetched_on_demand() -> None:
    ctx, client = made()
    ref = submit(client, 1)
    waiter = client.waits.watch([ref])
    tell(client, result(1, node=3, size=500, offset=1))
    assert waiter.missing == 1 and client.waits.made(ref) and client.waits.value(ref) is None
    assert ctx.take(WantObjects, NODE) == [WantObjects([ref])]
    again = client.waits.watch([ref])
    assert ctx.take(WantObjects) == []
    client.handle(NODE, ObjectsReady([ObjectValue(ref, OK, b"", 0, 64, 500)]))
    assert (waiter.missing, again.missing) == (0, 0)
    client.references.drop_ref(ref)
    client.buffer.flush()
    assert ctx.take(Unpin, NODE) == [Unpin([ref])]
    assert is_empty(client)


def test_a_pin_stays_while_a_view_does() -> None:
    ctx, client = made()
    ref = submit(client, 1)
    client.waits.watch([ref])
    tell(client, result(1, node=3, size=500, offset=1))
    client.handle(NODE, ObjectsReady([ObjectValue(ref, OK, b"", 0, 64, 500)]))
    client.pins.add_view(ref)
    client.pins.add_view(ref)
    client.references.drop_ref(ref)
    client.pins.drop_view(ref)
    client.buffer.flush()
    assert ctx.take(Unpin) == []
    client.pins.drop_view(ref)
    client.buffer.flush()
    assert ctx.take(Unpin) == [Unpin([ref])]
    assert is_empty(client)


def test_a_pin_stays_while_the_object_is_waited_for_with_others() -> None:
    ctx, client = made()
    ref, late = submit(client, 1), submit(client, 2)
    awaited = client.pins.begin_get([ref, late])
    client.waits.watch([ref, late])
    tell(client, result(1, node=3, size=500, offset=1))
    client.handle(NODE, ObjectsReady([ObjectValue(ref, OK, b"", 0, 64, 500)]))
    client.references.drop_ref(ref)
    client.buffer.flush()
    assert ctx.take(Unpin) == []
    client.pins.add_view(ref)
    client.pins.end_get(awaited)
    client.buffer.flush()
    assert ctx.take(Unpin) == []
    client.pins.drop_view(ref)
    client.buffer.flush()
    assert ctx.take(Unpin) == [Unpin([ref])]


def test_a_borrowed_object_is_fetched_from_the_node_and_released() -> None:
    ctx, client = made()
    client.references.add_ref(oid(9))
    client.references.add_ref(oid(9))
    waiter = client.waits.watch([oid(9)])
    assert ctx.take(WantObjects, NODE) == [WantObjects([oid(9)])]
    client.handle(NODE, ObjectsReady([ObjectValue(oid(9), OK, b"", 0, 64, 500)]))
    assert waiter.missing == 0
    client.references.drop_ref(oid(9))
    assert client.waits.value(oid(9)) is not None
    client.references.drop_ref(oid(9))
    client.buffer.flush()
    assert ctx.take(Unpin) == [Unpin([oid(9)])]
    assert ctx.take(Release) == []
    assert is_empty(client)


def test_a_borrowed_object_that_comes_too_late_is_unpinned() -> None:
    ctx, client = made()
    client.references.add_ref(oid(9))
    client.waits.watch([oid(9)])
    client.references.drop_ref(oid(9))
    client.handle(NODE, ObjectsReady([ObjectValue(oid(9), OK, b"", 0, 64, 500)]))
    client.buffer.flush()
    assert ctx.take(Unpin) == [Unpin([oid(9)])]
    assert is_empty(client)


def test_errors_are_values() -> None:
    _, client = made()
    ref = submit(client, 1)
    tell(client, result(1, status=USER_ERROR, payload=b"oh"))
    value = client.waits.value(ref)
    assert value is not None and (value.status, value.payload) == (USER_ERROR, b"oh")


def test_allocations_and_replies_wake_their_waiters() -> None:
    _, client = made()
    room = client.requests.allocate(oid(1), 500)
    key, answer = client.requests.query("nodes")
    client.handle(NODE, ObjectAllocated(oid(1), 64))
    assert (room.missing, answer.missing) == (0, 1)
    assert client.requests.allocations[oid(1)] == 64
    client.handle(NODE, QueryReply(key, ME, ["row"]))
    assert answer.missing == 0 and client.requests.replies[key] == ["row"]
    with pytest.raises(AssertionError):
        client.handle(NODE, Release([]))


def test_children_of_a_task_are_known_until_they_are_released() -> None:
    ctx, client = made()
    task = task_id(array(9), 0)
    client.submitter.begin_task(task)
    first = client.submitter.next_child()
    client.submitter.submit(first, [replace(spec(), array=first)], 1, 1)
    for _ in range(2 * CHILDREN_MAX):
        # Nothing is submitted: as if it were gone.
        client.submitter.next_child()
    assert len(client.submitter._children) <= CHILDREN_MAX + 1
    client.submitter.cancel_children(task_id(array(9), 1), False)
    assert ctx.take(CancelTask) == []
    client.submitter.cancel_children(task, False)
    assert [message.array for message in ctx.take(CancelTask)] == [first]
    client.submitter.begin_task(task_id(array(9), 1))
    assert not client.submitter._children


def test_each_try_of_a_task_has_children_of_its_own() -> None:
    ctx, client = made()
    task = task_id(array(9), 0)
    names = []
    for tries in (0, 1, 2, 1):
        client.submitter.begin_task(task, tries)
        names.append((client.submitter.next_child(), client.submitter.next_put()))
        client.submitter.submit(names[-1][0], [replace(spec(), array=names[-1][0])], 1, 1)
        client.submitter.cancel_children(task, False)
        assert [message.array for message in ctx.take(CancelTask)] == [names[-1][0]]
    assert names[1] == names[3]
    assert len({each for pair in names for each in pair}) == 6
