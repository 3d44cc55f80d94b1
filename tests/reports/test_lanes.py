"""The recovery view is made of the events around the faults of a run."""

from __future__ import annotations

import base64
from typing import Any

from raytwin.reports.lanes import views
from raytwin.scenarios.core.results import Record, Result


def bar(node: int, begin_s: float, took_s: float, again: bool = False) -> dict[str, Any]:
    category = "task,re-execution" if again else "task"
    at = {"ts": begin_s * 1e6, "dur": took_s * 1e6}
    return {"ph": "X", "cat": category, "name": "f", "pid": f"node {node}", "tid": "worker 1", **at}


def instant(process: str, category: str, name: str, at_s: float) -> dict[str, Any]:
    return {"ph": "i", "cat": category, "name": name, "pid": process, "tid": "t", "ts": at_s * 1e6}


def result(backend: str, timeline: list[dict[str, Any]]) -> Result:
    return Result(Record("s", backend, {}, 0, {}, {}, {}, []), [], timeline)


FAULTY = [
    bar(0, 99.0, 5.0),
    bar(1, 99.0, 0.9),
    instant("faults", "fault", "kill node:1", 100.0),
    instant("node 1", "event", "node_died node:1", 100.5),
    bar(0, 101.0, 1.0, again=True),
    bar(0, 103.0, 1.0, again=True),
]


def test_detection_and_re_execution_count_from_the_first_fault() -> None:
    (view,) = views([result("sim", FAULTY), result("local", FAULTY)])
    said = (
        "faults: 1, over 0 s, the first death was noticed after 0.5 s,"
        " the first task that ran again ended after 2 s"
    )
    assert view.words == f"simulated: {said}; measured: {said}"
    svg = base64.b64decode(view.image.partition(",")[2]).decode()
    assert svg.count("kill node:1") >= 2, "a panel each"


def test_a_run_without_faults_has_no_view() -> None:
    assert views([result("sim", [bar(0, 1.0, 1.0)])]) == []
    assert views([result("sim", [instant("faults", "fault", "kill node:1", 1.0)])]) == []


def test_runs_have_views_of_their_own() -> None:
    both = [
        {**event, "pid": f"{run}: {event['pid']}"} for run in ("slow", "fast") for event in FAULTY
    ]
    assert [view.run for view in views([result("sim", both)])] == ["slow", "fast"]
