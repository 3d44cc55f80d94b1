"""A worker of the world of these tests: a shell with an `Executor`.

It lives as `worker_process` and `task_execution` have real ones live.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from raytwin.runtime.control.core.ids import object_id, task_id
from raytwin.runtime.control.messages import (
    OK,
    USER_ERROR,
    ActorInfo,
    Assignment,
    CancelTask,
    Exit,
    FunctionBlob,
    GrantGpus,
    RangeResult,
    RestoreActor,
    Resume,
    RunTasks,
    TakeBack,
    TaskExtra,
    TaskSpec,
    Timing,
)
from raytwin.runtime.control.worker.executor import DUE_S, Executor
from tests.control.bodies import run_body
from tests.control.shell import Shell
from tests.control.values import Code, TaskFailed, size_of

if TYPE_CHECKING:
    from tests.control.world import World

_FOR_EXECUTOR = (
    RunTasks, GrantGpus, FunctionBlob, TakeBack, Resume, RestoreActor, Exit, CancelTask
)  # fmt: skip


class Worker(Shell):
    """One that runs what its node gives it."""

    def __init__(self, world: World, address: str, node: int) -> None:
        super().__init__(world, address, node)
        self.running: bytes = b""
        self._info = ActorInfo()
        self._calls = 0
        executor = self.executor = Executor(self.ctx, node, world.config)
        executor.before_results = self.client.buffer.flush
        executor.pack = msgspec.msgpack.encode
        world.turn(address, lambda: executor.start(1))
        self.start(self._work())

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, _FOR_EXECUTOR):
            self.executor.handle(source, message)
        else:
            super().handle(source, message)

    def end_turn(self) -> None:
        self.executor.end_turn()
        super().end_turn()

    def _advance(self) -> None:
        try:
            super()._advance()
        finally:
            if self.node in self.world.nodes:
                self.world.check_running(self.node)

    # -- what differs within a task --------------------------------------------

    def _wait(self, ready: Callable[[], bool]) -> Code:
        if ready():
            return
        executor = self.executor
        executor.block()
        self.waits = True
        yield ready
        executor.unblock()
        yield lambda: not executor.suspended
        self.waits, self.went_on = False, True

    def _enter(self) -> None:
        if self.executor.running is not None:
            running = task_id(self.executor.running.array, self.executor.current())
            if running != self.running:
                self.running = running
                self.client.submitter.begin_task(running)

    def _depth(self) -> int:
        running = self.executor.running
        return 1 if running is None else running.depth + 1

    def _next_array(self) -> bytes:
        self._enter()
        return super()._next_array()

    def _next_put(self) -> bytes:
        self._enter()
        return super()._next_put()

    # -- its life --------------------------------------------------------------

    def _work(self) -> Code:
        executor = self.executor
        while True:
            if executor.exiting:
                self.client.buffer.flush()
                self.world.at(0.0, self._leave)
                return
            assignment = executor.next()
            if assignment is None:
                self.client.buffer.flush()
                yield lambda: bool(executor.queue) or executor.exiting
                continue
            self.running = b""
            extra = assignment.spec.extra
            if extra is not None and (extra.actor is not None or extra.call):
                yield from self._run_actor(assignment, extra)
                continue
            assert assignment.spec.function in executor.functions
            self.demand = assignment.spec.demand
            if assignment.spec.first < 0:
                yield from self._run_call(assignment)
            else:
                yield from self._run_range(assignment.spec)
            self.demand = None

    def _leave(self) -> None:
        if self.world.shells.get(self.address) is self:
            self.world.kill_worker(self.address, "exit code 0")

    def _run_actor(self, assignment: Assignment, extra: TaskExtra) -> Code:
        """As `actor_execution`."""
        executor = self.executor
        if extra.actor is not None:
            assert self.history is None, "two actors on one worker"
            executor.actor = True
            self.history, self._info = [], extra.actor
            self.demand = assignment.spec.demand
            yield from self._run_call(assignment)
            return
        assert self.history is not None, "a call without an actor"
        if executor.restore is not None:
            assert not self.history, "a state on top of another"
            self.history = msgspec.msgpack.decode(executor.restore.state)
            self._calls, executor.restore = executor.restore.calls, None
        yield from self._run_call(assignment)
        self._calls += 1
        if self._info.checkpoint_interval and self._calls % self._info.checkpoint_interval == 0:
            executor.save(self._calls, msgspec.msgpack.encode(self.history))

    def _run_call(self, assignment: Assignment) -> Code:
        spec = assignment.spec
        started_s = self.ctx.now()
        views = [value.object for value in assignment.values if value.size]
        try:
            inputs = [self.decode(value) for value in assignment.values]
            for oid in views:
                self.client.pins.add_view(oid)
            body = msgspec.msgpack.decode(spec.args)[0]
            values = yield from run_body(self, body, inputs)
            if spec.returns == 1:
                values = [values]
            for oid in views:
                self.client.pins.drop_view(oid)
        except TaskFailed as error:
            for oid in views:
                self.client.pins.drop_view(oid)
            self.unpin_inputs(assignment)
            self._report(spec, error.text.encode(), started_s, 1, USER_ERROR)
            return
        self.unpin_inputs(assignment)
        yield from self._report_one(spec, 0, values, started_s)

    def _is_simple(self, spec: TaskSpec) -> bool:
        """Whether a small result of it may be reported as part of a run."""
        if spec.extra is None:
            return spec.first < 0 and not spec.start and spec.returns == 1
        return bool(spec.extra.call) and not self._info.max_restarts

    def unpin_inputs(self, assignment: Assignment) -> None:
        """The pins that came with the assignment are not needed any more."""
        for value in assignment.values:
            if value.size:
                self.client.buffer.unpin(value.object)

    def _run_range(self, spec: TaskSpec) -> Code:
        executor = self.executor
        bodies = msgspec.msgpack.decode(spec.args)
        started_s = self.ctx.now()
        while executor.running is spec:
            due_s = self.ctx.now() + DUE_S
            error: TaskFailed | None = None
            try:
                for body in bodies[executor.base - spec.first : executor.limit - spec.first]:
                    value = yield from run_body(self, body, [])
                    executor.values.append(value)
                    if executor.alerts or self.ctx.now() >= due_s:
                        break
            except TaskFailed as failed:
                error = failed
            executor.alerts.clear()
            values = list(executor.values)
            if any(size_of(value) for value in values):
                for value in values:
                    yield from self._report_one(spec, executor.base, [value], started_s)
            elif values:
                payload = msgspec.msgpack.encode(values)
                self._report(spec, payload, started_s, len(values))
            if error is not None:
                self._report(spec, error.text.encode(), started_s, 1, USER_ERROR)
            started_s = self.ctx.now()

    def _report_one(self, spec: TaskSpec, index: int, values: list[Any], started_s: float) -> Code:
        sizes, offsets, small = [], [], []
        for ret, value in enumerate(values):
            size = size_of(value)
            offset = -1
            if size:
                oid = object_id(spec.array, index, ret)
                try:
                    offset = yield from self._allocate(oid, value, size)
                except TaskFailed as full:
                    for earlier, offset in enumerate(offsets):
                        if offset >= 0:
                            self.client.requests.abandon(object_id(spec.array, index, earlier))
                    self._report(spec, full.text.encode(), started_s, 1, USER_ERROR)
                    return
            sizes.append(size)
            offsets.append(offset)
            small.append(None if size else value)
        payload = msgspec.msgpack.encode(small)
        if any(sizes):
            self._report(spec, payload, started_s, 1, OK, tuple(sizes), tuple(offsets))
        elif self._is_simple(spec):
            # It must not change until it is encoded.
            (value,) = msgspec.msgpack.decode(payload)
            executor = self.executor
            executor.report_plain(spec, value, len(payload), started_s, self.ctx.now())
        else:
            self._report(spec, payload, started_s, 1)

    def _report(
        self,
        spec: TaskSpec,
        payload: bytes,
        started_s: float,
        count: int,
        status: int = OK,
        sizes: tuple[int, ...] = (),
        offsets: tuple[int, ...] = (),
    ) -> None:
        executor = self.executor
        result = RangeResult(
            spec.array, executor.base, count, status, payload, self.node, spec.returns, sizes,
            offsets,
        )  # fmt: skip
        took_s = self.ctx.now() - started_s
        executor.report(result, Timing(spec.name, started_s, took_s, count))
