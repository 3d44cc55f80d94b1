"""A machine that runs at another speed than when it was calibrated: results and report say so."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from raytwin.scenarios.cli.main import app
from raytwin.scenarios.core import measured_host, results
from raytwin.scenarios.core.results import Result
from raytwin.scenarios.core.scenario import Silent
from raytwin.scenarios.measure import calibrate as calibration
from raytwin.scenarios.measure import fit
from raytwin.scenarios.measure.runner import Job, carry_out
from raytwin.simulator.machine.costs import Profile, load_profile
from tests.scenarios.synthetic import SCALING

CALIBRATED = 1e7


def measure(
    monkeypatch: pytest.MonkeyPatch, profile: Path | None, speed: float, backend: str = "local"
) -> Result:
    """Run a scenario on a processor of this speed."""
    monkeypatch.setattr(measured_host, "speed", lambda: speed)
    settings = SCALING.settings("quick", {})
    return carry_out(Job(SCALING, backend, "quick", 0, None, settings), profile, Silent())


def drifts(result: Result) -> list[str]:
    return [each for each in result.record.findings if "calibrate again" in each]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A calibration's profile, with the processor's speed."""
    path = tmp_path / "profile.json"
    data = {**msgspec.to_builtins(load_profile("paper")), "speed": CALIBRATED}
    path.write_bytes(msgspec.json.encode(data))
    return path


@pytest.mark.parametrize(
    "share, expected", [(0.68, "32% slower"), (1.2, "20% faster"), (0.86, ""), (1.14, "")]
)
def test_a_measurement_at_another_speed_than_the_calibration_says_so(
    monkeypatch: pytest.MonkeyPatch, profile: Path, share: float, expected: str
) -> None:
    result = measure(monkeypatch, profile, share * CALIBRATED)
    made = result.record.made
    assert made is not None
    assert made.speed == pytest.approx(share * CALIBRATED)
    assert made.drift == pytest.approx(share - 1, abs=1e-3)
    assert drifts(result) == (
        [f"The processor was {expected} than when the machine was calibrated: calibrate again."]
        if expected
        else []
    )


def test_a_simulation_has_no_speed(monkeypatch: pytest.MonkeyPatch, profile: Path) -> None:
    result = measure(monkeypatch, profile, 0.5 * CALIBRATED, backend="sim")
    assert result.record.made is not None
    assert (result.record.made.speed, drifts(result)) == (0.0, [])


def test_a_profile_of_a_version_that_noted_no_speed_is_taken(
    monkeypatch: pytest.MonkeyPatch, profile: Path
) -> None:
    data = json.loads(profile.read_bytes())
    del data["speed"]
    profile.write_text(json.dumps(data))
    assert load_profile(profile).speed == 0.0
    result = measure(monkeypatch, profile, 0.5 * CALIBRATED)
    assert result.record.made is not None
    assert result.record.made.speed == 0.5 * CALIBRATED
    assert (result.record.made.drift, drifts(result)) == (0.0, [])
    assert drifts(measure(monkeypatch, None, 0.5 * CALIBRATED)) == []


def test_a_result_of_a_version_that_noted_no_speed_is_read(
    monkeypatch: pytest.MonkeyPatch, profile: Path, tmp_path: Path
) -> None:
    folder = results.write(tmp_path, measure(monkeypatch, profile, CALIBRATED))
    path = folder / results.RESULT
    value = json.loads(path.read_text())
    assert value["made"].pop("speed") == CALIBRATED
    del value["made"]["drift"]
    path.write_text(json.dumps(value))
    made = results.read(folder).record.made
    assert made is not None
    assert (made.speed, made.drift) == (0.0, 0.0)


def test_a_calibration_notes_the_median_speed_of_its_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds = iter([3.0, 1.0, 2.0, 9.0, 8.0])
    machine = json.loads(files("raytwin.simulator").joinpath("profiles", "paper.json").read_bytes())
    monkeypatch.setattr(measured_host, "speed", lambda: next(speeds))
    monkeypatch.setattr(calibration, "measure_loads", dict)
    monkeypatch.setattr(calibration, "measure_machine", lambda _: machine)
    monkeypatch.setattr(calibration, "profile_of", lambda _, fields: fields)
    found = msgspec.convert(calibration.calibrate(Silent()), Profile)
    assert found.speed == 3.0


@pytest.mark.parametrize("slow", [1.0, 1.2, 2.0])
def test_a_calibration_says_when_one_of_its_rounds_took_much_longer_than_another(
    monkeypatch: pytest.MonkeyPatch, profile: Path, slow: float
) -> None:
    walls_s = {"sync": 1e-4, "single": 2e-5}
    rounds = [
        {name: {"wall": share * wall_s} for name, wall_s in walls_s.items()}
        for share in (1.0, slow, 1.1)
    ]
    spread = max(slow, 1.1)
    assert fit.spread(rounds) == pytest.approx(spread)

    made = {**json.loads(profile.read_bytes()), "spread": fit.spread(rounds)}
    monkeypatch.setattr(calibration, "calibrate", lambda _: made)
    done = CliRunner().invoke(app, ["calibrate", "-o", str(profile)])
    assert done.exit_code == 0
    said = "the loads of one round took 2.0 times as long as those of another" in done.output
    assert said == (slow == 2.0) == ("changed while it was calibrated" in done.output)


def test_the_probe_counts_loops_a_second_of_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_s = [1.0, 4.0, 2.0, 8.0, 0.5]
    times_s = iter([time for each in taken_s for time in (10.0, 10.0 + each)])
    monkeypatch.setattr(measured_host.time, "thread_time", lambda: next(times_s))
    assert measured_host.speed() == measured_host.PROBE_LOOPS / 2.0
