"""Simulations of a pendulum in parallel: as tasks whose results are gathered as they come.

A run is an episode of gymnasium's Pendulum-v1 of a given length, or on `sim` the time that this
takes. How long episodes are differs, as it does where they end when something falls over: their
lengths are drawn evenly from `STEPS_MIN` to `STEPS_MAX`.
"""

from __future__ import annotations

import functools
import importlib.util
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import raytwin as ray

STEPS_MIN, STEPS_MAX = 10, 1_000
RUNS_PER_CPU = 3
WARM_UP = -1
"""The number of a draw that is not measured."""
TRIALS = 41


class Episode(NamedTuple):
    """A run: where the pendulum starts, and for how many time steps it is simulated."""

    seed: int
    steps: int


def episodes(cpus: int, draw: int, seed: int) -> list[Episode]:
    """Return the runs for so many CPUs, `RUNS_PER_CPU` for each; other ones in each draw."""
    rng = random.Random(f"{seed} {draw} {cpus}")
    return [
        Episode(rng.randrange(2**31), rng.randint(STEPS_MIN, STEPS_MAX))
        for _ in range(RUNS_PER_CPU * cpus)
    ]


def missing() -> str:
    """Return what is missing for real episodes, as one line, or "" if nothing is."""
    if importlib.util.find_spec("gymnasium"):
        return ""
    return "simulations need gymnasium's Pendulum-v1 (pip install 'raytwin[rl]')"


@functools.cache
def _environment() -> Any:
    """Return the pendulum of this process, which no episode stops before its length."""
    import gymnasium

    return gymnasium.make("Pendulum-v1", max_episode_steps=STEPS_MAX + 1)


def simulate(seed: int, steps: int) -> float:
    """Run an episode in which the torque follows the speed; return the sum of its rewards."""
    pendulum = _environment()
    observation, _ = pendulum.reset(seed=seed)
    total = 0.0
    for _ in range(steps):
        observation, reward, *_ = pendulum.step(observation[2:])
        total += float(reward)
    return total


def _take(step_s: float, steps: int) -> float:
    """Take the time of an episode; there is no pendulum, and so no reward."""
    ray.compute(step_s * steps)
    return 0.0


_simulate = ray.remote(simulate)
_model = ray.remote(_take)


@functools.cache
def measured_step_s() -> float:
    """Return what a time step takes on this machine, one process alone, in seconds.

    It measures once in a process: later calls return the same.
    """
    steps = (STEPS_MIN + STEPS_MAX) // 2
    simulate(0, steps)
    found = []
    for trial in range(TRIALS):
        began_s = time.perf_counter()
        simulate(trial, steps)
        found.append((time.perf_counter() - began_s) / steps)
    return statistics.median(found)


def as_they_come(
    runs: Sequence[Episode], step_s: float | None, strategy: str = "DEFAULT"
) -> list[float]:
    """Submit all runs as tasks and gather what they return, whichever is done first.

    With `step_s` a time step is only the time that it takes. Returns the scores in the runs' order.
    """
    function = (_simulate if step_s is None else _model).options(scheduling_strategy=strategy)
    arguments = [run if step_s is None else (step_s, run.steps) for run in runs]
    number = {function.remote(*each): index for index, each in enumerate(arguments)}
    scores = [0.0] * len(runs)
    pending = list(number)
    while pending:
        ready, pending = ray.wait(pending)
        for ref in ready:
            scores[number[ref]] = ray.get(ref)
    return scores


def in_rounds_s(runs: Sequence[Episode], cpus: int, step_s: float, barrier_s: float) -> float:
    """Return the seconds that runs take in rounds of one for each CPU, a barrier after each.

    A round takes as long as its longest run: this is the whole model of a bulk-synchronous program.
    """
    rounds = [runs[first : first + cpus] for first in range(0, len(runs), cpus)]
    return sum(step_s * max(run.steps for run in each) + barrier_s for each in rounds)
