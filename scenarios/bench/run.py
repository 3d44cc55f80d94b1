"""Rounds, medians, ratios: from sides to rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

import psutil

from raytwin.scenarios.bench.cases import CASES, FRESH, Case, Fresh
from raytwin.scenarios.bench.conversation import Conversation
from raytwin.scenarios.bench.engines import ENGINES, OURS, check_peers
from raytwin.scenarios.bench.large import LARGE
from raytwin.scenarios.bench.limits import LIMITS, Limits
from raytwin.scenarios.core import results
from raytwin.scenarios.core.scenario import Progress, UsageError, did_you_mean

NAMES = (*FRESH, *CASES)
"""What is measured if nothing is named ..."""
KNOWN = (*NAMES, *LARGE)
"""... and what can be."""
LARGE_TIMEOUT_S = 600.0

C = TypeVar("C", Case, Fresh)


@dataclass(frozen=True)
class Effort:
    """How long to measure, and what."""

    rounds: int = 7
    round_s: float = 0.5
    """Length of a round on one side."""
    warm_up_rounds: int = 2
    """Not counted. The second `put_800mb` still touches memory for the first time."""
    limit_s: float = 0.1
    fresh_rounds: int = 5
    large_rounds: int = 3
    settle_s: float = 3.0
    """Before `idle_memory`: what a cluster starts after its first task counts too."""
    names: tuple[str, ...] = NAMES


FULL = Effort()


@dataclass
class Samples:
    """What the rounds of one case gave, in the order in which they were taken."""

    sides: dict[str, list[float]] = field(default_factory=dict)
    limit: list[float] = field(default_factory=list)

    def add(self, side: str, value: float) -> None:
        """Add one round of `side`."""
        self.sides.setdefault(side, []).append(value)


class Asked(Protocol):
    """What is needed of a `Conversation`."""

    def ask(self, what: str, **details: Any) -> float | None: ...
    def measure(self, what: str, **details: Any) -> float: ...


class Limiter(Protocol):
    """What is needed of `Limits`."""

    def measure(self, name: str, round_s: float) -> float: ...
    def forget(self) -> None: ...


def run_bench(
    peers: list[str],
    json_path: Path | None,
    progress: Progress,
    effort: Effort = FULL,
    after: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """Measure ours and `peers` (of `engines.PEERS`) and return a row per case, see `row`.

    Calls `after` with each row when it is complete. With `json_path` the rows are also
    written there, as a JSON list; and from the first on until that is complete, which it
    may never be, as ``{"incomplete": [names that are missing], "rows": [...]}``. Takes about
    a minute and a half for ours alone, and some five with Ray. Raises UsageError for a peer that
    is unknown or not installed and for an unknown case, BenchError if an engine
    fails; in any case no process is left behind.
    """
    check_peers(peers)
    for name in effort.names:
        if name not in KNOWN:
            raise UsageError(f"no benchmark {name!r}: {did_you_mean(name, KNOWN)}")
    sides = [OURS, *dict.fromkeys(peers)]
    rows: list[dict[str, Any]] = []

    def keep(found: dict[str, Any]) -> None:
        rows.append(found)
        if json_path is not None:
            there = {each["name"] for each in rows}
            missing = [name for name in effort.names if name not in there]
            _write(json_path, {"incomplete": missing, "rows": rows})
        after(found)

    with Limits() as limits:
        fresh = list(affordable(FRESH, effort.names, 1, progress))
        if fresh:
            found = measure_fresh(fresh, sides, limits, effort, progress)
            for each, samples in zip(fresh, found, strict=True):
                keep(row(each, samples, sides))
        cases = list(affordable(CASES, effort.names, len(sides), progress))
        if cases:
            with started(sides, progress) as conversations:
                for case in cases:
                    progress.begin(case.name, rounds_of(case, effort))
                    say_left_out(case.name, sides, progress)
                    samples = measure_case(case, conversations, limits, effort, progress)
                    keep(row(case, samples, sides))
        for each in affordable(LARGE, effort.names, 1, progress):
            say_left_out(each.name, sides, progress)
            keep(row(each, measure_large(each, limits, effort, progress), sides))
    if json_path is not None:
        _write(json_path, rows)
    return rows


def _write(path: Path, data: Any) -> None:
    results.write_file(path, json.dumps(data, indent=2, allow_nan=False).encode() + b"\n")


def left_out(name: str, sides: Iterable[str]) -> dict[str, str]:
    """Return why a case is not measured, for each of the sides that it is not measured on."""
    if name in LARGE:
        return {side: "it is measured for ours alone" for side in sides if side != OURS}
    return {side: why for side in sides if (why := ENGINES[side].lacks.get(name, ""))}


def say_left_out(name: str, sides: Iterable[str], progress: Progress) -> None:
    """Say on which sides a case is not measured, and why."""
    for side, why in left_out(name, sides).items():
        progress.say(f"{name} is left out for {side}: {why}")


def affordable(
    cases: Mapping[str, C], names: Iterable[str], sides: int, progress: Progress
) -> Iterator[C]:
    """Yield those of `cases` and `names` that fit into memory, and say which do not."""
    available = psutil.virtual_memory().available
    for case in cases.values():
        if case.name not in names:
            continue
        needed = sides * case.memory_bytes
        if needed > available:
            progress.say(
                f"{case.name} is left out: it needs {needed / 1e9:.1f} GB of memory, "
                f"{available / 1e9:.1f} GB are free"
            )
        else:
            yield case


def measure_fresh(
    fresh: Sequence[Fresh],
    sides: Sequence[str],
    limits: Limiter,
    effort: Effort,
    progress: Progress,
) -> list[Samples]:
    """Start every side anew in each round; return the samples of each of `fresh`."""
    samples = {name: Samples() for name in FRESH}
    progress.begin(", ".join(each.name for each in fresh), effort.fresh_rounds * len(sides))
    for side in sides:
        # Not counted: from here on the files are in memory, and their bytecode is there.
        with Conversation(side) as conversation:
            conversation.measure("start")
    for _ in range(effort.fresh_rounds):
        for each in fresh:
            samples[each.name].limit.append(limits.measure(each.limit, effort.limit_s))
        limits.forget()
        for side in sides:
            with Conversation(side) as conversation:
                samples["start_up"].add(side, conversation.measure("start"))
                if any(each.name == "idle_memory" for each in fresh):
                    used_mb = conversation.measure("memory", settle_s=effort.settle_s)
                    samples["idle_memory"].add(side, used_mb)
                if any(each.name == "first_put_800mb" for each in fresh):
                    samples["first_put_800mb"].add(side, conversation.measure("first put"))
            progress.advance()
    return [samples[each.name] for each in fresh]


def measure_large(each: Fresh, limits: Limiter, effort: Effort, progress: Progress) -> Samples:
    """Start ours anew in each round, alone; return the samples."""
    samples = Samples()
    progress.begin(each.name, effort.large_rounds)
    for _ in range(effort.large_rounds):
        samples.limit.append(limits.measure(each.limit, effort.limit_s))
        with Conversation(OURS, LARGE_TIMEOUT_S) as conversation:
            samples.add(OURS, conversation.measure("large", case=each.name))
        progress.advance()
    return samples


@contextmanager
def started(sides: Sequence[str], progress: Progress) -> Iterator[dict[str, Asked]]:
    """Start every side's cluster; all of them are gone afterwards."""
    with ExitStack() as stack:
        progress.begin(f"starting {', '.join(sides)}", len(sides))
        conversations: dict[str, Asked] = {}
        for side in sides:
            conversation = stack.enter_context(Conversation(side))
            conversation.ask("start")
            conversations[side] = conversation
            progress.advance()
        yield conversations


