"""Every scheduling policy on the same tasks: how fast, how late, how many bytes move."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

import raytwin as ray
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.scheduling.policies import POLICIES, make_policy
from raytwin.scenarios.core import run_trace
from raytwin.scenarios.core.scenario import (
    BEYOND,
    Check,
    Compare,
    FigureSpec,
    Option,
    Outcome,
    Request,
    Row,
    Scenario,
)

NODES = {"sim": (4, 20), "local": (4,), "docker": (4,)}
CPUS = 2
"""Of each node."""
EVEN, INPUTS = "even", "inputs"
SKEWED = 10.0
"""From this skew on a wait depends on whether a long task is ahead, more than on the queue."""
SKEWED_SHARE = 0.1
"""Of the tasks of a skewed load: so many are longer than the others."""
HOLDER_PIN = 0.001
"""Of a node's own resource: a task that needs it runs there."""
SETTLE_S = 0.3
"""Longer than two heartbeats."""
SAME = 1.02
"""A policy that takes no more than that times as long as the best one is as good."""
AWARE = tuple(name for name in POLICIES if make_policy(Config(policy=name)).uses_locations)
BLIND = tuple(
    name for name in POLICIES if name not in AWARE and not make_policy(Config(policy=name)).steals
)
"""Policies that place without locations. One that steals leaves a task where it is until a node is
idle, so it moves few bytes for another reason."""


def nap(number: int, seconds: float, blob: Any = None) -> tuple[int, int, float]:
    """Sleep; return the number, the node that this has run on, and when it has ended."""
    ray.sleep(seconds)
    return number, int(ray.get_runtime_context().get_node_id()), ray.now()


def nap_of(item: tuple[int, float]) -> tuple[int, int, float]:
    """Sleep as one of a task array."""
    return nap(*item)


def make(nbytes: int) -> Any:
    """Return an input."""
    return ray.Blob(nbytes)


_nap, _nap_of, _make = ray.remote(nap), ray.remote(nap_of), ray.remote(make)


def run(request: Request) -> Outcome:
    """Run every load under every policy, on clusters of every size; see `SCENARIO`."""
    settings = request.settings
    outcome = Outcome(rows=[])
    sizes = request.nodes or NODES[request.backend]
    request.progress.begin(f"policies on {request.backend}", len(sizes) * len(settings["policies"]))
    for count in sizes:
        for policy in settings["policies"]:
            _measure(request, outcome, count, policy)
            request.progress.advance()
    _judge(request, outcome)
    return outcome


def _measure(request: Request, outcome: Outcome, count: int, policy: str) -> None:
    """Run every load on a cluster of its own, and add a row for each."""
    settings = request.settings
    options: dict[str, Any] = {}
    if request.backend == "sim" and request.profile:
        options = {"profile": str(request.profile), "nodes_per_host": count}
    ray.init(
        backend=request.backend,
        nodes=count,
        cpus_per_node=CPUS,
        policy=policy,
        seed=request.seed,
        **options,
    )
    try:
        # Workers start, and every node has timed the tasks.
        for node in range(count):
            pin = {f"node:{node}": HOLDER_PIN}
            ray.get([_nap.options(resources=pin).remote(n, 0.001) for n in range(2 * CPUS)])
        for skew in settings["skews"]:
            rng = random.Random(f"{request.seed} {count} {skew}")
            outcome.rows.append(
                {"policy": policy, "nodes": count, **_independent(settings, rng, count, skew)}
            )
        rng = random.Random(f"{request.seed} {count}")
        outcome.rows.append(
            {"policy": policy, "nodes": count, **_with_inputs(settings, rng, count)}
        )
        outcome.timeline += run_trace.kept(f"{policy}, {count} nodes:")
    finally:
        ray.shutdown()


def _independent(settings: Any, rng: random.Random, count: int, skew: float) -> Row:
    """Run tasks without inputs, of which some take `skew` times as long as the others."""
    total = int(settings["tasks_per_cpu"] * count * CPUS)
    mean_s = settings["task_ms"] / 1e3
    usual_s = mean_s / (1 - SKEWED_SHARE + SKEWED_SHARE * skew)
    # Exactly so many, so that all loads of one skew are equally heavy.
    longer = set(rng.sample(range(total), round(SKEWED_SHARE * total)))
    took_s = [usual_s * skew if n in longer else usual_s for n in range(total)]
    return _offered(settings, _name_of(skew), count, took_s, None, [])


def _name_of(skew: float) -> str:
    """Return the name of a load of independent tasks."""
    return EVEN if skew == 1 else f"{skew:g} times as long"


