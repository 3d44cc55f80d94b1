"""When enough rounds were taken, and what they say: the gate's procedure, whatever is measured.

A subject (a case on an engine) has several statistics. Its rounds go on, from `ROUNDS_MIN` to a
bound, until each statistic is decided or one of them is slower. Looking again and again makes it
more likely that chance decides; so nobody is accused by the rounds that raised the suspicion:
the subject is measured anew, and a statistic is slower only if those rounds alone say so as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raytwin.scenarios.bench.intervals import Slowdown, Verdict, of_pairs

ROUNDS_MIN = 12
"""Of fewer rounds the bootstrap's intervals are too short: they decide nothing."""
STEP = 6
"""Rounds between two looks at them."""

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

    At most twice `rounds_max` rounds are taken of a subject, of which the second half are only
    of those that are under suspicion. Calls `after` each round with the number of subjects left.
    """
    first = _measure(subjects, take, threshold, rounds_max, after)
    suspects = {each.subject for each in first if each.verdict is Verdict.SLOWER}
    again = _measure([n for n in subjects if n in suspects], take, threshold, rounds_max, after)
    return list(_confirmed(first, again))


def _measure(
    names: Sequence[str],
    take: TakeRound,
    threshold: float,
    rounds_max: int,
    after: Callable[[int], None],
) -> list[Judged]:
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
    return [judged for subject in subjects.values() for judged in subject.judged.values()]


def _confirmed(first: Sequence[Judged], again: Sequence[Judged]) -> Iterator[Judged]:
    """Yield the first judgements, those of suspects with what the second rounds say."""
    second = {(each.subject, each.statistic): each for each in again}
    for each in first:
        new = second.get((each.subject, each.statistic))
        if new is None:
            yield each
            continue
        suspected = each.verdict is Verdict.SLOWER
        verdict = new.verdict
        if verdict is Verdict.SLOWER and not suspected:
            # Now it is this one that only the rounds accuse that raised the suspicion.
            verdict = Verdict.UNDECIDED
        yield Judged(
            each.subject, each.statistic, new.slowdown, verdict,
            [*each.old, *new.old], [*each.new, *new.new], len(each.old),
        )  # fmt: skip
