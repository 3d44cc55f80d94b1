"""`raytwin exec --faults` and `raytwin plan`: a script under a plan, with a recovery summary."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raytwin.chaos.faults import plan_schema
from raytwin.chaos.faults.plan_files import ready_plans
from raytwin.chaos.toxiproxy.toxiproxy_process import INSTALL, NOT_INSTALLED, find_server
from raytwin.reports.measurements import read_measurements
from tests.requirements import require

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 100.0

PLAN = """\
steps:
  - {name: loss, at_s: 1, action: kill, target: "node:1"}
  - {after: "node_died:1", delay_s: 0.3, action: restart, target: "node:1"}
  - {after: loss, delay_s: 0.2, action: kill, target: "actor:0"}
  - {after: loss, delay_s: 0.2, action: kill, target: "node:0"}
  - {at_s: 1000, action: kill, target: "node:1"}
expect:
  - {metric: nodes_died, equals: 1}
  - {metric: actors_restarted, min: 1}
  - {metric: actors_died, equals: 0}
  - {metric: calls_replayed, min: 1}
  - {metric: tasks_retried, min: 1}
  - {metric: faults_failed, equals: 1}
  - {metric: faults_not_due, equals: 1}
  - {metric: errors, equals: 1}
  - {metric: detection_max_s, max: 5}
  - {metric: after_tasks_per_s, min: 0.001, relative_to: before_tasks_per_s}
  - {metric: after_latency_p99_ms, min: 0}
"""

COUNTER = """
@ray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=0, resources={"node:0": 0.01})
class Counter:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count
"""
SCRIPT = """
import sys
import ray

ray.init()

@ray.remote(max_retries=-1)
def double(x):
    ray.sleep(0.02)
    return 2 * x

@ray.remote(max_retries=0, resources={"node:1": 0.01})
def long():
    ray.sleep(60)

@ray.remote(max_retries=-1, resources={"node:1": 0.01})
def again():
    ray.sleep(1.2)
    return "again"

{COUNTER}
counter, lost, kept, begin = Counter.remote(), long.remote(), again.remote(), ray.now()
rounds = 0
while ray.now() < begin + 4:
    rounds += 1
    assert ray.get([double.remote(i) for i in range(20)]) == [2 * i for i in range(20)]
    assert ray.get(counter.add.remote()) == rounds
assert ray.get(kept) == "again"
try:
    ray.get(lost)
except ray.exceptions.RayError as error:
    print("lost")
