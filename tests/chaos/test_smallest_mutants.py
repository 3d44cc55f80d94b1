"""Each mutant of `test_mutants` is caught by a case of a few faults and a few operations.

`shrink_mutants` has written the cases, each shrunk from the first seed that catches its mutant.
"""

from __future__ import annotations

import pytest

from raytwin.chaos.fuzz.generate import case_file
from raytwin.chaos.fuzz.run.case_run import run_case
from tests.chaos.shrink_mutants import SMALLEST, file_of, is_small
from tests.chaos.test_mutants import EVERY_MUTANT

LARGER = {
    "the global scheduler hears of no death",
    "nodes hear of no death",
    "dead nodes are still asked for objects",
    "results on their way from a dead node are not missed",
    "yielded items of calls are forgotten",
}
"""Mutants of which the shrinker has left larger cases only."""
SHRUNK = [name for name in EVERY_MUTANT if name not in LARGER]


def test_there_is_one_case_for_each_mutant() -> None:
    assert {*SMALLEST.iterdir()} == {*map(file_of, SHRUNK)}


@pytest.mark.parametrize("name", SHRUNK)
def test_a_small_case_catches_a_defect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_file.load(file_of(name))
    assert is_small(case)
    mutant = EVERY_MUTANT[name]
    assert run_case(case).failures == [], "without the defect it holds"
    mutant.break_it(monkeypatch)
    assert any(each.kind in mutant.kinds for each in run_case(case).failures)
