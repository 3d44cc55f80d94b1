"""A tiny deterministic world: the control plane's components in virtual time.

It implements `runtime.control.context` to the letter and as simply as can be, as
a third opinion next to the real processes and the simulator: turns, one frame
per sender, receiver and turn, links that keep order, timers that are turns of
their own. Delays are drawn from a seed, so one seed is one execution.

``store:<n>``, ``pool:<n>`` and the workers are fakes that check what they are
told: memory is freed once and only if it was allocated, a value is read only
where it lies, and the workers of a node never run more than its resources.

User code is generators. They yield a number (sleep so long) or a predicate (wait
until it holds); `Shell` offers what `runtime.backend` offers to real user code.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import Any

import msgspec

from runtime.control.call_runs import split
from runtime.control.client import Client
from runtime.control.config import Config
from runtime.control.context import node_of
from runtime.control.executor import Executor
from runtime.control.gcs import Gcs
from runtime.control.global_scheduler import GlobalScheduler
from runtime.control.ids import object_id, root_task_id, task_id
from runtime.control.local_scheduler import LocalScheduler
from runtime.control.messages import (
    OK,
    USER_ERROR,
    ActorInfo,
    Allocate,
    Allocated,
    Assignment,
    DirectCall,
    DropSpilled,
    Exit,
    Fetch,
    Fetched,
    Frame,
    Free,
    FunctionBlob,
    KillWorker,
    NodeUnreachable,
    NoRoom,
    ObjectValue,
    RangeResult,
    RestoreActor,
    Resume,
    RunTasks,
    Spill,
    Spilled,
    StartWorker,
    StopWorker,
    TakeBack,
    TaskExtra,
    TaskResults,
    TaskSpec,
    Timing,
    WorkerDied,
)
from runtime.control.resources import UNIT, parse_demand

FUNCTION = b"the-one-function"
INLINE_BYTES_MAX = 100
"""Every cluster of these tests; values say how large they are."""

Code = Generator[Any, None, Any]
Encoder = msgspec.msgpack.Encoder()
Decoder = msgspec.msgpack.Decoder(Frame)


class TaskFailed(Exception):
    """What a result with an error is raised as; `text` is its payload."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Timer:
    """A callback in the future."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class WorldContext:
    """`runtime.control.context.Context` for one address."""

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
        direct_to: str = "",
    ) -> None:
        """`direct_to`: a driver that the workers of node 0 can reach without the node."""
        self.seed = seed
        self.direct_to = direct_to
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
        self.turn("gcs", self.gcs.start)
        self.nodes: dict[int, LocalScheduler] = {}
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
    ) -> LocalScheduler:
        address = f"node:{number}"
        scheduler = LocalScheduler(self.context(address), number, resources, self.config)
        self.add(address, scheduler)
        self.nodes[number] = scheduler
        self.context(f"store:{number}")
        self.stores[number] = self.add(f"store:{number}", Store(self, number, store_bytes))
        self.context(f"pool:{number}")
        self.pools[number] = self.add(f"pool:{number}", Pool(self, number))
        self.turn(address, lambda: scheduler.start("localhost", 1000 + number))
        return scheduler

    def driver(self, node: int = 0, number: int = 0) -> Shell:
        shell = Shell(self, f"driver:{node}.{number}", node, worker=False)
        shell.client.begin_task(root_task_id(f"{self.seed}/{node}.{number}"))
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
        for destination, messages in outbox.items():
            if destination.startswith("links"):
                continue  # there are no connections here that could be closed
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
                assert until is None, f"it hangs (seed {self.seed})\n{self.describe()}"
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
        return Encoder.encode(Frame("gcs", "gcs", [NodeUnreachable(node, "connection lost")]))

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
        for name, units in pool.free.items():
            assert 0 <= units <= pool.total[name], f"{name}: {units} free of {pool.total[name]}"
        assert scheduler.inputs.waiting >= 0
        assert scheduler.dispatcher.assigned == sum(
            spec.count
            for worker in scheduler.dispatcher.workers.values()
            for spec in worker.assigned
        )
        self.check_running(node)

    def check_running(self, node: int) -> None:
        """What runs on the node now does not need more than there is."""
        used: Counter[str] = Counter()
        for shell in self.shells.values():
            if shell.node == node and shell.demand is not None:
                for name, units in parse_demand(shell.demand):
                    if name != "CPU" or not shell.waits:
                        used[name] += units
        total = self.nodes[node].pool.total
        for name, units in used.items():
            assert units <= total[name], f"{name} of node {node} is oversubscribed: {used}"

    def leftovers(self) -> dict[str, Any]:
        """Return every table that is not empty; what an idle cluster must not have."""
        found: dict[str, Any] = {}

        def look(owner: str, thing: Any, *names: str) -> None:
            for name in names:
                value = getattr(thing, name)
                if value:
                    found[f"{owner}.{name}"] = value

        look("gcs", self.gcs, "arrays")
        look("gcs", self.gcs.table, "tombstones", "waited")
        look("gcs", self.gcs.table.lineage, "uses", "kept", "needed")
        standing = ("nodes", "jobs")
        channels = {k: who for k, who in self.gcs.pubsub._channels.items() if k not in standing}
        if channels:
            found["gcs.pubsub"] = channels
        look("gcs.actors", self.gcs.actors, "rows", "names")
        look("global", self.globals, "_locating", "infeasible")
        look("global.actors", self.globals._actors, "_placed")
        for number, scheduler in self.nodes.items():
            if number in self.cut:
                continue
            at = f"node:{number}"
            look(at, scheduler, "queue", "places", "orphans")
            look(at, scheduler.owned, "actors", "lent", "ends")
            look(at, scheduler.inputs, "waiting", "awaiting", "failed", "_for_function", "_claims")
            look(at, scheduler.dispatcher, "assigned", "_resuming")
            look(at, scheduler.results, "_for_others", "_heirs", "_told")
            look(f"{at}.actors", scheduler.actors, "actors", "queued", "_dirty")
            look(f"{at}.router", scheduler.router, "_under_way", "_dirty", "_watch", "_acking")
            look(f"{at}.router", scheduler.router, "_draining")
            for actor in scheduler.actors.actors.values():
                look(f"{at}.actor", actor, "early")
            for route in scheduler.router._routes.values():
                look(f"{at}.route", route, "waiting", "sent", "out", "probes", "received")
            if scheduler.pool.free != scheduler.pool.total:
                found[f"{at}.pool"] = scheduler.pool.free
            look(
                at, scheduler.objects, "owners", "others", "_owned", "_results", "_runs", "_stored",
                "_stored_of", "_pins", "_doomed", "_wanted", "_wanted_of", "_fetching", "_pulling",
                "_ranks", "_until_s", "_primary", "_dropped",
            )  # fmt: skip
            look(
                f"{at}.eviction", scheduler.objects.eviction, "_sizes", "_idle", "_claims",
                "_spilling", "on_disk", "_requests", "stored_bytes", "_idle_bytes", "spilled_bytes",
            )  # fmt: skip
            look(
                at, scheduler.log, "_added", "_done", "_large", "_copies", "_released", "_known",
                "_exposed", "_puts", "_deps", "_uses", "_kept",
            )  # fmt: skip
            look(f"store:{number}", self.stores[number], "places", "disk")
        for address, shell in self.shells.items():
            if shell.node not in self.cut:
                look(
                    address, shell.client, "entries", "borrowed", "local", "allocations",
                    "_views", "_unpin_later", "_object_waiters", "_submitted", "_puts",
                    "_run_arrays",
                )  # fmt: skip
                if shell.executor is not None:
                    look(address, shell.executor, "direct")
        return found

    def describe(self) -> str:
        """Return what is left to do, for the message of a failure."""
        rows = [f"time {self.time_s:.4f}"]
        rows += [f"{name}: {value!r}"[:400] for name, value in self.leftovers().items()]
        for number, scheduler in self.nodes.items():
            for worker in scheduler.dispatcher.workers.values():
                assigned = [(s.array.hex()[:6], s.start, s.count) for s in worker.assigned]
                rows.append(f"node {number} {worker.address} {worker.state} {assigned}")
        return "\n".join(rows)


class Store:
    """``store:<n>``: memory by the byte, and what lies where."""

    def __init__(self, world: World, node: int, capacity: int) -> None:
        self.world = world
        self.node = node
        self.capacity = capacity
        self.free_bytes = capacity
        self.disk: dict[int, tuple[bytes, int, Any]] = {}
        """Place -> (object, size, value)."""
        self.spills = 0
        self.places: dict[int, tuple[bytes, int]] = {}
        """Offset -> (object, size)."""
        self.values: dict[int, Any] = {}
        self._next = 0

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, Allocate):
            offset = self.allocate(message.object, message.size)
            if offset >= 0:
                self._tell(Allocated(message.object, offset, message.client))
            else:
                self._tell(self._full(message.object, message.size, message.client))
        elif isinstance(message, Free):
            oid, size = self.places.pop(message.offset)
            assert oid == message.object, "another object's memory was freed"
            self.values.pop(message.offset, None)
            self.free_bytes += size
        elif isinstance(message, Spill):
            value = self.read(message.object, message.offset, message.size)
            took_s = self.world.delay_s * (1 + 20 * self.world.rng.random())
            self.world.at(took_s, lambda: self._spilled(message, value))
        elif isinstance(message, DropSpilled):
            oid, _, _ = self.disk.pop(message.place)
            assert oid == message.object, "another object's disk space was freed"
        else:
            assert isinstance(message, Fetch)
            rng, delay_s = self.world.rng, self.world.delay_s
            took_s = delay_s * (1 + 20 * rng.random())
            self.world.at(took_s, lambda: self._fetched(message, took_s))

    def end_turn(self) -> None:
        pass

    def allocate(self, oid: bytes, size: int) -> int:
        if size > self.free_bytes:
            return -1
        self.free_bytes -= size
        self._next += size
        self.places[self._next] = (oid, size)
        return self._next

    def read(self, oid: bytes, offset: int, size: int) -> Any:
        assert self.places.get(offset) == (oid, size), "memory was read that is not the object's"
        return self.values[offset]

    def _tell(self, message: Any) -> None:
        ctx = self.world.contexts[f"store:{self.node}"]
        ctx.send(f"node:{self.node}", message)

    def _fetched(self, message: Fetch, took_s: float) -> None:
        if self.world.stores.get(self.node) is not self:
            return
        answer: Any
        if message.node in self.world.cut or self.node in self.world.cut:
            held = None
        else:
            held = self._held_by(message)
        if held is None:
            reason = "it is not there any more"
            answer = Fetched(message.object, -1, message.size, took_s, reason, message.node)
        else:
            offset = self.allocate(message.object, message.size)
            if offset < 0:
                answer = self._full(message.object, message.size, node=message.node)
            else:
                self.values[offset] = held[0]
                answer = Fetched(message.object, offset, message.size, took_s, "", message.node)
        self.world.turn(f"store:{self.node}", lambda: self._tell(answer))

    def _held_by(self, message: Fetch) -> tuple[Any] | None:
        """Return the value that the other store has, in memory or on disk."""
        source = self.world.stores.get(message.node)
        if source is None:
            return None
        if source is not self:
            for at, place in source.places.items():
                if place == (message.object, message.size) and at in source.values:
                    return (source.values[at],)
        for oid, size, value in source.disk.values():
            if (oid, size) == (message.object, message.size):
                return (value,)
        return None

    def _spilled(self, message: Spill, value: Any) -> None:
        if self.world.stores.get(self.node) is not self:
            return
        self._next += 1
        self.disk[self._next] = (message.object, message.size, value)
        self.spills += 1
        answer = Spilled(message.object, message.offset, message.size, self._next)
        self.world.turn(f"store:{self.node}", lambda: self._tell(answer))

    def _full(self, oid: bytes, size: int, client: str = "", node: int = -1) -> NoRoom:
        return NoRoom(oid, size, self.capacity, self.free_bytes, client, node)


class Pool:
    """``pool:<n>``: starts workers, after a while."""

    START_S = 0.002

    def __init__(self, world: World, node: int) -> None:
        self.world = world
        self.node = node

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, StartWorker):
            self.world.at(self.START_S, lambda: self._start(message.worker))
        else:
            assert isinstance(message, (KillWorker, StopWorker))
            self.world.kill_worker(message.worker, "not needed any more")

    def end_turn(self) -> None:
        pass

    def _start(self, address: str) -> None:
        if self.world.pools.get(self.node) is self:
            Shell(self.world, address, self.node, worker=True)


# -- user code -----------------------------------------------------------------

_FOR_EXECUTOR = (RunTasks, FunctionBlob, TakeBack, Resume, RestoreActor, Exit, DirectCall)
DUE_S = 0.005


class Ref:
    """One reference; `drop` stands in for the garbage collector."""

    def __init__(self, shell: Shell, oid: bytes) -> None:
        self.oid = oid
        self.shell = shell
        self.alive = True
        shell.client.add_ref(oid)

    def drop(self) -> None:
        assert self.alive
        self.alive = False
        self.shell.client.drop_ref(self.oid)


class Shell:
    """A driver or a worker: `Client`, perhaps `Executor`, and user code."""

    def __init__(self, world: World, address: str, node: int, worker: bool) -> None:
        self.world = world
        self.address = address
        self.node = node
        ctx = self.ctx = world.context(address)
        self.client = Client(ctx, address, node, world.config)
        self.executor = Executor(ctx, node, world.config) if worker else None
        self.results: Counter[tuple[bytes, int]] = Counter()
        """How often the result of each element came."""
        self.demand: str | None = None
        """Of the running task."""
        self.waits = False
        """It is in `get` and has given up its CPU."""
        self.running: bytes = b""
        self.history: list[int] | None = None
        """The state of an actor."""
        self._info = ActorInfo()
        self._extras: dict[tuple[bytes, int], TaskExtra] = {}
        """Of calls without inputs, by actor and retries."""
        self._calls = 0
        self._code: Code | None = None
        self._done: Callable[[Any], None] | None = None
        self._until: Callable[[], bool] | None = None
        self._busy = False
        world.add(address, self)
        world.shells[address] = self
        self.node_store = world.stores[node]
        if self.executor is not None:
            executor = self.executor
            executor.before_results = self.client.flush
            if not node:
                executor.direct_to = world.direct_to
            executor.pack = msgspec.msgpack.encode
            world.turn(address, lambda: executor.start(1))
            self.start(self._work())

    # -- as a component --------------------------------------------------------

    def handle(self, source: str, message: Any) -> None:
        if self.executor is not None and isinstance(message, _FOR_EXECUTOR):
            self.executor.handle(source, message)
            return
        if isinstance(message, TaskResults):
            for result in message.results:
                for array in split(result.calls):
                    self.results[array, 0] += 1
                    self.world.answered_together += 1
                if result.calls:
                    continue
                for index in range(result.start, result.start + result.count):
                    self.results[result.array, index] += 1
        self.client.handle(source, message)

    def end_turn(self) -> None:
        self.client.end_turn()
        if self.executor is not None:
            self.executor.end_turn()
        if self._until is not None and not self._busy and self._until():
            self._until = None
            self._advance()

    # -- coroutines ------------------------------------------------------------

    def start(self, code: Code, done: Callable[[Any], None] | None = None) -> None:
        """Run user code; it has this shell for itself."""
        assert self._code is None
        self._code = code
        self._done = done
        self.world.at(0.0, lambda: self._resume(self))

    def call(self, code: Code) -> Any:
        """Run a driver's code to its end; return what it returns, raise `TaskFailed`."""
        box: list[Any] = []

        def guarded() -> Code:
            # The turn in which it fails is a turn like any other.
            try:
                return (yield from code)
            except TaskFailed as error:
                return error

        self.start(guarded(), box.append)
        self.world.run(until=lambda: bool(box))
        if isinstance(box[0], TaskFailed):
            raise box[0]
        return box[0]

    def _resume(self, me: Shell) -> None:
        if self.world.components.get(self.address) is me:
            self.world.turn(self.address, self._advance)

    def _advance(self) -> None:
        self._busy = True
        try:
            assert self._code is not None
            while True:
                try:
                    wait = next(self._code)
                except StopIteration as stop:
                    self._code = None
                    if self._done is not None:
                        self._done(stop.value)
                    return
                if callable(wait):
                    if wait():
                        continue
                    self._until = wait
                    return
                self.world.at(wait, lambda: self._resume(self))
                return
        finally:
            self._busy = False
            if self.executor is not None and self.node in self.world.nodes:
                self.world.check_running(self.node)

    # -- what user code can do -------------------------------------------------

    def submit(
        self,
        body: Any,
        *,
        deps: Iterable[bytes] = (),
        returns: int = 1,
        demand: str = "CPU:1",
        retries: int = 3,
    ) -> list[Ref]:
        """Submit one task; `body` is what `run_body` will run."""
        self._export()
        array = self._next_array()
        spec = TaskSpec(
            array, 0, 1, FUNCTION, msgspec.msgpack.encode([body]), self.address, demand,
            tuple(deps), returns, retries, -1, "task",
        )  # fmt: skip
        self.client.submit(array, [spec], 1, returns)
        return [Ref(self, object_id(array, 0, ret)) for ret in range(returns)]

    def create_actor(
        self,
        *,
        restarts: int = 0,
        interval: int = 0,
        demand: str = "",
        deps: Iterable[bytes] = (),
        fail: str = "",
    ) -> Ref:
        """Start an actor whose state is the list of what `tell` told it."""
        self._export()
        array = self._next_array()
        body = msgspec.msgpack.encode([{"fail": fail} if fail else {}])
        spec = TaskSpec(
            array, 0, 1, FUNCTION, body, self.address, demand, tuple(deps), 1, 0, -1, "Actor",
            TaskExtra(actor=ActorInfo(restarts, 1, interval)),
        )  # fmt: skip
        self.client.submit(array, [spec], 1, 1, keeper=array if restarts else b"")
        return Ref(self, object_id(array, 0, 0))

    def tell(
        self,
        actor: bytes,
        body: Any,
        *,
        deps: Collection[bytes] = (),
        retries: int = 0,
        restarts: int = 0,
    ) -> Ref:
        """Call the actor of this object; `body` as for a task, and a ``tag`` to remember."""
        array = self._next_array()
        to = actor[: len(array)]
        args = msgspec.msgpack.encode([body])
        keeper = to if restarts else b""
        if not deps:
            # The same object for all such calls, as an actor's handle has it.
            extra = self._extras.setdefault((to, retries), TaskExtra(call=to, method="tell"))
            self.client.call(array, extra, "Actor.tell", retries, args, actor, keeper)
            return Ref(self, object_id(array, 0, 0))
        spec = TaskSpec(
            array, 0, 1, b"", args, self.address, "", tuple(deps), 1,
            retries, -1, "Actor.tell", TaskExtra(call=to, method="tell"),
        )  # fmt: skip
        self.client.submit(array, [spec], 1, 1, (actor,), keeper)
        return Ref(self, object_id(array, 0, 0))

    def map(
        self, bodies: list[Any], *, demand: str = "CPU:1", retries: int = 3, chunk: int = 1 << 30
    ) -> list[bytes]:
        """Submit an array and return its objects; the first one is referenced."""
        self._export()
        array = self._next_array()
        specs = [
            TaskSpec(
                array, at, len(bodies[at : at + chunk]), FUNCTION,
                msgspec.msgpack.encode(bodies[at : at + chunk]), self.address, demand, (), 1,
                retries, at, "task",
            )
            for at in range(0, len(bodies), chunk)
        ]  # fmt: skip
        self.client.submit(array, specs, len(bodies), 1)
        return [object_id(array, index, 0) for index in range(len(bodies))]

    def put(self, value: Any, size: int = 0) -> Code:
        """Generator: put a value of so many bytes and return a `Ref`."""
        array = self._next_put()
        oid = object_id(array, 0, 0)
        if size <= INLINE_BYTES_MAX:
            result = RangeResult(array, 0, 1, OK, msgspec.msgpack.encode([value]), self.node)
        else:
            offset = yield from self._allocate(oid, value, size)
            result = RangeResult(array, 0, 1, OK, b"", self.node, 1, (size,), (offset,))
        self.client.put(result)
        return Ref(self, oid)

    def get(self, oids: list[bytes]) -> Code:
        """Generator: wait for objects, return their values, raise `TaskFailed`."""
        self.client.flush()
        waiter = self.client.watch(oids)
        for oid in oids:
            self.client.add_view(oid)
        yield from self._wait(lambda: not waiter.missing)
        try:
            return [self.value(oid) for oid in oids]
        finally:
            for oid in oids:
                self.client.drop_view(oid)

    def value(self, oid: bytes) -> Any:
        value = self.client.value(oid)
        assert value is not None, "a value vanished while it was awaited"
        return self.decode(value)

    def decode(self, value: ObjectValue) -> Any:
        if value.status != OK:
            raise TaskFailed(value.status, value.payload.decode())
        if not value.size:
            return msgspec.msgpack.decode(value.payload)[value.position]
        return self.node_store.read(value.object, value.offset, value.size)

    def _allocate(self, oid: bytes, value: Any, size: int) -> Code:
        waiter = self.client.allocate(oid, size)
        yield lambda: not waiter.missing
        offset = self.client.allocations.pop(oid)
        if offset < 0:
            reason = self.client.full_reasons.pop(oid)
            raise TaskFailed(USER_ERROR, f"ObjectStoreFullError: {reason}")
        self.node_store.values[offset] = value
        return offset

    def _wait(self, ready: Callable[[], bool]) -> Code:
        if ready():
            return
        executor = self.executor
        if executor is None:
            yield ready
            return
        executor.block()
        self.waits = True
        yield ready
        executor.unblock()
        yield lambda: not executor.suspended
        self.waits = False

    def _export(self) -> None:
        self.client.export(FUNCTION, b"blob")

    def _enter(self) -> None:
        if self.executor is not None and self.executor.running is not None:
            running = task_id(self.executor.running.array, self.executor.current())
            if running != self.running:
                self.running = running
                self.client.begin_task(running)

    def _next_array(self) -> bytes:
        self._enter()
        return self.client.next_array()

    def _next_put(self) -> bytes:
        self._enter()
        return self.client.next_put()

    # -- a worker's life: as `runtime.processes.worker` and `backend.execution` --

    def _work(self) -> Code:
        executor = self.executor
        assert executor is not None
        while True:
            assignment = executor.next()
            if assignment is None:
                self.client.flush()
                yield lambda: bool(executor.queue)
                continue
            self.running = b""
            extra = assignment.spec.extra
            if extra is not None and (extra.actor is not None or extra.call):
                yield from self._run_actor(assignment, extra)
                continue
            assert assignment.spec.function in executor.functions
            self.demand = assignment.spec.demand
            if assignment.spec.first < 0:
                yield from self._run_call(assignment)
            else:
                yield from self._run_range(assignment.spec)
            self.demand = None

    def _run_actor(self, assignment: Assignment, extra: TaskExtra) -> Code:
        """As `runtime.backend.actor_execution`."""
        executor = self.executor
        assert executor is not None
        if extra.actor is not None:
            assert self.history is None, "two actors on one worker"
            executor.actor = True
            self.history, self._info = [], extra.actor
            self.demand = assignment.spec.demand
            yield from self._run_call(assignment)
            return
        assert self.history is not None, "a call without an actor"
        if executor.restore is not None:
            assert not self.history, "a state on top of another"
            self.history = msgspec.msgpack.decode(executor.restore.state)
            self._calls, executor.restore = executor.restore.calls, None
        yield from self._run_call(assignment)
        self._calls += 1
        if self._info.checkpoint_interval and self._calls % self._info.checkpoint_interval == 0:
            executor.save(self._calls, msgspec.msgpack.encode(self.history))

    def _run_call(self, assignment: Assignment) -> Code:
        spec = assignment.spec
        started_s = self.ctx.now()
        views = [value.object for value in assignment.values if value.size]
        try:
            inputs = [self.decode(value) for value in assignment.values]
            for oid in views:
                self.client.add_view(oid)
            body = msgspec.msgpack.decode(spec.args)[0]
            values = yield from run_body(self, body, inputs)
            if spec.returns == 1:
                values = [values]
            for oid in views:
                self.client.drop_view(oid)
        except TaskFailed as error:
            for oid in views:
                self.client.drop_view(oid)
            self.unpin_inputs(assignment)
            self._report(spec, error.text.encode(), started_s, 1, USER_ERROR)
            return
        self.unpin_inputs(assignment)
        yield from self._report_one(spec, 0, values, started_s)

    def _is_simple(self, spec: TaskSpec) -> bool:
        """Whether a small result of it may be reported as part of a run."""
        if spec.extra is None:
            return spec.first < 0 and not spec.start and spec.returns == 1
        return bool(spec.extra.call) and not self._info.max_restarts

    def unpin_inputs(self, assignment: Assignment) -> None:
        """The pins that came with the assignment are not needed any more."""
        for value in assignment.values:
            if value.size:
                self.client.unpin(value.object)

    def _run_range(self, spec: TaskSpec) -> Code:
        executor = self.executor
        assert executor is not None
        bodies = msgspec.msgpack.decode(spec.args)
        started_s = self.ctx.now()
        while executor.running is spec:
            due_s = self.ctx.now() + DUE_S
            error: TaskFailed | None = None
            try:
                for body in bodies[executor.base - spec.first : executor.limit - spec.first]:
                    value = yield from run_body(self, body, [])
                    executor.values.append(value)
                    if executor.alerts or self.ctx.now() >= due_s:
                        break
            except TaskFailed as failed:
                error = failed
            executor.alerts.clear()
            values = list(executor.values)
            if any(_size_of(value) for value in values):
                for value in values:
                    yield from self._report_one(spec, executor.base, [value], started_s)
            elif values:
                payload = msgspec.msgpack.encode(values)
                self._report(spec, payload, started_s, len(values))
            if error is not None:
                self._report(spec, error.text.encode(), started_s, 1, USER_ERROR)
            started_s = self.ctx.now()

    def _report_one(self, spec: TaskSpec, index: int, values: list[Any], started_s: float) -> Code:
        sizes, offsets, small = [], [], []
        for ret, value in enumerate(values):
            size = _size_of(value)
            offset = -1
            if size:
                oid = object_id(spec.array, index, ret)
                try:
                    offset = yield from self._allocate(oid, value, size)
                except TaskFailed as full:
                    for earlier, offset in enumerate(offsets):
                        if offset >= 0:
                            self.client.abandon(object_id(spec.array, index, earlier))
                    self._report(spec, full.text.encode(), started_s, 1, USER_ERROR)
                    return
            sizes.append(size)
            offsets.append(offset)
            small.append(None if size else value)
        payload = msgspec.msgpack.encode(small)
        if any(sizes):
            self._report(spec, payload, started_s, 1, OK, tuple(sizes), tuple(offsets))
        elif self._is_simple(spec):
            # It must not change until it is encoded.
            (value,) = msgspec.msgpack.decode(payload)
            executor = self.executor
            assert executor is not None
            executor.report_plain(spec, value, len(payload), started_s, self.ctx.now())
        else:
            self._report(spec, payload, started_s, 1)

    def _report(
        self,
        spec: TaskSpec,
        payload: bytes,
        started_s: float,
        count: int,
        status: int = OK,
        sizes: tuple[int, ...] = (),
        offsets: tuple[int, ...] = (),
    ) -> None:
        executor = self.executor
        assert executor is not None
        result = RangeResult(
            spec.array, executor.base, count, status, payload, self.node, spec.returns, sizes,
            offsets,
        )  # fmt: skip
        took_s = self.ctx.now() - started_s
        executor.report(result, Timing(spec.name, started_s, took_s, count))


