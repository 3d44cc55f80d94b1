"""Figures 8a and 8b as a user runs them: through the command line, on both backends."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.reports.figures import build
from raytwin.scenarios.core.results import Record, Result
from raytwin.scenarios.core.scenario import Request
from raytwin.scenarios.figures import fig8a, fig8b
from raytwin.scenarios.workloads.programs import bag_of_tasks

ROOT = Path(__file__).resolve().parents[2]


def raytwin(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raytwin", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_fig8b_on_sim_is_the_same_every_time(tmp_path: Path) -> None:
    for out in ("a", "b"):
        done = raytwin(
            "run", "fig8b", "--backend", "sim", "--nodes", "1,4", "--set", "tasks=8000",
            "--seed", "3", "--out", str(tmp_path / out),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    first, second = (tmp_path / out / "fig8b" / "sim" / "rows.csv" for out in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    rows = rows_of(first)
    assert [(row["policy"], row["nodes"]) for row in rows] == [
        ("bottom-up", "1"),
        ("bottom-up", "4"),
        ("centralized", "1"),
        ("centralized", "4"),
    ]
    assert all(int(row["tasks"]) == 8000 for row in rows)
    result = json.loads((first.parent / "result.json").read_text())
    assert result["seed"] == 3
    assert result["findings"]


def test_bottom_up_scales_and_centralized_does_not() -> None:
    """The prediction that the figure is about, at sizes that take a second."""
    outcome = fig8b.run(
        Request(
            "sim",
            nodes=(2, 20),
            settings={
                **fig8b.SCENARIO.settings("quick", {}),
                "tasks_per_node": 5_000,
                "tasks_centralized": 20_000,
            },
        )
    )
    rate = {(row["policy"], row["nodes"]): row["tasks_per_s"] for row in outcome.rows}
    assert rate["bottom-up", 20] > 9 * rate["bottom-up", 2]
    assert rate["centralized", 20] < 3 * rate["centralized", 2]
    assert all(check.ok for check in outcome.checks)


def test_the_tasks_of_policy_centralized_are_bounded_however_many_there_are() -> None:
    settings = {**fig8b.SCENARIO.settings("quick", {}), "tasks": 9_000, "tasks_centralized": 500}
    outcome = fig8b.run(Request("sim", nodes=(3,), settings=settings))
    assert {row["policy"]: row["tasks"] for row in outcome.rows} == {
        "bottom-up": 9_000,
        "centralized": 3 * (500 // 3),
    }


@pytest.mark.parametrize("window", [300, 700, 800, 1000, 3000])
def test_the_rate_of_a_node_does_not_depend_on_the_window(window: int) -> None:
    """Work that was handed out is not taken back while its scheduler is busy."""
    ray.init(backend="sim", nodes=1)
    try:
        elapsed_s = bag_of_tasks(1, 10 * window, window, False)
    finally:
        ray.shutdown()
    assert 10 * window / elapsed_s > 0.9 * 18_000


@pytest.mark.parametrize("window", [700, 4_000, 20_000])
@pytest.mark.parametrize("nodes", [4, 10])
def test_task_arrays_pass_the_head_by(nodes: int, window: int) -> None:
    """Each node runs what is submitted there, however busy with that its scheduler is."""
    tasks = 5 * nodes * window
    cluster: Any = ray.init(backend="sim", nodes=nodes).cluster
    try:
        scheduler = cluster.head.components["global"]
        began_busy_s = cluster.head.busy_s
        elapsed_s = bag_of_tasks(nodes, tasks, window, False)
        assert scheduler.placed <= 2 * nodes, "more than the submitters"
        # To place one there takes 28 us.
        assert cluster.head.busy_s - began_busy_s < 2e-7 * tasks
        assert tasks / elapsed_s > 0.95 * 18_000 * nodes
    finally:
        ray.shutdown()


def test_fig8b_measures_real_processes() -> None:
    settings = {**fig8b.SCENARIO.settings("quick", {}), "tasks": 600, "repeats": 2}
    outcome = fig8b.run(Request("local", nodes=(1, 2), settings=settings))
    assert [(row["nodes"], row["repeat"]) for row in outcome.rows] == [
        (1, 0), (2, 0), (1, 1), (2, 1),
    ]  # fmt: skip
    assert all(row["tasks"] == 600 and row["tasks_per_s"] > 0 for row in outcome.rows)
    assert any(event["name"] == "_empty" for event in outcome.timeline)


def test_clusters_of_real_processes_share_the_batches_of_figure_8a(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One cluster is faster than the next, so the batches of one have no spread to speak of."""
    made: list[str] = []
    start = ray.init

    def counted(**options: Any) -> Any:
        made.append(options["policy"])
        return start(**options)

    monkeypatch.setattr(ray, "init", counted)
    small = {"sizes": (1_000,), "tasks": 10, "in_flight": 2, "cpus": 1}
    settings = {**fig8a.SCENARIO.settings("quick", {}), **small}
    outcome = fig8a.run(Request("local", nodes=(2,), settings=settings))
    assert made == ["bottom-up", "locality-blind"] * fig8a.CLUSTERS
    batches = [(row["policy"], row["batch"]) for row in outcome.rows]
    assert sorted(batches) == [(policy, n) for policy in fig8a.POLICIES for n in range(5)]
    assert {row["tasks"] for row in outcome.rows} == {2}
    for row in outcome.rows:
        assert row["repeat"] == row["batch"] % fig8a.CLUSTERS, "a repeat is a cluster"


def test_locality_keeps_large_inputs_where_they_are() -> None:
    settings = {**fig8a.SCENARIO.settings("quick", {}), "sizes": (100_000, 100_000_000)}
    outcome = fig8a.run(Request("sim", settings=settings))
    assert all(check.ok for check in outcome.checks), outcome.checks
    mean = outcome.metrics
    aware, blind = (
        mean[f"latency_ms_{policy}_100000000_bytes"] for policy in ("bottom_up", "locality_blind")
    )
    assert blind > 10 * aware
    figure = build(
        fig8a.SCENARIO.figures[0],
        [Result(Record("fig8a", "sim", {}, 0, {}, {}, {}, []), outcome.rows)],
    )
    drawn_ms = {curve.label: 1e3 * curve.points[-1].y for curve in figure.curves}
    assert drawn_ms == pytest.approx({"bottom-up": aware, "locality-blind": blind}), "one statistic"


def test_fig8a_measures_real_transfers() -> None:
    settings = {**fig8a.SCENARIO.settings("quick", {}), "sizes": (20_000_000,), "tasks": 24}
    outcome = fig8a.run(Request("local", settings=settings))
    mean = outcome.metrics
    aware, blind = (
        mean[f"latency_ms_{policy}_20000000_bytes"] for policy in ("bottom_up", "locality_blind")
    )
    assert sum(row["tasks"] for row in outcome.rows) == 2 * 24
    assert blind > aware


@pytest.mark.parametrize("nodes", ["1", "3", "2,4"])
def test_fig8a_is_about_two_nodes(nodes: str, tmp_path: Path) -> None:
    done = raytwin("run", "fig8a", "--backend", "sim", "--nodes", nodes, "--out", str(tmp_path))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "2 nodes" in done.stderr
