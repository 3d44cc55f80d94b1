"""The processes that the zygote has forked: who has asked for each, and their end.

Who asks (the driver, a node, the head) is known by the socket that it asks over. A node's
workers are those that it has asked for.
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
        """The request and descriptors to start it with once more."""
        self.started_s = time.monotonic()
        self.asks = -1
        """The socket over which it asks for processes, if it does."""


class Children:
    """All that live, or whose end has not been seen yet, oldest first."""

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
        """Return what a process has asked for and is there, oldest first."""
        return [child for child in self if asker.asks >= 0 and child.owner == asker.asks]

    def signal(self, owner: int, key: str, number: int) -> None:
        """Send a signal to a node that `owner` has asked for, and to its workers."""
        for node in self._of(owner, key):
            everyone = [node, *self._asked(node)]
            # A node stops before its workers, and goes on after them: it must not
            # see them silent.
            for child in reversed(everyone) if number == signal.SIGCONT else everyone:
                signal.pidfd_send_signal(child.pidfd, number)

    def signal_worker(self, owner: int, key: str, which: int | str, number: int) -> bool:
        """Send a signal to one worker of such a node; return whether there was one."""
        workers = [child for node in self._of(owner, key) for child in self._asked(node)]
        if isinstance(which, str):
            workers = [child for child in workers if child.key == which]
        elif workers:
            workers = [workers[which % len(workers)]]
        for child in workers:
            signal.pidfd_send_signal(child.pidfd, number)
        return bool(workers)

    def end_orphans(self) -> None:
        """Kill what dead workers have left: their children are this process's now."""
        _end_all_but({child.pid for child in self})

    def end(self) -> None:
        """Kill every process and wait until it is gone."""
        # Nodes that see the head go would say so, and the head of replicas.
        for kinds in (("worker", "node"), ("head",), ("replica",)):
            children = [child for child in self if child.kind in kinds]
            for child in children:
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            for child in children:
                os.waitpid(child.pid, 0)
        _end_all_but(set())


def _end_all_but(known: set[int]) -> None:
    """Kill every child of this process that is not known, and what comes here by that."""
    with open("/proc/thread-self/children", encoding="ascii") as file:
        pids = [int(pid) for pid in file.read().split()]
    for pid in pids:
        if pid not in known:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            # What it had started itself comes here now.
            _end_all_but(known)
            return
