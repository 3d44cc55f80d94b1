"""Nodes, processes and jobs: registration, load, deaths; queries and events.

A job is a driver and everything that it submits; see `node`.
"""

from __future__ import annotations

from typing import Any, Union

from msgspec import Struct

from raytwin.runtime.control.messages.errors import Failure


class NodeInfo(Struct, array_like=True):
    """A row of the node table.

    ``incarnation`` counts from 1 how often a node of this number was started; the process
    that starts it knows. Messages of earlier incarnations are ignored.
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
    """The answer to `RegisterNode`, when the node is a member."""

    incarnation: int
    nodes: dict[int, NodeInfo]
    """The node table, by number. All nodes that join in one turn get the same object, which nobody
    changes: their receivers in one process share it."""


class NodeChanged(Struct, array_like=True, tag=32):
    """Published when a node dies; in the head also when one joins."""

    info: NodeInfo


class NodesJoined(Struct, array_like=True, tag=201):
    """Published to the nodes that were there before: those that have joined in one turn."""

    nodes: list[NodeInfo]


class NodeUnreachable(Struct, array_like=True, tag=42):
    """An incarnation of a node has ended, or nothing was heard of it for too long."""

    node: int
    reason: str
    incarnation: int


class PeerUnreachable(Struct, array_like=True, tag=197):
    """A node cannot reach another one, which it believes to be alive."""

    node: int
    incarnation: int
    peer: int
    peer_incarnation: int
    reason: str


class Load(Struct, array_like=True, gc=False):
    """A node's load, in a heartbeat."""

    queue: int
    """Task elements that wait or run on the node."""
    mean_task_s: float
    """Exponential average of a task's time, see `TaskTimes`; 0 while nothing has run."""
    bandwidth: float
    """Exponential average of transfers to this node, bytes/s; 0: none yet."""
    assigned: int
    """Task elements that the global scheduler has given to it so far."""
    available: dict[str, float]
    starving: dict[str, int] = {}
    """By demand: elements that have waited for long; see `starvation`."""
    reserved: dict[str, int] = {}
    """Resources that actors have or wait for, in 1/10,000; see `ResourcePool.reserved`."""
    busy_s: float = 0.0
    """Estimated seconds until one of the tasks that run there ends."""


class Heartbeat(Struct, array_like=True, tag=33):
    """A sign of life, and the load. ``sent_s``: the node's own clock; negative if the node asks for
    no echo."""

    node: int
    incarnation: int
    load: Load
    sent_s: float = -1.0


class HeartbeatEcho(Struct, array_like=True, tag=198):
    """The answer to a heartbeat, with its ``sent_s``: the head hears the node."""

    sent_s: float


class LoadChanged(Struct, array_like=True, tag=34):
    """A heartbeat, as the failure detector passes it on to the global scheduler."""

    node: int
    load: Load


class StartWorker(Struct, array_like=True, tag=65):
    worker: str


class StopWorker(Struct, array_like=True, tag=66):
    """A worker is not needed any more: its process ends by itself."""

    worker: str


class KillWorker(Struct, array_like=True, tag=120):
    """Kill a worker at once, even while it runs a task; `WorkerDied` follows."""

    worker: str


class WorkerDied(Struct, array_like=True, tag=67):
    worker: str
    reason: str


class Query(Struct, array_like=True, tag=22):
    """Ask for rows about the cluster's state; `queries` has the kinds.

    ``key`` is the client's number of the request; the reply has it, too.
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


class Event(Struct, array_like=True, tag=41):
    """A row of the event log."""

    kind: str
    subject: str
    detail: str = ""
    count: int = 1
    """The number of things that it happened to, for instance tasks."""
    job: bytes = b""
    """The job whose driver the GCS sends the event to, as a warning; empty: none."""
    cause: Failure | None = None
    """The failure behind it; the driver has the text of failures."""


class JobInfo(Struct, array_like=True):
    """A row of the job table."""

    number: int
    """0: the GCS has not given it a number yet."""
    driver: str = ""
    """The driver's address."""
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
    """A driver wants to join the cluster through its node; answered by `JobRegistered`."""

    info: JobInfo
    key: int


class JobRegistered(Struct, array_like=True, tag=166):
    """``info.number`` is 0 if there are no numbers left."""

    info: JobInfo
    key: int


class DescribeJob(Struct, array_like=True, tag=167):
    """A driver sends the facts about its job that only it knows."""

    namespace: str
    entrypoint: str
    pid: int
    job: bytes = b""
    """The client's job; its node fills it in."""


class JobEnded(Struct, array_like=True, tag=168):
    """A driver or a detached actor has ended: drop everything that belongs to its job."""

    job: bytes
    reason: str
    kept: list[bytes] = []
    """Functions of this and of earlier jobs that detached actors still need."""


ClusterMessage = Union[
    RegisterNode, Registered, NodeChanged, NodesJoined, NodeUnreachable, PeerUnreachable, Heartbeat,
    HeartbeatEcho, LoadChanged, StartWorker, StopWorker, KillWorker, WorkerDied, Query, QueryReply,
    Event, RegisterJob, JobRegistered, DescribeJob, JobEnded,
]  # fmt: skip
