"""`make coverage`, which the nightly workflow runs, fails where the fuzz reaches too little of the
control plane; here its verdict is tried."""

from __future__ import annotations

import pytest

from tests.fuzz_coverage import LEAST, judge


@pytest.mark.parametrize(("covered", "code"), [(89, 1), (90, 0)])
def test_the_verdict_on_too_few_branches(
    covered: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge({"covered_branches": covered, "num_branches": 100}, LEAST) == code
    assert capsys.readouterr().err.splitlines() == ["too few: 90% have to be reached"] * code
