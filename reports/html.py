"""The report: one HTML file that needs nothing else.

No script, style, font or picture comes from anywhere: the page's own content
security policy forbids it. Whatever comes from result files is text and is
escaped. Only our own style, script and what `plots` draws (which escapes its
texts itself) are marked ``safe`` in the template.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from statistics import median
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from raytwin.reports import plots
from raytwin.reports.fidelity import Fidelity, judge
from raytwin.reports.figures import Figure, build, check_columns
from raytwin.reports.numbers import percent, short, with_unit
from raytwin.scenarios.core.results import Result, ResultError
from raytwin.scenarios.core.scenario import BACKENDS, FigureSpec, Scenario

ROWS_SHOWN_MAX = 400
"""More rows than this are left to rows.csv, and the report says so."""


@dataclass
class Drawing:
    """A figure as the template takes it."""

    figure: Figure
    identity: str
    wide: str
    narrow: str
    legend: list[plots.Key]
    fidelity: Fidelity | None

    @property
    def spec(self) -> FigureSpec:
        """What was declared."""
        return self.figure.spec

    @property
    def published(self) -> list[tuple[str, str, str]]:
        """Each published number: where, what, and how the paper says it."""
        spec = self.spec
        return [
            (
                str(point.x) if self.figure.categories else short(float(point.x), spec.x_unit),
                plots.bound(point, spec.y_unit),
                point.note,
            )
            for point in spec.published
        ]


@dataclass
class Chapter:
    """All of one scenario."""

    scenario: Scenario
    results: list[Result]
    drawings: list[Drawing] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """Backends that it supports and has no result from."""
        have = {result.record.backend for result in self.results}
        return [backend for backend in self.scenario.backends if backend not in have]

    @property
    def failed(self) -> int:
        """How many checks do not hold."""
        return sum(not check.ok for result in self.results for check in result.record.checks)

    @property
    def checks(self) -> int:
        """How many checks there are."""
        return sum(len(result.record.checks) for result in self.results)

    @property
    def about(self) -> list[str]:
        """Paragraphs."""
        return [part.strip() for part in self.scenario.about.split("\n\n") if part.strip()]


@dataclass
class World:
    """A host with versions, and the results that were made there."""

    host: dict[str, Any]
    versions: dict[str, str]
    names: list[str]


def render(results: Sequence[Result], scenarios: Mapping[str, Scenario]) -> str:
    """Return the report on `results`, drawn as their `scenarios` declare.

    Results of scenarios that are not known get a chapter of tables. The same
    input gives the same text. Raises ResultError where rows do not fit the
    figure that is to be drawn from them.
    """
    chapters = [
        _chapter(scenario, [r for r in results if r.record.scenario == name])
        for name, scenario in _with_unknown(results, scenarios).items()
    ]
    environment = Environment(
        loader=PackageLoader("raytwin.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"show": _show, "percent": percent, "title": _title}
    script = _resource("theme.js")
    fidelity = [
        (chapter, drawing, drawing.fidelity)
        for chapter in chapters
        for drawing in chapter.drawings
        if drawing.fidelity is not None and drawing.fidelity.pairs
    ]
    errors = [error for *_, found in fidelity for error in found.errors]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        chapters=chapters,
        checks=sum(chapter.checks for chapter in chapters),
        failed=sum(chapter.failed for chapter in chapters),
        missing=sum(len(chapter.missing) for chapter in chapters),
        fidelity=fidelity,
        errors=errors,
        error=median(errors) if errors else None,
        worlds=_worlds(results),
        style=_resource("style.css"),
        colours=_colours(),
        script=script,
        script_digest=digest,
        rows_max=ROWS_SHOWN_MAX,
        columns=_columns,
    )


def _with_unknown(
    results: Sequence[Result], scenarios: Mapping[str, Scenario]
) -> dict[str, Scenario]:
    """Return the scenarios that have results, in their order, unknown ones last."""
    have = {result.record.scenario for result in results}
    found = {name: scenario for name, scenario in scenarios.items() if name in have}
    for name in sorted(have - set(scenarios)):
        found[name] = Scenario(
            name=name,
            title=name,
            figure="not a scenario of this version",
            backends=(),
            run=_cannot_run,
            about="This version of raytwin does not know this scenario: here is what was recorded.",
        )
    return found


def _cannot_run(_: Any) -> Any:
    raise LookupError("a scenario of another version cannot be run")


def _chapter(scenario: Scenario, results: list[Result]) -> Chapter:
    results = sorted(results, key=lambda result: _order(result.record.backend))
    chapter = Chapter(scenario, results)
    try:
        for result in results:
            check_columns(scenario.figures, result)
    except ResultError as error:
        raise ResultError(f"{scenario.name}/{error}") from error
    for index, spec in enumerate(scenario.figures):
        try:
            figure = build(spec, results)
            fidelity = judge(spec.compare, results) if spec.compare is not None else None
        except ResultError as error:
            raise ResultError(f"{scenario.name}/{error}") from error
        if not figure.drawable:
            continue
        identity = f"{scenario.name}-{index}"
        chapter.drawings.append(
            Drawing(
                figure,
                identity,
                plots.svg(figure, f"{identity}w"),
                plots.svg(figure, f"{identity}n", narrow=True),
                plots.legend(figure),
                fidelity,
            )
        )
    return chapter


def _order(backend: str) -> int:
    return BACKENDS.index(backend) if backend in BACKENDS else len(BACKENDS)


def _worlds(results: Sequence[Result]) -> list[World]:
    worlds: dict[str, World] = {}
    for result in results:
        record = result.record
        key = json.dumps([record.host, record.versions], sort_keys=True, default=str)
        world = worlds.setdefault(key, World(record.host, record.versions, []))
        world.names.append(result.name)
    return list(worlds.values())


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def _show(value: Any, name: str = "") -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_show(each, name) for each in value)
    return with_unit(value, name)


def _title(name: str) -> str:
    """Return a column's or metric's name for a heading: spaces, not underscores."""
    return name.replace("_", " ")


def _colours() -> str:
    """Return the CSS of both palettes; dark if the system or the reader says so."""
    light = "".join(f"--{name}:{value};" for name, value in plots.LIGHT.items())
    dark = "".join(f"--{name}:{value};" for name, value in plots.DARK.items())
    return (
        f":root{{color-scheme:light;{light}}}"
        "@media screen and (prefers-color-scheme:dark)"
        f"{{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )


def _resource(name: str) -> str:
    found = resources.files("raytwin.reports").joinpath("templates", name)
    return found.read_text(encoding="utf-8")
