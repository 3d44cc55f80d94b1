"""Which replicas a chain's master does without, and has removed from disk."""

from __future__ import annotations

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import (
    ReplicaInfo,
    ReplicaLost,
    ReplicaReady,
    ReplicasFound,
    StartReplica,
    StopReplica,
)
from raytwin.runtime.control.replication.master import Master
from tests.control.alone import Alone


class Chain:
    """A master of two replicas with files, which are ready when they are started."""

    def __init__(self) -> None:
        self.ctx = Alone()
        self.master = Master(self.ctx, Config(gcs_replicas=2, gcs_durable=True))
        self.master.start()
        self.tell(ReplicasFound([], [], 0))
        for name in self.started():
            self.ready(name)
        assert self.members() == [name_of(1), name_of(2)]

    def tell(self, message: ReplicasFound | ReplicaLost | ReplicaReady) -> None:
        self.master.handle("launcher", message)

    def ready(self, name: str, serving: bool = False) -> None:
        members = [name] if serving else []
        info = ReplicaInfo(name, "host", 1)
        self.tell(ReplicaReady(info, self.master.epoch if serving else 0, members, serving))

    def kill(self, name: str, member: bool = True) -> None:
        """It ends; its file stays."""
        self.tell(ReplicaLost(name, "killed", (name, self.master.epoch, int(member), member)))

    def members(self) -> list[str]:
        return [info.name for info in self.master.members]

    def started(self) -> list[str]:
        return [message.name for message in self.ctx.take(StartReplica)]

    def removed(self) -> list[str]:
        return [message.name for message in self.ctx.take(StopReplica)]


def name_of(number: int) -> str:
    return f"replica:0.{number}"


def test_the_file_of_who_is_left_out_is_removed() -> None:
    chain = Chain()
    chain.kill(name_of(1))
    assert chain.removed() == [name_of(1)]
    assert chain.started() == [name_of(3)]


def test_so_is_that_of_a_new_one_that_ends_while_nobody_has_the_state() -> None:
    """The last member is started again from its file; who was to join it has one of its own."""
    chain = Chain()
    chain.kill(name_of(1))
    chain.ready(name_of(3))
    chain.kill(name_of(2))
    assert chain.started() == [name_of(3), name_of(2)], "the last one's log has the state"
    chain.removed()
    chain.kill(name_of(3), member=False)
    assert chain.removed() == [], "nothing goes before the chain goes on"
    chain.ready(name_of(2), serving=True)
    assert chain.members() == [name_of(2)]
    assert chain.started() == [name_of(4)]
    assert chain.removed() == [name_of(3)]


def test_the_file_of_who_is_started_again_stays() -> None:
    chain = Chain()
    chain.kill(name_of(1))
    chain.kill(name_of(2))
    chain.kill(name_of(2))
    chain.removed()
    chain.ready(name_of(2), serving=True)
    assert chain.members() == [name_of(2)]
    assert chain.removed() == []
