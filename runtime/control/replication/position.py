"""A replica's position in its chain: its state, its epoch and its neighbours.

========= ========================================= ==========================
state     what it does                              leaves it when
========= ========================================= ==========================
NEW       nothing                                   configured: JOINING, or
                                                    SERVING in the first epoch
JOINING   takes the snapshot, then commands         configured as a member
SERVING   by its place: HEAD numbers, TAIL answers  configured without it
FENCED    nothing, ever                             --
========= ========================================= ==========================

The master decides on the chain of each epoch; the replica acts by its position in it.
"""

from __future__ import annotations

from enum import Enum

from raytwin.runtime.control.messages import ChainConfigured, ReplicaInfo


class State(Enum):
    """See the table above."""

    NEW = "new"
    JOINING = "joining"
    SERVING = "serving"
    FENCED = "fenced"


class Position:
    """A replica's state in the epoch that it knows of, and the members of that epoch."""

    def __init__(self, name: str, epoch: int, members: list[str]) -> None:
        """`epoch` and `members` are the latest that the replica knows; 0 and none if new."""
        self.name = name
        self.state = State.NEW
        self.epoch = epoch
        self.members = members
        self.infos: dict[str, ReplicaInfo] = {}
        """Where every replica of the chain listens, by name."""
        self.joining = ""
        """The replica that joins behind the tail; empty if none does."""

    def configure(self, message: ChainConfigured) -> None:
        """Enter a new epoch; the replica sets the state that follows from it."""
        self.epoch = message.epoch
        self.members = [info.name for info in message.members]
        self.joining = message.joining.name if message.joining is not None else ""
        self.infos = {
            info.name: info for info in (*message.members, message.joining) if info is not None
        }

    @property
    def is_head(self) -> bool:
        """Whether this replica numbers requests."""
        return self.state is State.SERVING and self.members[0] == self.name

    @property
    def is_tail(self) -> bool:
        """Whether this replica lets outputs out."""
        return self.state is State.SERVING and self.members[-1] == self.name

    @property
    def predecessor(self) -> str:
        """The member that sends this one its commands; the head has none."""
        return self.members[self.members.index(self.name) - 1]

    @property
    def successor(self) -> str:
        """The replica that this one sends commands to: a member, or the one that joins."""
        at = self.members.index(self.name) + 1
        if at < len(self.members):
            return self.members[at]
        return self.joining
