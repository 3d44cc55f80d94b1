"""Every control message: the protocol on one page.

All are msgspec structs, encoded as msgpack arrays behind a small integer tag;
a frame carries one sender, one receiver and the messages of one turn:

    frame = [source address, destination address, [message, ...]]

Functions, arguments and values are opaque ``bytes`` here; only workers and
drivers serialize and deserialize. Times are seconds, sizes are bytes.

Who speaks with whom
--------------------
==================== =======================================================
client  -> node      SubmitTasks, ExportFunction, WantObjects, PutObjects,
                     AllocateObject, AbandonObject, Release, Unpin, Query, CancelTask,
                     CreateGroup, RemoveGroup
worker  -> node      WorkerReady, TasksDone, TakenBack, Blocked, Unblocked, StreamItems
                     (and all of the above)
node    -> client    TaskResults, ObjectsReady, ObjectAllocated, QueryReply, GiveBack
node    -> worker    FunctionBlob, RunTasks, TakeBack, Resume, Exit, CancelTask
node    -> gcs       RegisterNode, Heartbeat, ExportFunction, FetchFunction,
                     TaskUpdates, LocateObjects, Query, Event, ResultsMissing,
                     ObjectsMissing, ClaimTasks, OwnersFound
gcs     -> node      Registered, NodeChanged, FunctionBlob, ObjectLocations,
                     FreeObjects, QueryReply, TaskResults (of what cannot be
                     placed again), TasksClaimed, ForwardResults,
                     SeekOwners
gcs     -> global    NodeChanged, LoadChanged, ObjectLocations, PlaceTasks
gcs     -> links     NodeChanged
gcs     -> global    CancelTask (with the nodes that have it)
node    -> global    PlaceTasks, CancelTask, CreateGroup, RemoveGroup,
                     BundlePrepared, Query
global  -> node      AssignTasks, TaskResults (of what cannot be placed), CancelTask,
                     PrepareBundle, CommitBundle, ReturnBundle, QueryReply
global  -> gcs       LocateObjects, TaskUpdates, CancelTask
node    -> node      TaskResults, PullObject, ObjectPayload, TimelineRows
node    -> store     Allocate, Free, Fetch, Spill, DropSpilled
store   -> node      Allocated, Fetched, NoRoom, Spilled
node    -> pool      StartWorker, StopWorker, KillWorker
pool    -> node      WorkerDied
node    -> links     NodeChanged
world   -> gcs       NodeUnreachable
world   -> any       TooLong (see `too_long`)
client  -> node      KvPut, KvGet, KvDelete, FindTask (and on to the gcs, which
                     answers KvReply, TaskFound)
gcs     -> storage   StoreRows, LoadRow, and RowLoaded back

actors:
client  -> node      SubmitTasks (creations and calls), KillActor, FindActor
worker  -> node      SaveActor, ExitActor
node    -> worker    RestoreActor
node    -> gcs       CreateActors, ActorStarted, ActorFailed, WatchActors, KillActor,
                     LogCalls, SaveActor, FetchLineage, CallsReceived, FindActor
gcs     -> node      ActorChanged, StopActor, CallsLogged, ActorLineage, ActorFound
gcs     -> global    ActorChanged, PlaceTasks (creations)
global  -> gcs       ActorPlaced
node    -> node      ActorCalls, CancelCall, DrainCalls, CallsDrained

jobs:
door    -> node      RegisterJob, JobEnded
client  -> node      DescribeJob
node    -> gcs       RegisterJob, DescribeJob, JobEnded
gcs     -> node      JobRegistered, JobEnded
gcs     -> global    JobEnded
node    -> door      JobRegistered

references:
client  -> node      RefUpdates
node    -> node      RefUpdates
node    -> client    RefUpdates, BorrowersGone
==================== =======================================================

Where the GCS is sharded (see `shards`), ``gcs.<k>`` has a part of the tables, and
what is for these goes there:

==================== =======================================================
global  -> gcs.<k>   TasksPlaced, in place of TaskUpdates and AssignTasks
gcs.<k> -> gcs.<l>   TasksPlaced (on its way), LineageChanges
node    -> gcs.<k>   LineageChanges, ahead of TaskUpdates
gcs.<k> -> node      AssignTasks, CancelTask
gcs.<k> -> gcs       Event, NodesSeen, AskReplay
gcs.<k> -> global    PlaceTasks
gcs     -> gcs.<k>   NodeChanged, ActorSettled, JobEnded
==================== =======================================================

Where the GCS is replicated, durable or sharded, a *chain* stands in for ``gcs`` and
``global`` (see `chain`), whose messages travel inside of these:

==================== =======================================================
node    -> replica   ChainRequest, ChainAttach
replica -> node      ChainOutput
replica -> replica   ChainCommands, ChainAck, SnapshotPart, SnapshotTaken
replica -> master    ReplicaReady, ReplicaJoined, ReplicaBeat, ReplicaSuspected
node    -> master    ChainHello, ReplicaSuspected
master  -> both      ChainConfigured
master  -> launcher  StartReplica
replica -> log       LogCommands, LogSnapshot; log -> replica: Logged
world   -> any       ReplicaLost
==================== =======================================================

``store:<n>``, ``pool:<n>``, ``links`` and ``door:<n>`` are not components but what
needs I/O: moving bytes, starting processes, closing the connections of who has
died, and letting drivers in.
Each world has its own.
"""

