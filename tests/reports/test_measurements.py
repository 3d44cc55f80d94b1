"""What lies beside results: read, drawn, or refused in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from raytwin.reports import benchmarks, scatter
from raytwin.reports.fidelity import judge
from raytwin.reports.html import render
from raytwin.reports.measurements import NONE, read_measurements
from raytwin.scenarios.core import campaigns, fidelity
from raytwin.scenarios.core.results import CheckRecord, Record, Result, ResultError
from raytwin.scenarios.core.scenario import Compare
from tests.reports.test_html import Page
from tests.scenarios import synthetic

CASE = {
    "name": "tasks_sync", "unit": "tasks/s", "ours": 900.0, "peers": {"ray": 300.0, "dask": 90.0},
    "ratios": {"ray": 3.0, "dask": 10.0}, "ratio_range": {"ray": [2.0, 4.5], "dask": [9.0, 11.0]},
    "range": {"ours": [800.0, 950.0], "ray": [200.0, 400.0], "dask": [80.0, 100.0]},
    "rounds": 7, "better": "higher", "samples": {},
}  # fmt: skip
CAMPAIGN = campaigns.Campaign(
    "2026-01-02T03:04:05+00:00", 100, 50, False, 20, 1, 4_000, 300, 5_000,
    {"own": 7, "excused": 2}, 61.0,
    [campaigns.Failing(107, ["value: 1 is not 2"], "fuzz-107.json", "1 fault, 2 operations")],
)  # fmt: skip
SCRIPT = campaigns.ScriptUnderFaults(
    "2026-01-02T03:04:05+00:00", "mine.py", "sim", ["1. At 1 s, kill node 1."],
    [campaigns.Cluster([campaigns.Step(1.0, "kill node:1", "", 0.25, "node_died node:1")],
                       {"detection_max_s": 0.25}, [CheckRecord("errors == 0", False, "it is 2")])],
    1, 9.0,
)  # fmt: skip


STUDY = fidelity.Study(
    "2026-01-02T03:05:05+00:00",
    [fidelity.Written(1, "2026-01-02T03:04:05+00:00", "ab" * 32)], "c" * 40, 3, [1.0, 0.9],
    [fidelity.Metric("layered", "held-out workload", 2, "makespan_s", [0.045, 0.05, 0.06],
                     [0.1, 0.1, 0.1], [0.1, 0.1, 0.1], [1.0, 1.0, 0.9], [0.12] * 3, None,
                     {"node": fidelity.Role(7e-6, 9e-6)},
                     {"node turns": fidelity.Amount(1.25, 2.5)}, [0.04, 0.07]),
     fidelity.Metric("node_killed", "under faults", 4, "full_s", [0.03] * 3, [0.02] * 3),
     fidelity.Metric("reset", "under faults", 4, "full_s", [0.0] * 3, [0.0, 0.0, 0.01]),
     fidelity.Metric("width=2", "searched", 1, "makespan_s", [0.02, 0.02], [0.08, 0.08],
                     roles={"node": fidelity.Role(1e-6, 2e-6)})],
    search=fidelity.Search(
        5, [fidelity.Written(1, "", "de" * 32)],
        [fidelity.Metric("width=2", "searched", 1, "makespan_s", [0.02, 0.02], [0.1, 0.1])],
        "width=2",
    ),
)  # fmt: skip


def night(day: int, value: float) -> dict[str, Any]:
    bench = {"name": "tasks sync", "unit": "µs per task", "value": value, "range": "± 5"}
    return {"commit": {"id": f"{day:040}"}, "date": 1_700_000_000_000 + day * 86_400_000,
            "benches": [bench]}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with all of them."""
    files = {
        "bench.json": {"kind": "bench", "rows": [CASE], "date": "2026-01-01T02:03:04+00:00"},
        "benchmarks.json": {"entries": {"raytwin": [night(2, 90.0), night(1, 100.0)]}},
        "profile.json": {
            "cores": 2,
            "head": {"turn_s": 0.00004},
            "cached_copies": {"131072": [2e9, 3e9]},
        },
    }
    for name, document in files.items():
        (tmp_path / name).write_text(json.dumps(document))
    campaigns.write(tmp_path / "fuzz.json", CAMPAIGN)
    campaigns.write(tmp_path / "recovery-mine.json", SCRIPT)
    fidelity.write(tmp_path / "fidelity.json", STUDY)
    return tmp_path


