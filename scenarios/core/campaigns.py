"""Files of what ran under faults, and is no scenario: the fuzz, and scripts of users.

``fuzz.json`` is a `Campaign`, which ``raytwin fuzz --out DIR`` leaves in DIR;
``recovery*.json`` is a `ScriptUnderFaults`, of ``raytwin exec --faults PLAN --json FILE``.
The report reads both where they lie beside results.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from raytwin.scenarios.core import measured_host
from raytwin.scenarios.core.results import CheckRecord, ResultError, write_file

CAMPAIGN = "fuzz.json"
RECOVERIES = "recovery*.json"


class Failing(msgspec.Struct):
    """A seed that fails."""

    seed: int
    failures: list[str]
    file: str
    """The name of its case's file, for ``raytwin replay``."""
    shrunk_to: str = ""
    """The shrunk case, in words."""


class Campaign(msgspec.Struct):
    """A run of the fuzz over many seeds."""

    date: str
    """When it began: ISO 8601, UTC."""
    first_seed: int
    seeds: int
    """How many seeds were asked for."""
    lossless: bool
    ran: int
    failed: int
    tasks: int
    faults: int
    values: int
    """The values that the programs got."""
    verdicts: dict[str, int]
    """The values in whose place a legitimate error came, by what explains the error."""
    duration_s: float
    failing: list[Failing] = []
    versions: dict[str, str] = msgspec.field(default_factory=measured_host.versions)


class Step(msgspec.Struct):
    """A step of a plan that was carried out, or could not be."""

    at_s: float
    """Since the plan was applied."""
    step: str
    error: str = ""
    noticed_s: float | None = None
    """When the cluster reported a death by it, since the step; None: no death was reported."""
    noticed: str = ""
    """What it reported."""


class Cluster(msgspec.Struct):
    """A cluster that a script has started, under the plan."""

    steps: list[Step]
    numbers: dict[str, float]
    """As ``expect`` of a plan names them; see `chaos.faults.recovery_summary`."""
    checks: list[CheckRecord]
    """What the plan expects."""


class ScriptUnderFaults(msgspec.Struct):
    """A run of a user's script under a fault plan."""

    date: str
    script: str
    """The name of its file."""
    backend: str
    plan: list[str]
    """In sentences."""
    clusters: list[Cluster]
    exit_code: int
    duration_s: float
    versions: dict[str, str] = msgspec.field(default_factory=measured_host.versions)


def now() -> str:
    """Return the date and time as these files have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write(path: Path, document: Campaign | ScriptUnderFaults) -> None:
    """Write a document. Raises ResultError if that is not possible."""
    try:
        write_file(path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}") from error