from __future__ import annotations

from typing import Any, Union

from msgspec import Struct

OK = 0
USER_ERROR = 1
"""The task's own code raised: `RangeResult.payload` is the pickled exception."""
SYSTEM_ERROR = 2
"""The system gave up: `payload` is a UTF-8 ``ExceptionName: message``."""
OF_ACTOR = "\0"
"""In such a message: the ID of the actor that was called comes next, in hexadecimal."""
RETRY = 3
"""Its own code raised what `TaskExtra.retry_on` names: from worker to node only."""
NOT_BEGUN = 4
"""A call of an actor that was cancelled in time: from worker to node only."""

STREAM = 1
DYNAMIC = 2

DROPPED = -1
"""In place of a copy's size: it was here, and may be asked for no more."""

READY_METHOD = "__ray_ready__"
"""A call without effect on the actor: it is neither counted nor logged."""


class ActorInfo(Struct, array_like=True, gc=False):
    """What makes a task an actor's creation: its array ID is the actor's ID."""

    max_restarts: int = 0
    """-1: for ever."""
    max_concurrency: int = 1
    checkpoint_interval: int = 0
    """Take a checkpoint after so many calls; 0: never."""
    name: str = ""
    namespace: str = ""
    detached: bool = False
    handle: bytes = b""
    """Opaque: what whoever looks the actor up by name needs to call it."""
    incarnation: int = 0
    """How often the actor was started before."""
    branch: int = 0
    """Of a detached one: its number within its job, by which its IDs begin; see `ids`."""


class TaskExtra(Struct, array_like=True, gc=False):
    """What few tasks need: `TaskSpec.extra` is None for all others."""

    strategy: str = ""
    """Where it should run; see `strategies`."""
    attempt: int = 0
    """How often the GCS has placed it again: what it submits may exist already."""
    actor: Union[ActorInfo, None] = None
    """It creates an actor."""
    call: bytes = b""
    """It is a call of this actor."""
    method: str = ""
    """Which one; `READY_METHOD` is answered by the worker itself."""
    stream: int = 0
    """`STREAM`: its items become objects as they are made; `DYNAMIC`: and its value
    is the sequence of their references. See `streams`."""
    retry_on: bytes = b""
    """Classes of its own errors that count as failures of the system, serialized;
    the worker knows them."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables for as long as it runs."""
    group: str = ""
    """The placement group that it runs in, ``id`` or ``id/capture``."""
    inside: tuple[bytes, ...] = ()
    """Arrays of which references are inside its arguments: to run it again they are
    needed as its inputs are."""


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


class ResultRefs(Struct, array_like=True, gc=False):
    """References that come with a result; see `borrowing`.

    ``borrowed``: (array, owner, borrower, epoch) of what its worker has kept of the
    arguments. ``contained``: (array, owner) of what is in the values, for which
    the node ``keeper`` is entered.
    """

    borrowed: tuple[tuple[bytes, str, str, int], ...] = ()
    contained: tuple[tuple[bytes, str], ...] = ()
    keeper: str = ""


class RangeResult(Struct, array_like=True, gc=False):
    """What became of elements ``start`` to ``start + count`` of an array.

    ``payload`` is the serialized list of their values, element by element,
    return by return. Values too large to ride in messages are ``None`` there:
    then count is 1 and ``sizes`` has one number per return value, its size in
    the object store of ``node``, or 0 for a value that is in the payload.
    """

    array: bytes
    start: int
    count: int
    status: int
    payload: bytes
    node: int
    """Where it ran, and where values of ``sizes`` > 0 are."""
    returns: int = 1
    sizes: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    """Where in that node's arena, for the node alone; -1 for no place."""
    refs: Union[ResultRefs, None] = None
    """None: there are no references to speak of."""


class Timing(Struct, array_like=True, gc=False):
    """When one range ran, for estimates and for the timeline."""

    name: str
    start_s: float
    elapsed_s: float
    count: int


class ObjectValue(Struct, array_like=True, gc=False):
    """One object as a client gets it.

    Small: ``payload`` is a serialized list and the value is its item
    ``position``. Large (``size`` > 0): the value's own serialized form stands
    at ``offset`` of the node's arena, ``size`` bytes long, and is pinned until
    the client sends `Unpin`. ``status`` as in `RangeResult`.
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


# -- client <-> node -----------------------------------------------------------


class SubmitTasks(Struct, array_like=True, tag=1):
    tasks: list[TaskSpec]


class ExportFunction(Struct, array_like=True, tag=2):
    """Put a function into the GCS's function table."""

    function: bytes
    blob: bytes


