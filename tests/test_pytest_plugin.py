"""The pytest plugin: clusters of tests under fault plans, reports of failing ones, and clean-up.

Each run of pytest is a process of its own, in which many small tests share the start.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from raytwin.chaos.clusters_in_tests import Clusters
from raytwin.chaos.faults.plan import PlanError

pytest_plugins = ("pytester",)
pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ("-p", "no:raytwin", "-p", "raytwin_pytest", "-p", "no:cacheprovider")
"""The plugin of this tree, whether or not an installed one is registered, too."""
SESSION_VARIABLE = "RAYTWIN_PLUGIN_SESSION"

PROGRAM = """
import pytest
import raytwin as ray

KILL = [{"at_s": 0.2, "action": "kill", "target": "node:1"}]

@ray.remote(max_retries=5)
def square(x):
    ray.compute(0.02)
    return helper(x)

def helper(x):
    return x * x

def program():
    return sum(ray.get([square.remote(x) for x in range(60)]))

RIGHT = sum(x * x for x in range(60))
"""


@pytest.fixture(autouse=True)
def this_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*PLUGIN, *options)


def test_a_test_runs_on_both_backends_under_a_plan(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        PROGRAM
        + """
@pytest.mark.faults(KILL)
@pytest.mark.parametrize("backend", ["sim", "local"])
def test_marked(raytwin_cluster, backend):
    session = raytwin_cluster(backend=backend, nodes=3, cpus_per_node=1)
    assert session.name == backend
    assert program() == RIGHT
    assert [row["Alive"] for row in ray.nodes()] == [True, False, True]

def test_the_cluster_has_ended_with_its_test():
    assert not ray.is_initialized()
"""
    )
    page = (ROOT / "docs" / "howto.md").read_text()
    (of_the_page,) = re.findall(r"(?ms)^```py\n(import pytest\n.*?)^```", page)
    pytester.makepyfile(test_of_the_page=of_the_page)
    # Workers cannot import the module of a test that pytest has imported in this way.
    result = run(pytester, "--import-mode=importlib")
    result.assert_outcomes(passed=5)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """The exit code and the output of a run of tests that pass, fail and err, all on `sim`."""
    folder = tmp_path_factory.mktemp("simulated")
    (folder / "plan.yaml").write_text('steps:\n  - {at_s: 0.1, action: kill, target: "node:1"}\n')
    (folder / "test_it.py").write_text(
        PROGRAM
        + """
SMALL = {"backend": "sim", "cpus_per_node": 1}

@pytest.mark.faults("spot")
def test_nodes_are_what_the_plan_needs(raytwin_cluster):
    raytwin_cluster(**SMALL)
    assert len(ray.nodes()) == 3
    ray.sleep(2)
    assert len([row for row in ray.nodes() if row["Alive"]]) == 1

@pytest.mark.faults("plan.yaml")
def test_a_path_is_relative_to_the_test(raytwin_cluster):
    raytwin_cluster(**SMALL)
    assert program() == RIGHT

def test_two_clusters_one_with_a_plan(raytwin_cluster):
    raytwin_cluster(**SMALL, nodes=2)
    assert program() == RIGHT
    raytwin_cluster(**SMALL, faults=KILL)
    assert program() == RIGHT
    assert len([row for row in ray.nodes() if row["Alive"]]) == 1

def test_a_failure_says_what_the_plan_did(raytwin_cluster):
    raytwin_cluster(**SMALL, faults=KILL)
    assert program() == 3

@pytest.mark.faults(KILL)
def test_a_failure_of_a_cluster_of_its_own():
    with ray.init(**SMALL, nodes=2):
        assert program() == 3

@pytest.mark.faults({"steps": KILL, "expect": [{"metric": "nodes_died", "equals": 2}]})
def test_an_expectation_does_not_hold(raytwin_cluster):
    raytwin_cluster(**SMALL)
    assert program() == RIGHT

@pytest.mark.faults(KILL)
def test_a_step_is_impossible():
    with ray.init(**SMALL, nodes=1):
        assert program() == RIGHT

@pytest.mark.faults("spot")
def test_no_step_is_due(raytwin_cluster):
    raytwin_cluster(**SMALL)

@pytest.mark.faults("spot")
def test_no_cluster():
    pass

@pytest.mark.faults("sport")
def test_no_such_plan(raytwin_cluster):
    pass

@pytest.mark.faults
def test_no_plan():
    pass

@pytest.mark.faults([{"at_s": 0, "action": "clock_skew", "target": "node:0",
                      "parameters": {"skew_ms": 1}}])
def test_not_for_the_backend():
    ray.init(nodes=1, cpus_per_node=1)

def test_the_cluster_that_was_refused_has_ended():
    assert not ray.is_initialized()

@pytest.mark.faults("spot")
def test_two_plans(raytwin_cluster):
    raytwin_cluster(**SMALL, faults=KILL)

def test_without_a_plan(raytwin_cluster):
    raytwin_cluster(**SMALL)
    assert program() == 3
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    yield done.returncode, done.stdout


def of(simulated: tuple[int, str], test: str) -> str:
    """Return what the report has below the heading of one test."""
    report = re.split("= (warnings|short test) summary", simulated[1])[0]
    assert f" {test} _" in report, simulated[1]
    return report.split(f" {test} _")[1].split("\n____")[0]


