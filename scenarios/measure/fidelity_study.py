"""How far predictions are off, of programs that the calibration has not seen.

Machines change while they are measured: in clouds by half and more within minutes. So a round
deals the programs into batches that are measured within a minute or two. For each it calibrates
this machine, simulates the programs with the profile of this batch, writes these predictions and
their digest, and then measures each program twice, one right after the other, each time with a
cluster of its own. A prediction is compared with the measurements of its own round, and the error
is the median over all. How far the two of a round differ is the noise floor. A probe of the
processor's speed before each program says how far the machine has changed since the calibration.

On `sim` a program runs twice: the first run starts workers and is not timed. On real processes the
first runs also fill what is reused later, as memory of stores and of Python's allocator, so that
`WARM_UPS` are not timed: a calibration, too, measures what is warm. Then `TIMED` runs are, on both,
and count together: one takes less time than the processor needs to change its speed, and in some
it is chance whether a task moves. A calibration repeats its loads, too.
At the end each program runs once more with journals, which slow it down and are not in its times:
from them come the turns and frames of nodes and the head, see `traffic`. A program in which
processes die or links fail warms itself up, runs once in each cluster, and has neither CPU times
nor journals.

A search may follow, with the last profile of each round, for the program whose makespan is
furthest off beyond its aim. Here, too, each prediction is written, and its digest kept, before that
program is measured. The worst has rounds of its own in the end: the largest of many noisy errors
owes a part of its size to the noise.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import raytwin as ray
from raytwin.chaos.faults.proxied_links import proxied
from raytwin.runtime.control.scheduling.near_threshold import ThresholdTally
from raytwin.scenarios.bench.trees import ROOT, commit_of
from raytwin.scenarios.core import campaigns, fidelity, measured_host
from raytwin.scenarios.core.fidelity import Amount, Metric, Role, Search, Study, Written
from raytwin.scenarios.core.scenario import Progress
from raytwin.scenarios.measure import calibrate, fit, worst_case
from raytwin.scenarios.measure.traffic import traffic
from raytwin.scenarios.workloads.held_out import WORKLOADS
from raytwin.scenarios.workloads.layered_graph import LayeredGraph
from raytwin.scenarios.workloads.workload import Ended, Workload
from raytwin.simulator.machine.costs import Profile, load_profile

WARM_UPS = 5
"""From the fifth run on, programs take no less time than before."""
TIMED = 5
"""Runs of a program that are timed, one after the other."""
BATCH = 12
"""The most programs that one calibration serves."""


@dataclass(frozen=True)
class Runs:
    """The timed runs of a workload on one cluster."""

    ended: Sequence[Ended]
    cpu_s: dict[str, float]
    """By role, per operation."""
    traffic: dict[str, float]
    """Turns and frames per operation, by name; empty if nothing counted them."""
    threshold: ThresholdTally = field(default_factory=ThresholdTally)
    """Of a simulation: how many tasks were near the threshold of the placement policy."""

    @property
    def elapsed_s(self) -> float:
        """How long a run took, in the mean."""
        return statistics.fmean(run.elapsed_s for run in self.ended)

    @property
    def latencies_s(self) -> list[float]:
        """Of the operations of all runs."""
        return [each for run in self.ended for each in run.latencies_s]

    def figures(self) -> dict[str, float]:
        """Return the metrics, by name."""
        recovery_s = dict(self.ended[0].recovery_s)  # who measures this runs once
        # The clock decides when a program ends that measures how long a recovery takes.
        found = {} if recovery_s else {fidelity.MAKESPAN: self.elapsed_s}
        if self.latencies_s:
            p50, p99 = np.quantile(self.latencies_s, (0.5, 0.99))
            found |= {fidelity.MEDIAN: float(p50), fidelity.TAIL: float(p99)}
        return found | recovery_s


@dataclass(frozen=True)
class _Measured:
    """A workload in one round: on two clusters, one right after the other."""

    first: Runs
    again: Runs
    speed: float
    """The processor's before them, over its speed when the batch was predicted."""


