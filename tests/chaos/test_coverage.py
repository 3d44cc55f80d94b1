"""`make coverage` fails where the fuzz reaches too little of the control plane."""

from __future__ import annotations

import pytest

from tests.fuzz_coverage import LEAST, judge


@pytest.mark.parametrize(("covered", "code"), [(89, 1), (90, 0)])
def test_too_few_branches_fail(covered: int, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge({"covered_branches": covered, "num_branches": 100}, LEAST) == code
    assert capsys.readouterr().err.splitlines() == ["too few: 90% have to be reached"] * code
