"""The zygote takes a worker's first steps before there is a worker."""

from __future__ import annotations

import gc
import os
import signal
import threading

from raytwin.runtime.api.backend import connected
from raytwin.runtime.control.messages import OK, TasksDone, WorkerReady
from raytwin.runtime.processes.net import wire
from raytwin.runtime.processes.spawn.rehearsal import rehearse
from raytwin.runtime.serialization.serialization import deserialize


def test_a_rehearsed_worker_makes_its_actor_and_calls_it() -> None:
    frames = wire.FrameReader().feed(rehearse(1))
    said = [message for frame in frames for message in frame.messages]
    assert isinstance(said[0], WorkerReady)
    results = [
        result for each in said[1:] if isinstance(each, TasksDone) for result in each.results
    ]
    assert [result.status for result in results] == [OK, OK]
    assert deserialize(results[1].payload) == [2], "1, and 1 was added"


def test_a_rehearsal_leaves_nothing_behind() -> None:
    def there() -> tuple[object, ...]:
        gc.collect()
        handler = signal.getsignal(signal.SIGINT)
        return len(os.listdir("/proc/self/fd")), threading.enumerate(), connected(), handler

    rehearse(1)
    before = there()
    rehearse(3)
    assert there() == before
