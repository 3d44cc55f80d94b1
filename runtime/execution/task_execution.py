"""Running tasks in a worker: decode and call; `reporting` tells what became of them.

A range of short tasks is one loop with one report; between elements the loop
looks up only when told to (`World.due`). An element's error, or a value too
large for a message, ends a report early: such an element is reported alone.

The loop cannot look up while an element runs. Where a process has a thread to
spare, that calls `TaskRunner.report_meanwhile`, and so does an element that waits:
the values before it are not held back by it, which may wait for what they lead to.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any

from raytwin.runtime.api.actors import ActorExit
from raytwin.runtime.api.backend import World
from raytwin.runtime.api.refs import ObjectRef
from raytwin.runtime.api.streams import DynamicObjectRefGenerator
from raytwin.runtime.control.core.stream_ids import item_id
from raytwin.runtime.control.core.task_ranges import job_of_task
from raytwin.runtime.control.messages import STREAM, Assignment, TaskSpec
from raytwin.runtime.control.worker.executor import Executor
from raytwin.runtime.execution.actor_execution import ActorRunner
from raytwin.runtime.execution.reporting import Reporter, one_of
from raytwin.runtime.execution.returns import close, returned
from raytwin.runtime.execution.user_errors import was_cancelled
from raytwin.runtime.serialization.dependency_placeholders import Input
from raytwin.runtime.serialization.plain_values import again, plain_bytes
from raytwin.runtime.session import Session, job_setup


class TaskRunner:
    """Runs what an `Executor` hands out."""

    def __init__(self, world: World, session: Session, executor: Executor, node: int) -> None:
        self.world = world
        self.session = session
        self.executor = executor
        executor.before_results = session.client.buffer.flush
        self.reports = Reporter(world, session, executor, node)
        executor.pack = self.reports.pack_plain
        executor.report_early = self.report_meanwhile
        self._functions: dict[bytes, Callable[..., Any]] = {}
        session.loaded = self.function
        self.actor: ActorRunner | None = None
        self._looping = False
        """User code runs in the loop over a range, and nobody else touches its values."""
        self._since_s = 0.0
        """Up to when that range's time is reported."""

    def run(self, assignment: Assignment) -> None:
        """Run one range and report all of it that was not given back."""
        spec = assignment.spec
        if not self.session.client.submitter.job:
            self.session.client.submitter.job = job_of_task(spec)
        if _is_simple(spec):
            self._run_several(assignment)
            return
        if spec.extra is not None and (spec.extra.actor is not None or spec.extra.call):
            self._run_actor(assignment)
            return
        started_s = self.world.now()
        try:
            if spec.first < 0:
                call = self.prepare(assignment)
            else:
                function = self.function(spec.function)
                star, items = self.world.deserialize(spec.args)
                if self.session.received:
                    self.session.came_in_arguments(spec.array)
        except Exception as error:
            self.reports.error(spec, started_s, error)
            return
        extra = spec.extra
        if extra is not None and extra.env:
            self.world.environment.enter(extra.env)
        if extra is not None and extra.stream:
            self.run_stream(spec, call, started_s)
        elif spec.first < 0:
            self.run_call(spec, call, started_s)
        else:
            if star:
                plain = function

                def function(item: Any) -> Any:
                    return plain(*item)

            self._run_range(spec, function, items, started_s)
        if extra is not None and extra.env:
            self.world.environment.leave()
        if self.session.uncounted:
            self.tidy()

    def _run_several(self, first: Assignment) -> None:
        """Run a call, and those behind it as long as they are of the simple kind.

        Plain values are reported with those of the calls before, and need no more than
        one turn a call.
        """
        # An actor's calls have such a loop of their own. One for both, which asks each kind
        # what is simple and how it is called, takes up to two Python calls more for each:
        # 2 to 5% of the CPU time that one takes here, be it in a row (1.7 us) or alone (8.2 us).
        world, session, executor = self.world, self.session, self.executor
        assignment: Assignment | None = first
        started_s = world.now()
        while assignment is not None:
            spec = assignment.spec
            if not _is_simple(spec):
                self.run(assignment)
                return
            try:
                # Nothing here keeps the arguments: what they let go of is counted below.
                value = (self.prepare(assignment) if spec.args else self.function(spec.function))()
                session.futures.abandon()
            except BaseException as error:
                caught = [error]
                self.run_call(spec, lambda: again(caught), started_s)  # noqa: B023
                break
            nbytes = plain_bytes(value)
            if nbytes < 0 or session.client.references.counter.guarded:
                given = [value]
                del value
                self.run_call(spec, given.pop, started_s)
                break
            world.charge("run", 1)
            now_s = world.now()
            with world:
                session.collect()
                executor.report_plain(spec, value, nbytes, started_s, now_s)
                assignment = None if executor.exiting else executor.next()
            started_s = now_s
        if session.uncounted:
            self.tidy()

    def tidy(self) -> None:
        """Count what the last task has dropped with its end."""
        with self.world:
            self.session.collect()

    def has_room(self) -> bool:
        """Whether another assignment may begin now."""
        return self.actor is None or self.actor.has_room()

    def has_work(self) -> bool:
        """Whether one is here and may begin."""
        return bool(self.executor.queue) and self.has_room() and not self.executor.exiting

    def may_leave(self) -> bool:
        """Whether nothing more is to be run, and nothing runs beside the program."""
        executor = self.executor
        if not executor.exiting:
            return False  # as most often, and it is asked several times a call
        return self.actor is None or executor.crashed or self.actor.is_idle()

    def end(self) -> None:
        """Do what there is to do before the process ends."""
        if self.actor is not None:
            self.actor.end()

    def _run_actor(self, assignment: Assignment) -> None:
        if self.actor is None:
            extra = assignment.spec.extra
            assert extra is not None
            spec = assignment.spec
            self.session.actor = (spec.array, extra.actor)
            self.session.actor_stands = (spec.demand, extra)
            self.session.actor_function, self.session.actor_owner = spec.function, spec.owner
            self.actor = ActorRunner(self, assignment)
        else:
            try:
                self.actor.call(assignment)
            except ActorExit as leaving:
                # Not the call itself: what saves or restores the state, or writes a value.
                self.actor.exit(leaving)

    # -- a call ----------------------------------------------------------------

    def prepare(
        self, assignment: Assignment, of_actor: Callable[..., Any] | None = None
    ) -> Callable[[], Any]:
        """Return the call with everything in its place."""
        spec = assignment.spec
        unread = list(reversed(assignment.values))
        try:
            function = of_actor or self.function(spec.function)
            if not spec.args:
                return function
            args, kwargs = self.world.deserialize(spec.args)
            if unread:
                inputs = []
                while unread:
                    inputs.append(self.session.decode_input(unread.pop()))
                args = [inputs[a.index] if type(a) is Input else a for a in args]
                kwargs = {n: inputs[a.index] if type(a) is Input else a for n, a in kwargs.items()}
        finally:
            for value in unread:
                self.session.skip_input(value)
        if self.session.received:
            self.session.came_in_arguments(spec.array)
            # The arguments go when the function ends: what is left then was kept.
            given = [(args, kwargs)]

            def once() -> Any:
                positional, named = given.pop()
                return function(*positional, **named)

            return once
        return lambda: function(*args, **kwargs)

    def run_call(self, spec: TaskSpec, call: Callable[[], Any], started_s: float) -> None:
        """Run a call and report what became of it."""
        try:
            try:
                value = returned(spec, call())
            finally:
                if not self.executor.concurrent:
                    self.session.futures.abandon()
            values = [value]
            del value
            if self.executor.is_cancelled(spec.array):
                values.clear()
                self.reports.cancelled(spec, started_s, interrupted=False)
                return
        except Exception as error:
            self.reports.error(spec, started_s, error)
            return
        except BaseException as error:
            if not self._is_cancelled(error):
                raise  # the task's own: it ends the worker
            self.reports.cancelled(spec, started_s)
            return
        self.reports.values(spec, started_s, values)

    def _is_cancelled(self, error: BaseException) -> bool:
        """Whether an error is a cancellation: by `cancel`, or within asyncio."""
        by_cancel = isinstance(error, KeyboardInterrupt) and self.executor.cancelled >= 0
        return by_cancel or was_cancelled(error)

    # -- a stream --------------------------------------------------------------

    def run_stream(self, spec: TaskSpec, call: Callable[[], Any], started_s: float) -> None:
        """Report items as they come, then how many there were; see `streams`."""
        assert spec.extra is not None
        count = 0
        try:
            try:
                values = call()
                for value in values:
                    if self.executor.is_cancelled(spec.array):
                        close(values)
                        break
                    self.reports.item(spec, count, value)
                    count += 1
                del values
            finally:
                if not self.executor.concurrent:
                    self.session.futures.abandon()
        except Exception as error:
            if self.reports.wants_retry(spec, error):
                self.reports.error(spec, started_s, error)
                return
            if self.executor.is_cancelled(spec.array):
                self.reports.cancelled(spec, started_s)
                return
            self.reports.last(spec, count, error)
            count += 1
        except BaseException as error:
            if not self._is_cancelled(error):
                raise
            self.reports.cancelled(spec, started_s)
            return
        if self.executor.is_cancelled(spec.array):
            self.reports.cancelled(spec, started_s, interrupted=False)
            return
        if spec.extra.stream == STREAM:
            self.reports.values(spec, started_s, [count])
            return
        with self.world:
            self.session.client.references.counter.receive(spec.array, spec.owner)
            refs = [ObjectRef(item_id(spec.array, index), self.session) for index in range(count)]
        self.reports.values(spec, started_s, [DynamicObjectRefGenerator(refs)])

    # -- a range ---------------------------------------------------------------

    def _run_range(
        self, spec: TaskSpec, function: Callable[[Any], Any], items: Any, started_s: float
    ) -> None:
        executor = self.executor
        self._since_s = started_s
        while executor.running is spec:
            at = executor.base
            due = self.world.due()
            append = executor.values.append
            error: Exception | None = None
            cancelled = False
            self._looping = True
            value = None
            try:
                for item in items[at - spec.first : executor.limit - spec.first]:
                    value = function(item)
                    # Asked here, as a call of `returned` would cost more than short elements do.
                    append(returned(spec, value) if type(value) is GeneratorType else value)
                    if due():
                        break
            except Exception as raised:
                error = raised
            except BaseException as raised:
                if not self._is_cancelled(raised):
                    raise
                cancelled = True
            del value  # what it refers to is counted below
            self.session.futures.abandon()
            with self.world:
                self._looping = False
                # The limit may have come down while the loop ran; the elements
                # below it are still this worker's.
                executor.alerts.clear()
                values = list(executor.values)
                done = executor.current()
                unwanted = executor.cancelled == done  # forgotten when values are reported
            if values:
                self._since_s = self.reports.values(spec, self._since_s, values)
            if error is not None:
                one = one_of(spec, done)
                if unwanted:
                    one.retries = 0
                self._since_s = self.reports.error(one, self._since_s, error)
            elif cancelled:
                self._since_s = self.reports.cancelled(one_of(spec, done), self._since_s)

    def report_meanwhile(self) -> None:
        """Report what a range has made so far, while an element of it runs.

        Called within a turn, by whoever waits beside that element or within it.
        What cannot be reported so is left to that one.
        """
        values = list(self.executor.values)
        spec = self.executor.running
        if self._looping and spec is not None and values:
            self._since_s = self.reports.early(spec, self._since_s, values)

    # -- functions -------------------------------------------------------------

    def function(self, key: bytes) -> Callable[..., Any]:
        function = self._functions.get(key)
        if function is None:
            setup, blob = job_setup.unwrap(self.executor.functions[key])
            if setup and setup != self.session.setup:
                job_setup.apply(setup)
                self.session.setup = setup
            function = self.world.loads_function(blob)
            self._functions[key] = function
        return function


def _is_simple(spec: TaskSpec) -> bool:
    """Whether its result can be part of a run: a call with one value, and nothing special."""
    return spec.extra is None and spec.first < 0 and not spec.start and spec.returns == 1
