"""Programs under a fault, at a small size: what figures 10a, 11a and 11b and `recovery` run.

Each warms itself up, and has its fault once or several times. The clock decides how long it runs,
so that what counts is how long its cluster took to recover: see `Ended.recovery_s`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import Any

import raytwin as ray
from raytwin.chaos.faults.injector import attach
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.runtime.api.backend import current
from raytwin.scenarios.core import executions
from raytwin.scenarios.core.fidelity import FULL, NOTICED, REJOINED, SLOWEST
from raytwin.scenarios.workloads.chain_writes import (
    MEMBERS,
    REPLICAS,
    VALUE_BYTES,
    write_while_killed,
)
from raytwin.scenarios.workloads.chains import link, run_chains
from raytwin.scenarios.workloads.disturbance import disturbance
from raytwin.scenarios.workloads.episodes import Pace, run_episode
from raytwin.scenarios.workloads.moving_actors import SLOTS, call_under_plan, start_actors
from raytwin.scenarios.workloads.single_faults import (
    FAULTS,
    OF_LINKS,
    REPLICATED,
    STORAGE,
    plan,
)
from raytwin.scenarios.workloads.steady_load import SteadyLoad
from raytwin.scenarios.workloads.workload import SEED, Ended, Group, Workload

WORKERS, CPUS = 3, 2
"""Of the cluster of a steady load: nodes that work, and the CPUs of each."""
RATE_PER_S = 150
TASK_S = 0.02
LIMIT_S = 0.4
"""Of silence until a node is dead."""
EPISODES = 4
QUIET_S, AFTER_S, PATIENCE_S = 0.2, 0.4, 10.0
PHASE_S = 0.1
"""Each fault meets the load at a random moment of so many seconds."""

WRITES_S, KILLED_S = 1.5, 0.5

CHAINS, LINKS_AHEAD = 8, 5
LINK_S, LINK_BYTES = 0.01, 1_000
LINKS = 400
CHAINS_S = 2.0
"""Enough for `LINKS`."""
NODE_AWAY_S = (0.3, 0.8)

ACTORS = 20
STEPS, KILL_STEP = 12, 8
PERIOD_S, METHOD_S = 0.2, 0.002
CHECKPOINT_INTERVAL = 3


def steady(fault: str) -> Ended:
    """Run a steady load that has a fault of `single_faults` in each of some episodes."""
    session: Any = current()
    draw = random.Random(SEED)
    with executions.record() as record:
        load = SteadyLoad(RATE_PER_S, TASK_S, WORKERS, True, record)
        if REPLICATED in FAULTS[fault].needs:
            # Tasks and calls do not wait for the GCS.
            load.write = partial(session.kv_put, b"key", bytes(VALUE_BYTES))
        load.warm_up(WORKERS * CPUS)
        episodes = [
            run_episode(
                session,
                load,
                plan(fault, LIMIT_S),
                Pace(QUIET_S + PHASE_S * draw.random(), AFTER_S, PATIENCE_S),
            )
            for _ in range(EPISODES)
        ]
        load.finish(PATIENCE_S)
        found = executions.read(record, [row for each in episodes for row in each.ranges])
    felt = [
        disturbance(each.span, load.operations, {one.task for one in each.after_fault(found.again)})
        for each in episodes
    ]
    full_s = [each.full_s for each in felt if each.full_s is not None]
    # Throughput that has never gone is back at once.
    recovery_s = {FULL: median(full_s) if full_s else 0.0}
    noticed_s = [each.detected_s for each in episodes if each.detected_s is not None]
    if noticed_s:
        recovery_s[NOTICED] = median(noticed_s)
    return Ended(
        len(load.operations),
        episodes[-1].span.ended_s - episodes[0].span.began_s,
        tuple(one.ended_s - one.submitted_s for one in load.operations),
        recovery_s,
    )


def writes(member: str) -> Ended:
    """Write to the GCS while the "head" or the "tail" of its chain is killed."""
    found = write_while_killed(current(), member, KILLED_S, WRITES_S, lambda: None)
    latencies_s = tuple(took_s for _, took_s in found.samples)
    recovery_s = {SLOWEST: found.slowest_s, REJOINED: found.joined_s - found.killed_s}
    return Ended(len(latencies_s), sum(latencies_s), latencies_s, recovery_s)


def chains() -> Ended:
    """Run chains of tasks that go on while a node is away, as in figure 11a."""
    away_s, back_s = NODE_AWAY_S
    ray.get([link.remote(0, 0, LINK_S, 0) for _ in range(2 * CHAINS)])
    faults = Plan([Step("kill", "node:1", away_s), Step("restart", "node:1", back_s)])
    injector = attach(current(), faults)
    found = run_chains(CHAINS, LINKS_AHEAD, CHAINS_S, LINK_S, LINK_BYTES, "")
    injector.stop()
    return Ended(LINKS, sorted(found.ended_s)[LINKS - 1])


def actors(checkpoint_interval: int) -> Ended:
    """Call actors while a node dies, as in figure 11b."""
    faults = Plan([Step("kill", "node:1", KILL_STEP * PERIOD_S)])
    with executions.record() as record:
        stepping = start_actors(ACTORS, checkpoint_interval, record)
        found = call_under_plan(stepping, faults, STEPS, PERIOD_S, METHOD_S, lambda: None)
    recovery_s = {FULL: found.recovery_s(KILL_STEP, PERIOD_S)}
    return Ended(ACTORS * STEPS, STEPS * PERIOD_S, recovery_s=recovery_s)


def _with_fault(fault: str) -> Workload:
    needs = dict(FAULTS[fault].needs)
    stores_gcs = needs.pop(STORAGE, False)
    return Workload(
        lambda: partial(steady, fault),
        Group.FAULTS,
        cpus=(0,) + (CPUS,) * WORKERS,
        of_tasks=False,
        options={"heartbeat_timeout_s": LIMIT_S, **needs},
        stores_gcs=stores_gcs,
        faulty=True,
        behind_proxies=fault in OF_LINKS,
    )


def _writes(member: str) -> Workload:
    return Workload(
        lambda: partial(writes, member),
        Group.FAULTS,
        of_tasks=False,
        options={"gcs_replicas": REPLICAS},
        faulty=True,
    )


def _actors(checkpoint_interval: int) -> Workload:
    return Workload(
        lambda: partial(actors, checkpoint_interval),
        Group.FAULTS,
        cpus=(1, 2, 2, 2, 2),
        of_tasks=False,
        slots=SLOTS,
        faulty=True,
    )


WORKLOADS: Mapping[str, Workload] = {
    **{f"fig10a_{member}_killed": _writes(member) for member in MEMBERS},
    "fig11a": Workload(
        lambda: chains, Group.FAULTS, cpus=(1, 1, 1, 1), of_tasks=False, faulty=True
    ),
    "fig11b_with_checkpoints": _actors(CHECKPOINT_INTERVAL),
    "fig11b_without_checkpoints": _actors(0),
    **{f"recovery_{fault.replace(' ', '_')}": _with_fault(fault) for fault in FAULTS},
}
