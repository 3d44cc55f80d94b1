"""Imports a workflow instance of WfCommons: its JSON format WfFormat, versions 1.5 and 1.6.

https://github.com/wfcommons/WfFormat documents it. ``workflow.specification`` has the tasks, with
their parents, children and files, and the files' sizes; ``workflow.execution`` has their runtimes
and cores, and the machines. Each file that a task writes becomes one of its values, and a reference
to it an argument of each task that reads it. A child that reads nothing of a parent waits for its
end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from raytwin.runtime.session.recording import Bytes, Seconds
from raytwin.scenarios.workloads.recordings.imported_graph import (
    Graph,
    Imported,
    Task,
    TraceError,
    ordered,
)

VERSIONS = ("1.5", "1.6")
Cores = Annotated[float, Meta(gt=0)]


class SpecifiedTask(Struct, rename="camel"):
    """A task of ``workflow.specification``."""

    name: str
    id: str
    parents: list[str]
    children: list[str]
    input_files: list[str] = []
    output_files: list[str] = []


class File(Struct, rename="camel"):
    """A file that tasks read or write."""

    id: str
    size_in_bytes: Bytes


class Specification(Struct):
    """The structure of a workflow."""

    tasks: list[SpecifiedTask]
    files: list[File] = []


class ExecutedTask(Struct, rename="camel"):
    """A task of ``workflow.execution``."""

    id: str
    runtime_in_seconds: Seconds
    core_count: Cores = 1.0


class Cpu(Struct, rename="camel"):
    """The CPU of a machine."""

    core_count: Cores | None = None


class Machine(Struct):
    """A machine on which tasks ran."""

    cpu: Cpu = field(default_factory=Cpu)


class Execution(Struct, rename="camel"):
    """How a workflow ran."""

    makespan_in_seconds: Seconds
    tasks: list[ExecutedTask]
    machines: list[Machine] = []


class Workflow(Struct):
    """The structure of a workflow, and how it ran."""

    specification: Specification
    execution: Execution | None = None


class Instance(Struct, rename="camel"):
    """A file."""

    name: str
    schema_version: str
    workflow: Workflow


def read(path: Path) -> Imported:
    """Return the graph of a workflow instance. Raises TraceError, and OSError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Instance)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} is no workflow instance of WfCommons: {error}") from error
    if found.schema_version not in VERSIONS:
        raise TraceError(
            f"{path} has schemaVersion {found.schema_version!r}: give an instance of"
            f" {' or '.join(VERSIONS)}"
        )
    if found.workflow.execution is None:
        raise TraceError(f"{path} has no workflow.execution: nothing says how long its tasks take")
    try:
        return _graph(found, found.workflow.execution, str(path))
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _graph(found: Instance, execution: Execution, source: str) -> Imported:
    sizes = {each.id: each.size_in_bytes for each in found.workflow.specification.files}
    ran = {each.id: each for each in execution.tasks}
    graph = Graph()
    made: dict[str, Task] = {}
    files: dict[str, str] = {}
    """By file: the value that it is."""
    unsized = outside = 0
    tasks = {task.id: task for task in found.workflow.specification.tasks}
    for task in ordered(tasks, {each: task.parents for each, task in tasks.items()}):
        if task.id not in ran:
            raise TraceError(f"task {task.id!r} has no runtime in workflow.execution")
        read = [files[name] for name in task.input_files if name in files]
        outside += len(task.input_files) - len(read)
        # A parent of which it reads nothing: it waits for its end alone.
        read += [made[p].end for p in task.parents if not set(made[p].outputs) & set(read)]
        unsized += sum(name not in sizes for name in task.output_files)
        outputs = [sizes.get(name, 0) for name in task.output_files]
        cores = ran[task.id].core_count
        took_s = ran[task.id].runtime_in_seconds
        added = graph.add(task.name, took_s, {"CPU": cores}, read, outputs)
        made[task.id] = added
        files.update(zip(task.output_files, added.outputs, strict=True))
    lacks = ["How much of a runtime was CPU time (avgCPU) is not used: all passes as time waited."]
    if outside:
        lacks.append(f"{outside:,} inputs are files that no task writes: nothing reads them here.")
    if unsized:
        lacks.append(f"{unsized:,} output files have no size: they count as empty.")
    cores_max = max((each.core_count for each in execution.tasks), default=1.0)
    nodes = [{"CPU": float(each.cpu.core_count or cores_max)} for each in execution.machines]
    if not nodes:
        nodes = [{"CPU": cores_max}]
        lacks.append(
            f"It names no machines: the recording has one node with {cores_max:g} CPUs, as many as"
            " its largest task needs. Give --nodes."
        )
    return Imported(graph.recording(source, nodes, execution.makespan_in_seconds), lacks)
