"""The end of a worker: by itself, or because its node wants it.

::

    its pool ──WorkerDied──────────────┐
                                       ├──> its places in the arena are freed, owners strike it
    `end` ──KillWorker to its pool ────┘    off, what it had submitted is cancelled with it,
                                            what it owned is lost or kept for its next run
                                            (`ReleaseManager`), what it ran runs again or fails
                                            (`Dispatcher.died`)

From then on nothing is taken from it: its last words come after the news of its death. A
worker is ended with its job, with its actor, and when it was sent what does not travel.
"""

from __future__ import annotations

from raytwin.runtime.control.actors.actor_manager import ActorManager
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.core.handlers import Handlers
from raytwin.runtime.control.core.worker_record import Worker
from raytwin.runtime.control.local_scheduler.cancellation import Canceller
from raytwin.runtime.control.local_scheduler.dispatcher import Dispatcher
from raytwin.runtime.control.messages import KillWorker, WorkerDied
from raytwin.runtime.control.objects.object_directory import ObjectDirectory
from raytwin.runtime.control.objects.release_manager import ReleaseManager
from raytwin.runtime.control.ownership.contained_references import ContainedReferences


class WorkerFailure:
    """Buries the workers of one node."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        dispatcher: Dispatcher,
        objects: ObjectDirectory,
        contained_references: ContainedReferences,
        canceller: Canceller,
        actors: ActorManager,
        releases: ReleaseManager,
    ) -> None:
        self._ctx = ctx
        self._pool = f"pool:{node}"
        self._dispatcher = dispatcher
        self._objects = objects
        self._contained_references = contained_references
        self._canceller = canceller
        self._actors = actors
        self._releases = releases

    def handlers(self) -> Handlers:
        return {WorkerDied: self.on_died}

    def end(self, worker: Worker, reason: str) -> None:
        """End a worker at once, whatever it is doing."""
        self._ctx.send(self._pool, KillWorker(worker.address))
        self.on_died(self._pool, WorkerDied(worker.address, reason))

    def on_died(self, source: str, message: WorkerDied) -> None:
        """It is gone, or will be before it can do anything."""
        worker = self._dispatcher.workers.pop(message.worker, None)
        client = message.worker
        owned = [
            a for a in self._objects.drop_client(client) if self._objects.owners.release(a, client)
        ]
        self._contained_references.worker_gone(client)
        if worker is None:
            return
        running = worker.assigned[0] if worker.assigned else None
        cause = worker.killed_for
        if cause is not None:
            self._canceller.cancel_owned(worker, cause, owned)
        if owned:
            retried = cause is None and running is not None and running.retries != 0
            runs_again = retried or self._actors.may_restart(worker)
            self._releases.owner_died(client, owned, runs_again)
        self._dispatcher.died(worker, message.reason)
