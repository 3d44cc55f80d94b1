"""The study of predictions: programs of many shapes, predicted first and measured then."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raytwin.scenarios.core import fidelity
from raytwin.scenarios.core.fidelity import Metric, Study
from raytwin.scenarios.core.scenario import Silent
from raytwin.scenarios.measure import calibrate, fidelity_study
from raytwin.scenarios.workloads.held_out import WORKLOADS, Group
from raytwin.simulator.machine.costs import Profile
from tests.scenarios.test_fit import MACHINE, made

PROFILE = made(2e-5, 0.5)
COSTS = calibrate.Costs({"sync": [{"wall": 3e-4}] * calibrate.ROUNDS}, MACHINE)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(msgspec.convert(PROFILE, Profile)))
    return path


@pytest.mark.parametrize("name", WORKLOADS)
def test_each_program_takes_the_same_virtual_time_again(name: str, profile: Path) -> None:
    one, other = (fidelity_study.simulate(WORKLOADS[name], profile) for _ in range(2))
    assert one.figures() == other.figures() and one.cpu_s == other.cpu_s
    assert one.ended.operations > 0 and one.ended.elapsed_s > 0


def test_turns_and_frames_are_counted_in_both_worlds(profile: Path, tmp_path: Path) -> None:
    sync = WORKLOADS["sync"]
    simulated = fidelity_study.simulate(sync, profile, tmp_path / "journal").traffic
    (tmp_path / "journals").mkdir()
    real = fidelity_study.measure_one(sync, tmp_path / "journals").traffic
    for counted in (simulated, real):
        # One task at a time: each is a frame there and, from the worker, a frame back.
        for frames in ("driver to node", "node to worker", "worker to node"):
            assert counted[frames] == pytest.approx(1.0, abs=0.05)
        assert 1.0 <= counted["node turns"] <= 3.0
    assert not fidelity_study.simulate(sync, profile).traffic


def test_every_group_has_programs() -> None:
    assert {workload.group for workload in WORKLOADS.values()} == set(Group)


def test_predictions_are_written_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def measure(workload: Any, journals: Path | None = None) -> Any:
        seen.append((tmp_path / fidelity.PREDICTIONS).read_text())
        return _measured(workload, journals)

    _measured = fidelity_study.measure_one
    monkeypatch.setattr(fidelity_study, "measure_one", measure)
    monkeypatch.setattr(calibrate, "measure", lambda progress: COSTS)
    monkeypatch.setattr(calibrate, "fit", lambda loads, machine: PROFILE)
    names = ("skewed", "fan_one_core")
    cores = os.sched_getaffinity(0)

    found = fidelity_study.study(names, 2, tmp_path, Silent())

    assert os.sched_getaffinity(0) == cores
    assert len(seen) == 6 and len(set(seen)) == 1
    assert hashlib.sha256(seen[0].encode()).hexdigest() == found.predictions_sha256
    assert found.predicted_at <= found.date
    written = json.loads(seen[0])
    assert msgspec.json.decode((tmp_path / fidelity.FIDELITY).read_bytes(), type=Study) == found
    assert [(each.workload, each.metric) for each in found.metrics] == [
        ("skewed", "makespan_s"), ("skewed", "p50_s"), ("skewed", "p99_s"),
        ("fan_one_core", "makespan_s"),
    ]  # fmt: skip
    for each in found.metrics:
        assert each.predicted == written[each.workload]["predicted"][each.metric]
        assert len(each.measured) == 2 and min(each.measured) > 0
    makespan, median, *_ = found.metrics
    assert makespan.roles["worker"].measured_s > 0 and makespan.naive is not None
    turns = makespan.traffic["node turns"]
    assert turns.predicted == written["skewed"]["traffic"]["node turns"] > 0 < turns.measured
    assert median.ks is not None and 0 <= median.ks <= 1


def test_the_noise_floor_is_how_far_one_cluster_is_from_another() -> None:
    metric = Metric("w", "train", 1, "makespan_s", 1.2, (1.1, 1.3), [1.0, 1.1, 1.0, 1.1])
    assert metric.noise == pytest.approx(0.1)
    assert metric.median == pytest.approx(1.05)
    assert metric.error == pytest.approx(1.2 / 1.05 - 1)
    assert metric.aim == pytest.approx(0.2)  # twice the floor
    assert msgspec.structs.replace(metric, measured=[1.0, 1.0]).aim == fidelity.AIM
    tail = msgspec.structs.replace(metric, metric="p99_s", measured=[1.0, 1.0])
    assert tail.aim == fidelity.AIM_OF_TAIL


def test_the_median_error_counts_no_load_of_the_fit() -> None:
    def metric(group: str, predicted: float) -> Metric:
        return Metric("w", group, 1, "makespan_s", predicted, (1, 1), [1.0, 1.0])

    of_each = [metric("train", 9.0), metric("held-out size", 1.1), metric("held-out size", 1.3)]
    study = Study("", "", "", "", 2, [1.0], of_each)
    typical = study.typical()
    assert typical is not None and math.isclose(typical, 0.2)
    assert study.typical("train") == pytest.approx(8.0)
    assert study.typical("no group") is None


def test_samples_without_a_difference_have_no_distance() -> None:
    assert fidelity.ks_distance([1, 2, 3], [1, 2, 3]) == 0
    assert fidelity.ks_distance([1, 2], [3, 4]) == 1
