"""The task to which the calling code belongs, and the IDs of the task's children.

The IDs of the tasks that a task submits and of the objects that it puts follow from its own
ID and a counter (see `ids`), so that a task which runs again gives its children the same IDs. The
client has the counter of the element that the worker runs. Calls of an actor that run
concurrently, or in its event loop, have a `CallContext` each.

A thread that a task has started, or a coroutine that a call has left running, makes children
in an order that differs from run to run. A task that runs again must not take them for its
own children, so the worker numbers them under its own address, which no other worker ever has.
"""

from __future__ import annotations

from contextvars import ContextVar
from threading import get_ident

from raytwin.runtime.control.core.ids import adopted, array_id, put_id, root_task_id, task_id
from raytwin.runtime.control.messages import ActorInfo, TaskExtra, TaskSpec
from raytwin.runtime.session.world import World


class CallContext:
    """A call that runs concurrently with others in one worker: it numbers its own children.

    The children belong to the worker's job, even if another job's program has made the call.
    """

    __slots__ = ("children", "over", "parent", "puts", "spec", "task")

    def __init__(self, spec: TaskSpec, job: bytes) -> None:
        self.spec = spec
        self.task = task_id(spec.array, 0)
        self.parent = adopted(self.task, job)
        self.children = 0
        self.puts = 0
        self.over = False
        """Whether the call has ended; a coroutine that it left running is outside of all calls."""


current_call: ContextVar[CallContext | None] = ContextVar("current_call", default=None)


class TaskContext:
    """Knows the running task of a worker, and numbers the children of a task or driver."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = world.client
        self.actor: tuple[bytes, ActorInfo | None] | None = None
        self.creation_options: tuple[str, TaskExtra | None] = ("", None)
        """The demand and the extra of the actor's creation, which hold for its calls."""
        self.env_vars: tuple[tuple[str, str], ...] = ()
        """The environment variables of every task that this driver submits."""
        self._element: tuple[bytes, int, int] | None = None
        """Array, index and try of the element whose children the client numbers."""
        self.thread = get_ident()
        """The thread that runs tasks one after another; it makes the session."""
        self._outside_children = 0
        """The number of children that code outside of all tasks and calls has made."""

    def task_id(self) -> bytes | None:
        task = self.running_task()
        return None if task is None else task[1]

    def running_task(self) -> tuple[TaskSpec, bytes] | None:
        """Return the calling code's task or call, and its ID."""
        call = current_call.get()
        if call is not None:
            return call.spec, call.task
        executor = self.world.executor
        if executor is None or executor.running is None:
            return None
        return executor.running, task_id(executor.running.array, executor.current())

    @property
    def depth(self) -> int:
        """How many tasks a task is nested in that the calling code submits; see `TaskSpec`."""
        executor = self.world.executor
        if executor is None:
            return 0
        running = executor.running
        return 1 if running is None else running.depth + 1

    def is_cancelled(self) -> bool:
        """Whether the running task or call was cancelled; see `RuntimeContext.is_canceled`."""
        executor = self.world.executor
        if executor is None:
            raise RuntimeError("is_canceled() is for tasks and actors, and this is a driver")
        if executor.on_cancel_call is not None:
            raise RuntimeError(
                "is_canceled() is not for an actor of coroutines: a call that is cancelled has"
                " asyncio.CancelledError raised where it waits"
            )
        with self.world:
            task = self.task_id()
            return task is not None and executor.is_cancelled(task)

    def gpus(self) -> list[int]:
        """Return the numbers of the GPUs that the running task or actor has."""
        return [] if self.world.executor is None else list(self.world.executor.gpus)

    def options_in_force(self) -> tuple[str, TaskExtra | None] | None:
        executor = self.world.executor
        if executor is None:
            return None
        spec = executor.running
        if spec is None or (spec.extra is not None and spec.extra.call):
            # The creation's options hold for every call, so concurrent calls need no distinction.
            return self.creation_options if self.actor is not None else None
        return spec.demand, spec.extra

    def inherited(self) -> TaskExtra | None:
        """Return the extra that children inherit from the running task or actor, or None."""
        options = self.options_in_force()
        if options is not None:
            extra = options[1]
            return extra if extra is not None and (extra.env or extra.group) else None
        return TaskExtra(env=self.env_vars) if self.env_vars else None

    def _enter_element(self) -> None:
        """Have the client number the children of the element and try that the worker runs."""
        executor = self.world.executor
        assert executor is not None and executor.running is not None
        extra = executor.running.extra
        tries = 0 if extra is None else extra.tries
        element = (executor.running.array, executor.current(), tries)
        if element != self._element:
            self._element = element
            self.client.submitter.begin_task(task_id(*element[:2]), tries)

    def next_array(self) -> bytes:
        """Return the ID of the next task, call, actor or placement group."""
        if self.world.executor is None:
            return self.client.submitter.next_array()
        call = current_call.get()
        if call is not None and not call.over:
            call.children += 1
            return array_id(call.parent, call.children)
        if call is not None or self._is_outside():
            return array_id(self._outside(), self._outside_children)
        self._enter_element()
        return self.client.submitter.next_child()

    def next_put(self) -> bytes:
        """Return the ID of the next put."""
        if self.world.executor is None:
            return self.client.submitter.next_put()
        call = current_call.get()
        if call is not None and not call.over:
            call.puts += 1
            return put_id(call.parent, call.puts)
        if call is not None or self._is_outside():
            return put_id(self._outside(), self._outside_children)
        self._enter_element()
        return self.client.submitter.next_put()

    def _is_outside(self) -> bool:
        """Whether a thread that a task has started calls, and not the task's own thread."""
        executor = self.world.executor
        return executor is not None and (executor.running is None or get_ident() != self.thread)

    def _outside(self) -> bytes:
        """Count a child made outside of all tasks; return the parent of its ID."""
        self._outside_children += 1
        return root_task_id(self.client.address, self.client.submitter.job)
