"""One seed is one execution."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.control.messages import AssignTasks
from raytwin.runtime.control.scheduling.policies import POLICIES
from raytwin.runtime.journal import JournalReader
from tests.simulator.programs import MIXED, mixed
from tests.simulator.virtual_cluster import start

ROOT = Path(__file__).resolve().parents[2]


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


IN_A_PROCESS = """
import sys
import raytwin as ray

class Counter:  # travels by value, as all of a script does
    def __init__(self):
        self.count = 0
    def add(self, x):
        self.count += x
        return self.count

@ray.remote
def made(x):
    assert str(x) in {"0", "1", "2", "3"}  # in an order of each process's own
    counter = ray.remote(Counter).remote()
    return ray.get([counter.add.remote(x) for _ in range(3)])[-1]

ray.init(backend="sim", nodes=3, cpus_per_node=4, gcs_shards=2, seed=5, journal=sys.argv[1])
assert ray.get([made.remote(x) for x in range(4)]) == [0, 3, 6, 9]
"""


def turns(journal: Path) -> list[tuple[str, float, list[str]]]:
    return [
        (turn.component, turn.now_s, [to for to, _ in turn.outputs])
        for turn in JournalReader(journal)
    ]


def test_two_processes_with_one_seed_are_one_execution(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(IN_A_PROCESS)
    found = []
    for number in range(4):
        journal = tmp_path / str(number)
        subprocess.run(
            [sys.executable, str(script), str(journal)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(number)},
            check=True,
            timeout=60,
        )
        found.append(turns(journal))
    assert len(found[0]) > 50
    assert all(each == found[0] for each in found)


def placements(journal: Path) -> list[tuple[str, int]]:
    return [
        (to, sum(spec.count for spec in message.tasks))
        for turn in JournalReader(journal)
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
