"""`raytwin whatif`: a script predicted on several clusters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raytwin.scenarios.cli.what_if import Point, rows, seconds_of
from raytwin.scenarios.core.scenario import UsageError
from raytwin.simulator.cluster.cluster_usage import Usage

LIMIT_S = 60.0

SCRIPT = """
import sys, time
import ray

@ray.remote(max_retries=-1)
def nap():
    time.sleep(1)

ray.init()
print(len(ray.get([nap.remote() for _ in range(int(sys.argv[1]))])))
"""


def what_if(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "raytwin", "whatif", *args], cwd=folder,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_more_nodes_shorten_and_faults_lengthen_the_makespan(tmp_path: Path) -> None:
    done = what_if(
        tmp_path, "--nodes", "3,12", "--faults", "none,spot", "--cpus-per-node", "2", "--cost",
        "declared", "--json", "script.py", "24",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    points: list[dict[str, Any]] = json.loads(done.stdout)
    makespans_s = {(each["nodes"], each["faults"]): each["makespan_s"] for each in points}
    assert 4 <= makespans_s[3, "none"] < 4.5
    assert 1 <= makespans_s[12, "none"] < 1.5
    assert makespans_s[3, "spot"] > makespans_s[3, "none"] + 0.5
    assert [round(each["usage"]["cpus"]) for each in points][::2] == [6, 24]
    assert points[0]["usage"]["tasks"] == 24


def test_a_latency_is_that_of_the_links_between_hosts(tmp_path: Path) -> None:
    done = what_if(
        tmp_path, "--nodes", "2", "--latency", "1us,400ms", "--policy", "random",
        "--cpus-per-node", "1", "--cost", "declared", "script.py", "2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    header, fast, slow = (line.split() for line in done.stdout.splitlines())
    assert header[:4] == ["nodes", "latency", "policy", "makespan"]
    assert (fast[:3], slow[:3]) == (["2", "1us", "random"], ["2", "400ms", "random"])
    assert float(slow[3]) > float(fast[3]) + 0.4, "a task was placed over the link"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--nodes", "0"], "--nodes '0' is no cluster size"),
        (["--latency", "3"], "--latency '3' is no time: give a number and us, ms or s, as 0.1ms"),
        (["--policy", "randon"], "did you mean 'random'?"),
        (["--nodes", "2"], "script.py failed at 2: IndexError: list index out of range"),
    ],
)
def test_what_cannot_be_predicted_gets_one_line(tmp_path: Path, args: list[str], said: str) -> None:
    done = what_if(tmp_path, *args, "script.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr.splitlines()[-1]


def test_a_latency_is_a_number_with_a_unit() -> None:
    assert [seconds_of(text) for text in ("0.5ms", "20us", "2 s", ".5s")] == [5e-4, 2e-5, 2, 0.5]
    for text in ("", "ms", "1h", "-1ms"):
        with pytest.raises(UsageError):
            seconds_of(text)


def test_the_table_has_columns_of_what_is_varied_alone() -> None:
    usage = Usage(2.0, 1, 4.0, 8, 0, 0, {"cpus": 0.5, "driver": 0.75})
    columns, table = rows([Point(1, None, None, None, 2.0, usage)] * 2)
    assert columns == ["nodes", "makespan", "of the first", "CPUs reserved", "busiest"]
    assert table == [["1", "2 s", "1", "50%", "driver 75%"]] * 2


def test_exec_refuses_an_unknown_policy_before_the_script_begins(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('runs')")
    done = subprocess.run(
        [sys.executable, "-m", "raytwin", "exec", "--policy", "randon", "script.py"],
        cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "random" in line
