"""The turns of a process: which component is called next, and what leaves together.

A process that wakes up takes all that has arrived, in this order:

1. Rounds, until nothing is left: every component that was addressed has one turn with all of its
   frames; then the messages of these turns leave. Those to a component of the same process begin
   the next round.
2. Each timer that is due, in a turn of its own, whose messages leave at once.
3. Rounds again, for what the timers have caused.

Frames go first: else a process that was delayed would declare a peer silent whose frames it has not
read yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Received = list[tuple[str, list[Any]]]
"""[(source, [message, ...]), ...]"""
GiveTurn = Callable[[str, Received, int, Callable[[], None] | None], None]
"""Gives the component at an address its turn: with what it has received; or with a timer, by its
number, and the timer's callback. See `context`."""


class Turns:
    """The inbox of a process, and the order of its turns."""

    __slots__ = ("_give_turn", "_send_all", "dirty", "inputs")

    def __init__(self, give_turn: GiveTurn, send_all: Callable[[], None]) -> None:
        """`send_all` sends the messages of the contexts in `dirty`: one frame from each to each
        receiver, or an input of a component of this process."""
        self._give_turn = give_turn
        self._send_all = send_all
        self.inputs: dict[str, Received] = {}
        """By component: what has arrived for it."""
        self.dirty: dict[str, Any] = {}
        """By component: its context, if that has messages which have not left."""

    def add(self, source: str, destination: str, messages: list[Any]) -> None:
        """Add a frame to a component's next turn."""
        if destination in self.inputs:
            self.inputs[destination].append((source, messages))
        else:
            self.inputs[destination] = [(source, messages)]

    def run_rounds(self) -> None:
        """Run rounds until nothing is left."""
        while self.inputs or self.dirty:
            inputs, self.inputs = self.inputs, {}
            for address, received in inputs.items():
                self._give_turn(address, received, 0, None)
            if self.dirty:
                self._send_all()

    def run_timer(self, address: str, number: int, callback: Callable[[], None]) -> None:
        """Run a component's due timer."""
        self._give_turn(address, [], number, callback)
        self._send_all()

    def run(self, fire: Callable[[], bool]) -> None:
        """Take all that has arrived. `fire` calls `run_timer` for all timers that are due, and
        returns whether there were any."""
        if self.inputs or self.dirty:
            self.run_rounds()
        if fire() and (self.inputs or self.dirty):
            self.run_rounds()
