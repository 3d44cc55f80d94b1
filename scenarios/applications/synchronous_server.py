"""A synchronous parameter server: actors compute gradients, and a server applies their mean.

The model is a network with one hidden layer, in numpy. In each step all workers get the same
weights, each computes the gradient on the next batch of its own data, and no step begins before the
last one's gradients are all in. `parameter_server` is its asynchronous sibling.

    python synchronous_server.py [STEPS]
"""

# mypy: disable-error-code="attr-defined"
# A class that was decorated has `remote`; that is known only when it runs.
from __future__ import annotations

import sys
from typing import Any

import numpy as np

WORKERS, FEATURES, HIDDEN, BATCH, BATCHES, RATE = 4, 200, 100, 1_000, 4, 1.0
STEPS = 200


def main(ray: Any, steps: int = STEPS) -> float:
    """Return the share of points that the network, trained for `steps` steps, gets right."""

    def data(seed: int, count: int) -> tuple[Any, Any]:
        """Return points, and whether each is on the one side of a plane: 1.0 or 0.0."""
        plane = np.random.default_rng(0).normal(size=FEATURES)
        points = np.random.default_rng(seed).normal(size=(count, FEATURES))
        return points, (points @ plane > 0).astype(float)

    def forward(weights: tuple[Any, Any], points: Any) -> tuple[Any, Any]:
        """Return what the hidden layer makes of points, and the chance that each is a 1."""
        hidden = np.tanh(points @ weights[0])
        return hidden, 1 / (1 + np.exp(-(hidden @ weights[1])))

    @ray.remote
    class Server:
        def __init__(self) -> None:
            start = np.random.default_rng(1)
            self.weights = [
                start.normal(size=(FEATURES, HIDDEN)) / FEATURES**0.5,
                start.normal(size=HIDDEN) / HIDDEN**0.5,
            ]

        def apply(self, *gradients: tuple[Any, Any]) -> Any:
            for layer, of_layer in enumerate(zip(*gradients, strict=True)):
                self.weights[layer] = self.weights[layer] - RATE * np.mean(of_layer, axis=0)
            return tuple(self.weights)

    @ray.remote
    class Worker:
        def __init__(self, seed: int) -> None:
            self.batches = [data(seed * BATCHES + number, BATCH) for number in range(BATCHES)]
            self.step = 0

        def gradient(self, weights: tuple[Any, Any]) -> tuple[Any, Any]:
            points, labels = self.batches[self.step % BATCHES]
            self.step += 1
            hidden, chances = forward(weights, points)
            wrong = (chances - labels) / BATCH
            back = np.outer(wrong, weights[1]) * (1 - hidden**2)
            return points.T @ back, hidden.T @ wrong

    server = Server.remote()
    workers = [Worker.remote(seed) for seed in range(1, WORKERS + 1)]
    weights = server.apply.remote()
    for _ in range(steps):
        weights = server.apply.remote(*[worker.gradient.remote(weights) for worker in workers])
    points, labels = data(0, 2_000)
    right = float(np.mean((forward(ray.get(weights), points)[1] > 0.5) == labels))
    print(f"{WORKERS} workers, {steps} steps: {right:.1%} of new points are right")
    return right


if __name__ == "__main__":
    import ray

    ray.init()
    main(ray, *map(int, sys.argv[1:]))
