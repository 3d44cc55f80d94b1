"""A worker's first steps, taken once in the zygote so that no worker takes them again.

A forked process shares its parent's pages until it writes to them, and Python writes
all the time: it counts references, caches attribute look-ups, and specializes code that
runs often. A new worker writes to most of its pages when it takes a step for the first
time: versions of types, caches of look-ups, layouts of instances, specialized code. The
rehearsal makes these writes in the zygote, in pages that workers share, so that an actor
costs less CPU time and less memory.

The worker of a rehearsal is a real one, with a socket to this function and an arena of
one page; it makes an actor, calls it, and is dropped. It has no thread, no signal
handler, and is not this process's `current` session, so it leaves only Python's caches.
"""

from __future__ import annotations

import os
import socket

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import array_id, function_id, root_task_id
from raytwin.runtime.control.messages import (
    ActorInfo,
    Assignment,
    FunctionBlob,
    RunTasks,
    TaskExtra,
    TaskSpec,
)
from raytwin.runtime.processes.client.worker_process import Worker
from raytwin.runtime.processes.net import wire
from raytwin.runtime.processes.net.process_settings import WorkerSettings
from raytwin.runtime.serialization.serialization import dumps_function, serialize
from raytwin.runtime.store.arena import Arena

TIMES = 12
"""Python specializes code that has run eight times. The first run takes 2 ms, each other 0.5."""
_ARENA_BYTES = 4096
_SENT_BYTES_MAX = 1 << 16
_NODE, _WORKER, _OWNER = "node:0", "worker:0.0", "driver:0.0"


def rehearse(times: int = TIMES) -> bytes:
    """Make a worker that makes and calls an actor, and drop it, `times` times.

    Returns the bytes that the last worker has sent to its node.
    """
    script = _script()
    sent = b""
    for _ in range(times):
        sent = _once(script)
    return sent


def _once(script: list[bytes]) -> bytes:
    ours, theirs = socket.socketpair()
    arena = Arena.create(_ARENA_BYTES)
    worker = Worker(WorkerSettings(_WORKER, 0, Config()), theirs, [os.dup(arena.fd)])
    world, executor = worker.world, worker.executor
    try:
        worker.report_ready()
        for frame in script:
            worker.runner.before_waiting()
            ours.sendall(frame)
            with world:
                world.process.step(0)
            while executor.queue:
                with world:
                    assignment = executor.next()
                assert assignment is not None
                worker.runner.run(assignment)
        return ours.recv(_SENT_BYTES_MAX)
    finally:
        world.close()
        arena.close()
        ours.close()


def _script() -> list[bytes]:
    """Return a node's frames to a worker: the creation of an actor, and a call."""

    class Example:
        """A local class, so that it travels by value, as a program's own classes do."""

        def __init__(self, number: int) -> None:
            self.number = number

        def method(self, number: int) -> int:
            self.number += number
            return self.number

    blob = dumps_function(Example)
    function = function_id(blob)
    args = serialize(((1,), {})).to_bytes()
    root = root_task_id("rehearsal")
    actor, call = array_id(root, 0), array_id(root, 1)
    creation = TaskSpec(actor, 0, 1, function, args, _OWNER, "", name="Example")
    creation.extra = TaskExtra(actor=ActorInfo())
    call_spec = TaskSpec(call, 0, 1, function, args, _OWNER, "", name="method")
    call_spec.extra = TaskExtra(call=actor, method="method")
    turns = (
        [FunctionBlob(function, blob), RunTasks([Assignment(creation)])],
        [RunTasks([Assignment(call_spec)])],
    )
    return [wire.encode(_NODE, _WORKER, messages) for messages in turns]
