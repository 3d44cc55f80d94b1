"""The file of a study of predictions: ``fidelity.json``, which ``raytwin fidelity`` writes.

The report reads it where it lies beside results.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from raytwin.scenarios.core import measured_host
from raytwin.scenarios.core.results import ResultError, write_file

FIDELITY = "fidelity.json"
PREDICTIONS = "fidelity-predictions.jsonl"
SEARCH_PREDICTIONS = "fidelity-search-predictions.jsonl"
FLOORS = 2
"""An aim is no less than so many noise floors."""
AIM, AIM_OF_TAIL = 0.10, 0.20
"""How far predictions may be off, of p99 and of recovery further; or twice the noise floor, if that
is more."""
MAKESPAN, MEDIAN, TAIL = "makespan_s", "p50_s", "p99_s"
FULL, DETECTED, REJOINED, SLOWEST = "full_s", "detect_s", "rejoin_s", "slowest_since_kill_s"
"""Times since a fault: until all that it hit has ended and throughput is back; until the cluster
reports the death; until the chain of the GCS is whole again. And what the slowest write took."""
RECOVERY = (FULL, DETECTED, REJOINED, SLOWEST)
SEARCHED = "searched"
"""The group of the program that a search has selected."""


def aim_with(finest: float, noise: float | None) -> float:
    """Return how far a prediction may be off with this noise floor, None if there is none.

    An infinite floor excuses nothing: a fault hit nothing on one of two clusters.
    """
    return finest if noise is None or math.isinf(noise) else max(finest, FLOORS * noise)


class Role(msgspec.Struct):
    """CPU time of one role, seconds per operation."""

    predicted_s: float
    measured_s: float


class Amount(msgspec.Struct):
    """Turns of one role, or frames from one role to another, per operation."""

    predicted: float
    measured: float


class Metric(msgspec.Struct):
    """One figure of one workload: predicted in each round, and then measured."""

    workload: str
    group: str
    """How the workload relates to the calibration."""
    nodes: int
    metric: str
    """``makespan_s``, or a quantile of the latencies of its operations, ``p50_s``, ``p99_s``, or a
    time of `RECOVERY`."""
    predictions: list[float]
    """One of each round, with the costs that were calibrated for its batch."""
    measured: list[float]
    """One of each round, in the same order."""
    again: list[float] = []
    """Of each round: measured once more right after that, on another cluster. Empty if not."""
    speeds: list[float] = []
    """Of each round: the processor's speed beside the measurement, over its speed when its
    batch was predicted."""
    naive: list[float] = []
    """Of a makespan, for each round: tasks times the mean time of a task, by the number of cores.
    Empty for what is not made of tasks."""
    ks: float | None = None
    """Of a median: the Kolmogorov-Smirnov distance of the predicted latencies and all measured."""
    roles: dict[str, Role] = {}
    """Of a makespan."""
    traffic: dict[str, Amount] = {}
    """Of a makespan: ``node turns``, ``driver to node`` (frames), ..."""
    sides: list[float] = []
    """Of a makespan: the predictions of rounds in which many tasks were near the threshold of the
    placement policy, with a lower one and with a higher one."""

    @property
    def predicted(self) -> float:
        """The median of what was predicted."""
        return statistics.median(self.predictions)

    @property
    def median(self) -> float:
        """The median of what was measured."""
        return statistics.median(self.measured + self.again)

    @property
    def error(self) -> float:
        """By how much the predictions are off, relative, signed: 0.1 is 10 % too much.

        The median over the measurements, each of which is compared with the prediction of its own
        round.
        """
        return self._off(self.predictions)

    @property
    def naive_error(self) -> float | None:
        """By how much the naive model is off."""
        return self._off(self.naive) if self.naive else None

    def _off(self, predictions: Sequence[float]) -> float:
        rounds = zip(predictions, self.measured, self.again or self.measured, strict=True)
        ratios = [_ratio(predicted, each) for predicted, *measured in rounds for each in measured]
        return statistics.median(ratios) - 1

    @property
    def noise(self) -> float:
        """The noise floor: by how much one cluster differs from the next, in the median.

        Only clusters of one round are compared: from round to round the machine changes, and the
        error has no part of that.
        """
        pairs = zip(self.measured, self.again or self.measured, strict=True)
        apart = (math.log(max(_ratio(a, b), _ratio(b, a))) for a, b in pairs)
        return math.exp(statistics.median(apart)) - 1

    @property
    def aim(self) -> float:
        """How far it may be off."""
        return aim_with(AIM_OF_TAIL if self.metric in (TAIL, *RECOVERY) else AIM, self.noise)

    @property
    def excess(self) -> float:
        """By how much it is off beyond that; negative: within."""
        return abs(self.error) - self.aim


class Written(msgspec.Struct):
    """A state of a file of predictions, before what its last lines predict was measured."""

    lines: int
    """The lines of the file so far."""
    at: str
    """When they had been written: ISO 8601, UTC."""
    sha256: str
    """Of these lines."""


class Search(msgspec.Struct):
    """A search for the program of which the prediction is worst."""

    seed: int
    predictions: list[Written]
    tried: list[Metric]
    """The makespans, in their order, as they were measured to select the worst."""
    worst: str
    """The program that was selected. It was measured anew then: see `Study.worst`."""

    @property
    def selected(self) -> Metric:
        """The worst as it was when it was selected."""
        return next(each for each in self.tried if each.workload == self.worst)


class Study(msgspec.Struct):
    """Predictions of workloads, and what was measured then."""

    date: str
    """When it began: ISO 8601, UTC."""
    predictions: list[Written]
    """The file of predictions as each batch of a round had written it."""
    commit: str
    rounds: int
    speed: list[float]
    """The processor's speed when a batch of a round had been measured, over its speed when its
    batch was predicted."""
    metrics: list[Metric]
    profile: str = ""
    """The file of the profile with which it was predicted; empty: this machine was calibrated."""
    search: Search | None = None
    versions: dict[str, str] = msgspec.field(default_factory=measured_host.versions)

    @property
    def worst(self) -> Metric | None:
        """The worst case: of the program that the search has selected, measured anew."""
        return next((each for each in self.metrics if each.group == SEARCHED), None)

    def groups(self) -> list[str]:
        """Return how the programs relate to the calibration, in their order.

        The worst case is not one of several like it, and no group.
        """
        found = dict.fromkeys(each.group for each in self.metrics)
        return [each for each in found if each != SEARCHED]

    def roles(self) -> list[str]:
        """Return the roles whose CPU time was compared."""
        return list(dict.fromkeys(role for each in self.metrics for role in each.roles))

    def amounts(self) -> list[str]:
        """Return the turns and frames that were counted in any program."""
        return sorted({what for each in self.metrics for what in each.traffic})

    def typical(self, group: str | None = None) -> float | None:
        """Return the median size of the errors, of one group or of all that are held out."""
        # Loads of the fit are too good; a worst case was selected for being bad, and is no sample.
        apart = ("train", SEARCHED)
        found = [
            abs(each.error)
            for each in self.metrics
            if (each.group == group if group is not None else each.group not in apart)
        ]
        return statistics.median(found) if found else None


def _ratio(one: float, other: float) -> float:
    """Return how many times one time is the other. A fault that hits nothing is over at once: both
    may be 0."""
    if one == other:
        return 1.0
    return one / other if other else math.inf


def ks_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest difference of the distributions of two samples, 0 to 1."""
    from scipy.stats import ks_2samp

    return float(ks_2samp(one, other).statistic)


def write(path: Path, document: object) -> None:
    """Write a document. Raises ResultError if that is not possible."""
    _write(path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def write_lines(path: Path, documents: Sequence[object]) -> None:
    """Write a line for each document. Raises ResultError if that is not possible."""
    _write(path, b"".join(msgspec.json.encode(each) + b"\n" for each in documents))


def _write(path: Path, content: bytes) -> None:
    try:
        write_file(path, content)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}") from error
