"""What a seed of the fuzz stands for: a cluster, a program and a plan, drawn.

Each kind of thing that programs may have is drawn from a stream of its own, behind what
was there before: a seed whose kinds are left out has the program that it had without them.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import Actor, Head, Link, Node, Replica, WholeCluster, Worker
from raytwin.chaos.fuzz.generate.callers import with_awaited, with_callers
from raytwin.chaos.fuzz.generate.cancels import with_cancels
from raytwin.chaos.fuzz.generate.concurrent_calls import with_side_by_side
from raytwin.chaos.fuzz.generate.drawing import draw, with_actors, with_children
from raytwin.chaos.fuzz.generate.ends import with_ends
from raytwin.chaos.fuzz.generate.groups import SLOTS, untouched, with_groups
from raytwin.chaos.fuzz.generate.holders import with_holders
from raytwin.chaos.fuzz.generate.several_values import with_several
from raytwin.chaos.fuzz.generate.streaming import with_streams
from raytwin.chaos.fuzz.programs.program import Body

HEARTBEAT_TIMEOUT_S = 0.5
STORE_BYTES = 64 << 30
STORES_BYTES = (STORE_BYTES, STORE_BYTES, 2_000_000, 1_000_000)
"""Drawn from these; the largest values of programs have 300 kB."""
SEVERAL = 0.5
"""How many of the programs have tasks of several values."""
ACTORS = 0.6
"""How many of the programs have actors."""
CALLERS = 0.4
"""How many of the programs have actors that tasks and other actors' calls call."""
AWAITED = 0.25
"""How many of the programs have runs of calls that are awaited one at a time."""
STREAMS = 0.3
"""How many of the programs have tasks and calls that go through streams."""
CANCELS = 0.25
"""How many of the programs cancel tasks and calls."""
BESIDE = 0.12
"""How many of the programs have actors whose calls run beside one another."""
GROUPS = 0.12
"""How many of the programs have placement groups."""
ENDS = 0.15
"""How many of the programs kill actors, and have actors that leave."""
HOLDERS = 0.2
"""How many of the programs have actors that hold CPUs."""
KINDS = ("streams", "beside", "groups", "ends", "holders")
"""Of these a program may have none: they are drawn last, and later than others have been."""
HORIZON_S = 0.5
"""Faults begin within this time of a run, in virtual seconds."""
STORED: dict[str, Any] = {"gcs_storage": "any", "task_history": True, "gcs_memory_max": 4_000}


@dataclass(frozen=True)
class Case:
    """What a seed stands for."""

    seed: int
    nodes: int
    cpus: int
    program: Body
    plan: Plan
    lossless: bool
    store_bytes: int = STORE_BYTES
    """Per node; with less than the usual, objects go to disk and come back."""
    gcs: dict[str, Any] = field(default_factory=dict)
    """What the session is told of the GCS: replicas, shards, storage."""
    slots: float = 0.0
    """What each node has for placement groups."""


