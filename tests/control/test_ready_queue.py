"""`ReadyQueue` against plain lists of elements."""

from __future__ import annotations

import random

import pytest

from raytwin.runtime.control.core.ids import JOB_BYTES, job_id
from raytwin.runtime.control.core.task_ranges import part_of
from raytwin.runtime.control.local_scheduler.ready_queue import (
    Lane,
    ReadyQueue,
    TaskClass,
    class_of,
)
from tests.control.alone import spec


def test_like_a_list_per_job_and_demand(seed: int) -> None:
    rng = random.Random(seed)
    queue = ReadyQueue()
    oracle: dict[Lane, list[tuple[TaskClass, bytes, int]]] = {}
    for number in range(4000):
        demand = rng.choice(["CPU:1", "CPU:2", ""])
        job = rng.choice([1, 2])
        lane = (job_id(job), demand)
        line = oracle.setdefault(lane, [])
        what = rng.random()
        if what < 0.4:
            pushed = spec(
                number, rng.randrange(5), rng.randint(1, 6), demand=demand,
                function=rng.choice([b"f", b"g"]), depth=rng.randrange(2),
            )  # fmt: skip
            pushed.array = lane[0] + pushed.array[len(lane[0]) :]
            elements = [
                (class_of(pushed), pushed.array, pushed.start + i) for i in range(pushed.count)
            ]
            if rng.random() < 0.3:
                queue.push_front(pushed)
                line[:0] = elements
            else:
                queue.push(pushed)
                line += elements
        elif what < 0.5 and line:
            task_class = rng.choice(line)[0]
            queue.closed ^= {task_class}
        elif what < 0.52 and line:
            array = rng.choice(line)[1]
            queue.take_out(lambda spec, array=array: spec if spec.array == array else None)
            line[:] = [row for row in line if row[1] != array]
        else:
            may_start = [row for row in line if row[0] not in queue.closed]
            peeked = queue.peek(lane)
            assert (peeked is not None) == bool(may_start)
            if peeked is not None:
                taken = queue.take(lane, rng.randint(1, 8))
                assert peeked.array == taken.array
                assert taken.demand == demand and taken.args == peeked.args
                for index in range(taken.count):
                    row = may_start.pop(0)
                    assert row[1:] == (taken.array, taken.start + index)
                    line.remove(row)
        may_start = [row for row in line if row[0] not in queue.closed]
        assert queue.size == sum(map(len, oracle.values()))
        assert queue.count(lane) == len(may_start)
        assert queue.has(lane) == bool(may_start)
        assert sorted(queue.lanes()) == sorted(x for x, line in oracle.items() if line)
        if line:
            assert queue.first(lane, 1)[0].array == line[0][1]
            assert queue.head(lane)[1] == line[0][2]
            assert queue.waits(line[0][0])


def test_the_demand_that_waits_longest_comes_first() -> None:
    queue = ReadyQueue()
    for number, demand in enumerate(["GPU:1", "CPU:1", "GPU:1", "CPU:2"]):
        queue.push(spec(number, demand=demand))
    job = spec(0).array[:JOB_BYTES]
    assert queue.lanes() == [(job, "GPU:1"), (job, "CPU:1"), (job, "CPU:2")]
    queue.take((job, "GPU:1"), 1)
    assert queue.lanes() == [(job, "CPU:1"), (job, "GPU:1"), (job, "CPU:2")]
    queue.push_front(spec(9, demand="CPU:2"))
    assert queue.lanes()[0] == (job, "CPU:2")


def test_a_part_is_within_its_range() -> None:
    whole = spec(1, 10, 5, retries=7)
    part = part_of(whole, 12, 3)
    assert (part.start, part.count, part.retries, part.first) == (12, 3, 7, whole.first)
    for start, count in [(9, 2), (14, 2), (12, 0)]:
        with pytest.raises(AssertionError):
            part_of(whole, start, count)
