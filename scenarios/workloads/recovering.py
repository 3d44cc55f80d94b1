"""Programs under a fault, at a small size: what figures 10a, 11a and 11b and `recovery` run.

Each warms itself up, and has its fault once or several times. Of most the clock decides how long
they run, so that what counts is how long their cluster took to recover: see `Ended.recovery_s`.
Each raises RuntimeError if what it has come to is wrong: that would be no recovery.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import raytwin as ray
from raytwin.chaos.faults.injector import attach
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.runtime.api.backend import current
from raytwin.scenarios.core import executions
from raytwin.scenarios.core.fidelity import DETECTED, FULL, REJOINED, SLOWEST
from raytwin.scenarios.workloads.chain_writes import (
    MEMBERS,
    REPLICAS,
    VALUE_BYTES,
    key,
    value,
    write_while_killed,
)
from raytwin.scenarios.workloads.chains import expected, link, run_chains
from raytwin.scenarios.workloads.disturbance import Disturbance, disturbance
from raytwin.scenarios.workloads.episodes import FaultEpisode, Pace, run_episode
from raytwin.scenarios.workloads.moving_actors import SLOTS, call_under_plan, start_actors
from raytwin.scenarios.workloads.single_faults import (
    FAULTS,
    NOTICED,
    OF_LINKS,
    REPLICATED,
    STORAGE,
    plan,
)
from raytwin.scenarios.workloads.steady_load import Answer, SteadyLoad
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
CHAINS_S = 1.0
"""Beyond the node's return."""
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
        hung = load.finish(PATIENCE_S)
        found = executions.read(record, [row for each in episodes for row in each.ranges])
    wrong = sum(one.answer is not Answer.RIGHT for one in load.operations)
    if hung or wrong:
        raise RuntimeError(f"{fault}: {wrong} operations have no right answer, {hung} hang")
    felt = [
        disturbance(each.span, load.operations, {one.task for one in each.after_fault(found.again)})
        for each in episodes
    ]
    recovery_s = {FULL: _full_s(felt, episodes)}
    if fault in NOTICED:
        recovery_s[DETECTED] = median(_detected_s(fault, each) for each in episodes)
    return Ended(
        len(load.operations),
        episodes[-1].span.ended_s - episodes[0].span.began_s,
        tuple(one.ended_s - one.submitted_s for one in load.operations),
        recovery_s,
    )


def _full_s(felt: Sequence[Disturbance], episodes: Sequence[FaultEpisode]) -> float:
    """Return the median time until throughput was back, of the episodes in which it had gone; 0 if
    it never had."""
    times_s = [
        # One that was not over at its end has taken at least that long.
        each.full_s if each.recovered else episode.span.ended_s - episode.span.fault_s
        for each, episode in zip(felt, episodes, strict=True)
    ]
    return median([each for each in times_s if each is not None] or [0.0])


def _detected_s(fault: str, episode: FaultEpisode) -> float:
    detected_s = episode.detected_s
    if detected_s is None:
        raise RuntimeError(f"{fault}: the cluster has not noticed a death")
    return detected_s


def writes(member: str) -> Ended:
    """Write to the GCS while the "head" or the "tail" of its chain is killed."""
    session: Any = current()
    found = write_while_killed(session, member, KILLED_S, WRITES_S, lambda: None)
    if any(session.kv_get(key(n)) != value(n) for n in range(len(found.samples))):
        raise RuntimeError(f"{member} killed: an acknowledged write is lost")
    latencies_s = tuple(took_s for _, took_s in found.samples)
    recovery_s = {SLOWEST: found.slowest_s, REJOINED: found.joined_s - found.killed_s}
    return Ended(len(latencies_s), sum(latencies_s), latencies_s, recovery_s)


def chains() -> Ended:
    """Run chains of tasks that go on while a node is away, as in figure 11a."""
    away_s, back_s = NODE_AWAY_S
    ray.get([link.remote(0, 0, LINK_S, 0) for _ in range(2 * CHAINS)])
    faults = Plan([Step("kill", "node:1", away_s), Step("restart", "node:1", back_s)])
    injector = attach(current(), faults)
    found = run_chains(CHAINS, LINKS_AHEAD, CHAINS_S, LINK_S, LINK_BYTES, "", LINKS)
    injector.stop()
    if found.values != [expected(chain, length) for chain, length in enumerate(found.lengths)]:
        raise RuntimeError("a chain has come to a wrong number")
    return Ended(LINKS, sorted(found.ended_s)[LINKS - 1])


def actors(checkpoint_interval: int) -> Ended:
    """Call actors while a node dies, as in figure 11b."""
    faults = Plan([Step("kill", "node:1", KILL_STEP * PERIOD_S)])
    with executions.record() as record:
        stepping = start_actors(ACTORS, checkpoint_interval, record)
        found = call_under_plan(stepping, faults, STEPS, PERIOD_S, METHOD_S, lambda: None)
    if found.counts != [[step + 1] * ACTORS for step in range(STEPS)]:
        raise RuntimeError("a call has not taken effect once, in order")
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
        options={REPLICATED: REPLICAS},
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
