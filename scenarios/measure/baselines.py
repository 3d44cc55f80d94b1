"""Baselines: the simulated figures of every scenario, kept in the repository.

The simulation is deterministic, so its figures are a benchmark without noise: a change
of scheduling, batching or costs moves exactly the figures that it has an effect on. One
file, ``baselines/<scenario>.<scale>.json``, keeps of a run on ``sim`` with the profile
``paper`` and seed 0

======= ==========================================================================
metrics as in ``result.json``
counts  by the policy of the clusters, summed over them: how many they are, the tasks
        that they ran, and for each role of `counts` the turns it had, the
        messages it received, the frames it sent to other processes and their bytes;
        ``network_bytes`` are these and the objects that moved. Per task, or in all
        where no task was run.
======= ==========================================================================

Counts are compared exactly, metrics up to `TOLERANCE`. Nothing in a file depends on the
machine or on how long the run took.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

import raytwin as ray
from raytwin.runtime.api.backend import on_connect
from raytwin.scenarios.core import results
from raytwin.scenarios.core.results import ResultError
from raytwin.scenarios.core.scenario import (
    SCALES,
    Check,
    Progress,
    Request,
    Scenario,
    UsageError,
    did_you_mean,
)
from raytwin.scenarios.measure import registry
from raytwin.simulator.machine.simulated_process import Counts

FOLDER = Path(__file__).absolute().parents[1] / "baselines"
CHOICES = ("cheap", *SCALES, "all")
"""The scales that `chosen` takes; ``cheap`` is all but `LONG`."""
LONG = frozenset(
    {
        "fig8b.full", "fig10a.full", "fig10b.full", "fig11a.full", "fig11b.full",
        "fig13.full", "fig14a.full", "fig14b.full", "table4.full",
        "recovery.full", "availability.full", "policies.full",
    }
)  # fmt: skip
"""Runs that take more than 20 s or so on one core."""
TOLERANCE = 1e-9
"""Relative, of metrics: Python 3.12 adds floats up more exactly than 3.11 does, and numpy's
versions differ likewise, in the last digits. What moves in earnest moves by far more."""

Numbers = dict[str, float]


class Baseline(msgspec.Struct):
    """A file; see the module's docstring."""

    metrics: Numbers
    counts: dict[str, Numbers]
    """By policy."""

    def named(self) -> Iterator[tuple[str, float, float]]:
        """Yield the name of each number, the number, and the tolerance it is compared with."""
        for name, value in self.metrics.items():
            yield name, value, TOLERANCE
        for policy, numbers in self.counts.items():
            for name, value in numbers.items():
                yield f"{policy}: {name}", value, 0.0


@dataclass(frozen=True)
class Subject:
    """A scenario at a scale."""

    scenario: Scenario
    scale: str

    @property
    def name(self) -> str:
        """As in the file's name."""
        return f"{self.scenario.name}.{self.scale}"

    def path(self, folder: Path) -> Path:
        """Return where its baseline is."""
        return folder / f"{self.name}.json"


def chosen(names: Sequence[str] = (), scale: str = "cheap") -> list[Subject]:
    """Return what has a baseline, of these scenarios or of all; raises UsageError."""
    known = {n: each for n, each in registry.scenarios().items() if "sim" in each.backends}
    for name in names:
        if name not in known:
            raise UsageError(f"no simulated scenario {name!r}: {did_you_mean(name, known)}")
    if scale not in CHOICES:
        raise UsageError(f"no scale {scale!r}: {did_you_mean(scale, CHOICES)}")
    subjects = [
        Subject(known[name], each) for name in dict.fromkeys(names or known) for each in SCALES
    ]
    if scale == "cheap":
        return [subject for subject in subjects if subject.name not in LONG]
    return [subject for subject in subjects if scale in ("all", subject.scale)]


def check(subject: Subject, progress: Progress, folder: Path = FOLDER) -> list[str]:
    """Run it and return what moved against its baseline, a line each.

    A check of the scenario that fails is such a line, too. Raises ResultError for a file
    that is no baseline, and whatever the scenario raises.
    """
    path = subject.path(folder)
    before = read(path)
    if before is None:
        return [f"{path} is missing: 'raytwin baseline --update {subject.scenario.name}' writes it"]
    found, failed = measure(subject, progress)
    return [_failure(each) for each in failed] + compare(before, found)


