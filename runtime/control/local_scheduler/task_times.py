"""Mean times of a node's tasks: of each function, and of all.

Of tasks that begin together the short ones end first. So a mean over the last few that have ended
is too low when many workers begin at once, and too high when the last of them end; and who decides
by it keeps too much on this node, and gives too much to one worker. These means cover the last
`GENERATIONS` tasks of every worker instead: the short and the long ones of the same beginning.
"""

from __future__ import annotations

from collections.abc import Callable

GENERATIONS = 2
"""How many tasks of each worker a mean covers."""
SAMPLES_MIN = 10
"""How many tasks a mean covers at least, where workers are few; the first one counts as so many."""


class TaskTimes:
    """Mean times of the tasks that have ended on one node: exponential averages."""

    def __init__(self) -> None:
        self.means: dict[bytes, float] = {}
        """Mean seconds of a task, by its function."""
        self.mean_s = 0.0
        """Mean seconds of a task of any function; 0 while none has ended."""
        self._samples: dict[bytes, int] = {}
        self._samples_of_all = 0

    def add(self, function: bytes, count: int, each_s: float, workers: int) -> None:
        """Add tasks of one function that took `each_s` seconds each, on a node of so many workers.

        Tasks that end together count as so many, but never outweigh the past completely.
        """
        most = max(SAMPLES_MIN, GENERATIONS * workers)
        past_s = self.means.get(function)
        if past_s is None:
            self._samples[function] = SAMPLES_MIN
            self.means[function] = each_s
        else:
            samples = self._samples.get(function, SAMPLES_MIN)
            self._samples[function] = samples = min(samples + count, most)
            self.means[function] = past_s + _weight(count, samples) * (each_s - past_s)
        samples = self._samples_of_all = min(max(SAMPLES_MIN, self._samples_of_all + count), most)
        self.mean_s += _weight(count, samples) * (each_s - self.mean_s) if self.mean_s else each_s

    def forget(self, is_over: Callable[[bytes], bool]) -> None:
        """Forget the functions for which `is_over` returns true."""
        for function in [function for function in self.means if is_over(function)]:
            del self.means[function]
            self._samples.pop(function, None)


def _weight(count: int, samples: int) -> float:
    """Return what `count` tasks weigh in a mean that covers `samples`."""
    return 1 / samples if count == 1 else 1 - (1 - 1 / samples) ** min(count, samples)
