"""``python -m raytwin.scenarios.peers.simgrid_bag``: our simulator beside SimGrid.

Both simulate the same bag of singly submitted tasks on the same number of nodes, in turn, each time
in a process of its own, and both programs are Python. SimGrid's actors are an abstract master and
its workers; raytwin runs the whole control plane for each task: placement, leases, GCS, results.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path

from raytwin.scenarios.peers import PeerError

PROGRAM = Path(__file__).with_name("simgrid_program.py")
_OURS = """
import json, sys, time
import raytwin as ray
tasks, nodes = map(int, sys.argv[1:])
ray.init(backend="sim", nodes=nodes, cpus_per_node=2)
f = ray.remote(lambda number: number)
began_s = time.perf_counter()
done = ray.get([f.remote(number) for number in range(tasks)])
print(json.dumps({"tasks_per_s": tasks / (time.perf_counter() - began_s), "done": len(set(done))}))
"""


@cache
def interpreter() -> str | None:
    """Return an interpreter that has SimGrid's bindings; None if none is found."""
    for python in (sys.executable, shutil.which("python3"), "/usr/bin/python3"):
        if python and Path(python).exists():
            command = [python, "-c", "import simgrid"]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return python
    return None


def missing() -> str:
    """Return what to install; empty if SimGrid is there."""
    if interpreter() is not None:
        return ""
    how = "apt-get install python3-simgrid, or pip install 'raytwin[simgrid]'"
    return f"SimGrid is not installed: {how}"


def simgrid_per_s(tasks: int, nodes: int) -> float:
    """Return how many tasks SimGrid simulates in a second of wall clock."""
    return _rate([str(interpreter()), str(PROGRAM)], tasks, nodes)


def ours_per_s(tasks: int, nodes: int) -> float:
    """Return how many tasks raytwin simulates in a second of wall clock."""
    return _rate([sys.executable, "-c", _OURS], tasks, nodes)


def _rate(command: list[str], tasks: int, nodes: int) -> float:
    ended = subprocess.run(
        [*command, str(tasks), str(nodes)], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        last = (ended.stderr.strip() or "it said nothing").splitlines()[-1]
        raise PeerError(f"{Path(command[-1]).name[:40]!r} failed: {last}")
    found = json.loads(ended.stdout.splitlines()[-1])
    if found["done"] != tasks:
        raise PeerError(f"{found['done']} of {tasks} tasks came back")
    return float(found["tasks_per_s"])


def main(given: list[str]) -> int:
    """Compare the two; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m raytwin.scenarios.peers.simgrid_bag", description=__doc__
    )
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(given)
    if min(asked.tasks, asked.nodes, asked.rounds) < 1:
        parser.error("--tasks, --nodes and --rounds have to be above 0")
    if lacking := missing():
        print(lacking, file=sys.stderr)
        return 2
    ours, theirs = [], []
    for number in range(asked.rounds):
        try:
            ours.append(ours_per_s(asked.tasks, asked.nodes))
            theirs.append(simgrid_per_s(asked.tasks, asked.nodes))
        except PeerError as error:
            print(error, file=sys.stderr)
            return 1
        print(
            f"round {number + 1} of {asked.rounds}: raytwin {ours[-1]:,.0f} tasks/s,"
            f" SimGrid {theirs[-1]:,.0f}",
            flush=True,
        )
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    print(
        f"{asked.tasks:,} tasks on {asked.nodes:,} nodes, medians:"
        f" raytwin {statistics.median(ours):,.0f} tasks/s,"
        f" SimGrid {statistics.median(theirs):,.0f}:"
        f" {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