def update(subject: Subject, progress: Progress, folder: Path = FOLDER) -> list[str]:
    """Run it, write its baseline, and return what moved against the one that was there.

    The file is left as it is if nothing moved. Raises ResultError if a check of the
    scenario fails: those are no figures to hold on to, and nothing is written. Raises
    whatever the scenario raises.
    """
    path = subject.path(folder)
    found, failed = measure(subject, progress)
    if failed:
        raise ResultError(f"{path} was not written: {'; '.join(map(_failure, failed))}")
    try:
        before = read(path)
    except ResultError:  # such as one that a merge has left conflicts in
        before = None
    lines = ["there was none"] if before is None else compare(before, found)
    if lines:
        text = msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
        try:
            results.write_file(path, text)
        except OSError as error:
            raise ResultError(f"cannot write {path}: {error.strerror or error}") from error
    return lines


def read(path: Path) -> Baseline | None:
    """Return the baseline in a file, None if there is no file. Raises ResultError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Baseline)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ResultError(f"{path} is no baseline: {error}") from error


def measure(subject: Subject, progress: Progress) -> tuple[Baseline, list[Check]]:
    """Run it on ``sim``; return its figures, and the checks that failed."""
    sums: defaultdict[str, Counter] = defaultdict(Counter)

    def begin(session: Any) -> None:
        cluster = session.cluster
        session.before_shutdown.append(lambda: sums[cluster.config.policy].add(cluster))

    scenario, scale = subject.scenario, subject.scale
    settings = scenario.settings(scale, {})
    on_connect.append(begin)
    try:
        outcome = scenario.run(Request("sim", scale, settings=settings, progress=progress))
    finally:
        if ray.is_initialized():
            ray.shutdown()
        on_connect.remove(begin)
    counts = {policy: each.numbers() for policy, each in sums.items()}
    return Baseline(outcome.metrics, counts), [each for each in outcome.checks if not each.ok]


class Counter:
    """The sums over the clusters of one policy."""

    def __init__(self) -> None:
        self._clusters = 0
        self._tasks = 0
        self._amounts: defaultdict[str, int] = defaultdict(int)

    def add(self, cluster: Any) -> None:
        """Add all that a simulated cluster has done."""
        self._clusters += 1
        self._tasks += cluster.tasks
        self._amounts["network_bytes"] += sum(cluster.network.bytes_sent.values())
        for role, counts in cluster.counts.items():
            for each, amount in zip(fields(Counts), astuple(counts), strict=True):
                self._amounts[f"{role}_{each.name}"] += amount

    def numbers(self) -> Numbers:
        """Return the sums by name, without those that are zero."""
        amounts = {name: amount for name, amount in sorted(self._amounts.items()) if amount}
        numbers: Numbers = {"clusters": self._clusters, "tasks": self._tasks}
        if not self._tasks:
            return numbers | amounts
        return numbers | {f"{name}_per_task": n / self._tasks for name, n in amounts.items()}


def compare(before: Baseline, now: Baseline) -> list[str]:
    """Return a line for each number that moved, came or went: old, new, percent."""
    old = {name: value for name, value, _ in before.named()}
    new = {name: (value, tolerance) for name, value, tolerance in now.named()}
    lines = []
    for name, (value, tolerance) in new.items():
        if name not in old:
            lines.append(f"{name}: none -> {_shown(value)}")
        elif not math.isclose(old[name], value, rel_tol=tolerance):
            lines.append(f"{name}: {_shown(old[name])} -> {_shown(value)}{_by(old[name], value)}")
    lines += [f"{name}: {_shown(old[name])} -> none" for name in old if name not in new]
    return lines


def _failure(check: Check) -> str:
    return f"check fails: {check.name}: {check.detail}"


def _shown(value: float) -> str:
    return f"{value:.10g}"


def _by(old: float, new: float) -> str:
    return f" ({100 * (new / old - 1):+.3g} %)" if old else ""
