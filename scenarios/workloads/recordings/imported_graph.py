"""Builds a recording from a trace of tasks that never ran here: what all importers share.

A trace says how long a task took on some machine, and not what of that was CPU time. So it passes
as time waited, which any number of emulated nodes can do at once on one machine. Every task of the
recording is the driver's; it has a value for each of its outputs, and a last one of no bytes, for
those who wait for its end alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal, TypeVar

from raytwin.runtime.control.core.ids import ARRAY_BYTES, array_id, root_task_id, task_id
from raytwin.runtime.session.recording import Body, Driver, Recording

K = TypeVar("K")
T = TypeVar("T")
_ROOT = root_task_id("driver:0.0")


class TraceError(ValueError):
    """A file is not what an importer reads: one line on what is wrong, and what would be right."""


@dataclass(frozen=True)
class Imported:
    """A graph, and what the trace lacked, a sentence each."""

    recording: Recording
    lacks: Sequence[str]


def ordered(tasks: Mapping[K, T], parents: Mapping[K, Iterable[K]]) -> list[T]:
    """Return tasks, each behind its parents. Raises TraceError if that cannot be."""
    for each, mine in parents.items():
        for parent in mine:
            if parent not in tasks:
                raise TraceError(f"task {each!r} has a parent that is not there: {parent!r}")
    try:
        return [tasks[each] for each in TopologicalSorter(parents).static_order()]
    except CycleError as error:
        raise TraceError(f"task {error.args[1][0]!r} waits for itself, by its parents") from error


@dataclass(frozen=True)
class Task:
    """A task that was added: the objects that others may have as inputs."""

    outputs: Sequence[str]
    end: str
    """Of no bytes: there when the task has ended."""


class Graph:
    """A graph that is being built: a task is added after those whose values it has as inputs."""

    def __init__(self) -> None:
        self._bodies: list[Body] = []
        self._ends: dict[str, str] = {}
        """By task that no other waits for: its last value, which the driver waits for."""
        self._waits_s = [0.0]
        """The seconds that the driver sleeps before each of its parts."""

    def later(self, seconds: float) -> None:
        """Have the driver submit what is added from now on so many seconds later."""
        if self._bodies and seconds > 0:
            self._waits_s.append(seconds)

    def add(
        self,
        name: str,
        took_s: float,
        demand: dict[str, float],
        inputs: Sequence[str] = (),
        outputs: Sequence[int] = (),
        *,
        start_s: float = 0.0,
        actor: str | None = None,
    ) -> Task:
        """Add a task, or an actor's call, that took so long; it has outputs of so many bytes.

        Raises TraceError for a time that is none.
        """
        body = self._add(name, took_s, start_s, "call" if actor else "task")
        values = [f"{body.id}{number:04x}" for number in range(len(outputs) + 1)]
        body.demand, body.inputs, body.actor = demand, list(dict.fromkeys(inputs)), actor
        body.result_bytes, body.values = sum(outputs), [*outputs, 0]
        for each in inputs:
            self._ends.pop(each[: len(body.id)], None)
        self._ends[body.id] = values[-1]
        return Task(values[:-1], values[-1])

    def add_actor(self, name: str, took_s: float, start_s: float = 0.0) -> str:
        """Add an actor whose constructor took so long; return its ID for `add`."""
        return self._add(name, took_s, start_s, "actor").id[: 2 * ARRAY_BYTES]

    def _add(
        self, name: str, took_s: float, start_s: float, kind: Literal["task", "actor", "call"]
    ) -> Body:
        if not (math.isfinite(took_s) and took_s >= 0):
            raise TraceError(f"{name!r} took {took_s} s: that is no duration")
        body = Body(
            id=task_id(array_id(_ROOT, len(self._bodies) + 1), 0).hex(),
            name=name,
            kind=kind,
            parent=_ROOT.hex(),
            demand={},
            inputs=[],
            args_bytes=0,
            result_bytes=0,
            start_s=start_s,
            end_s=start_s + took_s,
            node=0,
            own=[(0.0, took_s)],
            part=len(self._waits_s) - 1,
        )
        self._bodies.append(body)
        return body

    def recording(
        self, source: str, nodes: Sequence[dict[str, float]], makespan_s: float
    ) -> Recording:
        """Return the recording. Raises TraceError if there is no task."""
        if not self._bodies:
            raise TraceError(f"{source} has no task")
        waits: list[list[str]] = [[] for _ in self._waits_s]
        waits[-1] = list(self._ends.values())
        own = [(0.0, waited_s) for waited_s in self._waits_s]
        return Recording(
            format="raytwin-recording",
            version=1,
            script=source,
            backend="trace",
            nodes=list(nodes),
            makespan_s=makespan_s,
            driver=Driver(_ROOT.hex(), [*own, (0.0, 0.0)], waits),
            bodies=self._bodies,
        )
