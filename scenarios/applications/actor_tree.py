"""A tree of actors: supervisors start workers of their own, share work out, and pass answers up.

The driver knows the supervisors alone. The work is to count primes in ranges of numbers; in each
round every supervisor cuts its range into one for each of its workers.

    python actor_tree.py [NUMBERS_PER_WORKER]
"""

# mypy: disable-error-code="attr-defined"
# A class that was decorated has `remote`; that is known only when it runs.
from __future__ import annotations

import sys
from typing import Any

SUPERVISORS, WORKERS, ROUNDS = 3, 2, 6
NUMBERS = 50_000


def main(ray: Any, numbers: int = NUMBERS) -> int:
    """Return how many primes there are below ROUNDS * SUPERVISORS * WORKERS * `numbers`."""

    @ray.remote
    class Worker:
        def __init__(self) -> None:
            self.found = 0

        def count(self, first: int, last: int) -> int:
            found = 0
            for number in range(max(2, first), last):
                found += all(number % each for each in range(2, int(number**0.5) + 1))
            self.found += found
            return self.found

    @ray.remote
    class Supervisor:
        def __init__(self) -> None:
            self.workers = [Worker.remote() for _ in range(WORKERS)]

        def count(self, first: int) -> int:
            starts = [first + number * numbers for number in range(WORKERS)]
            counts = [
                worker.count.remote(start, start + numbers)
                for worker, start in zip(self.workers, starts, strict=True)
            ]
            return int(sum(ray.get(counts)))

    supervisors = [Supervisor.remote() for _ in range(SUPERVISORS)]
    total = 0
    for round_ in range(ROUNDS):
        firsts = [(round_ * SUPERVISORS + n) * WORKERS * numbers for n in range(SUPERVISORS)]
        total = sum(
            ray.get(
                [
                    supervisor.count.remote(first)
                    for supervisor, first in zip(supervisors, firsts, strict=True)
                ]
            )
        )
    print(f"{total:,} primes below {ROUNDS * SUPERVISORS * WORKERS * numbers:,}")
    return total


if __name__ == "__main__":
    import ray

    ray.init()
    main(ray, *map(int, sys.argv[1:]))
