"""How far predictions are off, of programs that the calibration has not seen.

The machine is calibrated; every workload is simulated with that profile, and once with the costs
of each round of the calibration alone: the median of all is the prediction, since how messages
batch may hang on little, and the least and the most are its range. The predictions are written, and
their digest kept; then the workloads are measured, in rounds, each with a cluster of
its own. A probe of the processor's speed runs beside each round: what the machine itself has become
slower by is no error of the model, and is not corrected either, but said.

A program runs twice on a cluster, on both backends: the first run starts workers and is not timed.
At the end each workload runs once more with journals, which slow it down and are not in its times:
from them come the turns and frames of nodes and the head, see `traffic`.

A search may follow, with the same profiles, for the program whose makespan is furthest off beyond
its aim. Here, too, each prediction is written, and its digest kept, before that program is
measured. The worst is measured anew in the end: the largest of many noisy errors owes a part of
its size to the noise.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import raytwin as ray
from raytwin.scenarios.bench.trees import ROOT, commit_of
from raytwin.scenarios.core import campaigns, fidelity
from raytwin.scenarios.core.fidelity import Amount, Metric, Role, Search, Study, Written
from raytwin.scenarios.core.scenario import Progress
from raytwin.scenarios.measure import calibrate, fit, worst_case
from raytwin.scenarios.measure.traffic import traffic
from raytwin.scenarios.workloads.held_out import WORKLOADS, Ended, Workload
from raytwin.scenarios.workloads.layered_graph import LayeredGraph
from raytwin.simulator.machine.costs import Profile, load_profile

PROBE_LOOPS = 400_000


@dataclass(frozen=True)
class Run:
    """A timed run of a workload."""

    ended: Ended
    cpu_s: dict[str, float]
    """By role, per operation."""
    traffic: dict[str, float]
    """Turns and frames per operation, by name; empty if nothing counted them."""

    def figures(self) -> dict[str, float]:
        """Return the metrics, by name."""
        found = {fidelity.MAKESPAN: self.ended.elapsed_s}
        if self.ended.latencies_s:
            p50, p99 = np.quantile(self.ended.latencies_s, (0.5, 0.99))
            found |= {fidelity.MEDIAN: float(p50), fidelity.TAIL: float(p99)}
        return found


@dataclass(frozen=True)
class _Prediction:
    """What the model says of a workload."""

    run: Run
    """By the profile."""
    figures: dict[str, float]
    """Medians over the profiles."""
    ranges: dict[str, tuple[float, float]]
    naive_s: float | None

    def as_data(self) -> dict[str, Any]:
        """Return what is written before anything is measured."""
        return {
            "predicted": self.figures,
            "ranges": self.ranges,
            "naive_s": self.naive_s,
            "cpu_s": self.run.cpu_s,
            "traffic": self.run.traffic,
        }


def study(
    names: Sequence[str],
    rounds: int,
    out: Path,
    progress: Progress,
    given: Path | None = None,
    search: int = 0,
    seed: int = 0,
) -> Study:
    """Predict the workloads `names`, then measure each in `rounds` clusters; write what is found.

    With a profile `given` nothing is calibrated, and predictions have no range. Then `search`
    programs are tried for the worst case.
    ``fidelity-predictions.json`` is in `out` before the first measurement, ``fidelity.json`` at
    the end, and before a search. Raises ResultError if one cannot be written.
    """
    speed = _speed()
    with tempfile.TemporaryDirectory() as directory:
        if given is not None:
            profiles = [given]
        else:
            costs = calibrate.measure(progress)
            profiles = []
            for number, each in enumerate((costs.profile(), *costs.of_each_round())):
                profiles.append(Path(directory) / f"{number}.json")
                profiles[-1].write_bytes(msgspec.json.encode(msgspec.convert(each, Profile)))
            progress.advance()
        found = _held_out(names, rounds, profiles, speed, out, progress)
        if given is not None:
            found.profile = given.name
        fidelity.write(out / fidelity.FIDELITY, found)
        if search:
            _search(found, search, seed, profiles, speed, out, progress)
            fidelity.write(out / fidelity.FIDELITY, found)
    return found


def _held_out(
    names: Sequence[str],
    rounds: int,
    profiles: Sequence[Path],
    speed: float,
    out: Path,
    progress: Progress,
) -> Study:
    workloads = {name: WORKLOADS[name] for name in names}
    progress.begin("predicting", len(workloads) * len(profiles))
    predictions = _predict(workloads, profiles, progress)
    path = out / fidelity.PREDICTIONS
    document = {name: each.as_data() for name, each in predictions.items()}
    fidelity.write(path, document)
    digest = _digest(path)
    written_at = campaigns.now()

    progress.begin("measuring", (rounds + 1) * len(names))
    found = Study(campaigns.now(), written_at, digest, commit_of(ROOT), rounds, [], [])
    found.metrics += _measure(workloads, predictions, found, speed, progress)
    return found


def _search(
    found: Study,
    count: int,
    seed: int,
    profiles: Sequence[Path],
    speed: float,
    out: Path,
    progress: Progress,
) -> None:
    """Try `count` programs, measure the worst anew, and add what that is to a study."""
    path = out / fidelity.SEARCH_PREDICTIONS
    lines: list[dict[str, Any]] = []
    predictions: dict[str, _Prediction] = {}
    search = found.search = Search(seed, [], [], "")

    def judge(graphs: Sequence[LayeredGraph]) -> list[float]:
        workloads = {graph.name: graph.workload() for graph in graphs}
        predicted = _predict(workloads, profiles, progress)
        lines.extend({"workload": name, **each.as_data()} for name, each in predicted.items())
        fidelity.write_lines(path, lines)
        search.predictions.append(Written(len(lines), campaigns.now(), _digest(path)))
        predictions.update(predicted)
        tried = _measure(workloads, predicted, found, speed, progress)
        search.tried += tried
        return [each.excess for each in tried]

    steps = count * len(profiles) + (count + 1) * (found.rounds + 1)
    progress.begin("searching for the worst case", steps)
    worst = worst_case.search(count, seed, judge)
    search.worst = worst.name
    found.metrics += _measure({worst.name: worst.workload()}, predictions, found, speed, progress)


def _measure(
    workloads: Mapping[str, Workload],
    predictions: Mapping[str, _Prediction],
    found: Study,
    speed: float,
    progress: Progress,
) -> list[Metric]:
    """Measure workloads in the rounds of a study, which gets the processor's speed in each."""
    measured: dict[str, list[Run]] = {name: [] for name in workloads}
    for _ in range(found.rounds):
        found.speed.append(round(_speed() / speed, 3))
        for name, workload in workloads.items():
            with _cores(workload.cores):
                measured[name].append(measure_one(workload))
            progress.advance()
    metrics: list[Metric] = []
    for name, workload in workloads.items():
        with _cores(workload.cores), tempfile.TemporaryDirectory() as journals:
            counted = measure_one(workload, Path(journals)).traffic
        metrics += _metrics(name, workload, predictions[name], measured[name], counted)
        progress.advance()
    return metrics


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _predict(
    workloads: Mapping[str, Workload], profiles: Sequence[Path], progress: Progress
) -> dict[str, _Prediction]:
    """Predict with the first profile; the others give the ranges."""
    runs: dict[str, list[Run]] = {name: [] for name in workloads}
    with tempfile.TemporaryDirectory() as directory:
        for number, profile in enumerate(profiles):
            for name, workload in workloads.items():
                journal = None if number else Path(directory) / name
                runs[name].append(simulate(workload, profile, journal))
                progress.advance()
    one_at_a_time = simulate(WORKLOADS["sync"], profiles[0]).ended
    task_s = one_at_a_time.elapsed_s / one_at_a_time.operations
    machine_cores = load_profile(profiles[0]).cores
    found = {}
    for name, (run, *others) in runs.items():
        each_s = [other.figures() for other in (*others, run)]
        values = {key: [one[key] for one in each_s] for key in run.figures()}
        figures = {key: statistics.median(each) for key, each in values.items()}
        ranges = {key: (min(each), max(each)) for key, each in values.items()}
        workload = workloads[name]
        cores = min(sum(workload.cpus), workload.cores or machine_cores)
        whole_s = run.ended.operations * (task_s + workload.body_s) / cores
        naive_s = whole_s if workload.of_tasks else None
        found[name] = _Prediction(run, figures, ranges, naive_s)
    return found


