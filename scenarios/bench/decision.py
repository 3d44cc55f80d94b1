"""When enough rounds were taken, and what they say: the gate's procedure, whatever is measured.

A subject (a case on an engine) has several statistics. Its rounds go on, from `ROUNDS_MIN` to a
bound, until each statistic is decided or one of them is slower. Looking again and again makes it
more likely that chance decides; so nobody is accused by the rounds that raised the suspicion:
the subject is measured anew, and a statistic is slower only if the rounds of two passes, one after
the other, both say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raytwin.scenarios.bench.intervals import Slowdown, Verdict, of_pairs

ROUNDS_MIN = 12
"""Of fewer rounds the bootstrap's intervals are too short: they decide nothing."""
STEP = 6
"""Rounds between two looks at them."""

PASSES_MAX = 4

Key = tuple[str, str]
"""A subject and a statistic."""
Pair = tuple[float, float]
"""The old cost and the new one, of one round."""
Costs = Mapping[str, Pair]
"""By statistic; one that could not be measured is left out."""
TakeRound = Callable[[Sequence[str]], Mapping[str, Costs]]
"""Takes a round of the subjects that are named, and returns what each cost."""


@dataclass
class Judged:
    """What is known of one statistic of a subject."""

    subject: str
    statistic: str
    slowdown: Slowdown
    verdict: Verdict
    old: list[float]
    new: list[float]
    """The costs of all rounds, also of those that raised a suspicion."""
    suspected: int = 0
    """How many of them did: the slow-down is that of the others."""


def row(judged: Judged) -> dict[str, Any]:
    """Return a statistic of a case as files have it.

    ``name``, ``statistic``, ``slowdown`` with ``low`` and ``high`` (parts of the old cost),
    ``verdict``, ``old_s`` and ``new_s``: the costs of a unit in each round, in seconds; the first
    ``suspected`` of them raised a suspicion and are not in the interval.
    """
    return {
        "name": judged.subject,
        "statistic": judged.statistic,
        "slowdown": judged.slowdown.middle,
        "low": judged.slowdown.low,
        "high": judged.slowdown.high,
        "verdict": str(judged.verdict),
        "old_s": judged.old,
        "new_s": judged.new,
        "suspected": judged.suspected,
    }


@dataclass
class _Subject:
    name: str
    pairs: dict[str, list[Pair]] = field(default_factory=dict)
    judged: dict[str, Judged] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        verdicts = [each.verdict for each in self.judged.values()]
        return bool(verdicts) and (Verdict.SLOWER in verdicts or Verdict.UNDECIDED not in verdicts)

    def judge(self, threshold: float) -> None:
        for statistic, pairs in self.pairs.items():
            if len(pairs) < 2:
                continue  # It could not be measured in most rounds.
            slowdown = of_pairs(pairs)
            verdict = slowdown.verdict(threshold)
            if len(pairs) < ROUNDS_MIN:
                verdict = Verdict.UNDECIDED
            old, new = map(list, zip(*pairs, strict=True))
            self.judged[statistic] = Judged(self.name, statistic, slowdown, verdict, old, new)


def decide(
    subjects: Sequence[str],
    take: TakeRound,
    threshold: float,
    rounds_max: int,
    after: Callable[[int], None] = lambda left: None,
) -> list[Judged]:
    """Take rounds until all is decided, and return what was found, in the order of `subjects`.

    A pass takes at most `rounds_max` rounds of a subject, and there are at most `PASSES_MAX`, each
    of those alone in which the one before raised a suspicion. Calls `after` each round with the
    number of subjects left.
    """
    found = _measure(subjects, take, threshold, rounds_max, after)
    suspects = _slower(found)
    sure: set[Key] = set()
    for _ in range(PASSES_MAX - 1):
        names = [name for name in subjects if any(name == suspect for suspect, _ in suspects)]
        again = _measure(names, take, threshold, rounds_max, after)
        for key, judged in again.items():
            if key not in sure:
                found[key] = _joined(found.get(key), judged)
        sure |= suspects & _slower(again)
        suspects = _slower(again) - sure
    for key in suspects:
        found[key].verdict = Verdict.UNDECIDED
    return sorted(found.values(), key=lambda each: list(subjects).index(each.subject))


def _slower(found: Mapping[Key, Judged]) -> set[Key]:
    return {key for key, judged in found.items() if judged.verdict is Verdict.SLOWER}


def _joined(before: Judged | None, judged: Judged) -> Judged:
    """Return a later judgement with the rounds of an earlier one before its own."""
    if before is None:
        return judged
    return replace(
        judged,
        old=[*before.old, *judged.old],
        new=[*before.new, *judged.new],
        suspected=len(before.old),
    )


def _measure(
    names: Sequence[str],
    take: TakeRound,
    threshold: float,
    rounds_max: int,
    after: Callable[[int], None],
) -> dict[Key, Judged]:
    subjects = {name: _Subject(name) for name in names}
    for number in range(1, rounds_max + 1):
        left = [name for name, subject in subjects.items() if not subject.done]
        if not left:
            break
        for name, costs in take(left).items():
            for statistic, pair in costs.items():
                subjects[name].pairs.setdefault(statistic, []).append(pair)
        enough = number >= ROUNDS_MIN and (number - ROUNDS_MIN) % STEP == 0
        if enough or number == rounds_max:
            for name in left:
                subjects[name].judge(threshold)
        after(len(left))
    return {
        (name, statistic): judged
        for name, subject in subjects.items()
        for statistic, judged in subject.judged.items()
    }
