"""The chain master: it decides on the members of the chain, and notifies replicas and clients.

The life of a chain. Only this page names its states: in the code they follow
from `Master.members`, `Master.joining` and `Master.lost`::

    starting ──all replicas ready──> full, in epoch 1
    full     ──a replica is lost──> short: a new epoch without it at once, and a
                                    new process is started
    short    ──the new replica is ready──> joining: a new epoch in which the tail
                                    sends it the state
    joining  ──it has the state──>  full: a new epoch with it as the tail
    any      ──no replica left──>   lost: no replica has the state

The master considers a replica lost when the world reports the end of its process, when a neighbour
or a client cannot reach it, or when it has been silent for the heartbeat timeout. The report may be
wrong: then the chain is one replica shorter for a while, and the master has the removed replica
killed, if it lives. For the last replica the master believes only its own world, which saw the
process end.

A client and a replica may both reach the master and not one another. Either reports it, and one of
the pair has to leave, because the client waits for outputs that the replica has sent: the replica,
if the chain has another member, else the client's node. A client that is dead is reported, too,
so the master waits for `PAIR_PERIODS` heartbeats, in which the failure detector reports the dead.

The master is a client of the chain too: what the failure detector reports of nodes it passes on
to ``gcs`` and ``global``, as commands, and it logs there which replicas were lost. In a sharded GCS
each chain has a master of its own; the master of chain 0 reports nodes, and the replicas of all.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from raytwin.runtime.control.core.addresses import (
    MASTER,
    REPLICAS_PER_CHAIN,
    is_node,
    master_of,
    node_of,
    shard_address,
)
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import (
    ChainConfigured,
    ChainHello,
    ClientGone,
    ClientUnreachable,
    Event,
    LoadChanged,
    NodeChanged,
    NodeInfo,
    NodeUnreachable,
    ReplicaHeartbeat,
    ReplicaInfo,
    ReplicaJoined,
    ReplicaLost,
    ReplicaReady,
    ReplicaSuspected,
    StartReplica,
    StopReplica,
)

LAUNCHER = "launcher"
PAIR_PERIODS = 5
"""Heartbeat periods between the report of a client and a replica that are cut off from one another
and the master's decision."""


