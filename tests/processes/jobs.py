"""What the jobs of a cluster run, and what is left of them."""

from __future__ import annotations

import time
from typing import Any

import raytwin as ray
from tests.processes.helpers import eventually

BIG = 2_000_000


@ray.remote
def square(x: int) -> int:
    return x * x


@ray.remote
def nap(x: int) -> int:
    time.sleep(0.001)
    return x


@ray.remote
class Shared:
    def __init__(self) -> None:
        self.calls = 0

    def call(self, seconds: float = 0) -> int:
        self.calls += 1
        time.sleep(seconds)
        return self.calls


def job_rows(session: Any) -> dict[int, bool]:
    return {row[0]: row[5] for row in session.query("jobs")}


def nothing_left(session: Any) -> None:
    """Every resource, place and object of the cluster is free again, but for job 1's."""

    def free() -> bool:
        loads = session.query("loads")
        return (
            all(queue == 0 and available == total for _, queue, total, available in loads)
            and all(row[1:] == [0, 0, 0] for row in session.query("stores"))
            and not session.query("groups")
        )

    eventually(free)
