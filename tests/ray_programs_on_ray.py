"""A program that imports `raytwin`, for raytwin's own backends and for Ray: prints its values.

``python -m tests.ray_programs_on_ray BACKEND``, with ``RAYTWIN_ON_RAY=1`` for ``ray``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import raytwin as ray
from raytwin.util.queue import Queue

NODES = 2


@ray.remote
def square(x: int) -> int:
    return x * x


@ray.remote(num_cpus=1, max_retries=0)
def add(x: int, y: int) -> int:
    return x + y


@ray.remote
def nested(items: list[int]) -> int:
    """Submits tasks of its own, and sums their results."""
    return sum(ray.get(square.map(items)))


@ray.remote
def place(node: int) -> int:
    ray.sleep(0.01)
    return node


@ray.remote
def took(seconds: float) -> float:
    """How long it is from before a sleep and a computation to after it."""
    begun_s: float = ray.now()
    ray.sleep(seconds)
    ray.compute(seconds)
    return ray.now() - begun_s


@ray.remote
def size(blob: Any) -> int:
    return int(blob.nbytes)


@ray.remote
def fails() -> None:
    raise ValueError("as it should")


@ray.remote(max_restarts=0)
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, amount: int) -> int:
        self.count += amount
        return self.count


def values() -> dict[str, Any]:
    """Return what the program's tasks and actors come to; times only as whether they are right."""
    began_s = ray.now()
    counter = Counter.remote()
    queue = Queue()
    queue.put("item")
    blob = ray.Blob(200_000)
    try:
        ray.get(fails.remote())
        error = ""
    except ray.exceptions.RayTaskError as raised:
        error = f"{isinstance(raised, ValueError)} {raised.cause}"
    on_each = [place.options(num_cpus=0, resources={f"node:{n}": 0.1}) for n in range(NODES)]
    ready, left = ray.wait([took.remote(0.0)], timeout=60)
    return {
        "map": list(ray.get(square.map(range(20)))),
        "map of two": list(ray.get(add.map(range(5), range(10, 15)))),
        "nested": ray.get(nested.remote([1, 2, 3])),
        "put": ray.get(square.remote(ray.put(7))),
        "blob": [ray.get(size.remote(blob)), ray.get(size.remote(ray.put(blob)))],
        "equal": ray.get(ray.put(blob)) == blob,
        "actor": ray.get([counter.add.remote(n) for n in range(5)]),
        "error": error,
        "places": ray.get([each.remote(number) for number, each in enumerate(on_each)]),
        "waited": [len(ready), len(left)],
        "queue": queue.get(),
        "time passes": [ray.get(took.remote(0.05)) >= 0.1, ray.now() > began_s],
        "cpus": ray.cluster_resources()["CPU"],
    }


def main() -> None:
    with ray.init(backend=sys.argv[1], nodes=NODES, cpus_per_node=1):
        found = values()
    print(json.dumps({**found, "has ended": not ray.is_initialized()}))


if __name__ == "__main__":
    main()
