"""The recovery view: what each node did around the faults of a run, simulated above measured.

A lane is a node; the bars in it are tasks, actors and calls on its workers, those that were
executed again hatched; thin bars above them are transfers of objects to it. Vertical lines are
faults. The time of both panels counts from the first step, so that recovery can be compared by
eye; beside the lanes stands how long it took, fault by fault. All of it is from ``timeline.json``,
which Perfetto opens too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from raytwin.reports import palette, svg
from raytwin.reports.figures import source_of
from raytwin.reports.plots import COLOURS, INK, MUTED, PANEL
from raytwin.reports.sketch import Sketch
from raytwin.scenarios.core.results import Result

NODE, FAULTS = "node ", "faults"
"""How the process of a trace is called, behind the name of its run."""
EVENT, RECOVERY = "event", "recovery"
"""The categories of what the GCS has recorded, and of spans from a fault to full throughput."""
OVER = ("restart", "resume", "heal", "add_node")
"""Steps of a plan with which a fault is over, or that are none."""
TOGETHER_S = 0.1
"""Steps of a plan that are no further apart are one fault."""
TRANSFERS = "transfers"
LANES_MAX = 24
"""More nodes than this cannot be told apart: the view shows the first of them."""
LANE_IN, HEAD_IN = 0.3, 1.0
"""Height of a lane, and of what is around the lanes of a panel."""
BEFORE, AFTER = 0.25, 0.25
"""How much of the time that faults and re-executions took is shown before and after it."""
LEAST_S = 0.2
WIDTH_IN, LANE_PX = 9.4, 600
"""Of the picture, and, roughly, of its lanes."""
TASK, TRANSFER = palette.LIGHT["task"], palette.LIGHT["transfer"]
NAMES_MAX = 12
"""More faults than this are drawn without their names, and the table has the first of them."""


@dataclass(frozen=True)
class Bar:
    """Something that took time on a node; seconds since the plan's first step."""

    begin_s: float
    duration_s: float
    worker: str
    again: bool
    transfer: bool


@dataclass(frozen=True)
class Fault:
    """One fault, and how a cluster recovered from it; seconds since the fault, None: not seen."""

    name: str
    at_s: float
    """Since the plan's first step."""
    detected_s: float | None
    """When the GCS declared a node or worker dead."""
    result_s: float | None
    """When the first task that was executed again had ended."""
    full_s: float | None
    """When full throughput was back, as the scenario has found it."""


@dataclass(frozen=True)
class Lanes:
    """One run of a scenario on one backend; times in seconds since the plan's first step."""

    source: str
    bars: Mapping[int, tuple[Bar, ...]]
    """By node."""
    steps: tuple[tuple[float, str], ...]
    """(time, step of the plan)"""
    faults: tuple[Fault, ...]
    over_s: float
    """When the last re-execution had ended, and the last step of the plan was over."""

    @property
    def words(self) -> str:
        """The lanes in words."""
        return f"{self.source}: {len(self.faults)} faults on {len(self.bars)} nodes"


@dataclass(frozen=True)
class View:
    """The picture of one run under faults, on all backends that have it."""

    name: str
    """Of the view in its page."""
    run: str
    """Which of the scenario's runs: "60/s"; empty where there is one."""
    svg: str
    lanes: tuple[Lanes, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of the lanes, from the top: simulated, measured."""
        return tuple(each.source for each in self.lanes)

    @property
    def data(self) -> dict[str, Any]:
        """The table of faults as the rows of the CSV file that the page's script writes."""
        rows: list[list[Any]] = [
            ["fault", "source", "at_s", "detected_s", "first_result_s", "full_throughput_s"]
        ]
        for name, found in self.table:
            for source, fault in zip(self.sources, found, strict=True):
                if fault is not None:
                    times = (fault.at_s, fault.detected_s, fault.result_s, fault.full_s)
                    rows.append([name, source, *times])
        return {"marks": [], "table": rows}

    @property
    def table(self) -> list[tuple[str, list[Fault | None]]]:
        """Each fault with how each source recovered from it; None where the source has it not.

        The plan is the same for all, so that faults of the same place in it belong together.
        """
        rows = zip_longest(*(lanes.faults[:NAMES_MAX] for lanes in self.lanes))
        return [(next(fault.name for fault in row if fault is not None), list(row)) for row in rows]


def views(results: Sequence[Result], name: str, most: int = 2) -> list[View]:
    """Return the views of the first `most` runs of a scenario that have faults.

    `name` begins the names of the views in the page.
    """
    by_run: dict[str, list[Lanes]] = {}
    for result in results:
        if result.record.backend in ("sim", "local"):
            for run, events in _runs(result.timeline).items():
                lanes = _lanes(source_of(result.record.backend), events)
                if lanes is not None:
                    by_run.setdefault(run, []).append(lanes)
    chosen = sorted(by_run.items(), key=lambda item: -len(item[1]))[:most]
    return [
        View(f"{name}-{number}", run, _image(found, f"{name}-{number}"), tuple(found))
        for number, (run, found) in enumerate(chosen, start=1)
    ]


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
    steps = sorted(
        (event["ts"], event["name"])
        for event in events
        if _process(event) == FAULTS and event.get("cat") != RECOVERY
    )
    if not steps:
        return None
    first_us = steps[0][0]

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
        if event.get("cat") == EVENT and event["name"].startswith(("node_died", "worker_died"))
    ]
    full_s = [
        (seconds(event["ts"]), event["dur"] / 1e6)
        for event in events
        if event.get("cat") == RECOVERY
    ]
    timed = tuple((seconds(at_us), name) for at_us, name in steps)
    return Lanes(
        source,
        {node: tuple(bars[node]) for node in sorted(bars)[:LANES_MAX]},
        timed,
        _faults(timed, died_s, again_s, full_s),
        max([timed[-1][0], LEAST_S, *again_s]),
    )


