"""Run the whole suite in four lanes, which take less time than one after the other.

What is simulated computes all the time and does not mind how fast; what runs on real processes
mostly waits, and what runs beside Ray waits for the start of Ray's daemons. So the first lane has
raytwin's real processes, and what runs beside Ray, which takes longest, is as urgent; the two with
what is simulated have a lower priority and get what these leave of the processors. They are two,
so that the end does not wait for one processor alone. Nothing in these looks at the machine's
processes or its load.

    python -m tests.in_lanes [OPTION of pytest for all...]

Prints what the real lane prints, then what the others have printed, each with pytest's summary at
the end. Exits as pytest does: with the first exit code of the four that is not 0.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

UNDER_FAULTS = ("tests/chaos",)
"""Folders whose tests simulate random programs under faults: they compute all the time."""
SIMULATED = (
    "tests/control",
    "tests/reports",
    "tests/simulator",
    "tests/store",
    "tests/scenarios/test_baselines.py",
    "tests/scenarios/test_fit.py",
)
"""Other folders and files whose tests simulate, or compute: hardly any of them wait."""
NOT_SIMULATED = (
    "tests/chaos/test_command_line.py",
    "tests/chaos/test_minimal_programs.py",
    "tests/chaos/test_injectors.py",
    "tests/chaos/test_link_faults.py",
    "tests/chaos/test_toxiproxy_server.py",
)
"""Files in `UNDER_FAULTS` that start real processes."""
BESIDE_RAY = (
    "tests/actors/test_util.py",
    "tests/examples/test_examples.py",
    "tests/scenarios/test_bench_sides.py",
    "tests/scenarios/test_links_on_ray.py",
    "tests/scenarios/test_on_ray.py",
    "tests/scenarios/test_record_on_ray.py",
    "tests/test_behaves_like_ray.py",
    "tests/test_like_ray.py",
    "tests/test_pages_run.py",
)
"""Files that start Ray, or commands that do."""
NICE = {"what runs beside Ray": 0, "what is simulated": 10, "what is under faults": 10}
"""The lanes behind the real one, and how much each gives way."""
TIMEOUT_S = 900
"""What gets little of the processors may take long."""
LOOK_S = 0.5
NONE_COLLECTED = 5
"""With this pytest exits where no test matches, as may be in one of the lanes."""


def main(args: list[str]) -> int:
    """Run the lanes; return the exit code."""
    pytest = [sys.executable, "-m", "pytest"]
    with contextlib.ExitStack() as stack:
        behind = {}
        for name, nice in NICE.items():
            output = stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(
                # Two writers of one cache would lose what failed last.
                [*pytest, "-p", "no:cacheprovider", f"--timeout={TIMEOUT_S}", *lane(name), *args],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            os.setpriority(os.PRIO_PROCESS, process.pid, nice)
            behind[name] = process, output
        front = subprocess.Popen([*pytest, *lane("what is real"), *args], stdin=subprocess.DEVNULL)
        try:
            codes = [front.wait()]
            for name, (process, output) in behind.items():
                print(f"== {name}: {' '.join(lane(name))}", flush=True)
                codes.append(follow(process, output))
        except KeyboardInterrupt:
            # The terminal has told all of them, which clean up.
            front.wait()
            for process, _ in behind.values():
                process.wait()
            return 128 + signal.SIGINT
    if set(codes) == {NONE_COLLECTED}:
        return NONE_COLLECTED
    return next((each for each in codes if each not in (0, NONE_COLLECTED)), 0)


def lane(name: str) -> list[str]:
    """Return pytest's arguments that select the tests of a lane."""
    if name == "what runs beside Ray":
        return list(BESIDE_RAY)
    if name == "what is simulated":
        return list(SIMULATED)
    if name == "what is under faults":
        return [*UNDER_FAULTS, *(f"--ignore={each}" for each in NOT_SIMULATED)]
    others = (*BESIDE_RAY, *SIMULATED, *UNDER_FAULTS)
    real = [each for each in real_paths() if each not in others]
    files = [each for each in others if Path(each).suffix]
    return [*real, *NOT_SIMULATED, *(f"--ignore={each}" for each in files)]


def real_paths() -> list[str]:
    """Return the folders and files that hold tests, each relative to the working directory."""
    tests = Path("tests")
    paths = [each for each in tests.iterdir() if each.is_dir() and any(each.rglob("test_*.py"))]
    return sorted(map(str, [*paths, *tests.glob("test_*.py")]))


def follow(process: subprocess.Popen[bytes], output: IO[bytes]) -> int:
    """Print what a process has written and writes; return its exit code."""
    at = 0
    while True:
        ended = process.poll() is not None
        block = os.pread(output.fileno(), 1 << 16, at)
        at += len(block)
        sys.stdout.buffer.write(block)
        sys.stdout.flush()
        if not block and ended:
            return process.returncode
        if not block:
            time.sleep(LOOK_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