def _with_inputs(settings: Any, rng: random.Random, count: int) -> Row:
    """Run tasks of which each has an input of its own, which lies on one of the nodes."""
    total = int(settings["tasks_per_cpu"] * count * CPUS)
    holders = [n % count for n in range(total)]
    rng.shuffle(holders)
    inputs = [
        _make.options(resources={f"node:{node}": HOLDER_PIN}).remote(settings["input_bytes"])
        for node in holders
    ]
    ray.wait(inputs, num_returns=len(inputs), fetch_local=False)
    took_s = [settings["task_ms"] / 1e3] * total
    return _offered(settings, INPUTS, count, took_s, inputs, holders)


def _offered(
    settings: Any,
    name: str,
    count: int,
    took_s: Sequence[float],
    inputs: Sequence[Any] | None,
    holders: Sequence[int],
) -> Row:
    """Submit batch after batch at the rate of the offered load; return the row of all tasks."""
    ray.sleep(SETTLE_S)
    size = settings["batch"]
    apart_s = size * (sum(took_s) / len(took_s)) / (count * CPUS * settings["load"])
    began_s = ray.now()
    submitted_s: list[float] = []
    refs: list[Any] = []
    for at in range(0, len(took_s), size):
        ray.sleep(max(0.0, began_s + at / size * apart_s - ray.now()))
        batch = range(at, min(at + size, len(took_s)))
        submitted_s += [ray.now()] * len(batch)
        if inputs is None:
            refs += _nap_of.map([(n, took_s[n]) for n in batch])
        else:
            refs += [_nap.remote(n, took_s[n], inputs[n]) for n in batch]
    found = ray.get(refs)
    ended_s = [end_s for *_, end_s in found]
    waits_ms = [
        (end_s - start_s - took) * 1e3
        for end_s, start_s, took in zip(ended_s, submitted_s, took_s, strict=True)
    ]
    moved = sum(holders[n] != node for n, node, _ in found) if inputs is not None else 0
    return {
        "load": name,
        "tasks": len(took_s),
        "tasks_per_s": len(took_s) / (max(ended_s) - began_s),
        "wait_mean_ms": float(np.mean(waits_ms)),
        "wait_p50_ms": float(np.percentile(waits_ms, 50)),
        "wait_p99_ms": float(np.percentile(waits_ms, 99)),
        "moved_bytes": settings["input_bytes"] * moved,
        "right": [number for number, *_ in found] == list(range(len(took_s))),
    }


def _judge(request: Request, outcome: Outcome) -> None:
    """Add the metrics, which policy wins where, and the checks."""
    rows = outcome.rows
    for row in rows:
        where = f"{row['policy']}_{row['load']}_{row['nodes']}_nodes".replace(" ", "_")
        for column in ("tasks_per_s", "wait_mean_ms", "wait_p50_ms", "wait_p99_ms"):
            outcome.metrics[f"{column}_{where}"] = row[column]
        if row["load"] == INPUTS:
            outcome.metrics[f"moved_bytes_{where}"] = row["moved_bytes"]
    by_load: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        by_load.setdefault((row["load"], row["nodes"]), {})[row["policy"]] = row
    for (load, count), found in by_load.items():
        order = sorted(found, key=lambda policy: found[policy]["wait_p99_ms"])
        best, worst = found[order[0]], found[order[-1]]
        outcome.findings.append(
            f"{load[0].upper()}{load[1:]}, {count} nodes: `{order[0]}` lets one task in a hundred"
            f" wait for {best['wait_p99_ms']:.3g} ms or more, `{order[-1]}` for"
            f" {worst['wait_p99_ms']:.3g} ms; the median is {best['wait_p50_ms']:.3g} and"
            f" {worst['wait_p50_ms']:.3g} ms."
        )
    wrong = [row for row in rows if not row["right"]]
    outcome.checks.append(
        Check(
            "every value is right", not wrong, f"of {len(rows)} runs {len(wrong)} are wrong",
            under_faults=True,
        )
    )  # fmt: skip
    outcome.checks += _of_locality(by_load)
    if request.backend == "sim":
        outcome.checks += _of_choices(by_load)
        skews = [skew for skew in request.settings["skews"] if skew >= SKEWED]
        outcome.checks += _of_stealing(by_load, [_name_of(skew) for skew in skews])


def _of_locality(by_load: dict[tuple[str, int], dict[str, Row]]) -> list[Check]:
    """Return the checks that policies which know where inputs are move fewer of their bytes."""
    checks = []
    for (load, count), found in by_load.items():
        aware = {name: found[name]["moved_bytes"] for name in AWARE if name in found}
        blind = {name: found[name]["moved_bytes"] for name in BLIND if name in found}
        if load == INPUTS and aware and blind:
            checks.append(
                Check(
                    f"who knows where inputs are moves fewer bytes, on {count} nodes",
                    max(aware.values()) < min(blind.values()),
                    "; ".join(
                        f"{name} {moved / 1e6:g} MB" for name, moved in (aware | blind).items()
                    ),
                )
            )
    return checks