sys.exit(int(sys.argv[1]))
""".replace("{COUNTER}", COUNTER)


def raytwin(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raytwin", *args],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def run(
    folder: Path, plan: str, script: str, *options: str, code: str = "0"
) -> subprocess.CompletedProcess[str]:
    (folder / "plan.yaml").write_text(plan)
    (folder / "script.py").write_text(script)
    return raytwin(
        "exec", "--faults", str(folder / "plan.yaml"), *options, str(folder / "script.py"), code
    )


@pytest.mark.parametrize("backend", ["sim", "local"])
def test_a_script_survives_a_plan_and_says_how(tmp_path: Path, backend: str) -> None:
    survives(tmp_path, backend)


def survives(tmp_path: Path, backend: str, options_of_init: str = "", noticed: str = "0") -> None:
    """Run the script under the plan, and check what it prints and what is said of it.

    The death of a node is to be `noticed` after so many whole seconds.
    """
    script = SCRIPT.replace("ray.init()", f"ray.init({options_of_init})")
    summary = tmp_path / "recovery-script.json"
    options = ("--backend", backend, "--cpus-per-node", "2", "--json", str(summary))
    done = run(tmp_path, PLAN, script, *options)
    assert (done.returncode, done.stdout) == (0, "lost\n"), done.stderr
    err = done.stderr
    assert re.search(
        rf"1\.\d+ s  kill node:1: noticed after {noticed}\.\d+ s, node_died node:1", err
    )
    assert re.search(r"kill node:0: not possible: node 0 is the driver's own", err)
    assert re.search(r"not due +kill node:1", err)
    assert re.search(r"\d s  (worker_died worker:0\.|actor_restarting Counter)", err)
    assert re.search(r"errors that reached the program: 1 \w+Error", err)
    assert err.count("  holds expected") == PLAN.count("metric"), err
    assert "FAILS" not in err
    (script,) = read_measurements(tmp_path).scripts
    (cluster,) = script.clusters
    assert (script.script, script.backend, script.exit_code) == ("script.py", backend, 0)
    (noticed,) = [step for step in cluster.steps if step.noticed == "node_died node:1"]
    assert noticed.noticed_s is not None
    assert noticed.noticed_s > 0
    assert [check.ok for check in cluster.checks] == [True] * PLAN.count("metric")
    assert cluster.numbers["nodes_died"] == 1


def test_a_script_that_is_not_as_expected_fails(tmp_path: Path) -> None:
    plan = (
        'steps: [{at_s: 0.1, action: kill, target: "node:1"}]\n'
        "expect: [{metric: nodes_died, equals: 0}, {metric: nodes, min: 1}]\n"
    )
    script = "import ray, sys\nray.init()\nray.sleep(0.5)\nsys.exit(int(sys.argv[1]))\n"
    done = run(tmp_path, plan, script, "--backend", "sim")
    assert done.returncode == 1
    assert "FAILS expected nodes_died = 0: nodes_died is 1" in done.stderr
    assert "FAILS expected nodes ≥ 1: no metric 'nodes'" in done.stderr
    assert run(tmp_path, plan, script, "--backend", "sim", code="7").returncode == 7


SHORT = "import ray, sys\nray.init()\nray.sleep(0.5)\nsys.exit(int(sys.argv[1]))\n"


@pytest.mark.parametrize(
    ("step", "code", "says"),
    [
        ('{at_s: 0.1, action: kill, target: "replica:0.1"}', 1, "the GCS has no chain 0"),
        ("{at_s: 0.1, action: kill, target: head}", 1, "kill head: without gcs_storage"),
        ('{at_s: 100, action: kill, target: "node:1"}', 1, "kill node:1: it was never due"),
        ("{at_s: 100, action: heal, target: cluster}", 0, "not due     heal cluster"),
    ],
)
def test_a_plan_that_was_not_carried_out_fails(
    tmp_path: Path, step: str, code: int, says: str
) -> None:
    """A fault has to come; where it was not ended, the script was under it all the same."""
    done = run(tmp_path, f"steps: [{step}]", SHORT, "--backend", "sim", "--nodes", "2")
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert ("the plan was not carried out" in done.stderr) == bool(code)


def test_a_plan_without_a_cluster_fails(tmp_path: Path) -> None:
    done = run(tmp_path, 'steps: [{at_s: 0, action: kill, target: "node:1"}]', "import ray\n")
    assert done.returncode == 1
    assert "the script has started no cluster" in done.stderr


@pytest.mark.parametrize(("value", "code"), [(3120, 0), (3121, 1)])
def test_a_plan_expects_the_value_that_a_script_prints(
    tmp_path: Path, value: int, code: int
) -> None:
    plan = f"steps: []\nexpect: [{{metric: printed, equals: {value}}}]"
    script = "import ray\nray.init()\nprint('2 more lines')\nprint('the ledger has', '3,120.')\n"
    done = run(tmp_path, plan, script, "--backend", "sim")
    assert (done.returncode, done.stdout) == (code, "2 more lines\nthe ledger has 3,120.\n")
    assert f"expected printed = {value:,}: printed is 3,120" in done.stderr


def test_an_exception_looks_as_ever_and_the_summary_follows(tmp_path: Path) -> None:
    plan = 'steps: [{at_s: 0.1, action: kill, target: "node:1"}]'
    script = "import ray\nray.init()\nray.sleep(0.5)\nraise KeyError('k')\n"
    done = run(tmp_path, plan, script, "--backend", "sim")
    assert done.returncode == 1
    assert re.search(r"(?s)KeyError: 'k'\nraytwin: recovery summary\nfaults:", done.stderr)


def test_a_cluster_that_does_not_answer_is_said_to(tmp_path: Path) -> None:
    plan = "steps: [{at_s: 0.1, action: pause, target: head}]"
    done = run(tmp_path, plan, "import ray\nray.init()\nray.sleep(0.5)\n", "--backend", "local")
    assert "the cluster could not be asked how it recovered: no answer within" in done.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["exec", "--faults", "none.yaml", "x.py"], "cannot read plan none.yaml"),
        (["exec", "--faults", "sopt", "x.py"], "did you mean 'spot'?"),
        (["exec", "--faults", "spot", "--nodes", "2", "x.py"], "give --nodes 3 or more"),
        (["exec", "--faults", "spot", "--address", "auto", "x.py"], "leave --address out"),
        (["exec", "--faults", "slow-disk", "x.py"], "disk_slow node:1 does not work on local"),
        (["run", "fig11b", "--faults", "slow-disk"], "disk_slow node:1 does not work on local"),
        (["plan", "sopt"], "did you mean 'spot'?"),
        (["plan", "--schema", "spot"], "leave spot out"),
    ],
)
def test_what_cannot_be_gets_one_line(args: list[str], says: str) -> None:
    done = raytwin(*args)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_plan_is_printed_as_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = raytwin("plan", "spot")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1. At 1 s, kill nodes 1 and 2 (step 'taken').",
        "2. 5 s after step 'taken', start nodes 1 and 2 again, empty.",
        "It needs 3 nodes or more at its start.",
        "sim can carry it out.",
        "local can carry it out.",
        "docker can carry it out.",
        "ray can carry it out.",
    ]
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("TOXIPROXY_SERVER", raising=False)
    monkeypatch.setenv("GOBIN", "/nowhere")
    *_, last = raytwin("plan", "flaky-link").stdout.splitlines()
    assert last == f"{NOT_INSTALLED}."
    assert "go install github" in last
    monkeypatch.setenv("TOXIPROXY_SERVER", "/nowhere/server")
    for command in (["plan", "flaky-link"], ["exec", "--faults", "flaky-link", "script.py"]):
        done = raytwin(*command)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("raytwin: TOXIPROXY_SERVER is /nowhere/server, which is no program")
    assert raytwin("plan", "--schema").stdout == plan_schema.FILE.read_text(encoding="utf-8")
    listed = raytwin("plan").stdout
    for name in ("spot", "rolling", "flaky-link", "partition", "slow-disk", "split-brain"):
        assert re.search(rf"(?m)^{name} +\w.*\.$", listed)


SLOW_LINK = (
    'steps: [{at_s: 0.01, action: latency, target: "link:0>1", parameters: {latency_ms: 2}}]\n'
)
TWO_CLUSTERS = """
import ray

