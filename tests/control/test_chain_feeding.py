"""A replica that joins gets every row that was flushed, once, whatever happens meanwhile.

Rows are flushed by real `TaskHistory`s of a few hundred bytes, in chains whose replicas and
heads die at seeded moments; turns take what comes within a while, as processes do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raytwin.runtime.control.assembly import STATE_TYPES
from raytwin.runtime.control.core.addresses import STORAGE
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.gcs.array_row import ArrayRow
from raytwin.runtime.control.gcs.task_history import TaskHistory, unpack
from raytwin.runtime.control.messages import (
    ChainConfigured,
    ColdRows,
    KvPut,
    KvReply,
    ReadRows,
    ReplicaInfo,
    ReplicaJoined,
    StoreRows,
)
from raytwin.runtime.control.replication import state_transfer
from raytwin.runtime.control.replication.position import State
from raytwin.runtime.control.replication.replica import Replica
from raytwin.runtime.control.replication.state_machine import Machine
from raytwin.runtime.control.replication.state_transfer import StateTransfer
from raytwin.runtime.processes.head.gcs_storage import GcsStorage
from raytwin.simulator.cluster.simulated_replicas import SimFile, SimStorage
from tests.control.chain_world import ChainWorld
from tests.control.test_chain import kill_all, kill_heads, kill_sometimes, serving
from tests.control.test_chain_joining import MASTER, Alone, put

MEMORY_MAX = 4_000
"""Some twenty rows."""


def key_of(name: bytes) -> bytes:
    return name.ljust(ARRAY_BYTES, b".")


class Histories:
    """Stands for the GCS: a key that is put is a row of the history."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx
        self.history = TaskHistory(ctx, MEMORY_MAX)

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, KvPut):
            row = ArrayRow()
            row.former = message.value.decode()
            self.history.add(key_of(message.key), row)
            self.ctx.send(source, KvReply(message.request, "", None))

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""


# -- whoever dies ----------------------------------------------------------------


class Writer:
    """Puts one key after the other; `done` is what was confirmed."""

    def __init__(self, ctx: Any, name: str, keys: list[bytes]) -> None:
        self.ctx = ctx
        self.name = name
        self.keys = keys
        self.done: list[tuple[bytes, str]] = []

    def begin(self) -> None:
        number = len(self.done)
        if number < len(self.keys):
            value = f"{self.name}/{number}".encode()
            self.ctx.send("gcs", KvPut(self.keys[number], value, number))

    def handle(self, source: str, message: Any) -> None:
        number = message.request
        assert number == len(self.done)
        self.done.append((self.keys[number], f"{self.name}/{number}"))
        self.begin()

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""


