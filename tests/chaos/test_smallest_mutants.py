"""Each mutant of `test_mutants` is caught by a case of a few faults and a few operations.

`shrink_mutants` says where the cases come from.
"""

from __future__ import annotations

import pytest

from raytwin.chaos.fuzz.generate import case_file
from raytwin.chaos.fuzz.run.case_run import run_case
from tests.chaos.shrink_mutants import SMALLEST, file_of, is_small
from tests.chaos.test_mutants import EVERY_MUTANT


def test_there_is_one_case_for_each_mutant() -> None:
    assert {*SMALLEST.iterdir()} == {*map(file_of, EVERY_MUTANT)}


@pytest.mark.parametrize("name", EVERY_MUTANT)
def test_a_small_case_catches_a_defect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_file.load(file_of(name))
    assert is_small(case)
    mutant = EVERY_MUTANT[name]
    assert run_case(case).failures == [], "without the defect it holds"
    mutant.break_it(monkeypatch)
    assert any(each.kind in mutant.kinds for each in run_case(case).failures)