class FetchFunction(Struct, array_like=True, tag=3):
    function: bytes


class FunctionBlob(Struct, array_like=True, tag=4):
    function: bytes
    blob: bytes


class WantObjects(Struct, array_like=True, tag=5):
    """Bring these objects to my node and tell me their values."""

    objects: list[bytes]


class ObjectsReady(Struct, array_like=True, tag=6):
    values: list[ObjectValue]


class PutObjects(Struct, array_like=True, tag=7):
    """New objects of this client, as if a task had made them."""

    results: list[RangeResult]


class AllocateObject(Struct, array_like=True, tag=8):
    """Give me room in the arena; answered by `ObjectAllocated`."""

    object: bytes
    size: int


class ObjectAllocated(Struct, array_like=True, tag=9):
    """``offset`` < 0: the store is full."""

    object: bytes
    offset: int
    reason: str = ""


class AbandonObject(Struct, array_like=True, tag=10):
    """Take back room that was allocated and will not be sealed."""

    object: bytes


class Release(Struct, array_like=True, tag=11):
    """Their owner holds no reference to these arrays any more."""

    arrays: list[bytes]


class Unpin(Struct, array_like=True, tag=12):
    """This client has no view of these large objects any more."""

    objects: list[bytes]


class Blocked(Struct, array_like=True, tag=13):
    """The running task waits in `get` or `wait`: its CPU is free."""


class Unblocked(Struct, array_like=True, tag=14):
    """It need not wait any more and asks for its CPU; answered by `Resume`."""


class Resume(Struct, array_like=True, tag=24):
    """The CPU is yours again."""


class TasksDone(Struct, array_like=True, tag=15):
    """What a worker has run since it last said so, in order."""

    results: list[RangeResult]
    timings: list[Timing]


class TakenBack(Struct, array_like=True, tag=16):
    """Ranges that a worker was given, has not started and gives back.

    Each is (array, start, count).
    """

    ranges: list[tuple[bytes, int, int]]


class TaskResults(Struct, array_like=True, tag=17):
    """Results on their way to their owner."""

    owner: str
    results: list[RangeResult]


class WorkerReady(Struct, array_like=True, tag=18):
    pid: int


class RunTasks(Struct, array_like=True, tag=19):
    tasks: list[Assignment]


class TakeBack(Struct, array_like=True, tag=20):
    """Give back what you have not started."""


class Exit(Struct, array_like=True, tag=21):
    """Leave, when the running task is done."""


class StreamItems(Struct, array_like=True, tag=25):
    """Items that the running task of a worker has yielded; see `streams`."""

    results: list[RangeResult]


class CancelTask(Struct, array_like=True, tag=26):
    """Elements of an array are not wanted any more; see `cancellation`.

    ``force``: end the worker that runs one of them. ``recursive``: cancel what
    they have submitted, too. ``nodes``: from the GCS, who has accepted them.
    """

    array: bytes
    start: int
    count: int
    force: bool
    recursive: bool
    nodes: tuple[int, ...] = ()


class CreateGroup(Struct, array_like=True, tag=27):
    """Reserve these bundles; see `placement_groups`."""

    group: str
    name: str
    bundles: list[dict[str, float]]
    strategy: str
    detached: bool = False
    """It outlives its job."""


class RemoveGroup(Struct, array_like=True, tag=28):
    group: str


class Query(Struct, array_like=True, tag=22):
    """Ask the cluster something; `queries` says what there is to ask.

    ``key`` names the asker's request; it comes back in the answer.
    """

    kind: str
    key: int
    client: str = ""


class QueryReply(Struct, array_like=True, tag=23):
    key: int
    client: str
    value: Any
    more: bool = False
    """Whether further replies with this key follow."""


# -- node <-> gcs and global scheduler -----------------------------------------


class NodeInfo(Struct, array_like=True):
    """A row of the node table.

    ``incarnation`` counts from 1 how often a node of this number was started;
    whoever starts it knows. What an earlier one still says counts no more.
    """

    node: int
    host: str
    port: int
    resources: dict[str, float]
    alive: bool = True
    incarnation: int = 0
    reason: str = ""


class RegisterNode(Struct, array_like=True, tag=30):
    info: NodeInfo


class Registered(Struct, array_like=True, tag=31):
    incarnation: int
    nodes: list[NodeInfo]


class NodeChanged(Struct, array_like=True, tag=32):
    """Published when a node joins or dies."""

    info: NodeInfo


