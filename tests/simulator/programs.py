"""Programs for simulated clusters: tasks of many kinds, and `mixed`, which has some of each."""

from __future__ import annotations

from typing import Any

import raytwin as ray


@ray.remote
def increment(x: int) -> int:
    return x + 1


@ray.remote
def work(x: int) -> int:
    ray.sleep(0.002 * (x % 5))
    ray.compute(0.001)
    return x


@ray.remote
def nested(n: int) -> int:
    return sum(ray.get([increment.remote(i) for i in range(n)])) + sum(
        ray.get(increment.map(range(n)))
    )


@ray.remote
def size(blob: Any) -> int:
    return int(blob.nbytes)


@ray.remote(num_returns=3)
def three() -> tuple[int, Any, str]:
    return 1, ray.Blob(3_000_000), "three"


@ray.remote
def uneven(x: int) -> int:
    """Most elements return at once; some use time, some wait for others."""
    if x % 40 == 7:
        ray.sleep(0.02)
    if x % 50 == 9:
        return int(ray.get(increment.remote(x)))
    return x + 1


@ray.remote
def compute(seconds: float) -> float:
    ray.compute(seconds)
    return ray.now()


@ray.remote
def sleep(seconds: float, value: Any = None) -> Any:
    ray.sleep(seconds)
    return value


def mixed() -> list[Any]:
    """A bit of everything that a program can do."""
    parents = [nested.remote(n) for n in (3, 10, 25)]
    blobs = [ray.put(ray.Blob(n * 1_000_000)) for n in range(1, 5)]
    found: list[Any] = [ray.get([size.remote(b) for b in blobs for _ in range(3)])]
    found.append(ray.get(work.map(range(120))))
    found.append(ray.get(parents))
    found.append(ray.get(uneven.map(range(300))))
    one, blob, text = ray.get(three.remote())
    found.append((one, blob.nbytes, text))
    found.append(ray.get([increment.options(num_cpus=2).remote(i) for i in range(10)]))
    found.append(sum(ray.get(increment.map(range(2_000)))))
    ready, rest = ray.wait([work.remote(i) for i in range(20)], num_returns=7)
    found.append((len(ready), len(rest)))
    ray.get(rest)
    return found


MIXED = [
    [n * 1_000_000 for n in range(1, 5) for _ in range(3)],
    list(range(120)),
    [n * (n + 1) for n in (3, 10, 25)],
    [x + 1 for x in range(300)],
    (1, 3_000_000, "three"),
    [i + 1 for i in range(10)],
    2_000 * 2_001 // 2,
    (7, 13),
]
