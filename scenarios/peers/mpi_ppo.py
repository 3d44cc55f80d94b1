"""What ranks of MPI run for proximal policy optimization: all do the same, as MPI programs do.

Every rank plays its share of an iteration's steps and waits for the slowest; then all learn
together, each from its own rollouts, and average every gradient by Allreduce. The game, the
network and the learner are those of `applications.ppo`.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from raytwin.scenarios.applications import ppo


def main(comm: Any, iterations: int, steps: int, seed: int) -> list[tuple[float, int, float]]:
    """Return the mean score, the steps and the seconds of each iteration.

    Each rank plays whole rollouts until it has its share, so there may be more than `steps`.
    """
    game, learner = ppo.CartPole(1_000 * seed + comm.rank), ppo.Learner(seed)
    learner.rng = np.random.default_rng((seed, comm.rank))  # batches of its own, equal weights

    def average(gradient: Any) -> Any:
        mean = np.empty_like(gradient)
        comm.Allreduce(gradient, mean)
        return mean / comm.size

    done = []
    for _ in range(iterations):
        comm.Barrier()
        began_s = time.perf_counter()
        played = 0
        while played < steps / comm.size:
            count, rollout = game.play(learner.weights)
            played += count
            learner.add(rollout)
        comm.Barrier()
        learner.train(ppo.BATCH // comm.size, average)
        elapsed_s = time.perf_counter() - began_s
        scores = [score for each in comm.allgather(learner.scores) for score in each]
        score = sum(scores) / max(1, len(scores))
        done.append((score, comm.allreduce(played), elapsed_s))
    return done
