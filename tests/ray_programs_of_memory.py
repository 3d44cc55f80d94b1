"""Programs that do the same on Ray and on raytwin: large values, and where they are.

Each is a function of the module that stands for `ray`; `test_behaves_like_ray` runs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.further_nodes import FurtherNode

MB = 1 << 20
LENGTH = 1 << 17
"""Of an array that takes 1 MB, too much for a message."""


def released_inputs(ray: Any) -> Any:
    """Lost values come back whose inputs an actor has made, and the driver has released."""

    @ray.remote(num_cpus=0, resources={"there": 1}, max_restarts=-1, max_task_retries=-1)
    class Maker:
        def one(self, number: int) -> Any:
            return np.full(LENGTH, number)

        def several(self, count: int) -> Iterator[Any]:
            for number in range(count):
                yield np.full(LENGTH, number)

    @ray.remote(resources={"there": 1})
    def same(array: Any) -> Any:
        return array + 0

    def made(maker: Any) -> list[Any]:
        items = list(maker.several.options(num_returns="streaming").remote(2))
        items += [maker.one.remote(number) for number in (2, 3)]
        results = [same.remote(item) for item in items]
        results.append(same.remote(same.remote(items[3])))
        assert ray.wait(results, num_returns=5, timeout=60, fetch_local=False)[0] == results
        return results

    node = FurtherNode(ray, there=2)
    maker = Maker.remote()
    results = made(maker)
    node.kill()
    node = FurtherNode(ray, there=2)
    found = [[int(array[0]), array.size] for array in ray.get(results, timeout=120)]
    node.kill()
    return found


def larger_than_memory(ray: Any) -> Any:
    """What finds no room in memory, because it is in use or too large for it, is on disk.

    The program runs where `object_store_memory` is 100 MB.
    """

    @ray.remote
    def made(number: int, nbytes: int) -> Any:
        return np.full(nbytes, number, np.uint8)

    @ray.remote
    def ends(*arrays: Any) -> list[int]:
        return [int(array[-1]) for array in arrays]

    def found(arrays: list[Any]) -> list[list[int]]:
        return [[int(array[0]), int(array[-1]), array.nbytes] for array in arrays]

    one = ray.get(ray.put(np.full(200 * MB, 7, np.uint8)))
    rows = [found([one])]
    del one
    views = [ray.get(ray.put(np.full(20 * MB, number, np.uint8))) for number in range(8)]
    rows.append(found(views))
    del views
    refs = [made.remote(number, 50 * MB) for number in range(4)]
    rows.append(found(ray.get(refs, timeout=60)))
    rows.append(ray.get(ends.remote(*refs, made.remote(9, 150 * MB)), timeout=60))
    return rows
