"""Draws the case of a seed of the fuzz: a cluster, a program and a plan."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import Actor, Head, Link, Node, Replica, WholeCluster, Worker
from raytwin.chaos.fuzz.generate.actors_with_cpus import actors_with_cpus
from raytwin.chaos.fuzz.generate.drawing import Draw, Scope
from raytwin.chaos.fuzz.generate.groups import SLOTS, Groups, surviving_nodes
from raytwin.chaos.fuzz.programs.program import RETRIES, Body, Call, Op
from raytwin.runtime.control.core.config import Config

HEARTBEAT_TIMEOUT_S = 0.5
STORE_BYTES = 64 << 30
STORES_BYTES = (STORE_BYTES, STORE_BYTES, 2_000_000, 1_000_000)
"""The capacities of stores to draw from; the largest values of programs have 300 kB."""
FEATURES = {
    "streams": 0.5,
    "actors": 0.6,
    "callers": 0.4,
    "cancels": 0.25,
    "concurrent": 0.12,
    "groups": 0.12,
    "ends": 0.15,
    "actors_with_cpus": 0.2,
}
"""The share of programs with each feature."""
ROUNDS = {
    "actors": 1.0,
    "callers": 0.5,
    "cancels": 0.3,
    "concurrent": 0.3,
    "groups": 0.4,
    "ends": 0.3,
    "actors_with_cpus": 0.2,
}
"""The probability that a round of each feature follows an operation of the driver."""
SINGLY = 0.3
"""The share of programs that begin with calls of an actor, each awaited."""
DIRECT_AFTER = (1, Config().direct_after)
"""The numbers of awaited calls after which a driver calls an actor directly."""
HORIZON_S = 0.5
"""The virtual seconds at the beginning of a run in which faults begin."""
KEYS = 0.3
"""The share of programs with operations on the key-value table."""
DRIVERS = 0.15
"""The share of cases with further drivers."""
NUMBERS_OF_DRIVER = 100_000
"""The keys of all tasks differ, those of different drivers too."""
LINKS = 0.4
"""The share of cases whose links break, stall and jitter."""
BROKEN = 0.3
"""The share of plans with deaths of nodes in which one of them stays paused for good."""
TIMERS = {
    "heartbeat_s": (0.02, 0.05, 0.1),
    "linger_s": (0.0, 0.0001, 0.01),
    "log_linger_s": (0.0, 0.01, 0.3),
    "spill_wait_s": (0.0, 0.02, 0.5),
    "ahead_s": (0.0, 0.001, 0.05),
    "split_s": (0.0, 0.01),
    "allocate_wait_s": (0.0, 0.05, 1.0),
    "store_wait_s": (0.5, 2.0),
}
"""Values of the control plane's timers to draw from, besides the defaults."""
STORED: dict[str, Any] = {"gcs_storage": "any", "task_history": True, "gcs_memory_max": 4_000}


@dataclass(frozen=True)
class Case:
    """The case of a seed: a cluster, a program and a plan."""

    seed: int
    nodes: int
    cpus: int
    program: Body
    plan: Plan
    lossless: bool
    store_bytes: int = STORE_BYTES
    """The capacity of each node's store; with less than `STORE_BYTES` objects are spilled."""
    gcs: dict[str, Any] = field(default_factory=dict)
    """The session's options for the GCS: replicas, shards, storage."""
    slots: float = 0.0
    """The resources of each node for placement groups."""
    direct_after: int = Config().direct_after
    timers: dict[str, float] = field(default_factory=dict)
    """The session's options for the timers of the control plane."""
    drivers: tuple[Body, ...] = ()
    """The programs of further drivers."""


def draw_case(seed: int, lossless: bool = False) -> Case:
    """Return the case of a seed. With `lossless` no node dies, only workers."""
    rng = random.Random(f"fuzz/{seed}")
    features = {name for name, part in FEATURES.items() if rng.random() < part}
    nodes, cpus = rng.randint(2, 5), rng.randint(1, 3)
    store_bytes = rng.choice(STORES_BYTES)
    gcs, steps = draw_gcs(rng)
    steps += draw_plan(rng, nodes, lossless).steps
    for _ in features & {"actors", "callers", "streams", "concurrent"}:
        steps += _draw_kills_of_actors(rng, nodes, lossless)
    plan = Plan(steps)
    draw = Draw(rng, features, store_bytes == STORE_BYTES)
    alone = random.Random(f"singly/{seed}")
    program = draw_program(draw, Groups(draw, cpus, surviving_nodes(plan, nodes)), alone)
    program = with_keys(random.Random(f"keys/{seed}"), program, draw.next)
    plan = Plan([*plan.steps, *draw_links(random.Random(f"links/{seed}"), nodes)])
    plan = leave_broken(random.Random(f"broken/{seed}"), plan)
    slots = SLOTS if "groups" in features else 0.0
    direct_after = alone.choice(DIRECT_AFTER)
    return Case(
        seed, nodes, cpus, program, plan, lossless, store_bytes, gcs, slots, direct_after,
        draw_timers(random.Random(f"timers/{seed}")),
        draw_drivers(random.Random(f"drivers/{seed}"), store_bytes == STORE_BYTES),
    )  # fmt: skip


