"""``raytwin whatif``: a program predicted on several clusters, each time in a process of its own.

The program is a script or a recording. Besides the makespans it finds what they come to:

- what a node or the head that dies costs (`deaths`): it is killed at half of the makespan;
- what each cluster costs at a price per node and hour;
- the **knee** of the curve of makespans over nodes, after Eager, Zahorjan and Lazowska ("Speedup
  versus efficiency in parallel systems", IEEE Transactions on Computers 38(3), 1989): where
  efficiency over execution time is greatest. Efficiency goes as 1 / (nodes x makespan), so it is
  where nodes x makespan^2 is least; where that is on the most nodes asked for, it is not reached;
- which policy wins;
- where local schedulers decide near their threshold: the makespans with a lower and a higher one
  (`Side`);
- how far the predictions are from this machine (`measure`): the same clusters on real processes,
  all nodes on one host, several times, each time in fresh clusters. A machine's speed may change
  within minutes, so where bodies cost what they take on it, each measurement has a prediction of
  its own, made right before.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Generic, TypeVar

import msgspec

from raytwin.reports.numbers import short
from raytwin.reports.what_if import Page, Table
from raytwin.runtime.control.scheduling.near_threshold import ThresholdTally
from raytwin.scenarios.cli.machine_use import MachineUse
from raytwin.scenarios.cli.progress import Progress
from raytwin.scenarios.cli.record import SUMMARY
from raytwin.scenarios.core.near_threshold import milliseconds, near
from raytwin.scenarios.core.scenario import UsageError
from raytwin.simulator.cluster.cluster_usage import Usage
from raytwin.simulator.machine.costs import load_profile

_Used = TypeVar("_Used")
_PER_SECOND = {"us": 1e6, "ms": 1e3, "s": 1.0}
_LATENCY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s)")
NO_FAULTS = "none"
HEAD = "head"
HOUR_S = 3600.0
SAME = 0.01
"""Makespans that differ by no more than this share of them are the same to a user."""
KNEE_MIN = 3
"""Of fewer sizes a curve has no knee."""
EXEC = (sys.executable, "-m", "raytwin", "exec")
QUIET = 0.05
"""Of the cores: so much that others use does not change what is measured by more than that."""
ACCURATE_S = 0.01
"""Accuracy is promised first where bodies of tasks and calls take so long or longer."""


@dataclass(frozen=True)
class Choices:
    """The clusters and plans that `whatif` varies.

    The program and `raytwin exec` decide what is empty.
    """

    nodes: Sequence[int] = ()
    latencies: Sequence[str] = ()
    """Of a frame between two hosts, such as ``0.1ms``."""
    policies: Sequence[str] = ()
    faults: Sequence[str] = ()
    """Fault plans; `NO_FAULTS` is none."""


@dataclass(frozen=True)
class Side:
    """A prediction with another threshold."""

    spill_wait_s: float
    makespan_s: float | None
    """None: the program failed."""
    failed: str = ""
    """Why it did."""

    def __str__(self) -> str:
        with_ = f"with {milliseconds(self.spill_wait_s)}"
        if self.makespan_s is None:
            return f"{with_} the program fails ({self.failed})"
        return f"{with_} the makespan is {self.makespan_s:.4g} s"


@dataclass(frozen=True)
class Point:
    """A cluster, and what the program is predicted to do there."""

    nodes: int | None
    latency: str | None
    policy: str | None
    faults: str | None
    makespan_s: float
    """Of all clusters that the script starts, together."""
    usage: Usage
    """Of the cluster that the script needed longest."""
    cost: float | None = None
    """In the unit of the price."""
    measured_s: tuple[float, ...] = ()
    """Makespans on this machine, of all clusters of the script together; empty: not measured."""
    predicted_s: tuple[float, ...] = ()
    """Of each of these, what was predicted for it; `makespan_s` is the median."""
    others_share: float = 0.0
    """Of this machine's cores, in the median measurement: what else ran meanwhile."""
    sides: tuple[Side, ...] = ()
    """With a threshold that is lower, and one that is higher; empty: no wait is near it."""
    threshold: ThresholdTally = field(default_factory=ThresholdTally)
    """Of the script's cluster that is nearest to it."""
    body_s: float | None = None
    """Mean time of the bodies of tasks and calls, of all clusters together, see `Usage.bodies_s`;
    None: none has ended."""

    @property
    def errors(self) -> list[float]:
        """How far each measurement's prediction is from it, as a part of it; signed."""
        pairs = zip(self.predicted_s, self.measured_s, strict=True)
        return [predicted_s / measured_s - 1 for predicted_s, measured_s in pairs]

    @property
    def error(self) -> float | None:
        """The median of `errors`."""
        return median(self.errors) if self.errors else None


