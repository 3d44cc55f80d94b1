"""The task and the actor of a steady load.

They have a module to themselves, which each new worker imports before its first task: what only the
driver needs is in `steady_load`.
"""

from __future__ import annotations

import raytwin as ray
from raytwin.scenarios.core.execution_record import begin

CHECKPOINT_INTERVAL = 5
MODULUS = 2**31 - 1


def fold(number: int) -> int:
    """Return the value of the task of a number."""
    return (number * 31 + 7) % MODULUS


def _work(number: int, seconds: float, record: str) -> int:
    """A task: takes its time, and returns the fold of its number."""
    if record:
        begin(record)
    ray.sleep(seconds)
    return fold(number)


class Tally:
    """An actor that counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, seconds: float, record: str) -> int:
        """Take the time of a call, and return how many have taken effect."""
        if record:
            begin(record)
        ray.sleep(seconds)
        self.count += 1
        return self.count

    def __ray_save__(self) -> int:
        return self.count

    def __ray_restore__(self, state: int) -> None:
        self.count = state


work = ray.remote(max_retries=-1)(_work)
tally = ray.remote(
    num_cpus=0,
    max_restarts=-1,
    max_task_retries=-1,
    checkpoint_interval=CHECKPOINT_INTERVAL,
)(Tally)
