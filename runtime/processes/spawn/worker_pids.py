"""Finds the workers that a zygote has forked, for the faults that hit one of them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


def worker_pids(zygote: int, node: int) -> list[int]:
    """Return the PIDs of a node's workers, oldest first; none if the zygote has ended.

    A fault waits for this, so it reads what the kernel knows of this one parent: to look at every
    process of the machine takes milliseconds.
    """
    workers = []
    for pid in _children(zygote):
        with suppress(FileNotFoundError, ProcessLookupError):  # of a worker that ends meanwhile
            if Path(f"/proc/{pid}/comm").read_text().startswith(f"rt-worker:{node}."):
                workers.append(int(pid))
    return workers


def _children(parent: int) -> list[str]:
    """Return the PIDs of a process's children in the order in which it has forked them."""
    path = Path(f"/proc/{parent}/task/{parent}/children")
    found = None
    try:
        # The kernel may leave some out while one of them ends: two reads in a row have to agree.
        while found != (again := path.read_text().split()):
            found = again
    except (FileNotFoundError, ProcessLookupError):
        if path.parent.exists():
            raise  # a kernel that does not say
        return []
    return found


class Memory(NamedTuple):
    """The memory of a process, in bytes."""

    resident: int
    """By which the kernel chooses whom it kills for want of memory."""
    share: int
    """The same, with a part of each page that several processes share."""


def memory_of(pids: list[int]) -> dict[int, Memory]:
    """Return the memory of the processes that are still there, by PID."""
    import psutil  # the import takes 80 ms, and only faults need it

    found = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            info = psutil.Process(pid).memory_full_info()
            found[pid] = Memory(info.rss, info.pss)
    return found


def send_signal(pids: list[int], number: int) -> None:
    """Send a signal to the processes that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
