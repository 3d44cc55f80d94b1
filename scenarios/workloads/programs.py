"""Programs that scenarios run: written once, against the API alone.

Each runs unchanged on every backend. The driver calls the plain functions; what
is decorated here runs as tasks.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import raytwin as ray

WINDOWS_IN_FLIGHT = 3
"""Windows that a submitter keeps going, so that it never waits for the last
task of one before the next is under way."""

SETTLE_S = 0.25
"""Longer than two heartbeats."""
START_MARGIN_S = 0.1
"""Time for the submitters themselves to reach their nodes."""


def _empty(_: Any = None) -> None:
    """Do nothing."""


empty = ray.remote(_empty)


def submit(count: int, window: int, single: bool, start_s: float = 0.0) -> None:
    """Run `count` empty tasks, `window` at a time, singly or as task arrays.

    Begins at `start_s` of the cluster's clock, or at once if that is over.
    """
    ray.sleep(max(0.0, start_s - ray.now()))
    pending: deque[Any] = deque()
    for start in range(0, count, window):
        size = min(window, count - start)
        if single:
            pending.append([empty.remote() for _ in range(size)])
        else:
            pending.append(empty.map(range(size)))
        if len(pending) == WINDOWS_IN_FLIGHT:
            ray.get(pending.popleft())
    while pending:
        ray.get(pending.popleft())


_submit = ray.remote(submit)


def bag_of_tasks(nodes: int, tasks: int, window: int, single: bool) -> float:
    """Run an embarrassingly parallel bag of empty tasks; return the seconds.

    One submitter on every node submits its share to its own local scheduler,
    as the paper's drivers did, all from the same moment on. A few tasks on every
    node before that bring up the workers and time the function.
    """
    on_each = [
        _submit.options(num_cpus=0, resources={f"node:{node}": 0.001}) for node in range(nodes)
    ]
    ray.get([submitter.remote(8, 8, True) for submitter in on_each])
    shares = [tasks // nodes + (node < tasks % nodes) for node in range(nodes)]
    start_s = ray.now() + START_MARGIN_S
    ray.get(
        [
            submitter.remote(share, window, single, start_s)
            for submitter, share in zip(on_each, shares, strict=True)
        ]
    )
    return ray.now() - start_s


def _make(nbytes: int) -> Any:
    return ray.Blob(nbytes)


def _look(blob: Any) -> int:
    return int(blob.nbytes)


make = ray.remote(_make)
look = ray.remote(_look)


def latencies_with_inputs(
    holders: list[int], sizes: list[int], in_flight: int, order: Any
) -> list[float]:
    """Run one task per input and return each one's latency in seconds.

    The inputs, of `sizes` bytes, are made on the nodes `holders` in turn before
    the clock starts; the tasks are submitted in the random order that
    `order.shuffle` gives, `in_flight` at a time. A latency is the time from
    submission until the driver has the result.
    """
    inputs = [
        make.options(resources={f"node:{holders[i % len(holders)]}": 0.001}).remote(size)
        for i, size in enumerate(sizes)
    ]
    ray.wait(inputs, num_returns=len(inputs), fetch_local=False)
    # Making them is not what is measured: let the nodes' averages forget it, and
    # let the global scheduler hear of that.
    for holder in sorted(set(holders)):
        ray.get([empty.options(resources={f"node:{holder}": 0.001}).remote() for _ in range(64)])
    ray.sleep(SETTLE_S)
    order.shuffle(inputs)
    started: dict[Any, float] = {}
    found: list[float] = []
    waiting = deque(inputs)
    del inputs
    while waiting or started:
        while waiting and len(started) < in_flight:
            begun_s = ray.now()
            started[look.remote(waiting.popleft())] = begun_s
        ready, _ = ray.wait(list(started))
        now_s = ray.now()
        for ref in ready:
            found.append(now_s - started.pop(ref))
    return found


def write(value: Any, puts: int) -> float:
    """Put a value so often, each time dropping the one before; return the seconds.

    They end when a task has read the last one: all are in the store by then.
    """
    started_s = ray.now()
    for _ in range(puts):
        ref = ray.put(value)
    assert ray.get(look.remote(ref)) == value.nbytes
    return ray.now() - started_s
