"""The recovery view is made of the events around the faults of a run."""

from __future__ import annotations

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


def test_a_fault_has_its_detection_its_first_result_and_its_return_to_full_throughput() -> None:
    back = {"ph": "X", "cat": "recovery", "name": "to full throughput", "pid": "faults"}
    whole = [*FAULTY, {**back, "tid": "recovery", "ts": 99.99e6, "dur": 7.0e6}]
    (view,) = views([result("sim", FAULTY), result("local", whole)], "s-recovery")
    ((name, (simulated, measured)),) = view.table
    assert name == "kill node:1"
    assert simulated is not None
    assert measured is not None
    assert (simulated.detected_s, simulated.result_s, simulated.full_s) == (0.5, 2.0, None)
    assert (measured.detected_s, measured.result_s, measured.full_s) == (0.5, 2.0, 7.0)
    assert view.svg.count(">kill node:1<") == 2, "a panel each"
    assert view.data["table"][1:] == [
        ["kill node:1", "simulated", 0.0, 0.5, 2.0, None],
        ["kill node:1", "measured", 0.0, 0.5, 2.0, 7.0],
    ]


def test_what_came_before_the_next_fault_belongs_to_a_fault() -> None:
    later = [
        instant("faults", "fault", "restart node:1", 110.0),
        instant("faults", "fault", "cut link:0>1", 120.0),
        instant("faults", "fault", "cut link:1>0", 120.05),
        instant("node 1", "event", "worker_died worker:1.0", 121.0),
    ]
    (view,) = views([result("sim", [*FAULTY, *later])], "s-recovery")
    assert [
        (name, each.at_s, each.detected_s, each.result_s)
        for name, (each,) in view.table
        if each is not None
    ] == [("kill node:1", 0.0, 0.5, 2.0), ("cut link:0>1 and 1 more", 20.0, 1.0, None)]


def test_bars_that_nobody_could_tell_apart_are_one() -> None:
    many = [bar(0, 100.0 + number / 1000, 0.001) for number in range(3000)]
    apart = [bar(0, 104.0, 1.0), bar(0, 106.0, 1.0)]
    (few,) = views([result("sim", [*FAULTY, *apart])], "s-recovery")
    (view,) = views([result("sim", [*FAULTY, *apart, *many])], "s-recovery")
    assert len(view.svg) < len(few.svg) + 1000


def test_a_run_without_faults_has_no_view() -> None:
    assert views([result("sim", [bar(0, 1.0, 1.0)])], "s") == []
    assert views([result("sim", [instant("faults", "fault", "kill node:1", 1.0)])], "s") == []


def test_runs_have_views_of_their_own() -> None:
    both = [
        {**event, "pid": f"{run}: {event['pid']}"} for run in ("slow", "fast") for event in FAULTY
    ]
    assert [view.run for view in views([result("sim", both)], "s")] == ["slow", "fast"]
