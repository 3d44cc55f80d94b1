"""Companions of peers: they answer, their errors are a line, and they leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from raytwin.scenarios.peers import PeerError
from raytwin.scenarios.peers.companion import Companion

PROGRAM = "tests.scenarios.companion_programs"
PATIENCE_S = 60.0


def gone(pid: int) -> bool:
    """Whether a process ends within patience."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_answers_come_in_the_order_of_requests() -> None:
    with Companion(PROGRAM) as companion:
        for what in ("first", {"second": [1, 2.5]}):
            companion.send(do="echo", what=what)
        time.sleep(1.0)  # Both answers are there by now, most likely.
        assert companion.receive() == "first"
        assert companion.receive() == {"second": [1, 2.5]}


def test_an_error_is_one_line_and_the_companion_goes_on() -> None:
    with Companion(PROGRAM) as companion:
        with pytest.raises(PeerError) as caught:
            companion.ask(do="fail")
        assert str(caught.value) == "companion_programs: ValueError: no such thing"
        assert companion.ask(do="echo", what=1) == 1


def test_a_companion_that_ends_is_told_from_by_its_last_words() -> None:
    with Companion(PROGRAM) as companion, pytest.raises(PeerError, match="the last words"):
        companion.ask(do="end")


def test_a_module_that_there_is_not_is_one_line() -> None:
    with Companion("no_such_module") as companion, pytest.raises(PeerError) as caught:
        companion.ask(do="echo")
    assert "No module named no_such_module" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_answer_in_time_is_an_error() -> None:
    with (
        Companion(PROGRAM, timeout_s=0.2) as companion,
        pytest.raises(PeerError, match=r"no answer in 0\.2 s"),
    ):
        companion.receive()


def test_what_a_companion_started_is_gone_with_it() -> None:
    with Companion(PROGRAM) as companion:
        child = companion.ask(do="child")
        assert psutil.pid_exists(child)
    assert gone(child)
    assert gone(companion.process.pid)


def test_a_companion_leaves_when_the_scenario_was_killed() -> None:
    code = (
        "import time\n"
        "from raytwin.scenarios.peers.companion import Companion\n"
        f"with Companion('{PROGRAM}') as companion:\n"
        "    print(companion.ask(do='pid'), flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as scenario:
        assert scenario.stdout is not None
        pid = int(scenario.stdout.readline())
        os.kill(scenario.pid, signal.SIGKILL)
        assert gone(pid)
