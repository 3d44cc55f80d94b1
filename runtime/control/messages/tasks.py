"""Tasks: submitted, placed, run, reported, taken back, logged.

A task goes from the client to its node, and from there to a worker, or through the global scheduler
to another node. Nodes report it to the GCS's task table. A function is sent before its first task.
"""

from __future__ import annotations

from typing import Union

from msgspec import Struct

from raytwin.runtime.control.messages.common import Assignment, RangeResult, TaskSpec, Timing
from raytwin.runtime.control.messages.errors import Failure


class SubmitTasks(Struct, array_like=True, tag=1):
    tasks: list[TaskSpec]


class TasksUnsent(Struct, array_like=True, tag=175):
    """From the world to a client: these tasks are too long for a message and were not sent."""

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
    """The running task has stopped waiting and takes its CPU back; answered by `Resume` at
    once."""


class Resume(Struct, array_like=True, tag=24):
    """The answer to `Unblocked`. All messages that the node sent before have arrived before it."""


class TasksDone(Struct, array_like=True, tag=15):
    """The results of a worker since its last report, in order.

    ``answered``: it is one result, which the worker sends to the driver that owns it, too.
    """

    results: list[RangeResult]
    timings: list[Timing]
    answered: bool = False


class TakenBack(Struct, array_like=True, tag=16):
    """Ranges that a worker has not started and gives back.

    Each is (array, start, count). ``answers``: the number of the `TakeBack` that this answers; 0:
    the worker gives them back without a request, because its task waits.
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


class GrantGpus(Struct, array_like=True, tag=190):
    """The worker's next tasks, or its actor, have these GPUs of the node."""

    numbers: tuple[int, ...]


class TakeBack(Struct, array_like=True, tag=20):
    """The worker must give back the ranges that it has not started; numbered from 1."""

    number: int


class Exit(Struct, array_like=True, tag=21):
    """The worker must exit when its running task is done."""


class StreamItems(Struct, array_like=True, tag=25):
    """Items that the running task of a worker has yielded; see `ids`."""

    results: list[RangeResult]


class CancelTask(Struct, array_like=True, tag=26):
    """Cancel elements of an array; see `cancellation`.

    ``force``: kill the worker that runs one of them. ``recursive``: cancel their children, too.
    ``nodes``: the nodes that have accepted them; the GCS fills this in. ``request``: the client and
    its number of the request, by which a worker recognizes a duplicate; empty: none can arrive.
    ``owners``: only elements of these workers, which have died; with them, an empty ``array`` means
    all their tasks, but for actors and calls.
    """

    array: bytes
    start: int
    count: int
    force: bool
    recursive: bool
    nodes: tuple[int, ...] = ()
    request: str = ""
    owners: tuple[str, ...] = ()


class TaskUpdates(Struct, array_like=True, tag=35):
    """A node's rows for the task and object tables, sent in batches; see `gcs_write_log`.

    ``added``: ranges this node has accepted. ``done``: (array, start, count,
    sizes) of ranges that ended here, whose values this node has; ``sizes``
    is empty where every value is small. ``copies``: (object, size) of objects
    copied from other nodes. ``released``: arrays that their owners have released.
    ``puts``: (array, size) of values that clients here have put, size 0 for a small one.
    ``incarnation``: the node's; 0: the present one.
    ``calls``: (array, owner, actor) of results in ``done`` that an actor made; the
    ID is empty if the node does not know the actor. ``owner_died``: those of
    ``released`` whose owner has died. ``with_references``: arrays in ``done`` whose
    values contain references. ``unreconstructable``: (array, error) of arrays that cannot be
    made because an input is lost; the error has the input and the reason.
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
    """From the global scheduler: the node from which all of ``added`` have moved."""


class PlaceTasks(Struct, array_like=True, tag=39):
    """Ranges for the global scheduler to place: a local scheduler spills them, or the GCS has lost
    them with a node. The GCS sends those that may have ended to their owner's node first."""

    tasks: list[TaskSpec]


class AssignTasks(Struct, array_like=True, tag=40):
    """Ranges for a node to run; ``incarnation``: the node's, 0: the present one."""

    tasks: list[TaskSpec]
    incarnation: int = 0


class MoveTasks(Struct, array_like=True, tag=184):
    """Other nodes have room for so many starving elements of this demand; see `starvation`."""

    demand: str
    count: int


class TasksMoved(Struct, array_like=True, tag=185):
    """Ranges and actors that a node returns to the global scheduler, to be placed elsewhere.

    ``thief``: the node that has asked for the ranges; -1: they go wherever the policy places them.
    """

    node: int
    incarnation: int
    tasks: list[TaskSpec]
    thief: int = -1


class StealTasks(Struct, array_like=True, tag=202):
    """A node with idle workers asks another one for ranges; answered by `StealAnswer`.

    ``available``: the free resources of the node that asks.
    """

    available: dict[str, float]


class StealAnswer(Struct, array_like=True, tag=203):
    """A victim tells the thief how many elements it has sent away for it, with `TasksMoved`."""

    count: int


class ResultsMissing(Struct, array_like=True, tag=43):
    """A node died, and clients of ``node`` still wait for the results of these ranges.

    Each is (array, start, count). The GCS reconstructs results that were lost on their way from the
    dead node, and ignores ranges that still run on other nodes.
    """

    node: int
    ranges: list[tuple[bytes, int, int]]


class ClaimTasks(Struct, array_like=True, tag=45):
    """Children of a task that was resubmitted: the GCS finds those that exist already."""

    tasks: list[TaskSpec]


class TasksClaimed(Struct, array_like=True, tag=46):
    """The tasks of a `ClaimTasks` that no node has; the results of all others will come."""

    tasks: list[TaskSpec]


class ForwardResults(Struct, array_like=True, tag=47):
    """``owner`` waits for this range too: send it all results, present and future."""

    array: bytes
    start: int
    count: int
    owner: str


TaskMessage = Union[
    SubmitTasks, TasksUnsent, ExportFunction, FetchFunction, FunctionBlob, Blocked, Unblocked,
    Resume, TasksDone, TakenBack, TaskResults, WorkerReady, RunTasks, GrantGpus, TakeBack, Exit,
    StreamItems, CancelTask, TaskUpdates, PlaceTasks, AssignTasks, ResultsMissing, ClaimTasks,
    TasksClaimed, ForwardResults, MoveTasks, TasksMoved, StealTasks, StealAnswer,
]  # fmt: skip
