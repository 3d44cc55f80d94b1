"""The worker's queue: the next task to run, reports of results, tasks given back.

The world runs user code; this machine decides the rest::

    RunTasks ──> QUEUED ──next()──> RUNNING ──report()──> REPORTED
                   │                   │ an element at a time
                   └────TakenBack──────┘ its unstarted tail only

Results wait up to ``linger_s`` to leave in one message with later ones, unless the queue is empty.
When the running element waits in `get`, the worker gives all unstarted elements back to the node:
the running element might wait for one of them. A driver on the same node may call an actor past
the node: see `direct_answers`.

The worker of an **actor** gives nothing back, since no other worker can run its calls. A
`concurrent` actor runs several calls at a time, and reports each when it has ended. The
cancellation of a running call::

    plain, or in a thread   the call continues and can ask (`is_canceled`); its value is dropped
    a generator of these    the call ends where it would yield its next item
    a coroutine             the call is cancelled where it waits (`on_cancel_call`)

Each of these calls took effect: it is counted and logged. Its result has the number of items after
which it was cancelled, and a replay is cancelled after as many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from raytwin.runtime.control.core.call_batches import BATCH_MAX, batch_of_results, is_batch, singles
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Timer
from raytwin.runtime.control.core.ids import ARRAY_BYTES, STREAM_BASE, task_id
from raytwin.runtime.control.messages import (
    NOT_BEGUN,
    OK,
    Assignment,
    Blocked,
    CancelTask,
    DirectCall,
    Exit,
    ExitActor,
    FunctionBlob,
    GrantGpus,
    RangeResult,
    RestoreActor,
    Resume,
    RunTasks,
    SaveActor,
    StreamItems,
    TakeBack,
    TakenBack,
    TaskResults,
    TasksDone,
    TaskSpec,
    Timing,
    Unblocked,
    WorkerReady,
)
from raytwin.runtime.control.messages.errors import ActorDeath
from raytwin.runtime.control.worker.direct_answers import DirectAnswers, is_small

DUE_S = 0.005
"""How long a running range may go without a report."""
OVERDUE_LINGERS = 5
"""Results wait so many ``linger_s`` at most, even if the world runs the timer late."""


def report_ready(ctx: Context, node: str, pid: int) -> None:
    """Report to the node that a worker's process can run tasks."""
    ctx.send(node, WorkerReady(pid))