@dataclass(frozen=True)
class Death:
    """A prediction of the program with a node or the head killed at half of its makespan."""

    where: str
    """Which cluster, by what is varied."""
    killed: str
    """``node 3`` or `HEAD`."""
    makespan_s: float | None
    """None: the program has failed."""
    slower: float | None
    """By which share of the undisturbed makespan."""
    failed: str = ""
    """The last line of the error."""


@dataclass
class Found:
    """All that was predicted."""

    points: list[Point] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)


def seconds_of(text: str) -> float:
    """Return a latency in seconds. Raises UsageError.

    >>> seconds_of("0.1ms"), seconds_of("20us")
    (0.0001, 2e-05)
    """
    found = _LATENCY.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--latency {text!r} is no time: give a number and us, ms or s, as 0.1ms")
    return float(found[1]) / _PER_SECOND[found[2]]


class _Runs(Generic[_Used]):
    """Runs `raytwin exec` of one program, each time in a process of its own.

    `kind` is of what it writes with ``--usage``.
    """

    def __init__(
        self, command: Sequence[str], program: Sequence[str], folder: Path, kind: type[_Used]
    ) -> None:
        self._command = command
        self._program = program
        self._written = folder / "usage.json"
        self._kind = kind

    def run(self, options: Mapping[str, object]) -> tuple[list[_Used], str]:
        """Return the usages of its clusters, and why it has failed: "" if it has not."""
        self._written.unlink(missing_ok=True)
        command = [*self._command, "--usage", str(self._written)]
        for name, value in options.items():
            command += [] if value is None else [name, str(value)]
        done = subprocess.run(
            [*command, *self._program], capture_output=True, text=True, check=False
        )
        written = self._written.exists()
        rows = msgspec.json.decode(self._written.read_bytes(), type=list) if written else []
        usages = [msgspec.convert(row, self._kind) for row in rows]
        if not done.returncode and written:
            return usages, ""
        said = done.stderr.strip().splitlines() or ["it has started no cluster"]
        # A summary of what it has done until then is behind its own last line.
        own = [line for line in said if not line.startswith("raytwin: ")]
        ended = [f"its exit code is {done.returncode}"] if written else said
        return usages, (own or ended)[-1].removeprefix("raytwin: ")


