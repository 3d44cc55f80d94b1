"""SimGrid as a peer of the simulator: both simulate the bag, and what is wrong is one line."""

from __future__ import annotations

import re
import sys

import pytest

from raytwin.scenarios.peers import PeerError, simgrid_bag
from tests.requirements import require


def test_both_simulate_the_bag(capsys: pytest.CaptureFixture[str]) -> None:
    require("simgrid", not simgrid_bag.missing(), simgrid_bag.missing())
    assert simgrid_bag.main(["--tasks", "200", "--nodes", "4", "--rounds", "2"]) == 0
    *rounds, last = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in rounds] == ["round 1 of 2", "round 2 of 2"]
    assert re.fullmatch(
        r"200 tasks on 4 nodes, medians: raytwin [\d,]+ tasks/s, SimGrid [\d,]+: [\d.]+ times as"
        r" fast \([\d.]+ to [\d.]+\)",
        last,
    )


def test_without_simgrid_a_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simgrid_bag, "interpreter", lambda: None)
    assert simgrid_bag.main([]) == 2
    assert "apt-get install python3-simgrid" in capsys.readouterr().err


def test_tasks_that_did_not_come_back_are_an_error() -> None:
    lost = 'import json; print(json.dumps({"tasks_per_s": 1.0, "done": 7}))'
    with pytest.raises(PeerError, match="7 of 8 tasks came back"):
        simgrid_bag._rate([sys.executable, "-c", lost], 8, 1)
    with pytest.raises(PeerError, match="ZeroDivisionError"):
        simgrid_bag._rate([sys.executable, "-c", "1 / 0"], 8, 1)


@pytest.mark.parametrize("given", [["--tasks", "0"], ["--rounds", "x"]])
def test_bad_input_is_refused(given: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        simgrid_bag.main(given)
    assert ended.value.code == 2
