"""Run the whole suite in two lanes, which take less time than one after the other.

What is simulated computes all the time and does not mind how fast; what runs on real processes
mostly waits. So the first runs beside the second, with a lower priority: it gets what the other
lane leaves of the processors. Nothing of it starts a cluster or looks at the machine's processes.

    python -m tests.in_lanes [OPTION of pytest for both...]

Prints what the real lane prints, then what the simulated one has printed, each with pytest's
summary at the end. Exits as pytest does: with the first exit code of the two that is not 0.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

SIMULATED = ("tests/chaos", "tests/control", "tests/simulator")
NOT_SIMULATED = (
    "tests/chaos/test_command_line.py",
    "tests/chaos/test_found.py",
    "tests/chaos/test_injectors.py",
)
"""Files in those folders that start real processes."""
NICE = 10
TIMEOUT_S = 900
"""What gets little of the processors may take long."""
LOOK_S = 0.5
NONE_COLLECTED = 5
"""With this pytest exits where no test matches, as may be in one of the lanes."""


def main(args: list[str]) -> int:
    """Run both lanes; return the exit code."""
    pytest = [sys.executable, "-m", "pytest"]
    simulated = [f"--ignore={each}" for each in NOT_SIMULATED] + list(SIMULATED)
    real = [each for each in real_paths() if each not in SIMULATED] + list(NOT_SIMULATED)
    with tempfile.TemporaryFile() as output:
        behind = subprocess.Popen(
            # Two writers of one cache would lose what failed last.
            [*pytest, "-p", "no:cacheprovider", f"--timeout={TIMEOUT_S}", *simulated, *args],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        os.setpriority(os.PRIO_PROCESS, behind.pid, NICE)
        front = subprocess.Popen([*pytest, *real, *args], stdin=subprocess.DEVNULL)
        try:
            code = front.wait()
            print(f"== what is simulated: {' '.join(SIMULATED)}", flush=True)
            other = follow(behind, output)
        except KeyboardInterrupt:
            # The terminal has told both, which clean up.
            front.wait()
            behind.wait()
            return 128 + signal.SIGINT
    if {code, other} == {NONE_COLLECTED}:
        return NONE_COLLECTED
    return next((each for each in (code, other) if each not in (0, NONE_COLLECTED)), 0)


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