def draw_links(rng: random.Random, nodes: int) -> list[Step]:
    """Return faults of links that kill nobody: resets, cuts far shorter than the limit, jitter."""
    if rng.random() >= LINKS:
        return []
    ends = ["head", *(f"node:{number}" for number in range(nodes))]
    steps: list[Step] = []
    for _ in range(rng.choice((1, 3, 10, 30))):
        source, destination = rng.sample(ends, 2)
        link, at_s = Link(source, destination), rng.random() * HORIZON_S
        kind = rng.random()
        if kind < 0.6:
            steps.append(Step("reset", link, at_s, parameters={"kind": rng.choice(("rst", "fin"))}))
            continue
        if kind < 0.85:
            steps.append(Step("cut", link, at_s))
        else:
            slow = {"latency_ms": 1.0, "jitter_ms": rng.choice((1.0, 20.0))}
            steps.append(Step("latency", link, at_s, parameters=slow))
        steps.append(Step("heal", link, at_s + 0.3 * HEARTBEAT_TIMEOUT_S * rng.random()))
    return steps


def draw_timers(rng: random.Random) -> dict[str, float]:
    """Return settings of the control plane's timers, half of the time none."""
    if rng.random() < 0.5:
        return {}
    drawn = {name: rng.choice(values) for name, values in TIMERS.items() if rng.random() < 0.5}
    return {name: value for name, value in drawn.items() if value != getattr(Config(), name)}


def leave_broken(rng: random.Random, plan: Plan) -> Plan:
    """Return a plan in which a node that dies anyway, or is slow, may stay paused for good.

    The others are the core on which everything that can end has to end.
    """
    touched = {step.target.number for step in plan.steps if step.target.kind == "node"} - {0}
    dies = [step for step in plan.steps if step.action in ("kill", "restart", "remove_node")]
    may = sorted(touched & {step.target.number for step in dies if step.target.kind == "node"})
    if not may or rng.random() >= BROKEN:
        return plan
    victim, at_s = rng.choice(may), rng.random() * HORIZON_S
    kept = [
        step
        for step in plan.steps
        if victim not in (getattr(step.target, "number", -1), getattr(step.target, "node", -1))
        or step.target.kind not in ("node", "worker")
        or (step.at_s or 0.0) < at_s
    ]
    return Plan([*kept, Step("pause", Node(victim), at_s)])


def with_keys(rng: random.Random, program: Body, number: Callable[[], int]) -> Body:
    """Return a program with operations on the key-value table in some programs: of the driver, and
    of tasks that run beside it."""
    if rng.random() >= KEYS:
        return program
    ops = list(program.ops)
    for _ in range(rng.choice([2, 5, 10])):
        at = rng.randint(0, len(ops))
        if rng.random() < 0.5:
            ops.insert(at, _key_op(rng))
            continue
        body = Body(tuple(_key_op(rng) for _ in range(rng.randint(1, 4))))
        key, seconds = number(), rng.choice([0.0, 0.01, 0.1])
        call = Call(key, seconds, retries=rng.choice(RETRIES), cpus=0.0, body=body)
        ops.insert(at, Op("call", (), key, call))
    return Body(tuple(ops))


def _key_op(rng: random.Random) -> Op:
    return Op(rng.choice(["set_key", "read_key"]), count=rng.randrange(3))


def draw_drivers(rng: random.Random, large_stores: bool) -> tuple[Body, ...]:
    """Return the programs of further drivers, mostly none; some end while their tasks run."""
    if rng.random() >= DRIVERS:
        return ()
    bodies = []
    for number in range(1, rng.choice([2, 2, 3])):
        draw = Draw(rng, {"streams"} if rng.random() < 0.3 else (), large_stores)
        draw.number = number * NUMBERS_OF_DRIVER
        scope = Scope()
        for _ in range(rng.randint(2, 8)):
            draw.step(scope)
            if rng.random() < 0.3:
                scope.ops.append(_key_op(rng))
        if rng.random() < 0.3:
            scope.ops.append(Op("exit"))
        bodies.append(Body(tuple(scope.ops)))
    return tuple(bodies)


def draw_program(draw: Draw, groups: Groups, alone: random.Random) -> Body:
    """Return a program: operations of the driver, and rounds of its features among them.

    `alone` draws the awaited calls that some programs begin with.
    """
    rounds: dict[str, Callable[[Scope], None]] = {
        "actors": draw.actors,
        "callers": draw.callers,
        "cancels": draw.cancels,
        "concurrent": draw.concurrent_calls,
        "groups": groups.round,
        "ends": draw.ends,
        "actors_with_cpus": partial(actors_with_cpus, draw),
    }
    scope = Scope()
    if alone.random() < SINGLY:
        draw.rng, rest = alone, draw.rng
        draw.singly(scope)
        draw.rng = rest
    for _ in range(draw.rng.randint(4, 24)):
        draw.step(scope)
        for name, often in ROUNDS.items():
            if name in draw.features and draw.rng.random() < often:
                rounds[name](scope)
    groups.finish(scope)
    draw.finish(scope)
    return Body(tuple(scope.ops))


