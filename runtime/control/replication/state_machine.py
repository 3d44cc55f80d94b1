"""A deterministic state machine made of control-plane components.

The components (the GCS and the global scheduler, or one shard) do not know that
they are replicated. They run under a `MachineContext`, in which everything is a
function of the commands applied so far:

* ``now()`` is the command's time;
* ``after()`` notes the timer as data: its time, a method of a component, and the
  arguments. A closure raises TypeError: it could be neither copied to another
  replica nor restored after a restart. Due timers run before a command with a
  later time;
* ``rng`` is seeded by the component's address and is part of the state;
* ``send()`` to a component of the machine delivers within the command; to any other
  address it makes an *output*.

So machines that have applied the same commands are equal, and a machine that is restored
from a snapshot of one (see `snapshot`) continues as that one does.

Sessions
--------
A client's requests are numbered from 1 and so are the outputs addressed to it.
The machine keeps per client the number of the last request it has applied, so
that a request that is sent twice takes effect once, and the outputs that the
client has not acknowledged, so that any later tail can send them again. ``born``
distinguishes a client from an earlier process of the same address.
The machine drops a message to an address without a session, as a closed connection would.

Addresses that begin with ``storage:`` belong to the replica itself: it takes the messages
to them (`Machine.take_local`), and they are no outputs.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import Any

import msgspec

from raytwin.runtime.control.core.addresses import RELAY, STORAGE, agent_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Component, Context
from raytwin.runtime.control.messages import ClientGone, Command, Frame
from raytwin.runtime.control.replication import snapshot

encode_frames: Callable[[list[Frame]], bytes] = msgspec.msgpack.Encoder().encode
decode_frames = msgspec.msgpack.Decoder(list[Frame]).decode

RELAY_BORN = 0.0
"""``born`` of the relay, which a machine knows before the relay's first request."""
ROUNDS_MAX = 10_000
"""The most rounds of messages between the components of one machine within a command."""


class MachineTimer:
    """A timer as data; see `context.Timer`."""

    __slots__ = ("address", "arguments", "due_s", "method", "number", "target")

    def __init__(
        self, due_s: float, number: int, address: str, target: Any, method: str, arguments: Any
    ) -> None:
        self.due_s = due_s
        self.number = number
        self.address = address
        """The component that has its turn when the timer is due."""
        self.target: Any = target
        """None once it is cancelled."""
        self.method = method
        self.arguments = arguments

    def cancel(self) -> None:
        """Forget the callback."""
        self.target = None


class Output:
    """The output of command `index` to one client: a msgpack list of frames."""

    __slots__ = ("body", "index", "sequence")

    def __init__(self, sequence: int, index: int, body: bytes) -> None:
        self.sequence = sequence
        self.index = index
        self.body = body


class Session:
    """The machine's session with one client."""

    __slots__ = ("applied", "applied_index", "born", "outbox", "sent")

    def __init__(self, born: float) -> None:
        self.born = born
        self.applied = 0
        """Its last request that took effect, which was command `applied_index`."""
        self.applied_index = 0
        self.sent = 0
        self.outbox: deque[Output] = deque()
        """Outputs that the client has not acknowledged, numbered without a gap."""

    def acknowledge(self, sequence: int) -> None:
        """The client has all outputs up to this one."""
        while self.outbox and self.outbox[0].sequence <= sequence:
            self.outbox.popleft()


