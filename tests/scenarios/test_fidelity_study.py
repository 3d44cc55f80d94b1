"""The study of predictions: programs of many shapes, predicted first and measured then."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from raytwin.runtime.control.scheduling.near_threshold import ThresholdTally
from raytwin.scenarios.cli import fidelity_table
from raytwin.scenarios.core import fidelity, measured_host
from raytwin.scenarios.core.fidelity import Metric, Study
from raytwin.scenarios.core.scenario import Silent
from raytwin.scenarios.measure import calibrate, fidelity_study
from raytwin.scenarios.measure.fidelity_study import Runs
from raytwin.scenarios.workloads.held_out import WORKLOADS
from raytwin.scenarios.workloads.layered_graph import LayeredGraph
from raytwin.scenarios.workloads.workload import Ended, Group, Workload
from raytwin.simulator.machine.costs import Profile, load_profile
from tests.scenarios.test_fit import MACHINE, made

PROFILE = made(2e-5, 0.5)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(msgspec.convert(PROFILE, Profile)))
    return path


@pytest.mark.parametrize("name", WORKLOADS)
def test_each_program_takes_the_same_virtual_time_again(
    name: str, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fidelity_study, "TIMED", 1)
    one, other = (fidelity_study.simulate(WORKLOADS[name], profile) for _ in range(2))
    assert one.figures() == other.figures() and one.cpu_s == other.cpu_s
    assert one.ended[0].operations > 0 and one.elapsed_s > 0


def test_the_timed_runs_of_a_cluster_count_together(profile: Path) -> None:
    runs = fidelity_study.simulate(WORKLOADS["sync"], profile)
    assert len(runs.ended) == fidelity_study.TIMED
    assert len(runs.latencies_s) == sum(run.operations for run in runs.ended)
    figures = runs.figures()
    least, *_, most = sorted(run.elapsed_s for run in runs.ended)
    assert least <= figures[fidelity.MAKESPAN] <= most
    # One task runs at a time, so an operation has no more CPU time than two cores in a mean one.
    mean_s = figures[fidelity.MAKESPAN] / runs.ended[0].operations
    assert 0 < sum(runs.cpu_s.values()) <= 2 * mean_s


def test_turns_and_frames_are_counted_in_both_worlds(profile: Path, tmp_path: Path) -> None:
    sync = WORKLOADS["sync"]
    simulated = fidelity_study.simulate(sync, profile, tmp_path / "journal").traffic
    (tmp_path / "journals").mkdir()
    real = fidelity_study.measure_one(sync, tmp_path / "journals").traffic
    for counted in (simulated, real):
        # The driver submits one task at a time: a frame carries each task, another its result.
        for frames in ("driver to node", "node to worker", "worker to node"):
            assert counted[frames] == pytest.approx(1.0, abs=0.05)
        assert 1.0 <= counted["node turns"] <= 3.0
    assert not fidelity_study.simulate(sync, profile).traffic


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("recovery_actor_killed", {"full_s", "detect_s"}),
        ("recovery_link_cut", {"full_s"}),
        ("fig10a_tail_killed", {"slowest_since_kill_s", "rejoin_s"}),
        ("fig11b_with_checkpoints", {"full_s"}),
    ],
)
def test_recovery_is_measured_in_both_worlds(name: str, times: set[str], profile: Path) -> None:
    workload = WORKLOADS[name]
    for run in (fidelity_study.simulate(workload, profile), fidelity_study.measure_one(workload)):
        figures = run.figures()
        assert figures.keys() - {"p50_s", "p99_s"} == times
        assert min(figures.values()) > 0 and not run.cpu_s


def test_a_program_that_is_paced_by_the_clock_has_no_makespan() -> None:
    assert Runs([Ended(1, 2.0)], {}, {}).figures() == {"makespan_s": 2.0}
    assert Runs([Ended(1, 2.0, recovery_s={"full_s": 0.0})], {}, {}).figures() == {"full_s": 0.0}


def test_a_prediction_near_a_threshold_has_both_sides(
    profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []

    def simulated(workload: Any, profile: Any, journal: Any = None, wait_s: Any = None) -> Runs:
        asked.append(wait_s)
        near = 0 if wait_s is None and workload is WORKLOADS["fan"] else 1
        ended = Ended(10, 1.0 if wait_s is None else 10 * wait_s)
        return Runs([ended], {}, {}, ThresholdTally(spill_wait_s=0.1, tasks=10, near=near))

    monkeypatch.setattr(fidelity_study, "simulate", simulated)
    workloads = {name: WORKLOADS[name] for name in ("fan", "fig8b_4")}
    found = fidelity_study._predict(workloads, profile, False, Silent())
    assert found["fan"].sides_s == () and len(found["fig8b_4"].sides_s) == 2
    lower, higher = ThresholdTally(spill_wait_s=0.1).sides_s
    assert asked == [None, None, None, lower, higher]
    assert found["fig8b_4"].as_data()["sides_s"] == pytest.approx((10 * lower, 10 * higher))


def test_every_group_has_programs_and_a_search_has_its_own() -> None:
    assert {workload.group for workload in WORKLOADS.values()} == set(Group) - {Group.SEARCHED}
    assert Group.SEARCHED.value == fidelity.SEARCHED


def test_predictions_are_written_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def measure(workload: Any, journals: Path | None = None) -> Any:
        seen.append((tmp_path / fidelity.PREDICTIONS).read_text())
        return _measured(workload, journals)

    def calibrated(result: Any) -> Any:
        seen.append("a round calibrates")
        return result

    _measured = fidelity_study.measure_one
    monkeypatch.setattr(fidelity_study, "measure_one", measure)
    monkeypatch.setattr(calibrate, "measure_machine", lambda progress: calibrated(MACHINE))
    monkeypatch.setattr(calibrate, "measure_loads", lambda: calibrated({}))
    monkeypatch.setattr(calibrate, "profile_of", lambda rounds, machine: PROFILE)
    monkeypatch.setattr(fidelity_study, "TIMED", 2)
    names = ("skewed", "fan_one_core")
    cores = os.sched_getaffinity(0)

    found = fidelity_study.study(names, 2, tmp_path, Silent())

    assert os.sched_getaffinity(0) == cores
    in_a_round = [True] * (1 + calibrate.ROUNDS) + [False] * 4
    first = in_a_round.index(False)
    written = seen[first], seen[len(in_a_round) + first]
    assert [each.startswith("a round") for each in seen] == in_a_round * 2 + [False] * 2
    assert [(each.lines, each.sha256) for each in found.predictions] == [
        (text.count("\n"), hashlib.sha256(text.encode()).hexdigest()) for text in written
    ]
    assert found.predictions[-1].lines == 4 and len(found.speed) == 2
    lines = [json.loads(line) for line in seen[-1].splitlines()]
    written = {line["workload"]: line for line in lines[:2]}
    assert msgspec.json.decode((tmp_path / fidelity.FIDELITY).read_bytes(), type=Study) == found
    assert [(each.workload, each.metric) for each in found.metrics] == [
        ("skewed", "makespan_s"), ("skewed", "p50_s"), ("skewed", "p99_s"),
        ("fan_one_core", "makespan_s"),
    ]  # fmt: skip
    for each in found.metrics:
        predicted = [line for line in lines if line["workload"] == each.workload]
        assert each.predictions == [line["predicted"][each.metric] for line in predicted]
        assert len(each.measured) == len(each.again) == len(each.speeds) == 2
        assert min(each.measured + each.again + each.speeds) > 0
    makespan, median, *_ = found.metrics
    assert makespan.roles["worker"].measured_s > 0 and len(makespan.naive) == 2
    turns = makespan.traffic["node turns"]
    assert turns.predicted == written["skewed"]["traffic"]["node turns"] > 0 < turns.measured
    assert median.ks is not None and 0 <= median.ks <= 1


def test_each_batch_of_a_round_has_a_calibration_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def calibrated(progress: Any) -> Any:
        begun.append("a batch")
        return MACHINE

    def predicted(_workload: Any, profile: Path, *_: Any) -> Runs:
        return _took(float(load_profile(profile).name))

    monkeypatch.setattr(calibrate, "measure_machine", calibrated)
    monkeypatch.setattr(calibrate, "measure_loads", dict)
    monkeypatch.setattr(
        calibrate, "profile_of", lambda rounds, machine: PROFILE | {"name": str(len(begun))}
    )
    monkeypatch.setattr(fidelity_study, "simulate", predicted)
    monkeypatch.setattr(fidelity_study, "measure_one", lambda *_: _took(float(len(begun))))
    monkeypatch.setattr(fidelity_study, "BATCH", 2)

    found = fidelity_study.study(("fan", "chain", "nested"), 2, tmp_path, Silent(), search=2)

    # Neighbours are in different batches, and each program is in the same one in each round.
    *metrics, worst = found.metrics
    assert [each.predictions for each in metrics] == [[1.0, 3.0], [2.0, 4.0], [1.0, 3.0]]
    assert all(each.measured == each.again == each.predictions for each in found.metrics)
    assert [each.lines for each in found.predictions] == [2, 3, 5, 6]
    # A search calibrates nothing, but for the worst that it finds.
    assert found.search is not None and worst.predictions == [5.0, 6.0]
    assert [each.predictions for each in found.search.tried] == [[2.0, 4.0]] * 2


@dataclass
class _Clusters:
    """Stands in for clusters; keeps the predictions as the file has them at each measurement."""

    out: Path
    rounds: int
    fail_at: int | None = None
    """The program of the search at which Ctrl-C comes."""
    seen: list[tuple[str, bytes]] = field(default_factory=list)

    def measure(self, workload: Workload, journals: Path | None = None) -> Runs:
        program = getattr(workload.start, "__self__", None)
        if journals is not None or not isinstance(program, LayeredGraph):
            return _took(1.0)
        if self.fail_at == len(self.seen):
            raise KeyboardInterrupt
        self.seen.append((program.name, (self.out / fidelity.SEARCH_PREDICTIONS).read_bytes()))
        # A program with more layers takes longer; a program that is measured anew takes less.
        anew = [name for name, _ in self.seen].count(program.name) > 2 * self.rounds
        return _took(2.0 if anew else 3.0 + program.layers)


def _took(elapsed_s: float) -> Runs:
    return Runs([Ended(10, elapsed_s)], {"worker": elapsed_s / 10}, {})


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Clusters:
    """Stand-ins for clusters; the simulation predicts 1 s for each program."""
    found = _Clusters(tmp_path, 2)
    monkeypatch.setattr(fidelity_study, "measure_one", found.measure)
    monkeypatch.setattr(fidelity_study, "simulate", lambda *_given: _took(1.0))
    monkeypatch.setattr(measured_host, "speed", lambda: 1.0)
    return found


def test_the_worst_of_a_search_is_measured_anew(
    clusters: _Clusters, profile: Path, tmp_path: Path
) -> None:
    found = fidelity_study.study(["sync"], 2, tmp_path, Silent(), profile, search=6, seed=1)

    assert msgspec.json.decode((tmp_path / fidelity.FIDELITY).read_bytes(), type=Study) == found
    search, worst = found.search, found.worst
    assert search is not None and worst is not None
    assert len(search.tried) == 6 and found.rounds == 2 and len(found.speed) == 2 * (1 + 4 + 1)
    assert search.selected == max(search.tried, key=lambda each: each.excess)
    assert len({each.median for each in search.tried}) > 1 and search.selected.median > 4
    assert (worst.workload, worst.measured, worst.error) == (search.worst, [2.0, 2.0], -0.5)
    assert worst.roles["worker"].measured_s > 0
    assert found.groups() == ["train"] and found.typical() is None
    assert [name for name, _ in clusters.seen][-4:] == [search.worst] * 4
    clusters.seen.clear()
    again = fidelity_study.study(["sync"], 2, tmp_path, Silent(), profile, search=6, seed=1)
    assert again.search is not None and again.search.tried == search.tried


def test_predictions_of_a_search_are_written_before_what_they_predict_is_measured(
    clusters: _Clusters, profile: Path, tmp_path: Path
) -> None:
    search = fidelity_study.study(["sync"], 2, tmp_path, Silent(), profile, search=6).search

    assert search is not None
    lines = (tmp_path / fidelity.SEARCH_PREDICTIONS).read_bytes().splitlines(keepends=True)
    names = [each.workload for each in search.tried]
    of_batches = [names[:3], *([name] for name in [*names[3:], search.worst])]
    assert [json.loads(each)["workload"] for each in lines] == [
        name for batch in of_batches for name in batch * 2
    ]
    assert [each.lines for each in search.predictions] == [3, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    digests = {each.sha256 for each in search.predictions}
    for written in search.predictions:
        assert hashlib.sha256(b"".join(lines[: written.lines])).hexdigest() == written.sha256
    for name, there in clusters.seen:
        assert name in [json.loads(each)["workload"] for each in there.splitlines()]
        assert hashlib.sha256(there).hexdigest() in digests


def test_a_search_that_is_interrupted_leaves_the_study(
    clusters: _Clusters, profile: Path, tmp_path: Path
) -> None:
    clusters.fail_at = 3
    with pytest.raises(KeyboardInterrupt):
        fidelity_study.study(["sync"], 2, tmp_path, Silent(), profile, search=6)
    found = msgspec.json.decode((tmp_path / fidelity.FIDELITY).read_bytes(), type=Study)
    assert found.search is None and [each.workload for each in found.metrics] == ["sync"]


def test_the_table_says_what_is_near_a_threshold() -> None:
    metric = Metric("w", "train", 1, "makespan_s", [0.05], [0.1], sides=[0.04, 0.06])
    written = fidelity.Written(1, "2026-01-02T03:04:05+00:00", "ab" * 32)
    printed = io.StringIO()
    study = Study("2026-01-02T03:05:05+00:00", [written], "c" * 40, 1, [1.0], [metric])
    fidelity_table.show(Console(file=printed, width=200), study)
    assert "misses its aim; near a threshold: 40.00 to 60.00 ms" in printed.getvalue()


def test_the_table_ends_with_the_worst_case(
    clusters: _Clusters, profile: Path, tmp_path: Path
) -> None:
    found = fidelity_study.study(["sync"], 2, tmp_path, Silent(), profile, search=6, seed=1)
    printed = io.StringIO()
    fidelity_table.show(Console(file=printed, width=200), found)
    assert found.search is not None
    assert (
        f"Worst of 6 programs searched: {found.search.worst}: predicted 1000.00 ms, measured"
        f" 2000.00 ms, error -50% (when it was selected: {found.search.selected.error:+.0%})\n"
    ) in printed.getvalue()
    assert "searched: median error" not in printed.getvalue()


def test_the_noise_floor_is_how_far_the_two_clusters_of_a_round_differ() -> None:
    # The machine comes to be twice as slow: that is no noise of clusters.
    metric = Metric("w", "train", 1, "makespan_s", [1.2, 2.4], [1.0, 2.2], [1.1, 2.0])
    assert metric.noise == pytest.approx(0.1)
    assert metric.median == pytest.approx(1.55)
    assert metric.aim == pytest.approx(0.2)  # twice the floor
    assert msgspec.structs.replace(metric, again=[1.0, 2.2]).aim == fidelity.AIM
    tail = msgspec.structs.replace(metric, metric="p99_s", again=[1.0, 2.2])
    assert tail.aim == fidelity.AIM_OF_TAIL


def test_a_recovery_may_take_no_time() -> None:
    nothing = Metric("w", "under faults", 1, "full_s", [0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    assert nothing.error == nothing.noise == 0.0 and nothing.excess < 0
    missed = Metric("w", "under faults", 1, "full_s", [0.0, 0.0], [0.1, 0.1], [0.1, 0.1])
    assert missed.error == -1.0 and missed.noise == 0.0
    assert missed.aim == fidelity.AIM_OF_TAIL < missed.excess + missed.aim
    invented = Metric("w", "under faults", 1, "full_s", [0.1, 0.1], [0.0, 0.1], [0.0, 0.0])
    assert invented.error == math.inf == invented.noise
    # No floor excuses what was predicted of nothing.
    assert invented.aim == fidelity.AIM_OF_TAIL and invented.excess == math.inf


def test_an_error_is_the_median_over_both_clusters_of_each_round() -> None:
    metric = Metric("w", "train", 1, "makespan_s", [1.2, 2.4], [1.0, 2.0], [1.2, 2.4])
    assert metric.error == pytest.approx(0.1)


def test_the_error_compares_the_prediction_and_the_measurement_of_a_round() -> None:
    # The machine becomes twice as slow, in both.
    metric = Metric(
        "w", "train", 1, "makespan_s", [1.1, 2.2, 2.2], [1.0, 2.0, 2.1], naive=[3, 3, 3]
    )
    assert metric.error == pytest.approx(0.1)
    assert metric.naive_error == pytest.approx(0.5)


def test_the_median_error_counts_no_load_of_the_fit_and_no_worst_case() -> None:
    def metric(group: str, predicted: float) -> Metric:
        return Metric("w", group, 1, "makespan_s", [predicted] * 2, [1.0, 1.0])

    of_each = [
        metric("train", 9.0), metric("held-out size", 1.1), metric("held-out size", 1.3),
        metric(fidelity.SEARCHED, 7.0),
    ]  # fmt: skip
    study = Study("", [], "", 2, [1.0], of_each)
    typical = study.typical()
    assert typical is not None and math.isclose(typical, 0.2)
    assert study.typical("train") == pytest.approx(8.0)
    assert study.typical("no group") is None


def test_samples_without_a_difference_have_no_distance() -> None:
    assert fidelity.ks_distance([1, 2, 3], [1, 2, 3]) == 0
    assert fidelity.ks_distance([1, 2], [3, 4]) == 1
