"""What ran how often, as the bodies of tasks and calls write it down themselves.

A node that is killed takes its memories along, so nobody else knows for sure what it had begun.
A body therefore writes a line to a file before it does anything else: what the kernel has been
given, SIGKILL does not take back. In virtual time bodies write to the same kind of file.
`execution_record` has what they call.
All nodes are on one machine, as they are on `sim` and `local`; containers share the file's folder.

The first line of a task or call is its first execution; each later one is it executed again,
since what is executed again has the ID that it had. Which of those were calls repeated to
rebuild an actor the bodies cannot know: it is in the timeline of the node that did it, as long
as that node lives.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.ids import task_id
from raytwin.runtime.control.observability.timeline import REPLAY


@dataclass(frozen=True)
class Execution:
    """A body that has begun; `worker` is the address of its process."""

    task: bytes
    worker: str
    began_s: float


@dataclass
class Executions:
    """All that have begun, in the order in which they did."""

    first: list[Execution] = field(default_factory=list)
    again: list[Execution] = field(default_factory=list)
    """Of tasks and calls that had begun before, but for replays."""
    replays: list[Execution] = field(default_factory=list)
    """Of calls, to rebuild their actors, on nodes that live. Those on a node that has died since
    are among `again`."""


PATH_CHARS = 128
"""The length of the path of every folder of executions that is no longer."""


@contextmanager
def record() -> Iterator[str]:
    """Make the file that bodies give to `begin`; it is there as long as the ``with``."""
    with tempfile.TemporaryDirectory(prefix="raytwin-") as folder:
        # Tasks carry the path, and the simulation counts their bytes: its figures must not depend
        # on the place of this machine's temporary files.
        path = folder.ljust(PATH_CHARS, "/") + "executions"
        Path(path).touch()
        yield path


def shared_by(backend: str, path: str) -> dict[str, Any]:
    """Return the options of `init` with which all nodes can write to the file."""
    return {"shared_directories": [str(Path(path).parent)]} if backend == "docker" else {}


def _place(each: Execution) -> tuple[bytes, int, int]:
    """Return the task, and the numbers of its node and its worker."""
    return each.task, node_of(each.worker), int(each.worker.rpartition(".")[2])


def read(path: str, timeline: Sequence[Sequence[Any]] = ()) -> Executions:
    """Return what a file says.

    `timeline` is that of a cluster with actors, as in `queries`. The file is
    complete when the cluster is shut down.
    """
    replayed = {(task_id(row[6], row[7]), row[1], row[2]) for row in timeline if row[9] == REPLAY}
    found = Executions()
    known: set[bytes] = set()
    for line in Path(path).read_text().splitlines():
        task, worker, began_s = line.split()
        each = Execution(bytes.fromhex(task), worker, float(began_s))
        if each.task not in known:
            found.first.append(each)
        elif replayed and _place(each) in replayed:
            found.replays.append(each)
        else:
            found.again.append(each)
        known.add(each.task)
    return found
