"""Chain replication: whoever dies, whenever, nothing that was confirmed is lost.

Clients work on a key-value table, one operation at a time, while replicas are
killed at random moments. Every history has to be linearizable, every command
has to take effect once, and all replicas have to end up equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from raytwin.chaos.fuzz.oracle.register import Operation, wrong_keys
from raytwin.runtime.control.core.addresses import MASTER
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.messages import (
    ChainConfigured,
    KvGet,
    KvPut,
    KvReply,
    ReplicaJoined,
)
from raytwin.runtime.control.replication.client import ChainClient
from raytwin.runtime.control.replication.replica import Replica, State
from raytwin.runtime.control.replication.state_machine import Factory, Machine
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from tests.control.chain_world import ChainWorld, File

CONFIG = Config(gcs_replicas=2)
TABLES: dict[str, Factory] = {
    "gcs": lambda ctx: Gcs(ctx, CONFIG),
    "global": lambda ctx: GlobalScheduler(ctx, CONFIG),
}


class User:
    """A component that does one operation after another and notes what comes."""

    clock = 0

    def __init__(self, ctx: Any, name: str, rng: Any, keys: list[bytes], count: int) -> None:
        self.ctx = ctx
        self.name = name
        self.rng = rng
        self.keys = keys
        self.left = count
        self.done: list[Operation] = []
        self.now: Operation | None = None

    @classmethod
    def tick(cls) -> int:
        cls.clock += 1
        return cls.clock

    def begin(self) -> None:
        self.left -= 1
        kind = self.rng.choice(["put", "put", "get", "get"])
        key = self.rng.choice(self.keys)
        number = len(self.done)
        value = f"{self.name}/{number}".encode() if kind == "put" else None
        self.now = Operation(key, value, self.tick())
        if kind == "put":
            self.ctx.send("gcs", KvPut(key, value or b"", number))
        else:
            self.ctx.send("gcs", KvGet(key, number))

    def handle(self, source: str, message: Any) -> None:
        assert isinstance(message, KvReply)
        assert self.now is not None, "an answer to nothing"
        assert message.request == len(self.done), "an answer came twice, or out of order"
        self.now.ended_s = self.tick()
        self.now.answer = message.value
        self.done.append(self.now)
        self.now = None
        if self.left:
            self.begin()

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""


def run_users(world: ChainWorld, users: int, keys: int, count: int) -> list[User]:
    names = [b"key%d" % n for n in range(keys)]
    made: list[User] = []
    for number in range(users):
        address = f"node:{number}"

        def make(ctx: Any, address: str = address) -> User:
            return User(ctx, address, world.rng, names, count)

        chained = world.client(address, make)
        user: User = chained.inner  # type: ignore[assignment]
        made.append(user)
        world.turn(address, user.begin)
    return made


def serving(world: ChainWorld) -> list[Replica]:
    return [r for r in world.replicas().values() if r.state is State.SERVING]


def kill_sometimes(world: ChainWorld, kills: int) -> None:
    """Kill a replica now and then, as long as another one has the state."""
    if kills == 0:
        return

    def strike() -> None:
        members = [info.name for info in world.master.members]
        alive = [name for name in members if name in world.components]
        candidates = list(world.replicas())
        if len(alive) == 1:
            # Only who is not the last that has the state.
            candidates = [name for name in candidates if name not in alive]
        if world.master.members and candidates:
            world.kill(world.rng.choice(candidates))
        kill_sometimes(world, kills - 1)

    world.at(world.rng.expovariate(40), strike)


def kill_heads(world: ChainWorld, kills: int) -> None:
    """Kill the head now and then."""
    if kills == 0:
        return

    def strike() -> None:
        if MASTER in world.components:
            world.kill_head()
        kill_heads(world, kills - 1)

    world.at(world.rng.expovariate(10), strike)


def kill_who_fed(world: ChainWorld, kills: int) -> None:
    """Kill the former tail just when the one that it has fed takes its place."""
    joined = world.master._on_joined
    left = [kills]

    def strike(name: str) -> None:
        if name in world.components:
            world.kill(name)

    def on_joined(message: ReplicaJoined) -> None:
        before = len(world.master.members)
        joined(message)
        if len(world.master.members) > before and left[0] and world.rng.random() < 0.7:
            left[0] -= 1
            world.at(world.rng.uniform(0, 5e-4), partial(strike, world.master.members[-2].name))

    world.master._on_joined = on_joined  # type: ignore[method-assign]


def check_end(world: ChainWorld, users: list[User], replicas: int) -> None:
    world.run(lambda: len(serving(world)) == replicas and len(world.master.members) == replicas)
    index = max(r.machine.index for r in serving(world))
    world.run(lambda: min(r.machine.index for r in serving(world)) >= index)
    operations = [operation for user in users for operation in user.done]
    assert wrong_keys(operations) == [], world.seed
    tables = [r.machine.components["gcs"].kv.values for r in serving(world)]  # type: ignore[attr-defined]
    assert all(table == tables[0] for table in tables)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("replicas", [2, 3])
def test_histories_are_linearizable_whoever_dies(seed: int, replicas: int) -> None:
    run_once(seed, replicas)


def run_once(seed: int, replicas: int) -> ChainWorld:
    world = ChainWorld(seed, replicas, TABLES)
    users = run_users(world, users=3, keys=2, count=60)
    if seed % 3:
        kill_sometimes(world, kills=8)
    else:
        kill_sometimes(world, kills=1)
        kill_who_fed(world, kills=6)
    world.run(lambda: all(not user.left and user.now is None for user in users))
    assert [len(user.done) for user in users] == [60] * 3
    check_end(world, users, replicas)
    return world


@pytest.mark.parametrize("seed", range(60))
def test_histories_are_linearizable_when_durable_heads_die(seed: int) -> None:
    run_durable(seed)


def run_durable(seed: int) -> ChainWorld:
    """Heads die, each with the only replica; their successors read the file."""
    world = ChainWorld(seed, 1, TABLES, durable=True)
    users = run_users(world, users=3, keys=2, count=60)
    kill_heads(world, kills=6)
    world.run(lambda: all(not user.left and user.now is None for user in users))
    check_end(world, users, 1)
    return world


def _answers_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """Outputs leave although the log has not got their commands."""
    patch.setattr(Replica, "_limit", property(lambda r: r.machine.index))


def _restores_an_older_state(patch: pytest.MonkeyPatch) -> None:
    """The next head lacks the last command of the log."""
    before = File.recover

    def recover(file: File, machine: Machine) -> Machine:
        del file.commands[-1:]
        return before(file, machine)

    patch.setattr(File, "recover", recover)


@pytest.mark.parametrize("defect", [_answers_before_it_is_written, _restores_an_older_state])
def test_each_defect_of_durable_heads_is_found(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(200):
            run_durable(seed)


def test_heads_are_killed_in_these_tests() -> None:
    assert sum(run_durable(seed).heads for seed in range(10)) > 20


def test_replicas_are_killed_in_these_tests() -> None:
    assert sum(len(run_once(seed, 2).killed) for seed in range(10)) >= 8


def _answers_too_early(patch: pytest.MonkeyPatch) -> None:
    """A middle replica answers as well, before the tail has it."""
    patch.setattr(Replica, "is_tail", property(lambda r: r.state is State.SERVING))


def _forgets_what_joins(patch: pytest.MonkeyPatch) -> None:
    """The tail answers what the joining replica may lack."""
    patch.setattr(Replica, "_limit", property(lambda r: r.machine.index))


def _sends_nothing_again(patch: pytest.MonkeyPatch) -> None:
    """On a new epoch the successor is not brought up to date."""
    before = Replica._send_again

    def send_again(replica: Replica) -> None:
        replica.kept.clear()
        before(replica)

    patch.setattr(Replica, "_send_again", send_again)


def _applies_twice(patch: pytest.MonkeyPatch) -> None:
    """A request that is sent again takes effect again."""

    def fresh(machine: Machine, client: str, born: float, sequence: int) -> bool:
        session = machine.sessions.get(client)
        return session is None or sequence <= session.applied + 1

    patch.setattr(Machine, "fresh", fresh)


def _loses_requests(patch: pytest.MonkeyPatch) -> None:
    """A client does not send again what nobody has confirmed."""
    before = ChainClient._on_configured

    def configured(client: ChainClient, message: ChainConfigured) -> None:
        if client.epoch:
            client.unconfirmed.clear()
        before(client, message)

    patch.setattr(ChainClient, "_on_configured", configured)


@pytest.mark.parametrize(
    "defect",
    [
        _answers_too_early,
        _forgets_what_joins,
        _sends_nothing_again,
        _applies_twice,
        _loses_requests,
    ],
)
def test_each_defect_is_found(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(400):
            run_once(seed, 2 + seed % 2)