def test_what_passes_fails_and_errs(simulated: tuple[int, str]) -> None:
    code, output = simulated
    assert code == 1
    assert "5 failed, 8 passed, 2 warnings, 4 errors" in output, output


@pytest.mark.parametrize(
    "test", ["test_a_failure_says_what_the_plan_did", "test_a_failure_of_a_cluster_of_its_own"]
)
def test_a_failing_test_says_what_the_plan_did(simulated: tuple[int, str], test: str) -> None:
    report = of(simulated, test)
    assert "- raytwin: fault plan -" in report
    assert "0.200 s  kill node:1: noticed after" in report
    assert "node_died node:1" in report
    assert "nodes_died 1" in report


def test_a_failing_test_without_a_plan_says_nothing_of_one(simulated: tuple[int, str]) -> None:
    assert "fault plan" not in of(simulated, "test_without_a_plan")


@pytest.mark.parametrize(
    ("test", "line"),
    [
        ("test_an_expectation_does_not_hold", "expected nodes_died = 2 does not hold"),
        ("test_a_step_is_impossible", "cluster 1: kill node:1: there is no node 1"),
        ("test_no_such_plan", "the marker faults: no plan sport: give a file, or a name: did you"),
        ("test_no_plan", "the marker faults: it takes one plan, as in faults('spot')"),
        ("test_not_for_the_backend", "clock_skew"),
        ("test_two_plans", "the test has a plan in its mark faults: leave out one of the two"),
    ],
)
def test_what_is_wrong_with_a_plan_is_one_line(
    simulated: tuple[int, str], test: str, line: str
) -> None:
    found = [each for each in of(simulated, test).splitlines() if line in each]
    assert found, of(simulated, test)


def test_a_plan_that_did_nothing_is_warned_of(simulated: tuple[int, str]) -> None:
    _, output = simulated
    warnings = output.split("warnings summary")[1]
    assert "the cluster ended before it. At 1 s, kill nodes 1 and 2" in warnings
    assert "the test has started no cluster" in warnings


def test_too_few_nodes_for_the_plan_are_refused(tmp_path: Path) -> None:
    clusters = Clusters(tmp_path)
    with pytest.raises(PlanError, match="the plan names node 2: give nodes=3 or more"):
        clusters.start(backend="sim", nodes=2, faults="spot")
    clusters.close()


def test_import_ray_is_raytwin_where_it_is_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import ray\nimport program\n")
    pytester.makepyfile(
        program="""
import ray
from ray.util import ActorPool

@ray.remote(max_restarts=-1, max_task_retries=-1)
class Adder:
    def __init__(self):
        self.total = 0

    def add(self, n):
        ray.sleep(0.1)
        self.total += n
        return self.total

def main():
    adder = Adder.remote()
    return ray.get([adder.add.remote(n) for n in range(10)])[-1]
""",
        test_it="""
import program
import pytest
import ray

@pytest.mark.faults([{"at_s": 0.5, "action": "kill", "target": "actor:0"}])
@pytest.mark.parametrize("backend", ["sim"])
def test_it(raytwin_cluster, backend):
    raytwin_cluster(backend=backend)
    assert program.main() == 45
    assert ray.__name__ == "raytwin"
""",
    )
    result = run(pytester, "--raytwin-as-ray")
    result.assert_outcomes(passed=1)


def test_a_run_that_does_not_use_it_imports_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import sys

def test_nothing_is_imported(request):
    assert request.config.pluginmanager.has_plugin("raytwin_pytest")
    assert not [name for name in sys.modules if name.partition(".")[0] == "raytwin"]
    assert not {"numpy", "pandas", "matplotlib", "simpy", "cloudpickle"} & sys.modules.keys()
"""
    )
    run(pytester).assert_outcomes(passed=1)


def test_pytest_itself_says_how_to_use_it(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--markers")
    marker = next(each for each in result.outlines if each.startswith("@pytest.mark.faults(plan)"))
    assert all(word in marker for word in ("raytwin plan", "path", "steps", "expect"))
    listed = run(pytester, "--fixtures").stdout.str()
    fixture = listed.partition("raytwin_cluster --")[2].split("\n\n")[0]
    assert all(word in fixture for word in ("backend", "nodes", "faults", "cpus_per_node", "ends"))


def test_ctrl_c_ends_the_cluster(pytester: pytest.Pytester) -> None:
    test = pytester.makepyfile(
        PROGRAM
        + """
from pathlib import Path

@pytest.mark.faults([{"at_s": 0, "action": "kill", "target": "node:1"}])
def test_waits(raytwin_cluster):
    raytwin_cluster(backend="local", nodes=2)
    Path("started").touch()
    ray.sleep(600)
"""
    )
    mark = uuid4().hex
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *PLUGIN, str(test)],
        cwd=pytester.path,
        env={**os.environ, SESSION_VARIABLE: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        while not (pytester.path / "started").exists():
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        assert marked(mark) - {process.pid}, "the cluster has no process"
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    deadline = time.monotonic() + 30
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, output


def marked(mark: str) -> set[int]:
    """Return the living processes that have the mark in their environment."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and (
                process.environ().get(SESSION_VARIABLE) == mark
            ):
                found.add(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # Gone meanwhile, or another user's.
    return found
