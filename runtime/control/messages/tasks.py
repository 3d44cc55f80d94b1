"""Tasks on their way: submitted, placed, run, reported, taken back, logged.

From client to node, from there to a worker or by way of the global scheduler to
another node, and what the GCS's task table hears of it. A function travels ahead
of its first task.
"""

from __future__ import annotations

from typing import Union

from msgspec import Struct

from raytwin.runtime.control.messages.common import Assignment, RangeResult, TaskSpec, Timing
from raytwin.runtime.control.messages.errors import Failure


class SubmitTasks(Struct, array_like=True, tag=1):
    tasks: list[TaskSpec]


class TasksUnsent(Struct, array_like=True, tag=175):
    """From the world to a client: these tasks are too long for a message, and have not left."""

    tasks: list[TaskSpec]
    reason: str


class ExportFunction(Struct, array_like=True, tag=2):
    """Put a function into the GCS's function table."""

    function: bytes
    blob: bytes


class FetchFunction(Struct, array_like=True, tag=3):
    function: bytes


class FunctionBlob(Struct, array_like=True, tag=4):
    function: bytes
    blob: bytes


class Blocked(Struct, array_like=True, tag=13):
    """The running task waits in `get` or `wait`: its CPU is free."""


class Unblocked(Struct, array_like=True, tag=14):
    """The running task waits no more and takes its CPU back; answered by `Resume` at once."""


class Resume(Struct, array_like=True, tag=24):
    """The CPU is yours again. All that was sent before the node knew has come."""


class TasksDone(Struct, array_like=True, tag=15):
    """The results of what a worker has run since its last report, in order."""

    results: list[RangeResult]
    timings: list[Timing]


class TakenBack(Struct, array_like=True, tag=16):
    """Ranges that a worker was given, has not started and gives back.

    Each is (array, start, count). ``answers``: the number of the `TakeBack` that it was
    asked by; 0: it waits, and nobody asked.
    """

    ranges: list[tuple[bytes, int, int]]
    answers: int = 0


class TaskResults(Struct, array_like=True, tag=17):
    """Results on their way to their owner."""

    owner: str
    results: list[RangeResult]


class WorkerReady(Struct, array_like=True, tag=18):
    pid: int


class RunTasks(Struct, array_like=True, tag=19):
    tasks: list[Assignment]


class TakeBack(Struct, array_like=True, tag=20):
    """Give back what you have not started; numbers of one worker's rise from 1."""

    number: int


class Exit(Struct, array_like=True, tag=21):
    """Leave, when the running task is done."""


class StreamItems(Struct, array_like=True, tag=25):
    """Items that the running task of a worker has yielded; see `ids`."""

    results: list[RangeResult]


class CancelTask(Struct, array_like=True, tag=26):
    """Elements of an array are not wanted any more; see `cancellation`.

    ``force``: end the worker that runs one of them. ``recursive``: cancel what
    they have submitted, too. ``nodes``: from the GCS, who has accepted them.
    ``request``: which client's, and its how manieth, since it may come to a worker in
    more ways than one; empty: it does not.
    """

    array: bytes
    start: int
    count: int
    force: bool
    recursive: bool
    nodes: tuple[int, ...] = ()
    request: str = ""


class TaskUpdates(Struct, array_like=True, tag=35):
    """A node's write-behind log of the task and object tables.

    ``added``: ranges this node has accepted. ``done``: (array, start, count,
    sizes) of ranges that ended here, whose values this node holds; ``sizes``
    is empty where every value is small. ``copies``: (object, size) of objects
    brought here from elsewhere. ``released``: arrays that their owners have released.
    ``puts``: (array, size) of what clients here have put, size 0 for a small value.
    ``incarnation``: the one of the node that is meant; 0: whichever it is.
    ``calls``: (array, owner, actor) of results in ``done`` that an actor made; an
    empty ID where the actor is not known or did not make it. ``owner_died``: those of
    ``released`` whose owner has died. ``with_references``: arrays in ``done`` whose
    values have references inside. ``unreconstructable``: (array, error) of what cannot be made,
    as an input of it is lost; the error says which and why.
    """

    node: int
    added: list[TaskSpec]
    done: list[tuple[bytes, int, int, tuple[int, ...]]]
    copies: list[tuple[bytes, int]]
    released: list[bytes]
    puts: list[tuple[bytes, int]] = []
    incarnation: int = 0
    calls: list[tuple[bytes, str, bytes]] = []
    owner_died: list[bytes] = []
    with_references: list[bytes] = []
    unreconstructable: list[tuple[bytes, Failure]] = []
    left: int = -1
    """From the global scheduler: the node that had accepted all of ``added`` until now."""


class PlaceTasks(Struct, array_like=True, tag=39):
    """Ranges that their node's scheduler does not keep."""

    tasks: list[TaskSpec]


class AssignTasks(Struct, array_like=True, tag=40):
    """Ranges for a node to run; ``incarnation``: the one that is meant, 0: whichever it is."""

    tasks: list[TaskSpec]
    incarnation: int = 0


class MoveTasks(Struct, array_like=True, tag=184):
    """Another node has room for so many elements that starve with this demand."""

    demand: str
    count: int


class TasksMoved(Struct, array_like=True, tag=185):
    """Ranges and actors that a node gives up, to be placed elsewhere."""

    node: int
    incarnation: int
    tasks: list[TaskSpec]


class ResultsMissing(Struct, array_like=True, tag=43):
    """A node died, and these ranges that clients of ``node`` wait for have not come.

    Each is (array, start, count). Results that were on their way from the dead
    node are made again; what still runs elsewhere is left alone.
    """

    node: int
    ranges: list[tuple[bytes, int, int]]


class ClaimTasks(Struct, array_like=True, tag=45):
    """Children of a task that was placed again: run only what is not there yet."""

    tasks: list[TaskSpec]


class TasksClaimed(Struct, array_like=True, tag=46):
    """The tasks of a `ClaimTasks` that no node has; the results of all others will come."""

    tasks: list[TaskSpec]


class ForwardResults(Struct, array_like=True, tag=47):
    """``owner`` waits for this range too: send what there is, and what will be."""

    array: bytes
    start: int
    count: int
    owner: str


TaskMessage = Union[
    SubmitTasks, TasksUnsent, ExportFunction, FetchFunction, FunctionBlob, Blocked, Unblocked,
    Resume, TasksDone, TakenBack, TaskResults, WorkerReady, RunTasks, TakeBack, Exit, StreamItems,
    CancelTask, TaskUpdates, PlaceTasks, AssignTasks, ResultsMissing, ClaimTasks, TasksClaimed,
    ForwardResults, MoveTasks, TasksMoved,
]  # fmt: skip