def test_all_of_them_are_in_the_report(folder: Path) -> None:
    record = Record("failing", "sim", {}, 0, {}, {}, {}, [])
    found = read_measurements(folder)
    page = Page(render([Result(record, [{"n": 1}])], synthetic.ALL, found))
    for words in (
        "tasks_sync tasks/s 900 800 to 950 300 3 (2 to 4.5) 90 10 (9 to 11) 7", "2026-01-01 02:03",
        "19 of 20 hold (50 were asked for)", "Seeds 100 to 119", "raytwin replay fuzz-107.json",
        "1 fault, 2 operations", "mine.py under faults, on sim", "node_died node:1 250 ms",
        "FAILS errors == 0 : it is 2", "head.turn_s 40 µs",
        "cached_copies.131072 2,000,000,000, 3,000,000,000",
        "held-out workload: median error 50 %",
        "50 ms 45 ms to 60 ms; near a threshold: 40 ms to 70 ms 100 ms 100 ms to 100 ms -50 %"
        " misses its aim",
        "0 % +20 %", "layered 7.0 9.0", "width=2 1.0 2.0",
        "node_killed under faults 4 full s 30 ms 30 ms to 30 ms 20 ms 20 ms to 20 ms +50 %",
        "reset under faults 4 full s 0 0 to 0 0 0 to 10 ms +0 %",
        "node turns, predicted measured layered 1.25 2.5", "width=2 searched 1 makespan",
        "Worst of 1 programs searched: width=2 : predicted 20 ms, measured 80 ms, error -75 %",
        "(seed 5) selected it, the error was -80 %", f"SHA-256 {'de' * 8}… with",
    ):  # fmt: skip
        assert words in page.text
    drawn = {a["id"] for _, a in page.tags if a.get("class") == "figure"}
    assert {"benchmarks-1", "history-1", "held-out-1"} <= drawn


def test_nothing_is_shown_where_nothing_lies(tmp_path: Path) -> None:
    assert read_measurements(tmp_path) == NONE


def test_a_spread_that_is_no_number_is_refused_in_one_line(tmp_path: Path) -> None:
    """As other tools write it, in the history of this suite."""
    entry = {"commit": {"id": "a"}, "date": 1,
             "benches": [{"name": "tasks_sync", "value": 1.0, "range": "stddev: 0.1"}]}  # fmt: skip
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps({"entries": {"another": [entry]}}))
    assert read_measurements(tmp_path).history == ()
    path.write_text(json.dumps({"entries": {"raytwin": [entry]}}))
    with pytest.raises(ResultError, match="github-action-benchmark"):
        read_measurements(tmp_path)


@pytest.mark.parametrize(
    "name", ["bench.json", "benchmarks.json", "fuzz.json", "recovery-1.json", "profile.json"]
)
def test_a_file_of_something_else_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("[1, 2]")
    with pytest.raises(ResultError, match=rf"{re.escape(name)} is not what '[^\n]*' writes: .+"):
        read_measurements(tmp_path)


def test_peers_are_bars_with_their_spread(folder: Path) -> None:
    drawn = benchmarks.against_peers(read_measurements(folder).bench)
    assert drawn is not None
    assert {mark.label: mark.points[0][2:] for mark in drawn.marks} == {
        "against Ray": ("tasks_sync", 3.0, 2.0, 4.5, 7),
        "against Dask": ("tasks_sync", 10.0, 9.0, 11.0, 7),
    }
    assert "<pattern" in drawn.svg, "told apart without colours, too"
    assert benchmarks.against_peers(None) is None


def test_history_goes_from_the_oldest_to_the_newest(folder: Path) -> None:
    found = read_measurements(folder)
    drawn = benchmarks.history(found.history)
    assert drawn is not None
    (mark,) = drawn.marks
    assert [point[3:6] for point in mark.points] == [(100.0, 95.0, 105.0), (90.0, 85.0, 95.0)]
    assert mark.points[0][0] < mark.points[1][0]
    assert benchmarks.history(found.history[:1]) is None, "one night is no history"


def test_predictions_within_their_aim_look_different() -> None:
    compare = Compare(("nodes",), "rate", aim_percent=10)
    results = [
        Result(Record("s", backend, {}, 0, {}, {}, {}, []), rows)
        for backend, rows in (
            ("sim", [{"nodes": n, "rate": 100.0} for n in (1, 2)]),
            ("local", [{"nodes": n, "rate": 100.0 * n} for n in (1, 2)]),
        )
    ]
    drawn = scatter.predictions([("s", judge(compare, results))])
    assert drawn is not None
    points = {mark.label: [point[2:4] for point in mark.points] for mark in drawn.marks}
    assert points == {scatter.WITHIN: [(100.0, 100.0)], scatter.BEYOND: [(200.0, 100.0)]}
    assert len({marker for _, marker, _ in scatter.LOOKS.values()}) > 1
    assert scatter.predictions([]) is None
