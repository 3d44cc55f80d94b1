"""``raytwin whatif``: a script predicted on several clusters, each time in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec

from raytwin.scenarios.cli.progress import Progress
from raytwin.scenarios.core.scenario import UsageError
from raytwin.simulator.cluster.cluster_usage import Usage
from raytwin.simulator.machine.costs import load_profile

_PER_SECOND = {"us": 1e6, "ms": 1e3, "s": 1.0}
_LATENCY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s)")
NO_FAULTS = "none"


@dataclass(frozen=True)
class Choices:
    """What is varied; an empty choice is left to the script and to `raytwin exec`."""

    nodes: Sequence[int] = ()
    latencies: Sequence[str] = ()
    """Of a frame between two hosts, such as ``0.1ms``."""
    policies: Sequence[str] = ()
    faults: Sequence[str] = ()
    """Fault plans; `NO_FAULTS` is none."""


@dataclass(frozen=True)
class Point:
    """A cluster, and what the script is predicted to do there."""

    nodes: int | None
    latency: str | None
    policy: str | None
    faults: str | None
    makespan_s: float
    """Of all clusters that the script starts, together."""
    usage: Usage
    """Of the cluster that the script needed longest."""


def seconds_of(text: str) -> float:
    """Return a latency in seconds. Raises UsageError.

    >>> seconds_of("0.1ms"), seconds_of("20us")
    (0.0001, 2e-05)
    """
    found = _LATENCY.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--latency {text!r} is no time: give a number and us, ms or s, as 0.1ms")
    return float(found[1]) / _PER_SECOND[found[2]]


def predictions(
    script: Path,
    args: Sequence[str],
    choices: Choices,
    options: Sequence[str],
    profile: str,
    progress: Progress,
) -> Iterator[Point]:
    """Predict a script on all combinations of the choices, one after another.

    `options` are of `raytwin exec`, for all of them. Raises UsageError, with the last line that the
    script has printed on standard error, if one fails.
    """
    known = load_profile(profile)
    latencies_s = {text: seconds_of(text) for text in choices.latencies}
    every = list(
        product(
            choices.nodes or (None,),
            choices.latencies or (None,),
            choices.policies or (None,),
            choices.faults or (None,),
        )
    )
    progress.begin(f"predicting {script}", len(every))
    with tempfile.TemporaryDirectory(prefix="raytwin-") as folder:
        written = Path(folder) / "usage.json"
        for nodes, latency, policy, faults in every:
            used = profile
            if latency is not None:
                path = Path(folder) / f"{latency}.json"
                named = msgspec.structs.replace(known, latency_s=latencies_s[latency])
                path.write_bytes(msgspec.json.encode(named))
                used = str(path)
            given = {
                "--nodes": nodes, "--policy": policy, "--profile": used, "--usage": written,
                "--faults": None if faults == NO_FAULTS else faults,
            }  # fmt: skip
            command = [sys.executable, "-m", "raytwin", "exec", "--backend", "sim", *options]
            for name, value in given.items():
                command += [] if value is None else [name, str(value)]
            done = subprocess.run(
                [*command, str(script), *args], capture_output=True, text=True, check=False
            )
            if done.returncode or not written.exists():
                said = done.stderr.strip().splitlines() or ["it has started no cluster"]
                # A summary of what it has done until then is behind its own last line.
                own = [line for line in said if not line.startswith("raytwin: ")]
                ended = [f"its exit code is {done.returncode}"] if written.exists() else said
                said = own or ended
                point = " ".join(str(each) for each in (nodes, latency, policy, faults) if each)
                why = said[-1].removeprefix("raytwin: ")
                raise UsageError(f"{script} failed at {point or 'its own options'}: {why}")
            usages = msgspec.json.decode(written.read_bytes(), type=list[Usage])
            written.unlink()
            makespan_s = sum(usage.makespan_s for usage in usages)
            longest = max(usages, key=lambda usage: usage.makespan_s)
            yield Point(nodes, latency, policy, faults, makespan_s, longest)
            progress.advance()


def rows(points: Sequence[Point]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table; what is not varied has no column."""
    varied = [
        name
        for name in ("nodes", "latency", "policy", "faults")
        if any(getattr(point, name) is not None for point in points)
    ]
    columns = [*varied, "makespan", "of the first", "CPUs reserved", "busiest"]
    table = []
    for point in points:
        shares = point.usage.shares
        name, share = max(shares.items(), key=lambda each: each[1], default=("", 0.0))
        table.append(
            [
                *(str(getattr(point, each)) for each in varied),
                f"{point.makespan_s:.4g} s",
                f"{point.makespan_s / points[0].makespan_s:.3g}" if points[0].makespan_s else "",
                f"{shares.get('cpus', 0.0):.0%}",
                f"{name} {share:.0%}",
            ]
        )
    return columns, table
