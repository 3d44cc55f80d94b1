"""Chains under a seeded scheduler: delays, deaths of replicas and of the head at any moment.

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
from raytwin.runtime.control.core.addresses import STORAGE
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import (
    Command,
    Frame,
    LoadRow,
    LogCommands,
    LogEpoch,
    Logged,
    LogSnapshot,
    ReadRows,
    ReplicaInfo,
    ReplicaLost,
    ReplicasFound,
    RowLoaded,
    StartReplica,
    StopReplica,
    StoreRows,
)
from raytwin.runtime.control.replication.client import ChainClient
from raytwin.runtime.control.replication.log import Recovered
from raytwin.runtime.control.replication.master import LAUNCHER, Master
from raytwin.runtime.control.replication.position import State
from raytwin.runtime.control.replication.replica import MASTER, Replica
from raytwin.runtime.control.replication.state_machine import Factory, Machine
from raytwin.runtime.control.replication.state_transfer import read_rows
from raytwin.simulator.cluster.cold_batches import ColdBatches

Encoder = msgspec.msgpack.Encoder()
Decoder = msgspec.msgpack.Decoder(Frame)


def _take(replica: Replica, messages: list[Any]) -> None:
    for message in messages:
        replica.handle(STORAGE, message)


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
    """What a replica has written; its storage lives and dies with it."""

    def __init__(self) -> None:
        self.chain = LogEpoch(0, [], False)
        self.commands: list[Command] = []
        self.state: tuple[int, bytes] | None = None
        self.cold = ColdBatches()

    @property
    def index(self) -> int:
        if self.commands:
            return self.commands[-1].index
        return self.state[0] if self.state is not None else 0

    def write(self, message: Any) -> Any:
        """Do as a storage does; return what it answers, None: that it has written."""
        if isinstance(message, ReadRows):
            return read_rows(self.cold, message)
        if isinstance(message, LoadRow):
            return RowLoaded(message.request, self.cold.find(message.key))
        if isinstance(message, StoreRows):
            self.cold.append(message.rows)
        elif isinstance(message, LogCommands):
            self.commands += message.commands
        elif isinstance(message, LogSnapshot):
            self.state = message.index, message.data
            self.commands = [c for c in self.commands if c.index > message.index]
        else:
            assert isinstance(message, LogEpoch)
            self.chain = message
            if not message.serving:
                self.commands, self.state, self.cold = [], None, ColdBatches()
        return None

    def recover(self, machine: Machine) -> Recovered | None:
        if not self.chain.serving:
            return None
        if self.state is not None:
            machine.restore(self.state[1])
        for command in self.commands:
            machine.apply(command)
        return Recovered(machine, self.chain.epoch, self.chain.members)


class ChainWorld:
    """A master, its replicas, and clients; with `durable` each replica has a file.

    Writing takes a while, and what is not written when a replica dies is lost.
    """

    def __init__(
        self,
        seed: int,
        replicas: int,
        factories: dict[str, Factory],
        durable: bool = False,
        memory_max: int = 0,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.config = Config(
            seed=seed, gcs_replicas=replicas, gcs_durable=durable, gcs_memory_max=memory_max
        )
        self.files: dict[str, File] = {}
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
        self._started: list[str] = []
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
        kept = [
            (name, file.chain.epoch, file.index, file.chain.serving)
            for name, file in self.files.items()
            if name not in self.components
        ]
        found = ReplicasFound(list(self.replicas()), self._ended(), self.heads - 1, kept)
        self.at(self.rng.uniform(0, 0.01), partial(self._tell, MASTER, found))
        for address, component in list(self.components.items()):
            back: Any = component.report if isinstance(component, Replica) else None
            if isinstance(component, ChainClient) and address != MASTER:
                back = component.start
            if back is not None and self.heads > 1:
                self.at(self.rng.uniform(0, 0.05), partial(self.turn_of, component, address, back))

    def kill_head(self) -> None:
        """End the master; another one begins after a while, and others find it."""
        del self.components[MASTER], self.components[LAUNCHER]
        self._reset[MASTER] = self._reset[LAUNCHER] = self.time_s - self.rng.choice([-1.0, 0, 0.1])
        self.at(self.rng.uniform(0.001, 0.2), self._begin_head)

    def _ended(self) -> list[str]:
        return [name for name in self._started if name not in self.components]

    def turn_of(self, component: Any, address: str, action: Callable[[], None]) -> None:
        """Give a component a turn if it is still there."""
        if self.components.get(address) is component:
            self.turn(address, action)

    # -- the launcher's part ---------------------------------------------------

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, StopReplica):
            if message.name in self.components:
                self.kill(message.name)
            if self.rng.random() < 0.5:  # else the head is killed before, or its disk is away
                self.files.pop(message.name, None)
            return
        assert isinstance(message, StartReplica)
        name, head = message.name, self.heads
        self.at(self.rng.uniform(0.001, 0.1), lambda: self._start_replica(name, head))

    def end_turn(self) -> None:
        """Nothing is left for the end of a turn."""

    def _start_replica(self, name: str, head: int) -> None:
        if MASTER not in self.components or self.heads != head:
            return  # nobody knows any more who has asked for it
        self._started.append(name)
        # Clocks of replicas need not agree.
        ctx = self.context(name, self.rng.uniform(-100, 100))
        log, recovered = "", None
        if self.config.gcs_durable:
            file = self.files.setdefault(name, File())
            log, recovered = STORAGE, file.recover(self.machine())
        info = ReplicaInfo(name, "host", 1)
        replica = Replica(ctx, info, self.config, self.machine, log, recovered)
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
        if isinstance(component, Replica) and component.place.state is State.FENCED:
            del self.components[address]

    def _write(self, name: str, replica: Any, messages: list[Any]) -> None:
        due_s = max(self._links.get((name, STORAGE), 0.0), self.time_s + self.rng.uniform(0, 1e-3))
        self._links[name, STORAGE] = due_s

        def written() -> None:
            if self.components.get(name) is replica:
                answers = [self.files[name].write(message) for message in messages]
                said = [answer for answer in answers if answer is not None]
                if len(said) < len(answers):
                    said.append(Logged(self.files[name].index))
                self.turn(name, lambda: _take(replica, said))

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
        file = self.files.get(name)
        for address in list(self.components):
            if address != LAUNCHER:
                kept = None
                if address == MASTER and file is not None:
                    kept = name, file.chain.epoch, file.index, file.chain.serving
                lost = ReplicaLost(name, "killed", kept)
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
