"""Scenarios from Python: runs, what they hold, how they are drawn, saved and loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.figure
import pandas
import pytest

import raytwin
from raytwin.chaos.faults.plan import PlanError
from raytwin.scenarios.core.results import ResultError
from raytwin.scenarios.core.scenario import UsageError

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = ROOT / "docs" / "my_scenario.py"
KILL = [{"at_s": 0.001, "action": "kill", "target": "node:1"}]
Synthetic = pytest.mark.usefixtures("synthetic_scenarios")


@pytest.fixture(autouse=True)
def module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


@Synthetic
def test_a_run_has_rows_metrics_and_checks() -> None:
    run = raytwin.run("scaling", nodes=[10, 20], settings={"tasks": 500, "policies": ["random"]})
    assert list(run.rows.columns) == ["series", "nodes", "repeat", "tasks_per_s"]
    assert list(run.rows["nodes"]) == [10, 20]
    assert run.metrics == {"tasks_per_s_max": 360_000.0}
    assert [check.name for check in run.checks] == [
        "every task ran", "the rate grows with the nodes",
    ]  # fmt: skip
    assert run.ok
    assert (run.scenario, run.backend, run.seed) == ("scaling", "sim", 0)
    assert run.parameters["tasks"] == 500
    assert "2 rows, 2 of 2 checks hold" in repr(run)


@Synthetic
def test_scale_and_seed_are_passed_on() -> None:
    runs = [raytwin.run("scaling", backend="local", scale="full", seed=seed) for seed in (1, 1, 2)]
    first, again, other = (list(run.rows["tasks_per_s"]) for run in runs)
    assert first == again != other
    assert runs[0].parameters["tasks"] == 100_000


@Synthetic
def test_a_check_that_fails_raises_nothing_and_a_scenario_that_breaks_does() -> None:
    run = raytwin.run("failing")
    assert not run.ok
    assert "0 of 1 checks hold" in repr(run)
    with pytest.raises(RuntimeError, match="the scenario broke"):
        raytwin.run("broken")


@Synthetic
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"scenario": "scalin"}, "no scenario 'scalin': did you mean 'scaling'"),
        ({"backend": "moon"}, "no backend 'moon'"),
        ({"backend": "docker"}, "scaling does not run on 'docker'"),
        ({"scale": "big"}, "no scale 'big'"),
        ({"nodes": 0}, "'0' is no cluster size"),
        ({"nodes": "many"}, "'many' is no cluster size"),
        ({"settings": {"task": 1}}, "no setting 'task': did you mean 'tasks'"),
        ({"settings": {"tasks": 1.5}}, "give a whole number of at least 1"),
        ({"faults": "sport"}, "no plan sport: give a file, or a name: did you mean 'spot'"),
        ({"faults": [{"at_s": 1}]}, "step 1: it needs action"),
        ({"faults": {"step": []}}, "no key 'step': did you mean 'steps'"),
        ({"profile": "/nowhere/profile.json"}, "cannot read profile"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises((UsageError, PlanError)) as caught:
        raytwin.run(**{"scenario": "scaling", **options})
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@Synthetic
def test_figures_are_drawn_as_in_the_report_with_other_backends_beside() -> None:
    sim, local = (raytwin.run("placement", backend=backend) for backend in ("sim", "local"))
    assert sim.figures == ("Mean latency of a task by size of its input", "By policy, at 1 MB")
    alone, both = sim.plot(), sim.plot(local)
    assert isinstance(alone, matplotlib.figure.Figure)
    (axes,), (beside,) = alone.axes, both.axes
    assert len(beside.containers) == 2 * len(axes.containers) == 4
    assert axes.get_xlabel() == "size of the input"
    titled = sim.plot(figure="By policy, at 1 MB")
    assert titled.axes[0].get_xlabel() == sim.plot(figure=1).axes[0].get_xlabel() == "policy"
    assert both._repr_png_().startswith(b"\x89PNG")


@Synthetic
def test_what_cannot_be_drawn_is_said_in_a_line() -> None:
    sim = raytwin.run("placement")
    with pytest.raises(UsageError, match="tells runs apart by backend"):
        sim.plot(sim)
    with pytest.raises(UsageError, match="a run of scaling is not drawn beside one of placement"):
        sim.plot(raytwin.run("scaling", backend="local"))
    with pytest.raises(UsageError, match="no figure 'By polic': did you mean 'By policy, at"):
        sim.plot(figure="By polic")
    with pytest.raises(UsageError, match="no figure 2: placement has 2"):
        sim.plot(figure=2)


@Synthetic
def test_a_notebook_shows_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    html = raytwin.run("scaling")._repr_html_()
    assert "Empty tasks per second by cluster size" in html
    assert 'src="data:image/svg+xml;base64,' in html
    assert "tasks_per_s_max" in html
    assert "<b>holds</b> every task ran: 1,000 of 1,000" in html
    failing = raytwin.run("failing")
    failing.checks[0].detail = "<script>"
    assert "<b>FAILS</b> one is two: &lt;script&gt;" in failing._repr_html_()


@Synthetic
def test_a_run_is_saved_and_loaded_again(tmp_path: Path) -> None:
    run = raytwin.run("scaling", backend="local")
    folder = run.save(tmp_path)
    assert folder == tmp_path / "scaling" / "local"
    for directory in (folder, tmp_path / "scaling", str(tmp_path)):
        found = raytwin.load(directory)
        pandas.testing.assert_frame_equal(found.rows, run.rows)
        assert (found.metrics, found.checks) == (run.metrics, run.checks)
        assert (found.timeline, found.findings) == (run.timeline, run.findings)
        assert found.figures == run.figures
    raytwin.run("placement").save(tmp_path)
    with pytest.raises(ResultError, match=r"several runs: .*\(placement/sim, scaling/local\)"):
        raytwin.load(tmp_path)
    with pytest.raises(ResultError, match="does not exist"):
        raytwin.load(tmp_path / "nowhere")


def test_rows_with_gaps_are_the_same_from_memory_and_from_disk(tmp_path: Path) -> None:
    run = raytwin.run(str(FILE), settings={"darts": 200})
    run.result.rows[1:1] = [{"tasks": 3, "note": "no time"}]
    pandas.testing.assert_frame_equal(run.rows, raytwin.load(run.save(tmp_path)).rows)


def test_a_run_of_a_file_is_loaded_with_it(tmp_path: Path) -> None:
    run = raytwin.run(str(FILE), nodes=2, settings={"darts": 2000, "tasks": (1, 2)})
    assert run.ok, run.checks
    assert list(run.rows["tasks"]) == [1, 2]
    folder = run.save(tmp_path)
    assert raytwin.load(folder, scenario=FILE).figures == ("Time to throw all darts",)
    bare = raytwin.load(folder)
    assert "<table>" in bare._repr_html_()
    with pytest.raises(UsageError, match=r"no scenario 'darts' here.*load\(directory, scenario="):
        bare.plot()
    run.result.record.scenario = "scaling"
    other = run.save(tmp_path)
    with pytest.raises(UsageError, match=r"the run is of 'scaling', and .* has the scenario 'dart"):
        raytwin.load(other, scenario=FILE)


def test_both_worlds_run_a_file_under_a_plan() -> None:
    """On `local`, too: functions and classes of the file travel by value."""
    for backend in ("sim", "local"):
        run = raytwin.run(
            str(FILE), backend=backend, nodes=2, settings={"darts": 1000}, faults=KILL
        )
        assert run.ok, run.checks
        assert run.checks[-1].name == "every step of the fault plan was carried out"
        assert any("Cluster 1: kill node:1 at" in finding for finding in run.findings)
        assert run.parameters["faults"] == ["kill node:1"]
        assert not raytwin.is_initialized()


def test_the_command_line_runs_and_reports_a_file(tmp_path: Path) -> None:
    def command(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "raytwin", *args],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip

    (tmp_path / "mine.py").write_text(FILE.read_text())
    done = command("run", "./mine.py", "--backend", "sim", "--set", "darts=2000")
    assert done.returncode == 0, done.stderr
    assert "'raytwin report results --scenario ./mine.py' draws them" in done.stdout
    assert command("report", "results", "--scenario", "./mine.py").returncode == 0
    report = (tmp_path / "results" / "report.html").read_text()
    assert "Time to throw all darts" in report
    assert "<code>raytwin run mine.py --backend local</code>" in report
    without = command("report", "results")
    assert without.returncode == 2
    assert "one in a file is given with --scenario FILE" in without.stderr


def test_a_cluster_that_is_connected_is_not_touched() -> None:
    with raytwin.init(backend="sim", nodes=1):
        with pytest.raises(UsageError, match="a cluster is connected, and fig8b starts its own"):
            raytwin.run("fig8b")
        assert raytwin.is_initialized()


def test_a_cluster_that_a_scenario_leaves_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        FILE.read_text().replace("rows = []", "rows = []\n    request = None", 1).replace(
            "    with ray.init(backend=request.backend", "    ray.init(backend='sim')\n"
            "    with ray.init(backend=request.backend"
        )
    )  # fmt: skip
    with pytest.raises(AttributeError):
        raytwin.run(str(path))
    assert not raytwin.is_initialized()


def test_programs_import_neither_pandas_nor_scenarios() -> None:
    code = (
        "import sys, raytwin as ray\n"
        "ray.remote(len)\n"
        "assert {'run', 'load'} <= set(dir(ray))\n"
        "heavy = {'pandas', 'matplotlib', 'numpy', 'typer', 'simpy', 'raytwin.scenarios'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
        "assert callable(ray.run) and callable(ray.load)\n"
        "assert not {'pandas', 'matplotlib'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_on_ray_it_says_where_to_run() -> None:
    code = "import raytwin\ntry:\n    raytwin.run('fig8b')\nexcept ValueError as e:\n    print(e)\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "RAYTWIN_ON_RAY": "1"},
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    assert "this process is on Ray (RAYTWIN_ON_RAY is set)" in done.stdout
