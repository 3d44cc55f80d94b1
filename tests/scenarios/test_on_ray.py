"""Scenarios and programs on Ray itself: the same values as on raytwin's own backends.

Ray is in processes of their own there, so this process never imports it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from raytwin.chaos.faults.plan import Plan, Step
from raytwin.runtime.api import modules
from raytwin.runtime.on_ray import NotOnRay, front_door, ray_session
from raytwin.scenarios.core.scenario import Row, Silent, UsageError
from raytwin.scenarios.measure import ray_process, registry, runner
from tests.requirements import require

ROOT = Path(__file__).resolve().parents[2]
TIMES = {
    "tasks_per_s", "elapsed_s", "latency_s", "gb_per_s", "iops", "iteration_s", "images_per_s",
    "states_per_s", "batches", "timesteps_per_s",
}  # fmt: skip
"""Columns of measured times, and of what was done in a given time: they differ from run to run."""
SMALL = {
    "fig8a": {"sizes": "200000", "tasks": "2", "in_flight": "2", "cpus": "1"},
    "fig8b": {"tasks": "40", "repeats": "1", "window_on_host": "10"},
    "fig9": {"sizes": "1000,2000000", "threads": "1", "repeats": "2"},
    "fig12a": {"bytes_on_host": "1000000", "repeats": "1"},
    "fig13": {
        "replicas": "2", "repeats": "1", "width": "32", "batch": "16", "steps_on_host": "4",
        "layers_on_host": "2",
    },
    "fig14a": {"iterations": "6", "iterations_alone": "1", "pairs": "2"},
    # Of one simulator: two are in the order in which they end.
    "fig14b": {"simulators": "1", "iterations": "4", "steps_on_host": "250", "repeats": "1"},
    "table3": {"repeats": "1", "round_s": "0.05"},
    "table4": {"repeats": "1", "draws": "2", "cpus_on_host": "1"},
}  # fmt: skip
"""Scenarios with rows that are settled by their settings, but for `TIMES`; and small settings.

Rows of figure 11a are counts over time: its values have a test of their own.
"""
NODES = {"fig8a": (2,), "fig8b": (1, 2), "fig9": (1,), "fig12a": (2,)}
"""The numbers of nodes, where not the scenario's own."""
LIMIT_S = 600
"""Of a test: nodes of Ray's start in a second, or in ten on a busy machine."""

needs_ray = pytest.mark.ray


@pytest.fixture
def ray_installed() -> None:
    require("ray", importlib.util.find_spec("ray") is not None, ray_session.INSTALL)


def run(name: str, backend: str, out: Path, address: str | None = None, **plan: Any) -> list[Row]:
    """Run a scenario at a small size; return its rows."""
    wanted = {"given": SMALL[name], "nodes": NODES.get(name), "address": address, **plan}
    (job,) = runner.plan([name], [backend], **wanted)
    done = runner.run_one(job, out, None, Silent())
    assert done.result is not None, done.error + done.trace
    return done.result.rows


def settled(rows: list[Row]) -> list[Row]:
    """Return rows without what is measured, and without what names raytwin's own choices."""
    own = {*TIMES, "policy", "threads"}
    return [{name: row[name] for name in row if name not in own} for row in rows]


# -- what runs -----------------------------------------------------------------------


