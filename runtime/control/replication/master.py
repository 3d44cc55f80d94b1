"""The chain master: who is in the chain, from when on, and who is told.

The life of a chain::

    ASKING   ──there never was one──> STARTING
    ASKING   ──all that live have reported──> FULL or SHORT, see `succession`
    STARTING ──all replicas ready──> epoch 1
    FULL     ──a replica is lost──> SHORT: a new epoch without it at once, and a
                                    new process is started
    SHORT    ──that one is ready──> JOINING: a new epoch in which the tail feeds it
    JOINING  ──it has the state──>  FULL: a new epoch with it as the tail
    any      ──no replica left──>   ASKING, if the last has a log, whose process is
                                    started again; else LOST: nobody has the state

A replica is lost when a neighbour, a client or the world says that its
connection broke, or when it has been silent for the heartbeat timeout. The
report may be wrong: then the chain is a replica shorter for a while, and the
one that is left out is killed, if it lives: the dead stay dead, on which who takes
the master's place relies. Only the last replica is believed to
be lost on nothing less than the word of this process's own world.

The master is a client of the chain too: that a node's connection broke is a
command, from ``gcs`` to itself as in a cluster without a chain. Where the GCS is
sharded each chain has a master of its own, and that of chain 0 is meant.
"""

from __future__ import annotations

from typing import Any

from raytwin.runtime.control.core.addresses import CHAIN_NAMES, shard_address
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import (
    ChainConfigured,
    ChainHello,
    ClientGone,
    Event,
    NodeChanged,
    NodeInfo,
    NodeUnreachable,
    ReplicaBeat,
    ReplicaInfo,
    ReplicaJoined,
    ReplicaLost,
    ReplicaReady,
    ReplicasFound,
    ReplicaSuspected,
    StartReplica,
    StopReplica,
)
from raytwin.runtime.control.replication.master_recovery import (
    EPOCHS_PER_LIFE,
    MasterRecovery,
    number_of,
)

LAUNCHER = "launcher"


