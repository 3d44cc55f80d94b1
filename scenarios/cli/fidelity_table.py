"""The table that ``raytwin fidelity`` prints: a row per workload and metric, a line per group, and
one for the worst case."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from raytwin.scenarios.core.fidelity import AIM, Metric, Study


def show(console: Console, study: Study) -> None:
    """Print a study."""
    table = Table(box=None, pad_edge=False)
    for column in ("workload", "metric", "predicted", "measured", "error", "noise", "naive", "KS"):
        table.add_column(column, justify="left" if column in ("workload", "metric") else "right")
    table.add_column("")
    for each in study.metrics:
        table.add_row(
            each.workload,
            each.metric.removesuffix("_s"),
            f"{1e3 * each.predicted:.2f} ms",
            f"{1e3 * each.median:.2f} ms",
            f"{each.error:+.0%}",
            f"{each.noise:.0%}",
            "" if each.naive_error is None else f"{each.naive_error:+.0%}",
            "" if each.ks is None else f"{each.ks:.2f}",
            _remark(each),
        )
    console.print(table)
    for group in study.groups():
        mine = [each for each in study.metrics if each.group == group]
        kept = sum(abs(each.error) <= each.aim for each in mine)
        near = sum(abs(each.error) <= AIM for each in mine)
        console.print(
            f"{group}: median error {study.typical(group):.0%}, {kept} of {len(mine)} keep their"
            f" aim, {near} are within {AIM:.0%}",
            highlight=False,
        )
    if study.search is not None and study.worst is not None:
        worst, selected = study.worst, study.search.selected
        console.print(
            f"Worst of {len(study.search.tried)} programs searched: {worst.workload}:"
            f" predicted {1e3 * worst.predicted:.2f} ms, measured {1e3 * worst.median:.2f} ms,"
            f" error {worst.error:+.0%} (when it was selected: {selected.error:+.0%})",
            highlight=False,
            soft_wrap=True,
        )
    low, high = min(study.speed), max(study.speed)
    console.print(
        f"when a batch had been measured, the processor did {low:.2f} to {high:.2f} of what it did"
        f" when the batch was predicted; the last predictions are of {study.predictions[-1].at},"
        f" SHA-256 {study.predictions[-1].sha256[:12]}",
        highlight=False,
        soft_wrap=True,
    )


def _remark(metric: Metric) -> str:
    remarks = [] if abs(metric.error) <= metric.aim else ["misses its aim"]
    if metric.sides:
        low, high = 1e3 * min(metric.sides), 1e3 * max(metric.sides)
        remarks.append(f"near a threshold: {low:.2f} to {high:.2f} ms")
    return "; ".join(remarks)
