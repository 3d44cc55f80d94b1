"""The dependencies of a range of tasks: its function and its inputs.

    accepted ──function here?──no──> waits for FunctionBlob
        │ yes                              │
        ↓                                  ↓
    inputs here? ──no──> waits, its inputs claimed in the arena with its rank
        │ yes                              │
        ↓                                  ├─ one is an error: that is its result
      READY                                ↓
        └─> given to a worker: inputs pinned for it, the claim ends

With a scheduling delay a range is READY when, after its inputs are here, the delay is over.

Cost per range: nothing without inputs, else one entry and one wait per input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial

from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.core.failed_values import is_lost
from raytwin.runtime.control.core.ids import job_of
from raytwin.runtime.control.core.task_ranges import attempt_of, job_of_task, without
from raytwin.runtime.control.messages import (
    OK,
    ExportFunction,
    FetchFunction,
    FunctionBlob,
    ObjectValue,
    TaskSpec,
)
from raytwin.runtime.control.objects.node_objects import NodeObjects
from raytwin.runtime.control.objects.pull_manager import released_error
from raytwin.runtime.control.observability.timeline import RangeLog


class Waiting:
    """A range whose inputs are not all here."""

    __slots__ = ("cancelled", "delayed", "failed", "missing", "spec")

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.cancelled = False
        self.delayed = False
        """Whether the scheduling delay, which counts as an input, is over, or under way."""
        self.missing = 1  # one more, until every input was requested
        self.failed: tuple[int, ObjectValue] | None = None
        """The first input, in the order of the arguments, that is an error."""


class TaskInputs:
    """The functions and inputs that the ranges of one node wait for."""

    def __init__(
        self,
        ctx: Context,
        objects: NodeObjects,
        timeline: RangeLog,
        delay_s: float,
        ready: Callable[[TaskSpec], None],
    ) -> None:
        """`ready` is called with a range whose function and inputs have been here for `delay_s`."""
        self._ctx = ctx
        self._objects = objects
        self._timeline = timeline
        self._delay_s = delay_s
        self._ready = ready
        self.functions: dict[bytes, bytes] = {}
        self.awaiting: set[Waiting] = set()
        self.waiting = 0
        """Elements that wait for an input or a function."""
        self.failed: deque[tuple[TaskSpec, ObjectValue]] = deque()
        """Ranges that end with an input's error, at the end of the turn: recursion along a chain
        of dependent tasks would be too deep."""
        self._for_function: dict[bytes, list[TaskSpec]] = {}
        self._claims: dict[tuple[bytes, int], list[int]] = {}
        """The ranks of ranges whose inputs are claimed, by their first element; a range may be
        here twice."""
        self._ranks = 0

    def handlers(self) -> Handlers:
        return {ExportFunction: self.on_export, FunctionBlob: self.on_function}

    @property
    def arriving(self) -> bool:
        """Whether a function, or an input from another node, is on its way to a range here."""
        return bool(self._for_function) or self._objects.pulls.fetches_inputs

    def accept(self, spec: TaskSpec) -> None:
        """Take a range that this node has accepted, for the first time or again."""
        self._timeline.accepted(spec)
        self._prepare(spec)

    def _prepare(self, spec: TaskSpec) -> None:
        """Make a range ready, at once or when its inputs and function are here."""
        if spec.function not in self.functions:
            self._await_function(spec)
        elif spec.deps or self._delay_s:
            self._await_inputs(spec)
        else:
            self._ready(spec)

    def on_export(self, source: str, message: ExportFunction) -> None:
        """A client of this node has a new function."""
        self._ctx.send("gcs", message)
        self.on_function(source, FunctionBlob(message.function, message.blob))

    def on_function(self, source: str, message: FunctionBlob) -> None:
        """A function is here."""
        self.functions[message.function] = message.blob
        for spec in self._for_function.pop(message.function, ()):
            self.waiting -= spec.count
            self._prepare(spec)

    def _await_function(self, spec: TaskSpec) -> None:
        waiting = self._for_function.get(spec.function)
        if waiting is None:
            self._for_function[spec.function] = waiting = []
            self._ctx.send("gcs", FetchFunction(spec.function))
        waiting.append(spec)
        self.waiting += spec.count

    def _await_inputs(self, spec: TaskSpec) -> None:
        entry = Waiting(spec)
        self.waiting += spec.count
        self.awaiting.add(entry)
        rank = self.claim(spec) if spec.deps else 0

        def arrived(position: int, value: ObjectValue) -> None:
            entry.missing -= 1
            if value.status != OK and (entry.failed is None or position < entry.failed[0]):
                entry.failed = position, value
            if entry.missing or entry.cancelled:
                return
            if self._delay_s and not entry.delayed:
                entry.delayed = True
                entry.missing = 1
                self._ctx.after(self._delay_s, lambda: arrived(-1, ObjectValue(b"", OK, b"")))
                return
            self.awaiting.discard(entry)
            self.waiting -= spec.count
            if entry.failed is not None:
                # An input's error becomes the result.
                self.unclaim(spec)
                self.failed.append((spec, entry.failed[1]))
            else:
                self._ready(spec)

        for position, oid in enumerate(spec.deps):
            entry.missing += 1
            self._objects.pulls.want(oid, partial(arrived, position), rank)
        arrived(-1, ObjectValue(b"", OK, b""))

    def claimed(self, array: bytes) -> None:
        """Wait again for an array's lost inputs: its parent runs again and may have made them."""
        for waiting in [w for w in self.awaiting if w.spec.array == array]:
            if waiting.failed is not None and is_lost(waiting.failed[1]):
                self._forget(waiting)
                self.unclaim(waiting.spec)
                self._prepare(waiting.spec)

    def take(self, spec: TaskSpec, worker: str) -> tuple[ObjectValue, ...] | None:
        """Return the inputs, pinned for the worker; None if one is not here (any more)."""
        if not spec.deps:
            return ()
        self.unclaim(spec)
        if self._objects.memory.evicted(spec.deps):
            self._await_inputs(spec)
            return None
        values = []
        for oid in spec.deps:
            value = self._objects.memory.lookup(oid)
            if value is None:
                if attempt_of(spec):
                    # The owner released the inputs after the first run of the range.
                    self._await_inputs(spec)
                    return None
                # An owner keeps the inputs of its unfinished tasks: it has died, or the range
                # ran elsewhere and no client waits for this run.
                self.failed.append((spec, released_error(oid)))
                return None
            values.append(value)
        for value in values:
            if value.size:
                self._objects.memory.pin(value.object, worker)
        return tuple(values)

    def claim(self, spec: TaskSpec) -> int:
        """Claim a range's inputs until `unclaim`; return its rank: see `object_memory`."""
        self._ranks += 1
        self._claims.setdefault((spec.array, spec.start), []).append(self._ranks)
        for oid in spec.deps:
            self._objects.memory.claim(oid, self._ranks)
        return self._ranks

    def unclaim(self, spec: TaskSpec) -> None:
        """End a range's claim, since its inputs are pinned or it will never run."""
        key = (spec.array, spec.start)
        ranks = self._claims.get(key)
        if ranks is None:
            return
        rank = ranks.pop(0)
        if not ranks:
            del self._claims[key]
        for oid in spec.deps:
            self._objects.memory.unclaim(oid, rank)

    def fail(self, spec: TaskSpec, error: ObjectValue) -> None:
        """End a range with an error, at the end of the turn."""
        self.failed.append((spec, error))

    def take_out(self, taken: Callable[[TaskSpec], TaskSpec | None]) -> list[TaskSpec]:
        """Take the part of each waiting range that `taken` returns, None for nothing."""
        found: list[TaskSpec] = []
        for function, specs in list(self._for_function.items()):
            left: list[TaskSpec] = []
            for spec in specs:
                part = taken(spec)
                left += [spec] if part is None else without(spec, part)
                if part is not None:
                    found.append(part)
                    self.waiting -= part.count
            self._for_function[function] = left
            if not left:
                del self._for_function[function]
        for waiting in list(self.awaiting):
            part = taken(waiting.spec)
            if part is None:
                continue
            self._forget(waiting)
            found.append(part)
            # With inputs a range has one element; one that only waits for the delay may have more.
            for rest in without(waiting.spec, part) if part.count < waiting.spec.count else ():
                self._prepare(rest)
        return found

    def _forget(self, waiting: Waiting) -> None:
        """Ignore inputs that arrive for a range from now on."""
        self.awaiting.discard(waiting)
        self.waiting -= waiting.spec.count
        waiting.cancelled = True

    def end_job(self, job: bytes) -> None:
        """Remove all waiting ranges of a job."""
        for spec in self.take_out(lambda spec: spec if job_of_task(spec) == job else None):
            self.unclaim(spec)
        self.failed = deque(
            (spec, error) for spec, error in self.failed if job_of_task(spec) != job
        )

    def forget_functions(self, jobs: Collection[bytes], used: Collection[bytes]) -> None:
        """Drop the functions of jobs that have ended, except those in use."""
        for function in [f for f in self.functions if job_of(f) in jobs and f not in used]:
            del self.functions[function]