def _size_of(value: Any) -> int:
    """A value is a number, or a number with a size: ``[number, bytes]``."""
    return value[1] if isinstance(value, list) and value[1] > INLINE_BYTES_MAX else 0


def number_of(value: Any) -> int:
    """Return the number in a value."""
    return value[0] if isinstance(value, list) else value


def units(amount: float) -> int:
    """Return an amount in the pool's own units."""
    return round(amount * UNIT)


# -- programs ------------------------------------------------------------------
#
# A task's body is a dictionary, all keys optional:
#   salt    number that goes into the value
#   s       seconds that it runs
#   size    bytes of its value
#   fail    it raises this text
#   steps   a program (below) that it runs; the sum goes into its value
#   returns how many values it returns
#   tell    calls of actors that it makes: [actor, tag, retries, restarts] each
# and for a call of an actor:
#   tag     number that the actor remembers; its value is how many it has then
#   read    its value is all it remembers
#
# A program is a list of steps:
#   {"do": "call", "body": ..., "deps": [[step, element], ...], "demand": ...}
#   {"do": "map", "bodies": [...], "chunk": ...}
#   {"do": "put", "salt": ..., "size": ...}
#   {"do": "get", "step": ...}          waits for all elements of a step
#   {"do": "sleep", "s": ...}
#   {"do": "drop", "step": ...}         waits for a step, then lets go of its references
#   {"do": "forget", "step": ...}       lets go of them at once; it does not count

