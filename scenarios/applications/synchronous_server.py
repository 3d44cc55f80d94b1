"""A synchronous parameter server: actors compute gradients, and a server applies their mean.

The model is a logistic regression with numpy. In each step all workers read the same weights, each
computes the gradient on the next batch of its own data, and no step begins before the last one's
gradients are all in. `parameter_server` is its asynchronous sibling.

    python synchronous_server.py [STEPS]
"""

# mypy: disable-error-code="attr-defined"
# A class that was decorated has `remote`; that is known only when it runs.
from __future__ import annotations

import sys
from typing import Any

import numpy as np

WORKERS, FEATURES, BATCH, BATCHES, RATE = 4, 100, 4_000, 4, 2.0
STEPS = 300


def main(ray: Any, steps: int = STEPS) -> float:
    """Return the share of points that the model, trained for `steps` steps, gets right."""

    def data(seed: int, count: int) -> tuple[Any, Any]:
        truth = np.random.default_rng(0).normal(size=FEATURES)
        points = np.random.default_rng(seed).normal(size=(count, FEATURES))
        return points, (points @ truth > 0).astype(float)

    @ray.remote
    class Server:
        def __init__(self) -> None:
            self.weights = np.zeros(FEATURES)

        def apply(self, *gradients: Any) -> Any:
            self.weights = self.weights - RATE * np.mean(gradients, axis=0)
            return self.weights

    @ray.remote
    class Worker:
        def __init__(self, seed: int) -> None:
            self.batches = [data(seed * BATCHES + number, BATCH) for number in range(BATCHES)]
            self.step = 0

        def gradient(self, weights: Any) -> Any:
            points, labels = self.batches[self.step % BATCHES]
            self.step += 1
            chances = 1 / (1 + np.exp(-(points @ weights)))
            return points.T @ (chances - labels) / BATCH

    server = Server.remote()
    workers = [Worker.remote(seed) for seed in range(1, WORKERS + 1)]
    weights = server.apply.remote(np.zeros(FEATURES))
    for _ in range(steps):
        weights = server.apply.remote(*[worker.gradient.remote(weights) for worker in workers])
    fitted = ray.get(weights)
    points, labels = data(0, 2_000)
    right = float(np.mean((points @ fitted > 0) == labels))
    print(f"{WORKERS} workers, {steps} steps: {right:.1%} of new points are right")
    return right


if __name__ == "__main__":
    import ray

    ray.init()
    main(ray, *map(int, sys.argv[1:]))
