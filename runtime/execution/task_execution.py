"""Runs tasks in a worker.

A range of short tasks is one loop with one report; between elements the loop
stops only at an alert of the executor, or when `World.overdue` tells it. An element that
raises, or whose value is too large for a message, ends the report before it and is reported
alone.

The loop cannot report while an element runs. A second thread of the process calls
`TaskRunner.report_meanwhile`, and so does an element that waits: it may wait for tasks that
need the values before it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any

from raytwin.runtime.api.actors import ActorExit
from raytwin.runtime.control.core.task_ranges import job_of_task
from raytwin.runtime.control.messages import Assignment, TaskSpec
from raytwin.runtime.control.worker.executor import Executor
from raytwin.runtime.execution.actor_execution import ActorRunner
from raytwin.runtime.execution.call_execution import CallRunner, returned, single_element
from raytwin.runtime.execution.user_errors import is_cancellation, is_error
from raytwin.runtime.session.session import Session
from raytwin.runtime.session.world import World


class TaskRunner:
    """Runs the assignments of an `Executor`."""

    def __init__(self, world: World, session: Session, executor: Executor, node: int) -> None:
        self.world = world
        self.session = session
        self.references = session.references
        self.executor = executor
        self.calls = CallRunner(world, session, executor, node)
        self.reports = self.calls.reports
        executor.pack = self.reports.pack_plain
        executor.report_early = self.report_meanwhile
        self.actor: ActorRunner | None = None
        self._demand: str | None = None
        """The demand of the tasks that ran last; None if the next ones have other resources."""
        executor.on_grant = self._on_grant
        self._looping = False
        """Whether the loop over a range runs user code, so that it does not change the values."""
        self._since_s = 0.0
        """The time up to which reports account for that range."""

    def work(self) -> None:
        """Run assignments until the worker may exit."""
        executor, world = self.executor, self.world
        while not self.may_leave():
            with world:
                begins = self.has_room() and not executor.exiting
                assignment = executor.next() if begins else None
                if assignment is None:
                    self.before_waiting()
            if assignment is not None:
                self.run(assignment)
            else:
                world.block(lambda: self.has_work() or self.may_leave(), None)
        self.end()
        self.before_waiting()

    def before_waiting(self) -> None:
        """Send what the client holds back: nothing follows that it could leave with."""
        with self.world:
            self.references.collect()
            self.session.client.buffer.flush_held()

    def run(self, assignment: Assignment) -> None:
        """Run one range, and report the elements that the node has not taken back."""
        if not self.session.client.submitter.job:
            self.session.client.submitter.job = job_of_task(assignment.spec)
        rest = self.calls.run_simple(assignment, self._simple)
        if rest is not None:
            self._run(rest)

    def _run(self, assignment: Assignment) -> None:
        spec = assignment.spec
        if spec.extra is not None and (spec.extra.actor is not None or spec.extra.call):
            self._run_actor(assignment)
            return
        if spec.demand != self._demand:
            self._enter_lease(spec)
        started_s = self.world.now()
        try:
            if spec.first < 0:
                call = self.calls.prepare(assignment)
            else:
                function = self.calls.function(spec.function)
                star, items = self.world.deserialize(spec.args)
                if self.references.received:
                    self.references.contained_in_arguments(spec.array)
        except Exception as error:
            self.reports.error(spec, started_s, error)
            return
        extra = spec.extra
        if extra is not None and extra.env:
            self.world.environment.enter(extra.env)
        if extra is not None and extra.stream:
            self.calls.run_stream(spec, call, started_s)
        elif spec.first < 0:
            self.calls.run_call(spec, call, started_s)
        else:
            if star:
                plain = function

                def function(item: Any) -> Any:
                    return plain(*item)

            self._run_range(spec, function, items, started_s)
        if extra is not None and extra.env:
            self.world.environment.leave()
        if self.references.dropped:
            self.calls.tidy()

    def _simple(self, assignment: Assignment) -> Callable[[], Any] | None:
        """Return a call whose value may be reported with others'; None for any other call."""
        spec = assignment.spec
        if spec.extra is not None or spec.first >= 0 or spec.start or spec.returns != 1:
            return None
        if spec.demand != self._demand:
            self._enter_lease(spec)
        return self.calls.prepare(assignment) if spec.args else self.calls.function(spec.function)

    def _enter_lease(self, spec: TaskSpec) -> None:
        """The worker has a lease of other resources now: the task is the first with them."""
        self._demand = spec.demand
        self.world.enter_lease(spec.demand, self.executor.gpus)

    def _on_grant(self) -> None:
        self._demand = None

    def has_room(self) -> bool:
        """Whether another assignment may begin now."""
        return self.actor is None or self.actor.has_room()

    def has_work(self) -> bool:
        """Whether an assignment is here and may begin."""
        return bool(self.executor.queue) and self.has_room() and not self.executor.exiting

    def may_leave(self) -> bool:
        """Whether there is nothing left to run, and no call runs in another thread."""
        executor = self.executor
        if not executor.exiting:
            return False  # the common case, tested several times a call
        return self.actor is None or executor.crashed or self.actor.is_idle()

    def end(self) -> None:
        """Run the actor's shutdown code, if there is an actor, before the process ends."""
        if self.actor is not None:
            self.actor.end()

    def _run_actor(self, assignment: Assignment) -> None:
        if self.actor is None:
            extra = assignment.spec.extra
            assert extra is not None
            spec = assignment.spec
            self._enter_lease(spec)
            self.session.context.actor = (spec.array, extra.actor)
            self.session.context.creation_options = (spec.demand, extra)
            actors = self.session.actors
            actors.actor_function, actors.actor_owner = spec.function, spec.owner
            self.actor = ActorRunner(self.calls, assignment)
        else:
            try:
                self.actor.call(assignment)
            except ActorExit as leaving:
                # Not the method has raised it, but a checkpoint or the pickling of a value.
                self.actor.exit(leaving)

    # -- a range ---------------------------------------------------------------

    def _run_range(
        self, spec: TaskSpec, function: Callable[[Any], Any], items: Any, started_s: float
    ) -> None:
        executor = self.executor
        self._since_s = started_s
        while executor.running is spec:
            at = executor.base
            alerts = executor.alerts
            overdue = self.world.overdue()
            append = executor.values.append
            error: BaseException | None = None
            cancelled = False
            self._looping = True
            value = None
            try:
                for item in items[at - spec.first : executor.limit - spec.first]:
                    value = function(item)
                    # Tested here, as a call of `returned` would cost more than a short element.
                    append(returned(spec, value) if type(value) is GeneratorType else value)
                    if alerts or (overdue is not None and overdue()):
                        break
            except BaseException as raised:
                if not is_error(raised, self.world):
                    raise
                cancelled = is_cancellation(raised)
                error = None if cancelled else raised
            del value  # the references inside are counted below
            if self.session.futures.thread is not None:
                self.session.futures.abandon()
            with self.world:
                self._looping = False
                # The node may have taken elements back while the loop ran, but none of these.
                alerts.clear()
                values = list(executor.values)
                done = executor.current()
                unwanted = executor.cancelled == done  # reporting the values resets `cancelled`
            if values:
                self._since_s = self.reports.values(spec, self._since_s, values)
            if error is not None:
                one = single_element(spec, done)
                if unwanted:
                    one.retries = 0
                self._since_s = self.reports.error(one, self._since_s, error)
            elif cancelled:
                self._since_s = self.reports.cancelled(single_element(spec, done), self._since_s)

    def report_meanwhile(self) -> None:
        """Report the values of a range so far, while one of its elements runs.

        Called within a turn, by another thread or by an element that waits.
        The loop itself reports values that are too large or contain references.
        """
        values = list(self.executor.values)
        spec = self.executor.running
        if self._looping and spec is not None and values:
            self._since_s = self.reports.early(spec, self._since_s, values)
