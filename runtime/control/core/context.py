"""The interface between a component and the world: time, timers, random numbers, sending.

Theory of operation
-------------------
A *component* (local scheduler, global scheduler, GCS, client, executor) is a
state machine. The world calls it in **turns**:

1. ``handle(source, message)`` once for every message that has arrived, or the
   callback of one timer that is due;
2. ``end_turn()`` once.

Within a turn ``now()`` does not move, and the context holds all messages back. When
the turn is over it sends the messages to each address as one frame. So batching is
part of the model and does not depend on sockets, and a log of turns (their times and
inputs) replays a component's decisions exactly.

Two contexts exist: ``processes`` implements this interface with an event
loop and sockets, ``simulator`` with SimPy. No component can distinguish them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from raytwin.runtime.control.core.addresses import Address


class Timer(Protocol):
    """A timer, as `Context.after` returns it."""

    def cancel(self) -> None:
        """Forget the callback; has no effect once it has run."""


class Context(Protocol):
    """All that a component may ask of the world."""

    @property
    def rng(self) -> random.Random:
        """Seeded by the cluster's seed and the component's address."""

    def now(self) -> float:
        """Return the time of this turn in seconds; it only grows."""

    def send(self, to: Address, message: Any) -> None:
        """Queue `message` (a struct of `messages`) for `to`.

        Messages from one component to one address arrive in order or not at
        all; to a dead address they are lost silently. The sender never changes a
        message after it has sent it.
        """

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` as a turn of its own, `delay_s` seconds from now."""


class WrappedContext:
    """A `Context` between a component and its world; subclasses define how it sends."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @property
    def rng(self) -> random.Random:
        # Contexts seed their generator when it is first used.
        return self._ctx.rng

    def now(self) -> float:
        """Return the world's time."""
        return self._ctx.now()

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Set a timer in the world."""
        return self._ctx.after(delay_s, callback)


class Component(Protocol):
    """A state machine that a world drives."""

    def handle(self, source: Address, message: Any) -> None:
        """Take one message."""

    def end_turn(self) -> None:
        """Act on all messages of this turn; called once per turn."""


Handler = Callable[[str, Any], None]
"""Takes the address of a message's sender, and the message."""
Handlers = dict[type, Handler]


class Part(Protocol):
    """A part of a component that takes messages."""

    def handlers(self) -> Handlers:
        """Return the part's methods, by the message type that each takes."""


def handlers_of(*parts: Part) -> Handlers:
    """Return one table for all parts; no message type has two handlers."""
    table: Handlers = {}
    for part in parts:
        for kind, handler in part.handlers().items():
            assert kind not in table, f"{kind.__name__} has two handlers"
            table[kind] = handler
    return table
