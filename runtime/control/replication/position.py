"""A replica's place in its chain: what it is, and who is next to it.

========= ========================================= ==========================
state     what it does                              leaves it when
========= ========================================= ==========================
NEW       nothing                                   configured: JOINING, or
                                                    SERVING in the first epoch
JOINING   takes the snapshot, then commands         configured as a member
SERVING   by its place: HEAD numbers, TAIL answers  configured without it
FENCED    nothing, ever                             --
========= ========================================= ==========================

A member's place is of an epoch: `chain_master` decides on it, `chain.Replica` acts on it.
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


class Member:
    """Who a replica is to the others of its chain."""

    def __init__(self, info: ReplicaInfo, epoch: int, members: list[str]) -> None:
        """`epoch` and `members` are the latest that it knows of; 0 and none if it is new."""
        self.info = info
        self.state = State.NEW
        self.epoch = epoch
        self.members = members
        self.places: dict[str, ReplicaInfo] = {}
        """Where every replica of the chain listens, by name."""
        self._joining = ""

    def _take_place(self, message: ChainConfigured) -> None:
        """A new epoch begins; what that means for its state is the replica's to say."""
        self.epoch = message.epoch
        self.members = [info.name for info in message.members]
        self._joining = message.joining.name if message.joining is not None else ""
        self.places = {
            info.name: info for info in (*message.members, message.joining) if info is not None
        }

    @property
    def is_head(self) -> bool:
        """Whether this replica numbers requests."""
        return self.state is State.SERVING and self.members[0] == self.info.name

    @property
    def is_tail(self) -> bool:
        """Whether this replica lets outputs out."""
        return self.state is State.SERVING and self.members[-1] == self.info.name

    @property
    def predecessor(self) -> str:
        """From whom a member that is not the head has the commands."""
        return self.members[self.members.index(self.info.name) - 1]

    @property
    def successor(self) -> str:
        """Who gets the commands next: a member, or who joins behind the tail."""
        at = self.members.index(self.info.name) + 1
        if at < len(self.members):
            return self.members[at]
        return self._joining
