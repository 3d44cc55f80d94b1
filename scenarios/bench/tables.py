"""What a gate found, and what a benchmark measured, as other programs show it.

`markdown` is for a pull request's comment; `history` is what the GitHub action
``github-action-benchmark`` reads (tool ``customSmallerIsBetter``): it keeps one such list per
commit, and draws them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

ONE = {
    "tasks/s": "task", "calls/s": "call", "batches/s": "batch", "actors/s": "actor",
    "puts/s": "put", "gets/s": "get", "GB/s": "GB",
}  # fmt: skip
"""What a rate counts."""


def interval(row: Mapping[str, Any]) -> str:
    """Return a slow-down and its interval: ``+1.2 % (-0.3 to +2.9)``."""
    middle, low, high = (100 * row[key] for key in ("slowdown", "low", "high"))
    return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})"


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole in a line: what is slower, and how many are not or may be."""
    slower = [f"{row['name']} ({row['statistic']})" for row in rows if row["verdict"] == "slower"]
    counts = Counter(row["verdict"] for row in rows if row["verdict"] != "slower")
    others = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    first = f"slower than the threshold: {', '.join(slower)}" if slower else "nothing is slower"
    return f"{first}; others: {others or 'none'}"


def markdown(document: Mapping[str, Any]) -> str:
    """Return the document of ``raytwin bench --against`` as a table, worst first."""
    rows = sorted(document["rows"], key=lambda row: -row["low"])
    old, new = document["old"], document["new"]
    lines = [
        f"**{summary(rows)}**",
        "",
        f"{_tree(new)} against {_tree(old)}; an interval beyond"
        f" {document['threshold']:.0%} fails. Load while measuring: {document['load']:.1f} a core.",
        "",
        "| case | statistic | slower by (99.8 % interval) | rounds | |",
        "|---|---|---|---|---|",
        *(
            f"| `{row['name']}` | {row['statistic']} | {interval(row)} | {len(row['old_s'])} "
            f"| {row['verdict']} |"
            for row in rows
        ),
    ]
    return "\n".join(lines) + "\n"


def _tree(side: Mapping[str, str]) -> str:
    commit = side["commit"]
    return (
        f"{side['label']} ({commit[:9]}{'+' * commit.endswith('+')})" if commit else side["label"]
    )


def history(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the benchmark's rows with costs for figures: what smaller is better.

    Each has ``name`` (Ray's, where its microbenchmark has the case), ``unit``, ``value`` (the
    median of the rounds), ``range`` (half of what lies between the lowest and the highest).
    """
    entries = []
    for row in rows:
        values = row["samples"]["ours"]
        unit = row["unit"]
        if row["better"] == "higher":
            values = [1e6 / value for value in values]
            unit = f"µs per {ONE[unit]}"
        spread = (max(values) - min(values)) / 2
        entries.append(
            {
                "name": row["ray_name"] or row["name"],
                "unit": unit,
                "value": median(values),
                "range": f"± {spread:.4g}",
            }
        )
    return entries