MODULUS = 1_000_003


def run_body(shell: Shell, body: Any, inputs: list[Any]) -> Code:
    """Run a task's body and return its value (or values)."""
    total = body.get("salt", 0) + sum(3 * number_of(value) for value in inputs)
    if body.get("s"):
        yield body["s"]
    if "steps" in body:
        total += yield from run_program(shell, body["steps"])
    if "tell" in body:
        refs = [
            shell.tell(actor, {"tag": tag}, retries=retries, restarts=restarts)
            for actor, tag, retries, restarts in body["tell"]
        ]
        try:
            yield from shell.get([ref.oid for ref in refs])
        finally:
            for ref in refs:
                ref.drop()
    if shell.history is not None and "tag" in body:
        shell.history.append(body["tag"])
        total = len(shell.history)
    if shell.history is not None and "read" in body:
        return {"history": shell.history}
    if "fail" in body:
        raise TaskFailed(USER_ERROR, body["fail"])
    total %= MODULUS
    values = [
        [total + ret, body["size"]] if body.get("size", 0) else total + ret
        for ret in range(body.get("returns", 1))
    ]
    return values if "returns" in body else values[0]


def run_program(shell: Shell, steps: list[Any]) -> Code:
    """Run a program, let go of all of it, and return the sum of its values."""
    objects: dict[int, list[bytes]] = {}
    refs: dict[int, list[Ref]] = {}
    numbers: dict[int, list[int]] = {}
    failed: TaskFailed | None = None

    def collect(at: int) -> Code:
        if at not in numbers:
            got = yield from shell.get(objects[at])
            numbers[at] = [number_of(value) for value in got]

    for at, step in enumerate(steps):
        what = step["do"]
        if what == "call":
            deps = [objects[d][element % len(objects[d])] for d, element in step.get("deps", ())]
            body = step["body"]
            refs[at] = shell.submit(
                body, deps=deps, returns=body.get("returns", 1),
                demand=step.get("demand", "CPU:1"), retries=step.get("retries", 3),
            )  # fmt: skip
            objects[at] = [ref.oid for ref in refs[at]]
        elif what == "map":
            objects[at] = shell.map(
                step["bodies"], chunk=step.get("chunk", 1 << 30),
                demand=step.get("demand", "CPU:1"), retries=step.get("retries", 3),
            )  # fmt: skip
            refs[at] = [Ref(shell, objects[at][0])]
        elif what == "put":
            size = step.get("size", 0)
            value = [step["salt"], size] if size else step["salt"]
            ref = yield from shell.put(value, size)
            objects[at], refs[at] = [ref.oid], [ref]
        elif what == "sleep":
            yield step["s"]
        elif what == "forget":
            target = step["step"]
            numbers.pop(target, None)
            del objects[target]
            for ref in refs.pop(target):
                ref.drop()
        else:
            target = step["step"]
            try:
                yield from collect(target)
            except TaskFailed as error:
                failed = failed or error
                numbers[target] = [0] * len(objects[target])
            if what == "drop":
                for ref in refs.pop(target, ()):
                    ref.drop()
    for at in objects:
        try:
            yield from collect(at)
        except TaskFailed as error:
            failed = failed or error
    for held in refs.values():
        for ref in held:
            ref.drop()
    if failed is not None:
        raise failed
    return sum(sum(row) for row in numbers.values())


def sequential(steps: list[Any]) -> int:
    """Return what `run_program` must return: the oracle."""
    values: dict[int, list[int]] = {}
    for at, step in enumerate(steps):
        if step["do"] == "call":
            inputs = [values[d][e % len(values[d])] for d, e in step.get("deps", ())]
            values[at] = _sequential_body(step["body"], inputs)
        elif step["do"] == "map":
            values[at] = [_sequential_body(body, [])[0] for body in step["bodies"]]
        elif step["do"] == "put":
            values[at] = [step["salt"]]
        elif step["do"] == "forget":
            del values[step["step"]]
    return sum(sum(row) for row in values.values())


def _sequential_body(body: Any, inputs: list[int]) -> list[int]:
    total = body.get("salt", 0) + sum(3 * value for value in inputs)
    if "steps" in body:
        total += sequential(body["steps"])
    return [total % MODULUS + ret for ret in range(body.get("returns", 1))]