def predict(
    program: Path,
    args: Sequence[str],
    choices: Choices,
    options: Sequence[str],
    profile: str,
    progress: Progress,
    price: float | None = None,
    victims: Callable[[Usage], Sequence[int]] | None = None,
) -> Found:
    """Predict a program on all combinations of the choices, one after another.

    `options` are of `raytwin exec`, for all of them; `price` is of a node for an hour. With
    `victims`, which returns the nodes that stand for all kinds of them, each combination without a
    fault plan is predicted with one of these dead, and with a dead head. Raises UsageError, with
    the last line that the program has printed on standard error, if one fails undisturbed.
    """
    if victims is not None and not choices.nodes:
        raise UsageError(
            "--deaths compares runs on clusters of one size: give --nodes, such as --nodes 4"
        )
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
    found = Found()
    progress.begin(f"predicting {program}", len(every))
    with tempfile.TemporaryDirectory(prefix="raytwin-") as folder:
        command = [*EXEC, "--backend", "sim", *options]
        runs = _Runs(command, [str(program), *args], Path(folder), Usage)
        for nodes, latency, policy, faults in every:
            used = profile
            if latency is not None:
                path = Path(folder) / f"{latency}.json"
                named = msgspec.structs.replace(known, latency_s=latencies_s[latency])
                path.write_bytes(msgspec.json.encode(named))
                used = str(path)
            given = {
                "--nodes": nodes, "--policy": policy, "--profile": used,
                "--faults": None if faults == NO_FAULTS else faults,
            }  # fmt: skip
            usages, failed = runs.run(given)
            where = _where(nodes, latency, policy, faults)
            if failed:
                raise UsageError(f"{program} failed at {where or 'its own options'}: {failed}")
            makespan_s = _makespan_s(usages)
            longest = max(usages, key=lambda usage: usage.makespan_s)
            threshold = max((usage.threshold for usage in usages), key=lambda each: each.share)
            sides = _sides(runs, given, threshold) if threshold.is_near else ()
            tasks = sum(usage.tasks for usage in usages)
            body_s = sum(usage.bodies_s for usage in usages) / tasks if tasks else None
            cost = None
            if price is not None:
                cost = price * sum(each.nodes * each.makespan_s for each in usages) / HOUR_S
            found.points.append(
                Point(
                    nodes,
                    latency,
                    policy,
                    faults,
                    makespan_s,
                    longest,
                    cost,
                    sides=sides,
                    threshold=threshold,
                    body_s=body_s,
                )
            )
            if victims is not None and given["--faults"] is None:
                if len(usages) > 1:
                    raise UsageError(
                        f"--deaths is of one cluster, and {program} has started {len(usages)}"
                    )
                killed: list[int | str] = [*victims(longest), HEAD]
                for victim in killed:
                    found.deaths.append(_death(runs, given, where, victim, makespan_s, folder))
            progress.advance()
    return found


def _makespan_s(usages: Sequence[Usage]) -> float:
    return sum(usage.makespan_s for usage in usages)


def _sides(
    runs: _Runs[Usage], given: Mapping[str, object], threshold: ThresholdTally
) -> tuple[Side, ...]:
    """Predict a program again with a lower threshold and with a higher one."""
    sides = []
    for wait_s in threshold.sides_s:
        usages, failed = runs.run({**given, "--spill-wait-s": wait_s})
        sides.append(Side(wait_s, None if failed else _makespan_s(usages), failed))
    return tuple(sides)


def _where(*choices: object) -> str:
    """Return a cluster's name: what is chosen for it."""
    return " ".join(str(each) for each in choices if each)


def check_measurable(choices: Choices, profile: str) -> None:
    """Raise UsageError if predictions of these choices could not be measured on this machine."""
    if choices.latencies:
        raise UsageError("--measure runs all nodes on this machine: leave --latency out")
    cores, known = os.cpu_count(), load_profile(profile)
    if known.cores != cores or not profile.endswith(".json"):
        raise UsageError(
            f"--measure compares with this machine, which has {cores} cores, and the profile"
            f" {profile} is of {known.name}, with {known.cores}: give --profile FILE, which"
            " 'raytwin calibrate' writes"
        )


def record(
    program: Path, args: Sequence[str], nodes: int | None, cpus: int | None, output: Path
) -> None:
    """Record a script on this machine, as `raytwin record` does. Raises UsageError if it fails."""
    given = {"--output": output, "--nodes": nodes, "--cpus-per-node": cpus}
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    command = [sys.executable, "-m", "raytwin", "record", *options, str(program), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line and not line.startswith(SUMMARY)]
        said = said or [f"its exit code is {done.returncode}"]
        raise UsageError(f"{program} failed as it was recorded: {said[-1]}")


