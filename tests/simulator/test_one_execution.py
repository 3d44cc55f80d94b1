"""One seed is one execution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from runtime.backend.journal import read
from runtime.control.messages import AssignTasks
from runtime.control.policies import POLICIES
from tests.simulator.programs import MIXED, mixed
from tests.simulator.virtual import start


def run_mixed(journal: Path, **options: Any) -> bytes:
    start(nodes=4, cpus_per_node=2, journal=journal, **options)
    assert mixed() == MIXED
    ray.shutdown()
    return journal.read_bytes()


@pytest.mark.parametrize("policy", POLICIES)
def test_two_runs_with_one_seed_are_one_execution(policy: str, tmp_path: Path, seed: int) -> None:
    first = run_mixed(tmp_path / "first", policy=policy, seed=seed)
    second = run_mixed(tmp_path / "second", policy=policy, seed=seed)
    assert len(first) > 100_000
    assert first == second


def placements(journal: Path) -> list[tuple[str, int]]:
    return [
        (to, sum(spec.count for spec in message.tasks))
        for turn in read(journal)
        for to, messages in turn.outputs
        for message in messages
        if isinstance(message, AssignTasks)
    ]


def test_another_seed_draws_other_nodes(tmp_path: Path, seed: int) -> None:
    run_mixed(tmp_path / "one", policy="random", seed=seed)
    run_mixed(tmp_path / "other", policy="random", seed=seed + 1)
    one, other = placements(tmp_path / "one"), placements(tmp_path / "other")
    assert one and other and one != other


def test_nodes_that_share_a_host_get_the_same_results(tmp_path: Path, seed: int) -> None:
    first = run_mixed(tmp_path / "first", nodes_per_host=2, cores_per_host=1, seed=seed)
    second = run_mixed(tmp_path / "second", nodes_per_host=2, cores_per_host=1, seed=seed)
    assert first == second
