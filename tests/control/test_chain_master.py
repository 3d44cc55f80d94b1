"""Which replicas a chain's master starts, ends and configures."""

from __future__ import annotations

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import (
    ChainConfigured,
    ChainHello,
    ClientGone,
    ClientUnreachable,
    Event,
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
from raytwin.runtime.control.replication.master import PAIR_PERIODS, Master
from tests.control.alone import Alone


class Chain:
    """A master of two replicas, which are ready when they are started."""

    def __init__(self) -> None:
        self.ctx = Alone()
        self.master = Master(self.ctx, Config(gcs_replicas=2))
        self.master.start()
        for name in self.started():
            self.ready(name)
        assert self.members() == [name_of(1), name_of(2)]

    def ready(self, name: str) -> None:
        self.master.handle(name, ReplicaReady(ReplicaInfo(name, "host", 1)))

    def kill(self, name: str) -> None:
        self.master.handle("launcher", ReplicaLost(name, "killed"))

    def hear(self, name: str) -> None:
        self.master.handle(name, ReplicaHeartbeat(name))

    def cut(self, name: str) -> None:
        """A replica cannot reach node 1, which is a client; time passes until that is judged."""
        self.master.handle(name, ClientUnreachable("node:1", 7.0, "silent"))
        self.ctx.pass_time(PAIR_PERIODS * self.master.config.heartbeat_s)

    def members(self) -> list[str]:
        return [info.name for info in self.master.members]

    def started(self) -> list[str]:
        return [message.name for message in self.ctx.take(StartReplica)]

    def stopped(self) -> list[str]:
        return [message.name for message in self.ctx.take(StopReplica)]


def name_of(number: int) -> str:
    return f"replica:0.{number}"


def test_a_lost_replica_is_replaced_by_one_that_joins_behind_the_tail() -> None:
    chain = Chain()
    chain.kill(name_of(1))
    assert chain.members() == [name_of(2)]
    assert chain.started() == [name_of(3)]
    chain.ready(name_of(3))
    [*_, configured] = chain.ctx.take(ChainConfigured, name_of(2))
    assert configured.joining.name == name_of(3)
    chain.master.handle(name_of(2), ReplicaJoined(chain.master.epoch, name_of(3)))
    assert chain.members() == [name_of(2), name_of(3)]


def test_a_suspected_replica_is_ended_and_notified() -> None:
    chain = Chain()
    chain.ctx.take(ChainConfigured)
    chain.master.handle("node:0", ReplicaSuspected(name_of(2), "reset"))
    assert chain.stopped() == [name_of(2)]
    [configured] = chain.ctx.take(ChainConfigured, name_of(2))
    assert [info.name for info in configured.members] == [name_of(1)]


def test_the_last_replica_is_lost_when_its_process_has_ended_and_not_before() -> None:
    chain = Chain()
    chain.kill(name_of(1))
    chain.master.handle("node:0", ReplicaSuspected(name_of(2), "reset"))
    assert chain.members() == [name_of(2)] and not chain.master.lost
    chain.kill(name_of(2))
    assert "last replica" in chain.master.lost


def test_of_a_client_and_a_replica_that_are_cut_off_the_replica_leaves() -> None:
    chain = Chain()
    chain.master.handle("node:1", ChainHello("node:1", 7.0))
    chain.cut(name_of(2))
    assert chain.stopped() == [name_of(2)] and chain.members() == [name_of(1)]
    assert not chain.ctx.take(NodeUnreachable)


def test_of_a_client_and_the_last_replica_that_are_cut_off_the_client_leaves() -> None:
    chain = Chain()
    chain.kill(name_of(1))
    for way in ("the replica reports it", "the client reports it"):
        chain.master.handle("node:1", ChainHello("node:1", 7.0))
        if way == "the replica reports it":
            chain.cut(name_of(2))
        else:
            chain.hear(name_of(2))
            chain.master.handle("node:1", ReplicaSuspected(name_of(2), "silent"))
            chain.ctx.pass_time(PAIR_PERIODS * chain.master.config.heartbeat_s)
        [unreachable] = chain.ctx.take(NodeUnreachable, "master")
        assert (unreachable.node, unreachable.incarnation) == (1, 7), way
        chain.master.handle("health", unreachable)
        assert chain.ctx.take(ClientGone), way
    assert chain.members() == [name_of(2)] and not chain.master.lost


def test_a_client_that_is_dead_costs_no_replica() -> None:
    chain = Chain()
    chain.master.handle("node:1", ChainHello("node:1", 7.0))
    chain.master.handle(name_of(2), ClientUnreachable("node:1", 7.0, "silent"))
    chain.master.handle("health", NodeUnreachable(1, "no heartbeat", 7))
    chain.ctx.pass_time(PAIR_PERIODS * chain.master.config.heartbeat_s)
    assert chain.members() == [name_of(1), name_of(2)]


def test_a_late_report_of_a_death_ends_no_session_of_the_next_incarnation() -> None:
    chain = Chain()
    chain.master.handle("node:1", ChainHello("node:1", 7.0))
    chain.master.handle("node:1", ChainHello("node:1", 8.0))
    chain.master.handle("health", NodeUnreachable(1, "no heartbeat", 7))
    assert not chain.ctx.take(ClientGone)
    chain.master.handle("health", NodeUnreachable(1, "no heartbeat", 8))
    [gone] = chain.ctx.take(ClientGone)
    assert (gone.client, gone.born) == ("node:1", 8.0)


def test_a_last_replica_that_hangs_costs_no_client() -> None:
    chain = Chain()
    chain.kill(name_of(1))
    chain.master.handle("node:1", ChainHello("node:1", 7.0))
    chain.ctx.pass_time(0.6 * chain.master.config.heartbeat_timeout_s)
    chain.master.handle("node:1", ReplicaSuspected(name_of(2), "silent"))
    chain.ctx.pass_time(PAIR_PERIODS * chain.master.config.heartbeat_s)
    assert not chain.ctx.take(NodeUnreachable) and not chain.master.lost


def test_a_lost_replica_is_an_event_of_the_gcs_whichever_chain_it_was_of() -> None:
    chain = Chain()
    chain.ctx.take(Event)
    chain.kill(name_of(1))
    [lost] = chain.ctx.take(Event, "gcs")
    assert (lost.kind, lost.subject, lost.detail) == ("replica_died", name_of(1), "killed")
    ctx = Alone()
    Master(ctx, Config(gcs_replicas=2), chain=1).start()
    (name, *_) = (message.name for message in ctx.take(StartReplica))
    assert not ctx.take(Event)
    chain.master.handle("master.1", Event("replica_died", name))
    assert [event.subject for event in chain.ctx.take(Event, "gcs")] == [name]
