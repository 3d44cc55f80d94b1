"""Which task calls, and the numbers that it gives to what it makes.

The IDs of what a task submits and puts follow from its own ID and a counter
(see `ids`), so a task that runs again names the same children. The counter is
the client's, which starts anew with every element that the worker runs; calls
of an actor that run beside one another, or in its event loop, have one each, in a `Frame`.
What a thread that a task or actor has started makes, or what a call has set going and has not
waited for, comes in an order of its own. A task that runs again must not take it for its own
child, so the worker numbers it under its own address, which no other worker ever has.
"""

from __future__ import annotations

from contextvars import ContextVar
from threading import get_ident

from raytwin.runtime.api.backend import World
from raytwin.runtime.control.core.ids import adopted, array_id, put_id, root_task_id, task_id
from raytwin.runtime.control.messages import ActorInfo, TaskExtra, TaskSpec
from raytwin.runtime.session.session_references import References


class Frame:
    """A call that runs beside others in one worker: it numbers its own children.

    They belong to the worker's job, whoever's the call is.
    """

    __slots__ = ("children", "over", "parent", "puts", "task")

    def __init__(self, task: bytes, job: bytes) -> None:
        self.task = task
        self.parent = adopted(task, job)
        self.children = 0
        self.puts = 0
        self.over = False
        """The call has ended: what goes on of it makes things outside of all calls."""


frame_of_call: ContextVar[Frame | None] = ContextVar("frame_of_call", default=None)


class Numbering(References):
    """Knows the running task, and numbers its children."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.actor: tuple[bytes, ActorInfo | None] | None = None
        self.actor_stands: tuple[str, TaskExtra | None] = ("", None)
        """The demand and the extra that the actor was made with: they hold for its calls."""
        self.env_vars: tuple[tuple[str, str], ...] = ()
        """Of every task that this driver submits."""
        self._element: tuple[bytes, int, int] | None = None
        """Array, index and try."""
        self._thread = get_ident()
        """The one that runs tasks one after another, which makes the session."""
        self._strays = 0
        """What the worker has made outside of its tasks and calls."""

    def task_id(self) -> bytes | None:
        frame = frame_of_call.get()
        if frame is not None:
            return frame.task
        task = self.running_task()
        return None if task is None else task[1]

    def running_task(self) -> tuple[TaskSpec, bytes] | None:
        executor = self.world.executor
        if executor is None or executor.running is None:
            return None
        return executor.running, task_id(executor.running.array, executor.current())

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

    def standing(self) -> tuple[str, TaskExtra | None] | None:
        executor = self.world.executor
        if executor is None:
            return None
        spec = executor.running
        if spec is None or (spec.extra is not None and spec.extra.call):
            # Calls that run beside one another are not known one by one: the same for all.
            return self.actor_stands if self.actor is not None else None
        return spec.demand, spec.extra

    def inherited(self) -> TaskExtra | None:
        """Return what the children of the running task or actor get, None for nothing."""
        standing = self.standing()
        if standing is not None:
            extra = standing[1]
            return extra if extra is not None and (extra.env or extra.group) else None
        return TaskExtra(env=self.env_vars) if self.env_vars else None

    def _enter_element(self) -> None:
        """In a worker, children are numbered within the element that runs, and its try."""
        executor = self.world.executor
        assert executor is not None and executor.running is not None
        extra = executor.running.extra
        tries = 0 if extra is None else extra.tries
        element = (executor.running.array, executor.current(), tries)
        if element != self._element:
            self._element = element
            self.client.submitter.begin_task(task_id(*element[:2]), tries)

    def _next_array(self) -> bytes:
        """Return the ID of the next task, call, actor or group."""
        if self.world.executor is None:
            return self.client.submitter.next_array()
        frame = frame_of_call.get()
        if frame is not None and not frame.over:
            frame.children += 1
            return array_id(frame.parent, frame.children)
        if frame is not None or self._is_outside():
            return array_id(self._outside(), self._strays)
        self._enter_element()
        return self.client.submitter.next_child()

    def _next_put(self) -> bytes:
        """Return the ID of the next put."""
        if self.world.executor is None:
            return self.client.submitter.next_put()
        frame = frame_of_call.get()
        if frame is not None and not frame.over:
            frame.puts += 1
            return put_id(frame.parent, frame.puts)
        if frame is not None or self._is_outside():
            return put_id(self._outside(), self._strays)
        self._enter_element()
        return self.client.submitter.next_put()

    def _is_outside(self) -> bool:
        """Whether no task or call of this worker calls, but a thread that one has started."""
        executor = self.world.executor
        return executor is not None and (executor.running is None or get_ident() != self._thread)

    def _outside(self) -> bytes:
        """Return the parent of what this worker makes outside of its tasks, and count it."""
        self._strays += 1
        return root_task_id(self.client.address, self.client.submitter.job)