class Load(Struct, array_like=True, gc=False):
    """What a node says of itself in a heartbeat."""

    queue: int
    """Task elements that wait or run on the node."""
    mean_task_s: float
    """Exponential average of a task's time; 0 while nothing has run."""
    bandwidth: float
    """Exponential average of transfers to this node, bytes/s; 0: none yet."""
    assigned: int
    """Task elements that the global scheduler has given to it so far."""
    available: dict[str, float]


class Heartbeat(Struct, array_like=True, tag=33):
    node: int
    incarnation: int
    load: Load


class LoadChanged(Struct, array_like=True, tag=34):
    """A heartbeat, as the GCS publishes it to the global scheduler."""

    node: int
    load: Load


class TaskUpdates(Struct, array_like=True, tag=35):
    """A node's write-behind log of the task and object tables.

    ``added``: ranges this node has accepted. ``done``: (array, start, count,
    sizes) of ranges that ended here, whose values this node holds; ``sizes``
    is empty where every value is small. ``copies``: (object, size) of objects
    brought here from elsewhere, `DROPPED` in place of the size if it was dropped
    again, to make room. ``released``: arrays whose owner has let go.
    ``puts``: (array, size) of what clients here have put, size 0 for a small value.
    ``incarnation``: the one of the node that is meant; 0: whichever it is.
    ``calls``: (array, owner, actor) of results in ``done`` that an actor made; an
    empty ID where the actor is not known or did not make it.
    """

    node: int
    added: list[TaskSpec]
    done: list[tuple[bytes, int, int, tuple[int, ...]]]
    copies: list[tuple[bytes, int]]
    released: list[bytes]
    puts: list[tuple[bytes, int]] = []
    incarnation: int = 0
    calls: list[tuple[bytes, str, bytes]] = []


class LocateObjects(Struct, array_like=True, tag=36):
    """Where are these? Answered at once, and again when that changes."""

    objects: list[bytes]
    subscribe: bool = True


class Location(Struct, array_like=True, gc=False):
    object: bytes
    nodes: tuple[int, ...]
    """Nodes that hold a copy; empty: none yet, or for ``lost`` none any more."""
    size: int
    """0: it is small and rides in messages."""
    lost: str = ""
    """Why it is lost."""
    primary: int = -1
    """The node that made it, while it lives: all other copies may be dropped."""


class ObjectLocations(Struct, array_like=True, tag=37):
    locations: list[Location]


class FreeObjects(Struct, array_like=True, tag=38):
    """Drop your copies of every object of these arrays."""

    arrays: list[bytes]


class PlaceTasks(Struct, array_like=True, tag=39):
    """Ranges that their node's scheduler does not keep."""

    tasks: list[TaskSpec]


class AssignTasks(Struct, array_like=True, tag=40):
    tasks: list[TaskSpec]


class Event(Struct, array_like=True, tag=41):
    """A row of the event log."""

    kind: str
    subject: str
    detail: str = ""
    count: int = 1
    """How many it stands for, tasks for instance."""


class NodeUnreachable(Struct, array_like=True, tag=42):
    """The world saw the connection to a node break.

    ``incarnation``: whose it was; 0: whichever is there.
    """

    node: int
    reason: str
    incarnation: int = 0


class ResultsMissing(Struct, array_like=True, tag=43):
    """A node died, and these ranges that clients of ``node`` wait for have not come.

    Each is (array, start, count). Results that were on their way from the dead
    node are made again; what still runs elsewhere is left alone.
    """

    node: int
    ranges: list[tuple[bytes, int, int]]


class ObjectsMissing(Struct, array_like=True, tag=44):
    """The table is wrong: ``node`` was asked for these and does not have them."""

    node: int
    objects: list[bytes]
    reason: str = ""
    """Why, where that is known."""


class SeekOwners(Struct, array_like=True, tag=147):
    """Which of these arrays, that the table has never heard of, are clients' of yours?"""

    arrays: list[bytes]


class OwnersFound(Struct, array_like=True, tag=148):
    """The answer: those that have an owner on ``node``, and the others that were asked for."""

    node: int
    owned: list[bytes]
    others: list[bytes]


class ClaimTasks(Struct, array_like=True, tag=45):
    """Children of a task that was placed again: run only what is not there yet."""

    tasks: list[TaskSpec]


class TasksClaimed(Struct, array_like=True, tag=46):
    """What of a `ClaimTasks` is to be run; the results of all else will come."""

    tasks: list[TaskSpec]


class ForwardResults(Struct, array_like=True, tag=47):
    """``owner`` waits for this range too: send what there is, and what will be."""

    array: bytes
    start: int
    count: int
    owner: str


# -- shards of the gcs, and between them -----------------------------------------


class LineageChanges(Struct, array_like=True, tag=155):
    """What arrays of other shards have to do with arrays here; see `shard_lineage`.

    Each is (change, array, its inputs here).
    """

    changes: list[tuple[int, bytes, tuple[bytes, ...]]]


