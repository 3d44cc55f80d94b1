"""A finished run of a scenario: its rows, metrics and checks, and how the report draws it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytwin.reports.figures import Figure, build
from raytwin.scenarios.core import results
from raytwin.scenarios.core.results import CheckRecord, Result
from raytwin.scenarios.core.scenario import Scenario, UsageError, did_you_mean

if TYPE_CHECKING:
    import pandas

    from raytwin.reports.sketch import Drawing


class Run:
    """One run of one scenario on one backend.

    A notebook shows it with its drawings, metrics and checks.
    """

    def __init__(self, result: Result, scenario: Scenario | None) -> None:
        """`scenario` draws it; None: it is not known here, and the run has no drawings."""
        self.result = result
        self._scenario = scenario

    @property
    def scenario(self) -> str:
        """The scenario's name."""
        return self.result.record.scenario

    @property
    def backend(self) -> str:
        """``sim``, ``local``, ``docker`` or ``ray``."""
        return self.result.record.backend

    @property
    def parameters(self) -> dict[str, Any]:
        """Settings, and what else is needed besides the `seed` to run it again, by name."""
        return self.result.record.parameters

    @property
    def seed(self) -> int:
        """The seed of all randomness."""
        return self.result.record.seed

    @cached_property
    def rows(self) -> pandas.DataFrame:
        """What was observed, one observation a row; columns have their unit last."""
        import pandas

        rows = self.result.rows
        columns = dict.fromkeys(name for row in rows for name in row)
        return pandas.DataFrame({name: [row.get(name) for row in rows] for name in columns})

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers that sum the run up; names have their unit last."""
        return self.result.record.metrics

    @property
    def checks(self) -> list[CheckRecord]:
        """What had to hold: each with `name`, `ok` and `detail`, the numbers it was judged on."""
        return self.result.record.checks

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return self.result.ok

    @property
    def findings(self) -> list[str]:
        """Sentences on what was seen, such as each fault of a plan and its time."""
        return self.result.record.findings

    @property
    def timeline(self) -> list[dict[str, Any]]:
        """Tasks, transfers, placements and faults, as events of Chrome's trace format."""
        return self.result.timeline

    @property
    def figures(self) -> tuple[str, ...]:
        """The titles of the figures that `plot` can draw."""
        return tuple(figure.spec.title for figure in self._drawable([self.result]))

    def plot(self, *beside: Run, figure: int | str = 0) -> Drawing:
        """Draw a figure of the run as the report does; return it as a figure of matplotlib.

        `beside`: runs of the same scenario on other backends, drawn on the same axes.
        `figure`: its index in `figures`, or its title.
        Raises UsageError if the figure cannot be drawn from these runs.
        """
        for other in beside:
            if other.scenario != self.scenario:
                raise UsageError(
                    f"a run of {other.scenario} is not drawn beside one of {self.scenario}"
                )
        backends = [each.backend for each in (self, *beside)]
        if len(set(backends)) < len(backends):
            raise UsageError(
                f"a figure tells runs apart by backend, and these are on {', '.join(backends)}:"
                " draw one of each, or compare their rows"
            )
        found = self._drawable([self.result, *(each.result for each in beside)])
        titles = [each.spec.title for each in found]
        if isinstance(figure, str):
            if figure not in titles:
                raise UsageError(f"no figure {figure!r}: {did_you_mean(figure, titles)}")
            figure = titles.index(figure)
        if not 0 <= figure < len(found):
            raise UsageError(f"no figure {figure}: {self.scenario} has {len(found)}")
        from raytwin.reports import plots  # brings matplotlib

        return plots.sketched(found[figure]).canvas

    def _drawable(self, runs: Sequence[Result]) -> list[Figure]:
        """Return the figures that can be drawn from results. Raises UsageError without scenario."""
        if self._scenario is None:
            raise UsageError(
                f"no scenario {self.scenario!r} here, which says how to draw its runs: if it is in"
                " a file, give it: load(directory, scenario=FILE)"
            )
        found = [build(spec, runs) for spec in self._scenario.figures]
        return [figure for figure in found if figure.curves]

    def save(self, out: Path | str = "results") -> Path:
        """Write the run to ``OUT/<scenario>/<backend>``, as ``raytwin run`` does; return that.

        ``raytwin report OUT`` draws it then, and `load` reads it back. Raises ResultError if it
        cannot be written.
        """
        return results.write(Path(out), self.result)

    def __repr__(self) -> str:
        held = sum(check.ok for check in self.checks)
        return (
            f"<Run of {self.scenario} on {self.backend}: {len(self.result.rows)} rows,"
            f" {held} of {len(self.checks)} checks hold>"
        )

    def _repr_html_(self) -> str:
        """Return the run as a fragment of HTML, for notebooks."""
        from raytwin.reports import fragment  # brings matplotlib

        figures = self._drawable([self.result]) if self._scenario is not None else []
        title = self._scenario.title if self._scenario is not None else self.scenario
        return fragment.render(title, self.result, figures)
