"""A process of the cluster: its components, and the routes to all others.

`ComponentContext` is the runtime's implementation of `context.Context`. One pass of
the reactor reads the frames that have arrived; then the components have their **turns**, see
`control.core.turns`.

A *journal* (optional) records each turn: component, time, inputs, outputs.
Replayed through another context it must give the same outputs. Turn 0 is the component's
construction: `begin_first_turn` to `end_first_turn`.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from raytwin.runtime.control.core.context import Component
from raytwin.runtime.control.core.turns import Received, Turns
from raytwin.runtime.control.messages import Frame, SubmitTasks, TasksUnsent
from raytwin.runtime.journal import Journal, Origin
from raytwin.runtime.processes.net import wire
from raytwin.runtime.processes.net.reactor import Reactor

log = logging.getLogger("raytwin")


class Route(Protocol):
    """The way to another process: a connection or a channel."""

    @property
    def closed(self) -> bool:
        """Whether frames are dropped from now on."""

    def send_body(self, body: bytes) -> None:
        """Send a frame, encoded by `wire.encode_body`."""

    def close(self, reason: str) -> None:
        """Give the way up: a message cannot be sent."""


class ComponentContext:
    """`context.Context` for one component of a process."""

    def __init__(self, process: ComponentProcess, address: str, seed: int) -> None:
        self.rng = random.Random(f"{seed}/{address}")
        self.address = address
        self.process = process
        self.outbox: dict[str, list[Any]] = {}
        self.turn_s: float | None = None
        self.timers = 0
        """How many timers this component has set so far; the journal numbers them."""

    def now(self) -> float:
        # Outside of a turn (user code calls the client) each call reads the clock.
        return time.monotonic() if self.turn_s is None else self.turn_s

    def send(self, to: str, message: Any) -> None:
        box = self.outbox.get(to)
        if box is None:
            self.outbox[to] = [message]
            self.process.turns.dirty[self.address] = self
        else:
            box.append(message)

    def after(self, delay_s: float, callback: Callable[[], None]) -> Any:
        self.timers += 1
        number = self.timers
        return self.process.reactor.after(
            delay_s, lambda: self.process.turns.run_timer(self.address, number, callback)
        )


class ComponentProcess:
    """Runs components in turns, and routes their messages to connections."""

    def __init__(self, seed: int, journal: Path | None = None) -> None:
        """`journal`: the directory of the journals, one for each component with a first turn."""
        self.turns = Turns(self._turn, self._send_all)
        self.reactor = Reactor()
        self.seed = seed
        self.components: dict[str, Component] = {}
        self.contexts: dict[str, ComponentContext] = {}
        self.routes: dict[str, Route] = {}
        self.find_route: Callable[[str], Route | None] = lambda destination: None
        """Returns the route to an address without one; None drops the messages."""
        self.stopped = ""
        self._journal = journal
        self._journals: dict[str, Journal] = {}

    def context(self, address: str) -> ComponentContext:
        """Return the context of the component that will have this address."""
        made = self.contexts[address] = ComponentContext(self, address, self.seed)
        return made

    def add(self, address: str, component: Component) -> None:
        """Run a component under an address."""
        self.components[address] = component
        if address not in self.contexts:
            self.context(address)

    def begin_first_turn(self, address: str) -> ComponentContext:
        """Return the context of the component that will have this address, for its constructor.

        Time stands still in it until `end_first_turn`.
        """
        made = self.context(address)
        made.turn_s = time.monotonic()
        return made

    @property
    def keeps_journals(self) -> bool:
        """Whether turns are recorded."""
        return self._journal is not None

    def end_first_turn(self, origin: Origin) -> None:
        """Begin the component's journal, if there are any, with what its construction sent."""
        ctx = self.contexts[origin.component]
        turn_s, ctx.turn_s = ctx.turn_s, None
        if self._journal is not None:
            journal = self._journals[origin.component] = Journal.of_component(self._journal, origin)
            outputs = [[to, box] for to, box in ctx.outbox.items()]
            journal.write([origin.component, turn_s, [], 0, outputs])

    # -- turns -----------------------------------------------------------------

    def receive(self, frame: Frame) -> None:
        """Add a frame that has arrived to its component's next turn."""
        if frame.destination in self.components:
            self.turns.add(frame.source, frame.destination, frame.messages)

    def deliver(self, source: str, destination: str, message: Any) -> None:
        """Add a message of this process itself to a component's next turn."""
        self.turns.add(source, destination, [message])

    def _turn(
        self, address: str, received: Received, timer: int, callback: Callable[[], None] | None
    ) -> None:
        component = self.components[address]
        ctx = self.contexts[address]
        journal = self._journals.get(address) if self._journals else None
        if journal is not None:
            # The component may have sent messages between two turns, as to a new head: the journal
            # leaves them out of this turn's outputs.
            before = {to: len(box) for to, box in ctx.outbox.items()}
        ctx.turn_s = time.monotonic()
        error = ""
        try:
            for source, messages in received:
                for message in messages:
                    component.handle(source, message)
            if callback is not None:
                callback()
            component.end_turn()
        except BaseException as raised:
            error = repr(raised)
            raise
        finally:
            turn_s, ctx.turn_s = ctx.turn_s, None
            if journal is not None:
                sent = ((to, box[before.get(to, 0) :]) for to, box in ctx.outbox.items())
                outputs = [[to, box] for to, box in sent if box]
                journal.write([address, turn_s, received, timer, outputs, error])

    def _send_all(self) -> None:
        turns = self.turns
        while turns.dirty:
            dirty, turns.dirty = turns.dirty, {}
            for address, ctx in dirty.items():
                outbox, ctx.outbox = ctx.outbox, {}
                for destination, messages in outbox.items():
                    self._send(address, destination, messages)

    def _send(self, source: str, destination: str, messages: list[Any]) -> None:
        if destination in self.components:
            self.turns.add(source, destination, messages)
            return
        route = self.routes.get(destination)
        if route is None or route.closed:
            route = self.find_route(destination)
        if route is None:
            return
        try:
            body = wire.encode_body(source, destination, messages)
        except wire.WireError as error:
            if len(messages) > 1:
                for message in messages:
                    self._send(source, destination, [message])
            else:
                self._fail(source, destination, messages[0], route, str(error))
        else:
            route.send_body(body)

    def _fail(self, source: str, destination: str, message: Any, route: Route, reason: str) -> None:
        """Fail a client's tasks that are too long to send; give the route up for any other
        message, which its receiver would miss."""
        kind = type(message).__name__
        log.error("%s cannot send %s to %s: %s", source, kind, destination, reason)
        if isinstance(message, SubmitTasks):
            self.deliver(source, source, TasksUnsent(message.tasks, reason))
        else:
            route.close(f"cannot send {kind}: {reason}")

    # -- running ---------------------------------------------------------------

    def step(self, timeout_s: float | None) -> None:
        """Wait for events once, and run the turns that they cause."""
        self.take(self.reactor.poll(timeout_s))

    def take(self, events: list[tuple[int, int]]) -> None:
        """Handle the frames that have arrived, then the timers that are due."""
        self.reactor.dispatch(events)
        self.turns.run(self.reactor.fire)

    def run(self) -> None:
        """Run until `stop` is called."""
        self.turns.run_rounds()
        while not self.stopped:
            self.step(None)

    def stop(self, reason: str) -> None:
        """Make `run` return."""
        self.stopped = reason or "stopped"