def measure(
    program: Path,
    args: Sequence[str],
    points: Sequence[Point],
    predict_anew: Callable[[], Sequence[Point]] | None,
    options: Sequence[str],
    repeats: int,
    progress: Progress,
) -> list[Point]:
    """Return the points with what the program takes on real processes of this machine.

    It runs on all clusters in turn, and so `repeats` times: what changes on the machine meanwhile
    changes all of them. `predict_anew` returns the points of each repeat but the first; None: they
    stay as they are. Returned are the points of the median predictions. `options` are of `raytwin
    exec`, for all of them. Raises UsageError, with the last line that the program has printed on
    standard error, if it fails.
    """
    uses: list[list[MachineUse]] = [[] for _ in points]
    predicted: list[Sequence[Point]] = []
    with tempfile.TemporaryDirectory(prefix="raytwin-") as folder:
        command = [*EXEC, "--backend", "local", "--address", "local", *options]
        runs = _Runs(command, [str(program), *args], Path(folder), MachineUse)
        for number in range(repeats):
            if number and predict_anew is not None:
                points = predict_anew()
            if not number or predict_anew is not None:
                for line in predictions(points):
                    progress.say(line)
            predicted.append(points)
            progress.begin(f"measuring {program}, {number + 1} of {repeats}", len(points))
            for point, used in zip(points, uses, strict=True):
                faults = None if point.faults == NO_FAULTS else point.faults
                given = {"--nodes": point.nodes, "--policy": point.policy, "--faults": faults}
                found, failed = runs.run(given)
                if failed:
                    where = _where(point.nodes, point.policy, point.faults)
                    raise UsageError(f"{program} failed at {where or 'its own options'}: {failed}")
                used.append(
                    MachineUse(
                        sum(each.makespan_s for each in found),
                        sum(each.own_cpu_s for each in found),
                        sum(each.others_cpu_s for each in found),
                    )
                )
                progress.advance()
    cores = os.cpu_count() or 1
    return [
        replace(
            sorted(mine, key=lambda point: point.makespan_s)[(repeats - 1) // 2],
            measured_s=tuple(each.makespan_s for each in used),
            predicted_s=tuple(point.makespan_s for point in mine),
            others_share=median(each.others_cpu_s / each.makespan_s / cores for each in used),
        )
        for mine, used in zip(zip(*predicted, strict=True), uses, strict=True)
    ]


def _death(
    runs: _Runs[Usage],
    given: Mapping[str, object],
    where: str,
    victim: int | str,
    makespan_s: float,
    folder: str,
) -> Death:
    """Predict a program again, with a node or the head killed at half of its makespan.

    A head that comes back has a storage, which changes the makespan a little: the undisturbed
    program gets it, too.
    """
    target = HEAD if victim == HEAD else f"node:{victim}"
    if victim == HEAD:
        # On sim no file is written.
        given = {**given, "--gcs-storage": Path(folder) / "gcs.sqlite3"}
        usages, failed = runs.run(given)
        if failed:
            raise UsageError(f"it failed at {where}, with --gcs-storage: {failed}")
        makespan_s = _makespan_s(usages)
    plan = Path(folder) / "death.json"
    step = {"at_s": makespan_s / 2, "action": "kill", "target": target}
    plan.write_text(json.dumps({"steps": [step]}))
    usages, failed = runs.run({**given, "--faults": plan})
    killed = target.replace(":", " ")
    if failed:
        return Death(where, killed, None, None, failed)
    took_s = _makespan_s(usages)
    return Death(where, killed, took_s, took_s / makespan_s - 1)


# -- what it comes to ---------------------------------------------------------------


def varied(points: Sequence[Point]) -> list[str]:
    """Return the names of what is varied."""
    return [
        name
        for name in ("nodes", "latency", "policy", "faults")
        if any(getattr(point, name) is not None for point in points)
    ]


def label(point: Point, names: Iterable[str]) -> str:
    """Return a point's values of some of what is varied, for a curve or a sentence."""
    return ", ".join(str(getattr(point, name)) for name in names)


def curves(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Return the points by what is varied besides the number of nodes, each by its nodes."""
    names = [name for name in varied(points) if name != "nodes"]
    found: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda point: point.usage.nodes):
        found.setdefault(label(point, names), []).append(point)
    return found


def knee(points: Sequence[Point]) -> Point | None:
    """Return the knee of a curve, see the module; None if that is not reached, or has too few
    sizes.

    >>> times_s = {1: 100.0, 10: 12.0, 100: 9.0}
    >>> usages = [Usage(time_s, nodes, 0, 0, 0, 0, {}) for nodes, time_s in times_s.items()]
    >>> found = knee([Point(None, None, None, None, each.makespan_s, each) for each in usages])
    >>> found.usage.nodes if found else None
    10
    """
    sizes = {point.usage.nodes for point in points}
    if len(sizes) < KNEE_MIN:
        return None
    at = min(points, key=lambda point: point.usage.nodes * point.makespan_s**2)
    return None if at.usage.nodes == max(sizes) else at


def findings(found: Found) -> list[str]:
    """Return what the predictions come to, a sentence each."""
    points = found.points
    said = []
    for name, curve in curves(points).items():
        at, last = knee(curve), curve[-1]
        of = f" for {name}" if name else ""
        if at is not None:
            said.append(
                f"The knee{of} is at {_nodes(at)}, where nodes x makespan^2 is least"
                f" (Eager, Zahorjan and Lazowska 1989): {at.makespan_s:.4g} s there,"
                f" {last.makespan_s:.4g} s on {_nodes(last)}."
            )
        elif len(curve) >= KNEE_MIN:
            said.append(f"The knee{of} is not reached with {_nodes(last)}.")
    said += _cheapest(points) + _winner(points) + _near(points) + _worst(found.deaths)
    said.append(errors(points) if points[0].measured_s else accuracy(points))
    return said


def _nodes(point: Point) -> str:
    count = point.usage.nodes
    return f"{count:,} nodes" if count != 1 else "1 node"


def _cheapest(points: Sequence[Point]) -> list[str]:
    priced = [(point.cost, number) for number, point in enumerate(points) if point.cost is not None]
    if len(priced) < 2:
        return []
    cost, number = min(priced)
    return [f"The least cost is {cost:.4g}, for {label(points[number], varied(points))}."]


def _winner(points: Sequence[Point]) -> list[str]:
    """Return which policy wins, over all of what else is varied."""
    by_rest: dict[tuple[object, ...], dict[str, float]] = {}
    for point in points:
        if point.policy is not None:
            rest = point.nodes, point.latency, point.faults
            by_rest.setdefault(rest, {})[point.policy] = point.makespan_s
    names = list(dict.fromkeys(point.policy for point in points if point.policy is not None))
    if len(names) < 2:
        return []
    behind = {
        name: [each[name] / min(each.values()) - 1 for each in by_rest.values()] for name in names
    }
    if max(max(each) for each in behind.values()) <= SAME:
        return [f"No policy wins: their makespans differ by {SAME:.0%} at most."]
    first, second, *_ = sorted(names, key=lambda name: median(behind[name]))
    wins = sum(behind[first][at] == 0.0 for at in range(len(by_rest)))
    lead = median(each[second] / each[first] - 1 for each in by_rest.values())
    of = f" on {wins} of {len(by_rest)} clusters" if len(by_rest) > 1 else ""
    return [f"{first} wins{of}: {second}, the next, takes {lead:.1%} longer in the median."]


def _near(points: Sequence[Point]) -> list[str]:
    """Return where a prediction depends on the policy's threshold, with both sides."""
    names = varied(points)
    said = []
    for each in points:
        if each.sides:
            at = f" at {label(each, names)}" if names else ""
            sides = ", ".join(map(str, each.sides))
            said.append(f"Near a threshold{at}: {near(each.threshold)}; {sides}.")
    return said


def _worst(deaths: Sequence[Death]) -> list[str]:
    said = [
        f"The program does not survive the death of {each.killed}"
        f"{f' at {each.where}' if each.where else ''}."
        for each in deaths
        if each.failed
    ]
    late = [(each.slower, number) for number, each in enumerate(deaths) if each.slower is not None]
    if late:
        slower, number = max(late)
        worst = deaths[number]
        at = f" at {worst.where}" if worst.where else ""
        said.append(f"The death that costs most of those survived is of {worst.killed}{at}:"
                    f" {slower:+.1%} of the makespan.")  # fmt: skip
    return said


def errors(points: Sequence[Point]) -> str:
    """Return how far the predictions are from what was measured."""
    found = [abs(point.error) for point in points if point.error is not None]
    others = max(point.others_share for point in points)
    anew = any(len(set(point.predicted_s)) > 1 for point in points)
    own = ", each of which is compared with its own prediction" if anew else ""
    said = (
        f"The predictions are {median(found):.1%} off in the median, {max(found):.1%} at most, of"
        f" {len(points[0].measured_s)} runs in fresh clusters. An error is the median over the"
        f" runs{own}; in brackets are the least and the most."
    )
    if others > QUIET:
        said += (
            f" Something else had up to {others:.0%} of the cores meanwhile: measure again on an"
            " idle machine."
        )
    return said


def accuracy(points: Sequence[Point]) -> str:
    """Return what bodies take in the mean, and how far predictions of programs with such bodies
    were off where they were measured.

    The cluster with the shortest bodies decides, as the errors are larger there. tests/test_docs.py
    compares the numbers with docs/measured.md.
    """
    means_s = [point.body_s for point in points if point.body_s is not None]
    if not means_s:
        return "No task or call has ended: nothing that was measured says how far this is off."
    least, most = short(min(means_s), "s"), short(max(means_s), "s")
    taken = least if least == most else f"{least} to {most}, by cluster,"
    if min(means_s) >= ACCURATE_S:
        measured = (
            "Accuracy is promised first for 10 ms or more: of four such scripts in docs/measured.md"
            " (How close, for a script), on 1, 2 and 4 nodes of one machine, the predictions were"
            " 1.9 to 13.3 % off, each a median, right after a calibration, and 0.1 to 25.1 % on"
            " another day."
        )
    else:
        measured = (
            "Below 10 ms no accuracy is promised: of the small programs in docs/measured.md (How"
            " close, for programs that the calibration has not seen), on one machine, groups were"
            " 9 to 13 % off in the median, and the worst makespan 29 %."
        )
    return (
        f"Bodies of tasks and calls take {taken} in the mean. {measured} Elsewhere errors may be"
        " others: --measure compares with this machine."
    )


def predictions(points: Sequence[Point]) -> list[str]:
    """Return the makespans that are predicted, a line each."""
    names = varied(points)
    return [
        f"predicted{f' at {label(each, names)}' if names else ''}: {each.makespan_s:.4g} s"
        for each in points
    ]


def rows(points: Sequence[Point]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table; what is not varied has no column."""
    names = varied(points)
    knees = [at for curve in curves(points).values() if (at := knee(curve)) is not None]
    priced = any(point.cost is not None for point in points)
    measured = any(point.measured_s for point in points)
    columns = [*names, "makespan"]
    columns += ["measured", "error", "others"] if measured else []
    columns += ["of the first", "CPUs reserved", "busiest"]
    columns += ["cost"] if priced else []
    columns += [""] if knees else []
    table = []
    for point in points:
        shares = point.usage.shares
        name, share = max(shares.items(), key=lambda each: each[1], default=("", 0.0))
        row = [
            *(str(getattr(point, each)) for each in names),
            f"{point.makespan_s:.4g} s",
            *(_measured(point) if measured else ()),
            f"{point.makespan_s / points[0].makespan_s:.3g}" if points[0].makespan_s else "",
            f"{shares.get('cpus', 0.0):.0%}",
            f"{name} {share:.0%}",
        ]
        row += [f"{point.cost:.4g}" if point.cost is not None else ""] if priced else []
        row += ["knee" if point in knees else ""] if knees else []
        table.append(row)
    return columns, table


def _measured(point: Point) -> tuple[str, str, str]:
    """Return the median with the least and the most, the error, and the share of others."""
    times_s = point.measured_s
    interval = f"{median(times_s):.4g} s [{min(times_s):.4g}, {max(times_s):.4g}]"
    errors = f"{point.error:+.1%} [{min(point.errors):+.0%}, {max(point.errors):+.0%}]"
    return interval, errors, f"{point.others_share:.0%}"


def death_rows(deaths: Sequence[Death]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the table of deaths."""
    table = [
        [
            each.where,
            each.killed,
            "fails" if each.makespan_s is None else f"{each.makespan_s:.4g} s",
            each.failed if each.slower is None else f"{each.slower:+.1%}",
        ]
        for each in deaths
    ]
    return ["cluster", "killed at half", "makespan", "of the undisturbed one"], table


def page(program: str, command: str, found: Found) -> Page:
    """Return what the page of the report shows."""
    tables = [Table("Clusters", *rows(found.points))]
    if found.deaths:
        note = (
            "Killed at half of the undisturbed makespan. A head comes back if the GCS has a"
            " storage, which both runs have then."
        )
        tables.append(Table("What a death costs", *death_rows(found.deaths), note))
    lines = {
        name: [(point.usage.nodes, point.makespan_s) for point in curve]
        for name, curve in curves(found.points).items()
    }
    return Page(program, command, findings(found), tables, lines)