@dataclass(frozen=True)
class _Prediction:
    """The prediction of a workload by the profile of its batch."""

    runs: Runs
    naive_s: float | None
    sides_s: tuple[float, ...]
    """The makespans with a lower threshold and with a higher one, if many tasks are near it."""

    def as_data(self) -> dict[str, Any]:
        """Return what is written before anything is measured."""
        return {
            "predicted": self.runs.figures(),
            "naive_s": self.naive_s,
            "sides_s": self.sides_s,
            "cpu_s": self.runs.cpu_s,
            "traffic": self.runs.traffic,
        }


class _PredictionFile:
    """A file of predictions, one on each line, and its digest whenever some have been added."""

    def __init__(self, path: Path) -> None:
        self.written: list[Written] = []
        self._path = path
        self._lines: list[dict[str, Any]] = []

    def add(self, predictions: Mapping[str, _Prediction]) -> None:
        """Write predictions. Raises ResultError if that is not possible."""
        self._lines += ({"workload": name, **each.as_data()} for name, each in predictions.items())
        fidelity.write_lines(self._path, self._lines)
        digest = hashlib.sha256(self._path.read_bytes()).hexdigest()
        self.written.append(Written(len(self._lines), campaigns.now(), digest))


class _Profiles:
    """A profile for each batch of a round: of this machine as it is then, or always the given
    one."""

    def __init__(self, given: Path | None, directory: Path, progress: Progress) -> None:
        self.known: dict[int, Path] = {}
        """By round: that of its last batch."""
        self._given = given
        self._directory = directory
        self._progress = progress
        self.steps = 0 if given is not None else calibrate.steps()
        """How often `measure` advances."""

    def measure(self, number: int) -> Path:
        """Return the profile of a new batch of a round."""
        path = self._given
        if path is None:
            path = self._directory / f"{number}.json"
            made = calibrate.measure(self._progress)
            path.write_bytes(msgspec.json.encode(msgspec.convert(made, Profile)))
        self.known[number] = path
        return path


def study(
    names: Sequence[str],
    rounds: int,
    out: Path,
    progress: Progress,
    given: Path | None = None,
    search: int = 0,
    seed: int = 0,
) -> Study:
    """Predict the workloads `names` and measure them, in `rounds` rounds; write what is found.

    With a profile `given` nothing is calibrated. Then `search` programs are tried for the worst
    case. ``fidelity-predictions.jsonl`` is in `out` before each measurement, ``fidelity.json`` at
    the end, and before a search. Raises ResultError if one cannot be written.
    """
    with tempfile.TemporaryDirectory() as directory:
        profiles = _Profiles(given, Path(directory), progress)
        file = _PredictionFile(out / fidelity.PREDICTIONS)
        found = Study(campaigns.now(), file.written, commit_of(ROOT), rounds, [], [])
        if given is not None:
            found.profile = given.name
        workloads = {name: WORKLOADS[name] for name in names}
        steps = _steps(len(names), rounds) + rounds * len(_batches(names)) * profiles.steps
        progress.begin("predicting and measuring", steps)
        found.metrics += _compare(workloads, profiles.measure, file, found, progress)
        fidelity.write(out / fidelity.FIDELITY, found)
        if search:
            of_search = _PredictionFile(out / fidelity.SEARCH_PREDICTIONS)
            _search(found, search, seed, profiles, of_search, progress)
            fidelity.write(out / fidelity.FIDELITY, found)
    return found


