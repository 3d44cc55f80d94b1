"""A durable replica that joins, and is told to begin again while it takes commands."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from raytwin.runtime.control.assembly import STATE_TYPES
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.messages import (
    ChainAck,
    ChainCommands,
    ChainConfigured,
    ChainRequest,
    Frame,
    KvPut,
    LogCommands,
    LogEpoch,
    Logged,
    LogSnapshot,
    ReplicaInfo,
    SnapshotPart,
)
from raytwin.runtime.control.replication.position import State
from raytwin.runtime.control.replication.replica import Replica
from raytwin.runtime.control.replication.state_machine import Machine, encode_frames

STORAGE = "storage:gcs"
MASTER = "master"
CONFIG = Config(gcs_replicas=2, gcs_durable=True)


class Timer:
    def cancel(self) -> None:
        """Nothing waits for it."""


class Alone:
    """A context that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.rng = random.Random(1)

    def now(self) -> float:
        return 1.0

    def send(self, to: str, message: Any) -> None:
        self.sent.append((to, message))

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return Timer()


class Process:
    """A replica and a log that has written what it is sent by the end of the turn."""

    def __init__(self, number: int) -> None:
        self.ctx = Alone()
        self.info = ReplicaInfo(f"replica:0.{number}", "host", number)
        self.replica = Replica(
            self.ctx,
            self.info,
            CONFIG,
            lambda: Machine({"gcs": lambda ctx: Gcs(ctx, CONFIG)}, CONFIG, STATE_TYPES),
            STORAGE,
            None,
        )
        self.sent: list[tuple[str, Any]] = []
        self.logged = 0

    def turn(self, *inputs: tuple[str, Any]) -> None:
        """Take all of the inputs, then what the log answers."""
        todo = list(inputs)
        while todo:
            for source, message in todo:
                self.replica.handle(source, message)
            self.replica.end_turn()
            todo = []
            out, self.ctx.sent = self.ctx.sent, []
            self.sent += [(to, message) for to, message in out if to != STORAGE]
            logged = [message for to, message in out if to == STORAGE]
            for message in logged:
                self.write(message)
            if logged:
                todo = [(STORAGE, Logged(self.logged))]

    def write(self, message: Any) -> None:
        if isinstance(message, LogCommands):
            self.logged = message.commands[-1].index
        elif isinstance(message, LogSnapshot):
            self.logged = max(self.logged, message.index)
        elif isinstance(message, LogEpoch) and not message.serving:
            self.logged = 0

    def take(self, to: Process) -> list[tuple[str, Any]]:
        """Return what this one has sent to another, as that one's inputs."""
        found = [message for name, message in self.sent if name == to.info.name]
        self.sent = [each for each in self.sent if each[0] != to.info.name]
        return [(self.info.name, message) for message in found]


def flow(*processes: Process) -> None:
    """Deliver until nobody says anything."""
    moved = True
    while moved:
        moved = False
        for one in processes:
            for other in processes:
                inputs = one.take(other)
                if inputs:
                    moved = True
                    other.turn(*inputs)


def put(epoch: int, number: int, nbytes: int) -> tuple[str, ChainRequest]:
    frame = Frame("node:0", "gcs", [KvPut(b"key%d" % number, bytes(nbytes), number)])
    return "node:0", ChainRequest(epoch, "node:0", 1.0, number, 0, encode_frames([frame]))


@pytest.mark.parametrize("together", [True, False])
def test_it_acknowledges_nothing_that_it_no_longer_has(together: bool) -> None:
    head, tail, new = Process(1), Process(2), Process(3)
    first = ChainConfigured(1, [head.info, tail.info], None)
    head.turn((MASTER, first))
    tail.turn((MASTER, first))
    for number in range(1, 21):
        head.turn(put(1, number, 300_000))  # more than the parts that are sent at once
    flow(head, tail)
    second = ChainConfigured(2, [head.info, tail.info], new.info)
    for process in (head, tail, new):
        process.turn((MASTER, second))
    flow(head, tail, new)
    assert new.replica.machine.index == head.replica.machine.index == 20

    # The tail's last command is here when it is dead, and the head feeds the new one.
    head.turn(put(2, 21, 10))
    tail.turn(*head.take(tail))
    last = tail.take(new)
    assert [type(message) for _, message in last] == [ChainCommands]
    third = ChainConfigured(3, [head.info], new.info)
    head.turn((MASTER, third))
    parts = head.take(new)
    assert {type(message) for _, message in parts} == {SnapshotPart}
    if together:
        new.turn(*last, (MASTER, third))
    else:
        new.turn((MASTER, third), *last)
        new.turn((STORAGE, Logged(21)))
    assert [m for _, m in new.take(head) if isinstance(m, ChainAck)] == []
    new.turn(*parts)
    flow(head, new)
    assert new.replica.place.state is State.JOINING
    assert new.replica.machine.index == new.logged == 21
    gcs: Any = new.replica.machine.components["gcs"]
    assert gcs.kv.values[b"key21"] == bytes(10)
