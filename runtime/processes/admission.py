"""Which frames a process takes from whom: the protocol's table, as it is enforced.

A frame that decodes may still say what its sender has no business to say, or
claim another sender. A component treats that as a programming error and raises;
so what comes over a socket is checked here first, and a frame that does not
belong closes the connection that it came on and nothing else. The check is one
set operation a frame.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from runtime.control.messages import (
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
    BorrowersGone,
    BundlePrepared,
    CallsLogged,
    CallsReceived,
    CancelTask,
    ClaimTasks,
    CommitBundle,
    CreateActors,
    CreateGroup,
    Event,
    ExitActor,
    ExportFunction,
    FetchFunction,
    FetchLineage,
    FindActor,
    ForwardResults,
    Frame,
    FreeObjects,
    FunctionBlob,
    Heartbeat,
    KillActor,
    LocateObjects,
    LogCalls,
    NodeChanged,
    ObjectLocations,
    ObjectPayload,
    ObjectsMissing,
    PlaceTasks,
    PrepareBundle,
    PullObject,
    PutObjects,
    Query,
    QueryReply,
    RefUpdates,
    Registered,
    RegisterNode,
    Release,
    RemoveGroup,
    ResultsMissing,
    ReturnBundle,
    SaveActor,
    StopActor,
    StreamItems,
    SubmitTasks,
    TakenBack,
    TaskResults,
    TasksClaimed,
    TasksDone,
    TaskUpdates,
    Unblocked,
    Unpin,
    WantObjects,
    WatchActors,
    WorkerReady,
)

Kinds = frozenset[type]

NODE_TO_HEAD: Mapping[str, Kinds] = {
    "gcs": frozenset({
        RegisterNode, Heartbeat, ExportFunction, FetchFunction, TaskUpdates, LocateObjects, Event,
        Query, ResultsMissing, ObjectsMissing, ClaimTasks,
        CreateActors, ActorStarted, ActorFailed, WatchActors, KillActor, LogCalls, SaveActor,
        FetchLineage, CallsReceived, FindActor, BorrowersGone,
    }),
    "global": frozenset({
        PlaceTasks, CancelTask, CreateGroup, RemoveGroup, BundlePrepared, Query,
    }),
}  # fmt: skip
"""By the component that is addressed."""

HEAD_TO_NODE: Mapping[str, Kinds] = {
    "gcs": frozenset({
        Registered, NodeChanged, FunctionBlob, ObjectLocations, FreeObjects, TaskResults,
        QueryReply, TasksClaimed, ForwardResults,
        ActorChanged, StopActor, CallsLogged, ActorLineage, ActorFound, BorrowersGone,
    }),
    "global": frozenset({
        AssignTasks, TaskResults, CancelTask, PrepareBundle, CommitBundle, ReturnBundle,
        QueryReply,
    }),
}  # fmt: skip
"""By the component that speaks."""

NODE_TO_NODE: Kinds = frozenset({
    TaskResults, PullObject, ObjectPayload, Query, QueryReply, ActorCalls, RefUpdates,
})  # fmt: skip

DRIVER_TO_NODE: Kinds = frozenset({
    SubmitTasks, ExportFunction, WantObjects, PutObjects, AllocateObject, AbandonObject, Release,
    Unpin, Query, KillActor, FindActor, CancelTask, CreateGroup, RemoveGroup, RefUpdates,
})  # fmt: skip

WORKER_TO_NODE: Kinds = DRIVER_TO_NODE | {
    WorkerReady, TasksDone, TakenBack, Blocked, Unblocked, SaveActor, ExitActor, StreamItems,
}  # fmt: skip

_NODE = re.compile(r"node:(0|[1-9][0-9]{0,8})")


def is_node(address: str) -> bool:
    """Whether an address is that of a node.

    >>> is_node("node:12"), is_node("node:"), is_node("gcs")
    (True, False, False)
    """
    return _NODE.fullmatch(address) is not None


def foreign(frame: Frame, kinds: Kinds | None) -> str:
    """Return what of the frame is none of `kinds`, in words; else an empty string."""
    if kinds is not None and kinds.issuperset(map(type, frame.messages)):
        return ""
    for message in frame.messages:
        if kinds is None or type(message) not in kinds:
            return f"{frame.source} may not send {type(message).__name__} to {frame.destination}"
    return ""
