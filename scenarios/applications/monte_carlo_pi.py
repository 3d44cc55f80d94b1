"""Monte Carlo estimate of pi: tasks draw points, and an actor knows how far each of them is.

A point of the unit square is below the quarter circle with probability pi / 4. The driver asks the
actor for the progress of all tasks while it waits for them.

    python monte_carlo_pi.py [POINTS_PER_TASK]
"""

# mypy: disable-error-code="attr-defined"
# A class that was decorated has `remote`; that is known only when it runs.
from __future__ import annotations

import random
import sys
from typing import Any

TASKS, REPORTS, PERIOD_S = 16, 10, 0.25
POINTS = 2_000_000


def main(ray: Any, points: int = POINTS) -> float:
    """Return the estimate from `points` points of each task."""

    @ray.remote
    class Progress:
        def __init__(self) -> None:
            self.drawn = [0] * TASKS

        def report(self, task: int, drawn: int) -> None:
            self.drawn[task] = drawn

        def share(self) -> float:
            return sum(self.drawn) / (TASKS * points)

    @ray.remote
    def draw(task: int, progress: Any) -> int:
        generator = random.Random(task).random
        below = 0
        for report in range(1, REPORTS + 1):
            for _ in range(points // REPORTS):
                below += generator() ** 2 + generator() ** 2 <= 1.0
            progress.report.remote(task, report * (points // REPORTS))
        return below

    progress = Progress.remote()
    drawing = [draw.remote(task, progress) for task in range(TASKS)]
    asked = 0
    left = drawing
    while left:
        _, left = ray.wait(drawing, num_returns=TASKS, timeout=PERIOD_S)
        asked += 0.0 <= ray.get(progress.share.remote()) <= 1.0
    pi = 4 * sum(ray.get(drawing)) / (TASKS * (points // REPORTS) * REPORTS)
    print(f"pi is about {pi:.4f}; the progress was asked for {asked} times")
    return pi


if __name__ == "__main__":
    import ray

    ray.init()
    main(ray, *map(int, sys.argv[1:]))
