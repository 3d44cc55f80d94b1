"""The shape of a scenario file.

A scenario is one module of `figures` with a module-level ``SCENARIO``, named
as the module is, with hyphens for underscores. Its ``run`` takes a `Request` and
returns an `Outcome`, once per backend; it draws nothing and writes nothing. What
the report shows is declared beside it as `FigureSpec`.

Rows are tidy: one observation a row, so a repeated measurement is several rows
(with a ``repeat`` column), never a mean. Cells are ``str``, ``int``, finite
``float``, ``bool`` or ``None``. Names of columns, metrics and settings carry
their unit last: ``tasks_per_s``, ``latency_ms``.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

BACKENDS = ("sim", "local", "docker", "ray")
"""In the order in which they run: prediction first, measurement second."""
ON_REQUEST = ("docker", "ray")
"""Backends that need more than this machine's Python, and so run only if they are named."""

SCALES = ("quick", "full")

BEYOND = "Beyond the paper"
"""The `figure` of a scenario that the paper does not have; a reproduction leaves it out."""

PAPER = {"figure": 14, "table": 4}
"""How many figures and tables the paper has; the first ones explain and measure nothing."""
_FIGURE = re.compile(r"(fig|fig\.|figure|table)[ _-]?([0-9]{1,4})[a-z]?")

Cell = str | int | float | bool | None
Row = dict[str, Any]
Where = Mapping[str, Any]
"""Column -> the value that a row must have, or a tuple of values it may have.

``backend`` counts as a column of every row.
"""


class UsageError(ValueError):
    """What the user asked for makes no sense; one line says what would.

    A scenario raises it for what only it can know ("fig8a needs two nodes").
    """


class Progress(Protocol):
    """Where long work says how far it is."""

    def begin(self, label: str, total: float | None = None) -> None:
        """Start a stretch of work; `total` is in the units of `advance`."""

    def advance(self, amount: float = 1.0) -> None:
        """`amount` more is done."""

    def say(self, text: str) -> None:
        """Something worth a line of its own."""


class Silent:
    """A `Progress` for those who do not want to know."""

    def begin(self, label: str, total: float | None = None) -> None: ...

    def advance(self, amount: float = 1.0) -> None: ...

    def say(self, text: str) -> None: ...