def rounds_of(case: Case, effort: Effort) -> int:
    """Return how many rounds of a case count."""
    return effort.rounds if case.rounds_max is None else min(case.rounds_max, effort.rounds)


def measure_case(
    case: Case, sides: Mapping[str, Asked], limits: Limiter, effort: Effort, progress: Progress
) -> Samples:
    """Take the rounds of one case: the limit, ours, the peers that have it, and again.

    Rounds to warm up come first and do not count.
    """
    samples = Samples()
    sides = {name: side for name, side in sides.items() if case.name not in ENGINES[name].lacks}
    warm_up = effort.warm_up_rounds if case.rounds_max is None else min(1, effort.warm_up_rounds)
    for side in sides.values():
        side.ask("prepare", case=case.name)
        for _ in range(warm_up):
            side.measure("round", round_s=effort.round_s)
    for _ in range(rounds_of(case, effort)):
        samples.limit.append(limits.measure(case.limit, effort.limit_s))
        for name, side in sides.items():
            samples.add(name, side.measure("round", round_s=effort.round_s))
        progress.advance()
    for side in sides.values():
        side.ask("finish")
    limits.forget()
    return samples


def row(case: Case | Fresh, samples: Samples, sides: Sequence[str]) -> dict[str, Any]:
    """Return what is known of a case.

    ``name``, ``ours``, ``peers`` {name: value}, ``ratio``, ``unit``; then
    ``ratios`` {peer: ratio}, of which ``ratio`` is the first peer's (None
    without peers); ``better`` (higher or lower), ``rounds``, ``range``
    {ours or peer: [lowest, highest]}, ``ratio_range`` {peer: [lowest, highest]},
    ``limit`` {name, about, value, unit, fraction}, where the fraction is how near
    to the limit ours is, 1 being there; ``about``; and ``left_out`` {peer: why}
    of peers that have no equivalent, which are in none of the others.
    """
    without = left_out(case.name, sides)
    sides = [side for side in sides if side not in without]
    peers = [side for side in sides if side != OURS]
    ours = samples.sides[OURS]
    ratios = {peer: _ratios(case, ours, samples.sides[peer]) for peer in peers}
    value, limit = median(ours), median(samples.limit)
    return {
        "name": case.name,
        "ours": value,
        "peers": {peer: median(samples.sides[peer]) for peer in peers},
        "ratio": median(ratios[peers[0]]) if peers else None,
        "unit": case.unit,
        "ratios": {peer: median(each) for peer, each in ratios.items()},
        "better": "higher" if case.higher_is_better else "lower",
        "rounds": len(ours),
        "range": {side: [min(samples.sides[side]), max(samples.sides[side])] for side in sides},
        "ratio_range": {peer: [min(each), max(each)] for peer, each in ratios.items()},
        "limit": {
            "name": case.limit,
            "about": LIMITS[case.limit].about,
            "value": limit,
            "unit": LIMITS[case.limit].unit,
            "fraction": value / limit if case.higher_is_better else limit / value,
        },
        "about": case.about,
        "left_out": without,
    }


def _ratios(case: Case | Fresh, ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of each round; above 1 is better for ours."""
    if case.higher_is_better:
        return [our / their for our, their in zip(ours, theirs, strict=True)]
    return [their / our for our, their in zip(ours, theirs, strict=True)]
