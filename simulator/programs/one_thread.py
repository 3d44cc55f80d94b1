"""Simulated programs have one thread: that in which the simulation was started.

All of them run on it in turn, and a turn ends where a program waits; another thread would
take part in the middle of somebody's turn. What it asks for is refused before anything
has been done about it, so that the simulation goes on.
"""

from __future__ import annotations

from threading import get_ident

REFUSED = (
    "simulated programs have one thread, and this is another one: call raytwin where init() was"
    " called, and let tasks, or actors with max_concurrency, do things side by side"
)


def check(owner: int) -> None:
    """Raise RuntimeError on any thread but the one with this number."""
    if get_ident() != owner:
        raise RuntimeError(REFUSED)