# -- what a scenario takes -------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """A setting that ``--set name=value`` changes; its default goes by scale.

    With ``many`` the value is a tuple, given as a list with commas.
    """

    name: str
    type: type[int] | type[float] | type[str] | type[bool]
    quick: Any
    full: Any
    help: str
    minimum: float | None = None
    choices: tuple[str, ...] = ()
    many: bool = False

    def default(self, scale: str) -> Any:
        """Return the default at `scale`."""
        return self.full if scale == "full" else self.quick

    def parse(self, text: str) -> Any:
        """Return the value that `text` stands for.

        Raises UsageError if it is none of this option's.
        """
        if self.many:
            return tuple(self._parse_one(part.strip()) for part in text.split(","))
        return self._parse_one(text.strip())

    def _parse_one(self, text: str) -> Any:
        value: Any
        if self.type is bool:
            value = {"true": True, "yes": True, "false": False, "no": False}.get(text.lower())
        elif self.type is str:
            value = text if text and (not self.choices or text in self.choices) else None
        else:
            value = parse_number(text, self.type)
            if value is not None and self.minimum is not None and value < self.minimum:
                value = None
        if value is None:
            raise UsageError(f"--set {self.name}={text!r} is not possible: {self.expected()}")
        return value

    def expected(self) -> str:
        """Say in words what values are right."""
        if self.type is bool:
            one = "true or false"
        elif self.choices:
            one = "one of " + ", ".join(self.choices)
        elif self.type is str:
            one = "a text"
        else:
            one = "a whole number" if self.type is int else "a number"
            if self.minimum is not None:
                one += f" of at least {self.minimum:g}"
        return f"give {one}" + (", or several with commas between" if self.many else "")


def parse_number(text: str, kind: type) -> Any:
    """Return `text` as a finite `kind` (int or float), or None if it is not one.

    Whole numbers may be written ``1e6``, ``1_000_000`` or ``1000000``.
    """
    if kind is int:
        try:
            return int(text)
        except ValueError:
            pass
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value) or (kind is int and not value.is_integer()):
        return None
    return kind(value)


@dataclass(frozen=True)
class Request:
    """What one run of a scenario is asked to do."""

    backend: str
    scale: str = "quick"
    seed: int = 0
    nodes: tuple[int, ...] | None = None
    """Cluster sizes to run at; None: the scenario's own choice."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """A value for every one of the scenario's options."""
    profile: Path | None = None
    """Costs measured on this machine, written by ``raytwin calibrate``."""
    progress: Progress = field(default_factory=Silent)


# -- what a scenario gives -------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """Something that must hold; `detail` gives the numbers it was judged on."""

    name: str
    ok: bool
    detail: str = ""
    under_faults: bool = False
    """Whether a fault plan that the user adds leaves it its meaning: it is about what the program
    comes to, which no fault may change, and not about times, memory or places."""


@dataclass(frozen=True)
class Band:
    """A stretch of an axis in which a fault held: from its injection to its end, or to recovery.

    The figures whose x is `column` shade it, but for those that are about other rows.
    """

    column: str
    start: float
    end: float
    label: str
    where: Mapping[str, Cell] = field(default_factory=dict)
    """Column -> the value that the rows have which it belongs to; empty: it belongs to all."""


@dataclass
class Outcome:
    """What one run of a scenario found."""

    rows: list[Row]
    metrics: dict[str, float] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    """Events in Chrome's trace format."""
    bands: list[Band] = field(default_factory=list)
    """The faults of the run; figures over time shade them."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """What was decided beyond the request, and is needed to run it again."""
    findings: list[str] = field(default_factory=list)
    """Sentences for the report, such as what saturates, with their numbers."""
    versions: dict[str, str] = field(default_factory=dict)
    """The run used these versions of servers, besides those of packages, which a result names."""


# -- how the report shows it -----------------------------------------------------


@dataclass(frozen=True)
class PublishedPoint:
    """A number that the paper states, or another source; ``note`` says where and how."""

    x: float | str
    y: float
    kind: Literal["value", "at_least", "at_most"] = "value"
    note: str = ""
    series: str = ""
    """The label of the curves that it belongs to, whose marker it gets; "" where there is one."""
    system: str = ""
    """How the source calls what was measured there, if not as `series` does."""
    fitted: bool = False
    """Whether the simulation's costs were fitted to it: it is drawn so that nobody takes the
    agreement for a prediction."""

    @property
    def of(self) -> str:
        """What the number is of; "" where there is one series."""
        return self.system or self.series


@dataclass(frozen=True)
class Compare:
    """Which rows predict which: the pairs of the table of prediction errors.

    Rows of backend ``sim`` that match `predicted` are paired with rows of
    backend ``local`` that match `measured` and agree with them in the columns
    `on`; of several rows the median counts, and their spread is shown.
    """

    on: tuple[str, ...]
    column: str
    predicted: Where = field(default_factory=dict)
    measured: Where = field(default_factory=dict)
    aim_percent: float | None = None
    """Error up to which a prediction is called good."""
    ranks: str = ""
    """One of the columns `on`, of which it matters which value is better, as of policies."""


@dataclass(frozen=True)
class FigureSpec:
    """One drawing, declared: which rows, which columns, which axes.

    Rows of backend ``sim`` become lines; others become points with their
    spread over the repeats, or with `y_min` and `y_max` where those columns are
    named. Where faults are shaded, ``sim`` gets a panel of its own above the others,
    with the same axes. `series` are the columns whose values tell curves apart. An axis with
    unit ``bytes`` or ``s`` gets ticks such as 10 MB or 5 ms. With many points `y_min` and `y_max`
    become an envelope.
    """

    title: str
    x: str
    y: str
    x_label: str
    y_label: str
    series: tuple[str, ...] = ()
    where: Where = field(default_factory=dict)
    x_scale: Literal["linear", "log"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    x_unit: Literal["", "bytes", "s"] = ""
    y_unit: Literal["", "bytes", "s"] = ""
    y_min: str | None = None
    y_max: str | None = None
    stack: tuple[str, ...] = ()
    """Columns that are drawn as bars on top of those of `y`, by source."""
    second: str = ""
    """A column with a second axis, drawn as steps; it needs `stack`."""
    second_label: str = ""
    facet: str = ""
    """A column of which each value gets a small panel of its own, with the same axes."""
    statistic: Literal["median", "mean"] = "median"
    """What is drawn of several rows with one x; the same in `compare`."""
    published: tuple[PublishedPoint, ...] = ()
    published_shape: str = ""
    """What the paper only drew, in words."""
    compare: Compare | None = None
    note: str = ""


Metrics = Mapping[str, float]
Quantity = Callable[[Metrics], float]
"""Returns a number from the metrics of a result; KeyError if the run was too small to have it."""


@dataclass(frozen=True)
class Headline:
    """The one number that stands for a figure in the table that opens the report."""

    what: str
    """What the number says, with its unit last: "tasks/s at 100 nodes"."""
    simulated: Quantity
    """From a result of `sim`, at the paper's set-up."""
    published: PublishedPoint | None = None
    """None: the paper only drew it, and the checks of the scenario judge the shape."""
    tolerance_percent: float = 25.0
    """Error against a published value up to which it counts as reproduced."""
    fitted: str = ""
    """What of the published numbers the costs were fitted to; empty: none."""
    measured: Quantity | None = None
    """From a result of `local` or `ray`; None: as `simulated`."""
    measured_what: str = ""
    """The set-up that was measured, where one machine cannot hold the paper's: "2 nodes"."""
    peer: Quantity | None = None
    """From a result of `local`, in which the peer ran too."""
    peer_name: str = ""