class TurnsWorld(ChainWorld):
    """A turn of a replica takes all that comes within a while."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.waiting: dict[Any, list[Callable[[], None]]] = {}
        super().__init__(*args, **kwargs)

    def turn(self, address: str, action: Callable[[], None]) -> None:
        component: Any = self.components.get(address)
        if not isinstance(component, Replica):
            super().turn(address, action)
            return
        if component not in self.waiting:
            self.waiting[component] = []
            delay_s = self.rng.choice((0.0, self.rng.uniform(0, 3e-3)))
            self.at(delay_s, partial(self._go, address, component))
        self.waiting[component].append(action)

    def _go(self, address: str, component: Any) -> None:
        actions = self.waiting.pop(component)

        def take_all() -> None:
            for action in actions:
                action()

        if self.components.get(address) is component:
            super().turn(address, take_all)


def run_feeding(seed: int, kill: Callable[[ChainWorld, int], None]) -> None:
    """Hold what each replica has at the end against what was confirmed."""
    tables = {"gcs": Histories}
    world = TurnsWorld(seed, 2 + seed % 2, tables, durable=True, memory_max=MEMORY_MAX)
    writers: list[Writer] = []
    for number in range(3):
        # Of every other seed's keys some come again: the newest row counts.
        names = [b"%d.%d" % (number, n % (40 if seed % 2 else 200)) for n in range(200)]
        address = f"node:{number}"
        chained = world.client(address, partial(Writer, name=address, keys=names))
        writers.append(chained.inner)  # type: ignore[arg-type]
        world.turn(address, writers[-1].begin)
    world.run(lambda: all(len(writer.done) >= 60 for writer in writers))
    kill(world, 12)
    world.run(lambda: all(len(writer.done) == 200 for writer in writers))
    # A replica whose file is read again flushes again what it has flushed since its snapshot.
    once = kill is kill_sometimes and not seed % 2
    check(world, dict(pair for writer in writers for pair in writer.done), once)


def check(world: ChainWorld, known: dict[bytes, str], once: bool) -> None:
    replicas = world.config.gcs_replicas
    world.run(lambda: len(serving(world)) == replicas and len(world.master.members) == replicas)
    end_s = world.time_s + 1
    world.run(lambda: world.time_s > end_s)
    for replica in serving(world):
        history = replica.machine.components["gcs"].history  # type: ignore[attr-defined]
        cold = world.files[replica.info.name].cold
        assert not once or sum(map(len, cold.batches)) == history.flushed > 500
        for key, value in known.items():
            row = history.find(key_of(key)) or cold.find(key_of(key))
            assert row is not None, (world.seed, replica.info.name, key)
            assert unpack(row)["owner"] == value, (world.seed, replica.info.name, key)


KILLS = [kill_sometimes, kill_heads, kill_all]


@pytest.fixture(autouse=True)
def few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_transfer, "ROWS_BYTES", 400)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kill", KILLS)
def test_no_replica_lacks_a_row_or_has_it_twice(
    seed: int, kill: Callable[[ChainWorld, int], None]
) -> None:
    run_feeding(seed, kill)


def _reads_what_is_not_written(patch: pytest.MonkeyPatch) -> None:
    """The storage is asked before it was sent what the turn has flushed."""

    def snapshot(replica: Replica) -> tuple[bytes, int]:
        return replica.machine.snapshot(), replica.machine.index

    patch.setattr(Replica, "_snapshot", snapshot)


def _takes_what_an_earlier_feed_has_asked(patch: pytest.MonkeyPatch) -> None:
    before = StateTransfer.on_rows

    def on_rows(feed: StateTransfer, read: ColdRows) -> bool:
        return before(feed, ColdRows(feed._epoch, read.rows, read.place, read.until))

    patch.setattr(StateTransfer, "on_rows", on_rows)


def _reads_once(patch: pytest.MonkeyPatch) -> None:
    """What was flushed between the first read and the snapshot is nobody's."""
    before = StateTransfer._read_rows

    def read(feed: StateTransfer, until: int | None) -> None:
        before(feed, feed._until if feed.taken else until)

    patch.setattr(StateTransfer, "_read_rows", read)


