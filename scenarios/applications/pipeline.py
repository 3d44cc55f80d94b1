"""Sensors measure ten times a second, tasks add up, and a ledger keeps the sum, for four seconds.

Everything in it may be lost and made again: it is a script to try fault plans on.
"""

# mypy: disable-error-code="attr-defined"
# A class that was decorated has `remote`; that is known only when it runs.
from __future__ import annotations

import asyncio
from typing import Any

SENSORS, ROUNDS, PERIOD_S = 4, 40, 0.1


def main(ray: Any) -> int:
    """Return the sum of all that the sensors have measured."""

    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class Sensor:
        async def measure(self, round_: int) -> int:
            await asyncio.sleep(PERIOD_S)
            return round_

    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class Ledger:
        def __init__(self) -> None:
            self.total = 0

        def add(self, amount: int) -> int:
            self.total += amount
            return self.total

    @ray.remote(max_retries=-1)
    def add_up(*values: int) -> int:
        return sum(values)

    sensors = [Sensor.remote() for _ in range(SENSORS)]
    ledger = Ledger.remote()
    for round_ in range(ROUNDS):
        measured = [sensor.measure.remote(round_) for sensor in sensors]
        total = int(ray.get(ledger.add.remote(add_up.remote(*measured))))
    print("the ledger has", total)
    return total


if __name__ == "__main__":
    import ray

    main(ray)