def _batches(names: Iterable[str]) -> list[list[str]]:
    """Deal names into as few batches as need be: programs of one kind stand next to each other, and
    are spread over them, so that a change of the machine is not the error of a kind."""
    dealt = list(names)
    count = -(-len(dealt) // BATCH)
    return [dealt[number::count] for number in range(count)]


def _steps(workloads: int, rounds: int) -> int:
    """Return how often `_compare` advances."""
    return workloads * (2 * rounds + 1)


def _search(
    found: Study,
    count: int,
    seed: int,
    profiles: _Profiles,
    file: _PredictionFile,
    progress: Progress,
) -> None:
    """Try `count` programs, measure the worst anew, and add what that is to a study."""
    search = found.search = Search(seed, file.written, [], "")

    def judge(graphs: Sequence[LayeredGraph]) -> list[float]:
        workloads = {graph.name: graph.workload() for graph in graphs}
        tried = _compare(workloads, profiles.known.__getitem__, file, found, progress)
        search.tried += tried
        return [each.excess for each in tried]

    steps = _steps(count + 1, found.rounds) + found.rounds * profiles.steps
    progress.begin("searching for the worst case", steps)
    worst = worst_case.search(count, seed, judge)
    search.worst = worst.name
    anew = {worst.name: worst.workload()}
    found.metrics += _compare(anew, profiles.measure, file, found, progress)


def _compare(
    workloads: Mapping[str, Workload],
    profile_in: Callable[[int], Path],
    file: _PredictionFile,
    found: Study,
    progress: Progress,
) -> list[Metric]:
    """Predict and measure workloads in the rounds of a study, batch by batch, each with the profile
    that `profile_in` has for the round; note the processor's speed in the study."""
    predicted: dict[str, list[_Prediction]] = {name: [] for name in workloads}
    measured: dict[str, list[_Measured]] = {name: [] for name in workloads}
    for number, names in product(range(found.rounds), _batches(workloads)):
        batch = {name: workloads[name] for name in names}
        profile = profile_in(number)
        before = measured_host.speed()
        predictions = _predict(batch, profile, number == 0, progress)
        file.add(predictions)
        for name, workload in batch.items():
            predicted[name].append(predictions[name])
            with _cores(workload.cores):
                speed = round(measured_host.speed() / before, 3)
                measured[name].append(
                    _Measured(measure_one(workload), measure_one(workload), speed)
                )
            progress.advance()
        found.speed.append(round(measured_host.speed() / before, 3))
    metrics: list[Metric] = []
    for name, workload in workloads.items():
        counted = {} if workload.faulty else _counted(workload)
        metrics += _metrics(name, workload, predicted[name], measured[name], counted)
        progress.advance()
    return metrics


def _counted(workload: Workload) -> dict[str, float]:
    """Return the turns and frames of a run with journals."""
    with _cores(workload.cores), tempfile.TemporaryDirectory() as journals:
        return measure_one(workload, Path(journals)).traffic


def _predict(
    workloads: Mapping[str, Workload], profile: Path, counted: bool, progress: Progress
) -> dict[str, _Prediction]:
    """Predict with a profile; count turns and frames where that is wanted."""
    one_at_a_time = simulate(WORKLOADS["sync"], profile)
    task_s = one_at_a_time.elapsed_s / one_at_a_time.ended[0].operations
    machine_cores = load_profile(profile).cores
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, workload in workloads.items():
            journal = Path(directory) / name if counted and not workload.faulty else None
            runs = simulate(workload, profile, journal)
            cores = min(sum(workload.cpus), workload.cores or machine_cores)
            whole_s = runs.ended[0].operations * (task_s + workload.body_s) / cores
            # Sides are of makespans.
            near = runs.threshold.is_near and fidelity.MAKESPAN in runs.figures()
            sides_s = (
                simulate(workload, profile, wait_s=wait_s).elapsed_s
                for wait_s in (runs.threshold.sides_s if near else ())
            )
            found[name] = _Prediction(runs, whole_s if workload.of_tasks else None, tuple(sides_s))
            progress.advance()
    return found


def simulate(
    workload: Workload, profile: Path, journal: Path | None = None, wait_s: float | None = None
) -> Runs:
    """Run a workload on `sim`, with another threshold if there is a `wait_s`; count turns and
    frames if a journal is to be written."""
    with _options(workload) as options:
        session: Any = ray.init(
            backend="sim",
            nodes=workload.nodes,
            **options,
            nodes_per_host=len(workload.nodes),
            profile=str(profile),
            cores_per_host=workload.cores,
            journal=journal,
            timers=None if wait_s is None else {"spill_wait_s": wait_s},
        )
        try:
            run = workload.start()
            if not workload.faulty:
                run()
            begun_s, before = ray.now(), {} if workload.faulty else fit.busy(session.cluster)
            ended = _timed(workload, run)
            after = {} if workload.faulty else fit.busy(session.cluster)
            threshold = session.cluster.threshold.tally
        finally:
            ray.shutdown()
    found = _runs(ended, before, after, [] if journal is None else [journal], begun_s)
    return replace(found, threshold=threshold)


def measure_one(workload: Workload, journals: Path | None = None) -> Runs:
    """Run a workload on a cluster of its own; count turns and frames if there is a directory for
    journals."""
    links = proxied("local") if workload.behind_proxies else nullcontext()
    with links, _options(workload) as options:
        session: Any = ray.init(backend="local", nodes=workload.nodes, journal=journals, **options)
        try:
            run = workload.start()
            if not workload.faulty:
                for _ in range(WARM_UPS):
                    run()
            meter = calibrate.Meter(session.cluster)
            begun_s, before = ray.now(), meter.read()
            ended = _timed(workload, run)
            after = {} if workload.faulty else meter.read()
        finally:
            ray.shutdown()
    return _runs(ended, before, after, [] if journals is None else journals.iterdir(), begun_s)


@contextmanager
def _options(workload: Workload) -> Iterator[dict[str, Any]]:
    """Give the options of `init`; a file of the GCS is there as long as the ``with``."""
    with tempfile.TemporaryDirectory(prefix="raytwin-") as folder:
        stored = {"gcs_storage": Path(folder) / "gcs"} if workload.stores_gcs else {}
        yield {**workload.options, **stored}


def _timed(workload: Workload, run: Callable[[], Ended]) -> list[Ended]:
    """Run a program `TIMED` times, or once if it is faulty."""
    return [run() for _ in range(1 if workload.faulty else TIMED)]


def _runs(
    ended: Sequence[Ended],
    before: Mapping[str, float],
    after: Mapping[str, float],
    journals: Iterable[Path],
    begun_s: float,
) -> Runs:
    operations = sum(run.operations for run in ended)
    cpu_s = {role: (after[role] - before[role]) / operations for role in after}
    counted = traffic(journals, begun_s)
    return Runs(ended, cpu_s, {name: each / operations for name, each in counted.items()})


def _metrics(
    name: str,
    workload: Workload,
    predictions: Sequence[_Prediction],
    measured: Sequence[_Measured],
    counted: Mapping[str, float],
) -> Iterator[Metric]:
    predicted = [each.runs for each in predictions]
    real = [runs for each in measured for runs in (each.first, each.again)]
    for key in predicted[0].figures():
        metric = Metric(
            name, workload.group.value, len(workload.cpus), key,
            [runs.figures()[key] for runs in predicted],
            [each.first.figures()[key] for each in measured],
            [each.again.figures()[key] for each in measured],
            [each.speed for each in measured],
        )  # fmt: skip
        if key == fidelity.MAKESPAN:
            metric.sides = [side for each in predictions for side in each.sides_s]
            metric.naive = [each.naive_s for each in predictions if each.naive_s is not None]
            metric.roles = {
                role: Role(*(_median_cpu_s(role, each) for each in (predicted, real)))
                for role in predicted[0].cpu_s
            }
            metric.traffic = {
                what: Amount(predicted[0].traffic.get(what, 0.0), counted.get(what, 0.0))
                for what in sorted({*predicted[0].traffic, *counted})
            }
        elif key == fidelity.MEDIAN:
            metric.ks = fidelity.ks_distance(
                *([latency_s for runs in of for latency_s in runs.latencies_s]
                  for of in (predicted, real))
            )  # fmt: skip
        yield metric


def _median_cpu_s(role: str, of_clusters: Sequence[Runs]) -> float:
    return statistics.median(runs.cpu_s[role] for runs in of_clusters)


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
