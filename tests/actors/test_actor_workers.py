"""An actor gets no process whose objects others still need."""

from __future__ import annotations

from typing import Any

import raytwin as ray


def test_an_actor_takes_no_worker_whose_values_are_needed(cluster: Any) -> None:
    @ray.remote(num_cpus=0)
    def give() -> list[Any]:
        return [ray.put(7), ray.put([8] * 100)]

    @ray.remote(num_cpus=0)
    class Short:
        def pid(self) -> int:
            return 1

    given = ray.get([give.remote() for _ in range(6)])
    for _ in range(3):
        actors = [Short.remote() for _ in range(4)]
        assert ray.get([actor.pid.remote() for actor in actors]) == [1] * 4
        for actor in actors:
            ray.kill(actor)
    ray.sleep(0.3)
    for refs in given:
        assert ray.get(refs, timeout=30) == [7, [8] * 100]
