"""What a random program itself has ended, and which errors that explains.

A program kills actors, with and without a restart, lets them leave (`exit_actor`), and removes
placement groups. An error that names one of these is legitimate if it came after that, and
only then: `Ended.seen` is what an error is judged by that the driver has seen by now.

============================ ===========================================================
ActorDiedError: it was       is of an actor of r restarts that was killed for good, or
killed by kill()             r + 1 times by the program and by the plan together
ActorDiedError: a1r0 has     comes of a call before the one that left only if there were
ended: exit_actor()          kills: those are answered
..PlacementGroupRemoved      names a group that was removed
============================ ===========================================================
"""

from __future__ import annotations

import re
from collections import Counter
from copy import deepcopy

from runtime.api.exceptions import (
    ActorDiedError,
    ActorPlacementGroupRemoved,
    TaskPlacementGroupRemoved,
)
from runtime.control.ids import ARRAY_BYTES

ARRAY_DIGITS = 2 * ARRAY_BYTES
_KILLED = "ActorDiedError: it was killed by kill()"
_LEFT = re.compile(r"ActorDiedError: (a\d+r-?\d+) has ended: exit_actor\(\) was called")
_RESTARTS = re.compile(r"a\d+r(-?\d+)")
_GROUP = re.compile(r" was in placement group ([0-9a-f]+), which is gone")


class Ended:
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
        self.actors: dict[str, str] = {}
        """Names of actors, by their IDs in hexadecimal."""
        self._seen: Ended | None = None

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
            lasting = self.actors, self.within
            self.actors, self.within = {}, set()
            self._seen = deepcopy(self)
            self.actors, self.within = lasting
            self._seen.actors, self._seen.within = lasting
        error.__dict__.setdefault("ended_then", self._seen)
        error.__dict__.setdefault("ended_value", value)

    def then(self, error: BaseException) -> Ended:
        """Return what was ended when an error was seen, all of it if nobody said."""
        found = error.__dict__.get("ended_then", self)
        assert isinstance(found, Ended)
        return found

    def removed(self, actor: str) -> bool:
        """Whether an actor's group was."""
        return self.placed.get(actor) in self.groups

    def is_within(self, error: BaseException) -> bool:
        """Whether the value that was seen to be an error may end with a group."""
        value = error.__dict__.get("ended_value")
        return value is None or value[:ARRAY_DIGITS] in self.within

    def judge(self, error: BaseException, text: str, kills: int, within: bool = True) -> str | None:
        """Return why an error may not come after so many kills by the plan, "" if it may.

        None: it is not about what a program ends itself. `within`: it is seen where a
        placement group may have ended something.
        """
        if isinstance(error, TaskPlacementGroupRemoved | ActorPlacementGroupRemoved):
            group = _GROUP.search(str(error))
            removed = group is not None and group[1] in self.groups
            return "" if removed and within else f"{text} (it was not removed)"
        if not isinstance(error, ActorDiedError):
            return None
        left = _LEFT.match(text)
        if left is not None:
            may = left[1] in self.left and kills
            return "" if may else f"{text} (calls before the last one are answered)"
        if not text.startswith(_KILLED):
            return None
        name = self.actors.get(error.actor_id or "", "")
        restarts = _RESTARTS.fullmatch(name)
        if restarts is None:
            return f"{text} (it does not name its actor)"
        most = int(restarts[1])
        times = self.kills[name]
        may = name in self.final or (times and 0 <= most < kills + times)
        return "" if may else f"{text} ({name} was killed {times} times)"


ended_here = Ended()
"""What the program of this process has ended: in a simulation all that was."""
