"""The structs that messages contain: tasks, results, values; and their status codes.

Functions, arguments and values are opaque ``bytes`` here; only workers and
drivers serialize and deserialize.
"""

from __future__ import annotations

from typing import Union

from msgspec import Struct

OK = 0
USER_ERROR = 1
"""The task's own code raised: `RangeResult.payload` is the pickled exception."""
SYSTEM_ERROR = 2
"""The system failed: `payload` is a packed `errors.Failure`."""
RETRY = 3
"""The task's own code raised an error of `TaskExtra.retry_on`: from worker to node only."""
NOT_BEGUN = 4
"""A call of an actor was cancelled before it began: from worker to node only."""

STREAM = 1
DYNAMIC = 2

NOWHERE = -1
SOMEWHERE = -2
"""In place of `TaskExtra.begun`: maybe a node, which is not known."""
"""In place of `RangeResult.node`: the large values were lost with their node."""

DROPPED = -1
"""In place of a copy's size: the node has dropped the copy."""

READY_METHOD = "__ray_ready__"
"""A call without effect on the actor: it is neither counted nor logged."""


class ActorInfo(Struct, array_like=True, gc=False):
    """The actor that a task creates: the task's array ID is the actor's ID."""

    max_restarts: int = 0
    """-1: without limit."""
    max_concurrency: int = 1
    checkpoint_interval: int = 0
    """Take a checkpoint after so many calls; 0: never."""
    name: str = ""
    namespace: str = ""
    detached: bool = False
    handle: bytes = b""
    """Opaque: the serialized handle for clients that look the actor up by name."""
    incarnation: int = 0
    """How often the actor was started before."""
    branch: int = 0
    """A detached actor's number within its job, part of its IDs; see `ids`."""
    placement: str = ""
    """A demand that its node must be able to meet in total, beyond what the actor takes there."""
    ordered: bool = True
    """Whether calls of one caller begin in the order of their submission, whatever they wait for;
    as in Ray, those of threaded and async actors do not."""


class CallBatch(Struct, array_like=True, gc=False):
    """Calls that differ in their IDs and arguments alone; see `call_batches`."""

    arrays: bytes
    """Their array IDs, one after another."""
    args: tuple[bytes, ...] = ()
    """As in `TaskSpec`, call by call; empty: none of them has arguments."""


class TaskExtra(Struct, array_like=True, gc=False):
    """The fields that few tasks need: `TaskSpec.extra` is None for all others."""

    strategy: str = ""
    """Its scheduling strategy; see `strategies`."""
    attempt: int = 0
    """How often the GCS has placed it again. If it was, its children may exist already."""
    actor: Union[ActorInfo, None] = None
    """The actor that the task creates."""
    call: bytes = b""
    """The actor that the task is a call of."""
    method: str = ""
    """The method that the call runs; the worker itself answers `READY_METHOD`."""
    stream: int = 0
    """`STREAM`: its items become objects as they are made; `DYNAMIC`: in addition its value
    is the list of references to them; see `ids`."""
    retry_on: bytes = b""
    """The serialized classes of its own errors after which it is retried."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables while it runs."""
    group: str = ""
    """The placement group that it runs in, ``id`` or ``id/capture``."""
    inside: tuple[bytes, ...] = ()
    """Arrays with references inside its arguments: its reconstruction needs them, as it needs
    its inputs."""
    batch: Union[CallBatch, None] = None
    """If the spec is a batch: the ``count`` calls of one actor; ``array`` is that of the first."""
    tries: int = 0
    """How often it has raised and was retried: each try has children with other IDs."""
    crashes: int = 0
    """How often its worker died while it ran."""
    begun: int = -1
    """The node on which an earlier run began and may have left children; -1: none,
    `SOMEWHERE`: it is a child of an earlier run of its parent, and may have begun on any node."""


class TaskSpec(Struct, array_like=True, gc=False):
    """A range of tasks: elements ``start`` to ``start + count`` of an array.

    A call is a range of one with ``first = -1`` and ``args`` the serialized
    ``(args, kwargs)``. A range of an array carries ``args`` as the serialized
    sequence of single arguments whose item 0 belongs to element ``first``.
    """

    array: bytes
    start: int
    count: int
    function: bytes
    args: bytes
    owner: str
    """The client that waits for the results."""
    demand: str = "CPU:1"
    """Resources that one element needs while it runs; see `resources`."""
    deps: tuple[bytes, ...] = ()
    """Objects that must be on the node before it starts, in argument order."""
    returns: int = 1
    retries: int = 3
    """How often a range may start again after its worker or node died."""
    first: int = -1
    name: str = ""
    extra: Union[TaskExtra, None] = None
    depth: int = 0
    """How many tasks it is nested in: 0 if a driver has submitted it. Calls of actors do not
    count, so a task that an actor has submitted is nested in one."""


class ResultRefs(Struct, array_like=True, gc=False):
    """References that come with a result; see `ownership`.

    ``borrowed``: (array, owner, borrower, loan number) of references in the arguments that
    the worker has kept. ``contained``: (array, owner) of references in the values; the
    worker has registered the node ``keeper`` with their owners.
    """

    borrowed: tuple[tuple[bytes, str, str, int], ...] = ()
    contained: tuple[tuple[bytes, str], ...] = ()
    keeper: str = ""


class RangeResult(Struct, array_like=True, gc=False):
    """The result of elements ``start`` to ``start + count`` of an array.

    ``payload`` is the serialized list of their values, element by element,
    return by return. Values too large for messages are ``None`` there:
    then count is 1 and ``sizes`` has one number per return value, its size in
    the object store of ``node``, or 0 for a value that is in the payload.
    """

    array: bytes
    start: int
    count: int
    status: int
    payload: bytes
    node: int
    """The node on which it ran, which has the large values."""
    returns: int = 1
    sizes: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    """The places of large values in that node's arena, for that node only; -1: not there."""
    refs: Union[ResultRefs, None] = None
    """None: no references came with the result."""
    position: int = 0
    """The position in the payload's list at which the values begin."""
    calls: bytes = b""
    """The array IDs of several calls, if this is a batch of results; see `call_batches`."""
    cancelled: int = -1
    """If not -1: this call of an actor was cancelled while it ran, after so many items."""


class Timing(Struct, array_like=True, gc=False):
    """When one range ran, for estimates and for the timeline."""

    name: str
    start_s: float
    elapsed_s: float
    count: int


class ObjectValue(Struct, array_like=True, gc=False):
    """One object as a client gets it.

    Small: ``payload`` is a serialized list and the value is its item
    ``position``. Large (``size`` > 0): the serialized value is at ``offset`` of the node's
    arena, ``size`` bytes long, and is pinned until the client sends `Unpin`. ``status`` as in
    `RangeResult`.
    """

    object: bytes
    status: int
    payload: bytes
    position: int = 0
    offset: int = -1
    size: int = 0


class Assignment(Struct, array_like=True, gc=False):
    """A range for a worker to run, with the values of its `deps` in order."""

    spec: TaskSpec
    values: tuple[ObjectValue, ...] = ()
    cancelled: int = -1
    """If not -1: the call is replayed, and was cancelled after it had yielded so many items."""