class TasksPlaced(Struct, array_like=True, tag=156):
    """The global scheduler has chosen a node: log it, then assign it there.

    ``way``: the shards that are to have it next, the one that has its row last.
    """

    node: int
    incarnation: int
    tasks: list[TaskSpec]
    way: tuple[int, ...] = ()


class NodesSeen(Struct, array_like=True, tag=157):
    """A shard has heard of so many changes of nodes."""

    count: int


class AskReplay(Struct, array_like=True, tag=158):
    """Is this actor, or for an empty ID any, being rebuilt, and makes that array again?

    Answered by `ActorSettled` when it is not.
    """

    actor: bytes
    array: bytes


class ActorSettled(Struct, array_like=True, tag=159):
    """It is not (``now``), or was until now: what it has not made again is lost."""

    actor: bytes
    now: bool
    array: bytes = b""
    """What was asked about, if it was about any actor."""


# -- node <-> node -------------------------------------------------------------


class PullObject(Struct, array_like=True, tag=50):
    """Send me this small object; answered by `ObjectPayload`."""

    object: bytes


class ObjectPayload(Struct, array_like=True, tag=51):
    """The range that the object is part of; None: not here (any more)."""

    object: bytes
    result: Union[RangeResult, None]


# -- node <-> its store and worker pool ----------------------------------------


class Allocate(Struct, array_like=True, tag=60):
    object: bytes
    size: int
    client: str


class Allocated(Struct, array_like=True, tag=61):
    """Where; the answer is `NoRoom` if it does not fit."""

    object: bytes
    offset: int
    client: str


class Free(Struct, array_like=True, tag=62):
    object: bytes
    offset: int


class Fetch(Struct, array_like=True, tag=63):
    """Copy a large object from the store of ``node`` into this one.

    If that is its own node: from its disk back into memory.
    """

    object: bytes
    size: int
    node: int
    first: bool = False
    """Room was made for it: take that now, before others do, and fetch it next."""


class Fetched(Struct, array_like=True, tag=64):
    """``offset`` < 0: it failed, for ``reason``."""

    object: bytes
    offset: int
    size: int
    elapsed_s: float
    reason: str = ""
    node: int = -1
    """The node that was asked."""


class Spill(Struct, array_like=True, tag=52):
    """Write a large object to disk; it stays in memory until `Free`."""

    object: bytes
    offset: int
    size: int


class Spilled(Struct, array_like=True, tag=53):
    """It is at ``place`` on disk, too; ``place`` < 0: it failed, for ``reason``."""

    object: bytes
    offset: int
    size: int
    place: int
    reason: str = ""


class DropSpilled(Struct, array_like=True, tag=54):
    """The object's copy on disk is not needed any more."""

    object: bytes
    place: int


class NoRoom(Struct, array_like=True, tag=55):
    """What an `Allocate` (of ``client``) or a `Fetch` asked for does not fit now."""

    object: bytes
    size: int
    capacity: int
    free: int
    """Bytes, perhaps in pieces."""
    client: str = ""
    node: int = -1
    """Of a `Fetch`: the node that was asked."""


class GiveBack(Struct, array_like=True, tag=56):
    """The arena is full: unpin what you do not look at, say what you have dropped."""


class StartWorker(Struct, array_like=True, tag=65):
    worker: str


class StopWorker(Struct, array_like=True, tag=66):
    """It is not needed any more: it leaves of itself."""

    worker: str


class PrepareBundle(Struct, array_like=True, tag=121):
    """Take these resources for a group; answered by `BundlePrepared`."""

    group: str
    index: int
    resources: dict[str, float]


class BundlePrepared(Struct, array_like=True, tag=122):
    node: int
    group: str
    index: int
    ok: bool


class CommitBundle(Struct, array_like=True, tag=123):
    """Every bundle is prepared: tasks may use this one."""

    group: str
    index: int


class ReturnBundle(Struct, array_like=True, tag=124):
    group: str
    index: int


class KillWorker(Struct, array_like=True, tag=120):
    """End a worker whatever it is doing; `WorkerDied` follows."""

    worker: str


class WorkerDied(Struct, array_like=True, tag=67):
    worker: str
    reason: str


# -- actors --------------------------------------------------------------------


class CreateActors(Struct, array_like=True, tag=70):
    """Put these into the actor table and have them started somewhere."""

    tasks: list[TaskSpec]


class ActorPlaced(Struct, array_like=True, tag=71):
    """The global scheduler has chosen a node; said before the node hears of it."""

    actor: bytes
    incarnation: int
    node: int


class ActorStarted(Struct, array_like=True, tag=72):
    """It has run its constructor, and what was to be replayed: it takes calls."""

    actor: bytes
    incarnation: int
    node: int
    replayed: int = 0


