"""What each thread of an actor does that runs several calls at a time in threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raytwin.runtime.control.core.ids import task_id
from raytwin.runtime.control.messages import Assignment
from raytwin.runtime.serialization.plain_values import again, plain_bytes
from raytwin.runtime.session.numbering import Frame, frame_of_call

if TYPE_CHECKING:
    from raytwin.runtime.execution.actor_execution import ActorRunner
    from raytwin.runtime.execution.task_execution import TaskRunner

SHORT_S = 0.001
"""A call that has taken longer has a row of its own in the timeline."""


class CallThread:
    """Runs calls one after another, beside other threads that do the same."""

    def __init__(self, actor: ActorRunner, tasks: TaskRunner) -> None:
        self._actor = actor
        self._tasks = tasks

    def serve(self, first: Assignment) -> None:
        """Run a call, and those that wait behind it, until none does."""
        try:
            self._serve(first)
        except self._tasks.world.unwinding:
            raise
        except BaseException as error:
            # Whoever runs this thread could tell nobody.
            self._actor.broken(error)

    def _serve(self, first: Assignment) -> None:
        """Do so; what is raised is no call's.

        Plain values of short calls are reported with those of the calls before, and need
        no more than one turn a call.
        """
        # As with calls one at a time one loop for all kinds of calls would take more.
        actor, tasks = self._actor, self._tasks
        world, session, executor = tasks.world, tasks.session, tasks.executor
        assignment: Assignment | None = first
        if executor.leaving:
            # One before it has ended the actor: it does not begin.
            with world:
                executor.refuse(first.spec)
                assignment = actor.next_beside()
        while assignment is not None:
            spec = assignment.spec
            frame = Frame(task_id(spec.array, 0), session.client.submitter.job)
            frame_of_call.set(frame)
            started_s = world.now()
            if not actor.is_simple(assignment):
                actor.run_beside(assignment, started_s)
                frame.over = True
                assignment = actor.next_beside()
                continue
            try:
                value = actor.prepared(assignment)()
            except BaseException as error:
                caught = [error]
                actor.report_beside(spec, lambda: again(caught), started_s)  # noqa: B023
                frame.over = True
                assignment = actor.next_beside()
                continue
            nbytes = plain_bytes(value)
            now_s = world.now()
            if (
                nbytes < 0
                or now_s - started_s > SHORT_S
                or session.client.references.counter.guarded
            ):
                given = [value]
                del value
                actor.report_beside(spec, given.pop, started_s)
                frame.over = True
                assignment = actor.next_beside()
                continue
            frame.over = True
            world.charge("run", 1)
            with world:
                session.collect()
                executor.report_plain(spec, value, nbytes, started_s, now_s)
                assignment = actor.next_beside()
        if session.uncounted:
            tasks.tidy()
        if executor.exiting:
            world.nudge()
