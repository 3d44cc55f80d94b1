"""One run as a fragment of HTML, for notebooks: a drawing, metrics, checks, findings."""

from __future__ import annotations

from collections.abc import Sequence

from raytwin.reports import plots, templating
from raytwin.reports.figures import Figure
from raytwin.reports.numbers import with_unit
from raytwin.scenarios.core.results import Result


def render(title: str, result: Result, figures: Sequence[Figure]) -> str:
    """Return a run with the first of its figures drawn, and the titles of the others.

    All text of the result is escaped.
    """
    environment = templating.environment()
    environment.filters["show"] = with_unit
    return environment.get_template("fragment.html.j2").render(
        title=title,
        record=result.record,
        rows=len(result.rows),
        drawn=[(each, plots.image(each), plots.describe(each)) for each in figures[:1]],
        others=[each.spec.title for each in figures[1:]],
    )
