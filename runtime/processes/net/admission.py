"""The messages that each role may send to each other role, and the check of every frame.

A well-formed frame may still contain messages that its sender's role may not send, or
claim another sender. A component treats such a message as a programming error and raises.
So every frame from a socket is checked here first, and a frame that is not admitted closes
its connection and nothing else. The check is one set operation per frame.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from raytwin.runtime.control.core.addresses import is_relay
from raytwin.runtime.control.messages import (
    AbandonObject,
    ActorCalls,
    ActorChanged,
    ActorFailed,
    ActorFound,
    ActorLineage,
    ActorStarted,
    AllocateObject,
    AssignTasks,
    Blocked,
    BundlePrepared,
    CallsDrained,
    CallsLogged,
    CallsReceived,
    CancelCall,
    CancelTask,
    ChainAck,
    ChainAttach,
    ChainCommands,
    ChainConfigured,
    ChainHello,
    ChainOutput,
    ChainRequest,
    ClaimTasks,
    ClientGone,
    ColdRows,
    CommitBundle,
    CreateActors,
    CreateGroup,
    DescribeJob,
    DirectCall,
    DirectOpen,
    DrainCalls,
    Event,
    ExitActor,
    ExportFunction,
    FetchFunction,
    FetchLineage,
    FindActor,
    FindTask,
    ForwardResults,
    Frame,
    FreeObjects,
    FunctionBlob,
    GroupCreated,
    Heartbeat,
    JobEnded,
    JobRegistered,
    KillActor,
    KvDelete,
    KvGet,
    KvPut,
    KvReply,
    LineageChanges,
    LocateObjects,
    LogCalls,
    MoveTasks,
    NodeChanged,
    NodeUnreachable,
    ObjectLocations,
    ObjectPayload,
    ObjectsMissing,
    OwnersFound,
    PlaceTasks,
    PrepareBundle,
    PullObject,
    PutObjects,
    Query,
    QueryReply,
    RefUpdates,
    Registered,
    RegisterJob,
    RegisterNode,
    Release,
    RemoveGroup,
    ReplicaBeat,
    ReplicaJoined,
    ReplicaReady,
    ReplicaSuspected,
    ResultsMissing,
    ReturnBundle,
    SaveActor,
    SeekOwners,
    SnapshotPart,
    SnapshotTaken,
    StopActor,
    StreamItems,
    SubmitTasks,
    TakenBack,
    TaskFound,
    TaskResults,
    TasksClaimed,
    TasksDone,
    TasksMoved,
    TaskUpdates,
    Unblocked,
    Unpin,
    WantObjects,
    WatchActors,
    WorkerReady,
)
from raytwin.runtime.control.replication.state_machine import decode_frames

Kinds = frozenset[type]

NODE_TO_HEAD: Mapping[str, Kinds] = {
    "gcs": frozenset({
        RegisterNode, Heartbeat, ExportFunction, FetchFunction, TaskUpdates, LocateObjects, Event,
        Query, ResultsMissing, ObjectsMissing, ClaimTasks, OwnersFound,
        CreateActors, ActorStarted, ActorFailed, WatchActors, KillActor, LogCalls, SaveActor,
        FetchLineage, CallsReceived, FindActor, KvPut, KvGet, KvDelete,
        FindTask, RegisterJob, DescribeJob, JobEnded,
    }),
    "global": frozenset({
        PlaceTasks, CancelTask, CreateGroup, RemoveGroup, BundlePrepared, Query, TasksMoved,
    }),
}  # fmt: skip
"""By the receiving component."""

NODE_TO_SHARD: Kinds = frozenset({
    ExportFunction, FetchFunction, TaskUpdates, LocateObjects, ResultsMissing, ObjectsMissing,
    ClaimTasks, OwnersFound, KvPut, KvGet, KvDelete, FindTask, LineageChanges,
})  # fmt: skip

CLIENT_TO_MASTER: Kinds = frozenset({ChainHello, ReplicaSuspected})
REPLICA_TO_MASTER: Kinds = frozenset({
    ReplicaReady, ReplicaJoined, ReplicaBeat, ReplicaSuspected, ChainOutput,
})  # fmt: skip
MASTER_TO_REPLICA: Kinds = frozenset({ChainConfigured, ChainRequest, ChainAttach})
CLIENT_TO_REPLICA: Kinds = frozenset({ChainRequest, ChainAttach})
REPLICA_TO_CLIENT: Kinds = frozenset({ChainOutput})
REPLICA_TO_REPLICA: Kinds = frozenset({
    ChainCommands, ChainAck, SnapshotPart, SnapshotTaken, ColdRows,
})  # fmt: skip
"""Within a chain; `foreign_request` checks the messages that requests carry."""

HEAD_TO_NODE: Mapping[str, Kinds] = {
    "gcs": frozenset({
        Registered, NodeChanged, FunctionBlob, ObjectLocations, FreeObjects, TaskResults,
        QueryReply, TasksClaimed, ForwardResults, SeekOwners, KvReply, TaskFound,
        ActorChanged, StopActor, CallsLogged, ActorLineage, ActorFound, JobRegistered, JobEnded,
    }),
    "global": frozenset({
        AssignTasks, TaskResults, CancelTask, PrepareBundle, CommitBundle, ReturnBundle,
        GroupCreated, QueryReply, MoveTasks,
    }),
}  # fmt: skip
"""By the sending component."""

MASTER_TO_CLIENT: Kinds = frozenset({ChainConfigured})

NODE_TO_NODE: Kinds = frozenset({
    TaskResults, PullObject, ObjectPayload, Query, QueryReply, ActorCalls, CancelCall, DrainCalls,
    CallsDrained, RefUpdates,
})  # fmt: skip

DRIVER_TO_NODE: Kinds = frozenset({
    SubmitTasks, ExportFunction, WantObjects, PutObjects, AllocateObject, AbandonObject, Release,
    Unpin, Query, KillActor, FindActor, KvPut, KvGet, KvDelete, FindTask, CancelTask,
    CreateGroup, RemoveGroup, DescribeJob, RefUpdates,
})  # fmt: skip

WORKER_TO_NODE: Kinds = (DRIVER_TO_NODE - {DescribeJob}) | {
    WorkerReady, TasksDone, TakenBack, Blocked, Unblocked, SaveActor, ExitActor, StreamItems,
}  # fmt: skip

WORKER_TO_DRIVER: Kinds = frozenset({TaskResults, DirectOpen})
DRIVER_TO_WORKER: Kinds = frozenset({DirectCall})

_MASTER_IN_REQUEST: Kinds = frozenset({NodeUnreachable, ClientGone, Event})
_SHARD = re.compile(r"gcs\.[1-9][0-9]?")
_MASTER = re.compile(r"master(\.[1-9][0-9]?)?")

_REPLICA = re.compile(r"replica:0\.[1-9][0-9]{0,8}")
_NODE = re.compile(r"node:(0|[1-9][0-9]{0,8})")


def is_node(address: str) -> bool:
    """Whether an address is a node's.

    >>> is_node("node:12"), is_node("node:"), is_node("gcs")
    (True, False, False)
    """
    return _NODE.fullmatch(address) is not None


def foreign(frame: Frame, kinds: Kinds | None) -> str:
    """Return which message of a frame is not of `kinds`, for a log; empty if all are."""
    if kinds is not None and kinds.issuperset(map(type, frame.messages)):
        return ""
    for message in frame.messages:
        if kinds is None or type(message) not in kinds:
            return f"{frame.source} may not send {type(message).__name__} to {frame.destination}"
    return ""


def is_replica(address: str) -> bool:
    """Whether an address is a replica's.

    >>> is_replica("replica:0.2"), is_replica("node:0")
    (True, False)
    """
    return _REPLICA.fullmatch(address) is not None


def is_master(address: str) -> bool:
    """Whether an address is the master's of a chain.

    >>> is_master("master"), is_master("master.2"), is_master("node:2")
    (True, True, False)
    """
    return _MASTER.fullmatch(address) is not None


def _in_request(source: str, destination: str) -> Kinds | None:
    """Return the messages that a client may send to a component of a chain's machine."""
    shard = _SHARD.fullmatch(destination) is not None
    if is_node(source):
        return NODE_TO_SHARD if shard else NODE_TO_HEAD.get(destination)
    return _MASTER_IN_REQUEST if shard or destination == "gcs" else None


def foreign_request(source: str, message: Any) -> str:
    """Return why a request or attachment to a chain is not admitted; empty if it is."""
    if message.client != source:
        return f"{source} speaks as {message.client}"
    if type(message) is not ChainRequest or not message.body:
        return ""
    try:
        frames = decode_frames(message.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"{source} sent what is no request: {error}"
    for frame in frames:
        if is_relay(source):
            continue  # the head relays messages of other chains' machines
        if frame.source != source:
            return f"{source} speaks as {frame.source}"
        wrong = foreign(frame, _in_request(source, frame.destination))
        if wrong:
            return wrong
    return ""
