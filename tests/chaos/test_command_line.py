"""`raytwin fuzz` and `raytwin run --faults` as a user types them; figure 11a in small."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raytwin.chaos.faults.plan import Plan, Step
from raytwin.reports.measurements import read_measurements
from raytwin.scenarios.core.scenario import Check, Outcome, Request, Scenario
from raytwin.scenarios.figures import fig11a
from raytwin.scenarios.measure.under_faults import run_under
from tests.processes.helpers import LIMIT_S, eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def raytwin(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raytwin", *args],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_fuzz_prints_a_summary(tmp_path: Path) -> None:
    done = raytwin("fuzz", "--seeds", "20", "--start", "5", "--jobs", "2", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 of 20 seeds hold" in done.stdout
    assert "seeds 5 to 24" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["fuzz.json"]
    campaign = read_measurements(tmp_path).campaign
    assert campaign is not None
    assert (campaign.first_seed, campaign.seeds, campaign.ran, campaign.failed) == (5, 20, 20, 0)
    assert f"{campaign.tasks:,} tasks, {campaign.faults:,} faults" in done.stdout


@pytest.fixture
def fuzz(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The fuzz on two processes, a session of its own, in the middle of more than it can do."""
    with subprocess.Popen(
        [sys.executable, "-m", "raytwin", "fuzz", "--seeds", "100000", "--jobs", "2",
         "--out", str(tmp_path)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            eventually(lambda: len(psutil.Process(process.pid).children()) == 2)
            time.sleep(0.5)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupted_fuzz_ends(times: int, fuzz: subprocess.Popen[str]) -> None:
    workers = psutil.Process(fuzz.pid).children()
    for _ in range(times):
        os.killpg(fuzz.pid, signal.SIGINT)  # as a terminal does
        time.sleep(0.1)
    out, err = fuzz.communicate(timeout=LIMIT_S)
    # The second one may come when all is done, and Python ends by it.
    assert fuzz.returncode == 130 or (times == 2 and fuzz.returncode == -signal.SIGINT)
    assert not any(worker.is_running() for worker in workers)
    if times == 1:
        (held,) = out.splitlines()
        ran = held.split()[2]
        assert held.startswith(f"{ran} of {ran} seeds hold")
        assert err.splitlines()[-1] == f"raytwin: interrupted; {ran} of 100000 seeds were run"


def test_a_killed_fuzz_leaves_no_process(fuzz: subprocess.Popen[str]) -> None:
    workers = psutil.Process(fuzz.pid).children()
    fuzz.kill()
    assert not psutil.wait_procs(workers, timeout=LIMIT_S)[1]


def test_a_process_of_the_fuzz_that_dies_is_an_error(fuzz: subprocess.Popen[str]) -> None:
    first, second = psutil.Process(fuzz.pid).children()
    first.kill()
    _, err = fuzz.communicate(timeout=LIMIT_S)
    assert "BrokenProcessPool: A process in the process pool was terminated" in err.splitlines()[-1]
    assert fuzz.returncode == 1
    assert not second.is_running()


SAVED = "tests/chaos/cases/former_incarnation.json"
BROKEN = """
import sys
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
TaskInputs.take = lambda self, spec, worker, f=TaskInputs.take: (
    None if (found := f(self, spec, worker)) is None else found[::-1])
from raytwin.scenarios.cli.main import app
sys.argv = ["raytwin", "fuzz", "--seeds", "2", "--out", sys.argv[1]]
app(prog_name="raytwin")
"""


def test_a_failing_seed_is_written_and_the_exit_code_is_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    files = sorted(tmp_path.glob("fuzz-*.json"))
    data = json.loads(files[0].read_text())
    assert f"seed {data['seed']} fails" in done.stdout
    assert f"seed {data['seed']} fails with 0 faults and" in done.stdout
    assert data["failures"]
    assert data["steps"] == []
    campaign = read_measurements(tmp_path).campaign
    assert campaign is not None
    assert campaign.failed == len(campaign.failing) == len(files)
    shrunk = {each.file: each.shrunk_to for each in campaign.failing}
    assert shrunk[files[0].name].startswith("0 faults and")
    held = raytwin("replay", str(files[0]))
    assert (held.returncode, held.stdout) == (0, "all holds\n"), held.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nothing.json"], "cannot read nothing.json"),
        (["README.md"], "a case is JSON"),
        ([SAVED, "--backend", "ray"], "there are sim and local"),
        ([SAVED, "--backend", "local", "--trace"], "--trace is for sim"),
    ],
)
def test_replay_with_bad_arguments(args: list[str], says: str) -> None:
    done = raytwin("replay", *args)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_case_is_replayed_in_both_worlds() -> None:
    simulated = raytwin("replay", SAVED, "--trace")
    assert simulated.returncode == 0, simulated.stderr
    assert "fault     " in simulated.stdout and " on node " in simulated.stdout
    real = raytwin("replay", SAVED, "--backend", "local")
    assert (real.returncode, real.stdout) == (0, "all holds\n"), real.stdout + real.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["fig11a", "--nodes", "2"],
        ["fig11a", "--set", "nodes=2"],
        ["fig10a", "--set", "seconds=1", "--set", "kill_s=5"],
    ],
)
def test_scenarios_that_cannot_have_their_faults(args: list[str], tmp_path: Path) -> None:
    done = raytwin("run", *args, "--backend", "sim", "--out", str(tmp_path))
    assert done.returncode == 2, done.stdout + done.stderr
    wrong = [line for line in done.stderr.splitlines() if not line.startswith(args[0])]
    assert len(wrong) == 1, done.stderr


