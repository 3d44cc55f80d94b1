"""What the gate of ``raytwin bench --against`` is worth: false alarms, and what it finds.

It takes long, so it is a program and not a test; `tests/scenarios/test_gate.py` has what is pure.
In a clone of the repository it measures

- ``--same N``: the commit against itself, N times; no comparison may accuse anything;
- ``--burns N``: a commit whose dispatcher computes for 5 % of the CPU that one task of
  `tasks_1000` costs in all processes of a cluster, once per task, N times; each has to be found;
- ``--sleeps N``: one that sleeps, once per task, for 5 % of the time that `tasks_sync` takes.

The time of a task and of the loop that burns are measured first, as the gate does: their lowest.

    python -m tests.gate_proof --same 20 --burns 1 --sleeps 1 --out results/gate

Exits with 1 for a false alarm, or if something was not found. Every comparison's file is in DIR.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import timeit
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DISPATCHER = Path("runtime/control/local_scheduler/dispatcher.py")
PER_TASK = "    def _made(self, spec: TaskSpec, owner: str) -> None:\n"
PART = 0.05
CASES = "tasks_sync,tasks_1000,actor_1000,sim:tasks_1000,sim:actor_1000"


def main() -> int:
    """Measure, and say what was found; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    for what in ("same", "burns", "sleeps"):
        parser.add_argument(f"--{what}", type=int, default=0, metavar="N")
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--rounds", type=int, default=36)
    parser.add_argument("--out", type=Path, default=Path("results/gate"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="raytwin-proof-") as folder:
        clone = Path(folder) / "raytwin"
        git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(clone))

        def gate(name: str) -> list[str]:
            return compared(clone, asked.out / f"{name}.json", asked.cases, asked.rounds)

        for number in range(asked.same):
            found = gate(f"same-{number}")
            wrong += bool(found)
            say(f"same {number + 1} of {asked.same}: {', '.join(found) or 'nothing accused'}")
        slower = {}
        if asked.burns:
            loops = round(PART * cost_s(clone, "tasks_1000", "cpu") / loop_s())
            slower["burns"] = f"        for _ in range({loops}):\n            pass\n"
        if asked.sleeps:
            sleep_s = PART * cost_s(clone, "tasks_sync", "time")
            slower["sleeps"] = f"        __import__('time').sleep({sleep_s:.3g})\n"
        for what, lines in slower.items():
            say(f"{what}, once per task: {' '.join(lines.split())}")
            change(clone, lines)
            for number in range(getattr(asked, what)):
                found = gate(f"{what}-{number}")
                wrong += not found
                say(f"{what} {number + 1}: {', '.join(found) or 'NOT FOUND'}")
            git(clone, "checkout", "--quiet", "HEAD", str(DISPATCHER))
    return 1 if wrong else 0


def say(text: str) -> None:
    """Print a line at once, with the machine's load."""
    print(f"{text} (load {os.getloadavg()[0]:.1f})", flush=True)


def git(folder: Path, *words: str) -> None:
    """Run git in `folder`."""
    subprocess.run(["git", "-C", str(folder), *words], check=True)


def change(clone: Path, lines: str) -> None:
    """Have the dispatcher of the clone do `lines` for each task that has ended."""
    path = clone / DISPATCHER
    old = path.read_text()
    before, after = old.split(PER_TASK)
    first, rest = after.split("\n", 1)
    path.write_text(f"{before}{PER_TASK}{first}\n{lines}{rest}")


def compared(clone: Path, file: Path, cases: str, rounds: int) -> list[str]:
    """Measure the clone, as it is, against its commit; return what was accused."""
    file.unlink(missing_ok=True)
    with subprocess.Popen(
        [sys.executable, "-m", "raytwin", "bench", "--against", "HEAD", "--cases", cases,
         "--rounds", str(rounds), "--json", str(file.absolute())],
        cwd=clone, env=environment(clone), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        try:
            _, stderr = process.communicate()
        except KeyboardInterrupt:
            process.wait()  # Ctrl-C is for it, too: it cleans up.
            raise
    if not file.exists():
        raise RuntimeError(f"the gate exits with {process.returncode}: {stderr}")
    rows = json.loads(file.read_text())["rows"]
    accused = [f"{r['name']} ({r['statistic']})" for r in rows if r["verdict"] == "slower"]
    assert process.returncode == int(bool(accused)), stderr
    return accused


def cost_s(clone: Path, case: str, statistic: str) -> float:
    """Return what a unit of `case` costs at the least, as the gate's rounds see it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "costs.json"
        compared(clone, file, case, rounds=6)
        rows = json.loads(file.read_text())["rows"]
    (row,) = [row for row in rows if row["statistic"] == statistic]
    return float(min(row["old_s"]))


def loop_s() -> float:
    """Return what one turn of an empty loop costs at the least."""
    turns = 1_000
    program = f"for _ in range({turns}): pass"
    return min(timeit.repeat(program, number=20, repeat=200)) / 20 / turns


def environment(clone: Path) -> dict[str, str]:
    """Return the environment in which the clone's raytwin is the one that is imported."""
    return {**os.environ, "PYTHONPATH": str(clone)}


if __name__ == "__main__":
    sys.exit(main())