def draw_gcs(rng: random.Random) -> tuple[dict[str, Any], list[Step]]:
    """Return a session's options for its GCS, half of the time none, and kills of its processes."""
    if rng.random() < 0.5:
        return {}, []
    replicas, shards = rng.choice(((1, 1), (1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (3, 1)))
    kills = []
    if replicas == shards == 1:
        for _ in range(rng.choice((0, 0, 1, 2))):
            kills.append(Step("kill", Head(), rng.random() * 2 * HORIZON_S))
        return dict(STORED), kills
    if replicas > 1:
        chains = shards + 1 if shards > 1 else 1
        for _ in range(rng.randint(0, 2 * chains)):
            member = Replica(rng.randrange(chains), rng.randrange(replicas))
            kills.append(Step("kill", member, rng.random() * 2 * HORIZON_S))
    return {"gcs_replicas": replicas, "gcs_shards": shards}, kills


def draw_plan(rng: random.Random, nodes: int, lossless: bool = False) -> Plan:
    """Return a random plan for a cluster of `nodes` nodes.

    It resumes all that it pauses, and ends latencies, since a program may rightly
    hang in a cluster that stays paused.
    """
    steps: list[Step] = []
    numbers = nodes
    for _ in range(rng.randint(1, 6)):
        at_s = rng.random() * HORIZON_S
        kinds = ["worker", "worker", "pause", "pause worker", "latency"]
        if not lossless:
            kinds += ["kill", "kill", "kill", "restart", "long pause", "remove", "add"]
        kind = rng.choice(kinds)
        victim = Node(rng.randrange(1, nodes))
        if kind == "worker":
            steps.append(Step("kill", Worker(rng.randrange(nodes), rng.randrange(4)), at_s))
        elif kind == "kill":
            steps.append(Step("kill", victim, at_s))
            if rng.random() < 0.6:
                steps.append(Step("restart", victim, at_s + rng.random() ** 3))
        elif kind == "restart":
            steps.append(Step("restart", victim, at_s))
        elif kind == "remove":
            steps.append(Step("remove_node", victim, at_s))
        elif kind == "add":
            steps.append(Step("add_node", WholeCluster(), at_s))
            numbers += 1
        elif kind == "pause worker":
            steps.append(Step("pause", Worker(victim.number, rng.randrange(4)), at_s))
            steps.append(Step("resume", Worker(victim.number, 0), at_s + rng.random()))
        elif kind in ("pause", "long pause"):
            # Not node 0, the driver's, for so long that the GCS declares it dead.
            target = victim if kind == "long pause" else Node(rng.randrange(nodes))
            most_s = 3.0 if kind == "long pause" else 0.5
            steps.append(Step("pause", target, at_s))
            steps.append(Step("resume", target, at_s + HEARTBEAT_TIMEOUT_S * most_s * rng.random()))
        else:
            source, destination = rng.sample(range(nodes), 2)
            link = Link(source, destination)
            slow = {"latency_ms": rng.choice([1.0, 20.0, 150.0])}
            steps.append(Step("latency", link, at_s, parameters=slow))
            steps.append(Step("latency", link, at_s + rng.random(), parameters={"latency_ms": 0}))
    # Pauses of one node may overlap, so the plan ends with a resume of every paused node.
    end_s = max(step.at_s or 0.0 for step in steps) + 0.001
    paused = {step.target.number for step in steps if step.target.kind == "node"}
    paused |= {step.target.node for step in steps if step.target.kind == "worker"}
    for number in sorted(paused):
        steps.append(Step("resume", Node(number), end_s))
    return Plan(steps)


def _draw_kills_of_actors(rng: random.Random, nodes: int, lossless: bool) -> list[Step]:
    steps = [
        Step("kill", Actor(rng.randrange(4)), rng.random() * HORIZON_S)
        for _ in range(rng.randint(0, 4))
    ]
    if not lossless and rng.random() < 0.4:
        # A node with a slow link dies, so that calls have taken effect whose replies are lost.
        number, at_s = rng.randrange(1, nodes), rng.random() * HORIZON_S / 2
        slow = {"latency_ms": 100.0}
        steps.append(Step("latency", Link(number, 0), at_s, parameters=slow))
        steps.append(Step("restart", Node(number), at_s + 0.1 * rng.random()))
        steps.append(
            Step("latency", Link(number, 0), at_s + HORIZON_S, parameters={"latency_ms": 0})
        )
    return steps
