"""A sharded parameter server: asynchronous workers fit a line's weights together.

Each shard is an actor with a part of the weights. A worker reads all shards, works
out a gradient on data of its own, and sends each shard its part; nobody waits for
the slower ones, so a gradient may be of weights that have moved on since.
"""

# mypy: disable-error-code="attr-defined"
# A class that was decorated has `remote`; that is known only when it runs.
from __future__ import annotations

from typing import Any

import numpy as np

WEIGHTS, SHARDS, WORKERS, STEPS = 12, 3, 4, 60
RATE = 0.05


def main(ray: Any) -> float:
    """Return the largest error of a fitted weight; the data have no noise."""
    truth = np.random.default_rng(0).normal(size=WEIGHTS)

    @ray.remote
    class Shard:
        def __init__(self, size: int) -> None:
            self.weights = np.zeros(size)

        def read(self) -> Any:
            return self.weights

        def push(self, gradient: Any) -> None:
            self.weights = self.weights - RATE * gradient

    @ray.remote
    def work(shards: list[Any], seed: int) -> None:
        inputs = np.random.default_rng(seed).normal(size=(200, WEIGHTS))
        targets = inputs @ truth
        for _ in range(STEPS):
            weights = np.concatenate(ray.get([shard.read.remote() for shard in shards]))
            gradient = inputs.T @ (inputs @ weights - targets) / len(inputs)
            for shard, part in zip(shards, np.split(gradient, len(shards)), strict=True):
                shard.push.remote(part)

    shards = [Shard.remote(WEIGHTS // SHARDS) for _ in range(SHARDS)]
    ray.get([work.remote(shards, seed) for seed in range(1, WORKERS + 1)])
    fitted = np.concatenate(ray.get([shard.read.remote() for shard in shards]))
    error = float(np.abs(fitted - truth).max())
    print(f"{WORKERS} workers, {SHARDS} shards: largest error of a weight {error:.1e}")
    return error


if __name__ == "__main__":
    import ray

    main(ray)
