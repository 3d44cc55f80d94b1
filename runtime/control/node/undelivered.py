"""What a node does when a message that it has sent is too long to travel.

Its table is in `too_long`: of all that a node sends, tasks for a worker, calls, results and
lineages of actors have somebody who waits for what becomes of them.
"""

from __future__ import annotations

from raytwin.runtime.control.actors.actor_manager import ActorManager
from raytwin.runtime.control.core.call_batches import singles
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.handlers import Handlers
from raytwin.runtime.control.core.oversized_messages import results_of, unsendable
from raytwin.runtime.control.local_scheduler.dispatcher import Dispatcher
from raytwin.runtime.control.messages import TaskResults, TooLong
from raytwin.runtime.control.messages.errors import brief
from raytwin.runtime.control.node.worker_failure import WorkerFailure
from raytwin.runtime.control.objects.result_manager import ResultManager


class Undelivered:
    """Ends what one node could not send."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        dispatcher: Dispatcher,
        worker_failure: WorkerFailure,
        actors: ActorManager,
        results: ResultManager,
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._dispatcher = dispatcher
        self._worker_failure = worker_failure
        self._actors = actors
        self._results = results

    def handlers(self) -> Handlers:
        return {TooLong: self.on_too_long}

    def on_too_long(self, source: str, message: TooLong) -> None:
        """Something that this node has sent does not travel."""
        worker = self._dispatcher.workers.get(message.to)
        if worker is not None:
            self._worker_failure.end(worker, brief(unsendable(message)))
        elif message.actor:
            self._actors.end(message.actor, message.incarnation, unsendable(message))
        elif message.results:
            self._ctx.send(message.to, TaskResults(message.owner, message.results))
        else:
            tasks = singles(message.tasks)
            for result, task in zip(results_of(message, self._node), tasks, strict=True):
                self._results.finish_call(result, task.owner)
