"""Finds the workers that a zygote has forked, for the faults that hit one of them."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple


def worker_pids(zygote: int, node: int) -> list[int]:
    """Return the PIDs of a node's workers, oldest first; none if the zygote has ended."""
    import psutil  # the import takes 80 ms, and only faults need it

    workers = []
    with suppress(psutil.NoSuchProcess):  # of the zygote
        for child in psutil.Process(zygote).children():
            with suppress(psutil.NoSuchProcess):  # of a worker that ends meanwhile
                if child.name().startswith(f"rt-worker:{node}."):
                    workers.append((child.create_time(), child.pid))
    return [pid for _, pid in sorted(workers)]


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
