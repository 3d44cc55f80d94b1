"""The history of a random program: its operations so far that may explain errors."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

from raytwin.chaos.fuzz.oracle.register import Operation
from raytwin.chaos.fuzz.programs.program import ActorSpec
from raytwin.runtime.control.core.ids import ARRAY_BYTES

ARRAY_DIGITS = 2 * ARRAY_BYTES


class End(Enum):
    """How a program ends an actor or a placement group."""

    KILL = auto()
    """The actor may restart."""
    KILL_FOR_GOOD = auto()
    LEAVE = auto()
    REMOVE = auto()
    """The program has removed the group."""


@dataclass
class History:
    """The history of one program; IDs of objects and groups are hexadecimal, actors have names."""

    puts: set[str] = field(default_factory=set)
    """Objects that no task makes: puts, and results of actors' calls."""
    cancelled: set[str] = field(default_factory=set)
    """Names of cancelled tasks and calls."""
    actor_of: dict[str, ActorSpec] = field(default_factory=dict)
    """The actor of each call, by the call's name and by its results."""
    owners: dict[str, set[str]] = field(default_factory=dict)
    """The drivers and workers that have submitted or put each array."""
    placed: dict[str, str] = field(default_factory=dict)
    """The placement group of each task or actor, by its name."""
    ends: list[tuple[End, str]] = field(default_factory=list)
    """The actors and groups that the program has ended, in order."""
    first_end_s: float = inf
    """When it has ended the first."""

    pinned: dict[str, int] = field(default_factory=dict)
    """The only node on which each task may run, by its name; -1: one that there never is."""
    tries: Counter[int] = field(default_factory=Counter)
    """How often each flaky task or call has begun, by its key."""
    looked_up: list[bytes] = field(default_factory=list)
    """Objects whose tasks the program looks up in the task history."""

    begun_s: defaultdict[tuple[int, str], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """When tasks have begun, by node and name."""
    returned: Counter[tuple[int, str]] = field(default_factory=Counter)
    """How many of them have returned."""

    keys: list[Operation] = field(default_factory=list)
    """The operations on the key-value table, of all processes."""
    clock: Callable[[], float] = time.monotonic
    """Returns the time in seconds, the same in all processes whatever clocks a plan sets."""

    def end(self, how: End, what: str) -> None:
        """Note that the program ends an actor or a group."""
        self.ends.append((how, what))
        self.first_end_s = min(self.first_end_s, self.clock())

    def own(self, array: str, owner: str) -> None:
        """Note that a process has submitted or put an array."""
        self.owners.setdefault(array[:ARRAY_DIGITS], set()).add(owner)

    def seen(self, error: BaseException) -> None:
        """Note the time at which the driver got an error, which later events do not explain."""
        error.__dict__.setdefault("ends_before", len(self.ends))
        error.__dict__.setdefault("seen_s", self.clock())

    def ends_before(self, error: BaseException) -> list[tuple[End, str]]:
        """Return the actors and groups that the program had ended when it got an error."""
        return self.ends[: error.__dict__.get("ends_before", len(self.ends))]


history = History()
"""The history of this process's program; in a simulation that is the whole program."""


def begin_history() -> None:
    """Begin the history of a new program."""
    history.__init__()  # type: ignore[misc]
