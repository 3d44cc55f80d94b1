"""The recovery view: what each node did around the faults of a run, simulated above measured.

A lane is a node; the bars in it are tasks, actors and calls on its workers, those that were
executed again hatched; thin bars above them are transfers of objects to it. Vertical lines are
faults. The time of both panels counts from the first fault, so that recovery can be compared by
eye. All of it is from ``timeline.json``, which Perfetto opens too.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch

from raytwin.reports.figures import source_of
from raytwin.reports.plots import COLOURS, INK, MUTED, PANEL
from raytwin.scenarios.core.results import Result

NODE, FAULTS = "node ", "faults"
"""How the process of a trace is called, behind the name of its run."""
EVENT = "event"
"""The category of what the GCS has recorded."""
TRANSFERS = "transfers"
LANES_MAX = 24
"""More nodes than this cannot be told apart: the view shows the first of them."""
LANE_IN, HEAD_IN = 0.3, 1.0
"""Height of a lane, and of what is around the lanes of a panel."""
BEFORE, AFTER = 0.25, 0.25
"""How much of the time that faults and re-executions took is shown before and after it."""
LEAST_S = 0.2
TASK, TRANSFER = "#9aa3ad", "#d5dae0"
NAMES_MAX = 12
"""More faults than this are drawn without their names."""


@dataclass(frozen=True)
class Bar:
    """Something that took time on a node; seconds since the first fault."""

    begin_s: float
    duration_s: float
    worker: str
    again: bool
    transfer: bool


@dataclass(frozen=True)
class Lanes:
    """One run of a scenario on one backend; times in seconds since the first fault."""

    source: str
    bars: Mapping[int, tuple[Bar, ...]]
    """By node."""
    faults: tuple[tuple[float, str], ...]
    """(time, step of the plan)"""
    found_s: float | None
    """When the GCS first declared a node or worker dead; None: it never did."""
    again_s: float | None
    """When the first task that was executed again had ended."""
    over_s: float
    """When the last of them had ended, and the last fault was over."""

    @property
    def words(self) -> str:
        """How long detection took, and the first result that was made again."""
        parts = [f"faults: {len(self.faults)}, over {self.faults[-1][0]:.3g} s"]
        if self.found_s is not None:
            parts.append(f"the first death was noticed after {self.found_s:.3g} s")
        if self.again_s is not None:
            parts.append(f"the first task that ran again ended after {self.again_s:.3g} s")
        return f"{self.source}: {', '.join(parts)}"


@dataclass(frozen=True)
class View:
    """The picture of one run under faults, on all backends that have it."""

    run: str
    """Which of the scenario's runs: "60/s"; empty where there is one."""
    image: str
    """A ``data:`` URL."""
    words: str


def views(results: Sequence[Result], most: int = 2) -> list[View]:
    """Return the views of the first `most` runs of a scenario that have faults."""
    by_run: dict[str, list[Lanes]] = {}
    for result in results:
        if result.record.backend in ("sim", "local"):
            for run, events in _runs(result.timeline).items():
                lanes = _lanes(source_of(result.record.backend), events)
                if lanes is not None:
                    by_run.setdefault(run, []).append(lanes)
    chosen = sorted(by_run.items(), key=lambda item: -len(item[1]))[:most]
    return [View(run, _image(found), "; ".join(x.words for x in found)) for run, found in chosen]


