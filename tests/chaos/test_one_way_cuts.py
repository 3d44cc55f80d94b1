"""Random programs while nothing passes any more from one process to another, for good.

The other way stays open. The cluster goes on without one of the two nodes, or without the one that
the head does not hear, or that does not hear the head; a chain of the GCS goes on without the
replica, or the cluster without the node if the chain has no other. Whatever can end ends, with the
value of a sequential run.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import Link
from raytwin.chaos.fuzz.generate.cases import STORE_BYTES, Case, draw_case
from raytwin.chaos.fuzz.generate.plans import HORIZON_S
from raytwin.chaos.fuzz.programs.program import ActorSpec, Body, Call, Op
from raytwin.chaos.fuzz.run.case_run import run_case
from raytwin.chaos.fuzz.run.liveness import leaves_s
from raytwin.runtime.control.core.config import Config

SEEDS = range(200)
HOME = ("head", "node:0")
"""The head and the node of the driver: without one of them there is no cluster for the driver."""


def ends_of(case: Case) -> list[str]:
    """Return the processes that run from the start, but clients of nodes."""
    shards, replicas = case.gcs.get("gcs_shards", 1), case.gcs.get("gcs_replicas", 1)
    chains = shards + 1 if shards > 1 else int(replicas > 1)
    members = [f"replica:{c}.{number}" for c in range(chains) for number in range(replicas)]
    return ["head", *(f"node:{number}" for number in range(case.nodes)), *members]


def leaves_a_cluster(case: Case, pair: tuple[str, str]) -> bool:
    """Whether the driver has a cluster without one end of the pair."""
    if case.gcs.get("gcs_replicas", 1) > 1:
        return set(pair) != set(HOME)
    # The only replica of a shard is as little replaced as the head.
    return not all(end in HOME or end.startswith("replica") for end in pair)


def with_cut(seed: int, source: str, destination: str) -> Case:
    """Return a case whose only fault is a cut between two processes."""
    at_s = random.Random(f"when/{seed}").random() * HORIZON_S
    return replace(draw_case(seed), plan=Plan([Step("cut", Link(source, destination), at_s)]))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_one_way_for_good(seed: int) -> None:
    drawn = draw_case(seed)
    pairs = [pair for pair in permutations(ends_of(drawn), 2) if leaves_a_cluster(drawn, pair)]
    case = with_cut(seed, *random.Random(f"between/{seed}").choice(pairs))
    assert run_case(case).failures == [], case.plan.sentences()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pair", [HOME, HOME[::-1]], ids="->".join)
def test_a_driver_without_a_head_learns_that_its_node_is_dead(seed: int, pair: Any) -> None:
    failures = run_case(with_cut(seed, *pair)).failures
    assert {each.error for each in failures} <= {"RaySystemError"}, failures
    assert all("the driver's node was declared dead" in each.detail for each in failures)
    assert failures or seed, "the first program is still running then"


def test_what_waits_for_a_node_that_must_leave_counts_as_settled_when_it_has_left() -> None:
    """A node hears nothing from the head, which asks it and waits for its answer or its end."""
    case = draw_case(60_412)
    assert leaves_s(case, Config(heartbeat_timeout_s=case.heartbeat_timeout_s)) > 10
    assert run_case(case).failures == []
    assert leaves_s(replace(case, plan=Plan([])), Config()) == 0


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("way", ["lend", "call"])
def test_a_borrower_gets_a_value_of_which_its_node_has_told_the_owner_alone(
    way: str, seed: int
) -> None:
    """The owner has dropped the task's input, so that another run would raise."""
    program = Body((
        Op("call", (), 9, Call(9, seconds=1.0, strategy="0!")),  # the owner's node is busy
        Op("actor", (), 4, spec=ActorSpec(7)),
        Op("tell", (4,), 1, Call(16, seconds=0.1)),
        Op(way, (1,), 2, Call(25, strategy="1", cpus=0.0)),
        Op("lend", (2,), 3, Call(51, strategy="2")),
    ))  # fmt: skip
    cut = Plan([Step("cut", Link("node:1", "head"), 0.05)])
    case = replace(
        draw_case(seed), nodes=4, cpus=1, gpus=0.0, gcs={}, timers={}, policy="bottom-up",
        program=program, drivers=(), plan=cut, store_bytes=STORE_BYTES, heartbeat_timeout_s=0.5,
    )  # fmt: skip
    report = run_case(case)
    assert report.failures == []
    assert not report.verdicts, "no value is lost"
