"""A simulated process: a single-threaded server that runs components in turns.

`SimContext` is the simulator's implementation of `context.Context`. Frames that
arrive wait in the inbox. When the process is free it takes all of them, gives the components their
turns (see `control.core.turns`), and is busy for the cost of these (see `costs`) before its frames
leave. So frames that arrive meanwhile form a batch, as on a real
socket.

If all cores of the host are busy, the process first waits for one, and takes
all frames that have arrived by then.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Protocol

from simpy import Event
from simpy.events import NORMAL

from raytwin.runtime.control.core.addresses import Address
from raytwin.runtime.control.core.context import Component
from raytwin.runtime.control.core.turns import Received, Turns
from raytwin.runtime.journal import Journal
from raytwin.simulator.machine.clock import Clock
from raytwin.simulator.machine.costs import CostModel
from raytwin.simulator.machine.host import Processor
from raytwin.simulator.machine.observer import Observer

LONG_TURN_S = 1.0
"""A longer turn counts as progress (`working`): the turn of a heartbeat never takes so long."""

Frame = tuple[str, str, list[Any], int]
"""Source, destination, messages, bytes."""


@dataclass(slots=True)
class Counts:
    """Counts over all components that have had one role.

    A *role* is the kind of a component's address: ``gcs`` and ``global`` (both in the
    head's process), ``node``, ``store``, ``worker``, ``driver``, ... Replicas
    of the GCS have the role ``replica``. Counting takes no virtual time.
    """

    turns: int = 0
    messages: int = 0
    """Received, from other processes and from components of the same one."""
    frames: int = 0
    """Sent to other processes."""
    bytes: int = 0
    """Sum of the sizes of these frames."""


def role_of(address: Address) -> str:
    """Return the role of a component.

    >>> role_of("node:3"), role_of("worker:3.7"), role_of("gcs"), role_of("gcs.2")
    ('node', 'worker', 'gcs', 'gcs')
    """
    return address.partition(":")[0].partition(".")[0]


class ProcessPort(Protocol):
    """The interface of the cluster for its processes."""

    env: Clock
    seed: int
    journal: Journal | None
    journaled: set[str]
    """Addresses of the components whose turns the journal records."""
    counts: defaultdict[str, Counts]
    """By role."""
    processes: dict[str, SimProcess]
    """By the address of each component: the process in which it runs."""
    incarnations: dict[int, int]
    """By node: how many times it was started."""
    skews_s: dict[int, float]
    """By node whose clock was set: how far it is ahead of virtual time."""
    observer: Observer | None
    on_turn: list[Callable[[str, Received, Mapping[str, Sequence[Any]]], None]]
    """Called after each turn of a component: its address, what it received, and its messages by
    receiver."""
    working: int
    """The number of operations that will end by themselves; until it is 0, nothing is stuck."""

    def transmit(
        self, sender: SimProcess, source: str, destination: str, messages: list[Any], nbytes: int
    ) -> None:
        """Send a frame from a process; a frame to an unknown address is lost."""

    def new_session(self) -> int:
        """Return a number for one end of a channel, which no other end gets."""


class SimTimer(Event):
    """A timer of a component; its own SimPy event."""

    __slots__ = ("address", "callback", "callbacks", "number", "process")

    _ok = True
    _value = None

    def __init__(
        self, process: SimProcess, address: str, number: int, callback: Callable[[], None]
    ) -> None:
        # SimPy's own constructor is skipped: it allocates a list per event.
        self.process = process
        self.address = address
        self.number = number
        self.callback: Callable[[], None] | None = callback
        self.callbacks = _ON_TIMER

    def cancel(self) -> None:
        self.callback = None


def _on_timer(timer: Any) -> None:
    if timer.callback is not None and timer.process.alive:
        timer.process.arrive_timer(timer)


_ON_TIMER: Any = [_on_timer]
_SENT = "sent"


class SimContext:
    """`context.Context` for one component of a simulated process."""

    __slots__ = ("_rng", "_seed", "address", "counts", "env", "outbox", "process", "timers")

    def __init__(self, process: SimProcess, address: str, seed: int) -> None:
        self.address = address
        self._seed = seed
        self._rng: random.Random | None = None
        self.process = process
        self.env = process.cluster.env
        self.outbox: dict[str, list[Any]] = {}
        self.timers = 0
        self.counts: Counts = process.cluster.counts[role_of(address)]

    @property
    def rng(self) -> random.Random:
        # Most components draw no random number, and seeding is the slowest part of a context.
        if self._rng is None:
            self._rng = random.Random(f"{self._seed}/{self.address}")
        return self._rng

    def now(self) -> float:
        process = self.process
        return self.env.now + process.debt_s + process.skew_s

    def send(self, to: str, message: Any) -> None:
        box = self.outbox.get(to)
        if box is None:
            self.outbox[to] = [message]
            self.process.turns.dirty[self.address] = self
        else:
            box.append(message)

    def after(self, delay_s: float, callback: Callable[[], None]) -> SimTimer:
        self.timers += 1
        timer = SimTimer(self.process, self.address, self.timers, callback)
        self.env.schedule(timer, NORMAL, self.process.costs.timer(delay_s))
        return timer


class SimProcess:
    """One process on a host; see the module's docstring."""

    def __init__(
        self, cluster: ProcessPort, name: str, node: int, host: Processor, costs: CostModel
    ) -> None:
        self.turns = Turns(self._turn, self._send_all)
        self.cluster = cluster
        self.journal = cluster.journal
        self.name = name
        self.node = node
        self.host = host
        self.costs = costs
        self.components: dict[str, Component] = {}
        self.contexts: dict[str, SimContext] = {}
        self.alive = True
        self.paused = False
        self.channels: Any = None
        """The `SimChannels` of a process that talks to other nodes; its module imports this one."""
        self._after_resume: list[Callable[[], None]] = []
        self.debt_s = 0.0
        """CPU time that user code has used and that has not passed yet in virtual time."""
        self.skew_s = cluster.skews_s.get(node, 0.0)
        """How far this process's clock is ahead of virtual time."""
        self.busy_s = 0.0
        """CPU time of this process's turns so far."""
        self._ended_s = cluster.env.now
        """When its last turn, API call or start was over."""
        self._idled_s = inf
        """How long its core had idled when the turn was due: see `Host.idled_s`."""
        self._paths: dict[object, float] = {}
        """By code path: when it last ran. Messages by type, those sent apart, calls by kind."""
        self.after_turn: Callable[[], None] | None = None
        self.on_idle: Callable[[], None] | None = None
        """Called when a turn is over and nothing has arrived meanwhile."""
        self._timers: list[SimTimer] = []
        self._busy = False
        self._cost_s = 0.0
        """The cost of the current turn so far."""
        self._long = False
        """Whether the current turn counts in the cluster's `working`."""
        self._leaving: list[Frame] | None = None
        """Frames of the current turn, which leave when it ends."""
        self._on_sent: Callable[[], None] | None = None
        """Called when the last frames of a process that exits have left."""

    def context(self, address: str) -> SimContext:
        """Return the context of the component that will have this address."""
        made = self.contexts[address] = SimContext(self, address, self.cluster.seed)
        return made

    def add(self, address: str, component: Component) -> None:
        """Run a component under an address."""
        self.components[address] = component
        if address not in self.contexts:
            self.context(address)
        self.cluster.processes[address] = self

    def unlink(self) -> None:
        """Break the reference cycles of a process that nothing refers to any more: its memory is
        free at once, not when the garbage collector comes."""
        self.contexts.clear()
        del self.turns

    # -- what arrives ----------------------------------------------------------

    def arrive(self, source: str, destination: str, messages: list[Any]) -> None:
        """Put a frame into the inbox; begin a turn if the process is free."""
        if not self.alive:
            return
        self.turns.add(source, destination, messages)
        if not self._busy:
            self._begin()

    def arrive_timer(self, timer: SimTimer) -> None:
        """Add a due timer to the next turn; begin the turn if the process is free."""
        self._timers.append(timer)
        if not self._busy:
            self._begin()

    def begin(self) -> None:
        """Begin the first turn, which sends the messages of the components' constructors.

        A process that is paused, or that a frame has reached before, has that turn ahead of it.
        """
        if self.paused and not self._busy:
            self._begin()
        elif not self._busy:
            self._busy = True
            self._wake()

    def _begin(self) -> None:
        self._busy = True
        self._idled_s = self.host.idled_s(self)
        if self.host.is_free(self) and not self.paused:
            self._wake()
        else:
            # A job of zero CPU time would not wait for a core.
            self.host.run(1e-9, self._wake, self)

    # -- turns -----------------------------------------------------------------

    def _wake(self) -> None:
        """Give every component that was addressed its turn, then be busy for their cost."""
        if not self.alive:
            return
        costs = self.costs
        self._cost_s = costs.turn(self.cluster.env.now - self._ended_s, self._idled_s)
        self._leaving = []
        self.turns.run(self._fire)
        cost_s = self._cost_s
        self.busy_s += cost_s
        if cost_s > LONG_TURN_S:
            self._long = True
            self.cluster.working += 1
        if cost_s:
            self.host.run(cost_s - costs.after_s, self._end, self)
        else:
            self._end()

    def _fire(self) -> bool:
        """Run the timers that are due; return whether there were any."""
        if not self._timers:
            return False
        timers, self._timers = self._timers, []
        for timer in timers:
            if timer.callback is not None:
                callback, timer.callback = timer.callback, None
                self.turns.run_timer(timer.address, timer.number, callback)
        return True

    def _turn(
        self, address: str, received: Received, timer: int, callback: Callable[[], None] | None
    ) -> None:
        costs = self.costs
        for _, messages in received:
            self._cost_s += costs.received(messages)
            if costs.rests_count:
                self._cost_s += self.end_rests(dict.fromkeys(map(type, messages)))
        component = self.components.get(address)
        if component is None:
            return
        handle = component.handle
        counts = self.contexts[address].counts
        counts.turns += 1
        for source, messages in received:
            counts.messages += len(messages)
            for message in messages:
                handle(source, message)
        if callback is not None:
            callback()
        component.end_turn()
        for observe in self.cluster.on_turn:
            observe(address, received, self.contexts[address].outbox)
        if self.journal is not None and address in self.cluster.journaled:
            outputs = [[to, box] for to, box in self.contexts[address].outbox.items()]
            now_s = self.cluster.env.now + self.skew_s
            self.journal.write([address, now_s, received, timer, outputs])

    def stay_warm(self) -> None:
        """Begin the rest before the next turn anew: the process has just run the runtime's code."""
        self._ended_s = self.cluster.env.now

    def end_rests(self, paths: Iterable[object]) -> float:
        """Return what code paths cost more for their rests, which end now.

        How long the core has idled is known of the rest since the last turn; before that it counts
        as one that ran others.
        """
        now_s, cost_s = self.cluster.env.now, 0.0
        for path in paths:
            last_s = self._paths.get(path, -inf)
            if now_s > last_s:
                cost_s += self.costs.cold(now_s - last_s, self._idled_s)
                self._paths[path] = now_s
        return cost_s

    def charge(self, cpu_s: float) -> None:
        """Have the turn under way take longer, for what a component does besides messages."""
        self._cost_s += cpu_s

    def _send_all(self) -> None:
        assert self._leaving is not None, "frames leave when the turn ends"
        self._cost_s += self._collect(self._leaving)

    def _collect(self, frames: list[Frame]) -> float:
        """Add the messages that turns have sent to `frames`; return the cost of sending."""
        turns = self.turns
        dirty, turns.dirty = turns.dirty, {}
        cost_s = 0.0
        components, costs = self.components, self.costs
        for address, ctx in dirty.items():
            outbox, ctx.outbox = ctx.outbox, {}
            counts = ctx.counts
            for destination, messages in outbox.items():
                if destination in components:
                    turns.add(address, destination, messages)
                    continue
                sent_s, nbytes = costs.sent(messages)
                cost_s += sent_s
                if costs.rests_count:
                    types = dict.fromkeys(map(type, messages))
                    cost_s += self.end_rests([(_SENT, kind) for kind in types])
                counts.frames += 1
                counts.bytes += nbytes
                frames.append((address, destination, messages, nbytes))
        return cost_s

    def _end(self) -> None:
        if self._long:
            self._end_long()
        if not self.alive:
            return
        after_s = self.costs.after_s
        self._ended_s = self.cluster.env.now
        self._busy = after_s > 0
        frames, self._leaving = self._leaving, None
        assert frames is not None, "a turn ends once"
        for frame in frames:
            self.cluster.transmit(self, *frame)
        if self._on_sent is not None:
            self._on_sent()
        elif self.after_turn is not None:
            self.after_turn()
        if after_s and self.alive:
            self.host.run(after_s, self._end_after_s, self)
        elif not self._busy:
            self._next()

    def _next(self) -> None:
        """Begin the next turn, if there is one."""
        if self.turns.inputs or self._timers:
            self._begin()
        elif self.on_idle is not None:
            self.on_idle()

    def _end_long(self) -> None:
        """Stop counting a long turn: it, or its process, has ended."""
        if self._long:
            self._long = False
            self.cluster.working -= 1

    def _end_after_s(self) -> None:
        """End the turn `after_s` after its frames have left."""
        if not self.alive:
            return
        self._busy = False
        self._ended_s = self.cluster.env.now
        self._next()

    def flush_calls(self) -> None:
        """Send the messages of API calls that user code has just made.

        Their cost adds to the program's debt. The frames leave now; or, during a turn,
        after the turn's frames, because frames of one component to one address arrive in order.
        """
        frames: list[Frame] = []
        if self.turns.dirty:
            self.debt_s += self._collect(frames)
        if self._leaving is not None:
            self._leaving += frames
            return
        for frame in frames:
            self.cluster.transmit(self, *frame)

    def when_sent(self, callback: Callable[[], None]) -> None:
        """Call back once all frames so far have left: at the end of the current turn, if any."""
        if self._leaving is None:
            callback()
        else:
            self._on_sent = callback

    # -- faults ----------------------------------------------------------------

    def pause(self) -> None:
        """Stop until `resume`, as a process does after SIGSTOP."""
        self.paused = True
        self.host.pause(self)

    def resume(self) -> None:
        """Continue the interrupted turn, and take the frames that have arrived."""
        if not self.paused:
            return
        self.paused = False
        self.host.resume(self)
        callbacks, self._after_resume = self._after_resume, []
        for callback in callbacks:
            callback()

    def when_running(self, callback: Callable[[], None]) -> None:
        """Call back now, or when the process is resumed; never if it has ended."""
        if self.paused:
            self._after_resume.append(partial(self.when_running, callback))
        elif self.alive:
            callback()

    def kill(self) -> None:
        """End the process at once: its work is cancelled and no frame reaches it."""
        self.alive = False
        self._end_long()
        self.host.cancel(self)
        for address in self.components:
            self.cluster.processes.pop(address, None)
        if self.channels is not None:
            self.channels.end()