def simulate(workload: Workload, profile: Path, journal: Path | None = None) -> Run:
    """Run a workload on `sim`; count turns and frames if a journal is to be written."""
    session: Any = ray.init(
        backend="sim",
        nodes=workload.nodes,
        nodes_per_host=len(workload.nodes),
        profile=str(profile),
        cores_per_host=workload.cores,
        journal=journal,
    )
    try:
        run = workload.start()
        run()
        begun_s, before = ray.now(), fit.busy(session.cluster)
        ended = run()
        after = fit.busy(session.cluster)
    finally:
        ray.shutdown()
    return _run(ended, before, after, [] if journal is None else [journal], begun_s)


def measure_one(workload: Workload, journals: Path | None = None) -> Run:
    """Run a workload on a cluster of its own; count turns and frames if there is a directory for
    journals."""
    session: Any = ray.init(backend="local", nodes=workload.nodes, journal=journals)
    try:
        run = workload.start()
        run()
        meter = calibrate.Meter(session.cluster)
        begun_s, before = ray.now(), meter.read()
        ended = run()
        after = meter.read()
    finally:
        ray.shutdown()
    return _run(ended, before, after, [] if journals is None else journals.iterdir(), begun_s)


def _run(
    ended: Ended,
    before: Mapping[str, float],
    after: Mapping[str, float],
    journals: Iterable[Path],
    begun_s: float,
) -> Run:
    cpu_s = {role: (after[role] - before[role]) / ended.operations for role in after}
    counted = traffic(journals, begun_s)
    return Run(ended, cpu_s, {name: each / ended.operations for name, each in counted.items()})


