"""Random programs and clusters for the world of these tests, each from a seed."""

from __future__ import annotations

import random
from typing import Any

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.scheduling.policies import POLICIES
from tests.control.values import INLINE_BYTES_MAX
from tests.control.world import World

DURATIONS_S = [0.0, 0.0, 0.0002, 0.001, 0.005, 0.02, 0.15]


def random_body(rng: random.Random, depth: int, short: bool = False) -> dict[str, Any]:
    """Return a task's body; it may run a program of its own."""
    body: dict[str, Any] = {"salt": rng.randrange(1000), "s": rng.choice(DURATIONS_S)}
    if short:
        body["s"] = min(body["s"], 0.002)
    if rng.random() < 0.2:
        body["size"] = rng.choice([INLINE_BYTES_MAX + 1, 10_000])
    if depth and rng.random() < 0.35:
        body["steps"] = random_program(rng, depth - 1, rng.randint(1, 4))
    return body


def random_program(
    rng: random.Random, depth: int = 2, steps: int = 12, demands: tuple[str, ...] = ("CPU:1",)
) -> list[dict[str, Any]]:
    """Return a program: chains, fan-out, ranges, puts, waits, nested tasks."""
    program: list[dict[str, Any]] = []
    made: list[int] = []
    for at in range(steps):
        kind = rng.choices(["call", "map", "put", "get", "sleep", "drop"], [8, 3, 2, 2, 2, 2])[0]
        if kind in ("get", "drop") and not made:
            kind = "call"
        if kind == "call":
            body = random_body(rng, depth)
            if rng.random() < 0.15:
                body["returns"] = rng.choice([2, 3])
            deps = [[rng.choice(made), rng.randrange(50)] for _ in range(rng.randint(0, 3)) if made]
            program.append(
                {"do": "call", "body": body, "deps": deps, "demand": rng.choice(demands)}
            )
            made.append(at)
        elif kind == "map":
            count = rng.choice([1, 3, 20, 60])
            bodies = [random_body(rng, min(depth, 1), short=True) for _ in range(count)]
            chunk = rng.choice([1 << 30, 1, 7])
            program.append({"do": "map", "bodies": bodies, "chunk": chunk})
            made.append(at)
        elif kind == "put":
            size = rng.choice([0, 0, INLINE_BYTES_MAX + 1, 5_000])
            program.append({"do": "put", "salt": rng.randrange(1000), "size": size})
            made.append(at)
        elif kind == "sleep":
            program.append({"do": "sleep", "s": rng.choice(DURATIONS_S)})
        else:
            target = rng.choice(made)
            program.append({"do": kind, "step": target})
            if kind == "drop":
                made.remove(target)
    return program


def chained_program(rng: random.Random, steps: int = 15, depth: int = 1) -> list[dict[str, Any]]:
    """Return a program of large values made from one another, most of them forgotten.

    Nothing is put and retries are unlimited: whatever is lost can be made again.
    """
    program: list[dict[str, Any]] = []
    made: list[int] = []

    def body(short: bool = False) -> dict[str, Any]:
        one: dict[str, Any] = {"salt": rng.randrange(1000), "s": rng.choice(DURATIONS_S)}
        if short:
            one["s"] = min(one["s"], 0.005)
        if rng.random() < 0.6:
            one["size"] = rng.choice([INLINE_BYTES_MAX + 1, 10_000])
        if depth and rng.random() < 0.2:
            one["steps"] = chained_program(rng, rng.randint(2, 4), depth - 1)
        return one

    for at in range(steps):
        kinds = ["call", "map", "get", "sleep", "drop", "forget"]
        kind = rng.choices(kinds, [10, 1, 1, 4, 2, 4])[0]
        if kind in ("get", "drop", "forget") and len(made) < 2:
            kind = "call"
        if kind == "call":
            recent = made[-3:]
            deps = (
                [[rng.choice(recent), rng.randrange(20)] for _ in range(rng.randint(0, 2))]
                if (recent)
                else []
            )
            one = body()
            if rng.random() < 0.15:
                one["returns"] = 2
            program.append({"do": "call", "body": one, "deps": deps, "retries": -1})
            made.append(at)
        elif kind == "map":
            bodies = [body(short=True) for _ in range(rng.choice([2, 15]))]
            program.append({"do": "map", "bodies": bodies, "retries": -1})
            made.append(at)
        elif kind == "sleep":
            program.append({"do": "sleep", "s": rng.choice([0.01, 0.05, 0.2])})
        else:
            target = rng.choice(made[:-1])
            program.append({"do": kind, "step": target})
            if kind != "get":
                made.remove(target)
    return program


def random_world(seed: int, policy: str = "", **settings: Any) -> tuple[World, random.Random]:
    """Return a cluster and the generator for what happens in it."""
    rng = random.Random(seed)
    policy = policy or rng.choice(list(POLICIES))
    config = Config(
        policy=policy,
        seed=seed,
        inline_bytes_max=INLINE_BYTES_MAX,
        heartbeat_timeout_s=0.5,
        spill_tasks_per_slot=rng.choice([0, 1, 4]),
        spill_wait_s=rng.choice([0.0, 0.01, 0.1]),
    )
    rows = [
        {"CPU": float(rng.choice([1, 1, 2, 3])), **({"GPU": 1.0} if rng.random() < 0.3 else {})}
        for _ in range(rng.randint(1, 5))
    ]
    world = World(
        settings.pop("rows", rows),
        seed=seed,
        config=config,
        delay_s=rng.choice([1e-5, 2e-4, 3e-3]),
        jitter=rng.choice([0.0, 1.0, 10.0]),
        **settings,
    )
    return world, rng
