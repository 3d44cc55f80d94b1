"""One component without a world: what it sends is written down, time is set by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from raytwin.runtime.control.messages import OK, RangeResult, TaskSpec

T = TypeVar("T")


class AloneTimer:
    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Alone:
    """`Context` for a component under test."""

    def __init__(self) -> None:
        self.rng = random.Random(0)
        self.time_s = 0.0
        self.sent: list[tuple[str, Any]] = []
        self.timers: list[AloneTimer] = []

    def now(self) -> float:
        return self.time_s

    def send(self, to: str, message: Any) -> None:
        self.sent.append((to, message))

    def after(self, delay_s: float, callback: Callable[[], None]) -> AloneTimer:
        self.timers.append(AloneTimer(self.time_s + delay_s, callback))
        return self.timers[-1]

    def pass_time(self, seconds: float) -> None:
        """Let time pass; timers that are due run in order."""
        end_s = self.time_s + seconds
        while due := [t for t in self.timers if t.due_s <= end_s and not t.cancelled]:
            timer = min(due, key=lambda t: t.due_s)
            self.timers.remove(timer)
            self.time_s = max(self.time_s, timer.due_s)
            timer.callback()
        self.time_s = end_s

    def take(self, kind: type[T], to: str = "") -> list[T]:
        """Return the messages of a type (to an address) and forget them."""
        taken = [m for a, m in self.sent if isinstance(m, kind) and a.startswith(to)]
        self.sent = [(a, m) for a, m in self.sent if not any(m is t for t in taken)]
        return taken


def array(number: int) -> bytes:
    """Return the ID of an array."""
    return number.to_bytes(12, "big")


def spec(
    number: int = 1,
    start: int = 0,
    count: int = 1,
    *,
    owner: str = "driver:0.0",
    demand: str = "CPU:1",
    deps: tuple[bytes, ...] = (),
    retries: int = 3,
    function: bytes = b"f",
    depth: int = 0,
) -> TaskSpec:
    """Return a range of tasks."""
    return TaskSpec(
        array(number), start, count, function, b"args", owner, demand, deps, 1, retries,
        -1 if count == 1 else 0, f"task{number}", None, depth,
    )  # fmt: skip


def result(
    number: int = 1, start: int = 0, count: int = 1, *, node: int = 0, size: int = 0,
    offset: int = -1, status: int = OK, payload: bytes = b"value", returns: int = 1,
) -> RangeResult:  # fmt: skip
    """Return what became of a range."""
    sizes = (size,) if size else ()
    offsets = (offset,) if size else ()
    return RangeResult(array(number), start, count, status, payload, node, returns, sizes, offsets)
