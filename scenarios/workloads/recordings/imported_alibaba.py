"""Imports jobs of Alibaba's trace of 2018: its file ``batch_task.csv``, which has no header.

https://github.com/alibaba/clusterdata documents it (cluster-trace-v2018). A row is a task of a job:

====================== ===========================================================================
task_name              its number and those of the tasks that it waits for, behind a letter:
                       ``M1``, ``R2_1``, ``J3_1_2``; another name is of a task that waits for none
instance_num           how many instances it has; all of them end before a next task begins
job_name, task_type    of the job; one of twelve numbers
status                 ``Terminated`` if it has ended
start_time, end_time   in seconds; of the task, so each of its instances is taken to last as long
plan_cpu, plan_mem     100 is a core; a share of a machine's memory, of 100
====================== ===========================================================================

An instance becomes a task. Where there are several, one more without CPUs and time is their end.
The driver submits the tasks of a job when the job's first one began, so jobs share a cluster as
they did.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from raytwin.scenarios.workloads.recordings.imported_graph import (
    Graph,
    Imported,
    Task,
    TraceError,
    ordered,
)

COLUMNS = (
    "task_name", "instance_num", "job_name", "task_type", "status", "start_time", "end_time",
    "plan_cpu", "plan_mem",
)  # fmt: skip
MEMORY = "plan_mem"
"""The resource that tasks reserve of a machine's memory, of which it has 100."""
MACHINE = {"CPU": 96.0, MEMORY: 100.0}
"""A machine of the trace."""
JOBS = 100
INSTANCES_MAX = 1_000_000
_DAG = re.compile(r"[A-Za-z]+(\d+)((?:_\d+)*)")
ENDED = "Terminated"


@dataclass(frozen=True)
class Row:
    """A row that is whole."""

    name: str
    instances: int
    job: str
    start_s: float
    end_s: float
    cpus: float
    memory: float

    @property
    def number(self) -> int | None:
        """Its number in its job's graph; None: it is in none."""
        found = _DAG.fullmatch(self.name)
        return int(found[1]) if found else None

    @property
    def after(self) -> Sequence[int]:
        """The numbers of the tasks that it waits for."""
        found = _DAG.fullmatch(self.name)
        return [int(each) for each in found[2].split("_")[1:]] if found else []


def read(path: Path, jobs: int = JOBS) -> Imported:
    """Return the graph of the first jobs of a file. Raises TraceError, and OSError."""
    by_job: dict[str, list[Row]] = {}
    unended = 0
    with path.open(newline="", encoding="utf-8") as file:
        for row in _rows(path, csv.reader(file)):
            if row is None:
                unended += 1
            elif row.job in by_job or len(by_job) < jobs:
                by_job.setdefault(row.job, []).append(row)
            else:
                break  # the rows of a job stand together
    graph = Graph()
    first_s = last_s = min((row.start_s for rows in by_job.values() for row in rows), default=0.0)
    unknown = 0
    for job, rows in sorted(by_job.items(), key=lambda item: min(row.start_s for row in item[1])):
        start_s = min(row.start_s for row in rows)
        graph.later(start_s - last_s)
        last_s = start_s
        try:
            unknown += _add(graph, rows, first_s)
        except TraceError as error:
            raise TraceError(f"{path}, job {job}: {error}") from error
    lacks = [
        "It has no sizes of data: no task has an output.",
        "Instances of a task are taken to last as long as the task.",
    ]
    if unended:
        lacks.append(
            f"{unended:,} tasks have not ended, or not after they began: they are left out."
        )
    if unknown:
        lacks.append(f"{unknown:,} times a task waits for one that is left out: it does not wait.")
    end_s = max((row.end_s for rows in by_job.values() for row in rows), default=0.0)
    try:
        return Imported(graph.recording(str(path), [MACHINE], end_s - first_s), lacks)
    except TraceError as error:
        raise TraceError(f"{error}, of those that have ended") from error


def _rows(path: Path, lines: Iterator[list[str]]) -> Iterator[Row | None]:
    """Yield the rows of a file; None for a task that has not ended."""
    number = 0
    try:
        for number, cells in enumerate(lines, start=1):
            if number == 1 and tuple(cells) == COLUMNS:
                continue
            if len(cells) != len(COLUMNS):
                raise ValueError(f"it has {len(cells)} columns, and not {len(COLUMNS)}")
            yield _row(dict(zip(COLUMNS, cells, strict=True)))
    except (ValueError, csv.Error) as error:
        raise TraceError(f"{path}, line {number or 1}: {error}") from error


def _row(cells: dict[str, str]) -> Row | None:
    if cells["status"] != ENDED or not cells["start_time"] or not cells["end_time"]:
        return None
    row = Row(
        cells["task_name"],
        _whole("instance_num", cells["instance_num"] or "1", 1, INSTANCES_MAX),
        cells["job_name"],
        _whole("start_time", cells["start_time"]),
        _whole("end_time", cells["end_time"]),
        _amount("plan_cpu", cells["plan_cpu"]) / 100,
        _amount(MEMORY, cells[MEMORY]),
    )
    # The trace has some that end before they begin: nobody knows what they took.
    return row if row.end_s >= row.start_s else None


def _whole(what: str, text: str, least: int = 0, most: int = 2**53) -> int:
    value = _amount(what, text)
    if not value.is_integer() or not least <= value <= most:
        raise ValueError(f"{what} {text!r} is no whole number from {least} to {most}")
    return int(value)


def _amount(what: str, text: str) -> float:
    try:
        value = float(text or 0)
    except ValueError:
        raise ValueError(f"{what} {text!r} is no number") from None
    if not 0 <= value < 2**60:
        raise ValueError(f"{what} {text!r} is no amount")
    return value


def _add(graph: Graph, rows: Sequence[Row], first_s: float) -> int:
    """Add a job; return how often one of its tasks waits for one that is not there."""
    tasks = {row.name: row for row in rows}
    names = {row.number: row.name for row in rows if row.number is not None}
    parents = {row.name: [names[n] for n in row.after if n in names] for row in rows}
    ends: dict[str, str] = {}
    for row in ordered(tasks, parents):
        inputs = [ends[name] for name in parents[row.name]]
        ends[row.name] = _add_task(graph, row, inputs, first_s).end
    return sum(number not in names for row in rows for number in row.after)


def _add_task(graph: Graph, row: Row, inputs: Sequence[str], first_s: float) -> Task:
    demand = {"CPU": round(row.cpus, 4), MEMORY: round(row.memory, 4)}
    demand = {name: amount for name, amount in demand.items() if amount}
    took_s, start_s = row.end_s - row.start_s, row.start_s - first_s
    kind = row.name if row.number is not None else "independent"
    instances = [
        graph.add(kind, took_s, demand, inputs, start_s=start_s) for _ in range(row.instances)
    ]
    if len(instances) == 1:
        return instances[0]
    ends = [each.end for each in instances]
    return graph.add(f"end of {kind}", 0.0, {}, ends, start_s=start_s + took_s)
