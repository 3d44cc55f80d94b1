"""What a master makes of the replicas that it finds when it takes another one's place.

The head's process may be killed while the replicas live: they have the state, and
serve on under the last configuration that they have heard of. Who comes next asks them::

    ASKING ──all that live have said what they know──> the chain goes on, in a new epoch

Who lives the world knows (`ReplicasFound`), and that the dead do not come back: a
master has who it leaves out killed (`StopReplica`), should it live after all. So

* whoever lives and *serves*, which is to have been a member, was never left out: he is
  in the latest chain, and so he has all that was ever answered, since no chain that he
  is in answers what he has not applied;
* the order of the latest configuration that one of them knows is that of the chain, and
  the living in this order are one;
* who was about to join begins again, from nothing;
* if nobody serves, but members have logs, the longest of the latest epoch has all that
  was answered: its replica is started again, and is one that lives and serves;
* else the state is lost. Unless nobody ever has had it: a living replica of the
  first ones that was never configured has seen to it that nothing was answered.

Epochs of a life are later than any of the lives before.
"""

from __future__ import annotations

from raytwin.runtime.control.messages import ReplicaInfo, ReplicaReady, ReplicasFound

EPOCHS_PER_LIFE = 1 << 20
"""A master's first epoch is later than any that another one has configured."""
REVIVED_MAX = 5
"""How often one replica is started again from its log, which may be damaged, in a row."""


def number_of(name: str) -> int:
    """Return the number of a replica, by which it is named.

    >>> number_of("replica:0.3000001")
    3000001
    """
    return int(name.partition(".")[2])


class MasterRecovery:
    """What replicas have said of themselves, until all that live have."""

    def __init__(self) -> None:
        self.first = False
        """Whether there never was a replica."""
        self.reports: dict[str, ReplicaReady] = {}
        self.kept: dict[str, tuple[int, int]] = {}
        """Epoch and last command of members that do not live, and have them on disk."""
        self._revived: dict[str, int] = {}
        self._alive: dict[str, None] | None = None

    def found(self, message: ReplicasFound) -> None:
        """The world has said who lives, who has lived, and what is on disk."""
        self.first = not message.alive and not message.ended
        self.kept = {name: (epoch, last) for name, epoch, last, member in message.kept if member}
        alive = message.alive
        self._alive = dict.fromkeys(alive)

    def drop(self, name: str, kept: tuple[str, int, int, bool] | None) -> None:
        """It lives no more; what it has on disk may be needed."""
        self.reports.pop(name, None)
        if kept is not None and kept[-1] and self._revived.get(name, 0) < REVIVED_MAX:
            self.kept[name] = kept[1:3]
        if self._alive is not None:
            self._alive.pop(name, None)

    def revive(self) -> str:
        """Return whose log is to be gone on with, as nobody lives who has the state; "" for none.

        He is waited for then, as if he lived.
        """
        if not self.kept:
            return ""
        name = max(self.kept, key=lambda name: (self.kept[name], name))
        del self.kept[name]
        self._revived[name] = self._revived.get(name, 0) + 1
        self.await_(name)
        return name

    def await_(self, name: str) -> None:
        """Wait for the report of this replica, too."""
        self._alive = {**(self._alive or {}), name: None}

    @property
    def complete(self) -> bool:
        """Whether all that live have reported."""
        return self._alive is not None and all(name in self.reports for name in self._alive)

    @property
    def serving(self) -> bool:
        """Whether one of those that have reported has the state."""
        return any(report.serving for report in self.reports.values())

    def chain(self) -> tuple[int, list[ReplicaInfo]]:
        """Return the latest epoch that is known, and who of its chain is left, in order."""
        serving = [report for report in self.reports.values() if report.serving]
        latest = max(serving, key=lambda report: report.epoch)
        infos = {report.info.name: report.info for report in serving}
        return latest.epoch, [infos[name] for name in latest.members if name in infos]

    def untouched(self, before: int) -> bool:
        """Whether nobody can have had the state: one of the first was never configured.

        `before` is the number of the first replica after those.
        """
        return any(
            report.epoch == 0 and number_of(name) < before for name, report in self.reports.items()
        )