@needs_ray
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.usefixtures("ray_installed")
def test_a_program_gives_the_same_values_on_local_and_on_ray() -> None:
    found = {}
    for backend in ("local", "ray"):
        environment = ray_session.environment()
        if backend == "local":
            del environment[modules.ON_RAY]
        done = subprocess.run(
            [sys.executable, "-m", "tests.ray_programs_on_ray", backend],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found[backend] = json.loads(done.stdout.splitlines()[-1])  # Ray prints as well
    assert found["ray"] == found["local"]
    assert found["ray"]["nested"] == 14
    assert found["ray"]["time passes"] == [True, True]
    assert found["ray"]["has ended"]


@needs_ray
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.usefixtures("ray_installed")
@pytest.mark.parametrize("name", SMALL)
def test_a_scenario_gives_the_same_rows_on_local_and_on_ray(name: str, tmp_path: Path) -> None:
    on_ray, local = (run(name, backend, tmp_path) for backend in ("ray", "local"))
    assert settled(on_ray) == settled(local)
    measured = [row[column] for row in on_ray for column in TIMES & set(row)]
    assert all(value > 0 for value in measured if value is not None)
    assert len(measured) > measured.count(None)
    record = json.loads((tmp_path / name / "ray" / "result.json").read_bytes())
    assert record["backend"] == "ray"
    assert record["versions"]["ray"][0].isdigit()
    assert (tmp_path / name / "ray" / "timeline.json").read_text().count('"ph"') > 10


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.usefixtures("ray_installed")
def test_chains_come_to_their_values_while_nodes_of_ray_are_killed(tmp_path: Path) -> None:
    given = {"time_factor": "0.03", "task_ms": "50", "chains_per_cpu": "2"}
    (job,) = runner.plan(["fig11a"], ["ray"], nodes=(3,), given=given)
    done = runner.run_one(job, tmp_path, None, Silent())
    assert done.result is not None, done.error + done.trace
    checks = {check.name: check for check in done.result.record.checks}
    for name in (
        "every chain came to what a run without faults comes to",
        "every step of the plan was carried out",
        "every link was executed, and some again, as they have written down themselves",
    ):
        assert checks[name].ok, checks[name]
    assert {row["nodes"] for row in done.result.rows} == {1, 2, 3}


@needs_ray
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.usefixtures("ray_installed")
def test_a_fault_plan_of_the_command_line_breaks_the_cluster_of_ray(tmp_path: Path) -> None:
    faults = Plan([Step("kill", "worker:0.0", 0.5), Step("pause", "node:1", 0.5),
                   Step("resume", "node:1", 1.0)])  # fmt: skip
    given = {**SMALL["fig8b"], "tasks": "6000"}
    (job,) = runner.plan(["fig8b"], ["ray"], nodes=(2,), given=given)
    done = runner.run_one(job, tmp_path, None, Silent(), faults)
    assert done.result is not None, done.error + done.trace
    (carried_out,) = (c for c in done.result.record.checks if c.name.startswith("every step"))
    assert carried_out.ok, carried_out.detail


@needs_ray
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.usefixtures("ray_installed")
def test_a_cluster_of_ray_has_the_faults_of_nodes_workers_and_actors(tmp_path: Path) -> None:
    written = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.ray_programs_under_faults", str(written)], cwd=ROOT,
        env=ray_session.environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(written.read_text())
    errors = found.pop("errors")
    assert len(errors) == 10
    assert "the driver's" in errors.pop("kill node:0")
    assert set(errors.values()) == {""}
    assert found == {"moved": True, "right": True, "nodes": [0, 1, 2]}


CLUSTER = """
import sys, time
from raytwin.runtime.on_ray.ray_cluster import RayCluster
cluster = RayCluster([{"CPU": 1.0}, {"CPU": 1.0}])
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture
def address(ray_installed: None) -> Iterator[str]:
    """The address of a Ray cluster of two nodes that another process runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], env={**ray_session.environment(), modules.ON_RAY: ""},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.communicate("", timeout=60)


@needs_ray
@pytest.mark.timeout(LIMIT_S)
def test_a_scenario_joins_a_cluster_by_address(address: str, tmp_path: Path) -> None:
    rows = run("fig8b", "ray", tmp_path, address)
    assert settled(rows) == settled(run("fig8b", "local", tmp_path))
    with pytest.raises(UsageError, match=r"has 2 nodes, not 3: give --nodes 2 or less"):
        run("fig8b", "ray", tmp_path, address, nodes=(3,))
    with pytest.raises(UsageError, match=r"this program wants others: leave --address out"):
        run("fig8a", "ray", tmp_path, address)


