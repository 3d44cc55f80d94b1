"""One process alone: what parts of learning programs take on this machine without any system.

Predictions for this machine rest on these times, and so does what a report says of where time goes.
`measured` runs a function of this module in a fresh interpreter that computes with one thread, as
workers and ranks of MPI do there::

    measured("sgd_s", layers, width, batch)
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from itertools import cycle

import numpy as np

from raytwin.scenarios.applications import es, ppo, serving, sgd

TRIALS = 21
FLOAT32_BYTES = 4
UNCACHED_BYTES = 64_000_000
"""Arrays of so many bytes, one after another, are in no cache that a core has for itself."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


@cache
def measured(function: str, *arguments: float) -> tuple[float, ...]:
    """Return what a function of this module measures; all its arguments are numbers.

    It measures once in a process: later calls return the same. Raises CalledProcessError if it
    fails.
    """
    command = [sys.executable, "-m", __name__, function, *map(str, arguments)]
    done = subprocess.run(
        command, env={**os.environ, **ONE_THREAD}, stdout=subprocess.PIPE, check=True
    )
    found: list[float] = json.loads(done.stdout)
    return tuple(found)


def passes_s(*vectors: int) -> list[float]:
    """Return the seconds in which numpy adds float32 numbers that arrive to a piece of a vector,
    and those in which it copies them there, for each vector; two numbers give one, its bytes and
    its pieces.

    What arrives is in no cache of this core: another process has just written it.
    """
    pairs = zip(vectors[::2], vectors[1::2], strict=True)
    return [taken_s for vector in pairs for taken_s in _passes_s(*vector)]


def _passes_s(nbytes: int, pieces: int) -> tuple[float, float]:
    # Written, as pages of zeros are one page until then.
    own = np.ones((pieces, max(1, nbytes // FLOAT32_BYTES // pieces)), np.float32)
    total = np.ones_like(own[0])
    arriving = np.ones((1 + UNCACHED_BYTES // total.nbytes, total.size), np.float32)
    mine, others = cycle(own), cycle(arriving)
    return (
        _median_s(lambda: np.add(next(mine), next(others), out=total)),
        _median_s(lambda: np.copyto(next(mine), next(others))),
    )


def policy_s(states: int, state_bytes: int) -> list[float]:
    """Return the seconds in which a policy reads a batch of states, besides its model's time; the
    batch is in no cache of this core."""
    shape = 1 + UNCACHED_BYTES // (states * state_bytes), states, state_bytes // FLOAT32_BYTES
    batches = cycle(np.ones(shape, np.float32))
    model = serving.Model(0.0, lambda seconds: None)
    return [_median_s(lambda: model(next(batches)))]


def sgd_s(layers: int, width: int, batch: int) -> list[float]:
    """Return the seconds of a step of one replica, forwards and backwards through all layers, of
    adding the gradients of a layer to others, and of changing a layer's weights by them.

    Here gradients and weights are in no cache of this core. In a run a sum that was just made may
    be in one.
    """
    shape = sgd.Shape(layers, width, batch)
    network = sgd.Network(shape, 0)
    weights = [shape.weights(layer) for layer in range(layers)]

    def step() -> None:
        for layer in range(layers):
            network.forward(layer, weights[layer])
        for layer in reversed(range(layers)):
            network.backward(layer)

    shape_of_layers = 1 + UNCACHED_BYTES // weights[0].nbytes, *weights[0].shape
    gradients = cycle(np.ones(shape_of_layers, np.float32))
    return [
        _median_s(step),
        _median_s(lambda: next(gradients) + next(gradients)),
        _median_s(lambda: sgd.stepped(next(gradients), next(gradients), 2)),
    ]


def pendulum_s(pairs: int) -> list[float]:
    """Return the seconds of evaluating one pair, and of adding one pair's noise to a sum."""
    problem = es.Pendulum()
    weights = 0.3 * problem.noise(0)
    seeds = iter(range(TRIALS + 1))
    evaluated_s = _median_s(lambda: problem.evaluate(weights, next(seeds)))
    found = [es.Pair(seed, -1.0, -2.0, 0) for seed in range(pairs)]
    return [evaluated_s, _median_s(lambda: problem.add_up(found)) / pairs]


def balance_s(steps: int, share: int) -> list[float]:
    """Return the seconds of a rollout, of training with `steps` steps, and of training with the
    share of one of `share` ranks, in smaller batches; and the bytes of a rollout."""
    game = ppo.CartPole(0)
    weights = ppo.Network(0).weights
    played_s = _median_s(lambda: game.play(weights))
    _, rollout = game.play(weights)

    def train(rollouts: int, batch: int) -> float:
        learner = ppo.Learner(0)

        def once() -> None:
            for _ in range(rollouts):
                learner.add(rollout)
            learner.train(batch)

        return _median_s(once)

    count = -(-steps // ppo.FRAGMENT)
    part = -(-steps // (share * ppo.FRAGMENT))
    return [
        played_s,
        train(count, ppo.BATCH),
        train(part, ppo.BATCH // share),
        len(pickle.dumps(rollout)),
    ]


def _median_s(what: Callable[[], object]) -> float:
    """Return the median of some timings, after one that touches everything for the first time."""
    what()
    found = []
    for _ in range(TRIALS):
        began_s = time.perf_counter()
        what()
        found.append(time.perf_counter() - began_s)
    return statistics.median(found)


if __name__ == "__main__":
    known = passes_s, policy_s, sgd_s, pendulum_s, balance_s
    functions = {each.__name__: each for each in known}
    print(json.dumps(functions[sys.argv[1]](*map(int, sys.argv[2:]))))