@pytest.mark.parametrize("args", [["--seeds", "0"], ["--seeds", "5", "--jobs", "0"], []])
def test_fuzz_with_bad_arguments(args: list[str]) -> None:
    done = raytwin("fuzz", *args)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_plan_is_applied_to_a_scenario(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"steps": [{"at_s": 0.05, "action": "kill", "target": "worker:0.0"}]}')
    done = raytwin(
        "run", "fig8b", "--backend", "sim", "--nodes", "1", "--set", "tasks=4000",
        "--faults", str(plan), "--out", str(tmp_path / "out"),
    )  # fmt: skip
    result = json.loads((tmp_path / "out" / "fig8b" / "sim" / "result.json").read_text())
    assert any("kill worker:0.0" in line for line in result["findings"]), done.stderr
    events = json.loads((tmp_path / "out" / "fig8b" / "sim" / "timeline.json").read_text())
    found = events["traceEvents"] if isinstance(events, dict) else events
    assert any(event.get("cat") == "fault" for event in found)


def test_checks_that_a_plan_leaves_without_meaning_are_named_and_not_judged() -> None:
    def measured(request: Request) -> Outcome:
        return Outcome([], {}, [
            Check("every value is right", True, under_faults=True),
            Check("as fast as published", False), Check("no node is taken for dead", False),
        ])  # fmt: skip

    scenario = Scenario("measured", "t", "f", ("sim",), measured, "a")
    alone = run_under(None, scenario, Request("sim"))
    assert [check.ok for check in alone.checks] == [True, False, False]
    outcome = run_under(Plan([Step("kill", "node:1", 0.5)]), scenario, Request("sim"))
    own, of_the_plan = outcome.checks
    assert (own.name, own.ok) == ("every value is right", True)
    assert of_the_plan.name == "every step of the fault plan was carried out"
    (said,) = outcome.findings
    assert said.endswith("not judged: as fast as published; no node is taken for dead.")


@pytest.mark.parametrize(
    ("step", "code", "says"),
    [
        ('"at_s": 0.05, "action": "kill", "target": "worker:0.0"', 0, "2 times, in 2 clusters"),
        ('"at_s": 0.05, "action": "kill", "target": "node:77"', 1, "cluster 1: kill node:77"),
        ('"at_s": 5000, "action": "kill", "target": "worker:0.0"', 1, "it was never due"),
        ('"after": "node_died:7", "action": "kill", "target": "worker:0.0"', 1, "it was never due"),
    ],
)
def test_a_plan_that_was_not_carried_out_fails(
    tmp_path: Path, step: str, code: int, says: str
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"steps": [{' + step + "}]}")
    done = raytwin(
        "run", "fig8b", "--backend", "sim", "--nodes", "1", "--set", "tasks=4000",
        "--faults", str(plan), "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    result = json.loads((tmp_path / "out" / "fig8b" / "sim" / "result.json").read_text())
    (check,) = [check for check in result["checks"] if "fault plan" in check["name"]]
    assert says in check["detail"]


def test_a_plan_that_a_scenario_does_not_survive(tmp_path: Path) -> None:
    """It needs the node that is killed: one line says what it waits for in vain."""
    plan = tmp_path / "plan.json"
    plan.write_text('{"steps": [{"at_s": 0.01, "action": "kill", "target": "node:1"}]}')
    done = raytwin(
        "run", "fig8a", "--backend", "sim", "--faults", str(plan), "--out", str(tmp_path / "out")
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "failed" in line]
    assert line.startswith("fig8a on sim failed: RaySystemError: nothing has happened")
    assert line.endswith("(with the fault plan: kill node:1)")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "a plan is an object with a list of steps"),
        ('{"steps": [{"at_s": 1, "action": "kil", "target": "node:1"}]}', "did you mean 'kill'"),
        (
            '{"steps": [{"at_s": 1, "action": "slow_cores", "target": "node:1",'
            ' "parameters": {"factor": 2}}]}',
            "does not work on local",
        ),
    ],
)
def test_a_bad_plan_gets_one_line(text: str, says: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    done = raytwin("run", "fig8b", "--backend", "local", "--faults", str(plan))
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def settings(**changed: Any) -> dict[str, Any]:
    return {**fig11a.SCENARIO.settings("quick", {}), **changed}


def test_figure_11a_in_virtual_time() -> None:
    outcome = fig11a.run(Request("sim", settings=settings()))
    assert all(check.ok for check in outcome.checks), outcome.checks
    assert min(row["nodes"] for row in outcome.rows) == 2
    assert outcome.rows[-1]["nodes"] == 5
    assert sum(row["tasks_again"] for row in outcome.rows) == outcome.metrics["tasks_again"] > 0
    assert sum(event.get("cat") == "fault" for event in outcome.timeline) == 6


def test_figure_11a_on_real_processes() -> None:
    """Right values and a plan that is carried out; rates belong to quiet machines."""
    small = settings(time_factor=0.02, task_ms=20.0, bucket_s=0.1, chains_per_cpu=2)
    outcome = fig11a.run(Request("local", settings=small))
    ok = {check.name: check.ok for check in outcome.checks}
    assert ok["every chain came to what a run without faults comes to"], outcome.checks
    assert ok["every step of the plan was carried out"], outcome.checks
    assert [str(step) for step in fig11a.plan(small).steps] == [
        "kill node:1", "kill node:2", "kill node:3",
        "restart node:1", "restart node:2", "restart node:3",
    ]  # fmt: skip
