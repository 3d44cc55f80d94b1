"""A program under a fault plan, for processes on Ray.

    python -m tests.ray_programs_under_faults FILE

Writes into FILE, as JSON, the errors of the plan's steps, and what its task and its actor came to
meanwhile: Ray prints on the standard output, too.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import raytwin as ray
from raytwin.chaos.faults.injector import attach
from raytwin.chaos.faults.plan import Plan, Step

STEP_S = 0.5
STEPS = (
    ("pause", "actor:0"), ("resume", "actor:0"), ("kill", "actor:0"), ("kill", "worker:1.0"),
    ("pause", "node:1"), ("resume", "node:1"),
    ("kill", "node:1"), ("restart", "node:1"), ("add_node", "cluster"), ("kill", "node:0"),
)  # fmt: skip


@ray.remote(max_retries=-1)
def work(number: int) -> int:
    ray.sleep(0.05)
    return number * number


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Where:
    def pid(self) -> int:
        return os.getpid()


def main() -> None:
    session: Any = ray.init(nodes=2, cpus_per_node=1)
    try:
        where = Where.remote()
        before = ray.get(where.pid.remote())
        # So node 1 has a worker.
        ray.get(work.options(resources={"node:1": 0.01}).remote(0))
        injector = attach(
            session, Plan([Step(*step, STEP_S * n) for n, step in enumerate(STEPS, 1)])
        )
        values = []
        while not injector.finished or len(values) < 100:
            values += ray.get([work.remote(len(values) + n) for n in range(4)])
        injector.stop()
        while (nodes := [row["node"] for row in session.query("nodes") if row["alive"]]) != [
            0,
            1,
            2,
        ]:
            ray.sleep(0.1)
        found = {
            "errors": {str(each.step): each.error for each in injector.injections},
            "moved": ray.get(where.pid.remote()) != before,
            "right": values == [n * n for n in range(len(values))],
            "nodes": nodes,
        }
        Path(sys.argv[1]).write_text(json.dumps(found))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