def _of_choices(by_load: dict[tuple[str, int], dict[str, Row]]) -> list[Check]:
    """Return the checks that more choices shorten the waits, as their authors found.

    They found so of two choices (Mitzenmacher, IEEE TPDS 12(10), 2001) and of batches (Sparrow).
    """
    checks = []
    order = ("batch-sampling", "power-of-two", "random")
    for (load, count), found in by_load.items():
        # Where a tenth of the tasks is long, it depends on them more than on the policy.
        if load == EVEN and all(name in found for name in order):
            waits_ms = [found[name]["wait_mean_ms"] for name in order]
            listed = zip(order, waits_ms, strict=True)
            checks.append(
                Check(
                    f"more choices shorten the mean wait, on {count} nodes",
                    waits_ms[0] <= waits_ms[1] * SAME and waits_ms[1] <= waits_ms[2] * SAME,
                    ", ".join(f"{name} {wait_ms:.3g} ms" for name, wait_ms in listed),
                )
            )
    return checks


def _of_stealing(
    by_load: dict[tuple[str, int], dict[str, Row]], skewed: Sequence[str]
) -> list[Check]:
    """Return the checks that stealing shortens the tail of the waits under the `skewed` loads.

    Whoever places a task does not know how long those before it will take; a thief takes it away
    from behind a long one.
    """
    checks = []
    thief = "work-stealing"
    for (load, count), found in by_load.items():
        tails_ms = {name: row["wait_p99_ms"] for name, row in found.items()}
        rest_ms = [tail_ms for name, tail_ms in tails_ms.items() if name != thief]
        if load in skewed and thief in found and rest_ms:
            checks.append(
                Check(
                    f"stealing shortens the tail of tasks {load}, on {count} nodes",
                    tails_ms[thief] < min(rest_ms),
                    ", ".join(f"{name} {tail_ms:.3g} ms" for name, tail_ms in tails_ms.items()),
                )
            )
    return checks


def _figure(title: str, column: str, label: str, **more: Any) -> FigureSpec:
    return FigureSpec(
        title=title,
        x="policy",
        y=column,
        x_label="policy",
        y_label=label,
        series=("load", "nodes"),
        note="The number behind a load is that of the nodes.",
        compare=Compare(on=("load", "nodes", "policy"), column=column, ranks="policy"),
        **more,
    )


SCENARIO = Scenario(
    name="policies",
    nodes_max={"sim": 1_000, "local": 16, "docker": 16},
    title="Every scheduling policy on the same tasks",
    figure=BEYOND,
    backends=("sim", "local", "docker"),
    not_on_ray="it compares raytwin's policies",
    run=run,
    about=(
        "The same tasks in the same order under every policy, on a cluster of its own for each."
        " They are offered in batches at a fixed share of what the CPUs can do, by a driver that"
        " does not wait for them, so a policy that places badly lets tasks wait behind others while"
        " CPUs are idle. Tasks sleep: what is measured is the waiting, from the submission to the"
        " end without what the task itself takes."
        "\n\n"
        "There are independent tasks of one length, independent tasks of which a tenth takes"
        " several times as long, with the same mean, and tasks that each have an input on one of"
        " the nodes. The independent ones are submitted as task arrays, a batch each: only there"
        " has `batch-sampling` a batch to place; the others are submitted one by one. The bytes"
        " that move are those of inputs that were not on the node on which their task ran."
        " With `work-stealing` those of a stolen task have moved twice: to the node that kept it,"
        " and to the thief."
    ),
    options=(
        Option(
            "policies",
            str,
            tuple(POLICIES),
            tuple(POLICIES),
            "which of them",
            choices=tuple(POLICIES),
            many=True,
        ),
        Option(
            "skews",
            float,
            (1.0, 10.0),
            (1.0, 3.0, 10.0, 30.0),
            "how many times as long a tenth of the tasks takes",
            minimum=1,
            many=True,
        ),
        Option("tasks_per_cpu", int, 15, 40, "of each load", minimum=1),
        Option("task_ms", float, 20.0, 50.0, "what a task takes in the mean", minimum=0.1),
        Option("batch", int, 8, 32, "tasks that are submitted at once", minimum=1),
        Option("load", float, 0.8, 0.8, "share of the CPUs that is offered", minimum=0.01),
        Option("input_bytes", int, 1_000_000, 1_000_000, "of each input", minimum=1),
    ),
    figures=(
        _figure("Tail of the waits", "wait_p99_ms", "99th percentile of the waits (ms)"),
        _figure("Median of the waits", "wait_p50_ms", "median of the waits (ms)"),
        _figure("Throughput", "tasks_per_s", "tasks/s"),
        FigureSpec(
            title="Bytes of inputs that moved",
            x="policy",
            y="moved_bytes",
            x_label="policy",
            y_label="moved",
            y_unit="bytes",
            series=("load", "nodes"),
            where={"load": INPUTS},
        ),
    ),
)
