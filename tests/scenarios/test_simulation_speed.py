"""The simulator's own speed: each load runs by itself, and what is wrong is one line."""

from __future__ import annotations

import re

import pytest

from raytwin.scenarios.measure import simulation_speed
from raytwin.scenarios.measure.simulation_speed import Load, main, measure


def test_every_load_runs_and_says_its_medians(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "1", "--scale", "0.002"]) == 0
    *rounds, _, single, more, each, most, array, strong, weak = capsys.readouterr().out.splitlines()
    assert len(rounds) == 5
    assert single.startswith("200 tasks singly submitted on 1 nodes: ")
    assert more.startswith("200 tasks singly submitted on 2 nodes: ")
    assert each.startswith("2,000 tasks singly submitted on 2 nodes: ")
    assert most.startswith("200 tasks singly submitted on 20 nodes: ")
    assert array.startswith("200,000 tasks as arrays on 1 nodes: ")
    for said, how in (strong, "strong"), (weak, "weak"):
        assert re.fullmatch(
            rf"{how} scaling: with 2 nodes [\d.]+ of the speed with 1 \([\d.]+ to [\d.]+\)", said
        )


def test_the_start_and_the_tasks_are_timed_apart() -> None:
    few, many = (measure(Load(4, tasks)) for tasks in (10, 4_000))
    assert few.tasks_s < many.tasks_s
    assert min(few.start_s, many.start_s) > 0
    assert few.peak_bytes > 10 << 20


def test_a_load_that_fails_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulation_speed, "_PROGRAM", "1 / 0")
    assert main(["--rounds", "1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "on 100 nodes failed: ZeroDivisionError" in line
    monkeypatch.setattr(simulation_speed, "_PROGRAM", "print('{\"done\": 3}')")
    assert main(["--rounds", "1"]) == 1
    assert "tasks were lost" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--rounds", "0"], ["--scale", "2"], ["--scale", "0"]])
def test_bad_input_is_refused(given: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