class Executor:
    """The assigned ranges of one worker, and the results that it has not sent."""

    def __init__(self, ctx: Context, node: int, config: Config) -> None:
        self.ctx = ctx
        self.node = f"node:{node}"
        self.config = config
        self.queue: deque[Assignment] = deque()
        self.functions: dict[bytes, bytes] = {}
        self.gpus: tuple[int, ...] = ()
        """The numbers of the GPUs that its tasks or its actor have."""
        self.on_grant: Callable[[], None] = _nothing
        """Called when tasks with other GPUs are about to come."""
        self.exiting = False
        """Whether no further task or call begins."""
        self.leaving: ActorDeath | None = None
        """Why the actor ends itself, once its running calls have ended."""
        self.crashed = False
        """Whether its process is about to end, even if calls run."""
        self.actor = False
        """Whether the worker runs an actor."""
        self.concurrent = False
        """Whether several calls may run at a time."""
        self.restore: RestoreActor | None = None
        """The checkpoint that the actor restores before its next call."""
        self.suspended = False
        """Whether the running element waits, or has continued before the node's `Resume`."""
        self.resumes = 0
        """The number of `Resume` messages from the node."""
        self.alerts: list[str] = []
        """Not empty: the runner must call the executor before the next element."""
        self.values: list[Any] = []
        """The values of the running range that are not reported yet."""
        self.running: TaskSpec | None = None
        self.base = 0
        """The element that ``values[0]`` belongs to."""
        self.limit = 0
        """The element at which the running range ends; it may only shrink."""
        self.before_results: Callable[[], None] = lambda: None
        """Sends the puts and submissions of tasks whose results may refer to them."""
        self.report_early: Callable[[], None] = _nothing
        """Reports the values of the running range so far."""
        self.cancelled = -1
        """The element of the running range to interrupt, -1 for none."""
        self.interrupt = False
        """Whether the world must still interrupt it; the world resets this."""
        self._requests: set[tuple[int, str]] = set()
        """(element, request) of each interruption of the running range."""
        self._requests_of = b""
        self.on_cancel: Callable[[CancelTask], None] | None = None
        """Called when the running element is cancelled."""
        self.on_cancel_call: Callable[[bytes], None] | None = None
        """In an actor of coroutines: called when a running call is cancelled."""
        self.cancelled_calls: dict[bytes, int] = {}
        """Running calls of an actor that were cancelled, each with its number of items then. A
        replayed call is cancelled as soon as it has yielded as many."""
        self._yielded: dict[bytes, int] = {}
        """The number of items that each call of an actor has yielded."""
        self._concurrent: set[bytes] = set()
        """Calls that run concurrently."""
        self.pack: Callable[[list[Any]], bytes] = _never_packed
        """Serializes the list of values of consecutive calls."""
        self._batch_arrays: list[bytes] = []
        """Calls that ended with plain values, after all other results."""
        self._batch_values: list[Any] = []
        self._batch_bytes = 0
        self._batch_name = ""
        self._batch_started_s = 0.0
        self._batch_ended_s = 0.0
        self._batch_timings: list[Timing] = []
        """Of tasks, one each; for an actor's calls only the total time is known."""
        self._results: list[RangeResult] = []
        self._timings: list[Timing] = []
        self._timer: Timer | None = None
        self._flushed_s = float("-inf")
        self.direct = DirectAnswers(ctx, self.node, config)

    def start(self, pid: int) -> None:
        """Report that the worker can run tasks."""
        report_ready(self.ctx, self.node, pid)

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        if isinstance(message, RunTasks):
            if self.leaving:
                return
            for assignment in message.tasks:
                if is_batch(assignment.spec):
                    self.queue.extend(map(Assignment, singles([assignment.spec])))
                elif self.actor and assignment.spec.array == self.direct.call:
                    ended = self.direct.published()
                    if ended is not None:
                        self._add_result(*ended)
                else:
                    self.queue.append(assignment)
            if self.suspended:
                # The node sent these before it knew that the running element waits, maybe for them.
                self._give_back()
        elif isinstance(message, DirectCall):
            if not self.leaving:
                self.direct.begin(message.task.array)
                self.queue.append(Assignment(message.task))
        elif isinstance(message, FunctionBlob):
            self.functions[message.function] = message.blob
        elif isinstance(message, GrantGpus):
            self.gpus = message.numbers
            self.on_grant()
        elif isinstance(message, TakeBack):
            self._give_back(message.number)
        elif isinstance(message, Resume):
            self.suspended = False
            self.resumes += 1
        elif isinstance(message, RestoreActor):
            self.restore = message
        elif isinstance(message, CancelTask):
            self._cancel(message)
        else:
            assert isinstance(message, Exit), f"an executor was sent {type(message).__name__}"
            self.exiting = True
            self.direct.end()

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    # -- running ---------------------------------------------------------------

    def next(self) -> Assignment | None:
        """Take the next range to run, None while there is none."""
        if not self.queue:
            return None
        assignment = self.queue.popleft()
        spec = assignment.spec
        if assignment.cancelled >= 0:
            self.cancelled_calls[spec.array] = assignment.cancelled
        if self.concurrent:
            self._concurrent.add(spec.array)
            return assignment
        self.direct.call_begins()
        self.running = spec
        self.base = spec.start
        self.limit = spec.start + spec.count
        self.values = []
        self.alerts.clear()
        self.end_interrupt()
        return assignment

    def run_concurrently(self, spec: TaskSpec) -> None:
        """Let the call that was taken last run concurrently with later ones."""
        self.concurrent = True
        self.running = None
        self._concurrent.add(spec.array)

    def current(self) -> int:
        """Return the element that runs now."""
        return self.base + len(self.values)

    def report(self, result: RangeResult, timing: Timing) -> None:
        """Report elements from `base` on; more of the range may follow."""
        self.base = result.start + result.count
        # Elements that ran and are not reported yet still count as started.
        del self.values[: result.count]
        spec = self.running
        if self.base >= self.limit:
            self.running = None
        if not self.actor:
            self._add_result(result, timing)
            return
        self._end_call(result)
        self._end(result, timing)
        if spec is not None and not self.queue:
            self.direct.offer(spec, is_small(result))

    def report_call(self, result: RangeResult, timing: Timing) -> None:
        """A call of a concurrent actor is done."""
        self._end_call(result)
        self._add_result(result, timing)

    def _end_call(self, result: RangeResult) -> None:
        self._concurrent.discard(result.array)
        items = self._yielded.pop(result.array, 0)
        cancelled = -1 if self.cancelled_calls.pop(result.array, None) is None else items
        if result.status != OK:
            # If the call was cancelled after its end, its value is a regular value.
            result.cancelled = cancelled

    def report_plain(
        self, spec: TaskSpec, value: Any, nbytes: int, started_s: float, now_s: float
    ) -> None:
        """Report a call whose value cannot change, so that it is serialized with others later.

        Its serialized form has about `nbytes` bytes.
        """
        self.base += 1
        self.running = None
        self.end_interrupt()
        if self.cancelled_calls:
            # A cancellation came after the end of the call, whose value was on its way here.
            self.cancelled_calls.pop(spec.array, None)
        if self.actor and spec.array == self.direct.call:
            result = batch_of_results([spec.array], self.pack([value]), int(self.node[5:]))
            self._end(result, Timing(spec.name, started_s, now_s - started_s, 1))
            return
        arrays = self._batch_arrays
        if arrays and (
            spec.name != self._batch_name
            or len(arrays) == BATCH_MAX
            or self._batch_bytes + nbytes > self.config.inline_bytes_max
        ):
            self._end_batch()
            arrays = self._batch_arrays
        if not arrays:
            self._batch_name, self._batch_started_s, self._batch_bytes = spec.name, started_s, 0
        arrays.append(spec.array)
        self._batch_values.append(value)
        self._batch_bytes += nbytes
        self._batch_ended_s = now_s
        if not self.actor:
            self._batch_timings.append(Timing(spec.name, started_s, now_s - started_s, 1))
        if not self.queue:
            alone = len(arrays) == 1 and not self._results
            self.flush(alone and not self.actor and self.direct.answers_task(spec))
            if self.actor:
                self.direct.offer(spec, small=True)
            return
        if self._timer is None or self._is_overdue(now_s):
            self._flush_soon()

    def _end(self, result: RangeResult, timing: Timing) -> None:
        """An actor's call has ended: report it to the node, or answer the driver."""
        if result.array != self.direct.call:
            self._add_result(result, timing)
            return
        self.before_results()
        self.direct.answer(result, timing)
        if not self.queue and (self._results or self._batch_arrays):
            self.flush()

    def _end_batch(self) -> None:
        """Close the batch: later results follow it."""
        arrays = self._batch_arrays
        if arrays:
            payload = self.pack(self._batch_values)
            self._results.append(batch_of_results(arrays, payload, int(self.node[5:])))
            if self.actor:
                began_s = self._batch_started_s
                elapsed_s = self._batch_ended_s - began_s
                self._timings.append(Timing(self._batch_name, began_s, elapsed_s, len(arrays)))
            else:
                self._timings += self._batch_timings
                self._batch_timings = []
            self._batch_arrays, self._batch_values = [], []

    def _add_result(self, result: RangeResult, timing: Timing) -> None:
        self._end_batch()
        self._results.append(result)
        self._timings.append(timing)
        if self.running is None and not self.queue:
            self.flush()
        elif self._timer is None or self._is_overdue(self.ctx.now()):
            self._flush_soon()

    def _is_overdue(self, now_s: float) -> bool:
        """Whether results are overdue: the world may run the timer only after the whole queue."""
        return now_s - self._flushed_s >= OVERDUE_LINGERS * self.config.linger_s

    def _flush_soon(self) -> None:
        if self.ctx.now() - self._flushed_s >= self.config.linger_s:
            self.flush()
        elif self._timer is None:
            self._timer = self.ctx.after(self.config.linger_s, self._on_timer)

    def items(self, results: list[RangeResult]) -> None:
        """Send items that the running task has yielded; see `ids`."""
        if self.actor:
            for result in results:
                self._yielded[result.array] = result.start - STREAM_BASE + 1
        self.ctx.send(self.node, StreamItems(results))

    # -- cancelling ------------------------------------------------------------

    def _cancel(self, message: CancelTask) -> None:
        """Interrupt the running element; the node takes unstarted elements back instead."""
        if self.actor:
            self._cancel_call(message)
            return
        running = self.running
        if running is None or running.array != message.array:
            return
        current = self.current()
        if message.start <= current < message.start + message.count:
            if self._is_known(running.array, current, message.request):
                return
            self.cancelled = current
            self.interrupt = True
            if self.on_cancel is not None:
                self.on_cancel(message)

    def _is_known(self, array: bytes, element: int, request: str) -> bool:
        """Whether an element was interrupted for a request before."""
        if self._requests_of != array:
            self._requests_of = array
            self._requests.clear()
        if (element, request) in self._requests:
            return True
        if request:
            self._requests.add((element, request))
        return False

    def _cancel_call(self, message: CancelTask) -> None:
        """End a call that has not begun; ask a running one to end."""
        for assignment in self.queue:
            spec = assignment.spec
            if spec.array == message.array:
                self.queue.remove(assignment)
                self._give_up(spec)
                return
        running = self.running is not None and self.running.array == message.array
        if not (running or message.array in self._concurrent):
            return
        self.cancelled_calls.setdefault(message.array, 0)
        if self.on_cancel_call is not None:
            self.on_cancel_call(message.array)

    def _give_up(self, spec: TaskSpec) -> None:
        """End a call that has not begun."""
        node = int(self.node.partition(":")[2])
        result = RangeResult(spec.array, 0, 1, NOT_BEGUN, b"", node, spec.returns)
        self._end(result, Timing(spec.name, self.ctx.now(), 0.0, 1))

    def is_cancelled(self, task: bytes) -> bool:
        """Whether a running task or call was cancelled, and may learn so."""
        if self.actor:
            after = self.cancelled_calls.get(task[:ARRAY_BYTES])
            return after is not None and after <= self._yielded.get(task[:ARRAY_BYTES], 0)
        running = self.running
        return (
            running is not None
            and self.cancelled == self.current()
            and task == task_id(running.array, self.cancelled)
        )

    def end_interrupt(self) -> None:
        """The element has ended, whether the interruption ended it or not."""
        self.cancelled = -1
        self.interrupt = False

    # -- reporting -------------------------------------------------------------

    def flush(self, to_driver: bool = False) -> None:
        """Send all buffered results to the node, and maybe to the driver that owns them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_batch()
        if self._results:
            self.before_results()
            self.ctx.send(self.node, TasksDone(self._results, self._timings, to_driver))
            if to_driver:
                self.ctx.send(self.direct.driver, TaskResults(self.direct.driver, self._results))
            self._results, self._timings = [], []
        self._flushed_s = self.ctx.now()

    def save(self, upto: int, state: bytes) -> None:
        """Send a checkpoint: the actor's state after its first `upto` calls, all reported."""
        self.flush()
        self.ctx.send(self.node, SaveActor(b"", 0, upto, state))

    def leave(self, why: ActorDeath) -> None:
        """End the actor at its own request: running calls continue, and no further call begins."""
        self.exiting = True
        if not self.leaving:
            self.leaving = why
            self.queue.clear()
            self.flush()
            self.direct.end()
            self.ctx.send(self.node, ExitActor(why))

    def crash(self, why: ActorDeath) -> None:
        """The actor's process ends at once, and the actor may restart."""
        self.exiting = self.crashed = True
        if not self.leaving:
            self.flush()
            self.direct.end()
            self.ctx.send(self.node, ExitActor(why, crashed=True))

    def _on_timer(self) -> None:
        self._timer = None
        self.flush()

    # -- giving back -----------------------------------------------------------

    def block(self) -> None:
        """Give back the CPU of the running element, which begins to wait, and all unstarted
        elements."""
        self.suspended = True
        self.report_early()
        self.flush()
        self._give_back()
        self.ctx.send(self.node, Blocked())

    def unblock(self) -> None:
        """Take the CPU back for the running element, which continues once `suspended` is false."""
        self.ctx.send(self.node, Unblocked())

    def _give_back(self, answers: int = 0) -> None:
        if self.actor:
            return
        ranges = [(a.spec.array, a.spec.start, a.spec.count) for a in self.queue]
        self.queue.clear()
        if self.running is not None:
            # Raise the alert first: when the runner next checks it, the running element is
            # still the one counted here, or that one is done.
            self.alerts.append("limit")
            unstarted = self.current() + 1
            if unstarted < self.limit:
                ranges.insert(0, (self.running.array, unstarted, self.limit - unstarted))
                self.limit = unstarted
        if ranges or answers:
            self.flush()
            self.ctx.send(self.node, TakenBack(ranges, answers))


def _nothing() -> None:
    """Do nothing: the default of the world's callbacks."""


def _never_packed(values: list[Any]) -> bytes:
    raise AssertionError("`pack` is not set")
