"""A tiny deterministic world: the control plane's components in virtual time.

It implements `context` to the letter and as simply as can be, as
a third opinion next to the real processes and the simulator: turns, one frame
per sender, receiver and turn, links that keep order, timers that are turns of
their own. Delays are drawn from a seed, so one seed is one execution.

The data plane and the workers are fakes that check what they are told
(`data_plane`, `worker`), and the workers of a node never run more than its resources, but
for tasks that go on after they have waited (see `World.check_running`).

User code is generators, see `values.Code`; what it can do is in `shell`.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from raytwin.runtime.control.core.addresses import HEALTH, heartbeat_of, node_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import root_task_id
from raytwin.runtime.control.core.resources import parse_demand
from raytwin.runtime.control.core.worker_record import State
from raytwin.runtime.control.gcs.failure_detector import FailureDetector
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.messages import Frame, NodeUnreachable, WorkerDied
from raytwin.runtime.control.node.heartbeats import Heartbeats
from raytwin.runtime.control.node.node_manager import NodeManager
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from tests.control.data_plane import Pool, Store
from tests.control.leftovers import describe
from tests.control.shell import Shell
from tests.control.values import INLINE_BYTES_MAX

Encoder = msgspec.msgpack.Encoder()
Decoder = msgspec.msgpack.Decoder(Frame)


class Timer:
    """A callback in the future."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class WorldContext:
    """`context.Context` for one address."""

    def __init__(self, world: World, address: str) -> None:
        self.rng = random.Random(f"{world.seed}/{address}")
        self.world = world
        self.address = address
        self.outbox: dict[str, list[Any]] = {}

    def now(self) -> float:
        return self.world.time_s

    def send(self, to: str, message: Any) -> None:
        self.outbox.setdefault(to, []).append(message)

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        assert delay_s >= 0
        timer = Timer(callback)
        self.world.at(delay_s, lambda: self._fire(timer))
        return timer

    def _fire(self, timer: Timer) -> None:
        callback, timer.callback = timer.callback, None
        if callback is not None:
            self.world.turn(self.address, callback)


