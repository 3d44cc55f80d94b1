"""Rounds, medians, ratios: from sides to rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

import psutil

from raytwin.scenarios.bench.cases import CASES, FRESH, Case, Fresh
from raytwin.scenarios.bench.conversation import Conversation
from raytwin.scenarios.bench.engines import ENGINES, OURS
from raytwin.scenarios.bench.files import measured_on, write
from raytwin.scenarios.bench.peers import check_peers
from raytwin.scenarios.bench.trees import ROOT, commit_of
from raytwin.scenarios.core.scenario import Progress, UsageError, did_you_mean

NAMES = (*(name for name, fresh in FRESH.items() if not fresh.ours_alone), *CASES)
"""The cases that are measured if none is named."""
KNOWN = (*NAMES, *(name for name, fresh in FRESH.items() if fresh.ours_alone))
"""All cases."""


@dataclass(frozen=True)
class Effort:
    """How long to measure, and what."""

    rounds: int = 7
    round_s: float = 0.5
    """Length of a round on one side."""
    warm_up_s: float = 0.1
    """Not counted, and two operations at least: the second `put_800mb` still touches memory for
    the first time. Where an operation takes long, there is no warming up."""
    fresh_rounds: int = 5
    names: tuple[str, ...] = NAMES


FULL = Effort()

C = TypeVar("C", Case, Fresh)


@dataclass
class Samples:
    """The rounds of one case, in the order in which they were taken."""

    values: dict[str, list[float]]
    """By side, in the case's unit."""
    cpu_s: dict[str, list[float | None]] = field(default_factory=dict)
    """By side: seconds of CPU that a unit costs, in all processes; None where some have ended."""


class Asked(Protocol):
    """The part of `Conversation` that taking rounds needs."""

    def ask(self, what: str, **details: Any) -> Any: ...


