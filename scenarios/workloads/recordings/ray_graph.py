"""Makes a recording of what a driver has submitted to Ray, and of Ray's own events of each task.

The driver's side (`Submission`, `Put`, parts and waits) is known as exactly as on `local`. Of what
runs in Ray's workers there are only the events that Ray keeps: who has submitted a task, what it
has reserved, when it ran, and where. So a task that submits others is taken to have waited for each
that ended before it went on::

    own time until the last submission ──> wait for those that have ended ──> own time ...

Ray's IDs: a task has 24 bytes, of which the last 16 are its actor's; an object has those of its
task, and a number from 1 on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from raytwin.runtime.control.core.ids import (
    ARRAY_BYTES,
    array_id,
    object_id,
    put_id,
    root_task_id,
    task_id,
)
from raytwin.runtime.session import recording
from raytwin.runtime.session.recording import Body, Driver, Recording
from raytwin.scenarios.workloads.recordings.imported_graph import Imported, TraceError

TASK_DIGITS = 48
CONSTRUCTOR = ".__init__"
_OF_AN_ACTOR = "f" * 16
"""The constructor of an actor is the task with these digits before the actor's ID."""
_ROOT = root_task_id("driver:0.0")
LACKS = (
    "Ray does not say what of a task's time was computed: all of it passes as time waited.",
    "What tasks put is not seen, nor what an event loop awaits.",
)


@dataclass(frozen=True)
class Submission:
    """A task, constructor or call that the driver has submitted."""

    task: str
    part: int
    inputs: Sequence[str]
    """The objects that it has by reference."""
    args_bytes: int
    """Of its other arguments, serialized."""
    values: Sequence[str]
    """The objects that it makes."""


@dataclass(frozen=True)
class Put:
    """An object that the driver has put."""

    oid: str
    part: int


@dataclass(frozen=True)
class TaskEvent:
    """What Ray's events say of one task. Times are in seconds, those of the driver's clock."""

    task: str
    parent: str
    """The driver's is that of no task."""
    name: str
    kind: Literal["task", "actor", "call"]
    actor: str
    """Of a call."""
    demand: dict[str, float]
    node: int
    submitted_s: float
    start_s: float
    end_s: float


@dataclass
class Program:
    """What was seen in the driver."""

    began_s: float
    ended_s: float = 0.0
    own: list[tuple[float, float]] = field(default_factory=list)
    """As of a recording's driver."""
    waits: list[list[str]] = field(default_factory=list)
    submissions: list[Submission] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    """The bytes of objects, as far as they are known."""


def graph(
    program: Program,
    events: Sequence[TaskEvent],
    nodes: Sequence[dict[str, float]],
    script: str,
) -> Imported:
    """Return the recording of a run on Ray, and what it lacks.

    Raises TraceError if a task was in a placement group.
    """
    return _Graph(program, events).imported(nodes, script)


