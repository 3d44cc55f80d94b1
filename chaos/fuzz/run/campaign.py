"""Runs many seeds of the fuzz on several processes."""

from __future__ import annotations

import gc
import logging
from collections import Counter, deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from raytwin.chaos.fuzz.generate import case_file
from raytwin.chaos.fuzz.generate.cases import draw_case
from raytwin.chaos.fuzz.oracle.legitimate_errors import Verdict
from raytwin.chaos.fuzz.run.case_run import Report, run_case
from raytwin.runtime.processes.spawn.pool import forked_pool

EXCUSED_MAX = 0.02
"""The largest share of values in whose place a campaign accepts an error without certain cause."""
OUTCOMES_MIN = 1_000
"""The fewest values of which the share says anything."""


def run_seeds(
    seeds: Sequence[int], jobs: int = 1, lossless: bool = False
) -> Generator[Report, None, None]:
    """Yield the report of each seed, in order. Raises RuntimeError if one of the processes ends.

    A caller that does not need all reports closes the generator, which ends the processes.
    """
    if jobs == 1:
        for seed in seeds:
            yield _run(seed, lossless)
        return
    pending: deque[Future[Report]] = deque()
    with forked_pool(jobs, _run) as submit:
        for seed in seeds:
            pending.append(submit(seed, lossless))
            if len(pending) > 4 * jobs:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@dataclass
class Summary:
    """Adds up the reports of a campaign."""

    ran: int = 0
    failed: int = 0
    tasks: int = 0
    faults: int = 0
    outcomes: int = 0
    verdicts: Counter[Verdict] = field(default_factory=Counter)

    def add(self, report: Report) -> None:
        self.ran += 1
        self.failed += bool(report.failures)
        self.tasks += report.tasks
        self.faults += report.faults
        self.outcomes += report.outcomes
        self.verdicts += report.verdicts

    @property
    def excused(self) -> float:
        """The share of values in whose place came an error without a certain cause."""
        return self.verdicts[Verdict.EXCUSED] / max(1, self.outcomes)

    @property
    def excuses_too_much(self) -> bool:
        """Whether so much is excused that defects may hide there; of few values it says nothing."""
        return self.outcomes >= OUTCOMES_MIN and self.excused > EXCUSED_MAX

    def __str__(self) -> str:
        return (
            f"{self.ran - self.failed} of {self.ran} seeds hold: {self.tasks:,} tasks,"
            f" {self.faults:,} faults; of {self.outcomes:,} values"
            f" {self.verdicts[Verdict.OWN]:,} were ended by their program,"
            f" {self.verdicts[Verdict.CHARGED]:,} lost to deaths that hit just them,"
            f" {self.excused:.2%} excused"
        )


def _run(seed: int, lossless: bool) -> Report:
    # Faults make clusters warn; the report has what matters.
    log = logging.getLogger("raytwin")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return run_case(draw_case(seed, lossless))
    finally:
        log.setLevel(level)
        _keep_loaded()


@cache
def _keep_loaded() -> None:
    """Once a case has run, the collections at the end of later ones need not look at what stays
    loaded: modules, types and caches."""
    gc.collect()
    gc.freeze()


def write_failure(report: Report, directory: Path) -> Path:
    """Write the case of a seed that fails, and what it has violated; return the file."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"fuzz-{report.case.seed}.json"
    case_file.write(path, report.case, list(map(str, report.failures)))
    return path