def _faults(
    steps: Sequence[tuple[float, str]],
    died_s: Sequence[float],
    again_s: Sequence[float],
    full_s: Sequence[tuple[float, float]],
) -> tuple[Fault, ...]:
    """Return the faults of a plan; what came before the next one belongs to each."""
    groups: list[list[tuple[float, str]]] = []
    for step in steps:
        if step[1].startswith(OVER):
            continue
        if not groups or step[0] - groups[-1][-1][0] > TOGETHER_S:
            groups.append([])
        groups[-1].append(step)
    begins_s = [group[0][0] for group in groups]
    found = []
    for group, begin_s, next_s in zip(groups, begins_s, [*begins_s[1:], float("inf")], strict=True):

        def first(moments_s: Iterable[float], low: float, high: float) -> float | None:
            return min((at - low for at in moments_s if low <= at < high), default=None)

        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        found.append(
            Fault(
                group[0][1] + more,
                begin_s,
                first(died_s, begin_s, next_s),
                first(again_s, begin_s, next_s),
                # A scenario's clock for a fault begins a little before it is injected.
                min(
                    (took for at, took in full_s if begin_s <= at + TOGETHER_S < next_s),
                    default=None,
                ),
            )
        )
    return tuple(found)


def _image(found: Sequence[Lanes], name: str) -> str:
    with svg.settings():
        heights = [HEAD_IN + LANE_IN * len(lanes.bars) for lanes in found]
        sketch = Sketch(WIDTH_IN, sum(heights))
        panels = sketch.canvas.subplots(
            len(found), 1, sharex=True, squeeze=False, height_ratios=heights
        )
        over_s = max(lanes.over_s for lanes in found)
        begin_s, end_s = -BEFORE * over_s, (1 + AFTER) * over_s
        for (axes,), lanes in zip(panels, found, strict=True):
            _panel(axes, lanes, begin_s, end_s)
        panels[-1, 0].set_xlim(begin_s, end_s)
        panels[-1, 0].set_xlabel("seconds since the plan's first step", fontsize=9.5, color=MUTED)
        handles = [
            Patch(facecolor=TASK, label="task, actor or call"),
            Patch(facecolor=TASK, hatch="////", edgecolor=INK, label="executed again"),
            Patch(facecolor=TRANSFER, label="transfer of an object to the node"),
        ]
        sketch.legend(3, handles)
        return sketch.finished(name, "; ".join(lanes.words for lanes in found)).svg


def _merged(bars: Iterable[Bar], begin_s: float, end_s: float) -> list[tuple[float, float]]:
    """Return the beginnings and ends of bars in a part of the time, by time.

    Bars that would be narrower than a pixel or two, and no pixel apart, are one: nobody could tell
    them apart, and thousands of them would weigh more than the rest of the report.
    """
    pixel_s = (end_s - begin_s) / LANE_PX
    found: list[tuple[float, float]] = []
    for bar in sorted(bars, key=lambda bar: bar.begin_s):
        left, right = max(bar.begin_s, begin_s), min(bar.begin_s + bar.duration_s, end_s)
        if left > end_s or right < begin_s:
            continue
        if found and left - found[-1][1] < pixel_s / 2 and right - left < 2 * pixel_s:
            found[-1] = found[-1][0], max(found[-1][1], right)
        else:
            found.append((left, right))
    return found


def _panel(axes: Axes, lanes: Lanes, begin_s: float, end_s: float) -> None:
    colour = COLOURS[lanes.source][0]
    nodes = list(lanes.bars)
    looks: dict[tuple[bool, bool], list[Path]] = {}
    """By (whether it ran again, whether it is a transfer): the outlines of bars."""
    for place, node in enumerate(nodes):
        workers = list(dict.fromkeys(bar.worker for bar in lanes.bars[node] if not bar.transfer))
        height = 0.6 / max(1, len(workers))
        by_look: dict[tuple[str, bool, bool], list[Bar]] = {}
        for bar in lanes.bars[node]:
            key = "" if bar.transfer else bar.worker, bar.again, bar.transfer
            by_look.setdefault(key, []).append(bar)
        for (worker, again, transfer), bars in by_look.items():
            low, thick = place - 0.36, 0.1
            if not transfer:
                low, thick = place - 0.22 + height * workers.index(worker), height * 0.9
            for left, right in _merged(bars, begin_s, end_s):
                corners = [(left, low), (right, low), (right, low + thick), (left, low + thick)]
                looks.setdefault((again, transfer), []).append(
                    Path([*corners, corners[0]], closed=True)
                )
    for (again, transfer), outlines in looks.items():
        bars_of_look = PathPatch(
            Path.make_compound_path(*outlines),
            facecolor=TRANSFER if transfer else colour,
            alpha=None if transfer or again else 0.55,
            hatch="////" if again else None,
            edgecolor=INK if again else PANEL,
            linewidth=0.2,
            zorder=2 + again,
        )
        axes.add_patch(bars_of_look)
    for number, (at_s, name) in enumerate(lanes.steps):
        axes.axvline(at_s, color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
        if len(lanes.steps) <= NAMES_MAX:
            axes.annotate(
                name,
                xy=(at_s, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, 3 + 9 * (number % 4)),
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
