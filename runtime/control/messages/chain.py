"""Messages of the GCS's processes: chains of replicas (see `replication`), and shards."""

from __future__ import annotations

from typing import Union

from msgspec import Struct

from raytwin.runtime.control.messages.common import TaskSpec


class ReplicaInfo(Struct, array_like=True, frozen=True):
    """A replica's address in the cluster, and where it listens."""

    name: str
    host: str
    port: int


class Command(Struct, array_like=True, gc=False):
    """A command, which every replica applies in the order of `index`.

    ``client`` and ``sequence`` name the request that it came from, so that it
    takes effect once; ``born``, the time at which the client started, distinguishes
    it from an earlier client of the same name. If the client is empty, the command
    comes from the head replica, because a timer is due. ``acked``: the last output
    that the client has received. ``body``: a msgpack list of frames.
    """

    index: int
    time_s: float
    client: str
    born: float
    sequence: int
    acked: int
    body: bytes


class ChainRequest(Struct, array_like=True, tag=100):
    """A client's next request, with the messages of one turn, to the head; see `Command`."""

    epoch: int
    client: str
    born: float
    sequence: int
    acked: int
    body: bytes


class ChainAttach(Struct, array_like=True, tag=101):
    """A client attaches to the tail; it has all outputs up to ``received``."""

    epoch: int
    client: str
    born: float
    received: int


class ChainOutput(Struct, array_like=True, tag=102):
    """The tail to a client: output ``sequence``, a msgpack list of frames.

    ``applied``: the last of the client's requests that took effect; with an empty body
    the message has no output. Only the client that started at ``born`` takes it.
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
    """The replicas of the chain from now on, head first; ``joining`` will be its tail."""

    epoch: int
    members: list[ReplicaInfo]
    joining: Union[ReplicaInfo, None] = None


class Snapshot(Struct, array_like=True, tag=106):
    """The tail to the joining replica: the state after command ``index``."""

    epoch: int
    index: int
    data: bytes


class ReplicaReady(Struct, array_like=True, tag=108):
    """A replica's process has started."""

    info: ReplicaInfo


class ReplicaJoined(Struct, array_like=True, tag=109):
    """The joining replica has the state."""

    epoch: int
    name: str


class ReplicaHeartbeat(Struct, array_like=True, tag=110):
    name: str


class ReplicaSuspected(Struct, array_like=True, tag=111):
    """A connection of the sender to a replica broke."""

    name: str
    reason: str


class ReplicaLost(Struct, array_like=True, tag=112):
    """The world saw this process's own connection to a replica break."""

    name: str
    reason: str


class ClientUnreachable(Struct, array_like=True, tag=200):
    """The sender, a replica, cannot reach the client that started at ``born``, and believes it to
    be alive."""

    client: str
    born: float
    reason: str


class ChainHello(Struct, array_like=True, tag=113):
    """A client asks the master for the configuration, now and at every change."""

    client: str
    born: float


class StartReplica(Struct, array_like=True, tag=114):
    """Start the process of a new replica."""

    name: str


class ClientGone(Struct, array_like=True, tag=115):
    """The master to the chain: the client that started at ``born`` has died."""

    client: str
    born: float


class LogCommands(Struct, array_like=True, tag=116):
    """Write these commands to the log in one transaction; answered by `Logged`."""

    commands: list[Command]


class LogSnapshot(Struct, array_like=True, tag=117):
    """Write the state after command ``index``; the log of earlier commands may be removed."""

    index: int
    data: bytes


class Logged(Struct, array_like=True, tag=118):
    """All commands up to ``index`` are on disk."""

    index: int


class StopReplica(Struct, array_like=True, tag=196):
    """End the process of a replica that is not in the chain any more, if it lives."""

    name: str


class LineageChanges(Struct, array_like=True, tag=155):
    """Lineage between arrays of other shards and arrays here; see `sharding.shard_lineage`.

    Each is (change, array, its inputs here).
    """

    changes: list[tuple[int, bytes, tuple[bytes, ...]]]


class TasksPlaced(Struct, array_like=True, tag=156):
    """The global scheduler has chosen a node for ranges: log them, then assign them to the node.

    ``way``: the shards that the message visits next; the last one has the row.
    """

    node: int
    incarnation: int
    tasks: list[TaskSpec]
    way: tuple[int, ...] = ()
    left: int = -1
    """As in `TaskUpdates`."""


class NodesSeen(Struct, array_like=True, tag=157):
    """A shard has received so many changes of nodes."""

    count: int


ChainMessage = Union[
    ChainRequest, ChainAttach, ChainOutput, ChainCommands, ChainAck, ChainConfigured,
    Snapshot, ReplicaReady, ReplicaJoined, ReplicaHeartbeat, ReplicaSuspected, ReplicaLost,
    ClientUnreachable, ChainHello, StartReplica, StopReplica, ClientGone, LogCommands,
    LogSnapshot, Logged, LineageChanges, TasksPlaced, NodesSeen,
]  # fmt: skip
