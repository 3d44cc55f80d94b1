"""A program whose links are slowed, stalled, cut and reset, for processes on Ray.

    python -m tests.ray_programs_with_slow_links FILE

Writes into FILE, as JSON, the errors of all steps, and what calls of an actor on another node came
to, and how long they took, in seconds, under each fault and after it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import raytwin as ray
from raytwin.chaos.faults.injector import attach, proxied_for
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.scenarios.figures import slow_network

DELAY_S = 0.3
"""Of each direction."""
STALL_S = 0.5
NBYTES = 1_000_000
BYTES_PER_S = 500_000
THERE, BACK = "link:0>1", "link:1>0"
HEAL = (("heal", THERE), ("heal", BACK))
LATENCY: dict[str, Any] = {"latency_ms": 1000 * DELAY_S}


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Counter(slow_network.Counter):
    def much(self) -> bytes:
        return bytes(NBYTES)


def shortest_s(call: Callable[[], Any], rounds: int = 5) -> float:
    """Return how long the fastest of some calls took."""
    found = []
    for _ in range(rounds):
        began_s = ray.now()
        ray.get(call())
        found.append(ray.now() - began_s)
    return min(found)


def main() -> None:
    found: dict[str, Any] = {}
    errors: list[str] = []
    session: Any

    def carry_out(*steps: tuple[Any, ...]) -> None:
        parts = [
            Step(action, target, 0.0, parameters=dict(*given)) for action, target, *given in steps
        ]
        injector = attach(session, Plan(parts))
        while not injector.finished:
            ray.sleep(0.02)
        injector.stop()
        errors.extend(each.error for each in injector.injections if each.error)

    with proxied_for(Plan([Step("cut", THERE, 0.0)])):
        session = ray.init(nodes=2, cpus_per_node=1)
    try:
        counter = Counter.options(resources={"node:1": 0.01}).remote()
        ray.get([counter.add.remote(), counter.much.remote()])

        carry_out(("latency", THERE, LATENCY))
        found["one way"] = shortest_s(counter.add.remote)
        carry_out(("latency", BACK, LATENCY))
        found["both ways"] = shortest_s(counter.add.remote)
        carry_out(*HEAL)
        found["healed"] = shortest_s(counter.add.remote)

        found["wide"] = shortest_s(counter.much.remote, 2)
        carry_out(("bandwidth", BACK, {"bytes_per_s": BYTES_PER_S}))
        found["narrow"] = shortest_s(counter.much.remote, 2)
        carry_out(*HEAL)

        for action in ("stall", "cut"):
            carry_out((action, THERE))
            held = counter.add.remote()
            found[action] = bool(ray.wait([held], timeout=STALL_S)[0])
            carry_out(*HEAL)
            found[f"after {action}"] = ray.get(held) == ray.get(counter.add.remote()) - 1
        carry_out(("reset", THERE, {"kind": "rst"}), ("reset", BACK, {"kind": "fin"}))
        found["after reset"] = isinstance(ray.get(counter.add.remote()), int)

        carry_out(("restart", "node:1"), ("add_node", "cluster"))
        while sum(row["alive"] for row in session.query("nodes")) < 3:
            ray.sleep(0.1)
        new = Counter.options(resources={"node:2": 0.01}).remote()
        ray.get(new.add.remote())
        carry_out(("latency", "link:0>2", LATENCY))
        found["to a new node"] = shortest_s(new.add.remote)
        found["restarted"] = shortest_s(counter.add.remote)
    finally:
        ray.shutdown()
    Path(sys.argv[1]).write_text(json.dumps({"errors": errors, **found}))


if __name__ == "__main__":
    main()
