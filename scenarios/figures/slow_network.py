"""A slow network: what a delay on every link costs tasks, calls, and calls between actors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import raytwin as ray
from raytwin.chaos.faults.injector import attach, timeline
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.proxied_links import proxied
from raytwin.chaos.faults.targets import Link
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
    UsageError,
)
from raytwin.scenarios.workloads.steady_load import nodes
from raytwin.scenarios.workloads.steady_work import fold

NODES = 3
ACTORS = 3
AIM_PERCENT = 10.0
WARM_UP = 8
"""Of each load before a delay is set."""
LOOK_S = 0.02
PIN = 0.001
"""Of a node's own resource: an actor that needs it lives there."""
SOURCE = "ray-project/ray, pull request 38331"


def plan(backend: str, count: int, delay_ms: float) -> Plan:
    """Return the plan that delays what every node, and the head, sends to every other; the GCS of
    Ray is on node 0."""
    head = [] if backend == "ray" else ["head"]
    ends = [*head, *(f"node:{node}" for node in range(count))]
    return Plan(
        Step("latency", Link(a, b), 0.0, parameters={"latency_ms": delay_ms})
        for a, b in permutations(ends, 2)
    )


class Passer:
    """An actor of a ring that passes a message on."""

    def __init__(self) -> None:
        self.next: Any = None

    def lead_to(self, other: Any) -> None:
        """Know the actor that comes next."""
        self.next = other

    async def hand_on(self, passes: int) -> int:
        """Return how often the message was passed from here on, which it is until none is left."""
        return 1 + await self.next.hand_on.remote(passes - 1) if passes else 0


