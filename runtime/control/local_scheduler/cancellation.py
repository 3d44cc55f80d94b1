"""Cancellation of tasks: how a node handles `CancelTask`.

The request takes the same path as the task, so it never overtakes it (for a task that
this node has sent on it goes that way once more, if the GCS has named this node)::

    client ──> owner's node ──not here──> global scheduler ──> GCS ──> global scheduler
                                              └─ infeasible:            │ with the nodes
                                                 ends here              │ that have it
                                                    these nodes <───────┘

On a node, an element that is

* waiting for inputs, its function or a worker: ends with TaskCancelledError;
* assigned to a worker, not started: the node takes it back, then it ends in the same way;
* running: its worker raises KeyboardInterrupt in it (`Executor.interrupt`), and the exception
  that the task then raises is its result. With ``force`` the node kills the worker, and the
  element ends with TaskCancelledError;
* done: stays as it is.

A request may reach a node twice, directly and from the GCS; the worker interrupts the element
once for each request. If a range with several elements runs, the node asks the worker which one is
running, and kills the worker if it does not answer within `STUCK_S`.

`PendingCalls` cancels calls of actors. It ends a call if no worker can have begun it, else it
sends the request after the call to the actor's node (`CancelCall`), once the actor is alive. Only
the worker knows whether a call that was sent to it has begun. A call that has not begun ends at
once, takes no effect, and is neither counted nor logged. `executor` describes the end of a running
call. Calls do not allow ``force``, as it would end the actor.

With ``recursive`` the worker also cancels the children that a running element has submitted. If
the worker was killed, its node cancels all calls that it owned.

The tasks of a worker end with its process, like the objects that it owns, unless the task or actor
that it ran will run again and can take them over, or the actor has ended itself. The node cancels
them with ``force``, and so in turn their children. The request names the dead worker, not the
tasks: the worker may have released their results::

    the worker's node ──> global scheduler ──> all other nodes

A node remembers these workers, because their tasks may still be on their way to it. Calls of
actors run to their end. If the worker's task or actor does run again, but does not take a task over
in time, the node cancels that one task (`release_manager`); if the node has died, the GCS does
(`task_object_table`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import is_gcs
from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.core.failed_values import end_of, failed_value
from raytwin.runtime.control.core.ids import ELEMENTS_MAX
from raytwin.runtime.control.core.task_ranges import cut
from raytwin.runtime.control.core.worker_record import Worker
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.local_scheduler.ready_queue import ReadyQueue
from raytwin.runtime.control.local_scheduler.worker_pool import WorkerPool
from raytwin.runtime.control.messages import CancelTask, KillWorker, TaskSpec
from raytwin.runtime.control.objects.node_objects import NodeObjects

STUCK_S = 5.0
"""How long a worker may take to answer before the node kills it."""
SENT_ON_MAX = 4096
"""How many arrays with ranges sent on a node remembers, to send their cancellation on, too."""
DEAD_OWNERS_MAX = 4096
"""How many dead workers a node remembers, to end their tasks that arrive late."""


def all_tasks_of(owners: tuple[str, ...]) -> CancelTask:
    """Return the request to end all tasks of workers that have died."""
    return CancelTask(b"", 0, ELEMENTS_MAX, True, False, owners=owners)


class Canceller:
    """Cancels the elements of one node."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        ready: ReadyQueue,
        pool: WorkerPool,
        inputs: TaskInputs,
        objects: NodeObjects,
        claims: Mapping[bytes, dict[str, None]],
        cancel_call: Callable[[bytes], bool],
    ) -> None:
        """`claims`: by array, the clients that have taken it over from the owner in its specs;
        `cancel_call` cancels the call with an ID, and returns whether there is one."""
        self._ctx = ctx
        self._node = node
        self._ready = ready
        self._pool = pool
        self._inputs = inputs
        self._objects = objects
        self._claims = claims
        self._cancel_call = cancel_call
        self._dead_owners: BoundedMap[str, None] = BoundedMap(DEAD_OWNERS_MAX)
        """Workers all of whose tasks were cancelled."""
        self._sent_on: BoundedMap[bytes, bool] = BoundedMap(SENT_ON_MAX)
        """Arrays with ranges that the node has sent on; each stays for one request."""

    def handlers(self) -> Handlers:
        return {CancelTask: self.on_cancel}

    def on_cancel(self, source: str, message: CancelTask) -> None:
        """Cancel the elements that are here; forward a client's request for the others."""
        if self._cancel_call(message.array):
            return
        self._cancel_here(message)
        # With shards the GCS itself sends it to every node that may have the range.
        asked = source != "global" and not is_gcs(source)
        # The GCS may have named this node before it heard where the range is.
        sent_on = self._sent_on.pop(message.array, False)
        if (asked or sent_on) and not self._all_done(message):
            self._ctx.send("global", message)

    def sent_on(self, ranges: list[TaskSpec]) -> None:
        """The GCS believes ranges to be here that another node has stolen, or that the global
        scheduler places again: send the next request for these arrays on."""
        for spec in ranges:
            self._sent_on[spec.array] = True

    def _cancel_here(self, message: CancelTask) -> None:
        if not message.array:
            self._dead_owners.update(dict.fromkeys(message.owners))
        self.cancel_waiting(message)
        for worker in self._pool.workers.values():
            if any(self._cut(spec, message) is not None for spec in worker.assigned):
                self._cancel_on(worker, message)

    def _cut(self, spec: TaskSpec, message: CancelTask) -> TaskSpec | None:
        """Return the part of a range that the message cancels."""
        return cut(spec, message, next(reversed(self._claims.get(spec.array, {})), ""))[1]

    def cancel_waiting(self, message: CancelTask) -> None:
        """End elements that no worker has."""
        inputs = self._inputs

        def taken(spec: TaskSpec) -> TaskSpec | None:
            return self._cut(spec, message)

        for spec in [*self._ready.take_out(taken), *inputs.take_out(taken)]:
            inputs.unclaim(spec)
            inputs.fail(spec, failed_value(end_of(spec, message)))

    def on_back(self, worker: Worker) -> None:
        """A worker has given ranges back by itself, or has answered a `TakeBack`.

        Cancelled elements end before they are given to another worker. Elements that the worker
        has not given back with its answer run, or are done and reported.
        """
        asked, worker.cancels = worker.cancels, []
        for number, message in asked:
            self.cancel_waiting(message)
            if number > worker.answered:
                worker.cancels.append((number, message))
                continue
            first = worker.assigned[0] if message.force and worker.assigned else None
            if first is not None and self._cut(first, message) is not None:
                self._kill(worker, message)

    def _kill(self, worker: Worker, message: CancelTask) -> None:
        worker.is_killed, worker.kill_cause = True, message
        self._ctx.send(f"pool:{self._node}", KillWorker(worker.address))

    def _kill_stuck(self, worker: Worker, number: int, message: CancelTask) -> None:
        """The worker has not answered: it runs C code that lets no other thread run."""
        there = self._pool.workers.get(worker.address) is worker
        silent = (number, message) in worker.cancels and worker.assigned
        if there and silent and not worker.is_killed and self._cut(worker.assigned[0], message):
            # Another element may be running: it runs again, and takes its children over.
            self._kill(worker, replace(message, recursive=False))

    def cancel_calls(self, worker: Worker, cause: CancelTask, owned: list[bytes]) -> None:
        """Cancel the calls of a worker that was killed for `cause`, if that includes children."""
        if cause.recursive and worker.assigned and self._cut(worker.assigned[0], cause) is not None:
            for array in owned:
                self._cancel_call(array)

    def spares_running(self, worker: Worker, cause: CancelTask) -> bool:
        """Whether a worker that was killed for `cause` may have run an element not cancelled."""
        running = worker.assigned[0]
        part = self._cut(running, cause)
        return part is None or part.count < running.count

    def owners_died(self, owners: tuple[str, ...]) -> None:
        """End all tasks of a worker that has died, everywhere.

        `owners`: the worker, and those whose tasks it had taken over.
        """
        message = all_tasks_of(owners)
        self._cancel_here(message)
        self._ctx.send("global", message)

    def unclaimed(self, owner: str, arrays: list[bytes]) -> None:
        """End tasks of a dead worker that the next run of its task has not taken over."""
        for array in arrays:
            self.on_cancel("", CancelTask(array, 0, ELEMENTS_MAX, True, False, owners=(owner,)))

    def end_late(self, spec: TaskSpec) -> bool:
        """End a range that arrives after the death of its owner, whose tasks were ended then."""
        is_late = spec.owner in self._dead_owners
        if is_late:
            self._inputs.fail(spec, failed_value(end_of(spec, all_tasks_of((spec.owner,)))))
        return is_late

    def _cancel_on(self, worker: Worker, message: CancelTask) -> None:
        runs = worker.assigned[0]
        may_run = self._cut(runs, message) is not None
        if message.force and may_run and runs.count == 1:
            # At once, because the worker may not be able to answer.
            self._kill(worker, message)
            return
        # The worker may have ended the element without a report yet, or run another one of the
        # range: its answer shows that.
        number = self._pool.take_back(worker)
        worker.cancels.append((number, message))
        if message.force and may_run:
            self._ctx.after(STUCK_S, partial(self._kill_stuck, worker, number, message))
        if not message.force:
            self._ctx.send(worker.address, message)

    def _all_done(self, message: CancelTask) -> bool:
        """Whether all elements that the message names have ended, as far as this node knows."""
        results = self._objects.results.of(message.array)
        end = message.start + message.count
        done = sum(
            max(0, min(end, r.start + r.count) - max(message.start, r.start)) for r in results
        )
        return done >= message.count
