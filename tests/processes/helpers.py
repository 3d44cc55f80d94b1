"""What several tests need: waiting for a condition, looking at processes, a remote module."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

LIMIT_S = 30.0
"""What only a hang takes."""


def eventually(condition: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """Return the condition's first true value; fail if there is none within the limit."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)
    return value


def kill_at_once(session: Any, keys: list[str]) -> None:
    """Kill processes of a cluster before any of them can be replaced."""
    session.cluster.poll()
    pids = session.cluster.pids
    os.kill(pids["zygote"], signal.SIGSTOP)
    try:
        for key in keys:
            os.kill(pids[key], signal.SIGKILL)
    finally:
        os.kill(pids["zygote"], signal.SIGCONT)


def workers_of(node_pid: int) -> list[psutil.Process]:
    """Return the workers that the zygote behind a node has forked for it.

    Every process is the zygote's child; a worker is told by its name.
    """
    zygote = psutil.Process(node_pid).parent()
    assert zygote is not None
    found = []
    for process in zygote.children():
        # Some end while they are looked at.
        with suppress(psutil.NoSuchProcess):
            if process.name().startswith("rt-worker"):
                found.append(process)
    return found


def double(x: Any) -> Any:
    """A function of a module that workers can import."""
    return x + x


def pid() -> int:
    """Return the PID of whoever runs this."""
    return os.getpid()
