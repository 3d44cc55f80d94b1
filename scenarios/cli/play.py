"""``raytwin exec GRAPH.json``: a recording runs by itself, without the script that it is of."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import raytwin as ray
from raytwin.reports.numbers import short
from raytwin.runtime.session.recording import Recording, load
from raytwin.scenarios.core.scenario import UsageError
from raytwin.scenarios.workloads.recordings import recorded_program


def read(path: Path, nodes: int | None, cpus: int | None) -> tuple[Recording, dict[str, Any]]:
    """Return a recording, and the options of ``init()`` for a cluster that it can run on.

    `nodes` and `cpus` (per node) are None as recorded. Raises UsageError.
    """
    try:
        recording = load(path)
        recorded_program.work_of(recording)
        return recording, {"nodes": recorded_program.cluster_of(recording, nodes, cpus)}
    except ValueError as error:
        raise UsageError(str(error)) from error


def play(
    recording: Recording,
    options: dict[str, Any],
    time_scale: float,
    cpu_scale: float,
    size_scale: float,
) -> int:
    """Run a recording on a cluster of its own; print how long it took; return 0.

    `cpu_scale` multiplies times on a CPU, besides `time_scale`. Raises UsageError if there cannot
    be such a cluster.
    """
    if options.get("backend") != "sim":
        # Values are blobs, for which each worker would load numpy in its first task: workers are
        # forked with what the driver has loaded.
        importlib.import_module("numpy")
    try:
        ray.init(**options)
    except (ValueError, TypeError, PermissionError) as error:
        raise UsageError(str(error)) from error
    try:
        played = recorded_program.play(recording, time_scale, cpu_scale, size_scale)
    finally:
        ray.shutdown()
    said = f"played {played.bodies:,} tasks and calls in {short(played.makespan_s, 's')}"
    if recording.makespan_s:  # a workflow that was made up never ran
        said += f"; recorded: {recording.makespan_s:.4g} s"
        if time_scale != 1:
            said += f" x {time_scale:g} = {recording.makespan_s * time_scale:.4g} s"
    print(said)
    return 0
