"""Says which branches of the control plane the fuzz reaches: `make coverage`.

Each core runs a part of the seeds under coverage.py; findings are printed, and do not end it. It
exits with 1 if the share of the branches is below `LEAST`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

START = 500_000
FINDINGS = 1
"""The exit code of a part that has found something."""
LEAST = 0.9
"""The share of the branches that the fuzz has to reach."""


def main() -> None:
    """Run the seeds, and print each file's branches that no seed has reached."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_coverage", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_500)
    parser.add_argument("--least", type=float, default=LEAST, help="the share that suffices")
    parser.add_argument("--out", type=Path, default=Path("results"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for old in given.out.glob(".coverage*"):
        old.unlink()
    coverage = [sys.executable, "-m", "coverage"]
    fuzz = ["-m", "raytwin", "fuzz", "--jobs", "1"]
    cores = min(os.cpu_count() or 1, given.seeds)
    bounds = [START + given.seeds * core // cores for core in range(cores + 1)]
    parts = [
        subprocess.Popen(
            # In folders of their own, lest each overwrite the summary of the other.
            [
                *coverage,
                "run",
                *fuzz,
                "--out",
                str(given.out / f"coverage-{begin}"),
                "--seeds",
                str(end - begin),
                "--start",
                str(begin),
            ]
        )
        for begin, end in pairwise(bounds)
    ]
    codes = {part.wait() for part in parts}
    if not codes <= {0, FINDINGS}:
        sys.exit("a part of the seeds did not run: its share would be of fewer seeds")
    found = given.out / "coverage.json"
    subprocess.run([*coverage, "combine", "--quiet"], check=True)
    subprocess.run([*coverage, "json", "--quiet", "-o", str(found)], check=True)
    subprocess.run([*coverage, "report", "--skip-covered", "--show-missing"], check=True)
    sys.exit(judge(json.loads(found.read_bytes())["totals"], given.least))


def judge(totals: Mapping[str, int], least: float) -> int:
    """Print the share of the branches that was reached; return 1 if it does not suffice, else 0."""
    share = totals["covered_branches"] / totals["num_branches"]
    print(f"{totals['covered_branches']} of {totals['num_branches']} branches, {share:.1%}")
    if share < least:
        print(f"too few: {least:.0%} have to be reached", file=sys.stderr)
    return int(share < least)


if __name__ == "__main__":
    main()
