"""The threads of an actor that runs several calls at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raytwin.runtime.api.actors import ActorExit
from raytwin.runtime.control.messages import Assignment, TaskSpec
from raytwin.runtime.execution.actor_instance import BUILT_IN, ActorInstance
from raytwin.runtime.execution.call_execution import CallRunner
from raytwin.runtime.execution.reporting import again, plain_bytes
from raytwin.runtime.session.task_context import current_call

SHORT_S = 0.001
"""A call that has taken longer has a row of its own in the timeline."""


class CallThread:
    """Runs calls one after another in each thread that `serve` is called in."""

    def __init__(self, actor: ActorInstance, calls: CallRunner) -> None:
        self._actor = actor
        self._calls = calls
        self._world = calls.world
        self._executor = calls.executor

    def serve(self, first: Assignment) -> None:
        """Run a call, and the next ones until none is queued."""
        try:
            self._serve(first)
        except self._world.unwinding:
            raise
        except BaseException as error:
            # The thread would end, and no call would have a reply.
            self._actor.broken(error)

    def _serve(self, first: Assignment) -> None:
        """As `serve`; raises errors of the runtime, none of a call.

        Plain values of short calls are reported with those of the calls before, and need
        no more than one turn a call.
        """
        actor, calls = self._actor, self._calls
        world, session, executor = calls.world, calls.session, calls.executor
        assignment: Assignment | None = first
        if executor.leaving:
            # A call before this one has ended the actor.
            with world:
                executor.refuse(first.spec)
                assignment = self.next_beside()
        while assignment is not None:
            spec = assignment.spec
            context = actor.call_context(spec)
            current_call.set(context)
            started_s = world.now()
            if not self.is_simple(assignment):
                self.run_beside(assignment, started_s)
                context.over = True
                assignment = self.next_beside()
                continue
            try:
                value = self.prepared(assignment)()
            except BaseException as error:
                caught = [error]
                self.report_beside(spec, lambda: again(caught), started_s)  # noqa: B023
                context.over = True
                assignment = self.next_beside()
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
                self.report_beside(spec, given.pop, started_s)
                context.over = True
                assignment = self.next_beside()
                continue
            context.over = True
            world.charge("run", 1)
            with world:
                calls.references.collect()
                executor.report_plain(spec, value, nbytes, started_s, now_s)
                assignment = self.next_beside()
        if calls.references.dropped:
            calls.tidy()
        if executor.exiting:
            world.nudge()

    def is_simple(self, assignment: Assignment) -> bool:
        """Whether a call has arguments without dependencies and one value, and no option."""
        spec, extra = assignment.spec, assignment.spec.extra
        assert extra is not None
        special = assignment.values or extra.stream or extra.retry_on or extra.method in BUILT_IN
        return self._actor.plain and not special and spec.returns == 1

    def prepared(self, assignment: Assignment) -> Callable[[], Any]:
        """Return a simple call with its arguments decoded."""
        spec = assignment.spec
        assert spec.extra is not None
        method: Callable[[], Any] = getattr(self._actor.instance, spec.extra.method)
        return self._calls.prepare(assignment, method) if spec.args else method

    def next_beside(self) -> Assignment | None:
        """Return the next call for the calling thread; None: the thread is free from now on."""
        with self._world:
            assignment = None if self._executor.exiting else self._executor.next()
            if assignment is None:
                self._actor.running -= 1
        return assignment

    def run_beside(self, assignment: Assignment, started_s: float) -> None:
        """Run a call of any kind in a thread."""
        spec = assignment.spec
        try:
            call = self._calls.prepare(assignment, self._actor.method(spec))
        except Exception as error:
            self._calls.reports.error(spec, started_s, error)
        except BaseException as error:
            caught = [error]
            self.report_beside(spec, lambda: again(caught), started_s)
        else:
            self.report_beside(spec, call, started_s)

    def report_beside(self, spec: TaskSpec, call: Callable[[], Any], started_s: float) -> None:
        """Run a call and report it, also if it ends the actor or the process."""
        try:
            if spec.extra is not None and spec.extra.stream:
                self._calls.run_stream(spec, call, started_s)
            else:
                self._calls.run_call(spec, call, started_s)
        except ActorExit as leaving:
            self._actor.exit(leaving)
        except Exception as error:
            self._calls.reports.error(spec, started_s, error)
        except self._world.unwinding:
            raise
        except BaseException as error:
            self._actor.crashed(error)
        if self._calls.references.dropped:
            self._calls.tidy()