def _metrics(
    name: str,
    workload: Workload,
    prediction: _Prediction,
    measured: Sequence[Run],
    counted: Mapping[str, float],
) -> Iterator[Metric]:
    of_each = [run.figures() for run in measured]
    for key, value in prediction.figures.items():
        metric = Metric(
            name, workload.group.value, len(workload.cpus), key, value, prediction.ranges[key],
            [each[key] for each in of_each],
        )  # fmt: skip
        if key == fidelity.MAKESPAN:
            metric.naive = prediction.naive_s
            metric.roles = {
                role: Role(cpu_s, statistics.median(run.cpu_s[role] for run in measured))
                for role, cpu_s in prediction.run.cpu_s.items()
            }
            predicted = prediction.run.traffic
            metric.traffic = {
                what: Amount(predicted.get(what, 0.0), counted.get(what, 0.0))
                for what in sorted({*predicted, *counted})
            }
        elif key == fidelity.MEDIAN:
            latencies = [each for run in measured for each in run.ended.latencies_s]
            metric.ks = fidelity.ks_distance(prediction.run.ended.latencies_s, latencies)
        yield metric


def _speed() -> float:
    """Return how many rounds of a loop the processor does in a second of CPU time."""
    began_s, number = time.thread_time(), 0
    while number < PROBE_LOOPS:
        number += 1
    return PROBE_LOOPS / (time.thread_time() - began_s)


@contextmanager
def _cores(count: int | None) -> Iterator[None]:
    """Let this process and those that it starts use so many of the cores that it may use."""
    if count is None:
        yield
        return
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_of_them)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_of_them)