def run_bench(
    peers: list[str],
    json_path: Path | None,
    progress: Progress,
    effort: Effort = FULL,
    after: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """Measure ours and `peers` (of `peers.PEERS`) and return the document, see `document`.

    Calls `after` with each row when it is complete; if it is ended before, also with those of
    which there are some rounds. With `json_path` the document is also written there. Takes
    about three minutes for ours alone, and some ten with Ray. Raises UsageError for a peer that
    is unknown or not installed and for an unknown case, BenchError if an engine fails; in any case
    no process is left behind.
    """
    check_peers(peers)
    for name in effort.names:
        if name not in KNOWN:
            raise UsageError(f"no benchmark {name!r}: {did_you_mean(name, KNOWN)}")
    sides = [OURS, *dict.fromkeys(peers)]
    rows: list[dict[str, Any]] = []

    def keep(case: Case | Fresh, samples: Samples) -> None:
        rows.append(row(case, samples))
        after(rows[-1])

    for fresh in affordable(FRESH, effort, 1, progress):
        keep(fresh, measure_fresh(fresh, sides, effort, progress))
    cases = list(affordable(CASES, effort, len(sides), progress))
    taken = {case.name: Samples({}) for case in cases}
    try:
        for number in range(effort.rounds if cases else 0):
            take_round(number, cases, sides, taken, effort, progress)
    finally:
        for case in cases:
            if taken[case.name].values:
                keep(case, taken[case.name])
    found = document(rows, peers)
    if json_path is not None:
        write(json_path, found)
    return found


def document(rows: list[dict[str, Any]], peers: list[str]) -> dict[str, Any]:
    """Return what the JSON file has.

    ``kind`` is "bench"; ``date``, ``host``, ``load``, ``versions``, see `files.measured_on`;
    ``commit``, ``peers``; ``rows``, see `row`.
    """
    return {
        "kind": "bench", **measured_on(), "commit": commit_of(ROOT), "peers": peers, "rows": rows
    }  # fmt: skip


def affordable(
    cases: Mapping[str, C], effort: Effort, sides: int, progress: Progress
) -> Iterator[C]:
    """Yield the cases that are to be measured and fit into memory; say which do not."""
    available = psutil.virtual_memory().available
    for case in cases.values():
        if case.name not in effort.names:
            continue
        needed = sides * case.memory_bytes
        if needed <= available:
            yield case
        else:
            progress.say(
                f"{case.name} is left out: it needs {needed / 1e9:.1f} GB of memory, "
                f"{available / 1e9:.1f} GB are free"
            )


def measure_fresh(
    fresh: Fresh, sides: Sequence[str], effort: Effort, progress: Progress
) -> Samples:
    """Start every side anew in each round; return the samples."""
    if fresh.ours_alone:
        sides = [OURS]
    progress.begin(fresh.name, effort.fresh_rounds * len(sides))
    for side in sides:
        # Not counted: from here on the files are in memory, and their bytecode is there.
        with Conversation(side) as conversation:
            conversation.start()
    values: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(effort.fresh_rounds):
        for side in sides:
            with Conversation(side) as conversation:
                values[side].append(conversation.measure("fresh", case=fresh.name))
            progress.advance()
    return Samples(values)


def take_round(
    number: int,
    cases: Sequence[Case],
    sides: Sequence[str],
    taken: Mapping[str, Samples],
    effort: Effort,
    progress: Progress,
) -> None:
    """Start a cluster of each side, measure every case on all of them, and add to `taken`."""
    progress.begin(f"round {number + 1} of {effort.rounds}", len(cases) + 1)
    with contextlib.ExitStack() as stack:
        conversations: dict[str, Asked] = {}
        for side in sides:
            conversation = stack.enter_context(Conversation(side))
            conversation.start()
            conversations[side] = conversation
        progress.advance()
        for case in cases:
            if case.rounds_max is None or number < case.rounds_max:
                if number == 0:
                    say_lacking(case, sides, progress)
                measure_case(case, conversations, taken[case.name], effort)
            progress.advance()


def say_lacking(case: Case, sides: Sequence[str], progress: Progress) -> None:
    """Say which sides have no such case, and why."""
    for name in sides:
        if case.name in ENGINES[name].lacks:
            progress.say(f"{case.name} is left out for {name}: {ENGINES[name].lacks[case.name]}")


def measure_case(case: Case, sides: Mapping[str, Asked], samples: Samples, effort: Effort) -> None:
    """Take a round of one case, ours and then the peers that have it, and add it to `samples`."""
    sides = {name: side for name, side in sides.items() if case.name not in ENGINES[name].lacks}
    warm_up = {"warm_up_s": effort.warm_up_s, "at_least": 2}
    if case.rounds_max is not None:
        warm_up = {"warm_up_s": 0, "at_least": 0}
    for side in sides.values():
        side.ask("prepare", case=case.name, **warm_up)
    found = {name: side.ask("round", round_s=effort.round_s) for name, side in sides.items()}
    for name, (value, cpu_s) in found.items():
        samples.values.setdefault(name, []).append(value)
        samples.cpu_s.setdefault(name, []).append(cpu_s)
    for side in sides.values():
        side.ask("finish")


def row(case: Case | Fresh, samples: Samples) -> dict[str, Any]:
    """Return what is known of a case.

    ``name``, ``ours``, ``peers`` {name: value}, ``ratio``, ``unit``; then
    ``ratios`` {peer: ratio}, of which ``ratio`` is the first peer's (None
    without peers); ``better`` (higher or lower), ``rounds``, ``range``
    {ours or peer: [lowest, highest]} and ``ratio_range`` {peer: [lowest, highest]}; and
    ``samples`` {ours or peer: every round}, ``cpu_s`` {ours or peer: seconds of CPU per unit
    in every round}, ``ray_name`` (what ``ray microbenchmark`` calls it, or "").
    """
    values = samples.values
    ours = values[OURS]
    peers = [side for side in values if side != OURS]
    # Above 1 is better for ours.
    ratios = {
        peer: [
            our / their if case.higher_is_better else their / our
            for our, their in zip(ours, values[peer], strict=True)
        ]
        for peer in peers
    }
    return {
        "name": case.name,
        "ours": median(ours),
        "peers": {peer: median(values[peer]) for peer in peers},
        "ratio": median(ratios[peers[0]]) if peers else None,
        "unit": case.unit,
        "ratios": {peer: median(each) for peer, each in ratios.items()},
        "better": "higher" if case.higher_is_better else "lower",
        "rounds": len(ours),
        "range": {side: [min(each), max(each)] for side, each in values.items()},
        "ratio_range": {peer: [min(each), max(each)] for peer, each in ratios.items()},
        "samples": values,
        "cpu_s": samples.cpu_s,
        "ray_name": case.ray_name if isinstance(case, Case) else "",
    }
