"""Between the processes of the GCS: chains of replicas (see `replication`), and shards."""

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


class Snapshot(Struct, array_like=True, tag=106):
    """The tail to the joining replica: the state after command ``index``."""

    epoch: int
    index: int
    data: bytes


class ReplicaReady(Struct, array_like=True, tag=108):
    """A replica's process is up."""

    info: ReplicaInfo


class ReplicaJoined(Struct, array_like=True, tag=109):
    """The joining replica has the state."""

    epoch: int
    name: str


class ReplicaBeat(Struct, array_like=True, tag=110):
    name: str


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


class StopReplica(Struct, array_like=True, tag=196):
    """End the process of a replica that is not in the chain any more, if it lives."""

    name: str


class LineageChanges(Struct, array_like=True, tag=155):
    """Lineage between arrays of other shards and arrays here; see `sharding.lineage`.

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
    left: int = -1
    """As in `TaskUpdates`."""


class NodesSeen(Struct, array_like=True, tag=157):
    """A shard has heard of so many changes of nodes."""

    count: int


ChainMessage = Union[
    ChainRequest, ChainAttach, ChainOutput, ChainCommands, ChainAck, ChainConfigured,
    Snapshot, ReplicaReady, ReplicaJoined, ReplicaBeat, ReplicaSuspected, ReplicaLost,
    ChainHello, StartReplica, StopReplica, ClientGone, LogCommands, LogSnapshot, Logged,
    LineageChanges, TasksPlaced, NodesSeen,
]  # fmt: skip
