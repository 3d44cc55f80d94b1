"""Where `os._exit` and signals to oneself are a simulated process's end, and where Python's own.

What ends the program runs in a process of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

import raytwin as ray


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program on a simulated cluster that has a task `end(status)`."""
    start = (
        "import os, signal, sys, raytwin as ray\n"
        "@ray.remote(max_retries=0)\n"
        "def end(status):\n"
        "    os._exit(status)\n"
        "ray.init(backend='sim', num_cpus=1)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", start + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_program_outlives_its_tasks_and_ends_itself() -> None:
    done = run(
        "try: ray.get(end.remote(3))\n"
        "except ray.exceptions.WorkerCrashedError as error: print(error, flush=True)\n"
        "os._exit(5)\n"
    )
    assert "worker:0.1 died while it ran end: exit code 3" in done.stdout
    assert done.returncode == 5, done.stderr


def test_signals_that_the_program_sends_itself_are_real() -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGABRT):
        assert run(f"os.kill(os.getpid(), {int(number)})").returncode == -number
    assert run("os.abort()").returncode == -signal.SIGABRT
    assert run("signal.raise_signal(signal.SIGTERM)").returncode == -signal.SIGTERM


def test_a_forked_child_ends_itself_alone() -> None:
    @ray.remote
    def forks() -> int:
        child = os.fork()
        if not child:
            os._exit(6)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    ray.init(backend="sim", num_cpus=1)
    assert ray.get(forks.remote()) == 6


def test_a_further_driver_ends_itself_alone() -> None:
    def program() -> None:
        ray.get(wait.remote())
        after.append(ray.now())
        os._exit(2)

    @ray.remote
    def wait() -> None:
        ray.sleep(1)

    after: list[Any] = []
    session: Any = ray.init(backend="sim", num_cpus=1)
    driver = session.cluster.run_driver(program)
    assert driver.wait() is None
    assert len(after) == 1
    ray.get(wait.remote())
    ended = [event for event in session.query("events") if event[1] == "job_ended"]
    assert [(name, why) for _, _, name, why, _ in ended] == [
        (f"job {driver.job}", "its driver is gone (exit code 2)")
    ]


def test_a_handled_signal_is_the_real_process_s() -> None:
    @ray.remote(max_retries=0)
    def handles() -> list[int]:
        came: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
        os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
        return came

    ray.init(backend="sim", num_cpus=1)
    assert ray.get(handles.remote()) == [signal.SIGTERM]


def test_the_time_that_the_task_has_used_passes_first() -> None:
    @ray.remote(max_retries=0)
    def works() -> None:
        for _ in range(2):
            ray.compute(0.5)
        os._exit(1)

    ray.init(backend="sim", num_cpus=1)
    began_s = ray.now()
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(works.remote())
    assert ray.now() - began_s >= 1.0
