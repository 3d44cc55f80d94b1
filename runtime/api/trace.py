"""A run as a Chrome trace, which opens in Perfetto: executions, transfers, placements, failures.

=============== ====== ========================================= =====================
event           ``ph`` row (process, thread)                     category
=============== ====== ========================================= =====================
executed range  X      node, worker                              task, actor or call,
                                                                 replay, and marks
large object    X      node, ``transfers``                       transfer
placement       i      ``global scheduler``, ``placements``      placement
failures, ...   i      the node they name, else ``cluster``      event
=============== ====== ========================================= =====================

Marks: ``re-execution`` is a range that ran before, or an actor that was created before;
``error`` a range that failed. ``args`` of a range have its array, its elements, the number
of the attempt, the number of inputs and, if known, the time that it waited on its node.

Slices of one thread never overlap, as viewers expect: concurrent calls or transfers of the
same worker or node get further threads (``worker 3 (2)``). Times are in microseconds on the
cluster's clock, to the nanosecond. The trace has no ranges and transfers of a node that died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from raytwin.runtime.control.messages import OK

Event = dict[str, Any]

_COLOURS = {"re-execution": "bad", "replay": "yellow", "error": "terrible"}
"""The trace format's names of colours; the last mark that applies decides."""
_NS = 1_000_000_000
_ROUNDING_NS = 2
"""The most by which rounding makes the end of a slice pass the start of the next."""


@dataclass
class Recording:
    """The rows that a cluster records of its run; `queries` describes them."""

    ranges: list[list[Any]] = field(default_factory=list)
    transfers: list[list[Any]] = field(default_factory=list)
    placements: list[list[Any]] = field(default_factory=list)
    gcs_events: list[list[Any]] = field(default_factory=list)

    @classmethod
    def of(cls, query: Callable[[str], list[list[Any]]]) -> Recording:
        """Query a cluster; `query` is its `Backend.query`."""
        return cls(query("timeline"), query("transfers"), query("placements"), query("events"))

    def events(self) -> list[Event]:
        """Return the trace's events, by time."""
        slices = [_Slice.of_range(row) for row in self.ranges]
        slices += [_Slice.of_transfer(row) for row in self.transfers]
        _assign_threads(slices)
        events = [each.event() for each in slices]
        events += [_placement(row) for row in self.placements]
        events += [_gcs_event(row) for row in self.gcs_events]
        return sorted(events, key=lambda event: float(event["ts"]))


class _Slice:
    """An executed range or a transfer, with times in whole nanoseconds."""

    __slots__ = ("args", "begin_ns", "cat", "colour", "end_ns", "name", "pid", "tid")

    def __init__(
        self, name: str, cat: str, pid: str, tid: str, start_s: float, elapsed_s: float, args: Event
    ) -> None:
        self.name = name
        self.cat = cat
        self.pid = pid
        self.tid = tid
        self.begin_ns = round(start_s * _NS)
        self.end_ns = max(self.begin_ns, round((start_s + elapsed_s) * _NS))
        self.args = args
        self.colour = ""
        for mark in cat.split(","):
            self.colour = _COLOURS.get(mark, self.colour)

    @classmethod
    def of_range(cls, row: list[Any]) -> _Slice:
        name, node, worker, start_s, elapsed_s, count, array, start, attempt = row[:9]
        kind, status, since_s, deps = row[9:]
        cat = kind
        if attempt:
            cat += ",re-execution"
        if status != OK:
            cat += ",error"
        args = {"tasks": count, "array": array.hex(), "start": start, "attempt": attempt}
        if deps:
            args["inputs"] = len(deps)
        if since_s >= 0:
            args["queued_ms"] = max(0.0, start_s - since_s) * 1e3
        return cls(name, cat, f"node {node}", f"worker {worker}", start_s, elapsed_s, args)

    @classmethod
    def of_transfer(cls, row: list[Any]) -> _Slice:
        node, source, start_s, elapsed_s, size, oid = row
        where = "disk" if source == node else f"node {source}"
        args = {"bytes": size, "from": where, "object": oid.hex()}
        pid = f"node {node}"
        return cls(f"from {where}", "transfer", pid, "transfers", start_s, elapsed_s, args)

    def event(self) -> Event:
        """Return the slice as an event of the trace."""
        event: Event = {
            "name": self.name,
            "cat": self.cat,
            "ph": "X",
            "ts": self.begin_ns / 1e3,
            "dur": (self.end_ns - self.begin_ns) / 1e3,
            "pid": self.pid,
            "tid": self.tid,
            "args": self.args,
        }
        if self.colour:
            event["cname"] = self.colour
        return event


def _assign_threads(slices: Iterable[_Slice]) -> None:
    """Move slices that would overlap to further threads."""
    lanes: dict[tuple[str, str], list[_Slice]] = {}
    for each in sorted(slices, key=lambda each: (each.begin_ns, each.end_ns)):
        ends = lanes.setdefault((each.pid, each.tid), [])
        for lane, before in enumerate(ends):
            late_ns = before.end_ns - each.begin_ns
            if late_ns <= _ROUNDING_NS:
                if late_ns > 0:
                    before.end_ns = max(before.begin_ns, each.begin_ns)
                ends[lane] = each
                break
        else:
            lane = len(ends)
            ends.append(each)
        if lane:
            each.tid += f" ({lane + 1})"


def _placement(row: list[Any]) -> Event:
    time_s, name, array, start, count, node, owner = row
    return {
        "name": f"{name} to node {node}",
        "cat": "placement",
        "ph": "i",
        "s": "t",
        "ts": round(time_s * _NS) / 1e3,
        "pid": "global scheduler",
        "tid": "placements",
        "args": {
            "tasks": count,
            "array": array.hex(),
            "start": start,
            "node": node,
            "owner": owner,
        },
    }


def _gcs_event(row: list[Any]) -> Event:
    """Return an event of the GCS's log; `subject` names a node, a worker or a task."""
    time_s, kind, subject, detail, count = row
    where, _, number = subject.partition(":")
    there = where in ("node", "worker") and number.partition(".")[0].isdigit()
    return {
        "name": f"{kind} {subject}",
        "cat": "event",
        "ph": "i",
        "s": "p" if there else "g",
        "ts": round(time_s * _NS) / 1e3,
        "pid": f"node {number.partition('.')[0]}" if there else "cluster",
        "tid": "events",
        "args": {"kind": kind, "subject": subject, "detail": detail, "count": count},
    }