class Master:
    """The master of one chain; see `gcs.sharding` for their numbers."""

    def __init__(self, ctx: Context, config: Config, chain: int = 0) -> None:
        self.ctx = ctx
        self.config = config
        self.chain = chain
        self.epoch = 0
        self.members: list[ReplicaInfo] = []
        self.joining: ReplicaInfo | None = None
        self.lost = ""
        """Why no replica has the state any more, else empty; the world ends the cluster then."""
        self.changes: list[tuple[float, str, str]] = []
        """(time, event, replica); the events are ``lost``, ``joining`` and ``joined``."""
        self.nodes: dict[int, NodeInfo] = {}
        """Nodes as the GCS has announced them to the head's connections."""
        self._starting: dict[str, None] = {}
        self._ready: dict[str, ReplicaInfo] = {}
        self._clients: dict[str, float] = {}
        self._names = chain * REPLICAS_PER_CHAIN
        self._heard: dict[str, float] = {}
        self._checked_s = 0.0

    def start(self) -> None:
        """Start the replicas."""
        if not self.chain:
            # A client from the start: the GCS sends messages to the head's connections.
            self.ctx.send("gcs", Event("head_started", "master"))
        for _ in range(self.config.gcs_replicas):
            self._start_one()
        self._checked_s = self.ctx.now()
        self.ctx.after(self.config.heartbeat_s, self._check)

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        if isinstance(message, ReplicaReady):
            self._on_ready(message.info)
        elif isinstance(message, ReplicaHeartbeat):
            if message.name in self._heard:
                self._heard[message.name] = self.ctx.now()
        elif isinstance(message, ReplicaJoined):
            self._on_joined(message)
        elif isinstance(message, ReplicaLost):
            self._drop(message.name, message.reason, sure=True)
        elif isinstance(message, ReplicaSuspected):
            self._on_suspected(source, message)
        elif isinstance(message, ClientUnreachable):
            self._on_cut(message.client, message.born, source, message.reason)
        elif isinstance(message, ChainHello):
            self._clients[message.client] = message.born
            if self.members:
                self.ctx.send(message.client, self._configuration())
        elif isinstance(message, NodeChanged):
            self.nodes[message.info.node] = message.info
            self.ctx.send("links", message)
        elif isinstance(message, NodeUnreachable):
            self._on_unreachable(message)
        elif isinstance(message, Event):  # of another chain's master
            self.ctx.send("gcs", message)
        else:
            assert isinstance(message, LoadChanged), f"the master was sent {type(message).__name__}"
            self.ctx.send("global", message)

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    # -- replicas --------------------------------------------------------------

    def _start_one(self) -> None:
        self._names += 1
        name = f"replica:0.{self._names}"
        self._starting[name] = None
        self.ctx.send(LAUNCHER, StartReplica(name))

    def _on_ready(self, info: ReplicaInfo) -> None:
        if info.name not in self._starting:
            return
        del self._starting[info.name]
        self._heard[info.name] = self.ctx.now()
        self._ready[info.name] = info
        self._begin()
        self._join_next()

    def _begin(self) -> None:
        """Form the chain of the first replicas, once all are ready."""
        if self.members or self._starting:
            return
        started = sorted(self._ready, key=lambda name: int(name.partition(".")[2]))
        self.members = [self._ready[name] for name in started]
        self._ready.clear()
        self._publish()

    def _join_next(self) -> None:
        """Let one ready replica join; the next one waits until that has the state."""
        if self.members and self.joining is None and self._ready:
            name = next(iter(self._ready))
            self.joining = self._ready.pop(name)
            self._note("joining", name)
            self._publish()

    def _on_joined(self, message: ReplicaJoined) -> None:
        joining = self.joining
        if joining is None or message.epoch != self.epoch or message.name != joining.name:
            return
        self.members = [*self.members, joining]
        self.joining = None
        self._note("joined", joining.name)
        self._publish()
        self._join_next()

    def _drop(self, name: str, reason: str, sure: bool) -> None:
        """A replica is lost: configure the chain without it, and start another one."""
        gone = [info for info in self.members if info.name == name]
        if gone and len(self.members) == 1:
            if sure:
                self.lost = f"{name}, the last replica of the GCS, is lost: {reason}"
            return
        joining = self.joining is not None and self.joining.name == name
        if not (gone or joining or name in self._starting or name in self._ready):
            return
        self.ctx.send(LAUNCHER, StopReplica(name))
        self._starting.pop(name, None)
        self._ready.pop(name, None)
        if gone or joining:
            self.members = [info for info in self.members if info.name != name]
            self.joining = None if joining else self.joining
            self._publish(gone)
        self._heard.pop(name, None)
        self._note("lost", name)
        self.ctx.send(MASTER if self.chain else "gcs", Event("replica_died", name, reason))
        self._start_one()
        self._join_next()

    def _on_suspected(self, source: str, message: ReplicaSuspected) -> None:
        """A client or a replica cannot reach a replica."""
        is_last = [info.name for info in self.members] == [message.name]
        if is_last and is_node(source) and source in self._clients:
            self._on_cut(source, self._clients[source], message.name, message.reason)
        else:
            self._drop(message.name, message.reason, sure=False)

    def _on_cut(self, client: str, born: float, replica: str, reason: str) -> None:
        """Judge a pair a little later, unless the replica is silent for the master as well."""
        silent_s = self.ctx.now() - self._heard.get(replica, self.ctx.now())
        if silent_s <= self.config.heartbeat_timeout_s / 2:
            judge = partial(self._judge, client, born, replica, reason)
            self.ctx.after(PAIR_PERIODS * self.config.heartbeat_s, judge)

    def _judge(self, client: str, born: float, replica: str, reason: str) -> None:
        """End the replica, or if it is the last one, the client; do nothing if one has left."""
        members = [info.name for info in self.members]
        if self._clients.get(client) != born or replica not in members:
            return
        if len(members) > 1:
            self._drop(replica, f"{client} and it are cut off: {reason}", sure=False)
            return
        why = f"{client} is cut off from {replica}: {reason}"
        dead = NodeUnreachable(node_of(client), why, int(born))
        for chain in range(self.config.chains):
            self.ctx.send(master_of(chain), dead)

    def _check(self) -> None:
        now = self.ctx.now()
        late_s = now - self._checked_s - self.config.heartbeat_s
        self._checked_s = now
        if late_s > self.config.heartbeat_s:
            # The master itself was delayed for so long: it extends every timeout.
            self._heard = {name: heard + late_s for name, heard in self._heard.items()}
        timeout_s = self.config.heartbeat_timeout_s
        for name in [n for n, heard in self._heard.items() if now - heard > timeout_s]:
            self._drop(name, f"no heartbeat for {timeout_s:g} s", sure=False)
        self.ctx.after(self.config.heartbeat_s, self._check)

    def _note(self, event: str, name: str) -> None:
        self.changes.append((self.ctx.now(), event, name))

    # -- clients ---------------------------------------------------------------

    def _configuration(self) -> ChainConfigured:
        return ChainConfigured(self.epoch, list(self.members), self.joining)

    def _publish(self, removed: list[ReplicaInfo] | None = None) -> None:
        """Begin a new epoch, and notify the replicas, those removed, and the clients."""
        self.epoch += 1
        replicas = [*self.members, *([self.joining] if self.joining else []), *(removed or [])]
        for address in (*(info.name for info in replicas), *self._clients):
            self.ctx.send(address, self._configuration())

    def _on_unreachable(self, message: NodeUnreachable) -> None:
        """An incarnation of a node has left: the GCS declares it dead, and its sessions end."""
        client, born = f"node:{message.node}", float(message.incarnation)
        if not self.chain:
            self.ctx.send("gcs", message)
        if client in self._clients and self._clients[client] <= born:
            del self._clients[client]
            tables = shard_address(self.chain) if self.chain else "gcs"
            self.ctx.send(tables, ClientGone(client, born))
