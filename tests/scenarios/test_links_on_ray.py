"""Faults of links between nodes of Ray's: what they slow, hold back and lose, and who may not."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from raytwin.runtime.on_ray import ray_session
from raytwin.runtime.on_ray.node_network import PROGRAMS
from raytwin.scenarios.core.scenario import Silent
from raytwin.scenarios.figures.slow_network import LOADS
from raytwin.scenarios.measure import runner
from tests.ray_programs_with_slow_links import BYTES_PER_S, DELAY_S, NBYTES
from tests.requirements import require, require_namespaces

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600
DELAY_MS = 60.0
BURST_S = 0.2
"""How much earlier than its rate allows a value may arrive: sockets and proxies hold some of it."""
UNPRIVILEGED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 21)  # PR_CAPBSET_DROP, CAP_SYS_ADMIN: what runs next lacks it
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


UP = """
import sys
from raytwin.chaos.faults.proxied_links import proxied
from raytwin.runtime.on_ray.ray_cluster import RayCluster
with proxied("ray"):
    RayCluster([{"CPU": 1.0}] * 2)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def ray_installed() -> None:
    require("ray", importlib.util.find_spec("ray") is not None, ray_session.INSTALL)


@pytest.fixture
def namespaces(ray_installed: None) -> None:
    require_namespaces()


@pytest.mark.ray
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.usefixtures("namespaces")
def test_links_between_nodes_of_ray_are_slow_stall_break_and_heal(tmp_path: Path) -> None:
    written, devices = tmp_path / "found.json", os.listdir("/sys/class/net")
    done = subprocess.run(
        [sys.executable, "-m", "tests.ray_programs_with_slow_links", str(written)], cwd=ROOT,
        env=ray_session.environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(written.read_text())
    assert found["errors"] == []
    assert found["one way"] >= DELAY_S
    assert found["both ways"] >= 2 * DELAY_S
    assert found["healed"] < found["one way"]
    assert found["narrow"] >= NBYTES / BYTES_PER_S - BURST_S
    assert found["wide"] < found["narrow"]
    for action in ("stall", "cut"):
        assert not found[action], "it was answered by way of a link that passes nothing"
        assert found[f"after {action}"]
    assert found["after reset"]
    assert found["to a new node"] >= DELAY_S
    assert found["restarted"] < found["to a new node"]
    assert os.listdir("/sys/class/net") == devices


def network_of(pid: int) -> str:
    """Return the network namespace of a process; "" if it has ended, or is another user's."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except (FileNotFoundError, PermissionError):
        return ""


@pytest.mark.ray
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.usefixtures("namespaces")
def test_sigkill_of_a_driver_leaves_no_process_in_its_networks() -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", UP], cwd=ROOT, env=ray_session.environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert driver.stdout is not None
    while driver.stdout.readline() != "up\n":
        assert driver.poll() is None
    started = psutil.Process(driver.pid).children(recursive=True)
    networks = {network_of(each.pid) for each in started} - {network_of(os.getpid())}
    assert len(networks) == 3, "two nodes have one each, and the proxies"
    driver.kill()
    driver.communicate()
    _, left = psutil.wait_procs(started, timeout=60)
    assert not left
    assert not networks & {network_of(pid) for pid in psutil.pids()}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.usefixtures("namespaces")
def test_every_load_waits_for_the_delays_of_a_slow_network_of_ray(tmp_path: Path) -> None:
    given = {"delays_ms": f"0,{DELAY_MS:g}", "tasks": "20"}
    (job,) = runner.plan(["slow-network"], ["ray"], given=given)
    done = runner.run_one(job, tmp_path, None, Silent())
    assert done.result is not None, done.error + done.trace
    assert all(check.ok for check in done.result.record.checks), done.result.record.checks
    elapsed_s = {(row["load"], row["delay_ms"]): row["elapsed_s"] for row in done.result.rows}
    for load in LOADS:
        more_s = elapsed_s[load, DELAY_MS] - elapsed_s[load, 0.0]
        assert more_s > 1.9 * DELAY_MS / 1000, load


@pytest.mark.usefixtures("ray_installed")
@pytest.mark.parametrize(
    ("lacks", "said"),
    [("programs", "install iproute2, which has the program ip"),
     ("privileges", "only root may make one")],
)  # fmt: skip
def test_who_cannot_make_namespaces_is_told_so_in_one_line(
    lacks: str, said: str, tmp_path: Path
) -> None:
    if lacks == "privileges" and not all(map(shutil.which, PROGRAMS)):
        pytest.skip("the programs are missing, which is said first")
    path = str(tmp_path) if lacks == "programs" else os.environ["PATH"]
    run = ["-m", "raytwin", "run", "slow-network", "--backend", "ray", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, *run],
        cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("raytwin: ")]
    assert said in line
    assert "Traceback" not in done.stderr