class Master:
    """Of one chain; see `shards` for their numbers."""

    def __init__(self, ctx: Context, config: Config, chain: int = 0) -> None:
        self.ctx = ctx
        self.config = config
        self.chain = chain
        self.epoch = 0
        self.members: list[ReplicaInfo] = []
        self.joining: ReplicaInfo | None = None
        self.lost = ""
        """Why nobody has the state any more; the world ends the cluster then."""
        self.changes: list[tuple[float, str, str]] = []
        """(time, what, replica): ``lost``, ``joining``, ``joined``, ``found``, ``revived``."""
        self.nodes: dict[int, NodeInfo] = {}
        """What the GCS has told the head's connections of nodes."""
        self._starting: dict[str, None] = {}
        self._ready: dict[str, ReplicaInfo] = {}
        self._clients: dict[str, float] = {}
        self._names = chain * CHAIN_NAMES
        self._first_names = self._names + config.gcs_replicas
        self._heard: dict[str, float] = {}
        self._checked_s = 0.0
        self._asking: MasterRecovery | None = MasterRecovery()
        self._unneeded: set[str] = set()
        """What is on disk, and nobody needs as soon as the chain goes on."""

    def start(self) -> None:
        """Begin; what to begin with the launcher says."""
        if not self.chain:
            # A client from the start: the GCS has things to tell the head's connections.
            self.ctx.send("gcs", Event("head_started", "master"))
        self._checked_s = self.ctx.now()
        self.ctx.after(self.config.heartbeat_s, self._check)

    def handle(self, source: str, message: Any) -> None:
        """Take one message; an unknown type is a programming error."""
        if isinstance(message, ReplicasFound):
            self._on_found(message)
        elif isinstance(message, ReplicaReady):
            self._on_ready(message)
        elif isinstance(message, ReplicaBeat):
            if message.name in self._heard:
                self._heard[message.name] = self.ctx.now()
        elif isinstance(message, ReplicaJoined):
            self._on_joined(message)
        elif isinstance(message, ReplicaSuspected):
            self._drop(message.name, message.reason, sure=False)
        elif isinstance(message, ReplicaLost):
            self._drop(message.name, message.reason, sure=True, kept=message.kept)
        elif isinstance(message, ChainHello):
            self._clients[message.client] = message.born
            if self.members:
                self.ctx.send(message.client, self._configuration())
        elif isinstance(message, NodeChanged):
            self.nodes[message.info.node] = message.info
            self.ctx.send("links", message)
        elif isinstance(message, NodeUnreachable):
            self._on_unreachable(message)
        else:
            raise TypeError(f"the master was sent {type(message).__name__}")

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    # -- those of an earlier master --------------------------------------------

    def _on_found(self, message: ReplicasFound) -> None:
        assert self._asking is not None, "the launcher has said already who is there"
        for name in message.alive:
            self._heard.setdefault(name, self.ctx.now())
        known = (*message.alive, *message.ended, *(name for name, *_ in message.kept))
        self._names = max(self._names, *map(number_of, known), 0)
        self._unneeded = {name for name, *_ in message.kept}
        self.epoch = message.before * EPOCHS_PER_LIFE
        self._asking.found(message)
        self._take_over()

    def _take_over(self) -> None:
        """Go on with the chain as soon as all that live have said what they know."""
        asking = self._asking
        if asking is None or not asking.complete:
            return
        if asking.serving:
            epoch, self.members = asking.chain()
            assert epoch <= self.epoch, "a master before this one was in a later life"
        elif name := asking.revive():
            self._revive(name)
            return
        elif not asking.first and not asking.untouched(self._first_names + 1):
            self.lost = f"no replica of chain {self.chain} of the GCS that had its state is left"
            return
        self._asking = None
        members = {info.name for info in self.members}
        for name, report in asking.reports.items():
            if name not in members and report.serving:
                self.ctx.send(LAUNCHER, StopReplica(name))
            elif name not in members:
                self._ready[name] = report.info
        for name in sorted(self._unneeded - members):
            self.ctx.send(LAUNCHER, StopReplica(name))
        self._unneeded = set()
        for info in self.members:
            self._note("found", info.name)
        if self.members:
            self._publish()
        there = len(self.members) + len(self._ready) + len(self._starting)
        for _ in range(self.config.gcs_replicas - there):
            self._start_one()
        self._begin()
        self._feed_next()

    def _begin_again(self, name: str) -> None:
        """The last member is lost, and has a log: that has all that was ever answered."""
        self.members = []
        if self.joining is not None:
            self._ready[self.joining.name] = self.joining
            self.joining = None
        self._asking = MasterRecovery()
        self._asking.await_(name)
        self._revive(name)

    def _revive(self, name: str) -> None:
        """Go on with what a replica has on disk."""
        self._heard[name] = self.ctx.now()
        self._note("revived", name)
        self.ctx.send(LAUNCHER, StartReplica(name))

    # -- replicas --------------------------------------------------------------

    def _start_one(self) -> None:
        self._names += 1
        name = f"replica:0.{self._names}"
        self._starting[name] = None
        self.ctx.send(LAUNCHER, StartReplica(name))

    def _on_ready(self, message: ReplicaReady) -> None:
        info = message.info
        if self._asking is not None:
            self._heard[info.name] = self.ctx.now()
            self._starting.pop(info.name, None)
            self._asking.reports[info.name] = message
            self._take_over()
        elif info.name in self._starting:
            del self._starting[info.name]
            self._heard[info.name] = self.ctx.now()
            self._ready[info.name] = info
            self._begin()
            self._feed_next()

    def _begin(self) -> None:
        """Make the first chain of all its first replicas."""
        if not self.members and self._ready and not self._starting:
            self.members = sorted(self._ready.values(), key=lambda info: number_of(info.name))
            self._ready.clear()
            self._publish()

    def _feed_next(self) -> None:
        """One joins at a time; the next one waits."""
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
        self._feed_next()

    def _drop(
        self,
        name: str,
        reason: str,
        sure: bool,
        kept: tuple[str, int, int, bool] | None = None,
    ) -> None:
        """A replica is lost: go on without it, and have another one started."""
        if self._asking is not None:
            # That somebody's connection with it broke says little: the head was away.
            if sure:
                self._starting.pop(name, None)
                self._ready.pop(name, None)
                self._asking.drop(name, kept)
                if kept is not None:
                    self._unneeded.add(name)
                self._heard.pop(name, None)
                self._take_over()
            return
        if name in self._starting or name in self._ready:
            self.ctx.send(LAUNCHER, StopReplica(name))
            self._starting.pop(name, None)
            self._ready.pop(name, None)
        elif self.joining is not None and self.joining.name == name:
            self.ctx.send(LAUNCHER, StopReplica(name))
            self.joining = None
            self._publish()
        elif any(info.name == name for info in self.members):
            if len(self.members) == 1:
                if sure and self.config.last_returns:
                    self._begin_again(name)
                elif sure:
                    self.lost = f"{name}, the last replica of the GCS, is lost: {reason}"
                return
            self.ctx.send(LAUNCHER, StopReplica(name))
            gone = [info for info in self.members if info.name == name]
            self.members = [info for info in self.members if info.name != name]
            self._publish(also=gone)
        else:
            return
        self._heard.pop(name, None)
        self._note("lost", name)
        self._start_one()
        self._feed_next()

    def _check(self) -> None:
        now = self.ctx.now()
        late_s = now - self._checked_s - self.config.heartbeat_s
        self._checked_s = now
        if late_s > self.config.heartbeat_s:
            # Held up itself: nobody is to blame for that time.
            self._heard = {name: heard + late_s for name, heard in self._heard.items()}
        timeout_s = self.config.heartbeat_timeout_s
        for name in [n for n, heard in self._heard.items() if now - heard > timeout_s]:
            if self._asking is not None and self._asking.serving:
                # It hangs, and another one has the state.
                self.ctx.send(LAUNCHER, StopReplica(name))
                self._drop(name, "", sure=True)
            else:
                self._drop(name, f"no heartbeat for {timeout_s:g} s", sure=False)
        self.ctx.after(self.config.heartbeat_s, self._check)

    def _note(self, what: str, name: str) -> None:
        self.changes.append((self.ctx.now(), what, name))

    # -- who is told -----------------------------------------------------------

    def _configuration(self) -> ChainConfigured:
        return ChainConfigured(self.epoch, list(self.members), self.joining)

    def _publish(self, also: list[ReplicaInfo] | None = None) -> None:
        self.epoch += 1
        replicas = [*self.members, *([self.joining] if self.joining else []), *(also or [])]
        for address in (*(info.name for info in replicas), *self._clients):
            self.ctx.send(address, self._configuration())

    def _on_unreachable(self, message: NodeUnreachable) -> None:
        client = f"node:{message.node}"
        born = self._clients.pop(client, None)
        tables = shard_address(self.chain) if self.chain else "gcs"
        if not self.chain:
            self.ctx.send("gcs", message)
        if born is not None:
            self.ctx.send(tables, ClientGone(client, born))
