"""Random programs while nothing passes any more from one process to another, for good.

The other way stays open. The cluster goes on without one of the two nodes, or without the one that
the head does not hear, or that does not hear the head; whatever can end ends, with the value of a
sequential run.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import Link
from raytwin.chaos.fuzz.generate.cases import Case, draw_case
from raytwin.chaos.fuzz.generate.plans import HORIZON_S
from raytwin.chaos.fuzz.run.case_run import run_case

SEEDS = range(200)
HOME = ("head", "node:0")
"""The head and the node of the driver: without one of them there is no cluster for the driver."""


def with_cut(seed: int, source: str, destination: str) -> Case:
    """Return a case whose only fault is a cut between two processes."""
    at_s = random.Random(f"when/{seed}").random() * HORIZON_S
    return replace(draw_case(seed), plan=Plan([Step("cut", Link(source, destination), at_s)]))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_one_way_for_good(seed: int) -> None:
    ends = ["head", *(f"node:{number}" for number in range(draw_case(seed).nodes))]
    pairs = [pair for pair in permutations(ends, 2) if set(pair) != set(HOME)]
    case = with_cut(seed, *random.Random(f"between/{seed}").choice(pairs))
    assert run_case(case).failures == [], case.plan.sentences()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pair", [HOME, HOME[::-1]], ids="->".join)
def test_a_driver_without_a_head_learns_that_its_node_is_dead(seed: int, pair: Any) -> None:
    failures = run_case(with_cut(seed, *pair)).failures
    assert {each.error for each in failures} <= {"RaySystemError"}, failures
    assert all("the driver's node was declared dead" in each.detail for each in failures)
    assert failures or seed, "the first program is still running then"
