"""Rounds, medians, ratios: from sides to rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

import psutil

from raytwin.scenarios.bench.cases import CASES, FRESH, Case, Fresh
from raytwin.scenarios.bench.conversation import Conversation
from raytwin.scenarios.bench.engines import ENGINES, OURS, check_peers
from raytwin.scenarios.core import results
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
    warm_up_rounds: int = 2
    """Not counted. The second `put_800mb` still touches memory for the first time."""
    fresh_rounds: int = 5
    names: tuple[str, ...] = NAMES


FULL = Effort()

C = TypeVar("C", Case, Fresh)

Samples = dict[str, list[float]]
"""By side: the figures of the rounds of one case, in the order in which they were taken."""


class Asked(Protocol):
    """The part of `Conversation` that taking rounds needs."""

    def ask(self, what: str, **details: Any) -> float | None: ...
    def measure(self, what: str, **details: Any) -> float: ...


def run_bench(
    peers: list[str],
    json_path: Path | None,
    progress: Progress,
    effort: Effort = FULL,
    after: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """Measure ours and `peers` (of `engines.PEERS`) and return a row per case, see `row`.

    Calls `after` with each row when it is complete. With `json_path` the rows are also
    written there, as a JSON list. Takes about a minute and a half for ours alone, and some
    five with Ray. Raises UsageError for a peer that is unknown or not installed and for an
    unknown case, BenchError if an engine fails; in any case no process is left behind.
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
    if cases:
        with ExitStack() as stack:
            progress.begin(f"starting {', '.join(sides)}", len(sides))
            conversations: dict[str, Asked] = {}
            for side in sides:
                conversations[side] = stack.enter_context(Conversation(side))
                conversations[side].ask("start")
                progress.advance()
            for case in cases:
                keep(case, measure_case(case, conversations, effort, progress))
    if json_path is not None:
        results.write_file(json_path, json.dumps(rows, indent=2, allow_nan=False).encode() + b"\n")
    return rows


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
            conversation.ask("start")
    samples: Samples = {side: [] for side in sides}
    for _ in range(effort.fresh_rounds):
        for side in sides:
            with Conversation(side) as conversation:
                samples[side].append(conversation.measure("fresh", case=fresh.name))
            progress.advance()
    return samples


def measure_case(
    case: Case, sides: Mapping[str, Asked], effort: Effort, progress: Progress
) -> Samples:
    """Take the rounds of one case: ours, the peers that have it, and again.

    Rounds to warm up come first and do not count.
    """
    for name in sides:
        if case.name in ENGINES[name].lacks:
            progress.say(f"{case.name} is left out for {name}: {ENGINES[name].lacks[case.name]}")
    sides = {name: side for name, side in sides.items() if case.name not in ENGINES[name].lacks}
    rounds, warm_up = effort.rounds, effort.warm_up_rounds
    if case.rounds_max is not None:
        rounds, warm_up = min(case.rounds_max, rounds), min(1, warm_up)
    progress.begin(case.name, rounds)
    for side in sides.values():
        side.ask("prepare", case=case.name)
        for _ in range(warm_up):
            side.measure("round", round_s=effort.round_s)
    samples: Samples = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            samples[name].append(side.measure("round", round_s=effort.round_s))
        progress.advance()
    for side in sides.values():
        side.ask("finish")
    return samples


def row(case: Case | Fresh, samples: Samples) -> dict[str, Any]:
    """Return what is known of a case.

    ``name``, ``ours``, ``peers`` {name: value}, ``ratio``, ``unit``; then
    ``ratios`` {peer: ratio}, of which ``ratio`` is the first peer's (None
    without peers); ``better`` (higher or lower), ``rounds``, ``range``
    {ours or peer: [lowest, highest]} and ``ratio_range`` {peer: [lowest, highest]}.
    """
    ours = samples[OURS]
    peers = [side for side in samples if side != OURS]
    # Above 1 is better for ours.
    ratios = {
        peer: [
            our / their if case.higher_is_better else their / our
            for our, their in zip(ours, samples[peer], strict=True)
        ]
        for peer in peers
    }
    return {
        "name": case.name,
        "ours": median(ours),
        "peers": {peer: median(samples[peer]) for peer in peers},
        "ratio": median(ratios[peers[0]]) if peers else None,
        "unit": case.unit,
        "ratios": {peer: median(each) for peer, each in ratios.items()},
        "better": "higher" if case.higher_is_better else "lower",
        "rounds": len(ours),
        "range": {side: [min(each), max(each)] for side, each in samples.items()},
        "ratio_range": {peer: [min(each), max(each)] for peer, each in ratios.items()},
    }