class _Graph:
    def __init__(self, program: Program, events: Sequence[TaskEvent]) -> None:
        self._program = program
        self._events = {event.task: event for event in events}
        for event in events:
            if any("_group_" in name for name in event.demand):
                raise TraceError(
                    f"{event.name} was in a placement group, and a recording has none of them"
                )
        self._ids: dict[str, str] = {}
        """By Ray's ID of a task, the recording's; only of those that the graph has."""
        self._counts: Counter[bytes] = Counter()
        self._bodies: dict[str, Body] = {}
        """By their IDs."""
        self._puts = {
            put.oid: object_id(put_id(_ROOT, number), 0, 0).hex()
            for number, put in enumerate(program.puts, start=1)
        }
        self._several = {each.task: each.values for each in program.submissions}

    def imported(self, nodes: Sequence[dict[str, float]], script: str) -> Imported:
        """Return the recording, and what it lacks."""
        program = self._program
        for each in program.submissions:
            self._add_submitted(each)
        of_driver = len(self._bodies)
        children: dict[str, list[TaskEvent]] = {}
        for event in self._events.values():
            children.setdefault(event.parent, []).append(event)
        left = [each.task for each in program.submissions if each.task in self._ids]
        while left:
            parent = left.pop()
            left += self._add_children(parent, children.get(parent, ()))
        unknown = sum(each.task not in self._ids for each in program.submissions) + sum(
            event.task not in self._ids for event in self._events.values()
        )
        lacks = list(LACKS)
        if nested := len(self._bodies) - of_driver:
            lacks.append(
                f"{nested:,} tasks were submitted by tasks: their references and sizes are not"
                " seen, and each task has waited for those that ended before it went on."
            )
        if unknown:
            lacks.append(
                f"{unknown:,} tasks are left out: they have not run, or have no values, or Ray has"
                " no event of them."
            )
        puts = [
            recording.Put(self._puts[put.oid], _ROOT.hex(), program.sizes.get(put.oid, 0), put.part)
            for put in program.puts
        ]
        unsized = sum(
            oid not in program.sizes
            for each in program.submissions
            if each.task in self._ids
            for oid in each.values
        ) + sum(put.oid not in program.sizes for put in program.puts)
        if unsized:
            lacks.append(f"{unsized:,} objects have no known size: 0 bytes.")
        found = Recording(
            format="raytwin-recording",
            version=1,
            script=script,
            backend="ray",
            nodes=list(nodes),
            makespan_s=program.ended_s - program.began_s,
            driver=Driver(_ROOT.hex(), program.own, [self._objects(ids) for ids in program.waits]),
            bodies=sorted(self._bodies.values(), key=lambda body: body.start_s),
            puts=puts,
        )
        return Imported(found, lacks)

    def _add_submitted(self, given: Submission) -> None:
        # Counted whether or not it ran, so that the IDs are those of the same script elsewhere.
        own = self._next(_ROOT)
        event = self._events.get(given.task)
        if event is None:
            return
        body = self._add(event, own, _ROOT.hex(), given.part)
        body.inputs = self._objects(given.inputs)
        body.args_bytes = given.args_bytes
        sizes = [self._program.sizes.get(oid, 0) for oid in given.values]
        body.result_bytes = sum(sizes)
        body.values = sizes if len(sizes) > 1 else []

    def _add_children(self, parent: str, children: Iterable[TaskEvent]) -> list[str]:
        """Add what a task has submitted, and divide its time; return the children."""
        ordered = sorted(children, key=lambda event: event.submitted_s)
        if not ordered:
            return []
        body = self._bodies[self._ids[parent]]
        event = self._events[parent]
        part_s = last_s = event.start_s
        own: list[tuple[float, float]] = []
        running: list[TaskEvent] = []

        def wait(until_s: float) -> None:
            """End a part with a wait for the children that have ended by then, if any have."""
            nonlocal part_s, last_s, running
            ended = [each for each in running if each.end_s <= until_s]
            if ended:
                own.append((0.0, max(0.0, last_s - part_s)))
                body.waits.append([f"{self._ids[each.task]}0000" for each in ended])
                running = [each for each in running if each.end_s > until_s]
                part_s = last_s = max(each.end_s for each in ended)

        for child in ordered:
            wait(child.submitted_s)
            self._add(child, self._next(bytes.fromhex(body.id)), body.id, len(own))
            last_s = max(last_s, child.submitted_s)
            if child.kind != "actor":
                running.append(child)
        wait(event.end_s)
        body.own = [*own, (0.0, max(0.0, event.end_s - part_s))]
        return [child.task for child in ordered]

    def _next(self, parent: bytes) -> str:
        """Return the ID of a parent's next submission."""
        self._counts[parent] += 1
        return task_id(array_id(parent, self._counts[parent]), 0).hex()

    def _add(self, event: TaskEvent, own: str, parent: str, part: int) -> Body:
        self._ids[event.task] = own
        creation = self._ids.get(_OF_AN_ACTOR + event.actor) if event.kind == "call" else None
        if event.kind == "call" and creation is None:
            raise TraceError(
                f"{event.name} is of an actor that a task has made, or of whose constructor Ray has"
                " no event: that cannot be recorded"
            )
        began_s = self._program.began_s
        body = Body(
            id=own,
            name=event.name.removesuffix(CONSTRUCTOR),
            kind=event.kind,
            parent=parent,
            demand={} if event.kind == "call" else event.demand,
            inputs=[],
            args_bytes=0,
            result_bytes=0,
            start_s=event.start_s - began_s,
            end_s=event.end_s - began_s,
            node=event.node,
            own=[(0.0, event.end_s - event.start_s)],
            actor=creation[: 2 * ARRAY_BYTES] if creation is not None else None,
            part=part,
        )
        self._bodies[own] = body
        return body

    def _objects(self, oids: Iterable[str]) -> list[str]:
        """Return the recording's IDs of objects, without those that the graph has not."""
        found = []
        for oid in oids:
            task = oid[:TASK_DIGITS]
            if oid in self._puts:
                found.append(self._puts[oid])
            elif task in self._ids:
                number = int.from_bytes(bytes.fromhex(oid[TASK_DIGITS:]), "little") - 1
                several = len(self._several.get(task, ())) > 1
                found.append(f"{self._ids[task]}{number if several else 0:04x}")
        return list(dict.fromkeys(found))