def draw_case(
    seed: int, lossless: bool = False, heads: bool = True, kinds: Collection[str] = KINDS
) -> Case:
    """Return the case of a seed.

    With `lossless` no node dies, only workers, and nothing may be lost. Without `heads`
    no head does. `kinds`: those of `KINDS` that may be drawn.
    """
    rng = random.Random(f"fuzz/{seed}")
    nodes = rng.randint(2, 5)
    cpus = rng.randint(1, 3)
    program = draw(rng, rng.randint(5, 50))
    several = random.Random(f"fuzz/several/{seed}")
    if several.random() < SEVERAL:
        program = with_several(several, program)
    plan = draw_plan(rng, nodes, lossless)
    store_bytes = rng.choice(STORES_BYTES)
    gcs, kills = draw_gcs(random.Random(f"fuzz/{seed}/gcs"))
    others = random.Random(f"fuzz/actors/{seed}")
    if others.random() < ACTORS:
        program = with_actors(others, program, store_bytes == STORE_BYTES)
        more = random.Random(f"fuzz/children/{seed}")
        program = with_children(more, program, store_bytes == STORE_BYTES)
        kills += _draw_kills_of_actors(others, nodes, lossless)
    calls = random.Random(f"fuzz/callers/{seed}")
    if calls.random() < CALLERS:
        program = with_callers(calls, program, store_bytes == STORE_BYTES)
        kills += _draw_kills_of_actors(calls, nodes, lossless)
    singly = random.Random(f"fuzz/awaited/{seed}")
    if singly.random() < AWAITED:
        program = with_awaited(singly, program, store_bytes == STORE_BYTES)
    unwanted = random.Random(f"fuzz/cancels/{seed}")
    if unwanted.random() < CANCELS:
        program = with_cancels(unwanted, program, store_bytes == STORE_BYTES)
    streams = random.Random(f"fuzz/streams/{seed}")
    if "streams" in kinds and streams.random() < STREAMS:
        program = with_streams(streams, program, store_bytes == STORE_BYTES)
        kills += _draw_kills_of_actors(streams, nodes, lossless)
    beside = random.Random(f"fuzz/beside/{seed}")
    if "beside" in kinds and beside.random() < BESIDE:
        program = with_side_by_side(beside, program, store_bytes == STORE_BYTES)
        kills += _draw_kills_of_actors(beside, nodes, lossless)
    placing = random.Random(f"fuzz/groups/{seed}")
    slots = 0.0
    if "groups" in kinds and placing.random() < GROUPS:
        apart = untouched(Plan([*plan.steps, *kills]), nodes)
        program = with_groups(placing, program, cpus, apart, store_bytes == STORE_BYTES)
        slots = SLOTS
    ends = random.Random(f"fuzz/ends/{seed}")
    if "ends" in kinds and ends.random() < ENDS:
        program = with_ends(ends, program, store_bytes == STORE_BYTES)
    if "gcs_storage" in gcs and heads:
        kills += _draw_kills_of_heads(random.Random(f"fuzz/heads/{seed}"))
    holding = random.Random(f"fuzz/holders/{seed}")
    if "holders" in kinds and holding.random() < HOLDERS:
        program = with_holders(holding, program)
    plan = Plan([*plan.steps, *kills])
    return Case(seed, nodes, cpus, program, plan, lossless, store_bytes, gcs, slots)


def draw_gcs(rng: random.Random) -> tuple[dict[str, Any], list[Step]]:
    """Return options of a session for its GCS, half of the time none, and deaths of replicas."""
    if rng.random() < 0.5:
        return {}, []
    if rng.random() < 0.15:
        return dict(STORED), []
    replicas, shards = rng.choice((1, 2, 2, 3)), rng.choice((1, 2, 4))
    if replicas == shards == 1:
        return dict(STORED), []
    kills = []
    if replicas > 1:
        chains = shards + 1 if shards > 1 else 1
        for _ in range(rng.randint(0, 2 * chains)):
            member = Replica(rng.randrange(chains), rng.randrange(replicas))
            kills.append(Step("kill", member, rng.random() * 2 * HORIZON_S))
    return {"gcs_replicas": replicas, "gcs_shards": shards}, kills


def _draw_kills_of_heads(rng: random.Random) -> list[Step]:
    """Half of the durable heads are killed, once or twice."""
    kills = rng.choice((0, 0, 1, 2))
    return [Step("kill", Head(), rng.random() * 2 * HORIZON_S) for _ in range(kills)]


def draw_plan(rng: random.Random, nodes: int, lossless: bool = False) -> Plan:
    """Return a random plan for a cluster of so many nodes.

    Whatever is paused is resumed, and latencies end: a cluster that stays stuck
    would be right to.
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
            # Never the driver's node for so long that it is declared dead.
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
    # Pauses of one node may overlap: at the end everybody goes on.
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
        # A node dies whose answers are slow: calls have taken effect that nobody knows of.
        number, at_s = rng.randrange(1, nodes), rng.random() * HORIZON_S / 2
        slow = {"latency_ms": 100.0}
        steps.append(Step("latency", Link(number, 0), at_s, parameters=slow))
        steps.append(Step("restart", Node(number), at_s + 0.1 * rng.random()))
        steps.append(
            Step("latency", Link(number, 0), at_s + HORIZON_S, parameters={"latency_ms": 0})
        )
    return steps
