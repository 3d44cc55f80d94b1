"""``python -m raytwin.scenarios.measure.simulation_speed``: how fast the simulator itself is.

Each load runs in a process of its own, one after the other in each round:

- singly submitted tasks on 100 nodes, as many on 1,000 (strong scaling), and as many for each of
  1,000 (weak scaling);
- the start of 10,000 nodes and a bag of tasks on them, with the process's peak of memory;
- tasks submitted as arrays, by a program on each of 100 nodes.

Nodes have 2 CPUs, for arrays 64 as the paper's had; every result is waited for. What is printed is
wall clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import NamedTuple

_PROGRAM = """
import json, resource, sys, time
began_s = time.perf_counter()
import raytwin as ray
nodes, tasks, window = map(int, sys.argv[1:])
session = ray.init(backend="sim", nodes=nodes, cpus_per_node=64 if window else 2)
started_s = time.perf_counter()
if window:
    from raytwin.scenarios.workloads.programs import bag_of_tasks
    before = session.cluster.tasks
    bag_of_tasks(nodes, tasks, window, False)
    done = session.cluster.tasks - before - 10 * nodes  # each node had a few before
else:
    f = ray.remote(lambda number: None)
    done = len(ray.get([f.remote(number) for number in range(tasks)]))
ended_s = time.perf_counter()
print(json.dumps({
    "done": done,
    "start_s": started_s - began_s,
    "tasks_s": ended_s - started_s,
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
"""


class Load(NamedTuple):
    """A bag of tasks on a simulated cluster."""

    nodes: int
    tasks: int
    window: int = 0
    """Tasks of an array; 0: none is in one."""


LOADS = (
    Load(100, 100_000),
    Load(1_000, 100_000),
    Load(1_000, 1_000_000),
    Load(10_000, 100_000),
    Load(100, 100_000_000, 40_000),
)


class Speed(NamedTuple):
    """One run of a load used so much wall clock and, at its peak, so much memory."""

    start_s: float
    tasks_s: float
    peak_bytes: int


def measure(load: Load) -> Speed:
    """Run a load in a process of its own. Raises RuntimeError if it fails, or loses a task."""
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(str, load)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode:
        last = (ended.stderr.strip() or "it said nothing").splitlines()[-1]
        raise RuntimeError(f"{described(load)} failed: {last}")
    found = json.loads(ended.stdout.splitlines()[-1])
    if found.pop("done") != load.tasks:
        raise RuntimeError(f"{described(load)}: tasks were lost")
    return Speed(**found)


def described(load: Load) -> str:
    """Say in a few words what a load is."""
    how = "as arrays" if load.window else "singly submitted"
    return f"{load.tasks:,} tasks {how} on {load.nodes:,} nodes"


def main(given: list[str]) -> int:
    """Measure all loads; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m raytwin.scenarios.measure.simulation_speed", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of nodes and tasks, at most 1")
    asked = parser.parse_args(given)
    if asked.rounds < 1 or not 0 < asked.scale <= 1:
        parser.error("--rounds has to be above 0, and --scale above 0 and at most 1")
    loads = [scaled(load, asked.scale) for load in LOADS]
    found: list[list[Speed]] = [[] for _ in loads]
    for number in range(asked.rounds):
        for load, speeds in zip(loads, found, strict=True):
            try:
                speeds.append(measure(load))
            except RuntimeError as error:
                print(error, file=sys.stderr)
                return 1
            print(
                f"round {number + 1} of {asked.rounds}: {described(load)}:"
                f" {speeds[-1].start_s + speeds[-1].tasks_s:.1f} s",
                flush=True,
            )
    print(f"medians of {asked.rounds}:")
    for load, speeds in zip(loads, found, strict=True):
        start_s, tasks_s, peak = map(statistics.median, zip(*speeds, strict=True))
        print(
            f"{described(load)}: {load.tasks / tasks_s:,.0f} tasks/s; start {start_s:.1f} s,"
            f" tasks {tasks_s:.1f} s, {peak / 1e9:.2f} GB at most"
        )
    base, *others = zip(loads[:3], found[:3], strict=True)  # the first three of `LOADS`
    for (load, speeds), how in zip(others, ("strong", "weak"), strict=True):
        ratios = [
            (load.tasks / many.tasks_s) / (base[0].tasks / few.tasks_s)
            for few, many in zip(base[1], speeds, strict=True)
        ]
        print(
            f"{how} scaling: with {load.nodes:,} nodes {statistics.median(ratios):.2f} of the speed"
            f" with {base[0].nodes:,} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    return 0


def scaled(load: Load, scale: float) -> Load:
    """Return a smaller load."""
    nodes, tasks = (max(1, int(scale * each)) for each in load[:2])
    return Load(nodes, tasks, load.window)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