def _runs(events: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the events of a trace by the run that the names of their processes begin with."""
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        run, _, _ = str(event.get("pid", "")).rpartition(": ")
        runs.setdefault(run, []).append(event)
    return runs


def _process(event: Mapping[str, Any]) -> str:
    return str(event.get("pid", "")).rpartition(": ")[2]


def _lanes(source: str, events: Sequence[Mapping[str, Any]]) -> Lanes | None:
    """Return the lanes of one run; None if it has no fault, or no node did anything."""
    faults = sorted((event["ts"], event["name"]) for event in events if _process(event) == FAULTS)
    if not faults:
        return None
    first_us = faults[0][0]

    def seconds(at_us: float) -> float:
        return float(at_us - first_us) / 1e6

    bars: dict[int, list[Bar]] = {}
    again_s = []
    for event in events:
        process = _process(event)
        if event.get("ph") != "X" or not process.startswith(NODE):
            continue
        again = "re-execution" in event.get("cat", "")
        bar = Bar(
            seconds(event["ts"]),
            event["dur"] / 1e6,
            str(event.get("tid")),
            again,
            str(event.get("tid")).startswith(TRANSFERS),
        )
        if again and bar.begin_s + bar.duration_s > 0:
            again_s.append(bar.begin_s + bar.duration_s)
        bars.setdefault(int(process.removeprefix(NODE)), []).append(bar)
    if not bars:
        return None
    died_s = [
        seconds(event["ts"])
        for event in events
        if event.get("cat") == EVENT
        and event["name"].startswith(("node_died", "worker_died"))
        and event["ts"] >= first_us
    ]
    return Lanes(
        source,
        {node: tuple(bars[node]) for node in sorted(bars)[:LANES_MAX]},
        tuple((seconds(at_us), name) for at_us, name in faults),
        min(died_s, default=None),
        min(again_s, default=None),
        max([seconds(faults[-1][0]), LEAST_S, *again_s]),
    )


def _image(found: Sequence[Lanes]) -> str:
    with matplotlib.rc_context({"svg.hashsalt": "raytwin", "text.parse_math": False}):
        heights = [HEAD_IN + LANE_IN * len(lanes.bars) for lanes in found]
        canvas = Canvas(figsize=(9.4, sum(heights)), layout="constrained")
        panels = canvas.subplots(len(found), 1, sharex=True, squeeze=False, height_ratios=heights)
        for (axes,), lanes in zip(panels, found, strict=True):
            _panel(axes, lanes)
        over_s = max(lanes.over_s for lanes in found)
        panels[-1, 0].set_xlim(-BEFORE * over_s, (1 + AFTER) * over_s)
        panels[-1, 0].set_xlabel("seconds since the first fault", fontsize=9.5, color=MUTED)
        legend = [
            Patch(facecolor=TASK, label="task, actor or call"),
            Patch(facecolor=TASK, hatch="////", edgecolor=INK, label="executed again"),
            Patch(facecolor=TRANSFER, label="transfer of an object to the node"),
        ]
        canvas.legend(handles=legend, loc="outside lower left", ncols=3, frameon=False, fontsize=9)
        buffer = io.BytesIO()
        # A thousand bars as shapes would weigh more than the rest of the report.
        canvas.savefig(buffer, format="svg", metadata={"Date": None}, dpi=160)
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _panel(axes: Axes, lanes: Lanes) -> None:
    colour = COLOURS[lanes.source][0]
    nodes = list(lanes.bars)
    looks: dict[tuple[bool, bool], list[Any]] = {}
    """By (whether it ran again, whether it is a transfer): the corners of bars."""
    for place, node in enumerate(nodes):
        workers = list(dict.fromkeys(bar.worker for bar in lanes.bars[node] if not bar.transfer))
        height = 0.6 / max(1, len(workers))
        for bar in lanes.bars[node]:
            low, thick = place - 0.36, 0.1
            if not bar.transfer:
                low, thick = place - 0.22 + height * workers.index(bar.worker), height * 0.9
            left, right = bar.begin_s, bar.begin_s + bar.duration_s
            corners = [(left, low), (right, low), (right, low + thick), (left, low + thick)]
            looks.setdefault((bar.again, bar.transfer), []).append(corners)
    for (again, transfer), polygons in looks.items():
        bars = PolyCollection(
            polygons,
            facecolors=TRANSFER if transfer else colour,
            alpha=None if transfer or again else 0.55,
            hatch="////" if again else None,
            edgecolors=INK if again else PANEL,
            linewidths=0.2,
            rasterized=True,
            zorder=2 + again,
        )
        axes.add_collection(bars, autolim=False)
    for number, (at_s, name) in enumerate(lanes.faults):
        axes.axvline(at_s, color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
        if len(lanes.faults) <= NAMES_MAX:
            axes.annotate(
                name,
                xy=(at_s, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, 3 + 9 * (number % 3)),
                textcoords="offset points",
                fontsize=8,
                color=INK,
            )
    axes.set_yticks(range(len(nodes)), [f"node {node}" for node in nodes])
    axes.set_ylim(len(nodes) - 0.5, -0.5)
    axes.set_title(lanes.source, loc="right", fontsize=9.5, color=colour, fontweight="bold")
    axes.tick_params(labelsize=9, colors=MUTED, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
