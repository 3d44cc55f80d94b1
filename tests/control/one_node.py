"""One node, alone, with idle workers, for tests of its local scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import (
    ExportFunction,
    RunTasks,
    TasksDone,
    TaskSpec,
    Timing,
    WorkerReady,
)
from raytwin.runtime.control.node.node_manager import NodeManager
from tests.control.alone import Alone, result

DRIVER, W1, W2 = "driver:0.0", "worker:0.1", "worker:0.2"


class Node:
    """Node 0, alone, with idle workers and a function that takes 0.1 ms."""

    def __init__(self, cpus: int = 1, **resources: float) -> None:
        self.ctx = Alone()
        self.scheduler = NodeManager(self.ctx, 0, {"CPU": cpus, **resources}, Config())
        self.scheduler.start("localhost", 1)
        self.turn(DRIVER, ExportFunction(b"f", b"blob"))
        for number in range(cpus):
            self.turn(f"worker:0.{number + 1}", WorkerReady(1))
        self.scheduler.leases.times.means[b"f"] = 1e-4
        self.ctx.sent.clear()

    def turn(self, source: str, *messages: Any) -> None:
        for message in messages:
            self.scheduler.handle(source, message)
        self.scheduler.end_turn()

    def given(self, worker: str = "worker:") -> list[tuple[bytes, int, int, int]]:
        return [
            (a.spec.array, a.spec.start, a.spec.count, a.spec.retries)
            for message in self.ctx.take(RunTasks, worker)
            for a in message.tasks
        ]

    def free(self) -> dict[str, float]:
        return self.scheduler.pool.available()

    def done(self, worker: str, *rows: tuple[int, int, int]) -> None:
        results = [result(*row) for row in rows]
        timings = [Timing("t", 0.0, 1e-4 * r.count, r.count) for r in results]
        self.turn(worker, TasksDone(results, timings))


def ready(node: Node) -> Iterator[TaskSpec]:
    """Take all ranges, whether they may start or not."""
    queue = node.scheduler.dispatcher.ready
    queue.closed.clear()
    while queue.size:
        yield queue.take(queue.lanes()[0], 1 << 30)