@pytest.mark.parametrize(
    "defect", [_reads_what_is_not_written, _takes_what_an_earlier_feed_has_asked, _reads_once]
)
def test_each_defect_is_found(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(200):
            run_feeding(seed, KILLS[seed % 3])


# -- turn by turn, with the storages of both backends ----------------------------


class Flushing:
    """Stands for the GCS: each key that is put is a row that is flushed at once."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, KvPut):
            self.ctx.send(STORAGE, StoreRows([(key_of(message.key), b"row")]))

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""


class Process:
    """A replica and its storage, whose turn is after the replica's."""

    config = Config(gcs_replicas=2, gcs_durable=True, gcs_memory_max=1000)

    def __init__(self, number: int, storage: Any) -> None:
        self.ctx = Alone()
        self.storage_ctx = Alone()
        self.storage = storage(self.storage_ctx, number)
        self.info = ReplicaInfo(f"replica:0.{number}", "host", number)
        self.replica = Replica(
            self.ctx,
            self.info,
            self.config,
            lambda: Machine({"gcs": Flushing}, self.config, STATE_TYPES),
            STORAGE,
        )
        self.sent: list[tuple[str, Any]] = []
        self.asked: list[Any] = []
        """What its storage was sent."""

    def begin_turn(self, *inputs: tuple[str, Any]) -> None:
        """Take the inputs; what the storage answers waits for `end_turn`."""
        for source, message in inputs:
            self.replica.handle(source, message)
        self.replica.end_turn()
        out, self.ctx.sent = self.ctx.sent, []
        self.sent += [(to, message) for to, message in out if to != STORAGE]
        asked = [message for to, message in out if to == STORAGE]
        self.asked += asked
        for message in asked:
            self.storage.handle(self.info.name, message)
        if asked:
            self.storage.end_turn()

    def turn(self, *inputs: tuple[str, Any]) -> None:
        """Take the inputs, then what the storage answers, until it says no more."""
        self.begin_turn(*inputs)
        while self.storage_ctx.sent:
            answers, self.storage_ctx.sent = self.storage_ctx.sent, []
            mine = [(STORAGE, m) for to, m in answers if to == self.info.name]
            self.begin_turn(*mine)

    def take(self, to: Process) -> list[tuple[str, Any]]:
        found = [message for name, message in self.sent if name == to.info.name]
        self.sent = [each for each in self.sent if each[0] != to.info.name]
        return [(self.info.name, message) for message in found]

    def rows(self) -> dict[bytes, int]:
        """Return how often each key is in the file."""
        sim = isinstance(self.storage, SimStorage)
        cold = self.storage.file.cold if sim else self.storage._cold
        keys = [key for _, rows in cold.between(0, cold.newest) for key, _ in rows]
        return {key: keys.count(key) for key in keys}


def flow(one: Process, other: Process, also: Callable[[], None] = lambda: None) -> None:
    """Deliver until neither says anything; `also` comes between."""
    while any(inputs := (one.take(other), other.take(one))):
        also()
        if inputs[0]:
            other.turn(*inputs[0])
        if inputs[1]:
            one.turn(*inputs[1])


def joined(process: Process, epoch: int) -> bool:
    told = [m for _, m in process.sent if isinstance(m, ReplicaJoined)]
    return [message.epoch for message in told] == [epoch]


@pytest.fixture(params=["sim", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Any, int], Any]:
    """Return what makes a storage for a replica's number."""
    if request.param == "sim":
        return lambda ctx, number: SimStorage(ctx, SimFile())
    return lambda ctx, number: GcsStorage(ctx, tmp_path / f"{number}.sqlite3")


def test_what_the_same_turn_has_flushed_is_sent(storage: Any) -> None:
    tail, new = Process(1, storage), Process(2, storage)
    tail.turn((MASTER, ChainConfigured(1, [tail.info], None)))
    tail.turn(put(1, 1, 10))
    tail.turn(put(1, 2, 10))
    second = ChainConfigured(2, [tail.info], new.info)
    tail.turn(put(1, 3, 10), (MASTER, second), put(2, 4, 10))
    new.turn((MASTER, second))
    flow(tail, new)
    assert joined(tail, 2)
    assert new.rows() == tail.rows() == {key_of(b"key%d" % n): 1 for n in range(1, 5)}


def test_what_an_earlier_feed_has_asked_is_left_out(storage: Any) -> None:
    tail, new = Process(1, storage), Process(2, storage)
    tail.turn((MASTER, ChainConfigured(1, [tail.info], None)))
    for number in range(1, 101):
        tail.turn(put(1, number, 10))
    # The storage has answered when the next epoch comes, and a third one.
    for epoch in (2, 3, 4):
        told = ChainConfigured(epoch, [tail.info], new.info)
        new.turn((MASTER, told))
        tail.begin_turn((MASTER, told))
    tail.turn()
    flow(tail, new)
    assert joined(tail, 4)
    assert new.rows() == tail.rows() == {key_of(b"key%d" % n): 1 for n in range(1, 101)}


def test_it_joins_although_rows_are_flushed_all_the_while(storage: Any) -> None:
    tail, new = Process(1, storage), Process(2, storage)
    tail.turn((MASTER, ChainConfigured(1, [tail.info], None)))
    numbers = iter(range(1, 10_000))

    def flush() -> None:
        # In a round trip, which is two of these, more than is sent at once.
        for number in (next(numbers) for _ in range(20)):
            tail.turn(put(tail.replica.place.epoch, number, 10))

    for _ in range(40):
        flush()
    told = ChainConfigured(2, [tail.info], new.info)
    new.turn((MASTER, told))
    tail.turn((MASTER, told))
    rounds = [0]

    def busy() -> None:
        rounds[0] += 1
        if not any(isinstance(m, ReplicaJoined) for _, m in tail.sent):
            assert rounds[0] < 200, "it never joins"
            flush()

    flow(tail, new, busy)
    assert joined(tail, 2)
    assert new.replica.place.state is State.JOINING
    assert new.rows() == tail.rows()
    assert set(tail.rows().values()) == {1}
    # Many batches at a time: there were 800 of a row each when it began.
    assert sum(isinstance(m, ReadRows) for m in tail.asked) < 100
