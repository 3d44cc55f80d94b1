"""``raytwin record``: run a script on `local`, and write what it did as a graph (`recording`).

On Ray itself: `record_on_ray`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from raytwin.runtime.api import backend, lifecycle
from raytwin.runtime.control.core.ids import adopted, array_id, job_of, object_id, put_id
from raytwin.runtime.processes.client.local_world import RECORD
from raytwin.runtime.processes.client.recorder import Line
from raytwin.runtime.session.recording import Put, Recording
from raytwin.scenarios.cli.execute import execute
from raytwin.scenarios.core.scenario import UsageError

SUMMARY = "raytwin: recorded"
"""The line that `raytwin record` ends with begins so, whether the script has failed or not."""


def record(
    script: Path, args: Sequence[str], options: dict[str, Any]
) -> tuple[int, Recording | None]:
    """Run a script on a cluster of its own; return its exit code, and what was recorded.

    None: the script has started no cluster. Raises UsageError if it has started several.
    """
    nodes: list[dict[str, float]] = []

    def connected(session: Any) -> None:
        def describe() -> None:
            nodes.extend(row["resources"] for row in session.query("nodes"))

        session.before_shutdown.append(describe)

    with tempfile.TemporaryDirectory(prefix="raytwin-") as folder:
        os.environ[RECORD] = folder
        backend.on_connect.append(connected)
        try:
            code = execute(script, args, options)
        except SystemExit as left:
            if left.code is None or isinstance(left.code, int):
                code = left.code or 0
            else:
                print(left.code, file=sys.stderr)  # as Python does
                code = 1
        finally:
            lifecycle.shutdown()
            backend.on_connect.remove(connected)
            del os.environ[RECORD]
        lines = [
            msgspec.json.decode(line, type=Line)
            for file in sorted(Path(folder).iterdir())
            # The last line of a worker that was killed may be half a line.
            for line in file.read_bytes().split(b"\n")[:-1]
        ]
    drivers = [line for line in lines if line.driver is not None]
    if not drivers:
        return code, None
    if len(drivers) > 1:
        raise UsageError(
            f"a recording is of one cluster, and {script} has started {len(drivers)}: record a"
            " script that calls init() once"
        )
    return code, _graph(lines, drivers[0], str(script), nodes)


def _graph(
    lines: list[Line], driver: Line, script: str, nodes: list[dict[str, float]]
) -> Recording:
    """Return the graph that the lines of all processes are of."""
    assert driver.driver is not None
    found, began_s, ended_s = driver.driver
    root = found.id
    parents: dict[str, tuple[str, int]] = {}
    """By the array of a task, call, actor or put: who has made it, in which part."""
    job = job_of(bytes.fromhex(root))
    for line in lines:
        submitter = root if line.driver is not None else line.body.id if line.body else None
        if submitter is not None:
            # A task's children are numbered, from 1; see `ids`. Retries have other numbers.
            numbered_by = adopted(bytes.fromhex(submitter), job)
            for number, part in enumerate(line.submissions, start=1):
                parents[array_id(numbered_by, number).hex()] = submitter, part
            for number, part in enumerate(line.puts, start=1):
                parents[put_id(numbered_by, number).hex()] = submitter, part
    bodies = sorted(
        (line.body for line in lines if line.body is not None), key=lambda body: body.start_s
    )
    for body in bodies:
        body.parent, body.part = parents.get(body.id[:24], (None, 0))
        body.start_s -= began_s
        body.end_s -= began_s
    puts = [
        Put(object_id(bytes.fromhex(array), 0, 0).hex(), parent, nbytes, part)
        for array, nbytes in (line.stored for line in lines if line.stored is not None)
        for parent, part in [parents.get(array, (None, 0))]
    ]
    return Recording(
        format="raytwin-recording",
        version=1,
        script=script,
        backend="local",
        nodes=nodes,
        makespan_s=ended_s - began_s,
        driver=found,
        bodies=bodies,
        puts=puts,
    )