@dataclass(frozen=True)
class Ratio:
    """How many times better than a peer a run was, where the paper has such a ratio of Ray's.

    Its *sign* says who was better: the paper's is that of `published`, and the run's may differ.
    """

    what: str
    """What is compared, where, and with whom: "allreduce of 1 MB on 4 nodes, against MPI"."""
    published: PublishedPoint
    """Above 1: Ray was better, below 1: its peer was, 1: they were level. A bound gives only the
    sign."""
    found: Quantity
    """Ours, from a result of `backend`."""
    why: Callable[[Metrics], str]
    """Returns a sentence on why the sign may differ, with what the run measured; it is said only
    where the sign does differ."""
    backend: Literal["sim", "local"] = "local"


@dataclass(frozen=True)
class Scenario:
    """A figure or table of the paper, ready to run."""

    name: str
    title: str
    figure: str
    """How the paper calls it, such as "Figure 8b"."""
    backends: tuple[str, ...]
    run: Callable[[Request], Outcome]
    about: str
    """What the paper did, what is done here, what is assumed. Blank lines
    part paragraphs."""
    options: tuple[Option, ...] = ()
    figures: tuple[FigureSpec, ...] = ()
    cluster_sizes: tuple[int, ...] = ()
    """The only numbers of nodes that make sense; empty: any."""
    nodes_max: Mapping[str, int] = field(default_factory=dict)
    """The most nodes that a backend can have in it."""
    headline: Headline | None = None
    """None: the paper does not have it."""
    ratios: tuple[Ratio, ...] = ()
    """Between systems, as far as the paper has them."""
    scaled: Callable[[Mapping[str, Any]], str] = lambda parameters: ""
    """Returns how a run with these parameters is smaller than the paper's: "50 of 2,000 actors,
    clock × 0.025"; empty: it is not."""
    time_bodies: Callable[[Mapping[str, Any]], object] | None = None
    """Takes a run's settings and times on this machine what bodies take, for the predictions of
    this process. Nothing may run beside it. None: a prediction measures nothing."""
    not_on_ray: str = ""
    """What it needs that Ray does not have, where it does not run on `ray`: said to who asks."""
    file: str = ""
    """The path by which it was found, if it is in a file of a user's; the registry sets it."""

    @property
    def run_as(self) -> str:
        """How ``raytwin run`` is told to run it: its name, or its file."""
        return self.file or self.name

    @property
    def default_backends(self) -> tuple[str, ...]:
        """The backends on which it runs unless others are named."""
        return tuple(backend for backend in self.backends if backend not in ON_REQUEST)

    def settings(self, scale: str, given: Mapping[str, str]) -> dict[str, Any]:
        """Return every option's value: `given` (as typed) over the defaults.

        Raises UsageError for a value that is not possible; names that are no
        options of this scenario are left out.
        """
        return {
            option.name: option.parse(given[option.name])
            if option.name in given
            else option.default(scale)
            for option in self.options
        }


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "did you mean ...? " for a near miss, else "", then what is known."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}possible: {', '.join(names) or 'none'}"


def unknown_scenario(name: str, known: Iterable[str]) -> str:
    """Return one line on a name that no scenario has; of a figure of the paper what is with it."""
    names = list(known)
    asked = _FIGURE.fullmatch(name.lower())
    if asked is None:
        return f"no scenario {name!r}: {did_you_mean(name, names)}"
    kind, number = ("table" if asked[1] == "table" else "figure"), int(asked[2])
    ours = f"{'fig' if kind == 'figure' else kind}{number}"
    parts = [each for each in names if re.fullmatch(rf"{ours}[a-z]?", each)]
    if parts:
        return f"no scenario {name!r}: {kind} {number} of the paper is {' and '.join(parts)} here"
    if number in range(1, PAPER[kind] + 1):
        return (
            f"{kind} {number} of the paper is not here: it has no measurement; 'raytwin list' has"
            " all that do"
        )
    return f"the paper has no {kind} {number}: it has {kind}s 1 to {PAPER[kind]}"


def matches(row: Mapping[str, Any], where: Where) -> bool:
    """Return whether `row` has what `where` asks for."""
    for column, wanted in where.items():
        if column not in row:
            return False
        if isinstance(wanted, tuple):
            if row[column] not in wanted:
                return False
        elif row[column] != wanted:
            return False
    return True
