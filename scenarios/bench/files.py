"""Files of the benchmark: what was measured on, and when; written, read, set side by side."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raytwin.scenarios.bench.decision import ROUNDS_MIN, Judged, row
from raytwin.scenarios.bench.intervals import Verdict, of_files
from raytwin.scenarios.core import measured_host, results
from raytwin.scenarios.core.scenario import UsageError

OURS = "ours"
KINDS = ("bench", "against")


def measured_on() -> dict[str, Any]:
    """Return when and on what: ``date`` (ISO 8601, UTC), ``host``, ``load``, ``versions``.

    The load is the mean of the last 15 minutes, per core.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": measured_host.describe(),
        "load": os.getloadavg()[2] / measured_host.cores(),
        "versions": measured_host.versions(),
    }


def write(path: Path, document: Any) -> None:
    """Write a document of the benchmark as JSON."""
    encoded = json.dumps(document, indent=2, allow_nan=False).encode() + b"\n"
    results.write_file(path, encoded)


def read(path: Path) -> dict[str, Any]:
    """Return the document of a file that ``raytwin bench --json`` wrote. Raises UsageError."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if not isinstance(found, dict) or found.get("kind") not in KINDS:
        raise UsageError(f"{path} is not what 'raytwin bench --json' writes: measure again")
    return found


def compare(
    old: Mapping[str, Any], new: Mapping[str, Any], threshold: float
) -> list[dict[str, Any]]:
    """Return what the rounds of two files say of each case that both have, as `decision.row` does.

    Raises UsageError for files of different hosts, or with nothing in common. Rounds of two files
    were not taken beside one another: what the machine did meanwhile is in their difference.
    """
    if old["host"] != new["host"]:
        keys = [key for key in old["host"] if old["host"][key] != new["host"].get(key)]
        told = ", ".join(f"{k} {old['host'][k]} and {new['host'].get(k)}" for k in keys)
        raise UsageError(
            f"the files are of different hosts ({told}): measure both on one, or with"
            " 'raytwin bench --against'"
        )
    before, after = _costs(old), _costs(new)
    rows = []
    for name, statistic in before:
        if (name, statistic) not in after:
            continue
        costs = before[name, statistic], after[name, statistic]
        slowdown = of_files(*costs)
        verdict = slowdown.verdict(threshold)
        if min(map(len, costs)) < ROUNDS_MIN:
            verdict = Verdict.UNDECIDED
        rows.append(row(Judged(name, statistic, slowdown, verdict, *costs)))
    if not rows:
        raise UsageError("the files have no case in common")
    return rows


def _costs(document: Mapping[str, Any]) -> dict[tuple[str, str], list[float]]:
    """Return our own costs in each round, by case and statistic; lower is better."""
    found: dict[tuple[str, str], list[float]] = {}
    for measured in document["rows"]:
        if document["kind"] == "against":
            found[measured["name"], measured["statistic"]] = measured["new_s"]
            continue
        values = measured["samples"][OURS]
        higher = measured["better"] == "higher"
        statistic = "memory" if measured["unit"] == "MB" else "time"
        found[measured["name"], statistic] = [1 / value if higher else value for value in values]
        cpu_s = measured["cpu_s"].get(OURS, [None])
        if None not in cpu_s:
            found[measured["name"], "cpu"] = cpu_s
    return found