for _ in range(2):
    ray.init(nodes=2)
    ray.sleep(0.1)
    ray.shutdown()
"""


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real Toxiproxy server is nowhere."""
    monkeypatch.delenv("TOXIPROXY_SERVER", raising=False)
    for name in ("GOBIN", "PATH"):
        monkeypatch.setenv(name, str(tmp_path))


@pytest.mark.usefixtures("no_server")
def test_a_script_is_told_once_that_raytwins_own_server_breaks_its_links(tmp_path: Path) -> None:
    done = run(tmp_path, SLOW_LINK, TWO_CLUSTERS, "--backend", "local")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines().count(f"raytwin: {NOT_INSTALLED}") == 1
    assert "Toxiproxy" not in run(tmp_path, SLOW_LINK, TWO_CLUSTERS, "--backend", "sim").stderr


def slow_network(out: Path) -> tuple[str, dict[str, str]]:
    """Return what a scenario with slow links printed on stderr, and its result's versions."""
    done = raytwin(
        "run", "slow-network", "--backend", "local", "--set", "delays_ms=0,2", "--set", "tasks=20",
        "--out", str(out),
    )  # fmt: skip
    result = json.loads((out / "slow-network" / "local" / "result.json").read_text())
    return done.stderr, result["versions"]


@pytest.mark.usefixtures("no_server")
def test_a_result_through_raytwins_own_server_says_so(tmp_path: Path) -> None:
    printed, versions = slow_network(tmp_path)
    assert printed.splitlines().count(f"raytwin: {NOT_INSTALLED}") == 1
    assert versions["toxiproxy"].startswith("raytwin's own 2.12.0+raytwin.")


@pytest.mark.toxiproxy
def test_a_result_through_the_real_server_says_so(tmp_path: Path) -> None:
    require("toxiproxy", find_server() is not None, INSTALL)
    printed, versions = slow_network(tmp_path)
    assert NOT_INSTALLED not in printed
    assert versions["toxiproxy"].startswith("toxiproxy-server ")


def test_a_result_without_links_names_no_server(tmp_path: Path) -> None:
    raytwin("run", "slow-network", "--backend", "sim", "--out", str(tmp_path))
    result = json.loads((tmp_path / "slow-network" / "sim" / "result.json").read_text())
    assert "toxiproxy" not in result["versions"]


