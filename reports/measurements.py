"""Reads the files beside scenarios' results that the report shows as well.

================ ===========================================================================
bench.json       of ``raytwin bench --json``: raytwin against its peers
benchmarks.json  of github-action-benchmark (``external-data-json-path``), which keeps one list
                 of ``raytwin bench --history`` per commit
fuzz.json        of ``raytwin fuzz``
recovery*.json   of ``raytwin exec --faults --json``
profile.json     of ``raytwin calibrate``, or of the first run that predicts
fidelity.json    of ``raytwin fidelity``
================ ===========================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from raytwin.scenarios.core.campaigns import CAMPAIGN, RECOVERIES, Campaign, ScriptUnderFaults
from raytwin.scenarios.core.fidelity import FIDELITY, Study
from raytwin.scenarios.core.results import SPREAD_MAX, ResultError

T = TypeVar("T")

BENCH, HISTORY, PROFILE = "bench.json", "benchmarks.json", "profile.json"


class Case(msgspec.Struct):
    """A case of the benchmark: see `scenarios.bench.run.row`."""

    name: str
    unit: str
    ours: float
    peers: dict[str, float]
    ratios: dict[str, float]
    """Ours to the peer's, by peer; above 1 is better for ours."""
    ratio_range: dict[str, tuple[float, float]]
    range: dict[str, tuple[float, float]]
    rounds: int


class Bench(msgspec.Struct):
    """A file of the benchmark against peers."""

    rows: list[Case]
    date: str = ""
    commit: str = ""
    load: float | None = None
    """Of the last 15 minutes, per core."""


class _Commit(msgspec.Struct):
    id: str


class Measured(msgspec.Struct):
    """A median of the history; smaller is better."""

    name: str
    value: float
    unit: str = ""
    range: str = "± 0"
    """Half of what lies between the lowest and the highest: "± 0.3"."""

    half: float = 0.0
    """The half-width of the spread that `range` spells out, in `unit`."""

    def __post_init__(self) -> None:
        self.half = float(self.range.removeprefix("±"))  # a ValueError becomes a ValidationError


class Night(msgspec.Struct):
    """All medians of one commit."""

    commit: _Commit
    date: int
    """Milliseconds since 1970."""
    benches: list[Measured]


class _Suites(msgspec.Struct):
    """The suites of the history, by name; those of other projects are not read."""

    raytwin: list[Night] = []


class _History(msgspec.Struct):
    entries: _Suites


@dataclass(frozen=True)
class Measurements:
    """The files beside the results, as far as there are any."""

    bench: Bench | None = None
    history: tuple[Night, ...] = ()
    campaign: Campaign | None = None
    scripts: tuple[ScriptUnderFaults, ...] = ()
    profile: tuple[tuple[str, Any], ...] = ()
    """(name with the unit last, value)"""
    study: Study | None = None
    """How far predictions of programs were off that are no scenario."""

    @property
    def spread(self) -> float:
        """How many times as long one round of the calibration took as another, if that is so much
        that the machine changed meanwhile; else 0."""
        spread: float = dict(self.profile).get("spread", 1.0)
        return spread if spread > SPREAD_MAX else 0.0


NONE = Measurements()


def read_measurements(directory: Path) -> Measurements:
    """Return what lies in a directory. Raises ResultError for a file that is not what it should."""
    bench = _read(directory / BENCH, Bench, "raytwin bench --peers ... --json")
    history = _read(directory / HISTORY, _History, "github-action-benchmark")
    profile = _read(directory / PROFILE, dict[str, Any], "raytwin calibrate")
    scripts = (
        _read(path, ScriptUnderFaults, "raytwin exec --faults --json")
        for path in sorted(directory.glob(RECOVERIES))
    )
    nights = history.entries.raytwin if history is not None else []
    return Measurements(
        bench,
        tuple(sorted(nights, key=lambda night: night.date)),
        _read(directory / CAMPAIGN, Campaign, "raytwin fuzz"),
        tuple(script for script in scripts if script is not None),
        # The report leaves out the loads that the calibration measured: some 500 numbers.
        tuple(_flat({key: each for key, each in (profile or {}).items() if key != "loads"})),
        _read(directory / FIDELITY, Study, "raytwin fidelity"),
    )


def _read(path: Path, kind: type[T] | Any, writer: str) -> Any:
    """Return a file's document; None where there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise ResultError(f"{path} is not what '{writer}' writes: {why}") from error


def _flat(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the numbers and texts of nested objects, each with its path."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value
