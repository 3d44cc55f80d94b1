"""Draws the case of a seed of the fuzz: a cluster, a program and a plan."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import Head, Replica
from raytwin.chaos.fuzz.generate.actors_with_cpus import actors_with_cpus
from raytwin.chaos.fuzz.generate.asides import with_asides
from raytwin.chaos.fuzz.generate.drawing import Draw, Scope
from raytwin.chaos.fuzz.generate.groups import SLOTS, Groups, surviving_nodes
from raytwin.chaos.fuzz.generate.plans import (
    HEARTBEAT_TIMEOUTS_S,
    HORIZON_S,
    draw_frames,
    draw_head,
    draw_kills_of_actors,
    draw_links,
    draw_machines,
    draw_plan,
    draw_pressure,
    draw_replica_links,
    draw_suspensions,
    heal_late,
    leave_broken,
)
from raytwin.chaos.fuzz.programs.program import QUERIES, RETRIES, SLOT, Body, Call, Op
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.scheduling.policies import POLICIES, BottomUp

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
    "gpus": 0.15,
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
KEYS = 0.3
"""The share of programs with operations on the key-value table."""
ASKING = 0.15
"""The share of programs that ask the cluster for its state."""
DRIVERS = 0.15
"""The share of cases with further drivers."""
GPUS = 2.0
"""The GPUs of each node, in programs with tasks that need some."""
OTHER_POLICIES = 0.25
"""The share of cases with another scheduling policy than the usual one."""
NUMBERS_OF_DRIVER = 100_000
"""The keys of all tasks differ, those of different drivers too."""
BY_PATH = f"{BottomUp.__module__}:{BottomUp.__name__}"
"""A policy by its import path."""
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
"""Values of the control plane's timers to draw from, besides the defaults. The failure detector's
limit is drawn on its own, and no scheduling delay is, which is for studies."""
LIMITS = 0.2
"""The share of cases with each of the limits."""
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
    timers: dict[str, int | float] = field(default_factory=dict)
    """The session's options for the timers of the control plane."""
    drivers: tuple[Body, ...] = ()
    """The programs of further drivers."""
    gpus: float = 0.0
    """The GPUs of each node."""
    policy: str = Config().policy
    heartbeat_timeout_s: float = 0.5
    """The failure detector's limit, which the times of the plan suit. Cases of files that do not
    say it have this one."""

    @property
    def more_resources(self) -> dict[str, float]:
        """The resources of each node besides its CPUs."""
        given = {SLOT: self.slots, "GPU": self.gpus}
        return {name: amount for name, amount in given.items() if amount}


def draw_case(seed: int, lossless: bool = False) -> Case:
    """Return the case of a seed. With `lossless` no node dies, only workers."""
    rng = random.Random(f"fuzz/{seed}")
    features = {name for name, part in FEATURES.items() if rng.random() < part}
    nodes, cpus = rng.randint(2, 5), rng.randint(1, 3)
    store_bytes = rng.choice(STORES_BYTES)
    gcs, steps = draw_gcs(rng)
    limit_s = random.Random(f"heartbeat timeout/{seed}").choice(HEARTBEAT_TIMEOUTS_S)
    steps += draw_plan(rng, nodes, limit_s, lossless).steps
    for _ in features & {"actors", "callers", "streams", "concurrent"}:
        steps += draw_kills_of_actors(rng, nodes, lossless)
    plan = Plan(steps)
    draw = Draw(rng, features, store_bytes == STORE_BYTES)
    alone = random.Random(f"singly/{seed}")
    program = draw_program(draw, Groups(draw, cpus, surviving_nodes(plan, nodes)), alone)
    program = with_keys(random.Random(f"keys/{seed}"), program, draw.next)
    program = with_queries(random.Random(f"queries/{seed}"), program)
    program = with_asides(random.Random(f"asides/{seed}"), program, draw)
    steps = [
        *plan.steps,
        *draw_links(random.Random(f"links/{seed}"), nodes, limit_s, gcs),
        *draw_machines(random.Random(f"machines/{seed}"), nodes),
        *draw_pressure(random.Random(f"pressure/{seed}"), nodes),
        *draw_frames(random.Random(f"frames/{seed}"), limit_s),
        *draw_head(random.Random(f"head/{seed}"), gcs),
        *draw_suspensions(random.Random(f"suspensions/{seed}"), limit_s, gcs),
    ]
    of_replicas = random.Random(f"replica links/{seed}")
    steps += draw_replica_links(of_replicas, nodes, limit_s, gcs, steps)
    plan = leave_broken(random.Random(f"broken/{seed}"), Plan(steps))
    plan = heal_late(random.Random(f"healed/{seed}"), plan, limit_s)
    slots = SLOTS if "groups" in features else 0.0
    direct_after = alone.choice(DIRECT_AFTER)
    return Case(
        seed, nodes, cpus, program, plan, lossless, store_bytes, gcs, slots, direct_after,
        draw_timers(random.Random(f"timers/{seed}"))
        | draw_limits(random.Random(f"limits/{seed}"), features),
        draw_drivers(random.Random(f"drivers/{seed}"), store_bytes == STORE_BYTES),
        GPUS if "gpus" in features else 0.0,
        draw_policy(random.Random(f"policy/{seed}")),
        limit_s,
    )  # fmt: skip


def draw_limits(rng: random.Random, features: Collection[str]) -> dict[str, float]:
    """Return limits of the control plane's memory, mostly none.

    What exceeds the limit of the lineage is not made again after a death: then the value of an
    exact call that needs it, or of a call after that, is not that of a sequential run. An actor
    whose log exceeds its limit dies for good, and with it what later calls need of it: that limit
    is not drawn.
    """
    limits = [("timeline_ranges_max", (5, 50)), ("actor_end_s", (0.01, 0.5))]
    if not {"actors", "callers", "cancels", "concurrent", "ends"} & {*features}:
        limits.append(("lineage_bytes_max", (1_000, 5_000)))
    return {name: rng.choice(values) for name, values in limits if rng.random() < LIMITS}


NOT_DRAWN = ("batch-sampling", "work-stealing")
"""Policies that recover like another, so that the others, and what a seed means, stay as they are.
Batch sampling is power of two but for how it spreads arrays. Stolen tasks move as starving ones
do."""


def draw_policy(rng: random.Random) -> str:
    """Return the name of a scheduling policy."""
    others = sorted({*POLICIES} - {Config().policy, *NOT_DRAWN})
    if rng.random() < OTHER_POLICIES:
        return rng.choice(others)
    return BY_PATH if rng.random() < 0.03 else Config().policy


def draw_timers(rng: random.Random) -> dict[str, int | float]:
    """Return settings of the control plane's timers, half of the time none."""
    if rng.random() < 0.5:
        return {}
    drawn = {name: rng.choice(values) for name, values in TIMERS.items() if rng.random() < 0.5}
    return {name: value for name, value in drawn.items() if value != getattr(Config(), name)}


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


def with_queries(rng: random.Random, program: Body) -> Body:
    """Return a program that may ask for the cluster's state, whatever fails meanwhile."""
    if rng.random() >= ASKING:
        return program
    ops = list(program.ops)
    for _ in range(rng.choice([2, 5, 10])):
        ops.insert(rng.randint(0, len(ops)), Op("query", count=rng.randrange(len(QUERIES))))
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
        leaves = rng.random() < 0.3
        if leaves:
            scope.ops.append(Op("exit"))
        bodies.append((Body(tuple(scope.ops)), draw, not leaves))
    return tuple(with_asides(rng, *drawn) for drawn in bodies)


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
