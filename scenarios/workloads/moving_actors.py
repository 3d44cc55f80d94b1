"""Actors that are called at fixed times while nodes die, and that start again elsewhere.

Figure 11b runs them, with and without checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import raytwin as ray
from raytwin.chaos.faults.injector import Injection, attach
from raytwin.chaos.faults.plan import Plan
from raytwin.runtime.api.backend import current
from raytwin.scenarios.workloads.stepper import Stepper

SLOTS = 10_000.0
"""Of a resource, ``slot``, that only the nodes of actors have: the driver's has none."""


@dataclass(frozen=True)
class Called:
    """The actors' answers to their calls, by step and actor."""

    began_s: float
    """On the cluster's clock."""
    counts: list[list[int]]
    """How many calls of its actor had taken effect with each."""
    ended_s: list[list[float]]
    """When each had ended, since the beginning."""
    injections: list[Injection]

    def recovery_s(self, kill_step: int, period_s: float) -> float:
        """Return how long after a fault, before the calls of `kill_step`, the last actor had
        recovered: when it had answered the first call that was made after it."""
        return max(self.ended_s[kill_step]) - kill_step * period_s


def start_actors(count: int, checkpoint_interval: int, record: str) -> list[Any]:
    """Start actors on the nodes with slots, and wait for them.

    They take a checkpoint every `checkpoint_interval` calls, or none if that is 0, and write down
    in the file `record` when a call begins.
    """
    stepper = ray.remote(
        num_cpus=0,
        resources={"slot": 1},
        max_restarts=-1,
        max_task_retries=-1,
        **({"checkpoint_interval": checkpoint_interval} if checkpoint_interval else {}),
    )(Stepper)
    actors = [stepper.remote(record) for _ in range(count)]
    ray.get([actor.__ray_ready__.remote() for actor in actors])
    return actors


def call_under_plan(
    actors: Sequence[Any],
    plan: Plan,
    steps: int,
    period_s: float,
    method_s: float,
    each_step: Callable[[], None],
) -> Called:
    """Call all actors once in each period, whatever has become of the calls before.

    The times of the plan count from the first step.
    """
    began_s = ray.now()
    injector = attach(current(), plan)
    calls: list[list[Any]] = []
    for step in range(steps):
        calls.append([actor.step.remote(method_s) for actor in actors])
        ray.sleep(max(0.0, began_s + (step + 1) * period_s - ray.now()))
        each_step()
    found = [ray.get(refs) for refs in calls]
    injector.stop()
    return Called(
        began_s,
        [[count for count, _ in row] for row in found],
        [[at_s - began_s for _, at_s in row] for row in found],
        injector.injections,
    )
