"""Batch prediction by a pool of actors: each loads the model once, and predicts batch after batch.

There is an actor for each CPU of the cluster, and each gets the next batch when it has ended one.
The model is a network of two layers with weights that nobody has trained; it reaches the actors
through the object store.

    python batch_prediction.py [BATCHES]
"""

# mypy: disable-error-code="attr-defined"
# A class that was decorated has `remote`; that is known only when it runs.
from __future__ import annotations

import sys
from typing import Any

import numpy as np

ROWS, FEATURES, HIDDEN, CLASSES = 4_000, 256, 512, 10
BATCHES = 120


def main(ray: Any, batches: int = BATCHES) -> int:
    """Return how many rows of `batches` batches were predicted, each of which got a class."""

    @ray.remote
    class Predictor:
        def __init__(self, weights: tuple[Any, Any]) -> None:
            self.first, self.second = weights

        def predict(self, batch: int) -> Any:
            rows = np.random.default_rng(batch).normal(size=(ROWS, FEATURES))
            hidden = np.maximum(rows @ self.first, 0.0)
            return np.bincount((hidden @ self.second).argmax(axis=1), minlength=CLASSES)

    generator = np.random.default_rng(0)
    model = ray.put(
        (generator.normal(size=(FEATURES, HIDDEN)), generator.normal(size=(HIDDEN, CLASSES)))
    )
    actors = max(1, int(ray.cluster_resources()["CPU"]))
    pool = ray.util.ActorPool([Predictor.remote(model) for _ in range(actors)])
    counts = sum(
        pool.map_unordered(lambda actor, batch: actor.predict.remote(batch), range(batches)),
        start=np.zeros(CLASSES, dtype=int),
    )
    print(f"{counts.sum():,} rows by {actors} actors; the rarest class has {counts.min():,}")
    return int(counts.sum())


if __name__ == "__main__":
    import ray

    ray.init()
    main(ray, *map(int, sys.argv[1:]))
