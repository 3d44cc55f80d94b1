"""Writes a small case for each mutant that has none, or one that does not catch it any more.

`test_smallest_mutants` runs these cases. The shrinker has found them, but for those that
`docs/promises.md` names: there it has left larger cases, within its time, and the small one is
written by hand. So a case that is small and catches its mutant stays.

``python -m tests.chaos.shrink_mutants [NAME...]``, for all mutants or those whose names contain one
of the texts, after a change of what a case means, or with a new mutant. To have a case written
anew, delete its file.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from pathlib import Path

import pytest

from raytwin.chaos.fuzz.generate import case_file
from raytwin.chaos.fuzz.generate.cases import Case, draw_case
from raytwin.chaos.fuzz.run.case_run import Report, run_case
from raytwin.chaos.fuzz.run.shrink import Shrinker, described, weight
from tests.chaos.test_mutants import EVERY_MUTANT, Mutant, catching_seeds

SMALLEST = Path(__file__).parent / "mutants"
ENOUGH_S = 40.0
"""CPU seconds after which the smallest case so far of a seed has to do."""
SEEDS = 5
"""The most seeds that are shrunk, until one leaves a case within the limits."""
FAULTS_MAX = 3
OPERATIONS_MAX = 5


class EnoughError(Exception):
    """The shrinking has taken long enough."""


def file_of(name: str) -> Path:
    """Return the file of a mutant's smallest case."""
    return SMALLEST / f"{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_')}.json"


def is_small(case: Case) -> bool:
    """Whether a case has as few faults and operations as a shrunk case should."""
    faults, operations = weight(case)
    return faults <= FAULTS_MAX and operations <= OPERATIONS_MAX


def smallest(mutant: Mutant) -> Report:
    """Return the report of the smallest case that the shrinker finds for a mutant."""
    found: list[Report] = []
    with pytest.MonkeyPatch.context() as patch:
        mutant.break_it(patch)
        seeds = catching_seeds(mutant)
        while len(found) < SEEDS and not any(is_small(each.case) for each in found):
            found.append(shrunk(next(seeds), mutant))
    return min(found, key=lambda each: weight(each.case)[::-1])


def is_kept(path: Path, mutant: Mutant) -> bool:
    """Whether the case in a file, if there is one, is small, holds, and catches a mutant."""
    if not path.exists():
        return False
    case = case_file.load(path)
    if not is_small(case) or run_case(case).failures:
        return False
    with pytest.MonkeyPatch.context() as patch:
        mutant.break_it(patch)
        return bool(failures_of(case, mutant).failures)


def failures_of(case: Case, mutant: Mutant) -> Report:
    """Run a case; return its report with the failures that are of the mutant's kinds."""
    report = run_case(case)
    report.failures = [each for each in report.failures if each.kind in mutant.kinds]
    return report


def shrunk(seed: int, mutant: Mutant) -> Report:
    """Shrink the case of a seed, for `ENOUGH_S` at most."""
    report = failures_of(draw_case(seed), mutant)
    end_s = time.process_time() + ENOUGH_S

    def look() -> None:
        if time.process_time() > end_s:
            raise EnoughError

    shrinker = Shrinker(report, on_run=look)
    try:
        return shrinker.shrink()
    except EnoughError:
        return shrinker.smallest


def main(names: list[str]) -> None:
    logging.getLogger("raytwin").setLevel(logging.ERROR)
    for name, mutant in EVERY_MUTANT.items():
        if names and not any(each in name for each in names):
            continue
        if is_kept(file_of(name), mutant):
            print(f"{name}: its case catches it", flush=True)
        else:
            report = smallest(mutant)
            case_file.write(file_of(name), report.case, list(map(str, report.failures[:3])))
            print(f"{name}: {described(report.case)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
