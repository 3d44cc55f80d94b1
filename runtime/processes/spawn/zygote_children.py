"""The processes that the zygote has forked: their owners, signals to them, and their end.

The owner of a process is the process that has requested it (the driver, a node, the head),
identified by its socket to the zygote. A node owns its workers.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any


class Child:
    """A process that the zygote has forked."""

    __slots__ = ("again", "asks", "key", "kind", "owner", "pid", "pidfd", "started_s")

    def __init__(self, kind: str, key: str, owner: int, pid: int, pidfd: int) -> None:
        self.kind = kind
        self.key = key
        self.owner = owner
        self.pid = pid
        self.pidfd = pidfd
        self.again: tuple[list[Any], list[int]] | None = None
        """The request and descriptors to fork it anew with."""
        self.started_s = time.monotonic()
        self.asks = -1
        """The socket over which it requests processes; -1 if it does not."""


class Children:
    """All children that have not been reaped, oldest first."""

    def __init__(self) -> None:
        self._by_pidfd: dict[int, Child] = {}

    def __iter__(self) -> Iterator[Child]:
        return iter(self._by_pidfd.values())

    def __contains__(self, pidfd: int) -> bool:
        return pidfd in self._by_pidfd

    def enter(self, child: Child) -> None:
        self._by_pidfd[child.pidfd] = child

    def pop(self, pidfd: int) -> Child:
        return self._by_pidfd.pop(pidfd)

    def _of(self, owner: int, key: str) -> list[Child]:
        return [child for child in self if child.key == key and child.owner == owner]

    def _asked(self, asker: Child) -> list[Child]:
        """Return the children that a process owns, oldest first."""
        return [child for child in self if asker.asks >= 0 and child.owner == asker.asks]

    def signal(self, owner: int, key: str, number: int) -> None:
        """Send a signal to a node of `owner`'s, and to its workers."""
        for node in self._of(owner, key):
            everyone = [node, *self._asked(node)]
            # A node stops before its workers and continues after them, so that it never
            # finds them silent.
            for child in reversed(everyone) if number == signal.SIGCONT else everyone:
                signal.pidfd_send_signal(child.pidfd, number)

    def signal_worker(self, owner: int, key: str, which: int | str, number: int) -> bool:
        """Send a signal to one worker of a node of `owner`'s; return whether there is one."""
        workers = [child for node in self._of(owner, key) for child in self._asked(node)]
        if isinstance(which, str):
            workers = [child for child in workers if child.key == which]
        elif workers:
            workers = [workers[which % len(workers)]]
        for child in workers:
            signal.pidfd_send_signal(child.pidfd, number)
        return bool(workers)

    def end_orphans(self) -> None:
        """Kill the processes that dead workers have left: they are this process's children now."""
        _end_all_but({child.pid for child in self})

    def end(self) -> None:
        """Kill every process and wait until it is gone."""
        # In this order, or nodes would log the end of the head, and the head that of replicas.
        for kinds in (("worker", "node"), ("head",), ("replica",)):
            children = [child for child in self if child.kind in kinds]
            for child in children:
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            for child in children:
                os.waitpid(child.pid, 0)
        _end_all_but(set())


def _end_all_but(known: set[int]) -> None:
    """Kill every child of this process but the known ones, and the orphans that they leave."""
    with open("/proc/thread-self/children", encoding="ascii") as file:
        pids = [int(pid) for pid in file.read().split()]
    for pid in pids:
        if pid not in known:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            # The children of the killed process are children of this one now.
            _end_all_but(known)
            return
