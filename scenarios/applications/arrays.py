"""Arrays are made by tasks and added up pairwise by others, without coming here."""

from __future__ import annotations

from typing import Any

import numpy as np

LENGTH = 250_000
"""2 MB: large enough that arrays stay in the object store, and only references travel."""


def main(ray: Any) -> float:
    """Return the sum of all elements of eight arrays."""

    @ray.remote
    def make_array(value: int) -> Any:
        return np.full(LENGTH, float(value))

    @ray.remote
    def add_arrays(left: Any, right: Any) -> Any:
        return left + right

    arrays = [make_array.remote(value) for value in range(8)]
    while len(arrays) > 1:
        # The next level of the tree: each task starts when both its inputs exist.
        arrays = [add_arrays.remote(*arrays[i : i + 2]) for i in range(0, len(arrays), 2)]
    total = float(ray.get(arrays[0]).sum())
    print(f"8 arrays of {LENGTH:,} numbers add up to {total:,.0f}")
    return total


if __name__ == "__main__":
    import ray

    main(ray)
