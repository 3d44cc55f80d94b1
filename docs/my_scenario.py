"""A scenario in a file of its own: π by throwing darts, by number of tasks.

Commands that take it:

    raytwin list docs/my_scenario.py
    raytwin run docs/my_scenario.py --backend sim
    raytwin report results --scenario docs/my_scenario.py
"""

from __future__ import annotations

import math
import random

import raytwin as ray
from raytwin.scenarios.core.scenario import (
    BEYOND,
    Check,
    FigureSpec,
    Option,
    Outcome,
    Request,
    Scenario,
)


@ray.remote(scheduling_strategy="SPREAD")
def throw(darts: int, seed: int) -> int:
    """Return how many of so many darts hit the quarter of a circle; it takes 1 µs for each."""
    ray.compute(darts * 1e-6)
    draw = random.Random(seed)
    return sum(draw.random() ** 2 + draw.random() ** 2 < 1 for _ in range(darts))


def run(request: Request) -> Outcome:
    """Throw the same darts with 1, 2, 4, ... tasks at a time, on each backend alike."""
    darts = request.settings["darts"]
    nodes = request.nodes[0] if request.nodes else 4
    rows = []
    with ray.init(backend=request.backend, nodes=nodes, cpus_per_node=1, seed=request.seed):
        ray.get([throw.remote(1, 0) for _ in range(nodes)])  # workers start
        for tasks in request.settings["tasks"]:
            began_s = ray.now()
            hits = sum(ray.get([throw.remote(darts // tasks, n) for n in range(tasks)]))
            pi = 4 * hits / (darts // tasks * tasks)
            rows.append({"tasks": tasks, "elapsed_s": ray.now() - began_s, "pi": pi})
    worst = max(abs(row["pi"] - math.pi) for row in rows)
    return Outcome(
        rows,
        metrics={"elapsed_min_s": min(row["elapsed_s"] for row in rows), "error_max": worst},
        checks=[
            # A fault may not change a value: the check is judged under plans of faults, too.
            Check(
                "every estimate is near π",
                worst < 0.2,
                f"at most {worst:.3f} away",
                under_faults=True,
            )
        ],
    )


SCENARIO = Scenario(
    name="darts",
    title="π by throwing darts",
    figure=BEYOND,
    backends=("sim", "local", "ray"),
    run=run,
    about="Tasks throw darts at a square and count those that hit the circle in it.",
    options=(
        Option("darts", int, 20_000, 2_000_000, "darts in all", minimum=100),
        Option("tasks", int, (1, 2, 4), (1, 2, 4, 8), "that throw them", minimum=1, many=True),
    ),
    figures=(
        FigureSpec(
            title="Time to throw all darts",
            x="tasks",
            y="elapsed_s",
            x_label="tasks",
            y_label="time",
            y_unit="s",
        ),
    ),
)
