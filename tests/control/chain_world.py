"""Chains under a seeded scheduler: delays, deaths of replicas and of durable heads at any moment.

Frames travel as bytes, in order on each link, each after a delay of its own.
When a replica is killed, what it had sent and is not there yet may be lost from
some point on (a connection that is reset loses its end), and everybody who has
a connection with it is told, each at a moment of his own.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from raytwin.runtime.control.assembly import STATE_TYPES
from raytwin.runtime.control.core.addresses import MASTER, STORAGE
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import (
    Command,
    Frame,
    LogCommands,
    Logged,
    LogSnapshot,
    ReplicaInfo,
    ReplicaLost,
    StartReplica,
    StopReplica,
)
from raytwin.runtime.control.replication.client import ChainClient
from raytwin.runtime.control.replication.master import LAUNCHER, Master
from raytwin.runtime.control.replication.replica import Replica, State
from raytwin.runtime.control.replication.state_machine import Factory, Machine

Encoder = msgspec.msgpack.Encoder()
Decoder = msgspec.msgpack.Decoder(Frame)


class Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ChainContext:
    """`Context` of one component; `skew_s` is what its clock is off by."""

    def __init__(self, world: ChainWorld, address: str, skew_s: float) -> None:
        self.rng = random.Random(f"{world.seed}/{address}")
        self.world = world
        self.address = address
        self.skew_s = skew_s
        self.outbox: dict[str, list[Any]] = {}

    def now(self) -> float:
        return self.world.time_s + self.skew_s

    def send(self, to: str, message: Any) -> None:
        self.outbox.setdefault(to, []).append(message)

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        component = self.world.components.get(self.address)

        def fire() -> None:
            made = component or self.world.components.get(self.address)
            if timer.callback is not None and self.world.components.get(self.address) is made:
                callback, timer.callback = timer.callback, None
                self.world.turn(self.address, callback)

        self.world.at(delay_s, fire)
        return timer


class File:
    """The log of the replica in the head; a write takes a while."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.state: tuple[int, bytes] | None = None

    @property
    def index(self) -> int:
        if self.commands:
            return self.commands[-1].index
        return self.state[0] if self.state is not None else 0

    def write(self, message: Any) -> None:
        """Do as a storage does."""
        if isinstance(message, LogCommands):
            self.commands += message.commands
        else:
            assert isinstance(message, LogSnapshot)
            self.state = message.index, message.data
            self.commands = [c for c in self.commands if c.index > message.index]

    def recover(self, machine: Machine) -> Machine:
        if self.state is not None:
            machine.restore(self.state[1])
        for command in self.commands:
            machine.apply(command)
        return machine


