"""Every control message: the protocol, with who speaks with whom on this page.

All are msgspec structs, encoded as msgpack arrays behind a small integer tag,
which no two share; a frame carries one sender, one receiver and the messages of
one turn:

    frame = [source address, destination address, [message, ...]]

Functions, arguments and values are opaque ``bytes`` here; only workers and
drivers serialize and deserialize. Times are seconds, sizes are bytes. New fields
go to the end, with a default.

The structs are in the modules of this package, one per concern, each of which ends
with the union of its messages; `parts` has what messages are made of. All others
import them from here.

Who speaks with whom
--------------------
==================== =======================================================
client  -> node      SubmitTasks, ExportFunction, WantObjects, PutObjects,
                     AllocateObject, AbandonObject, Release, Unpin, Query, CancelTask,
                     CreateGroup, RemoveGroup
worker  -> node      WorkerReady, TasksDone, TakenBack, Blocked, Unblocked, StreamItems
                     (and all of the above)
node    -> client    TaskResults, ObjectsReady, ObjectAllocated, QueryReply, GiveBack,
                     GroupCreated
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
                     BundlePrepared, Query, TasksMoved
global  -> node      AssignTasks, TaskResults (of what cannot be placed), CancelTask,
                     PrepareBundle, CommitBundle, ReturnBundle, GroupCreated, QueryReply,
                     MoveTasks
global  -> gcs       LocateObjects, TaskUpdates, CancelTask
node    -> node      TaskResults, PullObject, ObjectPayload
node    -> store     Allocate, Free, Fetch, Spill, DropSpilled
store   -> node      Allocated, Fetched, NoRoom, Spilled
node    -> pool      StartWorker, StopWorker, KillWorker
pool    -> node      WorkerDied
node    -> links     NodeChanged
world   -> gcs       NodeUnreachable
world   -> client    TasksUnsent
client  -> node      KvPut, KvGet, FindTask (and on to the gcs, which
                     answers KvReply, TaskFound)
gcs     -> storage   StoreRows, LoadRow, and RowLoaded back

actors:
client  -> node      SubmitTasks (creations and calls), KillActor, FindActor
worker  -> node      SaveActor, ExitActor
node    -> worker    RestoreActor
node    -> gcs       CreateActors, ActorStarted, ActorFailed, WatchActors, KillActor,
                     LogCalls, SaveActor, FetchLineage, FindActor
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

Where the GCS is sharded (see `sharding`), ``gcs.<k>`` has a part of the tables, and
what is for these goes there:

==================== =======================================================
global  -> gcs.<k>   TasksPlaced, in place of TaskUpdates and AssignTasks
gcs.<k> -> gcs.<l>   TasksPlaced (on its way), LineageChanges
node    -> gcs.<k>   LineageChanges, ahead of TaskUpdates
gcs.<k> -> node      AssignTasks, CancelTask
gcs.<k> -> gcs       Event, NodesSeen
gcs.<k> -> global    PlaceTasks
gcs     -> gcs.<k>   NodeChanged, ActorChanged, JobEnded
==================== =======================================================

Where the GCS is replicated, durable or sharded, a *chain* stands in for ``gcs`` and
``global`` (see `chain`), whose messages travel inside of these:

==================== =======================================================
node    -> replica   ChainRequest, ChainAttach
replica -> node      ChainOutput
replica -> replica   ChainCommands, ChainAck, Snapshot
replica -> master    ReplicaReady, ReplicaJoined, ReplicaBeat, ReplicaSuspected
node    -> master    ChainHello, ReplicaSuspected
master  -> both      ChainConfigured
master  -> launcher  StartReplica, StopReplica
master  -> machine   ClientGone, NodeUnreachable, Event (in a ChainRequest)
replica -> storage   LogCommands, LogSnapshot, StoreRows, LoadRow
storage -> replica   Logged, RowLoaded
world   -> any       ReplicaLost
==================== =======================================================

``store:<n>``, ``pool:<n>``, ``links`` and ``door:<n>`` are not components but what
needs I/O: moving bytes, starting processes, closing the connections of who has
died, and letting drivers in.
Each world has its own.
"""

from __future__ import annotations

from typing import Union

from msgspec import Struct

from raytwin.runtime.control.messages.actors import *
from raytwin.runtime.control.messages.chain import *
from raytwin.runtime.control.messages.common import *
from raytwin.runtime.control.messages.nodes import *
from raytwin.runtime.control.messages.objects import *
from raytwin.runtime.control.messages.placement_groups import *
from raytwin.runtime.control.messages.storage import *
from raytwin.runtime.control.messages.tables import *
from raytwin.runtime.control.messages.tasks import *

Message = Union[
    TaskMessage, ObjectMessage, StorageMessage, ClusterMessage, GroupMessage, ActorMessage,
    HistoryMessage, ChainMessage,
]  # fmt: skip


class Frame(Struct, array_like=True):
    """A frame: the messages of one turn from one address to another."""

    source: str
    destination: str
    messages: list[Message]
