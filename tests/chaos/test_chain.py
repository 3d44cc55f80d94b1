"""The recovery fuzz with a GCS that is replicated, and whose replicas die as well."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from raytwin.chaos.fuzz.generate.cases import draw_case
from raytwin.chaos.fuzz.run.case_run import run_case

pytestmark = pytest.mark.slow

KILLS = 3
ALONE: dict[str, Any] = {
    "gcs_replicas": 1, "gcs_shards": 1, "gcs_storage": None, "gcs_memory_max": 0,
}  # fmt: skip
HORIZON_S = 2.0


class Killer:
    """Ends replicas at seeded moments, while there is another one."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"replicas/{seed}")
        self.killed = 0
        self.cluster: Any = None

    def __call__(self, session: Any) -> None:
        self.cluster = session.cluster
        for _ in range(KILLS):
            timer = self.cluster.env.timeout(self.rng.random() * HORIZON_S)
            timer.callbacks.append(self._kill)

    def _kill(self, event: Any) -> None:
        chain = self.rng.randrange(self.cluster.config.chains)
        try:
            self.cluster.kill_member(chain, self.rng.randrange(9))
        except ValueError:
            return  # only one of them has the state as yet
        self.killed += 1

    def counts(self) -> Counter[str]:
        return Counter(self.cluster.gcs.events.counts)


@pytest.mark.parametrize(("replicas", "shards"), [(2, 1), (3, 1), (1, 4), (2, 2)])
def test_nodes_and_replicas_die(replicas: int, shards: int) -> None:
    failures: list[str] = []
    killed = 0
    counts: Counter[str] = Counter()
    for seed in range(30_000, 30_030):
        killer = Killer(seed)
        options = {**ALONE, "gcs_replicas": replicas, "gcs_shards": shards}
        report = run_case(draw_case(seed), killer, **options)
        failures += [f"seed {seed}: {line}" for line in report.failures]
        killed += killer.killed
        counts += killer.counts()
    assert failures == []
    assert killed > 10 or replicas == 1
    assert counts["task_retried"]
    assert counts["task_reconstructed"]


def test_a_history_of_tasks_that_run_again() -> None:
    """Nothing that nodes say for its sake disturbs the tables."""
    for seed in range(31_000, 31_030):
        report = run_case(draw_case(seed), task_history=True, **ALONE)
        assert report.failures == [], f"seed {seed}"
