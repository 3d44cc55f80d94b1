"""Programs that join a cluster of real processes, each in a process that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.processes.helpers import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import os, signal, sys, time
import raytwin as ray
session = ray.init(address=os.environ["CLUSTER"], namespace=os.environ.get("NAMESPACE"))

@ray.remote
def f(x=0, seconds=0):
    time.sleep(seconds)
    return x

@ray.remote
class Counter:
    def __init__(self, value=0):
        self.value = value
    def add(self, x=1):
        self.value += x
        return self.value
    def pid(self):
        return os.getpid()

@ray.remote
def pid():
    return os.getpid()

def say(*values):
    print(*values, flush=True)
"""
"""What all of them begin with."""


class Joined:
    """A program that joins a cluster, in a process of its own."""

    def __init__(self, session: Any, script: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "CLUSTER": session.cluster_address,
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Return the next line that it prints; fail with its errors if there is none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, errors = self.process.communicate(timeout=LIMIT_S)
            raise AssertionError(f"it ended with {self.process.returncode}: {errors}")
        return line.strip()

    def tell(self, text: str) -> None:
        """Give it a line to read."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Wait for its end; return what it still says."""
        said, errors = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, errors
        return said.strip()