@pytest.fixture
def running(ray_installed: None, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command line while a scenario runs on Ray, started in the background as by a shell."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ignoring_sigint", "run", "fig8b", "--backend", "ray",
         "--nodes", "1", "--set", "tasks=1e7", "--out", str(tmp_path)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "1 clusters" in line:
            break
    (driver,) = psutil.Process(process.pid).children()
    while not any("raylet" in each.name() for each in driver.children()):
        time.sleep(0.1)
    yield process
    process.kill()
    process.communicate()


@needs_ray
@pytest.mark.timeout(LIMIT_S)
def test_sigterm_ends_the_cluster_of_ray(running: subprocess.Popen[str], tmp_path: Path) -> None:
    (driver,) = psutil.Process(running.pid).children()
    running.terminate()
    _, said = running.communicate(timeout=120)
    assert running.returncode == 143, said
    assert "Traceback" not in said
    assert not driver.is_running()
    assert not (tmp_path / "fig8b" / "ray" / "result.json").exists()


@needs_ray
@pytest.mark.timeout(LIMIT_S)
def test_sigkill_of_the_command_line_ends_the_cluster_of_ray(
    running: subprocess.Popen[str],
) -> None:
    (driver,) = psutil.Process(running.pid).children()
    all_of_it = [driver, *driver.children(recursive=True)]
    running.kill()
    _, left = psutil.wait_procs(all_of_it, timeout=60)
    assert not left


STARTING = """
import os, sys, time
import ray._private.node as node
from raytwin.runtime.on_ray.ray_cluster import TMPDIR, RayCluster
start = node.Node.start_ray_processes
def interrupted(self):
    start(self)
    print(os.environ[TMPDIR], flush=True)
    sys.stdin.read()
    raise KeyboardInterrupt
node.Node.start_ray_processes = interrupted
RayCluster([{"CPU": 1.0}])
"""


@needs_ray
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.usefixtures("ray_installed")
@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_a_driver_that_ends_while_a_node_of_ray_starts_leaves_no_process_and_no_file(
    how: str,
) -> None:
    """Ray's agents, whose raylet is dead, wait for the GCS for a minute if nobody ends them."""
    driver = subprocess.Popen(
        [sys.executable, "-c", STARTING], env={**ray_session.environment(), modules.ON_RAY: ""},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert driver.stdout is not None
    folder = Path(driver.stdout.readline().strip())
    agents: list[psutil.Process] = []
    while len(agents) < 2:
        (raylet,) = (p for p in psutil.Process(driver.pid).children() if p.name() == "raylet")
        agents = raylet.children()
    if how == "killed":
        driver.kill()
    driver.communicate("", timeout=60)
    _, left = psutil.wait_procs(agents, timeout=30)
    assert not left
    while folder.exists():  # the watcher removes it when the processes are gone
        time.sleep(0.1)


# -- what is refused, in one line ------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "fig10a"], "it kills replicas of the GCS, and Ray's GCS has none"),
        (["run", "fig11b"], "Ray restarts actors without their state"),
        (["run", "fig8b", "--faults", "lossy"], "loss link:0>1 does not work on ray"),
        (["run", "fig8b", "--address", "nowhere"], "no address of a Ray cluster: give HOST:PORT"),
        (["exec", "script.py"], "RAYTWIN_ON_RAY=1 python SCRIPT"),
    ],
)
@pytest.mark.usefixtures("ray_installed")
def test_what_cannot_be_on_ray_is_refused_in_one_line(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "lossy.yaml"
    step = '{at_s: 1, action: loss, target: "link:0>1", parameters: {probability: 0.1}}'
    path.write_text(f"steps:\n  - {step}\n")
    command = [str(path) if each == "lossy" else each for each in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "raytwin", *command[:1], "--backend", "ray", *command[1:]],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_an_address_needs_the_backend_ray_and_somebody_who_listens() -> None:
    with pytest.raises(UsageError, match="give --backend ray with it"):
        runner.plan(["fig8b"], ["local"], address="127.0.0.1:1")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        free = listening.getsockname()[1]
    with pytest.raises(NotOnRay, match="no Ray cluster answers at"):
        ray_session.check_address(f"127.0.0.1:{free}")


def test_without_ray_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"^Ray is not installed: pip install 'raytwin\[ray\]'$"):
        runner.plan(["fig8b"], ["ray"])


def test_ray_runs_only_if_it_is_named() -> None:
    scenario = registry.scenarios()["fig8b"]
    assert "ray" in scenario.backends
    assert "ray" not in scenario.default_backends


def test_every_scenario_runs_on_ray_or_says_why_not() -> None:
    for scenario in registry.scenarios().values():
        assert ("ray" in scenario.backends) != bool(scenario.not_on_ray), scenario.name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policy": "centralized"}, "no policy 'centralized': possible: bottom-up"),
        ({"gcs_replicas": 2}, "no option 'gcs_replicas'"),
        ({"backend": "sim"}, "this program runs on Ray"),
    ],
)
@pytest.mark.usefixtures("ray_installed")
def test_options_that_ray_does_not_have_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(NotOnRay, match=said):
        ray_session.connect(**options)


def test_a_class_with_checkpoints_is_refused_when_it_is_used_and_not_when_it_is_made() -> None:
    made = front_door.remote(checkpoint_interval=3)(dict)
    with pytest.raises(NotOnRay, match="Ray keeps no checkpoints"):
        made.remote()


def test_what_a_scenario_raises_on_ray_is_its_error_with_the_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (job,) = runner.plan(["fig8b"], ["local"], given=SMALL["fig8b"], nodes=(1,))

    def fail(*arguments: object) -> None:
        error = ray_process.ScenarioFailed("ValueError: boom")
        error.add_note("the traceback from there")
        raise error

    monkeypatch.setattr(ray_process, "run", fail)
    done = runner.run_one(runner.Job(**{**vars(job), "backend": "ray"}), tmp_path, None, Silent())
    assert done.error == "ScenarioFailed: ValueError: boom"
    assert "the traceback from there" in done.trace


def test_a_function_with_other_options_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would pickle and export it for every call, and be measured along with that."""

    class Made:
        def options(self, **options: Any) -> Made:
            given.append(options)
            return self

        def remote(self, *args: Any) -> tuple[Any, ...]:
            return args

    made, given = [], []

    def make(target: Any) -> Made:
        made.append(target)
        return Made()

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(remote=make))
    function = front_door.remote(abs)
    for number in range(3):
        assert function.options(max_retries=1).options(num_cpus=0).remote(number) == (number,)
    assert (made, given) == ([abs], [{"max_retries": 1, "num_cpus": 0}] * 3)
