"""The history of tasks: rows over the limit go to disk and are found there."""

from __future__ import annotations

import tracemalloc
from typing import Any

from raytwin.runtime.control.core.addresses import STORAGE
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.gcs.array_row import ArrayRow, Done
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.gcs.task_history import ROW_BYTES, TaskHistory, pack, unpack
from raytwin.runtime.control.messages import (
    FindTask,
    LoadRow,
    NodeInfo,
    RegisterNode,
    RowLoaded,
    StoreRows,
    TaskFound,
    TaskUpdates,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from tests.control.alone import Alone, array, result, spec


def row(number: int) -> ArrayRow:
    made = ArrayRow()
    made.former = "driver:0.0"
    made.accepted.append((spec(number), 3))
    made.finish(Done(0, 1, 3, ()))
    return made


def test_a_row_names_the_task_and_its_node() -> None:
    assert unpack(pack(row(7))) == {
        "owner": "driver:0.0",
        "tasks": [["task7", b"f", 0, 1, 3]],
        "done": [[0, 1, 3]],
    }


def test_without_a_limit_nothing_is_written() -> None:
    ctx = Alone()
    history = TaskHistory(ctx, 0)
    for number in range(2_000):
        history.add(array(number), row(number))
    assert ctx.take(StoreRows) == []
    assert history.nbytes > 2_000 * ROW_BYTES


def test_a_history_counts_the_memory_that_it_takes() -> None:
    history = TaskHistory(Alone(), 0)
    tracemalloc.start()
    try:
        for number in range(100_000):
            history.add(array(number), row(number))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.75 * history.nbytes < taken < 1.1 * history.nbytes


def test_memory_stays_below_the_limit_and_no_row_is_lost() -> None:
    ctx = Alone()
    limit = 400_000
    history = TaskHistory(ctx, limit)
    disk: dict[bytes, bytes] = {}
    for number in range(20_000):
        history.add(array(number), row(number))
        assert history.nbytes <= limit
        if history.flushed:
            assert history.nbytes > 0.6 * limit, "no more is on disk than what did not fit"
        for stored in ctx.take(StoreRows, STORAGE):
            for key, packed in stored.rows:
                assert key not in disk, "a row was written twice"
                disk[key] = packed
    assert len(disk) == history.flushed
    assert {*disk, *history.rows} == {array(n) for n in range(20_000)}


def test_a_row_is_found_in_memory_or_on_disk() -> None:
    ctx = Alone()
    history = TaskHistory(ctx, 400_000)
    for number in range(5_000):
        history.add(array(number), row(number))
    history.on_find("node:1", FindTask(array(4_999), 1, "driver:1.0"))
    assert ctx.take(TaskFound, "node:1")[0].row == pack(row(4_999))
    history.on_find("node:1", FindTask(array(0), 2, "driver:1.0"))
    assert ctx.take(TaskFound) == []
    (asked,) = ctx.take(LoadRow, STORAGE)
    assert asked.key == array(0)
    history.on_loaded(STORAGE, RowLoaded(asked.request, b"row"))
    assert ctx.take(TaskFound, "node:1") == [TaskFound(2, "driver:1.0", b"row")]
    history.on_loaded(STORAGE, RowLoaded(asked.request, b"row"))
    assert ctx.take(TaskFound) == [], "it was answered twice"


def test_a_row_that_comes_again_takes_the_place_of_the_first() -> None:
    ctx = Alone()
    history = TaskHistory(ctx, 0)
    history.add(array(1), row(1))
    nbytes = history.nbytes
    again = row(1)
    again.lose_node(3, Loss(LossCause.NODE_DIED, 3))
    again.accept(spec(1), 4)
    again.finish(Done(0, 1, 4, ()))
    history.add(array(1), again)
    assert len(history.rows) == 1
    history.on_find("node:1", FindTask(array(1), 1, "driver:1.0"))
    packed = ctx.take(TaskFound, "node:1")[0].row
    assert packed is not None
    tasks = unpack(packed)["tasks"]
    assert [node for *_, node in tasks] == [-1, 4]
    history.add(array(1), row(1))
    assert history.nbytes == nbytes


def test_a_released_row_is_in_the_history_while_others_need_its_specs() -> None:
    ctx = Alone()
    gcs = Gcs(ctx, Config(task_history=True))
    gcs.handle("node:0", RegisterNode(NodeInfo(0, "host", 1, {"CPU": 1.0}, incarnation=1)))
    first, second = spec(1), spec(2, deps=(object_id(array(1), 0, 0),))
    done: list[Any] = [(array(1), 0, 1, (5_000,))]
    gcs.handle("node:0", TaskUpdates(0, [first, second], done, [], [array(1)], incarnation=1))
    assert gcs.arrays[array(1)].released
    assert unpack(gcs.history.rows[array(1)]) == {
        "owner": "driver:0.0",
        "tasks": [["task1", b"f", 0, 1, 0]],
        "done": [[0, 1, 0]],
    }
    gcs.handle("node:0", TaskUpdates(0, [], [], [], [array(2)], incarnation=1))
    assert gcs.arrays == {}
    assert set(gcs.history.rows) == {array(1), array(2)}


def test_unknown_tasks_are_not_in_the_history() -> None:
    """It would take it for a release that came early, and free what is made later."""
    ctx = Alone()
    log = GcsWriteLog(ctx, 0, Config(task_history=True))
    log.release([array(1)])
    ctx.pass_time(1.0)
    assert ctx.take(TaskUpdates) == []


def test_a_node_leaves_no_task_out_of_the_history() -> None:
    for keeps in (False, True):
        ctx = Alone()
        log = GcsWriteLog(ctx, 0, Config(task_history=keeps))
        log.accept(spec(1))
        log.finish(result(1))
        log.release([array(1)])
        ctx.pass_time(1.0)
        updates = ctx.take(TaskUpdates)
        if not keeps:
            assert updates == []
            continue
        (update,) = updates
        assert [s.array for s in update.added] == [array(1)]
        assert update.done == [(array(1), 0, 1, ())]
        assert update.released == [array(1)]
        assert not log._known
        assert not log._exposed