class ActorFailed(Struct, array_like=True, tag=73):
    """It is gone. ``final``: it may not start again, whatever its restarts."""

    actor: bytes
    incarnation: int
    reason: str
    final: bool = False


class WatchActors(Struct, array_like=True, tag=74):
    """Tell me where these are, now and whenever that changes."""

    actors: list[bytes]


class ActorChanged(Struct, array_like=True, tag=75):
    """``state``: see `actor_table`. ``reason``: why it is dead or restarts."""

    actor: bytes
    state: int
    node: int
    incarnation: int
    reason: str = ""
    logged: bool = False
    """Its calls are logged; the GCS wants `CallsReceived`."""


class ActorCalls(Struct, array_like=True, tag=76):
    """Calls from the clients of one node, in order.

    ``probes``: calls that must not run any more (their retries are used up), but
    whose result is wanted if they did run. ``again``: so many of the first tasks were
    sent to an earlier incarnation, which has not answered.
    """

    actor: bytes
    incarnation: int
    tasks: list[TaskSpec]
    probes: list[TaskSpec]
    again: int = 0


class CancelCall(Struct, array_like=True, tag=169):
    """A call of an actor is not wanted any more; see `cancellation`."""

    actor: bytes
    call: bytes


class DrainCalls(Struct, array_like=True, tag=150):
    """To the node of an actor that is dead: send what is left to send of its calls."""

    actor: bytes
    incarnation: int


class CallsDrained(Struct, array_like=True, tag=151):
    """Every result of the actor's calls that will ever come has come."""

    actor: bytes


class CallsReceived(Struct, array_like=True, tag=77):
    """The results of these calls have arrived: nobody will ask again."""

    actor: bytes
    calls: list[bytes]


class KillActor(Struct, array_like=True, tag=78):
    actor: bytes
    reason: str
    restart: bool = False
    """Start again if it has restarts left."""
    owner: str = ""
    """Not empty: only if this is still the actor's owner, and it is not detached."""
    job: bytes = b""
    """Whose client wants it, as its node knows; empty: the system does."""


class StopActor(Struct, array_like=True, tag=79):
    """End this incarnation, or forget that it was to start."""

    actor: bytes
    incarnation: int


class CallRecord(Struct, array_like=True, gc=False):
    """An edge of an actor's lineage: a call that took effect, and its result."""

    task: TaskSpec
    result: RangeResult
    values: tuple[ObjectValue, ...] = ()
    """Its inputs in order; small ones with their value."""


class LogCalls(Struct, array_like=True, tag=80):
    """Calls ``first``, ``first + 1`` ... that took effect, in this order."""

    actor: bytes
    incarnation: int
    first: int
    calls: list[CallRecord]


class CallsLogged(Struct, array_like=True, tag=81):
    """All calls below ``upto`` are in the actor's lineage."""

    actor: bytes
    incarnation: int
    upto: int


class TooLong(Struct, array_like=True, tag=175):
    """From the world to whoever sent it: this message was longer than any may be.

    It has not left and never will. ``tasks`` were in it; ``actor``: whose lineage was;
    ``results``, for ``owner``: errors in place of those that were.
    """

    to: str
    kind: str
    reason: str
    tasks: list[TaskSpec]
    actor: bytes = b""
    incarnation: int = 0
    results: list[RangeResult] = []
    owner: str = ""


class SaveActor(Struct, array_like=True, tag=82):
    """The actor's state after its first ``upto`` calls."""

    actor: bytes
    incarnation: int
    upto: int
    state: bytes


class FetchLineage(Struct, array_like=True, tag=83):
    actor: bytes
    incarnation: int


class ActorLineage(Struct, array_like=True, tag=84):
    """A piece of what an actor is rebuilt from: a checkpoint, then calls.

    ``kept``: calls before the checkpoint whose results may still be asked for.
    """

    actor: bytes
    incarnation: int
    upto: int
    """Calls that the checkpoint contains."""
    checkpoint: bytes
    """Empty: none, or it came with an earlier piece."""
    calls: list[CallRecord]
    kept: list[CallRecord]
    more: bool = False


class RestoreActor(Struct, array_like=True, tag=85):
    """To a worker, after the creation: take this state instead."""

    state: bytes
    calls: int
    """How many calls it contains."""


class ExitActor(Struct, array_like=True, tag=86):
    """The actor on this worker ends itself, after what it has reported."""

    reason: str
    crashed: bool = False
    """It did not mean to: it starts again if it has restarts left."""


class FindActor(Struct, array_like=True, tag=87):
    """Look an actor up by name; with ``create``, make it if there is none."""

    key: int
    client: str
    namespace: str
    name: str
    create: Union[TaskSpec, None] = None
    job: bytes = b""
    """The client's, as its node knows; its namespace is meant by an empty one."""


class ActorFound(Struct, array_like=True, tag=88):
    """``actor`` is empty: there is none. ``created``: it was made just now."""

    key: int
    client: str
    actor: bytes
    handle: bytes
    created: bool = False


