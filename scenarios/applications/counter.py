"""An actor keeps a count that many tasks add to."""

# mypy: disable-error-code="attr-defined"
# A class that was decorated has `remote`; that is known only when it runs.
from __future__ import annotations

from typing import Any


def main(ray: Any) -> int:
    """Return the count after ten tasks have each added their number ten times."""

    @ray.remote
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, amount: int) -> int:
            self.count += amount
            return self.count

    @ray.remote
    def add_often(counter: Any, amount: int) -> None:
        ray.get([counter.add.remote(amount) for _ in range(10)])

    counter = Counter.remote()
    ray.get([add_often.remote(counter, amount) for amount in range(10)])
    total = int(ray.get(counter.add.remote(0)))
    print("the counter stands at", total)
    return total


if __name__ == "__main__":
    import ray

    main(ray)
