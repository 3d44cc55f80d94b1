"""Scenarios with one seed are one execution, in every process.

``RAYTWIN_SEEDS=50`` runs each scenario with so many seeds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = int(os.environ.get("RAYTWIN_SEEDS", "10"))
HASH_SEEDS = ("1", "2")
"""Each of two processes gets its own ``PYTHONHASHSEED``, so that it orders sets of strings anew."""

PROGRAM = """
import hashlib, json, logging, sys
from raytwin.scenarios.core.scenario import Request
from raytwin.scenarios.measure import registry

logging.disable(logging.CRITICAL)
SMALL = {
    "fig8a": {"sizes": (100_000,), "tasks": 20},
    "fig11b": {"actors": 10, "steps": 9, "kill_step": 5},
    "partition": {"cuts": ("both ways", "minority not heard")},
    "recovery": {"faults": ("node killed", "connections reset"), "rates_per_s": (60,)},
    "slow-network": {"tasks": 50},
}
for name, changed in SMALL.items():
    scenario = registry.find(name)
    for seed in range(int(sys.argv[1])):
        settings = {**scenario.settings("quick", {}), **changed}
        outcome = scenario.run(Request("sim", seed=seed, settings=settings))
        log = json.dumps([outcome.rows, outcome.metrics, outcome.timeline], default=str)
        digest = hashlib.sha256(log.encode()).hexdigest()
        print(name, seed, len(outcome.rows), len(outcome.timeline), digest, flush=True)
"""


def logs(hash_seed: str) -> list[list[str]]:
    """Return a line for each scenario and seed, with a digest of all that has happened, and when.

    The lines are split into their words.
    """
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(SEEDS)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [line.split() for line in ended.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_with_one_seed_have_the_same_log() -> None:
    with ThreadPoolExecutor() as pool:
        one, other = pool.map(logs, HASH_SEEDS)
    assert len(one) == 5 * SEEDS
    assert all(int(rows) and int(events) > 10 for _, _, rows, events, _ in one)
    assert one == other
    # Or the digests would say nothing: with another seed, other things happen.
    assert len({digest for *_, digest in one}) > 4 * SEEDS
