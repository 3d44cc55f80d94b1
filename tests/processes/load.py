"""A mixed load for tests of faults: tasks, nested ones, actors with state, large objects.

Every value is decided by its inputs, so a sequential run in plain Python says what
it must be: `Load.step` submits and computes side by side, `Load.check` compares.
"""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np

import raytwin as ray

MB = 1 << 20


def mix(*parts: int) -> int:
    return zlib.crc32(b",".join(b"%d" % part for part in parts))


def blob_of(seed: int) -> Any:
    return np.full(MB, seed % 251, np.uint8)


def sum_of(seed: int) -> int:
    return MB * (seed % 251)


@ray.remote(max_retries=-1)
def small(seconds: float, *parts: int) -> int:
    ray.sleep(seconds)
    return mix(*parts)


@ray.remote(max_retries=-1)
def make(seconds: float, seed: int) -> Any:
    ray.sleep(seconds)
    return blob_of(seed)


@ray.remote(max_retries=-1)
def total(*blobs: Any) -> int:
    return int(sum(int(blob.sum(dtype=np.int64)) for blob in blobs))


@ray.remote(max_retries=-1)
def nested(seed: int, count: int) -> int:
    """Tasks of a task, the last of which has a large input."""
    parts = ray.get([small.remote(0.005, seed, n) for n in range(count)])
    return mix(*parts, ray.get(total.remote(make.remote(0.0, seed))))


def nested_value(seed: int, count: int) -> int:
    return mix(*[mix(seed, n) for n in range(count)], sum_of(seed))


class Fold:
    """Its state is the fold of all it was told, in order."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def tell(self, item: Any) -> int:
        number = item if isinstance(item, int) else int(item.sum(dtype=np.int64))
        self.state = mix(self.state, number)
        return self.state

    def grow(self, item: int) -> Any:
        return blob_of(self.tell(item))

    def __ray_save__(self) -> Any:
        return self.state

    def __ray_restore__(self, state: Any) -> None:
        self.state = state


_Replayed = ray.remote(max_restarts=-1, max_task_retries=-1)(Fold)
_Saved = ray.remote(max_restarts=-1, max_task_retries=-1, checkpoint_interval=7)(Fold)


class Load:
    """What runs while things die; one seed is one load."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.states = [1, 2, 3]
        """Of each actor, as it must be."""
        self.actors = [_Replayed.remote(1), _Saved.remote(2), _Replayed.remote(3)]
        self.expected: list[tuple[Any, int]] = []
        self.checked = 0

    def _expect(self, ref: Any, value: int) -> None:
        self.expected.append((ref, value))

    def step(self, times: int = 1) -> None:
        """Submit some of everything: 24 tasks, 6 calls and 4 objects of 1 MB, mostly."""
        rng = self.rng
        for _ in range(times):
            seeds = [rng.randrange(1 << 30) for _ in range(16)]
            firsts = [small.remote(rng.random() * 0.06, s) for s in seeds[:8]]
            for s, ref in zip(seeds, firsts, strict=False):
                self._expect(small.remote(0.0, s, ref), mix(s, mix(s)))
            large = [(s, make.remote(rng.random() * 0.06, s)) for s in seeds[8:10]]
            put = seeds[10]
            large.append((put, ray.put(blob_of(put))))
            self._expect(total.remote(*[ref for _, ref in large]), sum(sum_of(s) for s, _ in large))
            self._expect(nested.remote(seeds[11], 4), nested_value(seeds[11], 4))
            for number, actor in enumerate(self.actors):
                item = rng.randrange(1 << 30)
                self._told(number, item)
                self._expect(actor.tell.remote(item), self.states[number])
                which = rng.randrange(3)
                if which == 0:
                    self._told(number, item)
                    self._expect(total.remote(actor.grow.remote(item)), sum_of(self.states[number]))
                else:
                    # Not yet made perhaps: the call waits for it, and those behind it.
                    s, ref = large[which]
                    self._told(number, sum_of(s))
                    self._expect(actor.tell.remote(ref), self.states[number])

    def _told(self, number: int, item: int) -> None:
        self.states[number] = mix(self.states[number], item)

    def check(self, limit_s: float) -> None:
        """Every value so far is the sequential run's."""
        refs = [ref for ref, _ in self.expected]
        right = [value for _, value in self.expected]
        got = ray.get(refs, timeout=limit_s)
        wrong = [n for n, (a, b) in enumerate(zip(got, right, strict=True)) if a != b]
        assert not wrong, f"values {wrong[:5]} of {len(right)} are wrong"
        self.checked += len(right)
        self.expected.clear()