class World:
    """A cluster: GCS, global scheduler, nodes, their workers, and drivers."""

    def __init__(
        self,
        nodes: int | list[dict[str, float]] = 1,
        *,
        seed: int = 0,
        config: Config | None = None,
        delay_s: float = 1e-4,
        jitter: float = 1.0,
        store_bytes: int = 1 << 40,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.config = config or Config(seed=seed, inline_bytes_max=INLINE_BYTES_MAX)
        self.delay_s = delay_s
        self.jitter = jitter
        self.time_s = 0.0
        self.components: dict[str, Any] = {}
        self.contexts: dict[str, WorldContext] = {}
        self.cut: set[int] = set()
        """Nodes that nothing reaches and that reach nobody."""
        self.lost_links: set[tuple[str, str]] = set()
        """Links (source, destination) on which all is lost."""
        self.answered_together = 0
        """Calls whose results came as part of a run."""
        self.trace: list[tuple[float, str, str, Any]] = []
        """Every message that was delivered: (time, source, destination, message)."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._links: dict[tuple[str, str], float] = {}
        self.gcs = self.add("gcs", Gcs(self.context("gcs"), self.config))
        self.globals = self.add("global", GlobalScheduler(self.context("global"), self.config))
        self.health = self.add(HEALTH, FailureDetector(self.context(HEALTH), self.config))
        self.turn(HEALTH, self.health.start)
        self.nodes: dict[int, NodeManager] = {}
        self.stores: dict[int, Store] = {}
        self.pools: dict[int, Pool] = {}
        self.shells: dict[str, Shell] = {}
        rows = [{"CPU": 1.0}] * nodes if isinstance(nodes, int) else nodes
        for number, resources in enumerate(rows):
            self.add_node(number, resources, store_bytes)

    # -- wiring ----------------------------------------------------------------

    def context(self, address: str) -> WorldContext:
        made = self.contexts[address] = WorldContext(self, address)
        return made

    def add(self, address: str, component: Any) -> Any:
        self.components[address] = component
        return component

    def add_node(
        self, number: int, resources: Mapping[str, float], store_bytes: int = 1 << 40
    ) -> NodeManager:
        address = f"node:{number}"
        scheduler = NodeManager(self.context(address), number, resources, self.config)
        self.add(address, scheduler)
        heartbeat = heartbeat_of(number)
        self.add(heartbeat, Heartbeats(self.context(heartbeat), number, 1, self.config))
        self.nodes[number] = scheduler
        self.context(f"store:{number}")
        self.stores[number] = self.add(f"store:{number}", Store(self, number, store_bytes))
        self.context(f"pool:{number}")
        self.pools[number] = self.add(f"pool:{number}", Pool(self, number))
        self.turn(address, lambda: scheduler.start("localhost", 1000 + number))
        return scheduler

    def driver(self, node: int = 0, number: int = 0) -> Shell:
        shell = Shell(self, f"driver:{node}.{number}", node)
        shell.client.submitter.begin_task(root_task_id(f"{self.seed}/{node}.{number}"))
        return shell

    # -- time and turns --------------------------------------------------------

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        self._push(self.time_s + delay_s, action)

    def _push(self, due_s: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (due_s, self._sequence, action))

    def turn(self, address: str, action: Callable[[], None], end: bool = True) -> None:
        """Give a component a turn, then send what it has sent, frame by frame."""
        component = self.components.get(address)
        if component is None:
            return
        action()
        if end:
            component.end_turn()
        self._flush(address)
        if address.startswith("node:"):
            self._check_node(node_of(address))

    def _flush(self, address: str) -> None:
        ctx = self.contexts[address]
        outbox, ctx.outbox = ctx.outbox, {}
        for to, messages in outbox.items():
            # There are no connections here that could be closed.
            destination = HEALTH if to == "links" else to
            if destination.startswith("links"):
                continue
            # Through bytes, as between processes: nothing is shared by accident.
            body = Encoder.encode(Frame(address, destination, messages))
            self._transmit(address, destination, body)

    def _transmit(self, source: str, destination: str, body: bytes) -> None:
        link = (source, destination)
        if self._is_cut(source, destination) or link in self.lost_links:
            return
        delay_s = self.delay_s * (1 + self.jitter * self.rng.expovariate(1.0))
        due_s = max(self._links.get(link, 0.0), self.time_s + delay_s)
        self._links[link] = due_s
        self._push(due_s, lambda: self._arrive(source, destination, body))

    def _arrive(self, source: str, destination: str, body: bytes) -> None:
        component = self.components.get(destination)
        if component is None:
            return
        frame = Decoder.decode(body)

        def handle() -> None:
            for message in frame.messages:
                self.trace.append((self.time_s, source, destination, message))
                component.handle(source, message)

        self.turn(destination, handle)

    def _is_cut(self, source: str, destination: str) -> bool:
        ends = [node_of(address) if ":" in address else -1 for address in (source, destination)]
        return ends[0] != ends[1] and any(end in self.cut for end in ends)

    def run(self, until: Callable[[], bool] | None = None, for_s: float | None = None) -> None:
        """Run until a predicate holds (at most 200 s) or for so long."""
        end_s = self.time_s + (200.0 if for_s is None else for_s)
        while until is None or not until():
            if not self._events or self._events[0][0] > end_s:
                assert until is None, f"it hangs (seed {self.seed})\n{describe(self)}"
                self.time_s = end_s
                return
            self.time_s, _, action = heapq.heappop(self._events)
            action()

    # -- faults ----------------------------------------------------------------

    def kill_worker(self, address: str, reason: str = "killed") -> None:
        """A worker dies; what it has sent is still on its way."""
        self.components.pop(address, None)
        self.shells.pop(address, None)
        pool = f"pool:{node_of(address)}"
        self.contexts[pool].send(f"node:{node_of(address)}", WorkerDied(address, reason))
        self._flush(pool)

    def kill_node(self, node: int, noticed: bool = True) -> None:
        """A node is gone, noticed or merely silent; what it has sent still arrives."""
        self._remove(node)
        if noticed:
            self._transmit("gcs", "gcs", self._unreachable_frame(node))

    def cut_node(self, node: int) -> None:
        """A node lives on, alone; what was sent before still arrives."""
        self.cut.add(node)

    def _unreachable_frame(self, node: int) -> bytes:
        return Encoder.encode(Frame("gcs", "gcs", [NodeUnreachable(node, "connection lost", 1)]))

    def _remove(self, node: int) -> None:
        for address in list(self.components):
            if ":" in address and node_of(address) == node:
                del self.components[address]
        for address in list(self.shells):
            if node_of(address) == node:
                del self.shells[address]
        for table in (self.nodes, self.stores, self.pools):
            del table[node]

    # -- what must hold --------------------------------------------------------

    def _check_node(self, node: int) -> None:
        """The node's own books are right, and its workers keep to them."""
        scheduler = self.nodes.get(node)
        if scheduler is None:
            return
        pool = scheduler.pool
        held: Counter[str] = Counter()
        for worker in scheduler.dispatcher.workers.values():
            for name, units in parse_demand(worker.demand):
                if name != "CPU" or worker.state is not State.BLOCKED:
                    held[name] += units
        for name, units in pool.free.items():
            assert units == pool.total[name] - held[name], f"{name}: {units} free, {held} held"
            assert units >= 0 or name == "CPU", f"{name}: {units} free"
        if not pool.is_over("CPU:1"):
            for shell in self.shells.values():
                if shell.node == node:
                    shell.went_on = False
        assert scheduler.inputs.waiting >= 0
        assert scheduler.leases.assigned == sum(
            spec.count
            for worker in scheduler.dispatcher.workers.values()
            for spec in worker.assigned
        )
        self.check_running(node)

    def check_running(self, node: int) -> None:
        """What runs on the node now does not need more than there is, but for the CPUs of
        tasks that have waited and gone on since all that the node had leased fitted last."""
        used: Counter[str] = Counter()
        for shell in self.shells.values():
            if shell.node == node and shell.demand is not None:
                for name, units in parse_demand(shell.demand):
                    if name != "CPU" or not (shell.waits or shell.went_on):
                        used[name] += units
        total = self.nodes[node].pool.total
        for name, units in used.items():
            assert units <= total[name], f"{name} of node {node} is oversubscribed: {used}"
