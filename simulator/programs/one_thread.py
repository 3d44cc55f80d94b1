"""Simulated programs have one thread: the one in which the simulation was started.

All programs run on it in turn, and a turn ends where a program waits. A call from another
thread would interfere in the middle of a turn. It is refused before it has changed anything,
so the simulation goes on.
"""

from __future__ import annotations

from threading import get_ident

REFUSED = (
    "simulated programs have one thread, and this is another one: call raytwin where init() was"
    " called, and let tasks, or actors with max_concurrency, do things side by side"
)


def check(owner: int) -> None:
    """Raise RuntimeError unless called on the thread with this number."""
    if get_ident() != owner:
        raise RuntimeError(REFUSED)
