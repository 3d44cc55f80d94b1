"""``raytwin bench --against``: this tree and another one, round by round.

In each round both trees get a fresh driver process and a fresh cluster on each engine, of real
processes and simulated, since two clusters of one commit differ for as long as they live: in where
the kernel puts their processes, and what lies where in memory. Then each case is measured in short
slices that alternate between the trees; a side's cost in the round is that of its cheapest slice,
since what else the machine does only adds to it. What happens rarely is not in it. Whatever the
trees do one after the other, they do in the other order in every other round: the one that makes
`actor_sync` ready second is 4 % slower at it (docs/development.md).

Two statistics are judged, by `decision`: **time**, of the clock, and **cpu**, the seconds of CPU
that all processes of the cluster spend. Where other programs use the machine, time depends on them
first, and is rarely decided; CPU far less; and least on the simulator, where the control plane's
own code runs in a single process that waits for nothing: there CPU alone is judged. What sleeps
costs time, what computes costs both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from raytwin.scenarios.bench.cases import CASES
from raytwin.scenarios.bench.conversation import Conversation
from raytwin.scenarios.bench.decision import Costs, Judged, Pair, decide, row
from raytwin.scenarios.bench.engines import OURS, SIMULATED
from raytwin.scenarios.bench.files import measured_on
from raytwin.scenarios.bench.trees import Tree
from raytwin.scenarios.core.scenario import Progress

THRESHOLD = 0.02
"""A regression of 5 % is to be found, with an interval all of which lies beyond the threshold."""
ROUNDS_MAX = 36
SLICES = 6
SLICE_S = 0.05
WARM_UP_S = 0.1

ON_SIM = "sim:"
"""What stands before a case's name where it is simulated."""
SUBJECTS = (
    "tasks_sync", "tasks_1000", "actor_sync", "actor_1000", "put_small", "get_small",
    "sim:tasks_sync", "sim:tasks_1000", "sim:actor_1000",
)  # fmt: skip
"""What is measured if nothing is named: the paths of tasks, calls and small objects. Copies of
large ones measure the machine's memory, not the commit."""
KNOWN = (
    *CASES,
    *(f"{ON_SIM}{name}" for name in ("tasks_sync", "tasks_1000", "task_array", "wait_1000")),
    *(f"{ON_SIM}{name}" for name in ("actor_sync", "actor_1000", "put_small", "get_small")),
)


@dataclass
class Rounds:
    """Takes rounds of the old and the new tree, in turn."""

    old: Tree
    new: Tree
    slices: int = SLICES
    slice_s: float = SLICE_S
    warm_up_s: float = WARM_UP_S
    taken: int = 0

    def take(self, subjects: Sequence[str]) -> dict[str, Costs]:
        """Take one round of `subjects`; return their costs by statistic."""
        self.taken += 1
        found: dict[str, Costs] = {}
        for engine, prefix in ((OURS, ""), (SIMULATED, ON_SIM)):
            mine = [s for s in subjects if s.startswith(ON_SIM) == bool(prefix)]
            if mine:
                with self._sides(engine) as sides:
                    for subject in mine:
                        costs = self._costs(subject.removeprefix(prefix), sides)
                        if engine == SIMULATED:
                            del costs["time"]
                        found[subject] = costs
        return found

    @contextlib.contextmanager
    def _sides(self, engine: str) -> Iterator[tuple[Conversation, Conversation]]:
        """Start a cluster of each tree: in every other round the new one first."""
        with contextlib.ExitStack() as stack:
            started = {}
            trees = [self.old, self.new]
            for tree in trees if self.taken % 2 else trees[::-1]:
                side = stack.enter_context(Conversation(engine, tree=tree, hash_seed=self.taken))
                side.start()
                started[id(tree)] = side
            yield started[id(self.old)], started[id(self.new)]

    def _costs(self, case: str, sides: tuple[Conversation, Conversation]) -> dict[str, Pair]:
        for side in sides if self.taken % 2 else sides[::-1]:
            side.ask("prepare", case=case, warm_up_s=self.warm_up_s, at_least=1)
        samples: tuple[list[Sample], list[Sample]] = ([], [])
        for number in range(self.slices):
            for at in (0, 1) if (self.taken + number) % 2 else (1, 0):
                rate, cpu_s = sides[at].ask("round", round_s=self.slice_s)
                samples[at].append(Sample(1 / rate, cpu_s))
        for side in sides:
            side.ask("finish")
        return costs_of(*samples)


@dataclass(frozen=True)
class Sample:
    """What a unit cost in one slice."""

    time_s: float
    cpu_s: float | None


def costs_of(old: Sequence[Sample], new: Sequence[Sample]) -> dict[str, Pair]:
    """Return the cheapest slices of both sides, by statistic; without what is not known of all."""
    costs = {"time": (min(s.time_s for s in old), min(s.time_s for s in new))}
    cpu = [[s.cpu_s for s in samples if s.cpu_s] for samples in (old, new)]
    if len(cpu[0]) == len(old) and len(cpu[1]) == len(new):
        costs["cpu"] = (min(cpu[0]), min(cpu[1]))
    return costs


def compare_trees(
    rounds: Rounds, subjects: Sequence[str], threshold: float, rounds_max: int, progress: Progress
) -> dict[str, Any]:
    """Measure both trees until all is decided, and return the document: see `document`."""
    progress.begin(f"{rounds.new.label} against {rounds.old.label}, rounds", rounds_max)

    def after(left: int) -> None:
        progress.advance()

    judged = decide(subjects, rounds.take, threshold, rounds_max, after)
    return document(judged, rounds.old, rounds.new, threshold)


def document(judged: Sequence[Judged], old: Tree, new: Tree, threshold: float) -> dict[str, Any]:
    """Return what the JSON file has.

    ``kind`` is "against"; ``date``, ``host``, ``load``, ``versions``, see `files.measured_on`;
    ``threshold``; ``old`` and ``new`` {label, commit}; ``rows``, see `decision.row`.
    """
    return {
        "kind": "against",
        **measured_on(),
        "threshold": threshold,
        "old": {"label": old.label, "commit": old.commit},
        "new": {"label": new.label, "commit": new.commit},
        "rows": [row(each) for each in judged],
    }
