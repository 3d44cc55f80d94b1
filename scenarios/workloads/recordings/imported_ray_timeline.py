"""Imports what ``ray.timeline()`` writes: a list of events in Chrome's trace format.

A task is an event whose category begins with ``task::``; its argument ``task_id`` ends with the ID
of its actor, if it is a call or a constructor. Within it, on the same worker, the event
``task:execute`` is its own code. The node is the process of the trace, the worker its thread.

A timeline does not say who has submitted a task, what it had as arguments, how large its value is,
or what resources it has reserved. So the graph is a bag of tasks that the driver submits at once,
with a CPU each and without data; only the calls of an actor keep their order. What a task has
waited for its own children is part of its time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from raytwin.scenarios.workloads.recordings.imported_graph import Graph, Imported, TraceError

TASK, EXECUTE = "task::", "task:execute"
_UNIQUE_DIGITS = 16
"""A task's ID: 8 bytes of its own, 12 of its actor, 4 of its job."""
_JOB_DIGITS = 8
_NO_ACTOR = "f" * 24
CONSTRUCTOR = "__init__"
LACKS = (
    "A timeline has no references: only an actor's calls wait for anything, for one another.",
    "It has no sizes: there is no data.",
    "It has no parents: the driver submits all at once, and a task's wait for its children counts"
    " as its own time.",
    "It has no resources: a task needs one CPU, an actor none.",
)


class Event(Struct):
    """An event of the trace."""

    ph: str = ""
    cat: str = ""
    pid: str | int = ""
    tid: str | int = ""
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


def read(path: Path) -> Imported:
    """Return the graph of a timeline. Raises TraceError, and OSError."""
    try:
        events = msgspec.json.decode(path.read_bytes(), type=list[Event])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} is nothing that ray.timeline() writes: {error}") from error
    spans = sorted(
        (event for event in events if event.ph == "X" and event.cat.startswith(TASK)),
        key=lambda event: event.ts,
    )
    if not spans:
        raise TraceError(f"{path} has no task: ray.timeline() writes events of category task::NAME")
    executed: dict[tuple[object, object], list[Event]] = {}
    for event in events:
        if event.cat == EXECUTE:
            executed.setdefault((event.pid, event.tid), []).append(event)
    for own in executed.values():
        own.sort(key=lambda event: event.ts)
    first_us = spans[0].ts
    graph = Graph()
    actors: dict[str, str] = {}
    try:
        for span in spans:
            _add(graph, span, executed.get((span.pid, span.tid), ()), first_us, actors)
        last_us = max(span.ts + span.dur for span in spans)
        makespan_s = max(0.0, (last_us - first_us) / 1e6)
        return Imported(graph.recording(str(path), _nodes(spans), makespan_s), LACKS)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _add(
    graph: Graph,
    span: Event,
    executed: Sequence[Event],
    first_us: float,
    actors: dict[str, str],
) -> None:
    name = span.cat.removeprefix(TASK)
    at = bisect_left(executed, span.ts, key=lambda event: event.ts)
    inside = at < len(executed) and executed[at].ts <= span.ts + span.dur
    took_s = (executed[at].dur if inside else span.dur) / 1e6
    start_s = (span.ts - first_us) / 1e6
    of = _actor_of(span)
    if of is None:
        graph.add(name, took_s, {"CPU": 1.0}, start_s=start_s)
        return
    constructs = name.endswith(CONSTRUCTOR)
    if of not in actors:
        # A timeline may have lost its beginning.
        actors[of] = graph.add_actor(name, took_s if constructs else 0.0, start_s)
    if not constructs:
        graph.add(name, took_s, {}, start_s=start_s, actor=actors[of])


def _actor_of(span: Event) -> str | None:
    """Return the ID of the actor of a call or constructor; None for a task."""
    actor = str(span.args.get("task_id", ""))[_UNIQUE_DIGITS:-_JOB_DIGITS]
    return actor if actor and actor != _NO_ACTOR else None


def _nodes(spans: Sequence[Event]) -> list[dict[str, float]]:
    """Return a node for each of the trace, with as many CPUs as tasks ran there at once."""
    found = []
    for node in dict.fromkeys(span.pid for span in spans):
        turns = [
            turn
            for span in spans
            if span.pid == node and _actor_of(span) is None
            for turn in ((span.ts, 1), (span.ts + span.dur, -1))
        ]
        running = most = 0
        for _, change in sorted(turns):
            running += change
            most = max(most, running)
        found.append({"CPU": float(max(1, most))})
    return found
