"""Actors whose state tells what happened to them, and the actor table."""

from __future__ import annotations

import os
from typing import Any

import raytwin as ray


@ray.remote
class Account:
    """Its state is a history: what took effect twice, or not at all, shows."""

    def __init__(self, history: list[Any] | None = None, start_s: float = 0.0) -> None:
        ray.sleep(start_s)
        self.history: list[Any] = list(history or [])

    def add(self, item: Any) -> int:
        self.history.append(item)
        return len(self.history)

    def all(self) -> list[Any]:
        return self.history

    def die(self) -> None:
        os._exit(3)

    def leave(self, seconds: float = 0.0) -> None:
        ray.sleep(seconds)
        ray.exit_actor()

    def nap(self, seconds: float) -> str:
        ray.sleep(seconds)
        return "rested"

    def pid(self) -> int:
        return os.getpid()


@ray.remote(max_restarts=-1, max_task_retries=-1, checkpoint_interval=10)
class Saved:
    """An account with checkpoints."""

    def __init__(self) -> None:
        self.total = 0
        self.restored = 0

    def add(self, x: int) -> int:
        self.total += x
        return self.total

    def restorations(self) -> int:
        return self.restored

    def die(self) -> None:
        os._exit(3)

    def __ray_save__(self) -> Any:
        return [self.total, self.restored]

    def __ray_restore__(self, state: Any) -> None:
        self.total, self.restored = state[0], state[1] + 1


def rows(session: Any, name: str) -> list[list[Any]]:
    """Return the actor table's [name, node, incarnation, state, calls, replayed, worker, PID]."""
    return [row for row in session.query("actors") if row[0] == name]