def test_a_scenario_is_held_to_the_numbers_of_the_summary(tmp_path: Path) -> None:
    """As a script is: each of its clusters, but for those that had ended before the plan did."""
    (tmp_path / "plan.yaml").write_text(
        'steps: [{at_s: 0.05, action: kill, target: "worker:0.0"}]\n'
        "expect:\n"
        "  - {metric: workers_died, equals: 1}\n"
        "  - {metric: undetected, equals: 0}\n"
        "  - {metric: after_tasks_per_s, min: 0.1, relative_to: before_tasks_per_s}\n"
        "  - {metric: errors, max: 1000}\n"
    )
    done = raytwin(
        "run", "fig8b", "--backend", "sim", "--nodes", "1", "--set", "tasks=4000",
        "--faults", str(tmp_path / "plan.yaml"), "--out", str(tmp_path),
    )  # fmt: skip
    result = json.loads((tmp_path / "fig8b" / "sim" / "result.json").read_text())
    expected = [check for check in result["checks"] if check["name"].startswith("expected")]
    assert all(check["ok"] for check in expected), expected
    assert {"expected workers_died = 1", "expected undetected = 0"} <= {
        check["name"] for check in expected
    }
    assert done.returncode == 0, done.stdout


def test_what_a_scenario_is_expected_to_be_is_checked(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(
        '{"steps": [{"at_s": 0.01, "action": "pause", "target": "worker:0.0"},\n'
        ' {"at_s": 0.02, "action": "resume", "target": "worker:0.0"}],\n'
        ' "expect": [{"metric": "nothing", "min": 0}]}'
    )
    done = raytwin(
        "run", "fig8b", "--backend", "sim", "--nodes", "1", "--set", "tasks=1000",
        "--faults", str(tmp_path / "plan.json"), "--out", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 1
    assert "FAILS expected nothing ≥ 0: no metric 'nothing'" in " ".join(done.stdout.split())


STEADY = """
import ray

ray.init()

@ray.remote(max_retries=-1)
def double(x):
    ray.sleep(0.05)
    return 2 * x

{COUNTER}
counter, rounds, begin = Counter.remote(), 0, ray.now()
while ray.now() < begin + {lasts_s}:
    rounds += 1
    assert ray.get([double.remote(i) for i in range(16)]) == [2 * i for i in range(16)]
    assert ray.get(counter.add.remote()) == rounds
""".replace("{COUNTER}", COUNTER)
READY = {
    # By name of a plan that is ready: how long it takes, and how many nodes die of it.
    "spot": (7, 2),
    "rolling": (6, 2),
    "flaky-link": (6, 0),
    "partition": (12, 1),
    "split-brain": (12, 2),
}
SPILLING = """
import ray

ray.init(object_store_memory=8_000_000)

@ray.remote(resources={"node:1": 0.01})
def block(n):
    return bytes([n]) * 1_000_000

rounds, begin = 0, ray.now()
while ray.now() < begin + 14:
    blocks = [block.remote(n) for n in range(16)]
    ray.wait(blocks, num_returns=16, fetch_local=False)
    for n, ref in enumerate(blocks):
        assert ray.get(ref)[0] == n
        ray.sleep(0.02)
    rounds += 1
print(rounds)
"""


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "sim") for name in READY), ("split-brain", "local")]
)
def test_a_program_outlives_each_plan_that_is_ready(
    tmp_path: Path, name: str, backend: str
) -> None:
    lasts_s, died = READY[name]
    script, summary = tmp_path / "script.py", tmp_path / "recovery-ready.json"
    script.write_text(STEADY.replace("{lasts_s}", str(lasts_s)))
    done = raytwin(
        "exec", "--faults", name, "--backend", backend, "--nodes", "4",
        "--json", str(summary), str(script),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (script_run,) = read_measurements(tmp_path).scripts
    (cluster,) = script_run.clusters
    found = cluster.numbers
    assert found["nodes_died"] == died, done.stderr
    assert found["faults_failed"] == found["faults_not_due"] == found["errors"] == 0, done.stderr


def test_a_program_that_spills_waits_for_the_disk_of_the_plan_slow_disk(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SPILLING)
    command = ("exec", "--backend", "sim", "--nodes", "2", str(tmp_path / "script.py"))
    fast, slow = raytwin(*command), raytwin("exec", "--faults", "slow-disk", *command[1:])
    assert slow.returncode == fast.returncode == 0, slow.stderr
    assert int(slow.stdout) < int(fast.stdout) / 2


def test_each_ready_plan_has_a_program_here() -> None:
    assert {*READY, "slow-disk"} == {*ready_plans()}
