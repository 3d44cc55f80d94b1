"""Every control message: the protocol, with the senders and receivers of each on this page.

All are msgspec structs, encoded as msgpack arrays behind a small integer tag, which no two share.
A frame has one sender, one receiver and the messages of one turn:

    frame = [source address, destination address, [message, ...]]

Functions, arguments and values are opaque ``bytes`` here; only workers and
drivers serialize and deserialize. Times are seconds, sizes are bytes. New fields
go to the end, with a default.

The structs are in the modules of this package, one per subject, each of which ends with the union
of its messages. `common` has the structs that messages contain, such as `TaskSpec`; `errors` has
the errors of the system. Other packages import all of them from here.

Senders and receivers
---------------------
Most senders and receivers are components (see `addresses`): ``gcs``, ``global`` (the global
scheduler), ``node`` and its clients. A ``client`` is a driver or a ``worker``. The others need I/O,
so they belong to the world, which calls them through the same messages:

==================== =======================================================
``store:<n>``        the object store of node n: memory, disk, copies to other nodes
``pool:<n>``         starts and stops the worker processes of node n
``links``            the connections of a process; it closes those of dead processes
``admission:<n>``    admits drivers to the cluster, and reports their end
``launcher``         starts and stops replicas of the GCS
``storage``          the GCS's disk
``world``            real processes or the simulation itself, which sees the ends of processes
==================== =======================================================

==================== =======================================================
client  -> node      SubmitTasks, ExportFunction, WantObjects, PutObjects,
                     AllocateObject, AbandonObject, Release, Unpin, Query, CancelTask,
                     CreateGroup, RemoveGroup
worker  -> node      WorkerReady, TasksDone, TakenBack, Blocked, Unblocked, StreamItems
                     (and all of the above)
node    -> client    TaskResults, ObjectsReady, ObjectAllocated, QueryReply, GiveBack,
                     GroupCreated, Event
node    -> worker    FunctionBlob, RunTasks, GrantGpus, TakeBack, Resume, Exit,
                     CancelTask
node    -> heartbeat Heartbeat
heartbeat -> health  Heartbeat
health  -> heartbeat HeartbeatEcho, NodeChanged (of a dead incarnation)
health  -> global    LoadChanged (by way of the master, if the tables are a chain)
health  -> gcs       NodeUnreachable (to the masters, if they are a chain)
heartbeat -> node    NodeChanged (the node has fenced itself, or hears that it is dead)
node    -> gcs       RegisterNode, PeerUnreachable, ExportFunction, FetchFunction,
                     TaskUpdates, LocateObjects, Query, Event, ResultsMissing,
                     ObjectsMissing, ClaimTasks, OwnersFound
gcs     -> node      Registered, NodesJoined, NodeChanged (deaths), FunctionBlob,
                     ObjectLocations, FreeObjects, QueryReply, TaskResults (of ranges that
                     cannot be reconstructed), TasksClaimed, ForwardResults,
                     SeekOwners, PlaceTasks (to the owner's node)
gcs     -> global    NodeChanged, ObjectLocations, PlaceTasks
gcs     -> node      Event (a warning for the driver of a job)
gcs     -> links     NodeChanged (which passes it on to health)
gcs     -> global    CancelTask (with the nodes that have accepted the task)
node    -> global    PlaceTasks, CancelTask, CreateGroup, RemoveGroup,
                     BundlePrepared, Query, TasksMoved
global  -> node      AssignTasks, TaskResults (of infeasible ranges), CancelTask,
                     PrepareBundle, CommitBundle, ReturnBundle, GroupCreated, QueryReply,
                     MoveTasks, GiveBack
global  -> gcs       LocateObjects, TaskUpdates, CancelTask, Event
node    -> node      TaskResults, Probe, PullObject, ObjectPayload, Query, QueryReply,
                     StealTasks, StealAnswer
node    -> store     Allocate, Free, Fetch, Spill, DropSpilled
store   -> node      Allocated, Fetched, NoRoom, Spilled
node    -> pool      StartWorker, StopWorker, KillWorker
pool    -> node      WorkerDied
node    -> links     NodeChanged
world   -> gcs       NodeUnreachable
world   -> node      NodeUnreachable (of another node)
world   -> client    TasksUnsent
client  -> node      KvPut, KvGet, FindTask (forwarded to the gcs, which
                     answers with KvReply, TaskFound)
gcs     -> storage   StoreRows, LoadRow, and RowLoaded back

actors:
client  -> node      SubmitTasks (creations and calls), KillActor, FindActor
worker  -> node      SaveActor, ExitActor, CallsRan
driver  -> worker    DirectCall
worker  -> driver    DirectOpen, TaskResults (of direct calls), DirectClosed
world   -> driver    DirectClosed (of a worker that has died)
node    -> worker    RestoreActor
node    -> client    ActorEnded
node    -> gcs       CreateActors, ActorStarted, ActorFailed, WatchActors, KillActor,
                     LogCalls, SaveActor, FetchLineage, FindActor
gcs     -> node      ActorChanged, StopActor, CallsLogged, ActorLineage, ActorFound
gcs     -> global    ActorChanged, PlaceTasks (creations)
global  -> gcs       ActorPlaced, ActorFailed
node    -> node      ActorCalls, CancelCall, DrainCalls, CallsDrained

jobs:
admission -> node    RegisterJob, JobEnded
client  -> node      DescribeJob
node    -> gcs       RegisterJob, DescribeJob, JobEnded
gcs     -> node      JobRegistered, JobEnded
gcs     -> global    JobEnded
node    -> admission JobRegistered

references:
client  -> node      RefUpdates
node    -> node      RefUpdates
node    -> client    RefUpdates, BorrowersGone
==================== =======================================================

Where the GCS is sharded (see `sharding`), ``gcs.<k>`` has a part of the tables, and messages for
these go there. In addition:

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
replica -> master    ReplicaReady, ReplicaJoined, ReplicaHeartbeat, ReplicaSuspected,
                     ClientUnreachable
node    -> master    ChainHello, ReplicaSuspected
master  -> node      ChainConfigured
master  -> replica   ChainConfigured
master  -> launcher  StartReplica, StopReplica
master  -> master    NodeUnreachable (of chains whose last replica a node cannot reach)
master  -> gcs       ClientGone, NodeUnreachable, Event (in a ChainRequest)
replica -> storage   LogCommands, LogSnapshot, StoreRows, LoadRow
storage -> replica   Logged, RowLoaded
world   -> any       ReplicaLost
world   -> replica   NodeUnreachable
==================== =======================================================
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
