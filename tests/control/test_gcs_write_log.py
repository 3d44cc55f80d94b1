"""`GcsWriteLog`: which entries may wait, cancel out, or must leave at once."""

from __future__ import annotations

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.messages import TaskSpec, TaskUpdates
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from tests.control.alone import Alone, array, result, spec

CONFIG = Config()


def made() -> tuple[Alone, GcsWriteLog]:
    ctx = Alone()
    return ctx, GcsWriteLog(ctx, 0, CONFIG)


def later(ctx: Alone, log: GcsWriteLog) -> list[TaskUpdates]:
    log.end_turn()
    ctx.pass_time(3 * CONFIG.log_linger_s)
    return ctx.take(TaskUpdates, "gcs")


def is_empty(log: GcsWriteLog) -> bool:
    return not any(value for value in vars(log).values() if isinstance(value, dict | set))


def test_a_task_that_lives_within_a_batch_leaves_no_trace() -> None:
    ctx, log = made()
    log.accept(spec())
    log.finish(result())
    log.release([array(1)])
    assert later(ctx, log) == []
    assert is_empty(log)


def test_unfinished_tasks_are_logged_after_the_linger() -> None:
    ctx, log = made()
    log.accept(spec(1))
    log.accept(spec(2))
    log.finish(result(2))
    log.end_turn()
    assert ctx.sent == []
    [update] = later(ctx, log)
    assert [s.array for s in update.added] == [array(1), array(2)]
    assert update.done == [(array(2), 0, 1, ())]
    # Now the GCS knows of them, so it must hear that they are released.
    log.finish(result(1))
    log.release([array(1)])
    log.release([array(2)])
    [update] = later(ctx, log)
    assert (update.added, update.done) == ([], [])
    assert update.released == [array(1), array(2)]
    assert is_empty(log)


def test_a_burst_leaves_no_trace_whenever_it_begins() -> None:
    ctx, log = made()
    linger_s = CONFIG.log_linger_s
    log.accept(spec(1))
    for tenths in range(10):
        # Each lives for nine tenths of the linger, across a tick of the timer mostly.
        ctx.pass_time(0.1 * tenths * linger_s)
        log.accept(spec(2))
        log.finish(result(2))
        ctx.pass_time(0.9 * linger_s)
        log.release([array(2)])
    ctx.pass_time(3 * linger_s)
    updates = ctx.take(TaskUpdates, "gcs")
    assert [s.array for update in updates for s in update.added] == [array(1)]
    assert not any(update.done or update.released for update in updates)


def test_entries_wait_at_most_twice_the_linger() -> None:
    ctx, log = made()
    log.accept(spec(1))
    ctx.pass_time(0.5 * CONFIG.log_linger_s)
    log.accept(spec(2))
    ctx.pass_time(2 * CONFIG.log_linger_s)
    [update] = ctx.take(TaskUpdates, "gcs")
    assert [s.array for s in update.added] == [array(1), array(2)]


def test_ranges_of_one_array_become_one_row() -> None:
    ctx, log = made()
    for start in (0, 20, 10, 30):
        log.finish(result(1, start, 10))
    log.finish(result(1, 40, 1, size=500, offset=7))
    [update] = later(ctx, log)
    assert update.done == [(array(1), 0, 40, ()), (array(1), 40, 1, (500,))]


def test_each_run_of_an_element_counts() -> None:
    ctx, log = made()
    log.finish(result(1, 0, 10))
    log.finish(result(1, 5, 1))
    log.flush()
    rows = [row for update in ctx.take(TaskUpdates) for row in update.done]
    assert rows == [(array(1), 0, 10, ()), (array(1), 5, 1, ())]


def test_exposed_arrays_do_not_wait() -> None:
    ctx, log = made()
    log.finish(result(1))
    log.end_turn()
    assert ctx.sent == []
    # A task with it as input leaves the node: others will look for it.
    log.spilled(spec(2, deps=(object_id(array(1), 0, 0), object_id(array(9), 0, 0))), {array(1)})
    assert log._exposed == {array(1)}
    log.end_turn()
    [update] = ctx.take(TaskUpdates)
    assert update.done == [(array(1), 0, 1, ())]
    # So does what ends here for an owner elsewhere.
    log.expose(array(3))
    log.finish(result(3))
    log.end_turn()
    assert ctx.take(TaskUpdates)[0].done == [(array(3), 0, 1, ())]


def test_a_spilled_array_is_released_at_the_gcs() -> None:
    ctx, log = made()
    log.spilled(spec(1), {})
    log.release([array(1)])
    [update] = later(ctx, log)
    assert update.released == [array(1)]
    assert is_empty(log)


def test_a_release_and_a_new_life_are_not_in_one_batch() -> None:
    ctx, log = made()
    for begin in (log.accept, lambda again: log.spilled(again, {})):
        log.spilled(spec(1), {})
        log.release([array(1)])
        begin(spec(1))
        log.flush()
        released, *rest = ctx.take(TaskUpdates)
        assert released.released == [array(1)] and not released.added
        assert not any(update.released for update in rest)
        log.forget(array(1))


def test_no_release_is_sent_for_arrays_that_the_gcs_freed() -> None:
    ctx, log = made()
    log.expose(array(1))
    log.finish(result(1))
    log.copied(array(1), object_id(array(1), 0, 0), 5)
    log.forget(array(1))
    assert later(ctx, log) == []
    assert is_empty(log)


def depends(number: int, on: int) -> TaskSpec:
    return spec(number, deps=(object_id(array(on), 0, 0),))


def test_a_chain_that_lives_within_a_batch_leaves_no_trace() -> None:
    ctx, log = made()
    log.accept(spec(1))
    for number in range(2, 2000):
        log.accept(depends(number, number - 1))
        log.finish(result(number))
        log.release([array(number - 1)])
    log.release([array(1999)])
    assert later(ctx, log) == []
    assert is_empty(log)


def test_the_lineage_of_a_living_array_is_logged_and_released() -> None:
    ctx, log = made()
    log.accept(spec(1))
    log.accept(depends(2, 1))
    log.accept(depends(3, 2))
    log.accept(spec(4))
    for number in (1, 2, 4):
        log.finish(result(number))
        log.release([array(number)])
    [update] = later(ctx, log)
    assert sorted(s.array for s in update.added) == [array(1), array(2), array(3)]
    assert update.done == [] and sorted(update.released) == [array(1), array(2)]
    # What the GCS knows by now is kept there.
    log.accept(depends(5, 3))
    log.release([array(3)])
    [update] = later(ctx, log)
    assert [s.array for s in update.added] == [array(5)] and update.released == [array(3)]
    log.release([array(5)])
    [update] = later(ctx, log)
    assert update.released == [array(5)] and is_empty(log)


def test_a_kept_array_may_be_submitted_again() -> None:
    ctx, log = made()
    log.accept(spec(1))
    log.accept(depends(2, 1))
    log.release([array(1)])
    log.accept(spec(1))
    first, second = later(ctx, log)
    assert first.released == [array(1)] and not second.released
    assert [s.array for s in second.added] == [array(1)]


def test_puts_are_distinguished() -> None:
    ctx, log = made()
    log.put(array(1), 0)
    log.put(array(2), 500)
    log.put(array(3), 0)
    log.release([array(3)])
    [update] = later(ctx, log)
    assert update.puts == [(array(1), 0), (array(2), 500)] and not update.done