class Counter:
    """An actor that counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        """Return how many calls have taken effect."""
        self.count += 1
        return self.count


value_of = ray.remote(fold)


def run_tasks(handles: list[Any], count: int) -> bool:
    """Run so many tasks at once, anywhere; return whether all values are right."""
    return bool(
        ray.get([value_of.remote(n) for n in range(count)]) == list(map(fold, range(count)))
    )


def run_tasks_in_turn(handles: list[Any], count: int) -> bool:
    """Run so many tasks, each when the one before has ended."""
    return all(ray.get(value_of.remote(n)) == fold(n) for n in range(count))


def run_calls_in_turn(handles: list[Any], count: int) -> bool:
    """Call an actor on another node so often, each time when the call before is answered."""
    counts = [ray.get(handles[-1].add.remote()) for _ in range(count)]
    return counts == list(range(counts[0], counts[0] + count))


def run_ring(handles: list[Any], count: int) -> bool:
    """Pass a message around a ring of actors so often, on a node each."""
    return bool(ray.get(handles[0].hand_on.remote(count)) == count)


LOADS: dict[str, Callable[[list[Any], int], bool]] = {
    "tasks at once": run_tasks,
    "tasks in turn": run_tasks_in_turn,
    "calls in turn": run_calls_in_turn,
    "ring of actors": run_ring,
}
COUNTS = {
    "tasks at once": "tasks",
    "tasks in turn": "in_turn",
    "calls in turn": "in_turn",
    "ring of actors": "passes",
}
"""By load: the setting that says how much of it there is."""


THEIR_S = (25.0, 171.0)
"""What the ring of Ray's maintainers took without a delay, and with one of `THEIR_DELAY_S`, as
`SOURCE` says: on a cluster of theirs, so the delays that a pass waits for are put beside ours."""
THEIR_DELAY_S = 0.2
THEIR_PASSES = 1_000
BESIDE = {
    "ring of actors": " In the ring of Ray's maintainers a pass waited for"
    f" {(THEIR_S[1] - THEIR_S[0]) / THEIR_DELAY_S / THEIR_PASSES:.2g} of them:"
    f" {THEIR_S[0]:g} s became {THEIR_S[1]:g} s for {THEIR_PASSES:,} passes.",
}
"""By load: what others have measured of it, in a sentence."""


def run(request: Request) -> Outcome:
    """Run every load at every delay; see `SCENARIO`."""
    settings = request.settings
    count = request.nodes[0] if request.nodes else NODES
    if count < NODES:
        raise UsageError(f"slow-network needs at least {NODES} nodes, not {count}: one per actor")
    options: dict[str, Any] = {}
    if request.backend == "sim" and request.profile:
        options = {"profile": str(request.profile), "nodes_per_host": count}
    outcome = Outcome(rows=[])
    request.progress.begin(f"slow-network on {request.backend}", len(settings["delays_ms"]))
    with proxied(*plan(request.backend, count, 0.0).proxied_on):
        session: Any = ray.init(
            backend=request.backend,
            nodes=nodes(count - 1, 2),
            seed=request.seed,
            heartbeat_timeout_s=settings["limit_s"],
            **options,
        )
        try:
            handles = _warm_up(count)
            missed = 0
            for delay_ms in settings["delays_ms"]:
                missed += _delay(outcome, session, count, delay_ms)
                outcome.rows += _measure(handles, settings, delay_ms)
                request.progress.advance()
            missed += _delay(outcome, session, count, 0.0)
            died = _dead_nodes(session)
            outcome.timeline += run_trace.kept()
        finally:
            ray.shutdown()
    _judge(outcome, settings, missed, died)
    return outcome


def _warm_up(count: int) -> list[Any]:
    """Return a ring of actors and a counter behind it, each used once, as workers have been."""
    slot = {"num_cpus": 0}
    ring = [
        ray.remote(**slot, resources={f"node:{node}": PIN})(Passer).remote()
        for node in range(ACTORS)
    ]
    counter = ray.remote(**slot, resources={f"node:{count - 1}": PIN})(Counter).remote()
    ray.get([each.lead_to.remote(ring[(n + 1) % ACTORS]) for n, each in enumerate(ring)])
    handles = [*ring, counter]
    for load in LOADS.values():
        load(handles, WARM_UP)
    return handles


def _delay(outcome: Outcome, session: Any, count: int, delay_ms: float) -> int:
    """Delay every link from now on; return how many could not be."""
    injector = attach(session, plan(session.name, count, delay_ms))
    while not injector.finished:
        ray.sleep(LOOK_S)
    injector.stop()
    outcome.timeline += timeline(injector.injections)
    return sum(bool(each.error) for each in injector.injections)


def _dead_nodes(session: Any) -> int:
    """Return how many nodes were taken for dead."""
    if session.name == "ray":  # where none of them comes back
        return sum(not row["alive"] for row in session.query("nodes"))
    return int(session.query("event_counts").get("node_died", 0))


def _measure(handles: list[Any], settings: Any, delay_ms: float) -> list[Row]:
    """Run every load, and return a row for each."""
    rows = []
    for name, load in LOADS.items():
        amount = settings[COUNTS[name]]
        began_s = ray.now()
        right = load(handles, amount)
        elapsed_s = ray.now() - began_s
        rows.append(
            {
                "load": name,
                "delay_ms": delay_ms,
                "count": amount,
                "elapsed_s": elapsed_s,
                "right": right,
            }
        )
    return rows


def _judge(outcome: Outcome, settings: Any, missed: int, died: int) -> None:
    """Add the metrics, how many delays an operation takes, and the checks."""
    rows = outcome.rows
    elapsed_s = {(row["load"], row["delay_ms"]): row["elapsed_s"] for row in rows}
    least, most = min(settings["delays_ms"]), max(settings["delays_ms"])
    for name in LOADS:
        slug = name.replace(" ", "_")
        for delay_ms in settings["delays_ms"]:
            outcome.metrics[f"elapsed_s_{slug}_{delay_ms:g}_ms"] = elapsed_s[name, delay_ms]
        if most > least:
            more_s = elapsed_s[name, most] - elapsed_s[name, least]
            amount = 1 if name == "tasks at once" else settings[COUNTS[name]]
            crossings = more_s / ((most - least) / 1000) / amount
            outcome.metrics[f"delays_per_operation_{slug}"] = crossings
            what = "All together wait" if amount == 1 else "Each operation waits"
            outcome.findings.append(
                f"{name[0].upper()}{name[1:]}: {elapsed_s[name, least]:.3g} s at {least:g} ms,"
                f" {elapsed_s[name, most]:.3g} s at {most:g} ms. {what} for the delay of"
                f" {crossings:.2g} links in turn.{BESIDE.get(name, '')}"
            )
    wrong = [row for row in rows if not row["right"]]
    outcome.checks += [
        Check(
            "every value is right",
            not wrong,
            f"{len(wrong)} of {len(rows)} loads are wrong",
            under_faults=True,
        ),
        Check("no node is taken for dead", not died, f"{died} were"),
        Check(
            "every link was delayed",
            not missed,
            f"{missed} were not, at {len(settings['delays_ms'])} delays",
        ),
    ]


SCENARIO = Scenario(
    name="slow-network",
    nodes_max={"sim": 100, "local": 16, "docker": 16, "ray": 8},
    title="What a delay on every link costs",
    figure=BEYOND,
    backends=("sim", "local", "docker", "ray"),
    run=run,
    about=(
        "Ray's maintainers ran three actors that pass a message on 1,000 times, on a head and two"
        " workers in Kubernetes, and delayed all networks by 200 ms with Chaos Mesh:"
        f" {THEIR_S[0]:g} s became {THEIR_S[1]:g} s ({SOURCE}, of 2023). Here is the same ring, one"
        " actor on each of three nodes, and besides it tasks all at once, tasks in turn, and calls"
        " of one actor in turn, at delays from none on every link between two nodes, and between"
        " nodes and the head, in each direction. In simulation a delay is a property of the link;"
        " on real processes, in containers and on Ray, Toxiproxy adds it. Ray's GCS is on node 0,"
        " where the driver is. Times of theirs and ours do not compare: their actors sleep before"
        " they pass a message on. How often an operation has to wait for a delay does."
        "\n\n"
        "The driver's node has no CPU, so all tasks run on others. Every load runs shortly before"
        " the delay is set, so that workers and connections are there."
    ),
    options=(
        Option(
            "delays_ms",
            float,
            (0.0, 50.0, 200.0),
            (0.0, 20.0, 50.0, 100.0, 200.0),
            "of every link, in each direction",
            minimum=0,
            many=True,
        ),
        Option("tasks", int, 100, 1_000, "tasks at once", minimum=1),
        Option("in_turn", int, 2, 50, "tasks, and calls, in turn", minimum=1),
        Option("passes", int, 3, 1_000, "of the message around the ring", minimum=1),
        Option("limit_s", float, 5.0, 5.0, "of silence until a node is dead", minimum=0.05),
    ),
    figures=(
        FigureSpec(
            title="Time of each load",
            x="delay_ms",
            y="elapsed_s",
            x_label="delay of every link (ms)",
            y_label="time",
            y_scale="log",
            y_unit="s",
            series=("load",),
            compare=Compare(on=("load", "delay_ms"), column="elapsed_s", aim_percent=AIM_PERCENT),
        ),
    ),
)
