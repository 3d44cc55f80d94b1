"""The excerpts of long timelines, and their note of omissions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raytwin.runtime.api.trace import Recording
from raytwin.runtime.control.core.ids import ARRAY_BYTES, object_id
from raytwin.runtime.control.messages import OK
from raytwin.runtime.control.observability.timeline import REPLAY, TASK
from raytwin.scenarios.cli.main import app
from raytwin.scenarios.core import results, run_trace
from raytwin.scenarios.core.excerpt import excerpt
from raytwin.scenarios.core.results import Record, Result
from raytwin.scenarios.core.scenario import Request
from raytwin.scenarios.figures import fig10a, fig11a, fig11b
from tests.trace_format import check


def array(number: int) -> bytes:
    return number.to_bytes(ARRAY_BYTES, "big")


def ran(number: int, at_s: float, **other: Any) -> list[Any]:
    """Return the row of a range of one element that took 10 ms."""
    row = {
        "name": "f", "node": 1, "worker": 1, "start_s": at_s, "elapsed_s": 0.01, "count": 1,
        "array": array(number), "start": 0, "attempt": 0, "kind": TASK, "status": OK,
        "since_s": -1.0, "deps": [], **other,
    }  # fmt: skip
    return list(row.values())


def numbers(recording: Recording) -> list[int]:
    return [int.from_bytes(row[6], "big") for row in recording.ranges]


def test_failures_and_what_was_around_them_are_kept() -> None:
    ranges = [ran(at, float(at)) for at in range(100)]
    ranges[40] = ran(40, 40.0, status=OK + 1)
    ranges[60] = ran(3, 60.0, attempt=1)
    ranges[61] = ran(61, 61.0, kind=REPLAY)
    happened = [[0.0, "node_added", "node:1", "", 1], [80.004, "node_died", "node:1", "", 1]]
    part = excerpt(Recording(ranges, gcs_events=happened), 7, 2)
    assert numbers(part.recording) == [39, 40, 41, 59, 3, 61, 62, 79, 80, 81]
    assert part.recording.gcs_events == happened
    assert part.missing == {"executed ranges": (90, 100)}
    check(part.events())


def test_all_that_failed_is_kept_however_much_it_is() -> None:
    ranges = [ran(at, float(at), attempt=1) for at in range(50)]
    part = excerpt(Recording(ranges), 3, 0)
    assert len(part.recording.ranges) == 50
    assert not part.missing


def test_the_excerpt_of_an_uneventful_run_is_its_beginning() -> None:
    ranges = [ran(at, float(at)) for at in range(100)]
    transfers = [[1, 2, float(at), 0.1, 10, object_id(array(at), 0, 0)] for at in range(20)]
    placements = [[float(at), "f", array(at), 0, 1, 1, 0] for at in range(4)]
    part = excerpt(Recording(ranges[::-1], transfers, placements), 5, 0)
    assert numbers(part.recording) == [0, 1, 2, 3, 4]
    assert part.recording.transfers == transfers[:5]
    assert part.recording.placements == placements
    (first, *others) = part.events()
    assert first["name"] == "left out: 95 of 100 executed ranges, 15 of 20 transfers"
    assert all(event["cat"] != first["cat"] for event in others)


def test_transfers_and_placements_are_those_around_failures() -> None:
    transfers = [[1, 2, float(at), 0.1, 10, object_id(array(at), 0, 0)] for at in range(50)]
    placements = [[float(at), "f", array(at), 0, 1, 1, 0] for at in range(50)]
    happened = [[30.2, "node_died", "node:1", "", 1]]
    part = excerpt(Recording([], transfers, placements, happened), 3, 1).recording
    assert [row[2] for row in part.transfers] == [29.0, 30.0, 31.0]
    assert [row[0] for row in part.placements] == [29.0, 30.0, 31.0]


def test_events_that_the_gcs_has_forgotten_are_counted() -> None:
    happened = [[1.0, "task_retried", "f", "", 40], [2.0, "node_died", "node:1", "", 1]]
    assert excerpt(Recording(gcs_events=happened), 5, 100).missing == {"events": (59, 100)}


def test_a_whole_trace_reports_no_omission() -> None:
    part = excerpt(Recording([ran(1, 1.0)]), 5, 0)
    assert [event["cat"] for event in part.events()] == [TASK]


def test_the_chains_run_again_in_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_trace, "EVENTS_MAX", 20)
    outcome = fig11a.run(Request("sim", settings=fig11a.SCENARIO.settings("quick", {})))
    died = [event for event in outcome.timeline if event["name"].startswith("node_died")]
    assert len(died) == len(fig11a.REMOVED_S)
    again = [event for event in outcome.timeline if "re-execution" in event["cat"]]
    assert len(again) > 20
    first = [event for event in outcome.timeline if event["cat"] == "task"]
    assert len(first) == 20
    assert len(run_trace.left_out(outcome.timeline)) == 1


@pytest.mark.parametrize(
    ("scenario", "runs"),
    [
        (fig10a, {f"{fig10a.PAPER}, {member} killed:" for member in fig10a.MEMBERS}),
        (fig11b, {f"{fig11b.PAPER}, {policy}:" for policy in (fig11b.WITH, fig11b.WITHOUT)}),
    ],
)
def test_every_run_of_a_scenario_is_in_its_trace(scenario: Any, runs: set[str]) -> None:
    settings = scenario.SCENARIO.settings("quick", {})
    if scenario is fig10a:
        settings |= {"seconds": 1.0, "kill_s": 0.3}
    else:
        settings |= {"actors": 10, "steps": 8, "kill_step": 5, "period_s": 0.3}
    timeline = scenario.run(Request("sim", settings=settings)).timeline
    for run in runs:
        of_run = [event for event in timeline if str(event["pid"]).startswith(run)]
        assert any(event["cat"] in ("event", "fault") for event in of_run)
        timeline = [event for event in timeline if event not in of_run]
    assert not timeline


def test_the_command_reports_omissions(tmp_path: Path) -> None:
    cut = excerpt(Recording([ran(at, float(at)) for at in range(9)]), 4, 0).events()
    runs = [*run_trace.group(cut, "one:"), *run_trace.group(cut, "two:")]
    record = Record("fig", "sim", {}, 0, {}, {}, {}, [])
    results.write(tmp_path, Result(record, [{"n": 1}], runs))
    done = CliRunner().invoke(app, ["timeline", str(tmp_path)])
    assert done.exit_code == 0, done.output
    left_out = "left out: 5 of 9 executed ranges"
    assert done.output.splitlines()[-2:] == [f"one: {left_out}", f"two: {left_out}"]
    assert "left out" in CliRunner().invoke(app, ["timeline", "--help"]).output