# -- jobs ------------------------------------------------------------------------


class JobInfo(Struct, array_like=True):
    """A row of the job table; see `jobs`."""

    number: int
    """0: it is to be given one."""
    driver: str = ""
    """The address of its client."""
    node: int = 0
    pid: int = 0
    namespace: str = ""
    entrypoint: str = ""
    alive: bool = True
    started_s: float = 0.0
    ended_s: float = 0.0
    reason: str = ""
    """Why it has ended."""


class RegisterJob(Struct, array_like=True, tag=165):
    """A driver is at the door of its node; answered by `JobRegistered`."""

    info: JobInfo
    key: int


class JobRegistered(Struct, array_like=True, tag=166):
    """``info.number`` is 0 if there are no numbers left."""

    info: JobInfo
    key: int


class DescribeJob(Struct, array_like=True, tag=167):
    """A driver says what of its job only it knows."""

    namespace: str
    entrypoint: str
    pid: int
    job: bytes = b""
    """As its node knows."""


class JobEnded(Struct, array_like=True, tag=168):
    """A driver, or a detached actor, is gone: nothing of its job is wanted any more."""

    job: bytes
    reason: str
    kept: list[bytes] = []
    """Functions of it, and of jobs before, that detached actors are made by."""


# -- references ----------------------------------------------------------------


class RefUpdates(Struct, array_like=True, tag=145):
    """To an owner, by way of its node: who has references to its arrays.

    Each is a `ref_book.Update`: (array, borrower, epoch, what to do). The answer to a
    borrower is one too.
    """

    owner: str
    updates: list[tuple[bytes, str, int, int]]


class BorrowersGone(Struct, array_like=True, tag=146):
    """A node's life is over: neither it nor its clients have references any more."""

    node: int
    incarnation: int


# -- key-value table and task history of the GCS --------------------------------


class KvPut(Struct, array_like=True, tag=90):
    """Set a key; answered by `KvReply`. ``request`` names it for its client."""

    key: bytes
    value: bytes
    request: int
    client: str = ""


class KvGet(Struct, array_like=True, tag=91):
    key: bytes
    request: int
    client: str = ""


class KvDelete(Struct, array_like=True, tag=92):
    key: bytes
    request: int
    client: str = ""


class KvReply(Struct, array_like=True, tag=93):
    """``value`` is what the key had before a put or delete, or has; None: nothing."""

    request: int
    client: str
    value: Union[bytes, None]


class FindTask(Struct, array_like=True, tag=94):
    """What is known of an array of tasks that has finished? Answered by `TaskFound`."""

    array: bytes
    request: int
    client: str = ""


class TaskFound(Struct, array_like=True, tag=95):
    """``row`` as `flush.TaskHistory` packs it; None: no such array has finished."""

    request: int
    client: str
    row: Union[bytes, None]


class StoreRows(Struct, array_like=True, tag=96):
    """Write rows to disk; whoever loads one later finds it."""

    rows: list[tuple[bytes, bytes]]


class LoadRow(Struct, array_like=True, tag=97):
    key: bytes
    request: int


class RowLoaded(Struct, array_like=True, tag=98):
    request: int
    row: Union[bytes, None]


# -- the chain: nodes, replicas, master ------------------------------------------


class ReplicaInfo(Struct, array_like=True, frozen=True):
    """A replica's address in the cluster, and where it listens."""

    name: str
    host: str
    port: int


class Command(Struct, array_like=True, gc=False):
    """What every replica applies, in the order of `index`.

    ``client`` and ``sequence`` name the request that it came from, so that it
    takes effect once; ``born`` tells one life of a client from the next. An
    empty client: the head itself, because a timer is due. ``acked``: up to
    where the client has the outputs addressed to it. ``body``: a msgpack list
    of frames.
    """

    index: int
    time_s: float
    client: str
    born: float
    sequence: int
    acked: int
    body: bytes


class ChainRequest(Struct, array_like=True, tag=100):
    """A client's next turn for the machine, to the head; fields as in `Command`."""

    epoch: int
    client: str
    born: float
    sequence: int
    acked: int
    body: bytes


class ChainAttach(Struct, array_like=True, tag=101):
    """A client to the tail: here I am, and have all outputs up to ``received``."""

    epoch: int
    client: str
    born: float
    received: int


class ChainOutput(Struct, array_like=True, tag=102):
    """The tail to a client: output ``sequence``, a msgpack list of frames.

    ``applied`` is the last of its requests that took effect. With an empty body
    that is all it says. It is for the client that began at ``born``, not for one that
    has taken its place since.
    """

    applied: int
    sequence: int
    body: bytes
    born: float


class ChainCommands(Struct, array_like=True, tag=103):
    epoch: int
    commands: list[Command]


