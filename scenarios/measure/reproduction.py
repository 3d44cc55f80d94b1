"""A reproduction of every figure: what an earlier one has finished, and how long the rest takes.

A result stands for a job if it is of the same commit, of a tree without changes, and of the same
command, which has the scale, the seed and all settings; if it used the profile of this machine that
the others use; and if every check of it holds. Where raytwin is installed without a repository, its
version stands for the commit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

from raytwin.scenarios.core import measured_host, results
from raytwin.scenarios.core.results import Record, ResultError
from raytwin.scenarios.measure import runner
from raytwin.scenarios.measure.runner import Done, Job


class Reproduction:
    """The jobs of a reproduction below `out`; `fresh` ones forget what is there."""

    def __init__(self, jobs: Sequence[Job], out: Path, fresh: bool) -> None:
        self._figures = list(dict.fromkeys(job.scenario.name for job in jobs))
        earlier = [(job, record) for job in jobs if (record := _read(out, job)) is not None]
        self._known_s = {
            job.name: record.made.duration_s
            for job, record in earlier
            if record.made is not None and record.parameters.get("scale") == job.scale
        }
        """How long the jobs took, by name: in an earlier run, or in this one."""
        if fresh:
            for job in jobs:
                results.discard(out, job.scenario.name, job.backend)
            (out / runner.PROFILE).unlink(missing_ok=True)
            earlier = []
        profile = runner.PROFILE if runner.predict(jobs) else None
        if profile is not None and not (out / profile).exists():
            earlier = []  # one is measured now, and no result has used it
        self.taken = [job for job, record in earlier if stands(record, job, profile)]
        """The jobs whose results stand."""
        self.jobs = [job for job in jobs if job not in self.taken]
        """The others, which are to be run."""
        self.simulated = sorted(
            (job for job in self.jobs if job.backend == "sim"),
            key=lambda job: -self._known_s.get(job.name, math.inf),
        )
        """The jobs that simulate, the longest first."""
        self.measured = [job for job in self.jobs if job not in self.simulated]
        """The others, in their order."""
        self._left = [*self.simulated, *self.measured]
        self._since_s = time.perf_counter()

    def add(self, done: Done) -> None:
        """Take note that a job has run."""
        self._known_s[done.job.name] = done.elapsed_s
        self._left.remove(done.job)
        self._since_s = time.perf_counter()

    def where(self) -> str:
        """Say which figure is measured and, as far as that is known, how long the rest takes."""
        number = self._figures.index(self._left[0].scenario.name) + 1
        return f"{number} of {len(self._figures)}{self._tail()}"

    def what(self) -> str:
        """Say how many figures are simulated, and how long all takes."""
        return f"simulating {len(self.simulated)} of {len(self._figures)}{self._tail()}"

    def _tail(self) -> str:
        left_s = self.left_s()
        return f", {spoken(left_s)} left" if left_s is not None else ""

    def left_s(self) -> float | None:
        """Return for how many seconds the jobs that are left will run; None: nothing is known.

        Those that never ran count as the mean of those that did; those that are simulated share
        the cores.
        """
        if not self._known_s:
            return None
        mean_s = sum(self._known_s.values()) / len(self._known_s)
        left_s = {job.name: self._known_s.get(job.name, mean_s) for job in self._left}
        simulated_s = sum(left_s[job.name] for job in self._left if job in self.simulated)
        whole_s = sum(left_s.values()) - simulated_s * (1 - 1 / measured_host.cores())
        return max(0.0, whole_s - (time.perf_counter() - self._since_s))


def _read(out: Path, job: Job) -> Record | None:
    """Return what `out` has of a job; None if that is nothing, or cannot be read."""
    try:
        return results.read(out / job.scenario.name / job.backend, timeline=False).record
    except ResultError:
        return None


def stands(record: Record, job: Job, profile: str | None) -> bool:
    """Whether a result is what the job would be run for, with a profile of that name or without."""
    made = record.made
    return (
        made is not None
        and made.command == job.command
        and record.parameters.get("profile") == profile
        and made.commit == runner.commit()
        and not made.commit.endswith("+")
        and record.versions.get("raytwin") == measured_host.raytwin_version()
        and all(check.ok for check in record.checks)
    )


def spoken(seconds: float) -> str:
    """Return a duration as a person says it."""
    if seconds < 50:
        return f"about {max(10, 10 * round(seconds / 10))} s"
    return f"about {max(1, round(seconds / 60))} min"