class MachineContext:
    """`context.Context` for one component of a machine."""

    rng: random.Random

    def __init__(self, machine: Machine, address: str, seed: int) -> None:
        self.machine = machine
        self.address = address
        self._seed = seed
        self.outbox: dict[str, list[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        # Seeded when first used: its state is 2.5 KB in every snapshot.
        if name != "rng":
            raise AttributeError(name)
        self.rng = random.Random(f"{self._seed}/{self.address}")
        return self.rng

    def now(self) -> float:
        return self.machine.time_s

    def send(self, to: str, message: Any) -> None:
        self.outbox.setdefault(to, []).append(message)

    def after(self, delay_s: float, callback: Callable[[], None]) -> MachineTimer:
        arguments: tuple[Any, ...] = ()
        method: Any = callback
        if isinstance(callback, partial):
            if callback.keywords:
                raise TypeError("a replicated timer takes positional arguments only")
            method, arguments = callback.func, callback.args
        if not isinstance(method, MethodType):
            raise TypeError(f"a replicated timer is a method, not {method!r}: it has to be data")
        return self.machine.add_timer(
            delay_s, self.address, method.__self__, method.__name__, arguments
        )


Factory = Callable[[Context], Component]


class Machine:
    """Components that are driven by commands alone; see the module's docstring."""

    def __init__(
        self, factories: Mapping[str, Factory], config: Config, types: snapshot.StateTypes
    ) -> None:
        """`types`: the classes that the components' state consists of."""
        self.index = 0
        """The last command applied."""
        self.time_s = 0.0
        self.sessions: dict[str, Session] = {}
        self.touched: dict[str, None] = {}
        """Clients with a request or an output since `take_touched`."""
        self.on_output: Callable[[str, float, bytes], None] | None = None
        """Called with each output, which may never leave its replica: the client, the `born` of
        its session, and the frames."""
        self.on_inside: Callable[[Frame], None] | None = None
        """Called with each frame from one of the components to another."""
        self._local: list[tuple[str, Any]] = []
        self._started = False
        self._timers: list[tuple[float, int, MachineTimer]] = []
        self._timer_count = 0
        self._config = config
        self._types = types
        self._contexts = {name: MachineContext(self, name, config.seed) for name in factories}
        self.components = {
            name: factory(self._contexts[name]) for name, factory in factories.items()
        }

    # -- commands --------------------------------------------------------------

    def fresh(self, client: str, born: float, sequence: int) -> bool:
        """Whether a request is the next of its client: else it is old, or too early.

        A request of number 0 only acknowledges outputs.
        """
        session = self.sessions.get(client)
        if not sequence:
            return session is not None and session.born == born
        if session is None or session.born < born:
            return sequence == 1
        return session.born == born and sequence == session.applied + 1

    def apply(self, command: Command) -> None:
        """Apply the next command; asserts that it is the next."""
        assert command.index == self.index + 1, f"{command.index} after {self.index}"
        self.index = command.index
        # A head's clock may be behind that of its predecessor; the machine's time only grows.
        self.time_s = max(self.time_s, command.time_s)
        if not self._started:
            self._started = True
            for name, component in self.components.items():
                start = getattr(component, "start", None)
                if start is not None:
                    start()
                    self._settle({name})
        self._fire()
        inputs: list[Frame] = decode_frames(command.body) if command.body else []
        if command.client:
            assert self.fresh(command.client, command.born, command.sequence)
            session = self.sessions.get(command.client)
            if session is None or session.born < command.born:
                session = self.sessions[command.client] = Session(command.born)
            if command.sequence:
                session.applied = command.sequence
                session.applied_index = command.index
            session.acknowledge(command.acked)
            self.touched[command.client] = None
        self._deliver(inputs)

    def _fire(self) -> None:
        """Run the timers that are due, each as a turn of its own."""
        while self._timers and self._timers[0][0] <= self.time_s:
            _, _, timer = heapq.heappop(self._timers)
            if timer.target is not None:
                getattr(timer.target, timer.method)(*timer.arguments)
                self._settle({timer.address})

    def _deliver(self, inputs: list[Frame]) -> None:
        turns: set[str] = set()
        for frame in inputs:
            for message in frame.messages:
                if type(message) is ClientGone:
                    session = self.sessions.get(message.client)
                    if session is not None and session.born <= message.born:
                        del self.sessions[message.client]
                else:
                    self.components[frame.destination].handle(frame.source, message)
                    turns.add(frame.destination)
        self._settle(turns)

    def _settle(self, turns: set[str]) -> None:
        """End the turns, deliver messages between the components, collect the outputs."""
        out: dict[str, list[Frame]] = {}
        for _ in range(ROUNDS_MAX):
            inside: list[Frame] = []
            for name in self.components:
                if name in turns:
                    self.components[name].end_turn()
            for name, ctx in self._contexts.items():
                if not ctx.outbox:
                    continue
                outbox, ctx.outbox = ctx.outbox, {}
                for to, messages in outbox.items():
                    if to in self.components:
                        inside.append(Frame(name, to, messages))
                        if self.on_inside is not None:
                            self.on_inside(inside[-1])
                    elif to.startswith("storage:"):
                        self._local += [(to, message) for message in messages]
                    elif (client := agent_of(to)) in self.sessions or client == RELAY:
                        out.setdefault(client, []).append(Frame(name, to, messages))
            if not inside:
                break
            turns = {frame.destination for frame in inside}
            for frame in inside:
                for message in frame.messages:
                    self.components[frame.destination].handle(frame.source, message)
        else:
            raise AssertionError("the components of a machine exchange messages without end")
        for client, frames in out.items():
            session = self.sessions.get(client)
            if session is None:
                # Messages to other machines wait until the relay attaches.
                session = self.sessions[client] = Session(RELAY_BORN)
            session.sent += 1
            output = Output(session.sent, self.index, encode_frames(frames))
            session.outbox.append(output)
            self.touched[client] = None
            if self.on_output is not None:
                self.on_output(client, session.born, output.body)

    # -- timers ----------------------------------------------------------------

    def add_timer(
        self, delay_s: float, address: str, target: Any, method: str, arguments: tuple[Any, ...]
    ) -> MachineTimer:
        """Note a timer; see `MachineContext.after`."""
        self._timer_count += 1
        timer = MachineTimer(
            self.time_s + delay_s, self._timer_count, address, target, method, arguments
        )
        heapq.heappush(self._timers, (timer.due_s, timer.number, timer))
        return timer

    def next_due_s(self) -> float | None:
        """Return the time of the next timer, which needs a command; None: there is no timer."""
        if not self._started:
            return self.time_s
        while self._timers and self._timers[0][2].target is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    # -- outputs ---------------------------------------------------------------

    def take_touched(self) -> list[str]:
        """Return the clients with new outputs or confirmations."""
        touched, self.touched = self.touched, {}
        return list(touched)

    def take_local(self) -> list[tuple[str, Any]]:
        """Return (address, message) of the messages to this replica's storage."""
        local, self._local = self._local, []
        return local

    def unanswered(self) -> list[tuple[str, Any]]:
        """Return (address, message) of the requests that a storage has not answered.

        A replica that becomes the head sends them to its own storage: the answers to the
        former head may be lost.
        """
        histories = [getattr(component, "history", None) for component in self.components.values()]
        return [
            (STORAGE, message)
            for history in histories
            if history is not None
            for message in history.unanswered()
        ]

    # -- state -----------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return the whole state; see `restore`."""
        rngs = {
            name: ctx.rng.getstate() for name, ctx in self._contexts.items() if "rng" in vars(ctx)
        }
        root = [
            self.index, self.time_s, self._started, self._timer_count, rngs,
            list(self.components.values()), self.sessions,
            [timer for _, _, timer in sorted(self._timers) if timer.target is not None],
        ]  # fmt: skip
        return snapshot.dump(root, self._anchors(), self._types)

    def restore(self, data: bytes) -> None:
        """Take the state of a `snapshot`; for a machine that has applied nothing."""
        assert not self.index, "a machine is restored once, before all else"
        root = snapshot.load(data, self._anchors(), self._types, self.components)
        self.index, self.time_s, self._started, self._timer_count, rngs = root[:5]
        self.sessions = root[6]
        self._timers = [(timer.due_s, timer.number, timer) for timer in root[7]]
        for name, rng in rngs.items():
            self._contexts[name].rng.setstate(rng)
        self.touched = dict.fromkeys(self.sessions)

    def _anchors(self) -> dict[str, Any]:
        return {
            "config": self._config,
            **{f"ctx {name}": ctx for name, ctx in self._contexts.items()},
            **{snapshot.adopt(name): component for name, component in self.components.items()},
        }