class ChainAck(Struct, array_like=True, tag=104):
    """The tail has applied all up to ``index``."""

    epoch: int
    index: int


class ChainConfigured(Struct, array_like=True, tag=105):
    """The chain from now on, head first; ``joining`` will be its tail."""

    epoch: int
    members: list[ReplicaInfo]
    joining: Union[ReplicaInfo, None] = None


class SnapshotPart(Struct, array_like=True, tag=106):
    """Part ``part`` of ``parts`` of the state after command ``index``."""

    epoch: int
    index: int
    part: int
    parts: int
    data: bytes


class SnapshotTaken(Struct, array_like=True, tag=107):
    """The joining replica has a part: send more."""

    epoch: int
    part: int


class ReplicaReady(Struct, array_like=True, tag=108):
    """A replica's process is up."""

    info: ReplicaInfo


class ReplicaJoined(Struct, array_like=True, tag=109):
    """The joining replica has the state."""

    epoch: int
    name: str


class ReplicaBeat(Struct, array_like=True, tag=110):
    name: str
    index: int


class ReplicaSuspected(Struct, array_like=True, tag=111):
    """Somebody's connection to a replica broke."""

    name: str
    reason: str


class ReplicaLost(Struct, array_like=True, tag=112):
    """The world saw this process's own connection to a replica break."""

    name: str
    reason: str


class ChainHello(Struct, array_like=True, tag=113):
    """A client asks the master for the configuration, now and at every change."""

    client: str
    born: float


class StartReplica(Struct, array_like=True, tag=114):
    """Bring up the process of a new replica."""

    name: str


class ClientGone(Struct, array_like=True, tag=115):
    """The master to the machine: nothing more comes from this life of a client."""

    client: str
    born: float


class LogCommands(Struct, array_like=True, tag=116):
    """Write these down, in one transaction; answered by `Logged`."""

    commands: list[Command]


class LogSnapshot(Struct, array_like=True, tag=117):
    """The state after command ``index``: what is logged before may go."""

    index: int
    data: bytes


class Logged(Struct, array_like=True, tag=118):
    """All commands up to ``index`` survive this process."""

    index: int


class TimelineRows(Struct, array_like=True, tag=180):
    """What a node has run, for another that keeps it; see `timeline_archive`."""

    incarnation: int
    kind: str
    """``timeline`` or ``transfers``."""
    count: int
    rows: bytes
    """So many, encoded."""


Message = Union[
    RegisterJob, JobRegistered, DescribeJob, JobEnded, CancelCall,
    RefUpdates, BorrowersGone,
    CreateActors, ActorPlaced, ActorStarted, ActorFailed, WatchActors, ActorChanged, ActorCalls,
    DrainCalls, CallsDrained, CallsReceived, KillActor, StopActor, LogCalls, CallsLogged, SaveActor,
    FetchLineage, ActorLineage, RestoreActor, ExitActor, FindActor, ActorFound, TooLong,
    SubmitTasks, ExportFunction, FetchFunction, FunctionBlob, WantObjects, ObjectsReady,
    PutObjects, AllocateObject, ObjectAllocated, AbandonObject, Release, Unpin, Blocked,
    Unblocked, Resume, TasksDone, TakenBack, TaskResults, WorkerReady, RunTasks, TakeBack, Exit,
    Query, QueryReply, RegisterNode, Registered, NodeChanged, Heartbeat, LoadChanged,
    TaskUpdates, LocateObjects, ObjectLocations, FreeObjects, PlaceTasks, AssignTasks,
    Event, NodeUnreachable, PullObject, ObjectPayload, Allocate, Allocated, Free, Fetch,
    Fetched, StartWorker, StopWorker, WorkerDied, ResultsMissing, ObjectsMissing, ClaimTasks,
    TasksClaimed, ForwardResults, StreamItems, CancelTask, KillWorker, CreateGroup,
    RemoveGroup, PrepareBundle, BundlePrepared, CommitBundle, ReturnBundle,
    Spill, Spilled, DropSpilled, NoRoom, GiveBack,
    TimelineRows,
    KvPut, KvGet, KvDelete, KvReply, FindTask, TaskFound, StoreRows, LoadRow, RowLoaded,
    ChainRequest, ChainAttach, ChainOutput, ChainCommands, ChainAck, ChainConfigured,
    SnapshotPart, SnapshotTaken, ReplicaReady, ReplicaJoined, ReplicaBeat, ReplicaSuspected,
    ReplicaLost, ChainHello, StartReplica, ClientGone, LogCommands, LogSnapshot, Logged,
    LineageChanges, TasksPlaced, NodesSeen, AskReplay, ActorSettled, SeekOwners, OwnersFound,
]  # fmt: skip


class Frame(Struct, array_like=True):
    """What travels: the messages of one turn from one address to another."""

    source: str
    destination: str
    messages: list[Message]