class ChainWorld:
    """A master, its replicas, and clients; with `durable` one replica, in the head, with a file.

    Writing takes a while, and what is not written when the head dies is lost.
    """

    def __init__(
        self, seed: int, replicas: int, factories: dict[str, Factory], durable: bool = False
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.config = Config(seed=seed, gcs_replicas=replicas, gcs_durable=durable)
        self.file = File()
        self.factories = factories
        self.time_s = 0.0
        self.components: dict[str, Any] = {}
        self.contexts: dict[str, ChainContext] = {}
        self.killed: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._links: dict[tuple[str, str], float] = {}
        self._sequence = 0
        self._reset: dict[str, float] = {}
        self.heads = 0
        self._begin_head()

    # -- the head --------------------------------------------------------------

    def _begin_head(self) -> None:
        self.heads += 1
        chained = ChainClient(
            self.context(MASTER), MASTER, lambda inner: Master(inner, self.config)
        )
        self.components[MASTER] = chained
        self.master: Master = chained.inner  # type: ignore[assignment]
        self.components[LAUNCHER] = self
        self.context(LAUNCHER)
        self.turn(MASTER, chained.start)
        self.turn(MASTER, self.master.start)
        for address, component in list(self.components.items()):
            if isinstance(component, ChainClient) and address != MASTER and self.heads > 1:
                back = partial(self.turn_of, component, address, component.start)
                self.at(self.rng.uniform(0, 0.05), back)

    def kill_head(self) -> None:
        """End the master and its replica; another head begins after a while."""
        assert self.config.gcs_durable
        ended = [MASTER, LAUNCHER, *self.replicas()]
        for name in ended:
            del self.components[name]
            self._reset[name] = self.time_s - self.rng.choice([-1.0, 0, 0.1])
        self.at(self.rng.uniform(0.001, 0.2), self._begin_head)

    def turn_of(self, component: Any, address: str, action: Callable[[], None]) -> None:
        """Give a component a turn if it is still there."""
        if self.components.get(address) is component:
            self.turn(address, action)

    # -- the launcher's part ---------------------------------------------------

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, StopReplica):
            if message.name in self.components:
                self.kill(message.name)
            return
        assert isinstance(message, StartReplica)
        name, head = message.name, self.heads
        self.at(self.rng.uniform(0.001, 0.1), lambda: self._start_replica(name, head))

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    def _start_replica(self, name: str, head: int) -> None:
        if MASTER not in self.components or self.heads != head:
            return  # nobody knows any more who has asked for it
        # Clocks of replicas need not agree.
        ctx = self.context(name, self.rng.uniform(-100, 100))
        info = ReplicaInfo(name, "host", 1)
        if self.config.gcs_durable:
            machine = self.file.recover(self.machine())
            replica = Replica(ctx, info, self.config, lambda: machine, STORAGE)
        else:
            replica = Replica(ctx, info, self.config, self.machine)
        self.components[name] = replica
        self.turn(name, replica.start)

    def machine(self) -> Machine:
        return Machine(self.factories, self.config, STATE_TYPES)

    # -- wiring ----------------------------------------------------------------

    def context(self, address: str, skew_s: float = 0.0) -> ChainContext:
        made = self.contexts[address] = ChainContext(self, address, skew_s)
        return made

    def client(self, address: str, inner: Callable[[Any], Any]) -> ChainClient:
        chained = ChainClient(self.context(address), address, inner)
        self.components[address] = chained
        self.turn(address, chained.start)
        return chained

    def replicas(self) -> dict[str, Replica]:
        return {name: c for name, c in self.components.items() if isinstance(c, Replica)}

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        self._push(self.time_s + delay_s, action)

    def _push(self, due_s: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (due_s, self._sequence, action))

    def turn(self, address: str, action: Callable[[], None]) -> None:
        component = self.components.get(address)
        if component is None:
            return
        action()
        component.end_turn()
        ctx = self.contexts[address]
        outbox, ctx.outbox = ctx.outbox, {}
        for to, messages in outbox.items():
            if to == STORAGE:
                self._write(address, component, messages)
                continue
            self._transmit(address, to, Encoder.encode(Frame(address, to, messages)))
        if isinstance(component, Replica) and component.state is State.FENCED:
            del self.components[address]

    def _write(self, name: str, replica: Any, messages: list[Any]) -> None:
        due_s = max(self._links.get((name, STORAGE), 0.0), self.time_s + self.rng.uniform(0, 1e-3))
        self._links[name, STORAGE] = due_s

        def written() -> None:
            if self.components.get(name) is replica:
                for message in messages:
                    self.file.write(message)
                self.turn(name, lambda: replica.handle(STORAGE, Logged(self.file.index)))

        self._push(due_s, written)

    def _transmit(self, source: str, to: str, body: bytes) -> None:
        delay_s = 0.0 if source == to else 1e-4 * (1 + self.rng.expovariate(1.0))
        if self.rng.random() < 0.02:
            delay_s += self.rng.uniform(0, 0.05)
        due_s = max(self._links.get((source, to), 0.0), self.time_s + delay_s)
        self._links[source, to] = due_s
        sender, receiver = self.components.get(source), self.components.get(to)

        def arrive() -> None:
            if self.components.get(source) is not sender and self._reset[source] <= sent_s:
                return  # the connection was reset when its sender died
            # What was for a process that has ended is not for who took its address.
            if self.components.get(to) is not None and receiver in (None, self.components[to]):
                self.turn(to, lambda: self._handle(to, body))

        sent_s = self.time_s
        self._push(due_s, arrive)

    def _handle(self, to: str, body: bytes) -> None:
        frame = Decoder.decode(body)
        for message in frame.messages:
            self.components[to].handle(frame.source, message)

    def kill(self, name: str) -> None:
        """End a replica; what it sent in its last moments may be lost."""
        del self.components[name]
        self.killed.append(name)
        self._reset[name] = self.time_s - self.rng.choice([-1.0, 0.0, 1e-4, 0.1])
        for address in list(self.components):
            if address != LAUNCHER:
                lost = ReplicaLost(name, "killed")
                self.at(self.rng.uniform(0, 0.01), partial(self._tell, address, lost))

    def _tell(self, address: str, lost: Any) -> None:
        component = self.components.get(address)
        if component is not None:
            self.turn(address, lambda: component.handle(address, lost))

    def run(self, until: Callable[[], bool], limit_s: float = 300.0) -> None:
        end_s = self.time_s + limit_s
        while not until():
            assert self._events and self._events[0][0] < end_s, f"it hangs (seed {self.seed})"
            self.time_s, _, action = heapq.heappop(self._events)
            action()
