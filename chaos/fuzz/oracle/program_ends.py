"""What a random program itself has ended, and which errors that explains.

A program kills actors, with and without a restart, lets them leave (`exit_actor`), and removes
placement groups. An error that names one of these is legitimate if it came after that, and
only then: `ProgramEnds.seen` is what an error is judged by that the driver has seen by now.

============================ ===========================================================
ActorDiedError: it was       is of an actor of r restarts that was killed for good, or
killed by kill()             r + 1 times by the program and by the plan together
ActorDiedError: a1r0 has     comes of a call before the one that left only if there were
ended: exit_actor()          kills: those are answered
..PlacementGroupRemoved      names a group that was removed
============================ ===========================================================
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause

ARRAY_DIGITS = 2 * ARRAY_BYTES


class ProgramEnds:
    """What a program has ended so far; actors are called by their names."""

    def __init__(self) -> None:
        self.kills: Counter[str] = Counter()
        """How often each was killed, and might start again."""
        self.final: set[str] = set()
        """Those that were killed and might not."""
        self.left: set[str] = set()
        """Those that were told to leave."""
        self.groups: set[str] = set()
        """Placement groups that were removed, in hexadecimal."""
        self.placed: dict[str, str] = {}
        """The group that an actor is in."""
        self.within: set[str] = set()
        """Arrays whose tasks run in a group, or that need one which does."""
        self._seen: ProgramEnds | None = None

    def forget(self) -> None:
        """Begin a program."""
        self.__init__()  # type: ignore[misc]

    def kill(self, actor: str, restart: bool) -> None:
        """The program is about to kill an actor."""
        self._seen = None
        if restart:
            self.kills[actor] += 1
        else:
            self.final.add(actor)

    def leave(self, actor: str) -> None:
        """The program is about to let an actor leave."""
        self._seen = None
        self.left.add(actor)

    def remove(self, group: str) -> None:
        """The program is about to remove a placement group."""
        self._seen = None
        self.groups.add(group)

    def seen(self, error: BaseException, value: str) -> None:
        """The driver has seen that a value is an error; what is ended later does not explain it."""
        if self._seen is None:
            lasting, self.within = self.within, set()
            self._seen = deepcopy(self)
            self.within = self._seen.within = lasting
        error.__dict__.setdefault("ended_then", self._seen)
        error.__dict__.setdefault("ended_value", value)

    def then(self, error: BaseException) -> ProgramEnds:
        """Return what was ended when an error was seen, all of it if nobody said."""
        found = error.__dict__.get("ended_then", self)
        assert isinstance(found, ProgramEnds)
        return found

    def removed(self, actor: str) -> bool:
        """Whether an actor's group was."""
        return self.placed.get(actor) in self.groups

    def is_within(self, error: BaseException) -> bool:
        """Whether the value that was seen to be an error may end with a group."""
        value = error.__dict__.get("ended_value")
        return value is None or value[:ARRAY_DIGITS] in self.within

    def judge(self, death: ActorDeath, kills: int) -> str:
        """Return why an actor may not have been killed by the program, or left, after so many
        kills by the plan; "" if it may."""
        if death.cause is DeathCause.EXITED:
            may = death.name in self.left and kills
            return "" if may else "calls before the last one are answered"
        times = self.kills[death.name]
        restarted = times and 0 <= times_again(death.name) < kills + times
        may = death.name in self.final or restarted
        return "" if may else f"{death.name} was killed {times} times"


def times_again(name: str) -> int:
    """Return how often what a program has named so may begin again; -1: without end."""
    return int(name.rpartition("r")[2])


program_ends = ProgramEnds()
"""What the program of this process has ended: in a simulation all that was."""
