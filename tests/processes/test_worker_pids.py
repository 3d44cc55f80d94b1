"""Faults find the workers of a node among the processes that a zygote has forked."""

from __future__ import annotations

import os
import signal
from typing import Any

import raytwin as ray
from raytwin.runtime.processes.spawn.worker_pids import worker_pids


@ray.remote
class Echo:
    def pid(self) -> int:
        return os.getpid()


def test_a_nodes_workers_are_found_from_the_oldest_on() -> None:
    session: Any = ray.init(backend="local", nodes=2, cpus_per_node=1)
    try:
        zygote = session.cluster.pids["zygote"]
        on_other = Echo.options(num_cpus=0, resources={"node:1": 0.001}).remote()
        other = ray.get(on_other.pid.remote())
        here = []
        for _ in range(3):  # each starts when the one before is there
            actor = Echo.options(num_cpus=0, resources={"node:0": 0.001}).remote()
            here.append((actor, ray.get(actor.pid.remote())))
        pids = [pid for _, pid in here]
        found = worker_pids(zygote, 0)
        assert [pid for pid in found if pid in pids] == pids
        assert other in worker_pids(zygote, 1) and other not in found
        os.kill(pids[1], signal.SIGKILL)
        while pids[1] in worker_pids(zygote, 0):
            ray.sleep(0.01)
        assert [pid for pid in worker_pids(zygote, 0) if pid in pids] == [pids[0], pids[2]]
    finally:
        ray.shutdown()
    assert worker_pids(zygote, 0) == []
