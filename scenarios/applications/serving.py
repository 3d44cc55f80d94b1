"""Embedded serving: an actor evaluates a policy for the states that clients send it in batches.

It serves within the program that needs it: a state is an array that the actor finds in shared
memory, with no format of text and no web server between. The two policies and the sizes of their
states are those of the Ray paper's table 3; here a model's time passes as it does on an
accelerator, which leaves the cores alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

STATES = 64
"""In a batch."""
CLIENTS, BATCHES = 2, 20


class Workload(NamedTuple):
    """A served policy: the size of a state, and the time that the model takes for a batch."""

    state_bytes: int
    model_s: float


RESIDUAL_NETWORK = Workload(4_000, 0.010)
FULLY_CONNECTED = Workload(100_000, 0.005)


class Model:
    """Stands for a policy network: actions that depend on all of the states, in a known time."""

    def __init__(self, model_s: float, sleep: Callable[[float], None]) -> None:
        self._model_s = model_s
        self._sleep = sleep

    def __call__(self, states: Any) -> list[float]:
        """Return an action for each of the states, float32 of shape (batch, features)."""
        actions = states.mean(axis=1, dtype=np.float64)
        self._sleep(self._model_s)
        return list(actions.tolist())


class Policy:
    """The actor."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def act(self, states: Any) -> list[float]:
        """Return the actions for a batch of states."""
        return self._model(states)


class Asked(NamedTuple):
    """A client's times of its first request and last answer, in seconds of a clock all share."""

    began_s: float
    ended_s: float
    batches: int
    actions: list[float]
    """For the last batch."""


def some_states(workload: Workload, client: int) -> Any:
    """Return a batch of states, other ones for each client."""
    shape = STATES, workload.state_bytes // np.dtype(np.float32).itemsize
    return np.random.default_rng(client).random(shape, np.float32)


def ask(
    evaluate: Callable[[Any], list[float]],
    now: Callable[[], float],
    workload: Workload,
    client: int,
    batches: int,
) -> Asked:
    """Be a client: have `batches` batches evaluated, each when the one before has come back."""
    states = some_states(workload, client)
    began_s = now()
    for _ in range(batches):
        actions = evaluate(states)
    return Asked(began_s, now(), batches, actions)


def ask_actor(ray: Any, policy: Any, workload: Workload, client: int, batches: int) -> Asked:
    """Be a client of an actor."""

    def evaluate(states: Any) -> list[float]:
        return ray.get(policy.act.remote(states))

    return ask(evaluate, clock(ray), workload, client, batches)


def clock(ray: Any) -> Callable[[], float]:
    """Return the clock of the world in which the program runs: raytwin's may be virtual."""
    return getattr(ray, "now", time.perf_counter)


def states_per_s(asked: list[Asked]) -> float:
    """Return the rate at which clients that asked at the same time were served."""
    elapsed_s = max(each.ended_s for each in asked) - min(each.began_s for each in asked)
    return STATES * sum(each.batches for each in asked) / elapsed_s


def start(ray: Any, workload: Workload, pass_time: Callable[[float], None] | None = None) -> Any:
    """Return an actor that serves the policy; it calls `pass_time` with the model's seconds for
    each batch. None: it sleeps."""
    if pass_time is None:
        pass_time = getattr(ray, "sleep", time.sleep)
    return ray.remote(Policy).remote(Model(workload.model_s, pass_time))


def ask_all(ray: Any, policy: Any, workload: Workload, clients: int, batches: int) -> list[Asked]:
    """Have clients, which are tasks, ask an actor at the same time; return what they saw."""
    client = ray.remote(ask_actor)
    return ray.get(
        [client.remote(ray, policy, workload, number, batches) for number in range(clients)]
    )


def largest_error(asked: list[Asked], workload: Workload) -> float:
    """Return by how much an action is off at most, by the clients' numbers: 0 if all are right."""
    right = Model(0.0, lambda seconds: None)
    return max(
        float(np.abs(np.subtract(each.actions, right(some_states(workload, client)))).max())
        for client, each in enumerate(asked)
    )


def main(ray: Any) -> float:
    """Return the largest error of an action; clients get their actions and nobody else's."""
    rates, errors = [], []
    for workload in (RESIDUAL_NETWORK, FULLY_CONNECTED):
        policy = start(ray, workload)
        # The first batches bring the processes up.
        for batches in (1, BATCHES):
            asked = ask_all(ray, policy, workload, CLIENTS, batches)
        rates.append(f"{states_per_s(asked):,.0f} states/s of {workload.state_bytes // 1000} KB")
        errors.append(largest_error(asked, workload))
        ray.kill(policy)
    print(f"{CLIENTS} clients of a policy: {' and '.join(rates)}")
    return max(errors)


if __name__ == "__main__":
    import ray

    main(ray)
